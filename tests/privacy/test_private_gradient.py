"""DP-SGD: the gradients of single records, the clip, the noise, the sample, and what they cost.

`faults` inspects anything with the signature of `PrivateGradient`. It passes the real one and catches broken ones.
"""

import functools
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from opacus.accountants import RDPAccountant
from opacus.accountants.utils import get_noise_multiplier
from reference.gaussians import length
from scipy.stats import kstest
from torch import Tensor

from raydiff.models.ddpm import DDPM
from raydiff.models.networks import MLP, UNet
from raydiff.privacy import accountants, gaussian, private_gradient, renyi
from raydiff.privacy.ghost_clipping import Outer
from raydiff.privacy.private_gradient import (
    Mechanism,
    PrivateGradient,
    StepBudget,
    event_of,
    noise_multiplier_for,
    per_record,
    sum_clipped,
)
from raydiff.privacy.release import ROUNDING, Gaussian
from raydiff.seeding import NoiseStream, generator
from raydiff.tree import Params

Make = Callable[..., Any]  # with the signature of `PrivateGradient`

SIGMA, CLIP, RECORDS, BATCH, WIDTH = 0.8, 1.5, 80, 20, 20_000
NAMES = ("secret", "digest", "client", "round")
IMPROBABLE = 1e-9  # chance of a false alarm of one comparison
EXACT = Mechanism(noise_multiplier=0.0, max_grad_norm=1e6)


def stream(secret: bytes = b"secret", digest: str = "digest", client: int = 0, round: int = 0) -> NoiseStream:
    return NoiseStream(secret, (digest, "client", client, "round", round))


STREAM = stream()


# --- losses with known gradients ---------------------------------------------------------------------------


def pulled(theta: Params, batch: tuple[Tensor, Tensor], draws: Params, extras: Params) -> Tensor:
    """A record pulls at the entry of its label, with the strength of its image times its draw."""
    return (theta["w"][batch[1][:, 0]] * batch[0].flatten(1).sum(1) * draws["strength"]).mean()


def strengths(*values: float) -> Callable[[int, torch.Generator], Params]:
    """Draws that are these numbers, one after the other; without any, random ones."""

    def draws(count: int, rng: torch.Generator) -> Params:
        drawn = torch.rand(count, generator=rng) if not values else torch.tensor(values).repeat(count)[:count]
        return {"strength": drawn}

    return draws


def either_way(count: int, rng: torch.Generator) -> Params:
    """Draws of either sign: where another one is drawn, a record may pull the other way."""
    return {"strength": 2 * torch.rand(count, generator=rng) - 1}


def records(n: int, strength: float = 1.0) -> tuple[Tensor, Tensor]:
    """Records that each pull at an entry of their own."""
    return torch.full((n, 1, 1, 1), strength), torch.arange(n)[:, None]


def make(
    build: Make = PrivateGradient,
    *,
    strength: float = 1.0,
    n: int = RECORDS,
    batch: int = RECORDS,
    draws: Callable[[int, torch.Generator], Params] | None = None,
    stream: NoiseStream = STREAM,
    data: tuple[Tensor, Tensor] | None = None,
    **mechanism: Any,
) -> Any:
    fields = Mechanism(**{"noise_multiplier": 0.0, "max_grad_norm": CLIP, **mechanism})
    options = {"draws": draws or strengths(1.0), "batch": batch, "rng": generator(0), "noise": stream}
    return build(pulled, *(data or records(n, strength)), mechanism=fields, **options)


def pulls(gradient: Any, *, width: int = RECORDS, batch: int = RECORDS) -> Tensor:
    """The next step's sum before it is divided by the expected batch: entry i is what record i adds, and noise."""
    total: Tensor = gradient({"w": torch.zeros(width)})[0]["w"] * batch
    return total


# --- the checker -------------------------------------------------------------------------------------------


def faults(build: Make) -> list[str]:
    """What is wrong with a mechanism of `PrivateGradient`'s signature; empty if nothing is."""
    noisy, sampled = noise(build), make(build, batch=BATCH)
    z, later = next(noisy), next(noisy)
    samples = torch.stack([pulls(sampled, batch=BATCH) for _ in range(30)]) > 0.5
    checks = {
        "noise scale": kstest(z.double(), "norm").pvalue > IMPROBABLE,
        "same noise in another step": _independent(z, later),
        "second draw": torch.equal(z, next(noise(build))),
        "clip": _bounded(build),
        "clipped before the mean": _mean_first(build),
        "sample": _is_poisson(samples, BATCH / RECORDS),
        "draws shift": _keeps_its_draws(build),
        "removal": max(removals(build)) <= CLIP,
        "event": _event(build) == Gaussian(SIGMA, "example", "zero_out", "local", 0.25, 3),
    }
    others = [stream(secret=b"another"), stream(digest="another"), stream(client=1), stream(round=1)]
    for name, other in zip(NAMES, others, strict=True):
        checks[f"same noise for another {name}"] = _independent(z, next(noise(build, other)))
        sample = pulls(make(build, batch=BATCH, stream=other), batch=BATCH) > 0.5
        checks[f"same sample for another {name}"] = not torch.equal(sample, samples[0])
    return [name for name, passed in checks.items() if not passed]


def noise(build: Make, stream: NoiseStream = STREAM) -> Iterator[Tensor]:
    """The draws behind the sums of one step after the other, of records that do not pull: standard normal."""
    gradient = make(build, strength=0.0, n=2, batch=2, stream=stream, noise_multiplier=SIGMA)
    while True:
        yield pulls(gradient, width=WIDTH, batch=2) / (SIGMA * CLIP)


def _independent(a: Tensor, b: Tensor) -> bool:
    cosine = float((a * b).sum() / a.norm() / b.norm())
    return abs(cosine) < 6.1 / math.sqrt(len(a))  # 6.1 standard deviations: 1e-9


def _bounded(build: Make) -> bool:
    """One record moves the sum by the clip norm at most, however strongly it pulls and whatever its draws are."""
    moved = [
        pulls(make(build, n=5, batch=5, strength=strength, draws=draws, multiplicity=multiplicity), batch=5)[:5]
        for draws, multiplicity in ((strengths(1.0), 1), (strengths(3.0, 1.0), 4))
        for strength in (1e-3, 1.0, 50.0, 1e6)
    ]
    return float(torch.cat(moved).abs().max()) <= CLIP  # each record pulls at an entry of its own


def _mean_first(build: Make) -> bool:
    """The mean of 30 and -10 is clipped to C; clipped first, the two cancel."""
    moved = pulls(make(build, n=3, batch=3, draws=strengths(30.0, -10.0), multiplicity=2), batch=3)[:3]
    return bool(((moved - CLIP).abs() < 1e-4 * CLIP).all())


def _is_poisson(samples: Tensor, rate: float) -> bool:
    """(steps, n): each record in each step by itself, so that sizes vary and steps have nothing in common."""
    steps, n = samples.shape
    centred, var = samples.double() - rate, rate * (1 - rate)
    total = float(centred.sum()) / math.sqrt(var * steps * n)
    sizes = float(centred.sum(1).square().mean()) / (var * n)  # a fixed count: 0; all or nothing: n
    each = float(centred.sum(0).square().mean()) / (var * steps)  # always the same records: steps
    spread = 6.1 * math.sqrt(2 / steps), 6.1 * math.sqrt(2 / n)
    return abs(total) < 6.1 and abs(sizes - 1) < min(spread[0], 0.999) and abs(each - 1) < spread[1]


def _keeps_its_draws(build: Make) -> bool:
    """A record's draw does not depend on which other records are drawn with it."""
    some = [pulls(make(build, draws=strengths(), n=50, batch=25, stream=NoiseStream(s, ())), batch=25)[:50]
            for s in (b"1", b"2", b"3")]  # fmt: skip
    both = (some[0] > 0) & (some[1] > 0) & (some[2] > 0)
    return bool(both.any()) and torch.equal(some[0][both], some[1][both]) and torch.equal(some[0][both], some[2][both])


def removals(build: Make = PrivateGradient) -> Iterator[float]:
    """How far each record's removal moves the sum, all else and all that is random being the same.

    Records 0 and 1 are equal, 2 and 3 too, and so on. A record goes from the list (then all are drawn, for the rate
    depends on their number), or stays as one without a gradient.
    """
    n = 6
    images, labels = torch.full((n, 1, 1, 1), 4 * CLIP), torch.arange(n)[:, None] // 2

    def sums(data: tuple[Tensor, Tensor], batch: int) -> list[Tensor]:
        gradient = make(build, data=data, batch=batch, draws=either_way, multiplicity=2)
        return [pulls(gradient, batch=batch).double() for _ in range(2)]

    whole, sampled = sums((images, labels), n), sums((images, labels), n // 2)
    for removed in range(n):
        rest = torch.arange(n) != removed
        zeroed = images * rest.view(-1, 1, 1, 1), labels
        others = [sums((images[rest], labels[rest]), n - 1), sums(zeroed, n), sums(zeroed, n // 2)]
        for ours, theirs in zip((whole, whole, sampled), others, strict=True):
            yield from (float((a - b).norm()) for a, b in zip(ours, theirs, strict=True))


def _event(build: Make) -> Any:
    gradient = make(build, noise_multiplier=SIGMA, batch=BATCH)
    for _ in range(3):
        pulls(gradient)
    return gradient.event


# --- the real mechanism, and broken ones -------------------------------------------------------------------


class Broken(PrivateGradient):
    """Less noise or a larger clip norm than its event says."""

    def __init__(self, *args: Any, mechanism: Mechanism, noise_times: float, clip_times: float, **options: Any) -> None:
        sigma, clip = mechanism.noise_multiplier, mechanism.max_grad_norm
        actual = replace(mechanism, noise_multiplier=noise_times * sigma / clip_times, max_grad_norm=clip_times * clip)
        super().__init__(*args, mechanism=actual, **options)
        self.sigma = sigma

    @property
    def event(self) -> Gaussian:
        return replace(super().event, std_over_sensitivity=self.sigma)


def with_noise_times(factor: float) -> Make:
    return functools.partial(Broken, noise_times=factor, clip_times=1.0)


without_clip = functools.partial(Broken, noise_times=1.0, clip_times=1e12)


def each_draw_as_a_record(*, divided: bool) -> Make:
    """Every draw's gradient clipped for itself; `divided`: their mean is taken afterwards."""

    class Each(PrivateGradient):
        def _clipped_sum(self, theta: Params, rows: list[int]) -> tuple[Params, Tensor]:
            of, whole = self.mechanism, self._draw
            total = {k: torch.zeros_like(v) for k, v in theta.items()}
            for k in range(of.multiplicity):
                self._draw = lambda rows, k=k: {n: v[:, k : k + 1] for n, v in whole(rows).items()}  # type: ignore
                one, loss = super()._clipped_sum(theta, rows)
                total = {n: total[n] + v / (of.multiplicity if divided else 1) for n, v in one.items()}
            self._draw = whole  # type: ignore[method-assign]
            return total, loss

    return Each


@dataclass(frozen=True)
class Stream(NoiseStream):
    """A noise stream that is broken in one of several ways."""

    kind: str = ""

    def generator(self, *path: str | int) -> np.random.Generator:
        secret = {"secret": b"", "fresh": os.urandom(16)}.get(self.kind, self.secret)
        if self.kind == "known sample" and path[0] == "sample":
            return NoiseStream(b"", ()).generator(*path)
        kept = () if self.kind == "path" else self.path
        return NoiseStream(secret, kept).generator(*path[: 1 if self.kind == "step" else 2])


def with_stream(kind: str) -> Make:
    return lambda *args, noise, **options: PrivateGradient(
        *args, noise=Stream(noise.secret, noise.path, kind), **options
    )


def with_shared_draws(*args: Any, draws: Any, **options: Any) -> PrivateGradient:
    shared = generator(0)
    return PrivateGradient(*args, draws=lambda count, rng: draws(count, shared), **options)


class FixedCount(PrivateGradient):
    """The expected number of records in each step, no more and no less."""

    def _clipped_sum(self, theta: Params, rows: list[int]) -> tuple[Params, Tensor]:
        drawn = np.random.default_rng(self.noise.generator("fixed", self.steps)).permutation(len(self.images))
        return super()._clipped_sum(theta, sorted(drawn[: self.batch].tolist()))


class ByPlace(PrivateGradient):
    """A record's draws are keyed by its place, so that those behind one that goes get others'."""

    def _keys(self, rows: list[int]) -> list[tuple[str, int]]:
        return [("", row) for row in rows]


class ByRecordAlone(PrivateGradient):
    """Equal records share their draws."""

    def _keys(self, rows: list[int]) -> list[tuple[str, int]]:
        return [(record, 0) for record, _ in super()._keys(rows)]


def test_the_real_mechanism_has_no_faults() -> None:
    assert faults(PrivateGradient) == []
    assert faults(with_noise_times(1.0)) == []


@pytest.mark.parametrize("factor", [1 / 2, 0.9, 1.1])
def test_a_wrong_noise_scale_is_found_on_either_side(factor: float) -> None:
    assert faults(with_noise_times(factor)) == ["noise scale"]


NOISE, SAMPLE = ([f"same {what} for another {name}" for name in NAMES] for what in ("noise", "sample"))


@pytest.mark.parametrize(
    ("build", "faulty"),
    [
        (without_clip, ["clip", "clipped before the mean", "removal"]),
        (each_draw_as_a_record(divided=False), ["clip", "clipped before the mean", "removal"]),
        (each_draw_as_a_record(divided=True), ["clipped before the mean"]),
        (FixedCount, ["sample"]),
        (with_shared_draws, ["draws shift", "removal"]),
        (ByPlace, ["removal"]),
        (with_stream("fresh"), ["second draw", "removal"]),  # another sample
        (with_stream("step"), ["same noise in another step", "sample"]),
        (with_stream("secret"), [NOISE[0], SAMPLE[0]]),
        (with_stream("path"), [pair for both in zip(NOISE[1:], SAMPLE[1:], strict=True) for pair in both]),
        (with_stream("known sample"), SAMPLE),
    ],
)
def test_a_broken_mechanism_is_found(build: Make, faulty: list[str]) -> None:
    assert faults(build) == faulty


# --- gradients of single records ---------------------------------------------------------------------------

UNET = DDPM(network=UNet(widths=(8, 16)), timesteps=50, labels=(4, 2))
SMALL = DDPM(network=MLP(width=16, depth=1), timesteps=20, shape=(1, 4, 4), labels=(3,))


def pictures(model: DDPM, n: int) -> tuple[Tensor, Tensor]:
    rng = generator(0, "pictures")
    columns = [torch.randint(count, (n, 1), generator=rng) for count in model.labels]
    return torch.rand(n, *model.shape, generator=rng) * 2 - 1, torch.cat(columns, 1)


@pytest.mark.parametrize("multiplicity", [1, 3])
def test_gradients_of_single_records_on_a_unet_with_attention(multiplicity: int) -> None:
    (images, labels), params = pictures(UNET, 4), UNET.init(generator(1))
    drawn = UNET.draws(4 * multiplicity, generator(2))
    draws = {k: v.unflatten(0, (4, multiplicity)) for k, v in drawn.items()}
    gradients, losses = per_record(UNET.loss, params, (images, labels), draws)
    for i in range(4):
        theta = {k: v.clone().requires_grad_() for k, v in params.items()}
        parts = [
            UNET.loss(theta, (images[i : i + 1], labels[i : i + 1]), {n: v[i, k : k + 1] for n, v in draws.items()}, {})
            for k in range(multiplicity)
        ]
        mean = torch.stack(parts).mean()
        mean.backward()
        assert float(losses[i]) == pytest.approx(mean.item(), rel=1e-5)
        scale = math.sqrt(sum(float(v.grad.square().sum()) for v in theta.values()))  # type: ignore[union-attr]
        assert scale > 1e-2
        for name, leaf in theta.items():
            assert float((gradients[name][i] - leaf.grad).abs().max()) < 1e-5 * scale, name  # type: ignore[operator]


def test_a_network_is_made_outside_of_vmap() -> None:
    model = replace(SMALL, timesteps=21)  # one that was not called yet
    options: dict[str, Any] = {"draws": model.draws, "batch": 3, "rng": generator(0), "noise": STREAM}
    gradient = PrivateGradient(model.loss, *pictures(model, 3), mechanism=EXACT, **options)
    assert all(bool(v.isfinite().all()) for v in gradient(model.init(generator(1)))[0].values())


def fixed_draws(count: int, rng: torch.Generator) -> Params:
    return {"t": torch.arange(1, count + 1), "z": torch.ones(count, *SMALL.shape) * 0.3}


def small(batch: int = 6, *, mechanism: Mechanism = EXACT, noise: NoiseStream = STREAM, **options: Any) -> Any:
    images, labels = pictures(SMALL, 6)
    rest = {"draws": fixed_draws, "rng": generator(0), **options}
    return PrivateGradient(SMALL.loss, images, labels, mechanism=mechanism, batch=batch, noise=noise, **rest)


@pytest.mark.parametrize("multiplicity", [1, 4])
def test_without_noise_and_clip_it_is_the_gradient_of_the_mean_loss(multiplicity: int) -> None:
    theta, (images, labels) = SMALL.init(generator(1)), pictures(SMALL, 6)
    draws = {k: torch.cat([v] * 6) for k, v in fixed_draws(multiplicity, generator(0)).items()}
    batch = images.repeat_interleave(multiplicity, 0), labels.repeat_interleave(multiplicity, 0)
    leaves = {k: v.clone().requires_grad_() for k, v in sorted(theta.items())}
    mean = SMALL.loss(leaves, batch, draws, {})
    expected = dict(zip(leaves, torch.autograd.grad(mean, list(leaves.values())), strict=True))
    gradients, loss = small(mechanism=replace(EXACT, multiplicity=multiplicity))(theta)
    torch.testing.assert_close(gradients, expected, rtol=1e-4, atol=2e-6)
    assert float(loss) == pytest.approx(mean.item(), rel=1e-5)


def test_pieces_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    params, drawn = SMALL.init(generator(1)), {"draws": SMALL.draws}
    clipping = Mechanism(noise_multiplier=0.0, max_grad_norm=0.5, multiplicity=2)
    whole, _ = small(mechanism=clipping, **drawn)(params)
    for floats, examples in ((1, 256), (2**25, 1), (2**25, 5)):
        monkeypatch.setattr(private_gradient, "FLOATS", floats)
        monkeypatch.setattr(private_gradient, "EXAMPLES", examples)
        pieces, _ = small(mechanism=clipping, **drawn)(params)
        torch.testing.assert_close(pieces, whole, rtol=1e-5, atol=1e-7)


def test_the_bits_depend_on_secret_path_and_step_alone() -> None:
    params = SMALL.init(generator(1))
    noisy = Mechanism(noise_multiplier=1.0, max_grad_norm=0.5)

    def steps(theta: Params, **options: Any) -> list[Params]:
        gradient = small(batch=3, mechanism=noisy, draws=SMALL.draws, **options)
        return [gradient(theta)[0] for _ in range(2)]

    first, again = steps(params), steps(dict(reversed(params.items())))  # a store may give them in another order
    assert all(torch.equal(a[k], b[k]) for a, b in zip(first, again, strict=True) for k in params)
    torch.manual_seed(1)
    np.random.seed(1)
    assert torch.equal(steps(params)[1]["enter.weight"], first[1]["enter.weight"])
    other = steps(params, noise=NoiseStream(b"another", STREAM.path))
    assert not torch.equal(other[0]["enter.weight"], first[0]["enter.weight"])


def test_nothing_is_changed_in_place_and_no_graph_is_left() -> None:
    theta = {k: v.requires_grad_() for k, v in SMALL.init(generator(1)).items()}
    before = {k: v.detach().clone() for k, v in theta.items()}
    gradients, loss = small()(theta)
    assert all(torch.equal(v, before[k]) and v.grad is None for k, v in theta.items())
    assert not loss.requires_grad and not any(v.requires_grad for v in gradients.values())


# --- the clip ----------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 2**31),
    size=st.integers(1, 3000),
    magnitude=st.floats(-15, 30),
    clip=st.floats(-3, 3).map(lambda e: 10.0**e),
    flat=st.booleans(),
)
def test_no_clipped_gradient_exceeds_the_clip_norm(
    seed: int, size: int, magnitude: float, clip: float, flat: bool
) -> None:
    rng = torch.Generator().manual_seed(seed)
    shapes = {"matrix": (1, size, 2), "vector": (1, size), "scalar": (1,)}
    kind = torch.ones if flat else lambda *s: torch.randn(*s, generator=rng)
    gradients = {k: kind(*shape) * 10.0**magnitude for k, shape in shapes.items()}
    sent = sum_clipped(gradients, clip)
    before, after = length(gradients), length(sent)
    assert after <= clip
    assert after == pytest.approx(min(before, clip), rel=2e-5)
    factor = after / before
    for k, v in gradients.items():
        torch.testing.assert_close(sent[k], v[0].double() * factor, rtol=2e-5, atol=0)


def test_a_million_equal_entries_are_clipped_too() -> None:
    gradients = {"w": torch.full((1, 1_000_000), 0.1)}
    assert float(torch.linalg.vector_norm(gradients["w"], dim=1)) != pytest.approx(100.0, rel=1e-4)  # why not this
    assert 1.0 - 2e-5 < length(sum_clipped(gradients, 1.0)) <= 1.0


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_gradient_that_clipping_does_not_bound_counts_as_none(bad: float) -> None:
    gradients = {"a": torch.tensor([[bad, 1.0], [0.1, 0.2]]), "b": torch.tensor([5.0, 0.3])}
    kept = {"a": torch.tensor([0.1, 0.2]).double(), "b": torch.tensor(0.3).double()}
    torch.testing.assert_close(sum_clipped(gradients, 1.0), kept)
    alone = sum_clipped({"a": torch.tensor([[bad]])}, 1.0)
    assert alone["a"].tolist() == [0.0]


@pytest.mark.parametrize("built", [True, False], ids=["built", "factors"])
def test_a_sum_is_rounded_by_less_than_the_clip_leaves_free(built: bool) -> None:
    """Each record is clipped and added in long double beside it; a float32 sum fails."""
    rng, clip = generator(0), 1.5
    left, right = torch.randn(300, 3, generator=rng), torch.randn(300, 4, generator=rng).abs()
    gradients = left[:, :, None] * right[:, None] if built else Outer(left, right)
    sent = sum_clipped({"w": gradients}, clip)["w"]
    if isinstance(gradients, Outer):
        exact = left.numpy().astype(np.longdouble)[:, :, None] * right.numpy()[:, None]
    else:
        exact = gradients.numpy().astype(np.longdouble)
    factors = np.minimum(1, clip * (1 - ROUNDING) / np.sqrt(np.square(exact).sum((1, 2))))
    assert float(np.abs(sent.numpy() - (factors[:, None, None] * exact).sum(0)).max()) < 1e-9 * clip


def test_pieces_are_added_without_rounding_that_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private_gradient, "EXAMPLES", 1)
    equal = torch.full((300, 1, 1, 1), 7.0), torch.zeros(300, 1, dtype=torch.int64)
    total, _ = make(data=equal, n=300)._clipped_sum({"w": torch.zeros(1)}, list(range(300)))
    assert float(total["w"]) == pytest.approx(300 * CLIP * (1 - ROUNDING), rel=1e-9)


def test_a_gradient_at_the_end_of_float32_is_clipped() -> None:
    gradients = {"w": torch.full((1, 100_000), 3e38), "b": torch.tensor([3e38])}
    assert 0 < length(sum_clipped(gradients, 1e-3)) <= 1e-3


# --- the sample --------------------------------------------------------------------------------------------


def test_an_empty_batch_is_noise_alone() -> None:
    gradient = make(n=3, batch=1, noise_multiplier=SIGMA)
    quiet = make(n=3, batch=1)
    sums = [(pulls(quiet, width=5000, batch=1), pulls(gradient, width=5000, batch=1)) for _ in range(10)]
    empty = [noisy for exact, noisy in sums if not exact.any()]
    assert empty and len(empty) < 10
    assert all(kstest(noisy.double() / (SIGMA * CLIP), "norm").pvalue > IMPROBABLE for noisy in empty)
    assert gradient.event.steps == 10  # it cost what the others cost


def test_without_any_one_record_the_sum_moves_by_the_clip_norm_at_most() -> None:
    assert 0.99 * CLIP < max(removals()) <= CLIP
    assert max(removals(ByPlace)) > 1.5 * CLIP


def test_equal_records_have_draws_of_their_own() -> None:
    """Else a table of a few values would be trained on a few draws a step."""
    equal = torch.ones(20, 1, 1, 1), torch.zeros(20, 1, dtype=torch.int64)
    for build, draws in ((PrivateGradient, 20), (ByRecordAlone, 1)):
        gradient = make(build, data=equal, batch=20, draws=strengths(), max_grad_norm=100.0)
        keys = gradient._keys(list(range(20)))
        assert len({float(v) for v in gradient._draw(keys)["strength"]}) == draws


def test_whoever_knows_the_seed_tells_no_more_than_the_ledger_allows() -> None:
    """Was record 0 there? All records and all draws are known, so the best score is along what it changes."""
    n, repeats = 16, 100
    images, labels = records(n, 4 * CLIP)
    with_it, without = (images, labels), (images[1:], labels[1:])

    def seen(data: tuple[Tensor, Tensor], trial: str, sigma: float) -> Tensor:
        options = {"draws": either_way, "stream": stream(trial.encode()), "noise_multiplier": sigma}
        gradient = make(data=data, batch=len(data[0]), **options)
        return pulls(gradient, width=n, batch=gradient.batch).double()

    changed = seen(with_it, "", 0.0) - seen(without, "", 0.0)
    scores = [torch.stack([seen(data, f"{kind} {i}", 1.0) @ changed for i in range(repeats)])
              for kind, data in (("in", with_it), ("out", without))]  # fmt: skip
    auc = float((scores[0][:, None] > scores[1]).double().mean())
    ceiling = gaussian.gaussian_auc_ceiling(accountants.gaussian_dp_mu([event_of(1.0, "zero_out", rate=1.0, steps=1)]))
    deviation = math.sqrt(ceiling * (1 - ceiling) / repeats)  # at most, of an AUC at the ceiling
    assert ceiling - 4.5 * deviation < auc < ceiling + 4.5 * deviation  # by chance in 1e-5 at most
    assert float(changed.norm()) == pytest.approx(CLIP, rel=1e-4)  # the record changes as much as one may


def test_the_loss_is_that_of_those_drawn_over_the_expected_number() -> None:
    gradient = make(n=100, batch=20, draws=strengths(1.0))
    total, loss = gradient({"w": torch.ones(100)})
    drawn = float((total["w"] > 0).sum())
    assert drawn and float(loss) == pytest.approx(drawn / 20)


@pytest.mark.parametrize(("batch", "n"), [(13, 12), (0, 12), (1, 0)])
def test_a_batch_that_cannot_be_drawn_is_refused(batch: int, n: int) -> None:
    with pytest.raises(ValueError, match=rf"^batch must be in 1\.\.{n} "):
        make(n=n, batch=batch)


# --- what it costs -----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("real_gaussians")
@pytest.mark.parametrize(("sigma", "batch", "steps"), [(1.0, 20, 30), (0.6, 1, 5), (4.0, RECORDS, 3)])
def test_the_event_is_of_the_steps_taken_and_costs_what_opacus_says(sigma: float, batch: int, steps: int) -> None:
    gradient = make(noise_multiplier=sigma, batch=batch)
    for _ in range(steps):
        pulls(gradient, batch=batch)
    assert gradient.event == Gaussian(sigma, "example", "zero_out", "local", batch / RECORDS, steps)
    theirs = RDPAccountant()
    theirs.history = [(sigma, batch / RECORDS, steps)]
    ours = accountants.rdp([gradient.event], 1e-5)
    # one conversion from Renyi divergences; only the orders differ: ours are more, and all of them without sampling
    assert ours <= theirs.get_epsilon(1e-5) * (1 + 1e-12)
    assert ours == pytest.approx(theirs.get_epsilon(1e-5, alphas=renyi.ORDERS), rel=1e-3)


SETTINGS = [(1.0, 0.01, 1000), (2.0, 1.0, 10), (200.0, 0.1, 9)]


@pytest.mark.parametrize(("epsilon", "rate", "steps"), SETTINGS)
@pytest.mark.parametrize(("relation", "accountant"), [("zero_out", "rdp"), ("zero_out", "pld"), ("replace_one", "pld")])
def test_the_noise_multiplier_is_the_smallest_within_the_budget(
    epsilon: float, rate: float, steps: int, relation: Any, accountant: str
) -> None:
    budget = StepBudget(epsilon=epsilon, delta=1e-5, relation=relation, accountant=accountant)
    sigma = noise_multiplier_for(budget, sampling_rate=rate, steps=steps)
    enough, less = (budget.spent(s, rate=rate, steps=steps) for s in (sigma, sigma * (1 - 2e-4)))
    assert enough <= epsilon < less


@pytest.mark.parametrize(("epsilon", "rate", "steps"), SETTINGS)
def test_by_renyi_it_is_opacus_and_by_losses_less(epsilon: float, rate: float, steps: int) -> None:
    renyi, tight = (
        noise_multiplier_for(StepBudget(epsilon=epsilon, delta=1e-5, accountant=by), sampling_rate=rate, steps=steps)
        for by in ("rdp", "pld")
    )
    budget = {"target_epsilon": epsilon, "target_delta": 1e-5, "sample_rate": rate, "steps": steps}
    opacus = get_noise_multiplier(**budget, accountant="rdp", epsilon_tolerance=1e-3 * epsilon)  # type: ignore[arg-type]
    assert renyi == pytest.approx(opacus, rel=2e-3)
    assert 0.85 * renyi < tight < renyi


def test_replacing_moves_a_sum_twice_as_far() -> None:
    replaced = event_of(3.0, "replace_one", rate=0.1, steps=4)
    assert replaced == Gaussian(1.5, "example", "replace_one", "local", 0.1, 4)
    assert event_of(3.0, "zero_out", rate=0.1, steps=4) == Gaussian(3.0, "example", "zero_out", "local", 0.1, 4)
