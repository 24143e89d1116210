"""Reverse chains of Gaussian diffusion: ancestral, DDIM and DPM-Solver++ sampling.

Shapes: x (B, C, H, W) on the data's scale; labels (B, K), one column per condition; abar (T + 1,).
References: Ho et al. 2020 (arXiv 2006.11239); Song et al. 2021 (DDIM, arXiv 2010.02502); Lu et al. 2022 (DPM-Solver++,
arXiv 2211.01095); PFDM, Algorithm 4.
"""

import functools
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any

import torch
from torch import Tensor

from raydiff import lookup
from raydiff.models.compute import device, with_progress
from raydiff.models.ddpm import DDPM, Denoiser
from raydiff.settings import Count, settings

LEAST_KEPT = 1e-10  # of the signal's variance in a step: with less, Algorithm 4 magnifies float32's rounding by 1e5


@dataclass(frozen=True, kw_only=True)
class Step:
    """One step of a reverse chain, from x_t to x_s with s < t."""

    x: Tensor
    """x_t (B, C, H, W)."""
    x0: Tensor
    """The predicted x_0, clamped where the chain has a bound."""
    z: Tensor
    """The predicted noise, which goes with `x0`."""
    a_t: float
    """abar_t."""
    a_s: float
    """abar_s; 1 in the step to 0."""
    last: "Step | None"
    """The step before, whose own `last` is None."""
    rng: torch.Generator
    """For the step's noise, drawn on the CPU."""


def ancestral(step: Step) -> Tensor:
    """Algorithm 4 with sigma_t^2 = beta_t ("fixedlarge"), generalised to skipped steps by beta = 1 - abar_t / abar_s.

    The step that reaches 0 has no noise.
    """
    beta = 1 - step.a_t / step.a_s
    if 1 - beta > LEAST_KEPT:
        x = (step.x - beta / math.sqrt(1 - step.a_t) * step.z) / math.sqrt(1 - beta)
    else:  # Ho et al., Eq. 7: the same mean
        x = math.sqrt(step.a_s) * beta * step.x0 + math.sqrt(1 - beta) * (1 - step.a_s) * step.x
        x = x / (1 - step.a_t)
    if step.a_s < 1:
        x = x + math.sqrt(beta) * torch.randn(x.shape, generator=step.rng).to(x.device)
    return x


def ddim(step: Step) -> Tensor:
    """Song et al., Eq. 12 with eta = 0."""
    return math.sqrt(step.a_s) * step.x0 + math.sqrt(1 - step.a_s) * step.z


def dpmsolver(step: Step) -> Tensor:
    """Lu et al., Algorithm 2; the first step, and that to 0, are of first order."""
    if step.a_s == 1:
        return ddim(step)
    length = _log_snr_step(step)
    ahead = step.x0
    if step.last is not None:
        ahead = step.x0 + (step.x0 - step.last.x0) * (length / (2 * _log_snr_step(step.last)))
    kept = math.sqrt((1 - step.a_s) / (1 - step.a_t)) * step.x
    return kept - math.sqrt(step.a_s) * math.expm1(-length) * ahead


def _log_snr_step(step: Step) -> float:
    return 0.5 * math.log(step.a_s / (1 - step.a_s)) - 0.5 * math.log(step.a_t / (1 - step.a_t))


SAMPLERS: lookup.Door[Callable[[Step], Tensor]] = lookup.Door(
    "sampler",
    {"ancestral": ancestral, "ddim": ddim, "dpmsolver": dpmsolver},
    check=lookup.takes("step"),
)
"""Name -> sampler: a function that returns x_s (B, C, H, W) of a step."""
MEASURED = ("ancestral", "ddim")
"""Samplers that every model is evaluated with, beside the configured one."""


@settings(frozen=True, kw_only=True)
class Sampling:
    """How a reverse chain is run.

    Examples:
        >>> chain = rd.Sampling(sampler="ddim", steps=50)
        >>> rd.FedAvg(sampling=chain).sampling.steps
        50
    """

    sampler: Annotated[str, SAMPLERS] = "ancestral"
    """ancestral: the papers' Algorithm 4; ddim: deterministic, eta = 0; dpmsolver: DPM-Solver++(2M), for few steps; or
    module:name from anywhere."""
    steps: Count | None = None
    """Steps of a whole chain from T to 0 (default: T); part of a chain takes its fraction."""

    def variants(self) -> dict[str, "Sampling"]:
        """This chain with each evaluated sampler, by name; its own first."""
        names = dict.fromkeys((self.sampler, *MEASURED))
        return {lookup.bare_name(name): replace(self, sampler=name) for name in names}

    def samplers(self, model: DDPM, z_theta: Denoiser) -> dict[str, Callable[[Tensor, torch.Generator], Tensor]]:
        """The whole chain from noise to x_0 as functions of (labels, rng), by sampler; its own first."""

        def sample(chain: Sampling, labels: Tensor, rng: torch.Generator) -> Tensor:
            x = torch.randn(len(labels), *model.shape, generator=rng)
            return chain.run(model, z_theta, x, labels=labels, start=model.timesteps, bound=1.0, rng=rng)

        return {name: functools.partial(sample, chain) for name, chain in self.variants().items()}

    def run(
        self,
        model: DDPM,
        z_theta: Denoiser,
        x: Tensor,
        *,
        labels: Tensor,
        start: int,
        stop: int = 0,
        bound: float,
        rng: torch.Generator,
    ) -> Tensor:
        """`denoise` from x = x_start to x_stop with this sampler and this part's fraction of the steps.

        On the accelerator if there is one, result on the CPU.
        """
        steps = None if self.steps is None else max(1, math.ceil(self.steps * (start - stop) / model.timesteps))
        part: dict[str, Any] = {"start": start, "stop": stop, "sampler": self.sampler, "steps": steps, "bound": bound}
        return denoise(z_theta, x.to(device()), labels=labels.to(device()), abar=model.abar, rng=rng, **part).cpu()


def chain(start: int, stop: int, steps: int | None) -> list[int]:
    """The timesteps start = t_0 > ... > t_n = stop of a reverse chain, evenly spaced; steps None: all."""
    n = start - stop if steps is None else min(steps, start - stop)
    return [start - round(i * (start - stop) / n) for i in range(n + 1)] if n > 0 else [start]


def denoise(
    z_theta: Denoiser,
    x: Tensor,
    *,
    labels: Tensor,
    abar: Tensor,
    start: int,
    stop: int = 0,
    sampler: str,
    steps: int | None = None,
    bound: float | None = None,
    rng: torch.Generator,
) -> Tensor:
    """Run the reverse chain from x = x_start to x_stop, in `steps` evenly spaced steps (default: all).

    `bound` clamps the predicted x_0 to [-bound, bound] in each step: where abar_t is nearly 0 the chain diverges
    without it.
    """
    advance = SAMPLERS.resolve(sampler)
    last: Step | None = None
    for t, s in with_progress(itertools.pairwise(chain(start, stop, steps))):
        z = z_theta(x, torch.full((len(x),), t, device=x.device), labels)
        a_t = float(abar[t])
        x0 = (x - math.sqrt(1 - a_t) * z) / math.sqrt(a_t)
        if bound is not None:
            x0 = x0.clamp(-bound, bound)
            z = (x - math.sqrt(a_t) * x0) / math.sqrt(1 - a_t)
        step = Step(x=x, x0=x0, z=z, a_t=a_t, a_s=float(abar[s]), last=last, rng=rng)
        x = advance(step)
        last = replace(step, last=None)
    return x
