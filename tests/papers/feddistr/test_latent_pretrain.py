"""Pre-training on public records: the vocabulary, the folder, the same bits from the same seed."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from raydiff import tree
from raydiff.data import datasets
from raydiff.data.datasets import Data
from raydiff.papers.feddistr.latent import model as latent, pretrain
from raydiff.papers.feddistr.latent.modules import PromptedDenoiser
from raydiff.papers.feddistr.latent.pretrain import Pretrained, Pretraining

TINY = Pretraining(
    vae_widths=(8, 8), widths=(8, 16), width=8, words=2, steps=4, vae_steps=4, batch=8, learning_rate=0.01
)


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture(scope="module")
def public() -> datasets.Records:
    return datasets.load_dataset(Data()).splits["public"].select(torch.arange(60))


def train(public: datasets.Records, seed: int = 0, output: list[Any] | None = None) -> Pretrained:
    output = [] if output is None else output
    return pretrain.pretrain(
        public.images, public.labels, training=TINY, rng=rng(seed), say=lambda *args: output.append(args)
    )


@pytest.fixture(scope="module")
def made(public: datasets.Records) -> Pretrained:
    return train(public)


def state(made: Pretrained) -> dict[str, Tensor]:
    modules = {**tree.prefixed("vae", made.vae.state_dict()), **tree.prefixed("unet", made.unet.state_dict())}
    return {**modules, "prefix": made.prefix, "empty": made.empty, "words": made.words}


def test_all_that_is_trained_moves(public: datasets.Records, made: Pretrained, monkeypatch) -> None:
    monkeypatch.setattr(pretrain, "optimize", lambda params, *_, **__: (params, {}, 0.0))
    first, trained = state(train(public)), state(made)
    assert [k for k in trained if torch.equal(first[k], trained[k])] == []


def test_a_saved_model_is_read_again(public: datasets.Records, made: Pretrained, tmp_path: Path) -> None:
    pretrain.save_pretrained(made, tmp_path / "m", images=public.images, card={"note": "x"})
    model = latent.load_latent(str(tmp_path / "m"))
    assert torch.equal(model.prefix, made.prefix) and torch.equal(model.empty, torch.cat([made.prefix, made.empty]))
    assert torch.equal(model.start, made.words.mean(0)) and model.prediction == "epsilon" and model.timesteps == 1000
    read = {**tree.prefixed("vae", model.vae.state_dict()), **tree.prefixed("unet", model.unet.state_dict())}
    assert tree.digest(read) == tree.digest({k: v for k, v in state(made).items() if k in read})
    z = model.encode(public.images)
    assert float(z.double().std()) == pytest.approx(1, rel=1e-4)  # the scaling is 1 / their deviation
    assert json.loads((tmp_path / "m/card.json").read_text()) == {"note": "x"}
    latent.check_disjoint(str(tmp_path / "m"), datasets.load_dataset(Data()).splits["test"].images)
    with pytest.raises(ValueError, match="also in the public data the latent model was trained on: 60 of 60"):
        latent.check_disjoint(str(tmp_path / "m"), public.images)


def test_the_denoiser_is_trained_as_it_is_used(public: datasets.Records, made: Pretrained, tmp_path: Path) -> None:
    """The loss in training and `LatentDiffusion.loss` are one: the same time, scale and order of the prompt."""
    pretrain.save_pretrained(made, tmp_path / "m", images=public.images, card={})
    model = latent.load_latent(str(tmp_path / "m"))
    module = PromptedDenoiser((4, 4, 4), torch.zeros(1, 8), widths=TINY.widths, layers=TINY.layers)
    module.unet, module.prefix.data = model.unet, model.prefix
    module.table.data = torch.stack([made.words[0], made.empty[0]])
    z_t, t = torch.randn(3, 4, 4, 4, generator=rng()), torch.tensor([1, 500, 1000])
    word, empty = (module(z_t, t, torch.full((3,), i)) for i in (0, 1))
    torch.testing.assert_close(model.predict(z_t, t, made.words[:1].expand(3, -1)), word.detach())
    torch.testing.assert_close(model.predict(z_t, t, model.empty[1:].expand(3, -1)), empty.detach())
    assert (word - empty).abs().max() > 1e-5
