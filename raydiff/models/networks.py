"""Denoiser networks: a small class-conditional MLP, and diffusers' UNet2DModel.

All map x (B, C, H, W), t (B,) in (0, 1000] and labels (B, K) to a prediction (B, C, H, W). Each of the K conditions has
an embedding, added to the time embedding (PFDM, appendix D); so is a client's embedding, the parameter CLIENT (SPIRE).
"""

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from annotated_types import Ge, MinLen, MultipleOf
from torch import Tensor, nn

from raydiff.lookup import Door, describe_error
from raydiff.settings import Count, settings

Shape = tuple[int, int, int]

CLIENT = "conditions.client"
"""Name of the client's embedding among the parameters."""


def table_name(column: int) -> str:
    """Name of a label column's embeddings, one row per value, among the parameters."""
    return f"conditions.tables.{column}.weight"


class Conditions(nn.Module):
    """Sum of one embedding per label column, as wide as the time embedding; a network keeps it as `conditions`.

    Args:
        labels: Number of values of each label column.
        client: Whether there is a client's embedding, which is added.
        width: Width of the network's time embedding.
    """

    def __init__(self, labels: tuple[int, ...], client: bool, width: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(n, width) for n in labels)
        self.width = width
        self.client = nn.Parameter(torch.zeros(width)) if client else None

    def forward(self, labels: Tensor, time: Tensor | float = 0.0) -> Tensor:
        """(B, width) for labels (B, K), added to the time embedding (B, width)."""
        if labels.shape[1] != len(self.tables):
            raise ValueError(f"the model has {len(self.tables)} conditions, the labels have {labels.shape[1]} columns")
        none = torch.zeros(len(labels), self.width, device=labels.device)
        out: Tensor = time + sum((table(labels[:, i]) for i, table in enumerate(self.tables)), none)
        return out if self.client is None else out + self.client


Embed = Callable[[int], Conditions]
"""Makes the `Conditions` of a network from the width of its time embedding."""


@dataclass(frozen=True, kw_only=True)
class Network(ABC):
    """Base class of denoiser networks. A subclass is a frozen dataclass with a default for each field."""

    @property
    def middle(self) -> str | None:
        """Prefix of the parameters in the middle, which SharedRep keeps at the client; None: its `private` says."""
        return None

    @property
    def features(self) -> str | None:
        """Name of the submodule whose output MOON compares models by; None: MOON refuses the network."""
        return None

    @abstractmethod
    def build(self, shape: Shape, embed: Embed) -> nn.Module:
        """Return the module, initialised from the global generator, for pictures of this shape.

        It maps (x (B, C, H, W), t (B,) float32 in (0, 1000], labels (B, K)) to (B, C, H, W), and has `conditions =
        embed(width)`.
        """

    def check(self, shape: Shape) -> None:
        """Raise ValueError where pictures of this shape do not fit: here, by a prediction for one."""
        try:
            fits = _predict_one(self, shape) == (1, *shape)
        except Exception as e:
            raise ValueError(f"network does not take pictures of shape {shape}: {describe_error(e)}") from e
        if not fits:
            raise ValueError(f"network must keep the shape of pictures and have `conditions = embed(width)`: {self}")


@functools.lru_cache(maxsize=16)
def _predict_one(network: Network, shape: Shape) -> tuple[int, ...]:
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        module = network.build(shape, functools.partial(Conditions, (1,), False))
        out = module(torch.zeros(1, *shape), torch.ones(1), torch.zeros(1, 1, dtype=torch.int64))
    return tuple(out.shape) if isinstance(getattr(module, "conditions", None), Conditions) else ()


@settings(frozen=True, kw_only=True)
class MLP(Network):
    """A residual MLP on the flattened image, for 8x8 and 14x14 images on a CPU, where a UNet is many times slower.

    Examples:
        >>> rd.DDPM(network=rd.MLP(width=64, depth=2)).network.middle
        'blocks.1.'
    """

    width: Count = 256
    """Hidden units."""
    depth: Count = 3
    """Residual blocks."""
    skip: bool = False
    """Add a learned multiple of x to the output: fewer hidden units than pixels cannot predict white noise else."""

    def check(self, shape: Shape) -> None:
        """Every image size fits."""

    @property
    def middle(self) -> str:
        return f"blocks.{self.depth // 2}."

    @property
    def features(self) -> str:
        return f"blocks.{self.depth - 1}"

    def build(self, shape: Shape, embed: Embed) -> nn.Module:
        return _MLP(self, shape, embed)


@settings(frozen=True, kw_only=True)
class UNet(Network):
    """diffusers' UNet2DModel, as in PFDM's and SPIRE's networks.

    Raises:
        ValueError: If `attention` names no scale, or one with too few channels.

    Examples:
        >>> rd.UNet(widths=(16, 32), attention=()).check((1, 28, 28))
        >>> rd.UNet(widths=(16, 32, 64, 64)).check((1, 28, 28))
        Traceback (most recent call last):
        ValueError: network.widths has 4 scales, so images must be divisible by 8, got 28x28
    """

    middle = "unet.mid_block."
    features = "unet.mid_block"
    widths: Annotated[tuple[Annotated[int, Ge(4), MultipleOf(4)], ...], MinLen(1)] = (32, 64)
    """Channels at each scale; each scale but the last halves the image."""
    layers: Count = 1
    """Residual blocks per scale."""
    attention: tuple[int, ...] = (-1,)
    """Scales with self-attention: 0 is the finest, -1 the coarsest; the middle has it where any scale does."""

    def __post_init__(self) -> None:
        scales = range(-len(self.widths), len(self.widths))
        if any(i not in scales or self.widths[i] < 8 for i in self.attention):  # an attention head has 8 channels
            raise ValueError(f"attention must name scales of widths with 8 channels or more, got {self.attention}")

    def check(self, shape: Shape) -> None:
        """Raises ValueError when the image cannot be halved often enough."""
        factor = 2 ** (len(self.widths) - 1)
        if shape[1] % factor or shape[2] % factor:
            raise ValueError(
                f"network.widths has {len(self.widths)} scales, so images must be divisible by {factor}, got "
                f"{shape[1]}x{shape[2]}"
            )

    def build(self, shape: Shape, embed: Embed) -> nn.Module:
        return _UNet(self, shape, embed)


class _MLP(nn.Module):
    def __init__(self, config: MLP, shape: Shape, embed: Embed) -> None:
        super().__init__()
        width = config.width
        pixels = math.prod(shape)
        self.time = nn.Sequential(nn.Linear(64, width), nn.SiLU(), nn.Linear(width, width))
        self.conditions = embed(width)
        self.enter = nn.Linear(pixels, width)
        self.blocks = nn.ModuleList(_Block(width) for _ in range(config.depth))
        self.leave = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, pixels))
        self.skip = nn.Linear(width, 1) if config.skip else None

    def forward(self, x: Tensor, t: Tensor, labels: Tensor) -> Tensor:
        emb = nn.functional.silu(self.conditions(labels, self.time(_sinusoids(t))))
        h: Tensor = self.enter(x.flatten(1))
        for block in self.blocks:
            h = block(h, emb)
        out: Tensor = self.leave(h) if self.skip is None else self.leave(h) + self.skip(emb) * x.flatten(1)
        return out.view_as(x)


class _Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.condition = nn.Linear(width, 2 * width)
        self.first = nn.Linear(width, width)
        self.second = nn.Linear(width, width)

    def forward(self, h: Tensor, emb: Tensor) -> Tensor:
        scale, shift = self.condition(emb).chunk(2, dim=1)
        inner = self.norm(h) * (1 + scale) + shift
        out: Tensor = h + self.second(nn.functional.silu(self.first(inner)))
        return out


def _sinusoids(t: Tensor) -> Tensor:
    """Transformer position code of t (B,), (B, 64)."""
    half = 32
    frequency = torch.exp(torch.arange(half, device=t.device) * (-math.log(10_000) / half))
    angle = t[:, None] * frequency
    return torch.cat([angle.sin(), angle.cos()], dim=1)


class _UNet(nn.Module):
    def __init__(self, config: UNet, shape: Shape, embed: Embed) -> None:
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
        self.conditions = embed(4 * config.widths[0])

    def forward(self, x: Tensor, t: Tensor, labels: Tensor) -> Tensor:
        out: Tensor = self.unet(x, t, class_labels=self.conditions(labels)).sample
        return out.contiguous()


NETWORKS: Door[type[Network]] = Door("network", {"mlp": MLP, "unet": UNet}, base=Network)
"""Name -> class of a denoiser network."""
