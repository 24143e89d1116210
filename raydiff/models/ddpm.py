"""Gaussian diffusion (DDPM): noise schedules, the training loss, ancestral, DDIM and DPM-Solver++ sampling.

Shapes: x (B, C, H, W) on the data's scale; labels (B, K), one column per condition; t (B,) in 1..T.
abar has T + 1 entries with abar_0 = 1, so that abar[t] is the paper's abar_t.

References: Ho et al. 2020 (arXiv 2006.11239); Song et al. 2021 (DDIM, arXiv 2010.02502); Lu et al. 2022 (DPM-Solver++,
arXiv 2211.01095); Karras et al. 2022 (EDM, arXiv 2206.00364); PFDM, Algorithms 3 and 4.
"""

from __future__ import annotations

import functools
import itertools
import math
import os
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar, get_args

import torch
from torch import Tensor, nn

from raydiff import lookup
from raydiff.models.functional import call, fresh, module_of
from raydiff.models.networks import MLP, UNet
from raydiff.tree import Params

Piece = TypeVar("Piece")
ScheduleName = Literal["linear", "cosine", "sigmoid", "scaled_linear"]
Sampler = Literal["ancestral", "ddim", "dpmsolver"]
MEASURED: tuple[Sampler, ...] = ("ancestral", "ddim")
"""Samplers that every model is evaluated with, beside the configured one."""
Precision = Literal["float32", "tf32", "bfloat16"]
Prediction = Literal["epsilon", "v", "x0", "edm"]
Levels = Literal["uniform", "lognormal"]
Denoiser = Callable[[Tensor, Tensor, Tensor], Tensor]

ON_PROGRESS: ContextVar[Callable[[], None] | None] = ContextVar("alive", default=None)
"""Callback that reports progress during long work without training steps (`federated.heartbeat`)."""

CHUNK = 4096  # records per forward pass when nothing is trained: bounds memory, does not change results
GPU_CHUNK = 1024  # On an H100 a pass of 4096 at 32x32 with attention asked for 6 GiB at once.
LOG_SIGMA_MEAN, LOG_SIGMA_STD = -1.2, 1.2  # of ln(sigma) in training (Karras et al. 2022, Table 1)
LEAST_KEPT = 1e-10  # of the signal's variance in a step: with less, Algorithm 4 magnifies float32's rounding by 1e5
RECOMPILE_LIMIT = 8 * 16
"""Graphs of one code object that dynamo keeps: each of `_compiled`'s models has several, by batch size and by whether
it is trained. At dynamo's default of 8 the third model of a process runs eagerly (seen with torch 2.11)."""


class NotFinite(ValueError):
    """What a model computes is NaN or infinite."""


@functools.lru_cache
def alphas_bar(schedule: str, timesteps: int) -> Tensor:
    """abar_0 .. abar_T, (T + 1,) float64.

    linear, scaled_linear and sigmoid have their usual beta range at T = 1000; for other T betas are scaled by 1000 / T.
    cosine is Nichol & Dhariwal's (arXiv 2102.09672). Raises ValueError for an unknown schedule or T outside 1..10^6.
    """
    lookup.check_one_of("schedule", schedule, get_args(ScheduleName))
    if not 1 <= timesteps <= 10**6:  # Beyond, float32 rounds abar_1 to 1.
        raise ValueError(f"timesteps must be in 1..1,000,000, got {timesteps}")
    T = timesteps
    if schedule == "cosine":
        f = [math.cos((t / T + 0.008) / 1.008 * math.pi / 2) ** 2 for t in range(T + 1)]
        beta = torch.tensor([1 - f[t + 1] / f[t] for t in range(T)], dtype=torch.float64)
    elif schedule == "linear":
        beta = torch.linspace(1e-4, 0.02, T, dtype=torch.float64) * (1000 / T)
    elif schedule == "scaled_linear":
        beta = torch.linspace(0.00085**0.5, 0.012**0.5, T, dtype=torch.float64) ** 2 * (1000 / T)
    else:
        beta = torch.sigmoid(torch.linspace(-6, 6, T, dtype=torch.float64))
        beta = (beta * (0.02 - 1e-4) + 1e-4) * (1000 / T)
    abar = torch.cumprod(1 - beta.clamp_max(0.999), dim=0)
    return torch.cat([torch.ones(1, dtype=torch.float64), abar])


@functools.lru_cache
def _lognormal_levels(schedule: str, timesteps: int) -> Tensor:
    """P(t <= 1 .. T), (T,) float64, where ln(sigma_t) of sigma_t^2 = 1 / abar_t - 1 is rounded from a normal number."""
    log_sigma = 0.5 * (1 / alphas_bar(schedule, timesteps)[1:] - 1).log()
    upper = (log_sigma[1:] + log_sigma[:-1]) / 2
    below = torch.special.ndtr((upper - LOG_SIGMA_MEAN) / LOG_SIGMA_STD)
    return torch.cat([below, torch.ones(1, dtype=torch.float64)])


@dataclass(frozen=True, kw_only=True)
class DDPM:
    """A DDPM: a network, a schedule, and nothing learned."""

    network: MLP | UNet = MLP()
    """The denoiser."""
    schedule: ScheduleName = "linear"
    """Noise schedule."""
    timesteps: int = 1000
    """T."""
    shape: tuple[int, int, int] = (1, 8, 8)
    """(channels, height, width) of a record; filled in from the data when an experiment is built."""
    labels: tuple[int, ...] = (10,)
    """Number of values of each condition, each with its own embedding; filled in from the data."""
    conditional: bool = True
    """Condition on the data's labels."""
    embedding: bool = False
    """Add a client's embedding, the parameter `networks.CLIENT`; SPIRE sets it."""
    prediction: Prediction = "edm"
    """The network's output: F of EDM's preconditioning (edm: Karras et al. 2022, Table 1), the noise z (epsilon), the
    picture x_0, or sqrt(abar) z - sqrt(1 - abar) x_0 (v: Salimans & Ho 2022, arXiv 2202.00512)."""
    sigma_data: float = 0.5
    """Standard deviation of the data's pixels in EDM's preconditioning; at 1 it is v up to sign. A public number."""
    levels: Levels = "lognormal"
    """Timesteps in training: by EDM's distribution of the noise's standard deviation (lognormal), or uniform."""
    snr_cap: float | None = None
    """gamma of min-SNR weights of the loss (Hang et al. 2023, arXiv 2303.09556): a step's weight on its error in x_0 is
    its signal-to-noise ratio, but at most this. None: the error in the network's output counts as it is."""
    flip: bool = False
    """Train on each picture as it is or mirrored left to right, with probability one half."""
    precision: Precision = "float32"
    """Of the network; parameters, losses and chains are float32. tf32 rounds inputs of products on a GPU to 10 bits."""
    compile: bool = False
    """Compile the network with `torch.compile`: a minute at the start, faster steps on a GPU."""

    def __post_init__(self) -> None:
        alphas_bar(self.schedule, self.timesteps)
        if len(self.shape) != 3 or min(self.shape) < 1:
            raise ValueError(f"shape must be three positive numbers (channels, height, width), got {self.shape}")
        if any(n < 1 for n in self.labels):
            raise ValueError(f"labels must be counts of at least 1, got {self.labels}")
        lookup.check_one_of("prediction", self.prediction, get_args(Prediction))
        lookup.check_one_of("levels", self.levels, get_args(Levels))
        lookup.check_positive(self, "sigma_data", "snr_cap")
        lookup.check_one_of("precision", self.precision, get_args(Precision))
        self.network.check(self.shape)

    @property
    def abar(self) -> Tensor:
        return alphas_bar(self.schedule, self.timesteps)

    def for_data(self, shape: tuple[int, int, int], labels: tuple[int, ...]) -> DDPM:
        """The same for pictures of this shape, with this many values in each label column."""
        return replace(self, shape=shape, labels=labels if self.conditional else ())

    def init(self, rng: torch.Generator) -> Params:
        return fresh(self, rng)

    def draws(self, count: int, rng: torch.Generator) -> Params:
        """The random part of one training step: t in 1..T by `levels` (B,), z ~ N(0, I) (B, C, H, W), mirrored (B,)."""
        if self.levels == "uniform":
            t = torch.randint(1, self.timesteps + 1, (count,), generator=rng)
        else:
            u = torch.rand(count, dtype=torch.float64, generator=rng)
            t = 1 + torch.searchsorted(_lognormal_levels(self.schedule, self.timesteps), u)
        drawn = {"t": t, "z": torch.randn(count, *self.shape, generator=rng)}
        return {**drawn, "flip": torch.rand(count, generator=rng) < 0.5} if self.flip else drawn

    def loss(self, params: Params, batch: tuple[Tensor, Tensor], draws: Params, extras: Params) -> Tensor:
        """Mean over pixels of ||z - z_theta(sqrt(abar_t) x_0 + sqrt(1 - abar_t) z, t)||^2 (Algorithm 3), or of the same
        in what the network predicts. No extras."""
        x, z, t = batch[0], draws["z"], draws["t"]
        if self.flip:
            x = torch.where(draws["flip"].view(-1, 1, 1, 1), x.flip(-1), x)
        error = (self._target(x, z, t) - self._output(params, noised(x, z, self.abar, t), t, batch[1])).square()
        return error.mean() if self.snr_cap is None else (self._min_snr(x, t, self.snr_cap) * error).mean()

    def _min_snr(self, x: Tensor, t: Tensor, cap: float) -> Tensor:
        """min(SNR_t, cap) over the weight on the error in x_0 that the squared error of the output has already."""
        signal, noise = _signal_and_noise(x, self.abar, t)
        snr = (signal / noise).square()
        by_itself = {
            "epsilon": snr,
            "v": snr + 1,
            "x0": torch.ones_like(snr),
            "edm": (self._std(signal, noise) / (self.sigma_data * noise)).square(),
        }
        return snr.clamp_max(cap) / by_itself[self.prediction]

    def predict(self, params: Params, x_t: Tensor, t: Tensor, labels: Tensor) -> Tensor:
        """z_theta(x_t, t | labels), (B, C, H, W); differentiable in params and x_t."""
        out = self._output(params, x_t, t, labels)
        if self.prediction == "epsilon":
            return out
        signal, noise = _signal_and_noise(x_t, self.abar, t)
        if self.prediction == "v":
            return signal * out + noise * x_t
        if self.prediction == "x0":
            return (x_t - signal * out) / noise
        std = self._std(signal, noise)
        return (noise * x_t / std - self.sigma_data * signal * out) / std

    def _target(self, x: Tensor, z: Tensor, t: Tensor) -> Tensor:
        """The network's target for sqrt(abar_t) x + sqrt(1 - abar_t) z."""
        signal, noise = _signal_and_noise(x, self.abar, t)
        if self.prediction == "epsilon":
            return z
        if self.prediction == "v":
            return signal * z - noise * x
        if self.prediction == "x0":
            return x
        return (noise * x / self.sigma_data - self.sigma_data * signal * z) / self._std(signal, noise)

    def _std(self, signal: Tensor, noise: Tensor) -> Tensor:
        return ((self.sigma_data * signal).square() + noise.square()).sqrt()

    def features(self, params: Params, batch: tuple[Tensor, Tensor], draws: Params) -> Tensor:
        """Features of the noised images, (B, dim): the last hidden layer (MLP) or the middle block (UNet), for MOON."""
        x_t = noised(batch[0], draws["z"], self.abar, draws["t"])
        return self._output(params, x_t, draws["t"], batch[1], features=True)

    def denoiser(self, params: Params, *, fixed: tuple[int, ...] = ()) -> Denoiser:
        """`predict` with bound parameters, as `frozen`; `fixed`: values of further label columns, for all records."""
        predict = frozen(self.predict, params)

        def with_fixed(x_t: Tensor, t: Tensor, labels: Tensor) -> Tensor:
            extra = torch.tensor(fixed, dtype=torch.long).expand(len(labels), -1)
            return predict(x_t, t, torch.cat([labels, extra], dim=1))

        return with_fixed

    def _output(self, params: Params, x_t: Tensor, t: Tensor, labels: Tensor, *, features: bool = False) -> Tensor:
        network = _compiled(self) if self.compile and not features else functools.partial(call, self)
        if self.prediction == "edm":
            x_t = x_t / self._std(*_signal_and_noise(x_t, self.abar, t))
        if not self.conditional:  # Columns that a method appends to the data's labels stay.
            labels = labels[:, labels.shape[1] - len(self.labels) :]
        if self.precision != "bfloat16":
            return network(params, x_t, t, labels, features)
        with torch.autocast(x_t.device.type, dtype=torch.bfloat16):
            return network(params, x_t, t, labels, features).float()

    def build(self) -> nn.Module:
        return self.network.build(self.shape, self.labels, self.timesteps, client=self.embedding)


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How a reverse chain is run."""

    sampler: Sampler = "ancestral"
    """ancestral: the papers' Algorithm 4; ddim: deterministic, eta = 0; dpmsolver: DPM-Solver++(2M), for few steps."""
    steps: int | None = None
    """Steps of a whole chain from T to 0 (default: T); part of a chain takes its fraction."""

    def __post_init__(self) -> None:
        lookup.check_one_of("sampler", self.sampler, get_args(Sampler))
        lookup.check_least(self, 1, "steps")

    def variants(self) -> dict[str, Sampling]:
        """This chain with each evaluated sampler, by name; its own first."""
        return {name: replace(self, sampler=name) for name in dict.fromkeys((self.sampler, *MEASURED))}

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
        """`denoise` from x = x_start to x_stop with this sampler and this part's fraction of the steps."""
        steps = None if self.steps is None else max(1, math.ceil(self.steps * (start - stop) / model.timesteps))
        part: dict[str, Any] = {"start": start, "stop": stop, "sampler": self.sampler, "steps": steps, "bound": bound}
        return denoise(z_theta, x, labels=labels, abar=model.abar, rng=rng, **part)


@functools.lru_cache(maxsize=16)
def _compiled(model: DDPM) -> Callable[..., Tensor]:
    module = module_of(model)

    def predict(params: Params, *inputs: Any) -> Tensor:
        out: Tensor = torch.func.functional_call(module, params, inputs)
        return out

    torch._dynamo.config.recompile_limit = RECOMPILE_LIMIT
    return torch.compile(predict)


def device() -> torch.device:
    """The process's accelerator, else the CPU. Torch reads CUDA_VISIBLE_DEVICES once; empty, it counts at any time."""
    kept_off = os.environ.get("CUDA_VISIBLE_DEVICES") == ""
    return torch.device("cuda" if not kept_off and torch.cuda.is_available() else "cpu")


def compute_with(threads: int, precision: Precision) -> None:
    """Set threads and float32 precision of this process. torch's default on a GPU is TF32 in convolutions only."""
    torch.set_num_threads(threads)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"


def out_of_memory(error: BaseException) -> bool:
    """Whether the accelerator had no memory left, also for the workspace of a library (cuBLAS, cuDNN)."""
    marks = ("out of memory", "STATUS_ALLOC_FAILED")
    lacking = isinstance(error, RuntimeError) and any(mark in str(error) for mark in marks)
    return lacking or isinstance(error, torch.OutOfMemoryError)


def device_lost(error: BaseException) -> bool:
    """Whether this is an error of the accelerator, which stays in its process: whatever is computed next fails too."""
    of_cuda = isinstance(error, RuntimeError) and "CUDA error" in str(error)
    return (of_cuda or isinstance(error, torch.AcceleratorError)) and not out_of_memory(error)


def frozen(call: Callable[..., Tensor], params: Params) -> Callable[..., Tensor]:
    """`call(params, *inputs)` as a function of inputs (N, ...), `CHUNK` rows at a time: without gradients, on the
    accelerator if there is one, results on the CPU. Raises NotFinite."""
    where = device()
    bound = {k: finite(v, "the model's weights").to(where) for k, v in params.items()}

    @torch.no_grad()
    def chunked(*inputs: Tensor) -> Tensor:
        parts = zip(*(x.split(CHUNK if where.type == "cpu" else GPU_CHUNK) for x in inputs), strict=True)
        outputs = torch.cat([call(bound, *(p.to(where) for p in part)).cpu() for part in with_progress(parts)])
        return finite(outputs, "the model's outputs")

    return chunked


def finite(values: Tensor, what: str) -> Tensor:
    """Return the values. Raises NotFinite where one is NaN or infinite: clamped or rounded, it would look like data."""
    if not values.isfinite().all():
        raise NotFinite(f"{what} are not finite: training diverged; lower the learning rate")
    return values


def with_progress(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """Yield the pieces, and report progress at each (`ON_PROGRESS`)."""
    report = ON_PROGRESS.get()
    for piece in pieces:
        if report is not None:
            report()
        yield piece


def noised(x: Tensor, eps: Tensor, abar: Tensor, t: Tensor) -> Tensor:
    """sqrt(abar_t) x + sqrt(1 - abar_t) eps for pictures x (B, C, H, W), abar (T + 1,) and t (B,)."""
    signal, noise = _signal_and_noise(x, abar, t)
    return signal * x + noise * eps


def _signal_and_noise(x: Tensor, abar: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    """(sqrt(abar_t), sqrt(1 - abar_t)) for pictures x (B, C, H, W)."""
    a = placed(abar, x.device)[t].to(x.dtype).view(-1, 1, 1, 1)
    return a.sqrt(), (1 - a).sqrt()


@functools.lru_cache(maxsize=64)
def placed(schedule: Tensor, where: torch.device) -> Tensor:
    """abar on that device; cached, so that no step waits for a copy."""
    return schedule.to(where)


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
    sampler: Sampler,
    steps: int | None = None,
    bound: float | None = None,
    rng: torch.Generator,
) -> Tensor:
    """Run the reverse chain from x = x_start to x_stop, in `steps` evenly spaced steps (default: all).

    `ancestral` is Algorithm 4 with sigma_t^2 = beta_t ("fixedlarge"), generalised to skipped steps by
    beta = 1 - abar_t / abar_s; no noise in the step that reaches 0. `ddim` is Song et al., Eq. 12 with eta = 0.
    `dpmsolver` is Lu et al., Algorithm 2; its first step, and that to 0, are of first order. `bound` clamps the
    predicted x_0 to [-bound, bound] in each step: where abar_t is nearly 0 the chain diverges without it.
    """
    times = chain(start, stop, steps)
    last: tuple[Tensor, float] | None = None  # the previous step's predicted x_0 and length
    for t, s in with_progress(itertools.pairwise(times)):
        z = z_theta(x, torch.full((len(x),), t), labels)
        a_t, a_s = float(abar[t]), float(abar[s])
        x0 = (x - math.sqrt(1 - a_t) * z) / math.sqrt(a_t)
        if bound is not None:
            x0 = x0.clamp(-bound, bound)
            z = (x - math.sqrt(a_t) * x0) / math.sqrt(1 - a_t)
        if sampler == "dpmsolver" and s > 0:
            length = 0.5 * math.log(a_s / (1 - a_s)) - 0.5 * math.log(a_t / (1 - a_t))
            ahead = x0 if last is None else x0 + (x0 - last[0]) * (length / (2 * last[1]))
            x = math.sqrt((1 - a_s) / (1 - a_t)) * x - math.sqrt(a_s) * math.expm1(-length) * ahead
            last = x0, length
        elif sampler != "ancestral":
            x = math.sqrt(a_s) * x0 + math.sqrt(1 - a_s) * z
        else:
            beta = 1 - a_t / a_s
            if 1 - beta > LEAST_KEPT:
                x = (x - beta / math.sqrt(1 - a_t) * z) / math.sqrt(1 - beta)
            else:  # Ho et al., Eq. 7: the same mean
                x = (math.sqrt(a_s) * beta * x0 + math.sqrt(1 - beta) * (1 - a_s) * x) / (1 - a_t)
            if s > 0:
                x = x + math.sqrt(beta) * torch.randn(x.shape, generator=rng)
    return x
