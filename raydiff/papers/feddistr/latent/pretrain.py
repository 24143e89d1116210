"""A small latent diffusion model for FedDistr, trained on public records.

An auto-encoder, then a denoiser of its latents that is conditioned on [p; w]: p is a learned prefix, w one word of a
learned vocabulary, with a word per K-means cluster of each label's latents. For guidance, w is a learned empty word in
some rows.

Shapes: images (N, C, H, W) on [-1, 1]; latents (N, c, H/2, W/2); labels (N, K), of which the first is the class;
V words of `width` numbers.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from annotated_types import Ge, Gt, Lt, MinLen, MultipleOf
from torch import Tensor, nn

from raydiff import seeding, tree
from raydiff.formats.json_files import dumps
from raydiff.models.compute import device
from raydiff.models.networks import Shape
from raydiff.models.schedules import ScaledLinearBetas, add_noise, alphas_bar
from raydiff.models.training import Training, optimize
from raydiff.papers.feddistr.latent import folder as folders
from raydiff.papers.feddistr.latent.inversion import Clusters, cluster
from raydiff.papers.feddistr.latent.modules import GROUPS, Autoencoder, PromptedDenoiser
from raydiff.settings import Count, NonNegative, Positive, settings
from raydiff.tree import Params

T = 1000
SCHEDULE = {"num_train_timesteps": T, "beta_schedule": "scaled_linear", "beta_start": 0.00085, "beta_end": 0.012}
EVERY = 100
"""Steps between two progress reports."""
Say = Callable[[str, int, int, float], None]
"""Progress: (name of the network, steps done, steps in all, mean loss of the last ones)."""


Width = Annotated[int, Ge(GROUPS), MultipleOf(GROUPS)]


@settings(frozen=True, kw_only=True)
class Pretraining:
    """Settings of the model and its training. The defaults suit digits and 14 x 14 pictures on one core."""

    vae_widths: Annotated[tuple[Width, ...], MinLen(1)] = (16, 32)
    """Channels of the auto-encoder at each scale; each scale but the last halves the picture."""
    channels: Count = 4
    """Channels of a latent."""
    vae_steps: Count = 1000
    """Optimisation steps of the auto-encoder."""
    kl: NonNegative = 1e-4
    """Weight of the KL divergence of a latent's entries from N(0, 1), beside the squared error of a pixel."""
    widths: Annotated[tuple[Width, ...], MinLen(2)] = (32, 64)
    """Channels of the denoiser at each scale; attention to the prompt at all but the first."""
    layers: Count = 1
    """Residual blocks of the denoiser per scale."""
    width: Count = 32
    """Length of a word vector."""
    words: Count = 8
    """Words for each label."""
    empty: Annotated[float, Gt(0), Lt(1)] = 0.1
    """Fraction of rows with the empty word."""
    steps: Count = 1500
    """Optimisation steps of the denoiser and the words."""
    learning_rate: Positive = 2e-3
    """Initial learning rate of both trainings; it falls to zero along a cosine."""
    batch: Count = 64
    """Records per step."""

    def check(self, shape: Shape) -> None:
        """Raises ValueError where pictures of this shape cannot be halved often enough."""
        factor = 2 ** (len(self.vae_widths) - 1)
        if shape[1] % factor or shape[2] % factor:
            raise ValueError(
                f"vae_widths has {len(self.vae_widths)} scales, so pictures must be divisible by {factor}, got "
                f"{shape[1]}x{shape[2]}: set data.size"
            )


@dataclass(frozen=True, eq=False)
class Pretrained:
    """The trained networks and words."""

    vae: Any
    """AutoencoderKL, with the scaling factor in its config."""
    unet: Any
    """UNet2DConditionModel."""
    prefix: Tensor
    """(1, width)."""
    empty: Tensor
    """(1, width): the empty word."""
    words: Tensor
    """(V, width)."""
    word_labels: Tensor
    """(V,): the label of each word."""
    counts: Tensor
    """(V,): records of its cluster."""
    losses: dict[str, float]
    """Mean loss of the last steps, by network."""

    def draw(self, label: int, count: int, rng: torch.Generator) -> Tensor:
        """Words (count, width) of a label, drawn in proportion to the sizes of their clusters."""
        weights = torch.where(self.word_labels == label, self.counts, 0).double()
        return self.words[torch.multinomial(weights, count, replacement=True, generator=rng)]


def find_unshared(public: Tensor, others: Iterable[Tensor]) -> Tensor:
    """(N,) boolean: the pictures of `public` (N, C, H, W) that are in none of `others`."""
    held = {digest for images in others for digest in tree.digests(images)}
    return torch.tensor([digest not in held for digest in tree.digests(public)], dtype=torch.bool)


def pretrain(images: Tensor, labels: Tensor, *, training: Pretraining, rng: torch.Generator, say: Say) -> Pretrained:
    """Train auto-encoder, vocabulary and denoiser. Raises Diverged where a loss is not finite."""
    vae, vae_loss = _autoencoder(images, training, rng, say)
    with torch.no_grad():
        latents = torch.cat([vae.encode(x).latent_dist.mean.cpu() for x in images.to(device()).split(1024)])
    vae.register_to_config(scaling_factor=float(1 / latents.double().std()))
    latents = latents * vae.config.scaling_factor
    clusters = cluster(latents, labels[:, 0], count=training.words, least=1, fewer=True, rng=rng)
    denoiser, loss = _denoiser(latents, clusters, training, rng, say)
    return Pretrained(
        vae=vae,
        unet=denoiser.unet,
        prefix=denoiser.prefix.detach().cpu(),
        empty=denoiser.table[-1:].detach().cpu(),
        words=denoiser.table[:-1].detach().cpu(),
        word_labels=clusters.labels,
        counts=clusters.counts,
        losses={"auto-encoder": vae_loss, "denoiser": loss},
    )


def save_pretrained(trained: Pretrained, folder: Path, *, images: Tensor, card: dict[str, Any]) -> None:
    """Write the folder that `latent.load` reads, with `card` and the digests of the training pictures (N, C, H, W).

    The index is written last: a folder without it is refused.
    """
    from diffusers import DDIMScheduler
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    for part, module in (("vae", trained.vae), ("unet", trained.unet)):
        module.cpu().save_pretrained(folder / part, safe_serialization=True)
    scheduler: Any = DDIMScheduler
    scheduler(**SCHEDULE, clip_sample=False).save_pretrained(folder / "scheduler")
    prefix = trained.prefix
    stored = {"prefix": prefix, "empty": torch.cat([prefix, trained.empty]), "start": trained.words.mean(0)}
    save_file(stored, folder / folders.TOKENS)
    index = {part: ["diffusers", kind] for part, kind in {**folders.MODULES, "scheduler": "DDIMScheduler"}.items()}
    files = {folders.CARD: card, folders.PUBLIC: {"sha256": tree.digests(images)}, folders.INDEX: index}
    for name, content in files.items():
        (folder / name).write_text(dumps(content, indent=1) + "\n")


def _autoencoder(images: Tensor, training: Pretraining, rng: torch.Generator, say: Say) -> tuple[Any, float]:
    shape = (images.shape[1], images.shape[2], images.shape[3])
    factor = 2 ** (len(training.vae_widths) - 1)
    latent = (training.channels, shape[1] // factor, shape[2] // factor)
    with seeding.fork_rng(rng):
        module = Autoencoder(shape, widths=training.vae_widths, channels=training.channels, kl=training.kl)
    where = device()
    images = images.to(where)

    def step_loss(call: Callable[..., Tensor]) -> Tensor:
        rows = torch.randint(len(images), (training.batch,), generator=rng)
        noise = torch.randn(training.batch, *latent, generator=rng)
        return call(images[rows.to(where)], noise.to(where))

    plan = Training(steps=training.vae_steps, batch=training.batch, learning_rate=training.learning_rate)
    return module.vae, _fit(module, step_loss, plan, "auto-encoder", say)


def _denoiser(
    latents: Tensor, clusters: Clusters, training: Pretraining, rng: torch.Generator, say: Say
) -> tuple[PromptedDenoiser, float]:
    shape = (latents.shape[1], latents.shape[2], latents.shape[3])
    with seeding.fork_rng(rng):
        words = _first_words(latents, clusters, training.width)
        module = PromptedDenoiser(shape, words, widths=training.widths, layers=training.layers)
    where = device()
    batch = training.batch
    empty = len(clusters.counts)
    latents = latents.to(where)
    abar = alphas_bar(ScaledLinearBetas(), T)

    def step_loss(call: Callable[..., Tensor]) -> Tensor:
        rows = torch.randint(len(latents), (batch,), generator=rng)
        t = torch.randint(1, T + 1, (batch,), generator=rng)
        eps = torch.randn(batch, *shape, generator=rng).to(where)
        word = torch.where(torch.rand(batch, generator=rng) < training.empty, empty, clusters.members[rows]).to(where)
        t = t.to(where)
        z_t = add_noise(latents[rows.to(where)], eps, abar, t)
        return (call(z_t, t, word) - eps).square().mean()

    plan = Training(steps=training.steps, batch=batch, learning_rate=training.learning_rate)
    return module, _fit(module, step_loss, plan, "denoiser", say)


def _first_words(latents: Tensor, clusters: Clusters, width: int) -> Tensor:
    """(V, width): the clusters' centres, projected at random, of deviation 1.

    Similar clusters so begin with similar words.
    """
    flat = latents.flatten(1)
    centres = torch.stack([flat[clusters.members == i].mean(0) for i in range(len(clusters.counts))])
    words = (centres - centres.mean(0)) @ torch.randn(flat.shape[1], width)
    scaled: Tensor = words / words.std().clamp_min(1e-6) if len(centres) > 1 else torch.randn(1, width)
    return scaled


def _fit(
    module: nn.Module, step_loss: Callable[[Callable[..., Tensor]], Tensor], plan: Training, name: str, say: Say
) -> float:
    """Train all parameters of a module, which stays frozen on the device. Return the mean loss of the last steps.

    step_loss: The loss of a fresh batch, given the module as a function.
    """

    def gradient(theta: Params) -> tuple[Params, Tensor]:
        loss = step_loss(lambda *inputs: torch.func.functional_call(module, theta, inputs))
        loss.backward()
        return {k: v.grad for k, v in theta.items() if v.grad is not None}, loss.detach()

    module.to(device())
    params = {k: v.detach() for k, v in module.named_parameters()}
    moments: Params = {}
    loss = math.nan
    for first in range(0, plan.steps, EVERY):
        steps = range(first, min(first + EVERY, plan.steps))
        params, moments, loss = optimize(params, gradient, training=plan, steps=steps, moments=moments)
        say(name, steps.stop, plan.steps, loss)
    module.load_state_dict(params)
    module.eval().requires_grad_(False)
    return loss
