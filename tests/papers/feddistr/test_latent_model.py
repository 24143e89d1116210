"""The frozen latent diffusion model: what it computes, what it never changes, and which folders are refused."""

import copy
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import huggingface_hub
import latents
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from raydiff import tree
from raydiff.data.datasets import Data
from raydiff.experiment import trial
from raydiff.experiment.config import Experiment
from raydiff.models.schedules import ScaledLinearBetas, alphas_bar
from raydiff.papers.feddistr.latent import folder as latent_folder, model as latent
from raydiff.papers.feddistr.latent.model import LatentDiffusion, LatentModel, load_latent
from raydiff.papers.feddistr.method import FedDistr

SHAPE, LATENT = (1, 14, 14), (4, 7, 7)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shared: not to be written to."""
    return latents.write(tmp_path_factory.mktemp("latent"))


@pytest.fixture(scope="session")
def model(folder: Path) -> LatentDiffusion:
    return load_latent(str(folder))


@pytest.fixture
def own(folder: Path, tmp_path: Path) -> Path:
    """The same, the test's own."""
    return Path(shutil.copytree(folder, tmp_path / "model"))


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def rows(model: LatentDiffusion, count: int) -> tuple[Tensor, dict[str, Tensor], Tensor]:
    """(latents, draws, words) of `count` rows."""
    z = torch.randn(count, *LATENT, generator=rng(1))
    return z, model.draws(count, LATENT, rng(2)), torch.randn(count, model.width, generator=rng(3))


def direct(model: LatentDiffusion, z_t: Tensor, t: Tensor, condition: Tensor) -> Tensor:
    """diffusers' own call."""
    with torch.no_grad():
        out: Tensor = model.unet(z_t, t - 1, encoder_hidden_states=condition, return_dict=False)[0]
    return out


def test_stable_diffusions_schedule_is_ours(own: Path) -> None:
    latents.edit(own / "scheduler/scheduler_config.json", num_train_timesteps=1000, beta_start=0.00085, beta_end=0.012)
    torch.testing.assert_close(load_latent(str(own)).abar, alphas_bar(ScaledLinearBetas(), 1000), rtol=1e-4, atol=1e-7)


def test_encoding_is_the_scaled_mean_and_decoding_its_inverse(model: LatentDiffusion, monkeypatch) -> None:
    images = torch.rand(5, *SHAPE, generator=rng()) * 2 - 1
    vae: Any = model.vae
    with torch.no_grad():
        mean = vae.encode(images).latent_dist.mean
        plain = vae.decode(mean).sample
    z = model.encode(images)
    assert z.shape == (5, *LATENT) and model.latent_shape(SHAPE) == LATENT
    torch.testing.assert_close(z, (mean - 0.2) * 0.7)
    torch.testing.assert_close(model.decode(z), plain.clamp(-1, 1))
    loud = copy.deepcopy(vae)
    loud.decoder.conv_out.weight.mul_(10)
    pictures = replace(model, vae=loud).decode(z)
    assert pictures.min() == -1 and pictures.max() == 1 and (pictures.abs() < 1).any()
    monkeypatch.setattr(latent, "PIXELS", 2 * 14 * 14)
    torch.testing.assert_close(model.encode(images), z)  # in chunks of 2
    torch.testing.assert_close(model.decode(z), plain.clamp(-1, 1))


@pytest.mark.parametrize("words", [1, 3])
def test_epsilon_is_the_networks_output_given_prefix_and_words(model: LatentDiffusion, words: int) -> None:
    z_t, draws, _ = rows(model, 6)
    v = torch.randn(6, words, model.width, generator=rng(4))
    condition = torch.cat([model.prefix.expand(6, -1, -1), v], dim=1)
    expected = direct(model, z_t, draws["t"], condition)
    torch.testing.assert_close(model.predict(z_t, draws["t"], v), expected)
    if words == 1:
        torch.testing.assert_close(model.predict(z_t, draws["t"], v[:, 0]), expected)
    other = model.predict(z_t, draws["t"], v + 1)
    assert (other - expected).abs().max() > 1e-4  # the words are heard


def test_v_prediction_becomes_noise(own: Path, model: LatentDiffusion) -> None:
    latents.edit(own / "scheduler/scheduler_config.json", prediction_type="v_prediction")
    other = load_latent(str(own))
    assert other.prediction == "v_prediction" and other.digest != model.digest
    z_t, draws, v = rows(model, 6)
    abar = model.abar[draws["t"]].float().view(-1, 1, 1, 1)
    out = model.predict(z_t, draws["t"], v)  # the same weights
    expected = abar.sqrt() * out + (1 - abar).sqrt() * z_t
    torch.testing.assert_close(other.predict(z_t, draws["t"], v), expected)


def test_the_loss_is_eq_12_row_by_row(model: LatentDiffusion) -> None:
    z, draws, v = rows(model, 5)
    loss = model.loss(v, z, draws)
    assert loss.shape == (5,)
    for i in range(5):
        t, eps = int(draws["t"][i]), draws["z"][i : i + 1]
        z_t = float(model.abar[t]) ** 0.5 * z[i : i + 1] + (1 - float(model.abar[t])) ** 0.5 * eps
        out = direct(model, z_t, torch.tensor([t]), torch.cat([model.prefix, v[i : i + 1]])[None])
        torch.testing.assert_close(loss[i], (eps - out).square().mean())


def test_an_inversion_step_changes_the_word_alone(model: LatentDiffusion) -> None:
    z, draws, _ = rows(model, 4)
    before = tree.digest({**_weights(model), "start": model.start})
    word = model.start.clone().requires_grad_()
    optimizer = torch.optim.AdamW([word], lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model.loss(word.expand(4, -1), z, draws).mean().backward()
        optimizer.step()
    assert (word - model.start).abs().max() > 0.05
    assert tree.digest({**_weights(model), "start": model.start}) == before
    assert all(p.grad is None for m in (model.vae, model.unet) for p in m.parameters())


def _weights(model: LatentDiffusion) -> dict[str, Tensor]:
    return {**tree.prefixed("vae", model.vae.state_dict()), **tree.prefixed("unet", model.unet.state_dict())}


def test_guidance_goes_from_the_empty_prompt_to_the_condition_and_beyond(model: LatentDiffusion) -> None:
    """One DDIM step from T to 0 is affine in the noise, so the three pictures' latents lie on a line."""
    v, t = torch.randn(2, model.width, generator=rng(3)), torch.full((2,), model.timesteps)
    seen: list[Tensor] = []
    spied = replace(model, vae=_Spy(model.vae, seen))
    for guidance in (1.0, 0.0, 3.0):
        spied.sample(v, rng(), shape=SHAPE, steps=1, guidance=guidance)
    z = torch.randn(2, *LATENT, generator=rng())
    a = float(model.abar[-1])
    given, without = model.predict(z, t, v), direct(model, z, t, model.empty.expand(2, -1, -1))
    for latents_, eps in zip(seen, (given, without, without + 3 * (given - without)), strict=True):
        expected = (z - (1 - a) ** 0.5 * eps) / a**0.5
        torch.testing.assert_close((latents_ - 0.2) * 0.7, expected, rtol=1e-3, atol=1e-4)


class _Spy(torch.nn.Module):
    """A vae that keeps what it is asked to decode."""

    def __init__(self, vae: Any, seen: list[Tensor]) -> None:
        super().__init__()
        self.vae, self.seen, self.config = vae, seen, vae.config

    def decode(self, z: Tensor) -> Any:
        self.seen.append(z)
        return self.vae.decode(z)


# --- what is refused ---


def message(name: str) -> str:
    with pytest.raises(ValueError) as error:
        load_latent(name)
    assert "\n" not in str(error.value)
    return str(error.value)


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def _pickled(folder: Path) -> None:
    (folder / "unet/diffusion_pytorch_model.safetensors").unlink()
    (folder / "unet/diffusion_pytorch_model.bin").write_bytes(b"")


def _sharded(folder: Path) -> None:
    (folder / "unet/diffusion_pytorch_model.safetensors").unlink()
    index = {"weight_map": {"a": "diffusion_pytorch_model-00001-of-00002.safetensors"}}
    (folder / "unet/diffusion_pytorch_model.safetensors.index.json").write_text(json.dumps(index))


def _lacking_a_weight(folder: Path) -> None:
    path = folder / "vae/diffusion_pytorch_model.safetensors"
    save_file({k: v for k, v in load_file(path).items() if k != "quant_conv.bias"}, path)


SCHEDULER = "scheduler/scheduler_config.json"
WEIGHTS = "diffusion_pytorch_model.safetensors"
CASES: dict[str, tuple[Callable[[Path], object], str]] = {
    "no index": (lambda f: (f / "model_index.json").unlink(), "lacks model_index.json"),
    "index is no object": (lambda f: (f / "model_index.json").write_text("[]"), "is not a JSON object"),
    "no unet": (lambda f: shutil.rmtree(f / "unet"), "unet lacks config.json"),
    "no weights": (lambda f: (f / "unet" / WEIGHTS).unlink(), "unet of the latent .* cannot be read: .*no file"),
    "no shard": (_sharded, "unet of the latent .* cannot be read"),
    "cut short": (lambda f: _cut(f / "vae" / WEIGHTS), "vae of the latent .* cannot be read"),
    "a weight missing": (_lacking_a_weight, "the vae in .* lacks 1 of its weights, such as quant_conv.bias"),
    "pickle": (_pickled, r"unet of the latent .* cannot be read: .*safetensors"),
    "another vae": (lambda f: latents.edit(f / "vae/config.json", _class_name="VQModel"), "is a VQModel: only Auto"),
    "no tokens": (lambda f: (f / "tokens.safetensors").unlink(), "tokens.safetensors of the latent .* cannot be read"),
    "tokens cut short": (
        lambda f: _cut(f / "tokens.safetensors"),
        "tokens.safetensors of the latent .* cannot be read",
    ),
    "sample prediction": (
        lambda f: latents.edit(f / SCHEDULER, prediction_type="sample"),
        "must have a prediction_type of epsilon, v_prediction, got 'sample'",
    ),
    "flow matching": (
        lambda f: (f / SCHEDULER).write_text('{"_class_name": "FlowMatchEulerDiscreteScheduler"}'),
        r"has no betas \(FlowMatchEulerDiscreteScheduler\)",
    ),
    "unknown schedule": (lambda f: latents.edit(f / SCHEDULER, beta_schedule="mine"), "scheduler .* cannot be read"),
    "pure noise": (lambda f: latents.edit(f / SCHEDULER, rescale_betas_zero_snr=True), "ends in pure noise"),
    "text encoder missing": (
        lambda f: latents.edit(f / "model_index.json", text_encoder=["transformers", "CLIPTextModel"]),
        "text_encoder lacks config.json",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_folder_that_will_not_do_is_refused_in_one_sentence(own: Path, case: str) -> None:
    spoil, says = CASES[case]
    spoil(own)
    assert re.search(says, message(str(own)))


def test_parts_that_do_not_go_together(tmp_path: Path) -> None:
    assert "3 latent channels, but its unet takes 4" in message(str(latents.write(tmp_path / "a", latent=3)))
    assert "are 5 wide, but its unet attends to a width of 8" in message(str(latents.write(tmp_path / "b", width=5)))


def test_pictures_that_do_not_fit(model: LatentDiffusion, tmp_path: Path) -> None:
    model.check((1, 8, 6))
    with pytest.raises(ValueError, match=r"have 1 channels, not 3: set data\.colour=grey"):
        model.check((3, 8, 8))
    with pytest.raises(ValueError, match=r"divisible by 2, got 7x8: set data\.size"):
        model.check((1, 7, 8))
    with pytest.raises(ValueError, match=r"have 1 channels, not 3"):
        model.encode(torch.zeros(1, 3, 8, 8))
    with pytest.raises(ValueError, match=r"have 3 channels, not 1: set data\.colour=rgb"):
        load_latent(str(latents.write(tmp_path / "rgb", channels=3))).check((1, 8, 8))


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    assert f"there is no folder {tmp_path}/gone of a latent diffusion model" in message(str(tmp_path / "gone"))


def test_a_name_of_the_hub_is_downloaded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def download(repository: str, **how: Any) -> str:
        asked.update(how, repository=repository)
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", lambda self, repository, timeout: None)
    assert load_latent("some/model") is load_latent(str(folder))
    assert asked["repository"] == "some/model" and asked["repo_type"] == "model"
    assert asked["allow_patterns"] == list(latent_folder.PATTERNS)


# --- what an experiment holds ---


def test_an_experiments_model_knows_its_weights(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(own.parent)
    held = LatentModel(path="model").for_data(SHAPE, (10, 2))
    assert held == LatentModel(path=str(own), digest=load_latent(str(own)).digest, shape=SHAPE, labels=(10, 2))
    assert held.load() is load_latent(str(own))
    with pytest.raises(ValueError, match=r"has changed since: its digest is \w{16}, not the recorded 0000"):
        replace(held, digest="0" * 64).load()
    with pytest.raises(ValueError, match="divisible by 2"):
        LatentModel(path=str(own)).for_data((1, 9, 9), ())


def test_who_asks_for_its_shapes_alone_leaves_the_accelerator_alone(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a sweep's driver does, on a GPU that Ray counts as free: the one here is torch's device without memory."""
    monkeypatch.setattr(latent, "device", lambda: torch.device("meta"))

    def where(of: LatentDiffusion) -> set[str]:
        return {p.device.type for module in (of.vae, of.unet) for p in module.parameters()}

    method = FedDistr(model=LatentModel(path=str(own)), epsilon=None, clip=None, clusters=1, least=0)
    resolved = trial.resolve_on_data(Experiment(method=method, data=Data(size=14), evaluation=None))
    loaded = resolved.method.model.load()
    assert where(loaded) == {"cpu"}
    with pytest.raises(NotImplementedError, match="meta"):  # it has computed there, and has nothing to give
        loaded.decode(torch.zeros(1, *LATENT))
    assert where(loaded) == {"cpu", "meta"}


def test_the_digest_is_over_weights_and_configs(own: Path, folder: Path, tmp_path: Path) -> None:
    copied = Path(shutil.copytree(own, tmp_path / "copied"))
    latents.edit(copied / "unet/config.json", _diffusers_version="0.1")
    assert load_latent(str(copied)).digest == load_latent(str(folder)).digest
    latents.edit(own / "vae/config.json", scaling_factor=0.8)
    assert load_latent(str(own)).digest != load_latent(str(folder)).digest
    other = latents.write(tmp_path / "other", width=8)
    tokens = load_file(other / "tokens.safetensors")
    save_file({**tokens, "start": tokens["start"] + 1}, other / "tokens.safetensors")
    assert load_latent(str(other)).digest != load_latent(str(folder)).digest


def test_without_a_path_it_says_how_to_make_one() -> None:
    with pytest.raises(ValueError, match=r"model\.path names no latent diffusion model: .*raydiff pretrain"):
        LatentModel().for_data(SHAPE, ())


# --- text encoders ---


@pytest.fixture
def with_text(own: Path) -> Path:
    """The model with a tiny random CLIPTextModel and a tokenizer of single letters."""
    transformers = pytest.importorskip("transformers", reason="text encoders need transformers")
    letters = [chr(c) for c in range(ord("a"), ord("z") + 1)]
    marks = ["<|startoftext|>", "<|endoftext|>"]
    vocabulary = {word: i for i, word in enumerate([*letters, *(f"{c}</w>" for c in letters), *marks])}
    (own / "tokenizer").mkdir()
    (own / "tokenizer/vocab.json").write_text(json.dumps(vocabulary))
    (own / "tokenizer/merges.txt").write_text("#version: 0.2\no f</w>\n")
    vocabulary["of</w>"] = len(vocabulary)
    (own / "tokenizer/vocab.json").write_text(json.dumps(vocabulary))
    (own / "tokenizer/tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "CLIPTokenizer"}))
    config = transformers.CLIPTextConfig(
        vocab_size=len(vocabulary),
        hidden_size=latents.WIDTH,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=16,
        bos_token_id=vocabulary["<|startoftext|>"],
        eos_token_id=vocabulary["<|endoftext|>"],
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        transformers.CLIPTextModel(config).save_pretrained(own / "text_encoder")
    (own / "tokens.safetensors").unlink()
    latents.edit(own / "model_index.json", text_encoder=["transformers", "x"], tokenizer=["transformers", "x"])
    return own


def test_the_prompt_is_encoded_by_the_models_own_text_encoder(with_text: Path, model: LatentDiffusion) -> None:
    from transformers import CLIPTextModel

    result = load_latent(str(with_text))
    vocabulary = json.loads((with_text / "tokenizer/vocab.json").read_text())
    begin, end = vocabulary["<|startoftext|>"], vocabulary["<|endoftext|>"]
    photo = [vocabulary[c] for c in "phot"] + [vocabulary["o</w>"]]
    prompt = [begin, vocabulary["a</w>"], *photo, vocabulary["of</w>"], end]
    encoder: Any = CLIPTextModel.from_pretrained(with_text / "text_encoder").eval()
    with torch.no_grad():
        whole, empty = (encoder(torch.tensor([ids])).last_hidden_state[0] for ids in (prompt, [begin, end]))
    torch.testing.assert_close(result.prefix, whole[:-1])
    torch.testing.assert_close(result.empty, empty)
    torch.testing.assert_close(result.start, whole[-2])
    assert result.digest != model.digest
