"""What leaves a client: the noise, the clip, the event, and that nothing else can leave.

`faults` inspects a mechanism with the signature of `gaussian_records`, `faults_of_rows` one with that of
`gaussian_rows`. They are shown to pass the real ones and to catch broken ones.
"""

import copy
import json
import math
import pickle
from collections.abc import Callable, Sequence
from dataclasses import FrozenInstanceError, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings, strategies as st
from reference.gaussians import hockey_stick, length
from scipy.stats import kstest, norm
from torch import Tensor

from raydiff import tree
from raydiff.privacy import accountants
from raydiff.privacy.ledger import Ledger
from raydiff.privacy.release import (
    ROUNDING,
    DiscreteGaussian,
    Event,
    Gaussian,
    NonPrivate,
    Nothing,
    Release,
    already_private,
    disclose,
    event_from_dict,
    event_to_dict,
    gaussian_records,
    gaussian_rows,
    gaussian_update,
    nothing,
)
from raydiff.seeding import NoiseStream
from raydiff.tree import Params

pytestmark = pytest.mark.usefixtures("fine_grid")

Mechanism = Callable[..., Release]

CLIP, SCALE, STD = 1.5, 0.4, 0.7
RECORDS, SHAPE = 256, (1, 16, 16)
WIDTH = 500  # of vectors
IMPROBABLE = 1e-9  # chance of a false alarm of one comparison


def stream(secret: bytes = b"secret", digest: str = "digest", client: int = 0, round: int = 0) -> NoiseStream:
    return NoiseStream(secret, (digest, client, round))


# --- the checker of records --------------------------------------------------------------------------------


def faults(mechanism: Mechanism) -> list[str]:
    """What is wrong with a mechanism of `gaussian_records`' signature; empty if nothing is."""
    x = torch.randn(RECORDS, *SHAPE, generator=torch.Generator().manual_seed(0))
    x *= 0.5 * CLIP / x.flatten(1).norm(dim=1).view(-1, 1, 1, 1)  # within the clip norm
    sent = _send(mechanism, x)
    z = _noise(sent, x)
    checks = {
        "noise scale": kstest(z.flatten(), "norm").pvalue > IMPROBABLE,
        "correlated records": _largest_correlation(z) < _threshold(z.shape[1]),
        "correlated pixels": _largest_correlation(z.T) < _threshold(z.shape[0]),
        "clip": _clips(mechanism),
        "second draw": torch.equal(sent.value["x"], _send(mechanism, x).value["x"]),
        "keyed by position": _keyed_by_record(mechanism, x, sent),
        "event": sent.event
        == Gaussian(STD / (2 * CLIP * SCALE), "example", "replace_one", "local", declared=("labels",)),
        "repeated record": _refuses_repeats(mechanism, x),
    }
    for change in ({"secret": b"another"}, {"digest": "another"}, {"client": 1}, {"round": 1}):
        other = _noise(_send(mechanism, x, noise=stream(**change)), x)  # type: ignore[arg-type]
        pair = np.stack([z.flatten(), other.flatten()])
        checks[f"same noise for another {next(iter(change))}"] = _largest_correlation(pair) < _threshold(z.size)
    return [name for name, passed in checks.items() if not passed]


def _send(mechanism: Mechanism, x: Tensor, *, records: Any = None, noise: NoiseStream | None = None) -> Release:
    records, public = range(len(x)) if records is None else records, {"labels": torch.zeros(len(x), 1)}
    return mechanism(x, clip=CLIP, scale=SCALE, std=STD, noise=noise or stream(), records=records, public=public)


def _noise(release: Release, x: Tensor) -> np.ndarray:
    """The standard normal draws behind a release of records within the clip norm, (records, pixels)."""
    return ((release.value["x"] - SCALE * x) / STD).flatten(1).double().numpy()


def _largest_correlation(rows: np.ndarray) -> float:
    """The largest |cosine| between two rows; draws have mean 0, which is known and not estimated."""
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return float(np.abs(np.triu(unit @ unit.T, 1)).max())


def _threshold(count: int) -> float:
    """|correlation| of two independent rows of `count` normals exceeds this with probability about 1e-9."""
    return math.tanh(6.1 / math.sqrt(count - 3))  # Fisher's transformation


def _clips(mechanism: Mechanism) -> bool:
    """Replacing any record, however large, moves its row by at most 2 * clip * scale, and no other row."""
    giant = torch.zeros(3, *SHAPE)
    giant[0], giant[1], giant[2, 0, 0, 0] = 1e6, -1e6, 1.01 * CLIP
    moved = (_send(mechanism, giant).value["x"] - _send(mechanism, torch.zeros_like(giant)).value["x"]).flatten(1)
    last_digits = 1e-6 * SHAPE[1] * SHAPE[2]  # of the sums with the noise
    return float(moved.norm(dim=1).max()) <= SCALE * CLIP + last_digits


def _keyed_by_record(mechanism: Mechanism, x: Tensor, sent: Release) -> bool:
    """A record's row does not depend on which others are sent, or where it stands."""
    some = [40, 3, 17]
    return torch.equal(_send(mechanism, x[some], records=some).value["x"], sent.value["x"][some])


def _refuses_repeats(mechanism: Mechanism, x: Tensor) -> bool:
    try:
        _send(mechanism, x[:2], records=[5, 5])
    except ValueError:
        return True
    return False


# --- the real mechanism, and broken ones -------------------------------------------------------------------


class Draws:
    """A noise stream that is broken in a named way."""

    def __init__(self, stream: NoiseStream, kind: str) -> None:
        self.stream, self.kind = stream, kind

    def normal(self, records: Sequence[int], shape: Sequence[int]) -> Tensor:
        s = self.stream
        if self.kind == "shared":
            return s.normal([0], shape).expand(len(records), *shape).clone()
        if self.kind == "mirrored":
            z = s.normal([r // 2 for r in records], shape)
            return z * torch.tensor([1.0 if r % 2 else -1.0 for r in records]).view(-1, *[1] * len(shape))
        if self.kind == "one per record":
            return s.normal(records, [1] * len(shape)).expand(len(records), *shape).clone()
        if self.kind == "fresh":
            return torch.randn(len(records), *shape)
        if self.kind == "by position":
            return s.normal(range(len(records)), shape)
        if self.kind == "uniform":
            return (s.normal(records, shape) / 2**0.5).erf() * 3**0.5  # same mean and variance
        blind = {"secret": NoiseStream(b"", s.path), "path": NoiseStream(s.secret, ())}
        return blind[self.kind].normal(records, shape)


def with_draws(kind: str) -> Mechanism:
    return lambda x, *, noise, **rest: gaussian_records(x, noise=Draws(noise, kind), **rest)


def under_the_event_of(maker: Mechanism, **change: Callable[[float], float]) -> Mechanism:
    """The maker with changed arguments, under the event of the unchanged ones."""

    def mechanism(x: Tensor, **arguments: Any) -> Release:
        changed = {k: change[k](v) if k in change else v for k, v in arguments.items()}
        return already_private(maker(x, **changed).value, maker(x, **arguments).event)

    return mechanism


def with_noise_times(factor: float, maker: Mechanism = gaussian_records) -> Mechanism:
    return under_the_event_of(maker, std=lambda std: factor * std)


without_clip = under_the_event_of(gaussian_records, clip=lambda clip: 1e12)


def clips_each_pixel(x: Tensor, *, clip: float, **rest: object) -> Release:
    return without_clip(x.clamp(-clip, clip), clip=clip, **rest)


def with_one_sided_sensitivity(x: Tensor, **rest: object) -> Release:
    sent = gaussian_records(x, **rest)
    return already_private(sent.value, replace(sent.event, std_over_sensitivity=2 * sent.event.std_over_sensitivity))


def merges_repeats(x: Tensor, *, records: Sequence[int], **rest: object) -> Release:
    if len(set(records)) < len(records):
        records = range(len(records))
    return gaussian_records(x, records=records, **rest)


def around(center: Tensor | None) -> Mechanism:
    """The mechanism around a center, in coordinates in which that is 0; None: around the records' own mean."""
    origin = torch.linspace(-3, 3, 256).view(SHAPE) if center is None else center

    def mechanism(x: Tensor, *, scale: float, **rest: object) -> Release:
        around = (x + origin).mean(0) if center is None else center
        sent = gaussian_records(x + origin, scale=scale, center=around, **rest)
        return already_private({**sent.value, "x": sent.value["x"] - scale * origin}, sent.event)

    return mechanism


def test_a_public_center_has_no_faults_and_a_private_one_is_found() -> None:
    assert faults(around(torch.linspace(-3, 3, 256).view(SHAPE))) == []
    assert "clip" in faults(around(None))


def test_the_real_mechanism_has_no_faults() -> None:
    assert faults(gaussian_records) == []
    assert faults(with_noise_times(1.0)) == []


@pytest.mark.parametrize("factor", [1 / 2, 0.9, 1.1])
def test_a_wrong_noise_scale_is_found_on_either_side(factor: float) -> None:
    assert faults(with_noise_times(factor)) == ["noise scale"]


PER_STREAM = [f"same noise for another {name}" for name in ("secret", "digest", "client", "round")]


@pytest.mark.parametrize(
    ("mechanism", "faulty"),
    [
        (without_clip, ["clip"]),
        (clips_each_pixel, ["clip"]),
        (with_one_sided_sensitivity, ["event"]),
        (merges_repeats, ["repeated record"]),
        (with_draws("mirrored"), ["correlated records", "correlated pixels"]),
        (with_draws("by position"), ["keyed by position"]),
        (with_draws("fresh"), ["clip", "second draw", "keyed by position"]),
        (with_draws("uniform"), ["noise scale"]),
        (with_draws("secret"), PER_STREAM[:1]),
        (with_draws("path"), PER_STREAM[1:]),
    ],
)
def test_a_broken_mechanism_is_found(mechanism: Mechanism, faulty: list[str]) -> None:
    assert faults(mechanism) == faulty


@pytest.mark.parametrize("kind, faulty", [("shared", "correlated records"), ("one per record", "correlated pixels")])
def test_reused_noise_is_found(kind: str, faulty: str) -> None:
    assert faulty in faults(with_draws(kind))


@pytest.mark.parametrize("pair", [(11966, 14939), (54718, 82951), (62018, 84642)])
def test_records_whose_keys_agree_in_32_bits_have_noise_of_their_own(pair: tuple[int, int]) -> None:
    """Equal noise for two records reveals their difference; torch's CPU generator keeps 32 bits of a seed."""
    z = stream().normal(pair, (16,))
    assert not torch.equal(z[0], z[1])


# --- the checker of vectors: all of a client's are one event -----------------------------------------------


def send_rows(mechanism: Mechanism, x: Tensor, *, std: float = STD, noise: NoiseStream | None = None) -> Release:
    labels = torch.arange(len(x))
    return mechanism(x, clip=CLIP, std=std, noise=noise or stream(), public={"label": labels, "count": labels + 1})


def extremes(m: int) -> tuple[Tensor, Tensor]:
    """x and -x, every row beyond the clip norm."""
    x = torch.randn(m, WIDTH, generator=torch.Generator().manual_seed(0))
    x *= 10 * CLIP / x.norm(dim=1, keepdim=True)
    return x, -x


def moved(mechanism: Mechanism, m: int) -> float:
    """How far apart the two extreme uploads of the same round are, whose noise is the same."""
    x, y = (send_rows(mechanism, rows).value["x"].double() for rows in extremes(m))
    return float((x - y).norm())


def faults_of_rows(mechanism: Mechanism) -> list[str]:
    """What is wrong with a mechanism of `gaussian_rows`' signature; empty if nothing is."""
    z = (send_rows(mechanism, torch.zeros(40, WIDTH)).value["x"] / STD).double().numpy()
    checks = {
        "noise scale": kstest(z.flatten(), "norm").pvalue > IMPROBABLE,
        "correlated rows": _largest_correlation(z) < _threshold(WIDTH),
    }
    for m in (1, 4, 9):
        wanted = 2 * CLIP * math.sqrt(m)
        checks[f"sensitivity of {m}"] = wanted * (1 - 2 * ROUNDING) < moved(mechanism, m) <= wanted
        event = send_rows(mechanism, extremes(m)[0]).event
        ratio = event.std_over_sensitivity if isinstance(event, Gaussian) else math.nan
        checks[f"event of {m}"] = ratio == pytest.approx(STD / wanted, rel=1e-12)
    return [name for name, passed in checks.items() if not passed]


def with_m_left_out(x: Tensor, **rest: Any) -> Release:
    sent = gaussian_rows(x, **rest)
    assert isinstance(sent.event, Gaussian)
    ratio = sent.event.std_over_sensitivity * math.sqrt(len(x))
    return already_private(sent.value, replace(sent.event, std_over_sensitivity=ratio))


def with_one_noise_for_all(x: Tensor, **rest: Any) -> Release:
    each = [gaussian_rows(row[None], **rest).value for row in x]
    value = {**each[0], "x": torch.cat([v["x"] for v in each])}
    return already_private(value, gaussian_rows(x, **rest).event)


def test_the_real_mechanism_of_rows_has_no_faults() -> None:
    assert faults_of_rows(gaussian_rows) == faults_of_rows(with_noise_times(1.0, gaussian_rows)) == []


@pytest.mark.parametrize(
    ("mechanism", "faulty"),
    [
        (with_noise_times(1 / 2, gaussian_rows), ["noise scale"]),
        (with_noise_times(1.1, gaussian_rows), ["noise scale"]),
        (
            under_the_event_of(gaussian_rows, clip=lambda clip: 1e12),
            ["sensitivity of 1", "sensitivity of 4", "sensitivity of 9"],
        ),
        (with_m_left_out, ["event of 4", "event of 9"]),
        (with_one_noise_for_all, ["noise scale", "correlated rows"]),
    ],
)
def test_a_broken_mechanism_of_rows_is_found(mechanism: Mechanism, faulty: list[str]) -> None:
    assert faults_of_rows(mechanism) == faulty


@settings(deadline=None)
@given(
    seed=st.integers(0, 2**31),
    rows=st.integers(1, 6),
    width=st.integers(1, 900),
    magnitude=st.floats(-30, 12),
    clip=st.floats(-3, 3).map(lambda e: 10.0**e),
)
def test_no_row_exceeds_the_clip_norm(seed: int, rows: int, width: int, magnitude: float, clip: float) -> None:
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, width, generator=rng) * 10.0 ** (magnitude + torch.randn(rows, 1, generator=rng))
    sent = gaussian_rows(x, clip=clip, std=0.0, noise=stream(), public={})
    before, after = x.double().norm(dim=1), sent.value["x"].double().norm(dim=1)
    assert bool((after <= clip).all())
    assert torch.allclose(after, before.clamp_max(clip), rtol=2e-5, atol=0)
    along = (x.double() / before[:, None] * sent.value["x"].double()).sum(1)
    assert torch.allclose(along, after, rtol=1e-5, atol=0)


def test_rows_and_rounds_and_clients_have_noise_of_their_own_and_a_repeated_round_has_the_same() -> None:
    zero = torch.zeros(2, 50)
    first = send_rows(gaussian_rows, zero).value["x"]
    assert torch.equal(first, send_rows(gaussian_rows, zero).value["x"])
    others = [send_rows(gaussian_rows, zero, noise=noise).value["x"] for noise in (stream(client=1), stream(round=1))]
    rows = torch.cat([first, *others])
    assert len(rows.unique(dim=0)) == 6
    assert float(torch.corrcoef(rows).triu(1).abs().max()) < 0.8  # by chance with probability 1e-12 or so


@pytest.mark.parametrize(("m", "epsilon"), [(1, 10.0), (4, 2.0), (24, 0.5)])
def test_the_budget_of_all_vectors_together_is_spent(m: int, epsilon: float) -> None:
    """Beside the accountant: delta of the two extreme uploads' likelihood ratio, integrated numerically."""
    delta = 1e-5
    std = 2 * CLIP * math.sqrt(m) / accountants.mu_for(epsilon, delta)
    sent = send_rows(gaussian_rows, extremes(m)[0], std=std)
    (guarantee,) = Ledger().with_uploads(0, [(0, sent.event, sent.nbytes)]).guarantees(delta, "exact")
    assert guarantee.epsilon == pytest.approx(epsilon, rel=1e-6)
    assert (guarantee.unit, guarantee.relation, guarantee.trust) == ("client", "replace_one", "local")
    x, cell = np.linspace(-20, 30, 400_001, retstep=True)
    actual = hockey_stick(norm.pdf(x - moved(gaussian_rows, m) / std), norm.pdf(x), epsilon, cell)
    assert actual == pytest.approx(delta, rel=2e-3)


# --- the clip ----------------------------------------------------------------------------------------------


SIDES = (8, 256, 1024)
MAGNITUDES = (1e-44, 1e-40, 1e-30, 1e-3, 0.37, 1e4, 1e30, 3e38)


def record(side: int, magnitude: float, kept: float) -> Tensor:
    """(1, 3, side, side): a share of the entries is `magnitude`, the sum of which in float32 is furthest off."""
    x = torch.zeros(3 * side * side)
    x[: max(1, int(kept * len(x)))] = magnitude
    return x.view(1, 3, side, side)


@settings(deadline=None, max_examples=20)
@given(
    side=st.sampled_from(SIDES[:2]),
    magnitude=st.sampled_from(MAGNITUDES),
    kept=st.sampled_from([0.0, 0.3, 1.0]),
    clip=st.sampled_from([1e-3, 1.0, 6.8, 1e3]),
    scale=st.sampled_from([1.0, 0.1, 0.062404]),
)
@example(side=256, magnitude=0.37, kept=1.0, clip=1.0, scale=1.0)
@example(side=1024, magnitude=0.37, kept=1.0, clip=1.0, scale=1.0)
@example(side=1024, magnitude=3e38, kept=1.0, clip=1e-3, scale=0.1)
def test_no_signal_exceeds_the_clip_norm_at_any_size(
    side: int, magnitude: float, kept: float, clip: float, scale: float
) -> None:
    x = record(side, magnitude, kept)
    sent = gaussian_records(x, clip=clip, scale=scale, std=0.0, noise=stream(), records=[0], public={})
    before, after = (float(v.double().norm()) for v in (x, sent.value["x"]))
    assert after <= scale * clip
    if before < 1e37 * clip:  # else the factor is below float32's normal range, and has fewer digits
        assert after == pytest.approx(scale * min(before, clip), rel=2e-5, abs=1e-41)


def test_a_center_is_added_after_the_noise() -> None:
    """Its rounding, of the size of the center's and not of the clip's, is then no part of the signal."""
    center = torch.full((1, 4, 4), 1e4)
    x = center + torch.randn(3, 1, 4, 4)
    options = {"clip": 1e-3, "scale": 0.3, "std": 1e-3, "noise": stream(), "records": range(3), "public": {}}
    apart = gaussian_records(x - center, **options).value["x"]
    assert torch.equal(gaussian_records(x, center=center, **options).value["x"], apart + 0.3 * center)


@pytest.mark.parametrize("magnitude", MAGNITUDES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("clip", [1e-3, 1.0])
def test_no_update_exceeds_the_clip_norm_in_any_type(magnitude: float, dtype: torch.dtype, clip: float) -> None:
    top = torch.finfo(dtype).max
    update = {"w": torch.full((300, 300), min(magnitude, top), dtype=dtype), "b": torch.full((7,), 1e-3)}
    sent = gaussian_update(update, clip=clip, std=0.0, noise=stream())
    assert {k: v.dtype for k, v in sent.value.items()} == {"w": dtype, "b": torch.float32}
    assert length(sent.value) <= clip


def test_an_update_without_a_finite_norm_is_refused() -> None:
    for value in (1e300, math.inf, math.nan):
        update = {"w": torch.full((2,), value, dtype=torch.float64)}
        with pytest.raises(ValueError, match="the update must be finite"):
            gaussian_update(update, clip=1.0, std=1.0, noise=stream())


COMMON = [
    *(({"clip": value}, "clip") for value in (0.0, -1.0, math.inf, math.nan)),
    *(({"std": value}, "std") for value in (-1.0, math.inf, math.nan)),
    *(
        ({"x": torch.tensor([[x], [1.0]]).double()}, "finite in float32")
        for x in (math.nan, math.inf, -math.inf, 1e300)
    ),
    ({"public": {"x": torch.ones(2)}}, "field 'x'"),
]
OF_RECORDS = [
    *(({"scale": value}, "scale") for value in (0.0, math.inf, math.nan)),
    *(({"records": numbers}, "once only") for numbers in ([0, 0], torch.tensor([0, 0]), [0])),
    ({"x": torch.tensor([[3e38], [1.0]]), "center": torch.tensor([-3e38])}, "finite in float32"),
]
CASES = [
    *((gaussian_records, {"scale": 1.0, "records": [0, 1], **change}, says) for change, says in COMMON + OF_RECORDS),
    *((gaussian_rows, change, says) for change, says in [*COMMON, ({"x": torch.ones(0, 4)}, "one vector")]),
]


@pytest.mark.parametrize(("maker", "change", "says"), CASES)
def test_bad_input_is_refused(maker: Callable[..., Release], change: dict[str, Any], says: str) -> None:
    arguments = {"x": torch.ones(2, 1), "clip": 1.0, "std": 1.0, "public": {}, "noise": stream(), **change}
    with pytest.raises(ValueError, match=says):
        maker(arguments.pop("x"), **arguments)


def test_a_record_s_noise_does_not_depend_on_the_type_of_its_number() -> None:
    x = torch.zeros(2, 5)
    kinds = [[3, 8], np.array([3, 8]), torch.tensor([3, 8])]
    sent = [_send(gaussian_records, x, records=records).value["x"] for records in kinds]
    assert torch.equal(sent[0], sent[1]) and torch.equal(sent[0], sent[2])


# --- a Release cannot be forged, and carries nothing else --------------------------------------------------


def test_a_release_cannot_be_built_directly() -> None:
    value = {"w": torch.ones(2)}
    with pytest.raises(TypeError, match="is made by the functions of"):
        Release(value, NonPrivate("weights"))
    with pytest.raises(TypeError):
        Release(value, NonPrivate("weights"), object())
    honest = disclose(value, "weights")
    for change in ({"event": Gaussian(1.0, "client", "replace_one", "local")}, {"value": value}):
        with pytest.raises(TypeError, match="is made by the functions of"):
            replace(honest, **change)
    with pytest.raises(ValueError, match="must be empty, got w"):
        already_private(value, Nothing())


def sent_by_each(x: Tensor, public: Params) -> dict[str, Release]:
    """A release of every maker, of the same tensors."""
    event, options = Gaussian(1.0, "client", "replace_one", "local"), {"clip": 1e3, "std": 0.0, "noise": stream()}
    return {
        "disclose": disclose({"x": x, **public}, "it"),
        "already_private": already_private({"x": x, **public}, event),
        "gaussian_records": gaussian_records(x, scale=1.0, records=range(len(x)), public=public, **options),
        "gaussian_update": gaussian_update({"x": x, **public}, **options),
        "gaussian_rows": gaussian_rows(x, public=public, **options),
    }


@pytest.mark.parametrize("maker", sent_by_each(torch.ones(1, 1), {}))
def test_a_release_does_not_change_with_what_it_was_made_of(maker: str) -> None:
    x, public = torch.randn(3, 5), {"labels": torch.arange(3.0)}
    private = {"x": x, **public}
    sent = sent_by_each(x, public)[maker]
    before = {k: v.clone() for k, v in private.items()}
    for tensor in private.values():
        tensor.fill_(7.0)
    public["more"] = x
    assert sent.value.keys() == before.keys()
    assert all(torch.equal(sent.value[k], v) for k, v in before.items())


@pytest.mark.parametrize("travel", [lambda r: r, lambda r: pickle.loads(pickle.dumps(r)), copy.copy, copy.deepcopy])
def test_nobody_puts_another_tensor_into_a_release(travel: Callable[[Release], Release]) -> None:
    x = torch.randn(3, 2, 4)
    for sent in (_send(gaussian_records, x), disclose({"w": x}, "weights", trust="central"), nothing()):
        arrived = travel(sent)
        assert (arrived.event, arrived.nbytes) == (sent.event, sent.nbytes)
        assert tree.digest(arrived.value) == tree.digest(sent.value)
        with pytest.raises(TypeError):
            arrived.value["w"] = torch.zeros(2)  # type: ignore[index]
        with pytest.raises(FrozenInstanceError):
            arrived.value = {}  # type: ignore[misc]


def test_a_pickled_release_does_not_carry_what_lies_behind_a_view() -> None:
    everyone = torch.arange(100_000.0)
    sent = disclose({"mine": everyone[:2], "same": everyone[:1].expand(3)}, "two numbers")
    assert len(pickle.dumps(sent)) < 2000
    assert sent.nbytes == 5 * 4


def test_a_release_holds_no_graph() -> None:
    weights = torch.ones(3, requires_grad=True)
    assert not disclose({"w": weights * 2}, "weights").value["w"].requires_grad


# --- events ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "event",
    [
        Nothing(),
        NonPrivate("weights", "central"),
        Gaussian(0.5, "client", "add_remove", "central", 0.1, 7, ("labels", "counts")),
        Gaussian(0.5, "example", "zero_out", "local", 0.1, 7),
        DiscreteGaussian(0.5, "client", "replace_one", "aggregate", declared=("examples",)),
    ],
)
def test_events_round_trip(event: Event) -> None:
    assert event_from_dict(json.loads(json.dumps(event_to_dict(event)))) == event


def test_an_unknown_event_is_refused() -> None:
    with pytest.raises(ValueError, match="Laplace"):
        event_from_dict({"kind": "Laplace"})


IMPOSSIBLE = {"std_over_sensitivity": (-1.0, math.nan), "sampling_rate": (0.0, 1.5), "steps": (0,)}


@pytest.mark.parametrize(("field", "value"), [(field, v) for field, values in IMPOSSIBLE.items() for v in values])
def test_an_impossible_gaussian_is_refused(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{field} must be"):
        replace(Gaussian(1.0, "example", "replace_one", "local"), **{field: value})
