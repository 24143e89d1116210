"""Read a latent diffusion model from a folder in the form of Stable Diffusion.

It holds model_index.json, vae/, unet/, scheduler/, and either text_encoder/ and tokenizer/ or `TOKENS`, the tokens that
raydiff pretrain learned. A folder that cannot be read is refused before anything is trained.
"""

import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from raydiff import tree
from raydiff.data import hub
from raydiff.formats.json_files import dumps
from raydiff.tree import Params

T = TypeVar("T")
INDEX = "model_index.json"
TOKENS = "tokens.safetensors"
CARD = "card.json"
PUBLIC = "public.json"
"""Written by raydiff pretrain: hex SHA-256 of each public picture that the model was trained on."""
MODULES = {"vae": "AutoencoderKL", "unet": "UNet2DConditionModel"}
WEIGHTS = "diffusion_pytorch_model"
PROMPT = "a photo of"
"""The frozen prompt p (FedDistr, section 4.2)."""
PATTERNS = (
    *("*.json", TOKENS, "tokenizer/*", "scheduler/*.json"),
    *(f"{part}/{file}" for part in MODULES for file in ("*.json", f"{WEIGHTS}.safetensors", f"{WEIGHTS}-0*")),
    *("text_encoder/*.json", "text_encoder/model.safetensors", "text_encoder/model-0*"),
)
"""Files to download: neither pickles nor half-precision copies."""
FROZEN: dict[str, Any] = {"use_safetensors": True, "local_files_only": True}
"""How diffusers and transformers read weights: no pickles, no downloads."""


def locate_model(name: str) -> Path:
    """The absolute folder of a folder's name, or of owner/name of the hub, which is downloaded first."""
    if (path := Path(name).expanduser()).is_dir():
        return path.resolve()
    if re.fullmatch(r"\w[\w.-]*/[\w.-]+", name):
        return hub.snapshot_of(name, kind="model", patterns=PATTERNS, says=name)
    raise ValueError(f"there is no folder {path.absolute()} of a latent diffusion model: raydiff pretrain makes one")


def read_object(path: Path) -> dict[str, Any]:
    """The object in this file. Raises ValueError where there is none."""
    if not path.is_file():
        raise ValueError(f"the latent diffusion model in {path.parent} lacks {path.name}")
    try:
        content = json.loads(path.read_text())
    except ValueError:  # JSONDecodeError, UnicodeDecodeError
        content = None
    if not isinstance(content, dict):
        raise ValueError(f"{path} is not a JSON object")
    return content


def configs(folder: Path) -> dict[str, dict[str, Any]]:
    """{part: its config} of vae, unet and scheduler, and of text_encoder where the index names one."""
    encoder = read_object(folder / INDEX).get("text_encoder")  # [null, null] where it was left out
    parts = [*MODULES, *(["text_encoder"] if encoder and encoder[0] else [])]
    contents = {part: read_object(folder / part / "config.json") for part in parts}
    for part, wanted in MODULES.items():
        if (kind := contents[part].get("_class_name", wanted)) != wanted:
            raise ValueError(f"the {part} in {folder} is a {kind}: only {wanted} is read")
    return {**contents, "scheduler": read_object(folder / "scheduler" / "scheduler_config.json")}


def module(folder: Path, part: str) -> nn.Module:
    """The vae or the unet in float32, frozen."""
    import diffusers  # seconds to import: only where it is used

    kind: Any = getattr(diffusers, MODULES[part])
    how = {**FROZEN, "torch_dtype": torch.float32, "low_cpu_mem_usage": False, "output_loading_info": True}
    loaded, info = _reading(folder / part, lambda path: kind.from_pretrained(path, **how))
    if missing := sorted(info["missing_keys"]):
        raise ValueError(f"the {part} in {folder} lacks {len(missing)} of its weights, such as {missing[0]}")
    frozen: nn.Module = loaded.eval().requires_grad_(False)
    return frozen


def betas_bar(config: dict[str, Any], folder: Path) -> Tensor:
    """abar_0 .. abar_T, (T + 1,) float64, from a scheduler's config."""
    from diffusers import DDIMScheduler

    if "beta_schedule" not in config and not config.get("trained_betas"):
        kind = config.get("_class_name", "unknown")
        raise ValueError(f"the scheduler in {folder} has no betas ({kind}): only Gaussian diffusion is read")
    scheduler: Any = DDIMScheduler
    betas = _reading(folder / "scheduler", lambda _: scheduler.from_config(config).betas.double())
    abar = torch.cat([torch.ones(1, dtype=torch.float64), torch.cumprod(1 - betas, dim=0)])
    if not abar[-1] > 0:
        raise ValueError(f"the scheduler in {folder} ends in pure noise (rescale_betas_zero_snr), which is not read")
    return abar


def tokens(folder: Path, *, encoder: bool) -> Params:
    """{"prefix": (P, width), "empty": (Q, width), "start": (width,)}: by the model's text encoder, or stored."""
    from safetensors.torch import load_file

    if encoder:
        return _encoded(folder)
    stored = _reading(folder / TOKENS, load_file)
    return {name: stored[name].float() for name in ("prefix", "empty", "start")}


def model_digest(configs: dict[str, dict[str, Any]], weights: Params) -> str:
    """Hex SHA-256 over all weights and configs, without provenance such as `_diffusers_version`."""
    plain = {part: {k: v for k, v in c.items() if not k.startswith("_")} for part, c in configs.items()}
    text = dumps(plain, sort_keys=True) + tree.digest(weights)
    return hashlib.sha256(text.encode()).hexdigest()


def _reading(path: Path, read: Callable[[Path], T]) -> T:
    """`read` with its error as a ValueError of one line: each kind of damage has its own exception."""
    try:
        return read(path)
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ValueError(f"{path} of the latent diffusion model cannot be read: {reason}") from error


def _encoded(folder: Path) -> Params:
    """The tokens by the model's own CLIPTextModel. The prompt's closing token is left out: the word v follows."""
    try:
        from transformers import CLIPTextModel, CLIPTokenizer
    except ImportError:
        raise ValueError(f"the text encoder in {folder} needs transformers: pip install 'raydiff[latent]'") from None
    tokenizer: Any = _reading(
        folder / "tokenizer", lambda path: CLIPTokenizer.from_pretrained(path, local_files_only=True)
    )
    encoder: Any = _reading(folder / "text_encoder", lambda path: CLIPTextModel.from_pretrained(path, **FROZEN))

    @torch.no_grad()
    def encode(text: str) -> Tensor:
        states: Tensor = encoder.float().eval()(tokenizer(text, return_tensors="pt").input_ids).last_hidden_state
        return states[0]

    prefix = encode(PROMPT)[:-1]
    return {"prefix": prefix, "empty": encode(""), "start": prefix[-1].clone()}
