"""Tiny latent diffusion models, random and written to a folder."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

WIDTH = 8


def write(folder: Path, *, channels: int = 1, prediction: str = "epsilon", latent: int = 4, width: int = WIDTH) -> Path:
    """A folder with a vae of one halving, a unet of two scales that takes 4 latent channels, and tokens."""
    from diffusers import AutoencoderKL, DDIMScheduler, UNet2DConditionModel

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        vae: Any = AutoencoderKL(
            in_channels=channels,
            out_channels=channels,
            down_block_types=("DownEncoderBlock2D",) * 2,
            up_block_types=("UpDecoderBlock2D",) * 2,
            block_out_channels=(8, 8),
            latent_channels=latent,
            norm_num_groups=4,
            scaling_factor=0.7,
            shift_factor=0.2,
        )
        unet: Any = UNet2DConditionModel(
            block_out_channels=(8, 16),
            layers_per_block=1,
            down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
            up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
            cross_attention_dim=WIDTH,
            attention_head_dim=2,
            norm_num_groups=4,
        )
        tokens = {"prefix": torch.randn(2, width), "empty": torch.randn(3, width), "start": torch.randn(width)}
    vae.save_pretrained(folder / "vae")
    unet.save_pretrained(folder / "unet")
    scheduler: Any = DDIMScheduler(
        num_train_timesteps=50,
        beta_schedule="scaled_linear",
        beta_start=0.017,
        beta_end=0.24,
        prediction_type=prediction,
    )
    scheduler.save_pretrained(folder / "scheduler")
    save_file(tokens, folder / "tokens.safetensors")
    parts = {"vae": "AutoencoderKL", "unet": "UNet2DConditionModel", "scheduler": "DDIMScheduler"}
    index: dict[str, Any] = {name: ["diffusers", kind] for name, kind in parts.items()}
    index |= {"_class_name": "StableDiffusionPipeline", "safety_checker": [None, None], "text_encoder": [None, None]}
    (folder / "model_index.json").write_text(json.dumps(index))
    return folder


def edit(path: Path, **changes: Any) -> None:
    """Change fields of a JSON file."""
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
