"""The frozen latent diffusion model of FedDistr's clients, who fit only the last word of its prompt.

Shapes: images (N, C, H, W) on [-1, 1]; latents z (B, c, h, w), scaled to a deviation of about 1; t (B,) in 1..T; the
word v (B, width), or (B, L, width) for L words. The condition of the denoiser is [p; v], p the frozen prefix.

References: FedDistr (arXiv 2410.12530), Eqs. 10 and 12; Rombach et al. 2022 (latent diffusion, arXiv 2112.10752); Ho &
Salimans 2022 (guidance, arXiv 2207.12598); Gal et al. 2022 (textual inversion, arXiv 2208.01618).
"""

import functools
import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from raydiff import tree
from raydiff.models.compute import device, with_progress
from raydiff.models.networks import Shape
from raydiff.models.samplers import denoise
from raydiff.models.schedules import add_noise
from raydiff.papers.feddistr.latent import folder as folders
from raydiff.settings import settings
from raydiff.tree import Params, finite

Prediction = Literal["epsilon", "v_prediction"]

PIXELS = 2**18
"""Of the pictures in one forward pass where nothing is trained: bounds memory."""
MODES = {1: "grey", 3: "rgb"}


@dataclass(frozen=True, eq=False)
class LatentDiffusion:
    """Auto-encoder, conditional denoiser and the frozen part of its prompt."""

    vae: nn.Module
    """diffusers' AutoencoderKL."""
    unet: nn.Module
    """diffusers' UNet2DConditionModel."""
    prefix: Tensor
    """(P, width): tokens of the frozen prompt p, "a photo of"; P may be 0."""
    empty: Tensor
    """(Q, width), Q >= 1: tokens of the empty prompt, for guidance."""
    start: Tensor
    """(width,): where every inversion starts. Public."""
    abar: Tensor
    """abar_0 .. abar_T, (T + 1,) float64."""
    prediction: Prediction
    """The denoiser's output: the noise, or v = sqrt(abar) noise - sqrt(1 - abar) z."""
    scaling: float
    """Latents are (E(x) - shift) * scaling."""
    shift: float
    """See `scaling`."""
    digest: str
    """Hex SHA-256 over all weights and configs."""

    @property
    def timesteps(self) -> int:
        """T."""
        return len(self.abar) - 1

    @property
    def width(self) -> int:
        """Numbers in a word."""
        return len(self.start)

    def check(self, shape: Shape) -> None:
        """Raises ValueError where pictures of this shape (C, H, W) do not fit."""
        config: Any = self.vae.config
        if shape[0] != config.in_channels:
            wanted = MODES.get(config.in_channels)
            remedy = f": set data.colour={wanted}" if wanted else ""
            raise ValueError(f"the latent model's pictures have {config.in_channels} channels, not {shape[0]}{remedy}")
        factor = self._factor
        if shape[1] % factor or shape[2] % factor:
            raise ValueError(
                f"the latent model halves pictures {factor.bit_length() - 1} times, so height and width must be "
                f"divisible by {factor}, got {shape[1]}x{shape[2]}: set data.size"
            )

    def latent_shape(self, shape: Shape) -> Shape:
        """(c, h, w) of the latents of pictures of this shape (C, H, W)."""
        config: Any = self.vae.config
        return config.latent_channels, shape[1] // self._factor, shape[2] // self._factor

    @torch.no_grad()
    def encode(self, images: Tensor) -> Tensor:
        """The posterior's mean, scaled: Eq. 10, (N, C, H, W) -> (N, c, h, w)."""
        self.check((images.shape[1], images.shape[2], images.shape[3]))
        vae = _on_device(self.vae)
        pixels = images[0, 0].numel()
        return _chunked(lambda x: (vae.encode(x).latent_dist.mean - self.shift) * self.scaling, images, pixels)

    @torch.no_grad()
    def decode(self, latents: Tensor) -> Tensor:
        """The pictures, clamped to [-1, 1]: (N, c, h, w) -> (N, C, H, W)."""
        vae = _on_device(self.vae)
        pixels = latents.shape[2] * latents.shape[3] * self._factor**2
        return _chunked(lambda z: vae.decode(z / self.scaling + self.shift).sample.clamp(-1, 1), latents, pixels)

    def predict(self, z_t: Tensor, t: Tensor, v: Tensor) -> Tensor:
        """The noise in z_t given [p; v], (B, c, h, w); differentiable in v and z_t."""
        where = device()
        v = v.to(where)
        words = v.unsqueeze(1) if v.dim() == 2 else v
        condition = torch.cat([self.prefix.to(where).expand(len(v), -1, -1), words], dim=1)
        return self._noise(z_t.to(where), t.to(where), condition).to(z_t.device)

    def draws(self, count: int, shape: Shape, rng: torch.Generator) -> Params:
        """The random part of one step on latents of this shape (c, h, w): t ~ Uniform{1..T} (B,), z ~ N(0, I)."""
        t = torch.randint(1, self.timesteps + 1, (count,), generator=rng)
        return {"t": t, "z": torch.randn(count, *shape, generator=rng)}

    def loss(self, v: Tensor, latents: Tensor, draws: Params) -> Tensor:
        """Squared error of each row's predicted noise, per entry of the latent: Eq. 12, (B,).

        ||eps - eps_theta(sqrt(abar_t) z + sqrt(1 - abar_t) eps, t, [p; v])||^2.
        """
        where = device()
        eps = draws["z"].to(where)
        z_t = add_noise(latents.to(where), eps, self.abar, draws["t"].to(where))
        return (eps - self.predict(z_t, draws["t"], v)).square().mean(dim=(1, 2, 3)).to(latents.device)

    def sample(self, v: Tensor, rng: torch.Generator, *, shape: Shape, steps: int, guidance: float) -> Tensor:
        """One picture of shape (C, H, W) per word: DDIM (eta = 0) in this many steps, then decoded.

        The noise is eps_empty + guidance * (eps_v - eps_empty); at guidance 1 only the condition is evaluated.
        """
        latent = self.latent_shape(shape)

        @torch.no_grad()
        def z_theta(z_t: Tensor, t: Tensor, words: Tensor) -> Tensor:
            conditional = self.predict(z_t, t, words)
            if guidance == 1:
                return conditional
            without = self._noise(z_t, t, self.empty.to(z_t.device).expand(len(z_t), -1, -1))
            return without + guidance * (conditional - without)

        z = torch.randn(len(v), *latent, generator=rng)  # It is drawn for all, so that chunks change no draw.
        at_once = max(1, PIXELS // (shape[1] * shape[2]))
        chain: dict[str, Any] = {"abar": self.abar, "start": self.timesteps, "sampler": "ddim", "steps": steps}
        parts = zip(z.to(device()).split(at_once), v.detach().to(device()).split(at_once), strict=True)
        sampled = torch.cat([denoise(z_theta, part, labels=words, rng=rng, **chain) for part, words in parts])
        return self.decode(finite(sampled, "the latents"))

    @property
    def _factor(self) -> int:
        config: Any = self.vae.config
        return int(2 ** (len(config.block_out_channels) - 1))

    def _noise(self, z_t: Tensor, t: Tensor, condition: Tensor) -> Tensor:
        # diffusers counts steps from 0.
        out: Tensor = _on_device(self.unet)(z_t, t - 1, encoder_hidden_states=condition).sample
        if self.prediction == "epsilon":
            return out
        abar = self.abar.to(out.device)[t].to(out.dtype).view(-1, 1, 1, 1)
        return abar.sqrt() * out + (1 - abar).sqrt() * z_t


def _on_device(module: nn.Module) -> Any:
    """The module, moved to the device on first use: a sweep's driver reads only shapes and takes no GPU memory."""
    first = next(module.parameters(), None)
    if first is not None and first.device.type != device().type:
        module.to(device())
    return module


def _chunked(call: Callable[[Tensor], Tensor], x: Tensor, pixels: int) -> Tensor:
    """`call` on parts of x of `PIXELS` in all, for records of this many pixels; the results on the CPU."""
    return torch.cat([call(part.to(device())).cpu() for part in with_progress(x.split(max(1, PIXELS // pixels)))])


def load_latent(name: str) -> LatentDiffusion:
    """The frozen model in a folder, or of owner/name of the hub; cached in the process.

    Raises ValueError where it is missing, damaged, pickled, or its parts do not fit together.
    """
    return _load(folders.locate_model(name))


@functools.lru_cache(maxsize=4)
def _load(folder: Path) -> LatentDiffusion:
    configs = folders.configs(folder)
    prediction = configs["scheduler"].get("prediction_type", "epsilon")
    if prediction not in get_args(Prediction):
        allowed = ", ".join(get_args(Prediction))
        raise ValueError(f"the scheduler in {folder} must have a prediction_type of {allowed}, got {prediction!r}")
    abar = folders.betas_bar(configs["scheduler"], folder)
    vae, unet = (folders.module(folder, part) for part in folders.MODULES)
    tokens = folders.tokens(folder, encoder="text_encoder" in configs)
    shapes: dict[str, Any] = {"vae": vae.config, "unet": unet.config}
    latent = shapes["vae"].latent_channels
    denoised = shapes["unet"].in_channels
    if latent != denoised:
        raise ValueError(f"the vae in {folder} has {latent} latent channels, but its unet takes {denoised}")
    attended = shapes["unet"].cross_attention_dim
    width = len(tokens["start"])
    if attended != width:
        raise ValueError(f"the tokens in {folder} are {width} wide, but its unet attends to a width of {attended}")
    weights = {f"{part}/{k}": v for part, m in (("vae", vae), ("unet", unet)) for k, v in m.state_dict().items()}
    return LatentDiffusion(
        vae=vae,
        unet=unet,
        **tokens,
        abar=abar,
        prediction=prediction,
        scaling=shapes["vae"].scaling_factor,
        shift=shapes["vae"].shift_factor or 0.0,
        digest=folders.model_digest(configs, {**weights, **tree.prefixed("tokens", tokens)}),
    )


@settings(frozen=True, kw_only=True)
class LatentModel:
    """Which frozen latent diffusion model a trial uses."""

    path: str = field(default="", metadata={"location": "value"})  # `digest` says which model it is.
    """Its folder, or owner/name of the hub; raydiff pretrain makes one."""
    digest: str = ""
    """Digest of the model; filled in when an experiment is built."""
    shape: Shape = (1, 8, 8)
    """(channels, height, width) of a picture; filled in from the data."""
    labels: tuple[int, ...] = (10,)
    """Number of values of each condition; filled in from the data."""

    def for_data(self, shape: Shape, labels: tuple[int, ...]) -> "LatentModel":
        """The same for pictures of this shape and these labels, with an absolute path."""
        model = self.load()
        model.check(shape)
        folder = Path(self.path).expanduser()
        path = str(folder.absolute()) if folder.is_dir() else self.path
        return replace(self, path=path, digest=model.digest, shape=shape, labels=labels)

    @property
    def folder(self) -> Path:
        """Folder of the frozen model on this machine."""
        return folders.locate_model(self.path)

    def load(self) -> LatentDiffusion:
        """The model. Raises ValueError as `load_latent` does, and if its digest is not the recorded one."""
        if not self.path:
            raise ValueError(
                "model.path names no latent diffusion model: give a folder or owner/name of the hub; raydiff "
                "pretrain makes one of public records"
            )
        model = load_latent(self.path)
        if self.digest and model.digest != self.digest:
            raise ValueError(
                f"the latent diffusion model in {self.path} has changed since: its digest is {model.digest[:16]}, "
                f"not the recorded {self.digest[:16]}"
            )
        return model


def check_disjoint(name: str, images: Tensor) -> None:
    """Refuse client records (N, C, H, W) that the model of this name was trained on.

    A downloaded model does not list its pictures, so nothing is compared. Raises ValueError.
    """
    path = folders.locate_model(name) / folders.PUBLIC
    if not path.is_file():
        return
    public = frozenset(json.loads(path.read_text())["sha256"])
    shared = [i for i, digest in enumerate(tree.digests(images)) if digest in public]
    if shared:
        raise ValueError(
            f"client records are also in the public data the latent model was trained on: {len(shared)} of "
            f"{len(images)}, the first at place {shared[0]}"
        )
