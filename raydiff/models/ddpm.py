"""Gaussian diffusion (DDPM): the network's target and the training loss. Sampling is in `samplers`.

Shapes: x (B, C, H, W) on the data's scale; labels (B, K), one column per condition; t (B,) in 1..T.
References: Ho et al. 2020 (arXiv 2006.11239); Karras et al. 2022 (EDM, arXiv 2206.00364); PFDM, Algorithm 3.
"""

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any, Literal

import torch
from pydantic import FiniteFloat
from torch import Tensor, nn

from raydiff.models.compute import Precision, frozen
from raydiff.models.functional import call, call_features, fresh, module_of
from raydiff.models.networks import MLP, NETWORKS, Conditions, Network
from raydiff.models.schedules import (
    SCHEDULES,
    Level,
    LinearBetas,
    Schedule,
    Timesteps,
    alphas_bar,
    lognormal_levels,
    signal_and_noise,
)
from raydiff.settings import Count, Positive, settings
from raydiff.tree import Params

Denoiser = Callable[[Tensor, Tensor, Tensor], Tensor]
"""z_theta(x_t (B, C, H, W), t (B,) in 1..T, labels (B, K)): the predicted noise, (B, C, H, W)."""
Prediction = Literal["epsilon", "v", "x0", "edm"]

RECOMPILE_LIMIT = 8 * 16
"""Graphs of one code object that dynamo keeps: each of `_compiled`'s models has several, by batch size and by whether
it is trained. At dynamo's default of 8 the third model of a process runs eagerly (seen with torch 2.11)."""


@settings(frozen=True, kw_only=True)
class DDPM:
    """A DDPM: a network, a schedule, and nothing learned.

    Raises:
        ValueError: If the schedule is none, such as with a beta above 1.

    Examples:
        >>> import torch
        >>> model = rd.DDPM(network=rd.MLP(width=32), timesteps=100)
        >>> params = model.init(torch.Generator())
        >>> x_t, t = torch.zeros(2, 1, 8, 8), torch.tensor([1, 100])
        >>> tuple(model.predict(params, x_t, t, labels=torch.tensor([[3], [8]])).shape)
        (2, 1, 8, 8)
    """

    network: Annotated[Network, NETWORKS] = MLP()
    """The denoiser."""
    schedule: Annotated[Schedule, SCHEDULES] = LinearBetas()
    """Noise schedule."""
    timesteps: Timesteps = 1000
    """T."""
    shape: tuple[Count, Count, Count] = (1, 8, 8)
    """(channels, height, width) of a record; filled in from the data when an experiment is built."""
    labels: tuple[Count, ...] = (10,)
    """Number of values of each condition, each with its own embedding; filled in from the data."""
    conditional: bool = True
    """Condition on the data's labels."""
    embedding: bool = False
    """Add a client's embedding, the parameter `networks.CLIENT`; SPIRE sets it."""
    prediction: Prediction = "edm"
    """The network's output: F of EDM's preconditioning (edm: Karras et al. 2022, Table 1), the noise z (epsilon), the
    picture x_0, or sqrt(abar) z - sqrt(1 - abar) x_0 (v: Salimans & Ho 2022, arXiv 2202.00512)."""
    sigma_data: Positive = 0.5
    """Standard deviation of the data's pixels in EDM's preconditioning; at 1 it is v up to sign. A public number."""
    levels: Literal["uniform", "lognormal"] = "lognormal"
    """Timesteps in training: by EDM's distribution of the noise's standard deviation (lognormal), or uniform."""
    lognormal_mean: FiniteFloat = -1.2
    """Mean of ln(sigma) of log-normal levels (EDM's P_mean)."""
    snr_cap: Positive | None = None
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

    @property
    def abar(self) -> Tensor:
        return alphas_bar(self.schedule, self.timesteps)

    def for_data(self, shape: tuple[int, int, int], labels: tuple[int, ...]) -> "DDPM":
        """The same for pictures of this shape, with this many values in each label column.

        Raises ValueError where the network does not take them.
        """
        self.network.check(shape)
        return replace(self, shape=shape, labels=labels if self.conditional else ())

    @property
    def embedding_width(self) -> int:
        """Entries of a client's embedding."""
        conditions: Any = module_of(self).conditions
        return int(conditions.width)

    def init(self, rng: torch.Generator) -> Params:
        return fresh(self, rng)

    def draws(self, count: int, rng: torch.Generator) -> Params:
        """The random part of one training step: t in 1..T by `levels` (B,), z ~ N(0, I) (B, C, H, W), mirrored (B,)."""
        if self.levels == "uniform":
            t = torch.randint(1, self.timesteps + 1, (count,), generator=rng)
        else:
            u = torch.rand(count, dtype=torch.float64, generator=rng)
            t = 1 + torch.searchsorted(lognormal_levels(self.schedule, self.timesteps, self.lognormal_mean), u)
        drawn = {"t": t, "z": torch.randn(count, *self.shape, generator=rng)}
        return {**drawn, "flip": torch.rand(count, generator=rng) < 0.5} if self.flip else drawn

    def loss(self, params: Params, batch: tuple[Tensor, Tensor], draws: Params, extras: Params) -> Tensor:
        """Mean over pixels of ||z - z_theta(sqrt(abar_t) x_0 + sqrt(1 - abar_t) z, t)||^2 (Algorithm 3).

        Or of the same in what the network predicts. No extras.
        """
        x = batch[0]
        z = draws["z"]
        t = draws["t"]
        if self.flip:
            x = torch.where(draws["flip"].view(-1, 1, 1, 1), x.flip(-1), x)
        signal, noise = level = signal_and_noise(x, self.abar, t)
        output = self._output(params, signal * x + noise * z, t, batch[1], level)
        error = (self._target(x, z, *level) - output).square()
        return error.mean() if self.snr_cap is None else (self._min_snr(*level, self.snr_cap) * error).mean()

    def _min_snr(self, signal: Tensor, noise: Tensor, cap: float) -> Tensor:
        """min(SNR_t, cap) over the weight on the error in x_0 that the squared error of the output has already."""
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
        signal, noise = level = signal_and_noise(x_t, self.abar, t)
        out = self._output(params, x_t, t, labels, level)
        if self.prediction == "epsilon":
            return out
        if self.prediction == "v":
            return signal * out + noise * x_t
        if self.prediction == "x0":
            return (x_t - signal * out) / noise
        std = self._std(signal, noise)
        return (noise * x_t / std - self.sigma_data * signal * out) / std

    def _target(self, x: Tensor, z: Tensor, signal: Tensor, noise: Tensor) -> Tensor:
        """The network's target for signal * x + noise * z."""
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
        """Features of the noised images, (B, dim), at the network's `features`, for MOON."""
        x = batch[0]
        t = draws["t"]
        signal, noise = level = signal_and_noise(x, self.abar, t)
        return self._output(params, signal * x + noise * draws["z"], t, batch[1], level, features=self.network.features)

    def denoiser(self, params: Params, *, fixed: tuple[int, ...] = ()) -> Denoiser:
        """`predict` with bound parameters, as `frozen`; `fixed`: values of further label columns, for all records."""
        predict = frozen(self.predict, params)

        def with_fixed(x_t: Tensor, t: Tensor, labels: Tensor) -> Tensor:
            more = [torch.full((len(labels), 1), value, device=labels.device) for value in fixed]
            return predict(x_t, t, torch.cat([labels, *more], dim=1))

        return with_fixed

    def _output(
        self, params: Params, x_t: Tensor, t: Tensor, labels: Tensor, level: Level, *, features: str | None = None
    ) -> Tensor:
        network: Callable[..., Tensor] = functools.partial(call, self)
        if features is not None:
            network = functools.partial(call_features, self, features)
        elif self.compile:
            network = _compiled(self)
        if self.prediction == "edm":
            x_t = x_t / self._std(*level)
        if not self.conditional:  # Columns that a method appends to the data's labels stay.
            labels = labels[:, labels.shape[1] - len(self.labels) :]
        time = t * (1000 / self.timesteps)
        if self.precision != "bfloat16":
            return network(params, x_t, time, labels)
        with torch.autocast(x_t.device.type, dtype=torch.bfloat16):
            return network(params, x_t, time, labels).float()

    def build(self) -> nn.Module:
        return self.network.build(self.shape, functools.partial(Conditions, self.labels, self.embedding))


@functools.lru_cache(maxsize=16)
def _compiled(model: DDPM) -> Callable[..., Tensor]:
    module = module_of(model)

    def predict(params: Params, *inputs: Any) -> Tensor:
        out: Tensor = torch.func.functional_call(module, params, inputs)
        return out

    torch._dynamo.config.recompile_limit = RECOMPILE_LIMIT
    return torch.compile(predict)
