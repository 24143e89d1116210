"""The networks that raydiff pretrain trains, of diffusers' parts."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from raydiff.models.networks import Shape

GROUPS = 8
"""Channels of a network are multiples of it."""


class Autoencoder(nn.Module):
    """The loss of an auto-encoder as a module, for `functional_call`."""

    def __init__(self, shape: Shape, *, widths: Sequence[int], channels: int, kl: float) -> None:
        super().__init__()
        from diffusers import AutoencoderKL

        scales = len(widths)
        build: Any = AutoencoderKL  # diffusers leaves it untyped
        self.vae = build(
            in_channels=shape[0],
            out_channels=shape[0],
            down_block_types=("DownEncoderBlock2D",) * scales,
            up_block_types=("UpDecoderBlock2D",) * scales,
            block_out_channels=widths,
            latent_channels=channels,
            norm_num_groups=GROUPS,
            sample_size=shape[1],
            mid_block_add_attention=False,
        )
        self.kl = kl

    def forward(self, x: Tensor, noise: Tensor) -> Tensor:
        posterior = self.vae.encode(x).latent_dist
        decoded = self.vae.decode(posterior.mean + posterior.std * noise).sample
        kl = 0.5 * (posterior.mean.square() + posterior.var - 1 - posterior.logvar).mean()
        out: Tensor = (decoded - x).square().mean() + self.kl * kl
        return out


class PromptedDenoiser(nn.Module):
    """The denoiser with its prefix and its words, the empty word last."""

    def __init__(self, shape: Shape, words: Tensor, *, widths: Sequence[int], layers: int) -> None:
        super().__init__()
        from diffusers import UNet2DConditionModel

        attending = len(widths) - 1
        build: Any = UNet2DConditionModel
        self.unet = build(
            sample_size=shape[1:],
            in_channels=shape[0],
            out_channels=shape[0],
            block_out_channels=widths,
            layers_per_block=layers,
            down_block_types=("DownBlock2D",) + ("CrossAttnDownBlock2D",) * attending,
            up_block_types=("CrossAttnUpBlock2D",) * attending + ("UpBlock2D",),
            cross_attention_dim=words.shape[1],
            attention_head_dim=GROUPS,
            norm_num_groups=GROUPS,
        )
        self.prefix = nn.Parameter(torch.randn(1, words.shape[1]))
        self.table = nn.Parameter(torch.cat([words, torch.zeros(1, words.shape[1])]))

    def forward(self, z_t: Tensor, t: Tensor, word: Tensor) -> Tensor:
        condition = torch.stack([self.prefix.expand(len(word), -1), self.table[word]], dim=1)
        out: Tensor = self.unet(z_t, t - 1, encoder_hidden_states=condition).sample
        return out
