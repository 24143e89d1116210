"""What leaves a client: the noise, the clip, the event, and that nothing else can leave.

`faults` inspects any mechanism with the signature of `gaussian_records`. It is shown to pass the real one and
to catch broken ones.
"""

from __future__ import annotations

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
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.stats import kstest
from torch import Tensor

from raydiff import tree
from raydiff.privacy.release import (
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
IMPROBABLE = 1e-9  # chance of a false alarm of one comparison


# --- the checker -------------------------------------------------------------------------------------------


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
        "event": _event_matches(sent.event),
        "repeated record": _refuses_repeats(mechanism, x),
    }
    others = {
        "secret": NoiseStream(b"another", ("digest", 0, 0)),
        "digest": NoiseStream(b"secret", ("another", 0, 0)),
        "client": NoiseStream(b"secret", ("digest", 1, 0)),
        "round": NoiseStream(b"secret", ("digest", 0, 1)),
    }
    for name, stream in others.items():
        other = _noise(_send(mechanism, x, stream=stream), x)
        pair = np.stack([z.flatten(), other.flatten()])
        checks[f"same noise for another {name}"] = _largest_correlation(pair) < _threshold(z.size)
    return [name for name, passed in checks.items() if not passed]


def _send(
    mechanism: Mechanism,
    x: Tensor,
    *,
    std: float = STD,
    records: Sequence[int] | None = None,
    stream: NoiseStream | None = None,
) -> Release:
    stream = stream or NoiseStream(b"secret", ("digest", 0, 0))
    records = range(len(x)) if records is None else records
    public = {"labels": torch.zeros(len(x), 1)}
    return mechanism(x, clip=CLIP, scale=SCALE, std=std, noise=stream, records=records, public=public)


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


def _event_matches(event: Event) -> bool:
    wanted = Gaussian(STD / (2 * CLIP * SCALE), "example", "replace_one", "local", declared=("labels",))
    return event == wanted


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


def with_noise_times(factor: float) -> Mechanism:
    def mechanism(x: Tensor, *, std: float, clip: float, scale: float, **rest: object) -> Release:
        sent = gaussian_records(x, std=std * factor, clip=clip, scale=scale, **rest)
        event = replace(sent.event, std_over_sensitivity=std / (2 * clip * scale))
        return already_private(sent.value, event)

    return mechanism


def without_clip(x: Tensor, *, clip: float, std: float, scale: float, **rest: object) -> Release:
    sent = gaussian_records(x, clip=1e12, std=std, scale=scale, **rest)
    return already_private(sent.value, replace(sent.event, std_over_sensitivity=std / (2 * clip * scale)))


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
        given = (x + origin).mean(0) if center is None else center
        sent = gaussian_records(x + origin, scale=scale, center=given, **rest)
        return already_private({**sent.value, "x": sent.value["x"] - scale * origin}, sent.event)

    return mechanism


def test_a_public_center_has_no_faults_and_a_private_one_is_found() -> None:
    assert faults(around(torch.linspace(-3, 3, 256).view(SHAPE))) == []
    assert "clip" in faults(around(None))


def test_the_real_mechanism_has_no_faults() -> None:
    assert faults(gaussian_records) == []
    assert faults(with_noise_times(1.0)) == []


@pytest.mark.parametrize("factor", [1 / 2, 2 / 3, 0.9, 1.1, 3 / 2])
def test_a_wrong_noise_scale_is_found_on_either_side(factor: float) -> None:
    assert faults(with_noise_times(factor)) == ["noise scale"]


PER_STREAM = [f"same noise for another {name}" for name in ("secret", "digest", "client", "round")]


@pytest.mark.parametrize(
    "mechanism, found",
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
def test_a_broken_mechanism_is_found(mechanism: Mechanism, found: list[str]) -> None:
    assert faults(mechanism) == found


@pytest.mark.parametrize("kind, found", [("shared", "correlated records"), ("one per record", "correlated pixels")])
def test_reused_noise_is_found(kind: str, found: str) -> None:
    assert found in faults(with_draws(kind))


@pytest.mark.parametrize("pair", [(11966, 14939), (54718, 82951), (62018, 84642)])
def test_records_whose_keys_agree_in_32_bits_have_noise_of_their_own(pair: tuple[int, int]) -> None:
    """Equal noise for two records reveals their difference; torch's CPU generator keeps 32 bits of a seed."""
    z = NoiseStream(b"secret", ("digest", 0, 0)).normal(pair, (16,))
    assert not torch.equal(z[0], z[1])


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
    x, stream = record(side, magnitude, kept), NoiseStream(b"s", ())
    sent = gaussian_records(x, clip=clip, scale=scale, std=0.0, noise=stream, records=[0], public={})
    before, after = (float(v.double().norm()) for v in (x, sent.value["x"]))
    assert after <= scale * clip
    if before < 1e37 * clip:  # else the factor is below float32's normal range, and has fewer digits
        assert after == pytest.approx(scale * min(before, clip), rel=2e-5, abs=1e-41)


def test_a_center_is_added_after_the_noise() -> None:
    """Its rounding, of the size of the center's and not of the clip's, is then no part of the signal."""
    center = torch.full((1, 4, 4), 1e4)
    x = center + torch.randn(3, 1, 4, 4)
    given = {"clip": 1e-3, "scale": 0.3, "std": 1e-3, "noise": NoiseStream(b"s", ()), "records": range(3), "public": {}}
    apart = gaussian_records(x - center, **given).value["x"]
    assert torch.equal(gaussian_records(x, center=center, **given).value["x"], apart + 0.3 * center)


@pytest.mark.parametrize("magnitude", MAGNITUDES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("clip", [1e-3, 1.0])
def test_no_update_exceeds_the_clip_norm_in_any_type(magnitude: float, dtype: torch.dtype, clip: float) -> None:
    top = torch.finfo(dtype).max
    update = {"w": torch.full((300, 300), min(magnitude, top), dtype=dtype), "b": torch.full((7,), 1e-3)}
    sent = gaussian_update(update, clip=clip, std=0.0, noise=NoiseStream(b"s", ()))
    assert {k: v.dtype for k, v in sent.value.items()} == {"w": dtype, "b": torch.float32}
    assert tree.norm(sent.value) <= clip


def test_an_update_without_a_finite_norm_is_refused() -> None:
    for value in (1e300, math.inf, math.nan):
        update = {"w": torch.full((2,), value, dtype=torch.float64)}
        with pytest.raises(ValueError, match="the update must be finite"):
            gaussian_update(update, clip=1.0, std=1.0, noise=NoiseStream(b"s", ()))


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
    arguments = {"x": torch.ones(2, 1), "clip": 1.0, "std": 1.0, "public": {}, "noise": NoiseStream(b"s", ()), **change}
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
    noise, event = NoiseStream(b"s", ()), Gaussian(1.0, "client", "replace_one", "local")
    given = {"clip": 1e3, "std": 0.0, "noise": noise}
    return {
        "disclose": disclose({"x": x, **public}, "it"),
        "already_private": already_private({"x": x, **public}, event),
        "gaussian_records": gaussian_records(x, scale=1.0, records=range(len(x)), public=public, **given),
        "gaussian_update": gaussian_update({"x": x, **public}, **given),
        "gaussian_rows": gaussian_rows(x, public=public, **given),
    }


@pytest.mark.parametrize("maker", sent_by_each(torch.ones(1, 1), {}))
def test_a_release_does_not_change_with_what_it_was_made_of(maker: str) -> None:
    x, public = torch.randn(3, 5), {"labels": torch.arange(3.0)}
    given = {"x": x, **public}
    sent = sent_by_each(x, public)[maker]
    before = {k: v.clone() for k, v in given.items()}
    for tensor in given.values():
        tensor.fill_(7.0)
    public["more"] = x
    assert sent.value.keys() == before.keys()
    assert all(torch.equal(sent.value[k], v) for k, v in before.items())


@pytest.mark.parametrize("travel", [lambda r: r, lambda r: pickle.loads(pickle.dumps(r)), copy.copy, copy.deepcopy])
def test_nobody_puts_another_tensor_into_a_release(travel: Callable[[Release], Release]) -> None:
    sent = travel(disclose({"w": torch.ones(2)}, "weights"))
    with pytest.raises(TypeError):
        sent.value["w"] = torch.zeros(2)  # type: ignore[index]
    with pytest.raises(TypeError):
        del sent.value["w"]  # type: ignore[attr-defined]
    with pytest.raises(FrozenInstanceError):
        sent.value = {}  # type: ignore[misc]


@pytest.mark.parametrize("travel", [lambda r: pickle.loads(pickle.dumps(r)), copy.copy, copy.deepcopy])
def test_a_release_survives_the_journey(travel: Callable[[Release], Release]) -> None:
    x = torch.randn(3, 2, 4)
    for sent in (_send(gaussian_records, x), disclose({"w": x}, "weights", trust="central"), nothing()):
        arrived = travel(sent)
        assert arrived.event == sent.event
        assert arrived.value.keys() == sent.value.keys()
        assert all(torch.equal(arrived.value[k], sent.value[k]) for k in sent.value)
        assert arrived.nbytes == sent.nbytes


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
