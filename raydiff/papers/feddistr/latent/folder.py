"""A folder in the form of Stable Diffusion, read: model_index.json, vae/, unet/, scheduler/, and either text_encoder/
and tokenizer/ or `TOKENS`, the tokens that raydiff pretrain learned. Whatever will not do is refused in one
sentence, before anything is trained.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from raydiff import tree
from raydiff.data import hub
from raydiff.tree import Params

INDEX = "model_index.json"
TOKENS = "tokens.safetensors"
CARD = "card.json"
PUBLIC = "public.json"
"""What a model that was trained here adds: hex SHA-256 of each public picture that it was trained on."""
MODULES = {"vae": "AutoencoderKL", "unet": "UNet2DConditionModel"}
WEIGHTS = "diffusion_pytorch_model"
PROMPT = "a photo of"
"""The frozen prompt p (FedDistr, section 4.2)."""
PATTERNS = (
    *("*.json", TOKENS, "tokenizer/*", "scheduler/*.json"),
    *(f"{part}/{file}" for part in MODULES for file in ("*.json", f"{WEIGHTS}.safetensors", f"{WEIGHTS}-0*")),
    *("text_encoder/*.json", "text_encoder/model.safetensors", "text_encoder/model-0*"),
)
"""What is downloaded: neither pickles nor half-precision copies."""


def locate(name: str) -> Path:
    """The absolute folder of this name: a folder, or owner/name of the hub, downloaded where it is not there yet."""
    if (path := Path(name).expanduser()).is_dir():
        return path.resolve()
    if re.fullmatch(r"\w[\w.-]*/[\w.-]+", name):
        return hub.snapshot_of(name, kind="model", patterns=PATTERNS, says=name)
    raise ValueError(f"there is no folder {path.absolute()} of a latent diffusion model: raydiff pretrain makes one")


def read_json(path: Path) -> dict[str, Any]:
    """The object in this file. Raises ValueError where there is none."""
    if not path.is_file():
        raise ValueError(f"the latent diffusion model in {path.parent} lacks {path.name}: it is none, or half of one")
    try:
        found = json.loads(path.read_text())
    except ValueError:  # JSONDecodeError, UnicodeDecodeError
        found = None
    if not isinstance(found, dict):
        raise ValueError(f"{path} is not a JSON object")
    return found


def configs(folder: Path) -> dict[str, dict[str, Any]]:
    """{part: its config} of vae, unet and scheduler, and of text_encoder where the model has one."""
    index = read_json(folder / INDEX)
    parts = [*MODULES, "scheduler", *(["text_encoder"] if _has_text_encoder(index) else [])]
    if "text_encoder" in parts and not (folder / "tokenizer").is_dir():
        raise ValueError(f"the latent diffusion model in {folder} lacks its tokenizer: half of it is missing")
    out = {}
    for part in parts:
        file = "scheduler_config.json" if part == "scheduler" else "config.json"
        if not (folder / part).is_dir():
            raise ValueError(f"the latent diffusion model in {folder} lacks its {part}: half of it is missing")
        out[part] = read_json(folder / part / file)
    for part, known in MODULES.items():
        if (found := out[part].get("_class_name", known)) != known:
            raise ValueError(f"the {part} in {folder} is a {found}: only {known} is read")
    return out


def module(folder: Path, part: str) -> nn.Module:
    """The vae or the unet in float32, frozen."""
    import diffusers  # seconds to import: only where it is used

    _check_weights(folder / part, WEIGHTS)
    kind: Any = getattr(diffusers, MODULES[part])
    how = {"use_safetensors": True, "local_files_only": True, "low_cpu_mem_usage": False}
    try:
        found, info = kind.from_pretrained(folder / part, torch_dtype=torch.float32, output_loading_info=True, **how)
    except Exception as error:  # Each kind of damage has its own exception.
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ValueError(f"the {part} in {folder} cannot be read: {reason}") from error
    if missing := sorted(info["missing_keys"]):
        raise ValueError(f"the {part} in {folder} lacks {len(missing)} of its weights, such as {missing[0]}")
    frozen: nn.Module = found.eval().requires_grad_(False)
    return frozen


def betas_bar(config: dict[str, Any], folder: Path) -> Tensor:
    """abar_0 .. abar_T, (T + 1,) float64, from a scheduler's config."""
    from diffusers import DDIMScheduler

    if "beta_schedule" not in config and not config.get("trained_betas"):
        kind = config.get("_class_name", "unknown")
        raise ValueError(f"the scheduler in {folder} has no betas ({kind}): only Gaussian diffusion is read")
    scheduler: Any = DDIMScheduler
    try:
        betas = scheduler.from_config(config).betas.double()
    except NotImplementedError:
        raise ValueError(f"the scheduler in {folder} has the unknown schedule {config['beta_schedule']!r}") from None
    abar = torch.cat([torch.ones(1, dtype=torch.float64), torch.cumprod(1 - betas, dim=0)])
    if not abar[-1] > 0:
        raise ValueError(f"the scheduler in {folder} ends in pure noise (rescale_betas_zero_snr), which is not read")
    return abar


def tokens(folder: Path, *, encoder: bool) -> Params:
    """{"prefix": (P, width), "empty": (Q, width), "start": (width,)}: by the model's text encoder, or stored."""
    if encoder:
        return _encoded(folder)
    path = folder / TOKENS
    if not path.is_file():
        says = f"the latent diffusion model in {folder} has neither a text_encoder nor {TOKENS}"
        raise ValueError(f"{says}: half of it is missing")
    found = _tensors(path)
    shapes = {k: found[k].dim() if k in found else 0 for k in ("prefix", "empty", "start")}
    widths = {v.shape[-1] for k, v in found.items() if k in shapes}
    if shapes != {"prefix": 2, "empty": 2, "start": 1} or len(widths) > 1 or not len(found["empty"]):
        raise ValueError(f"{path} must hold prefix (P, width), empty (Q, width) with Q at least 1, and start (width)")
    return {k: found[k].float() for k in shapes}


def digest(configs: dict[str, dict[str, Any]], weights: Params) -> str:
    """Hex SHA-256 over all weights and configs; what only says where they are from (`_diffusers_version`) is left
    out."""
    plain = {part: {k: v for k, v in c.items() if not k.startswith("_")} for part, c in configs.items()}
    text = json.dumps(plain, sort_keys=True) + tree.digest(weights)
    return hashlib.sha256(text.encode()).hexdigest()


def _has_text_encoder(index: dict[str, Any]) -> bool:
    """Whether an index names one; what was left out is [null, null]."""
    return bool(index.get("text_encoder")) and index["text_encoder"][0] is not None


def _check_weights(folder: Path, name: str) -> None:
    """Raises ValueError where weights are missing, cut short, or pickles."""
    whole, shards = folder / f"{name}.safetensors", folder / f"{name}.safetensors.index.json"
    files = [whole]
    if not whole.is_file() and shards.is_file():
        files = [folder / file for file in sorted(set(read_json(shards).get("weight_map", {}).values()))]
    for path in files:
        if path.is_file():
            _tensors(path, read=False)
            continue
        pickles = sorted(p.name for p in folder.iterdir() if p.suffix in (".bin", ".ckpt", ".pt"))
        if pickles:
            raise ValueError(
                f"the weights in {folder} are pickles ({pickles[0]}), which are not read: safetensors only"
            )
        raise ValueError(f"the weights in {folder} lack {path.name}: it was not downloaded, or only in part")


def _tensors(path: Path, *, read: bool = True) -> Params:
    """The tensors of a file, or, unless `read`, none: then it is only seen that they are all there."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:  # This compares the header with the file's length.
            return {k: file.get_tensor(k) for k in file.keys()} if read else {}  # noqa: SIM118 (no mapping)
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged or cut short: {error}") from None


def _encoded(folder: Path) -> Params:
    """The tokens by the model's own CLIPTextModel. The prompt's closing token is left out: the word v follows."""
    try:
        from transformers import CLIPTextModel, CLIPTokenizer
    except ImportError:
        raise ValueError(f"the text encoder in {folder} needs transformers: pip install 'raydiff[latent]'") from None
    _check_weights(folder / "text_encoder", "model")
    try:
        tokenizer: Any = CLIPTokenizer.from_pretrained(folder / "tokenizer", local_files_only=True)
        encoder: Any = CLIPTextModel.from_pretrained(
            folder / "text_encoder", local_files_only=True, use_safetensors=True
        )
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ValueError(f"the text encoder in {folder} cannot be read: {reason}") from error

    @torch.no_grad()
    def encode(text: str) -> Tensor:
        states: Tensor = encoder.float().eval()(tokenizer(text, return_tensors="pt").input_ids).last_hidden_state
        return states[0]

    prefix = encode(PROMPT)[:-1]
    return {"prefix": prefix, "empty": encode(""), "start": prefix[-1].clone()}
