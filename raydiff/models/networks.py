"""Denoiser networks: a small class-conditional MLP, and diffusers' UNet2DModel.

Both map x (B, C, H, W), t (B,) in 1..T and labels (B, K) to a prediction (B, C, H, W). Each of the K conditions has an
embedding, added to the time embedding (PFDM, appendix D); so is a client's embedding, the parameter CLIENT (SPIRE).

With `features` the module returns (B, dim) features, by which methods compare models. Of a network `embedding_width` is
the width of its time embedding, `middle` the prefixes of the parameters in its middle; `build` makes the module from
the global generator.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from raydiff.lookup import check_least

Shape = tuple[int, int, int]

CLIENT = "client"
"""Name of the client's embedding among the parameters."""


def table(column: int) -> str:
    """Name of a label column's embeddings, one row per value, among the parameters."""
    return f"conditions.tables.{column}.weight"


@dataclass(frozen=True, kw_only=True)
class MLP:
    """A residual MLP on the flattened image, for 8x8 and 14x14 images on a CPU, where a UNet is many times slower."""

    width: int = 256
    """Hidden units."""
    depth: int = 3
    """Residual blocks."""
    skip: bool = False
    """Add a learned multiple of x to the output: fewer hidden units than pixels cannot predict white noise else."""

    def __post_init__(self) -> None:
        check_least(self, 1, "width", "depth")

    def check(self, shape: Shape) -> None:
        """Every image size fits."""

    @property
    def embedding_width(self) -> int:
        return self.width

    @property
    def middle(self) -> tuple[str, ...]:
        return (f"blocks.{self.depth // 2}.",)

    def build(self, shape: Shape, labels: tuple[int, ...], timesteps: int, *, client: bool = False) -> nn.Module:
        return _MLP(self, shape, labels, timesteps, client)


@dataclass(frozen=True, kw_only=True)
class UNet:
    """diffusers' UNet2DModel, as in PFDM's and SPIRE's networks."""

    widths: tuple[int, ...] = (32, 64)
    """Channels at each scale; each scale but the last halves the image."""
    layers: int = 1
    """Residual blocks per scale."""
    attention: tuple[int, ...] = (-1,)
    """Scales with self-attention: 0 is the finest, -1 the coarsest; the middle has it where any scale does."""

    def __post_init__(self) -> None:
        if not self.widths or any(w < 4 or w % 4 for w in self.widths):
            raise ValueError(f"widths must be positive multiples of 4, got {self.widths}")
        scales = range(-len(self.widths), len(self.widths))
        if any(i not in scales or self.widths[i] < 8 for i in self.attention):  # an attention head has 8 channels
            raise ValueError(f"attention must name scales of widths with 8 channels or more, got {self.attention}")
        check_least(self, 1, "layers")

    def check(self, shape: Shape) -> None:
        """Raises ValueError when the image cannot be halved often enough."""
        factor = 2 ** (len(self.widths) - 1)
        if shape[1] % factor or shape[2] % factor:
            wanted = f"{len(self.widths)} scales, so images must be divisible by {factor}"
            raise ValueError(f"network.widths has {wanted}, got {shape[1]}x{shape[2]}")

    @property
    def embedding_width(self) -> int:
        return 4 * self.widths[0]

    @property
    def middle(self) -> tuple[str, ...]:
        return ("unet.mid_block.",)

    def build(self, shape: Shape, labels: tuple[int, ...], timesteps: int, *, client: bool = False) -> nn.Module:
        return _UNet(self, shape, labels, timesteps, client)


class _Conditions(nn.Module):
    """Sum of one embedding per label column, as wide as the time embedding; 0 without columns."""

    def __init__(self, labels: tuple[int, ...], width: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(n, width) for n in labels)
        self.width = width

    def forward(self, labels: Tensor) -> Tensor:
        if labels.shape[1] != len(self.tables):
            raise ValueError(f"the model has {len(self.tables)} conditions, the labels have {labels.shape[1]} columns")
        none = torch.zeros(len(labels), self.width, device=labels.device)
        return sum((table(labels[:, i]) for i, table in enumerate(self.tables)), none)


class _MLP(nn.Module):
    def __init__(self, config: MLP, shape: Shape, labels: tuple[int, ...], timesteps: int, client: bool) -> None:
        super().__init__()
        width, pixels = config.width, math.prod(shape)
        self.timesteps = timesteps
        self.time = nn.Sequential(nn.Linear(64, width), nn.SiLU(), nn.Linear(width, width))
        self.conditions = _Conditions(labels, width)
        self.enter = nn.Linear(pixels, width)
        self.blocks = nn.ModuleList(_Block(width) for _ in range(config.depth))
        self.leave = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, pixels))
        self.skip = nn.Linear(width, 1) if config.skip else None
        self.client = nn.Parameter(torch.zeros(width)) if client else None

    def forward(self, x: Tensor, t: Tensor, labels: Tensor, features: bool = False) -> Tensor:
        emb = self.time(_sinusoids(t * (1000 / self.timesteps))) + self.conditions(labels)
        emb = nn.functional.silu(emb if self.client is None else emb + self.client)
        h: Tensor = self.enter(x.flatten(1))
        for block in self.blocks:
            h = block(h, emb)
        if features:
            return h
        out: Tensor = self.leave(h) if self.skip is None else self.leave(h) + self.skip(emb) * x.flatten(1)
        return out.view_as(x)


class _Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.condition = nn.Linear(width, 2 * width)
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, h: Tensor, emb: Tensor) -> Tensor:
        scale, shift = self.condition(emb).chunk(2, dim=1)
        inner = self.norm(h) * (1 + scale) + shift
        out: Tensor = h + self.second(nn.functional.silu(self.first(inner)))
        return out


def _sinusoids(t: Tensor) -> Tensor:
    """Transformer position code of t (B,), (B, 64)."""
    half = 32
    frequency = torch.exp(torch.arange(half, device=t.device) * (-math.log(10_000) / half))
    angle = t.float()[:, None] * frequency
    return torch.cat([angle.sin(), angle.cos()], dim=1)


class _UNet(nn.Module):
    def __init__(self, config: UNet, shape: Shape, labels: tuple[int, ...], timesteps: int, client: bool) -> None:
        super().__init__()
        from diffusers import UNet2DModel  # seconds to import: only where it is used

        scales = range(len(config.widths))
        kinds = ["Attn" if i in config.attention or i - len(scales) in config.attention else "" for i in scales]
        network: Any = UNet2DModel  # diffusers leaves it untyped
        self.unet = network(
            sample_size=shape[1:],
            in_channels=shape[0],
            out_channels=shape[0],
            block_out_channels=config.widths,
            layers_per_block=config.layers,
            # Conditions are added per channel, and groups of a single channel would normalise them away.
            norm_num_groups=math.gcd(32, math.gcd(*config.widths) // 4),
            attention_head_dim=8,
            down_block_types=tuple(f"{kind}DownBlock2D" for kind in kinds),
            up_block_types=tuple(f"{kind}UpBlock2D" for kind in reversed(kinds)),
            add_attention=bool(config.attention),
            class_embed_type="identity",
        )
        self.timesteps = timesteps
        width = config.embedding_width
        self.conditions = _Conditions(labels, width)
        self.client = nn.Parameter(torch.zeros(width)) if client else None

    def forward(self, x: Tensor, t: Tensor, labels: Tensor, features: bool = False) -> Tensor:
        emb = self.conditions(labels)
        if self.client is not None:
            emb = emb + self.client
        middle: list[Tensor] = []
        hook = self.unet.mid_block.register_forward_hook(lambda _, args, out: middle.append(out)) if features else None
        out: Tensor = self.unet(x, t * (1000 / self.timesteps), class_labels=emb).sample
        if hook is None:
            return out.contiguous()
        hook.remove()
        pooled: Tensor = middle[0].mean(dim=(2, 3))
        return pooled
