"""Releases: the only values a client may upload, each with the privacy event that accounts for it.

Only these functions make a `Release`, so no value reaches the server without an event:

    nothing()                       the client took part and sent no value
    disclose(value, ...)            sent as it is: epsilon is infinite
    gaussian_records(x, ...)        each record clipped, scaled and noised: one Gaussian event per record
    gaussian_update(value, ...)     all of it clipped as one vector, and noised: one Gaussian event of the client
    gaussian_rows(x, ...)           a fixed number of vectors, each clipped and noised: one Gaussian event of the client
    gaussian_sum(value, ...)        a sum over records of known sensitivity, noised: one Gaussian event of each record
    already_private(value, event)   the caller vouches for `event` (DP-SGD: the noise is inside the training)

Events are data (after Google's dp_accounting); `accountants` interprets them and `ledger` collects them.
"""

import math
import operator
from collections.abc import Sequence, Set
from dataclasses import InitVar, asdict, dataclass
from types import MappingProxyType
from typing import Any, Literal

import torch
from torch import Tensor

from raydiff import tree
from raydiff.lookup import check_one_of, check_value
from raydiff.privacy import grid
from raydiff.seeding import NoiseStream
from raydiff.tree import Flat, Params, Tensors, clip_records

Unit = Literal["example", "client"]
Relation = Literal["replace_one", "zero_out", "add_remove"]
"""Neighbouring relation. zero_out: a unit counts, or nothing does in its place, so that their number may be public
(Kairouz et al. 2021, arXiv 2103.00039, Definition 1.1). add_remove: one more or fewer, so that it is not."""
Trust = Literal["local", "central", "aggregate"]
"""Trust model: who adds the noise. local: clients, against the server too. central: the server, against all others.
aggregate: clients a part each, and the server sees only sums (secure aggregation)."""


@dataclass(frozen=True)
class Nothing:
    """No value was sent."""


@dataclass(frozen=True)
class NonPrivate:
    """A value was sent without protection."""

    what: str  # what was sent, for the ledger
    trust: Trust = "local"


@dataclass(frozen=True)
class Gaussian:
    """A Gaussian mechanism, `steps` times in sequence.

    `std_over_sensitivity` is the noise's standard deviation over the L2 sensitivity under `relation`.
    `sampling_rate` < 1 means Poisson sampling of the unit in each step; under replace_one a unit must then add a vector
    of norm at most half the sensitivity (`pld`). `declared` names fields of the message that are public by declaration.
    """

    std_over_sensitivity: float
    unit: Unit
    relation: Relation
    trust: Trust
    sampling_rate: float = 1.0
    steps: int = 1
    declared: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_value("std_over_sensitivity", self.std_over_sensitivity, self.std_over_sensitivity >= 0, ">= 0")
        check_value("sampling_rate", self.sampling_rate, 0 < self.sampling_rate <= 1, "in (0, 1]")
        check_value("steps", self.steps, self.steps >= 1, "at least 1")


@dataclass(frozen=True)
class DiscreteGaussian(Gaussian):
    """A sum of discrete Gaussians: its Renyi divergence of every order a is at most a / (2 std_over_sensitivity^2)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_value("sampling_rate", self.sampling_rate, self.sampling_rate == 1, "1 of a DiscreteGaussian")


Event = Nothing | NonPrivate | Gaussian
KINDS: dict[str, type] = {c.__name__: c for c in (Nothing, NonPrivate, Gaussian, DiscreteGaussian)}


def event_to_dict(event: Event) -> dict[str, Any]:
    """Return a JSON-ready form; `event_from_dict` is its inverse."""
    return {"kind": type(event).__name__, **asdict(event)}


def event_from_dict(data: dict[str, Any]) -> Event:
    """Return the event that `event_to_dict` wrote. Raises ValueError for an unknown class."""
    check_one_of("a privacy event's kind", data.get("kind"), KINDS)
    fields: dict[str, Any] = {k: tuple(v) if k == "declared" else v for k, v in data.items() if k != "kind"}
    if "std_over_sensitivity" in fields:
        fields["std_over_sensitivity"] = float(fields["std_over_sensitivity"])  # infinity is written as a word
    event: Event = KINDS[data["kind"]](**fields)
    return event


def definition(unit: str, relation: str, trust: str) -> str:
    """Return the text of a privacy definition: `per example, replace-one, local trust`."""
    return f"per {unit}, {relation.replace('_', '-')}, {trust} trust"


UNACCOUNTED = NonPrivate("what is no release of local trust")  # of a client that sent no valid release
ROUNDING = 1e-5
"""Fraction of the clip norm left free for rounding: norms and factors are exact to 1e-9, and a float32 entry is rounded
twice, by 6e-8 each time."""

_KEY = object()


@dataclass(frozen=True, eq=False)
class Release:
    """A value that has left its client, with its event. Made by this module's functions only.

    Holds copies in a read-only mapping: a view's pickle carries the whole storage behind it (other records too), and a
    tensor that the client also holds could change after it was accounted for.
    """

    value: Tensors
    event: Event
    _key: InitVar[object] = None  # no field, so that `dataclasses.replace` does not copy it

    def __post_init__(self, _key: object) -> None:
        if _key is not _KEY:
            raise TypeError("a Release is made by the functions of raydiff.privacy.release, and by nothing else")
        if self.value and isinstance(self.event, Nothing):
            raise ValueError(f"a release of no event must be empty, got {', '.join(self.value)}")
        if isinstance(self.value, Flat):  # read-only already, and owns all of its memory
            return
        value = {k: _whole(v.detach().cpu()) for k, v in self.value.items()}
        object.__setattr__(self, "value", MappingProxyType(value))

    def __reduce__(self) -> tuple[Any, ...]:
        value = self.value if isinstance(self.value, Flat) else dict(self.value)
        return (already_private, (value, self.event))  # the key does not travel between processes

    @property
    def nbytes(self) -> int:
        """Bytes of the value on the wire."""
        return tree.nbytes(self.value)


def _whole(v: Tensor) -> Tensor:
    return v if v.is_contiguous() and v.untyped_storage().nbytes() == v.nbytes else v.clone()


def _copied(value: Tensors) -> Params:
    return {k: v.detach().to("cpu", copy=True) for k, v in value.items()}


def nothing() -> Release:
    """Return a release without value and privacy cost."""
    return Release({}, Nothing(), _KEY)


def disclose(value: Tensors, what: str, *, trust: Trust = "local", copy: bool = True) -> Release:
    """Return `value` as it is: epsilon is infinite. Without `copy` nothing else may write to its tensors."""
    return Release(_copied(value) if copy else value, NonPrivate(what, trust), _KEY)


def already_private(value: Tensors, event: Event, *, copy: bool = True) -> Release:
    """Return a value whose noise was added in its computation, or that was read from the store. `copy` as above."""
    return Release(_copied(value) if copy else value, event, _KEY)


def accountable(sent: object) -> Release:
    """Return `sent` where it is a release that a ledger takes from a client, else an empty one of `UNACCOUNTED`."""
    event = sent.event if isinstance(sent, Release) else None
    of_a_client = isinstance(event, Nothing) or (isinstance(event, NonPrivate | Gaussian) and event.trust != "central")
    return sent if isinstance(sent, Release) and of_a_client else Release({}, UNACCOUNTED, _KEY)


def gaussian_records(
    x: Tensor,
    *,
    clip: float,
    scale: float,
    std: float,
    noise: NoiseStream,
    records: Sequence[int],
    public: Params,
    center: Tensor | None = None,
) -> Release:
    """Release `scale * CLIP(x_i, clip) + std * z_i` for each record, once (PFDM's upload, Algorithm 1).

    Replacing one record moves its row by 2 * clip * scale at most; each fills one row, so records compose in parallel.
    Raises ValueError for repeated or non-finite records, and for a bad clip, scale or std.

    Args:
        x: (N, ...) private part.
        records: each row's number in the client's data, which keys its noise.
        public: fields of the message that are public by declaration, e.g. labels.
        center: (...) public; CLIP(x_i - center, clip) + center then takes CLIP's place, with the same bound.
    """
    numbers = [operator.index(r) for r in records]  # an int, numpy's or torch's, means the same record
    if len(set(numbers)) != len(numbers) or len(numbers) != len(x):
        raise ValueError("each record may be released once only, under its own number")
    _check_noise(std, clip=clip, scale=scale)
    _check_names(public, {"x"})
    x = _finite(x if center is None else x - center, "records")
    signal = scale * clip_records(x, clip * (1 - ROUNDING))
    noisy = grid.add_noise_on_grid(signal, noise.normal(numbers, x.shape[1:]), std=std)
    if center is not None:  # added last, on the same grid: its rounding is no part of the signal
        noisy += grid.add_noise_on_grid(scale * center, torch.zeros(center.shape, dtype=torch.float64), std=std)
    event = Gaussian(std / (2 * clip * scale), "example", "replace_one", "local", declared=tuple(public))
    return Release({"x": noisy.float(), **_copied(public)}, event, _KEY)


def gaussian_update(value: Tensors, *, clip: float, std: float, noise: NoiseStream) -> Release:
    """Release `value * min(1, clip / ||value||) + std * z`, the norm over all leaves together (DP-FedAvg).

    Replacing all of the client's records moves it by 2 * clip at most. Their number is public by declaration. Raises
    ValueError for non-finite values, and for a bad clip or std.
    """
    _check_noise(std, clip=clip)
    clipped = clip_update(value, clip)
    noisy = {k: v.to(clipped[k].dtype) for k, v in add_noise_to_leaves(clipped, std=std, noise=noise).items()}
    event = Gaussian(std / (2 * clip), "client", "replace_one", "local", declared=("examples",))
    return Release(noisy, event, _KEY)


def gaussian_rows(x: Tensor, *, clip: float, std: float, noise: NoiseStream, public: Params) -> Release:
    """Release `CLIP(x_i, clip) + std * z_i` for each of the client's m vectors x (m, width) (FedDistr's upload).

    Replacing all of the client's records moves all vectors together by 2 * clip * sqrt(m) at most. m is public, as are
    the fields in `public`, one entry per vector. Raises ValueError for no or non-finite vectors, a bad clip or std.
    """
    _check_noise(std, clip=clip)
    _check_names(public, {"x"})
    if not len(x):
        raise ValueError("there must be one vector at least")
    x = _finite(x, "vectors")
    signal = clip_records(x, clip * (1 - ROUNDING))
    noisy = grid.add_noise_on_grid(signal, noise.normal(range(len(x)), x.shape[1:]), std=std).float()
    declared = (*public, "examples")
    event = Gaussian(std / (2 * clip * math.sqrt(len(x))), "client", "replace_one", "local", declared=declared)
    return Release({"x": noisy, **_copied(public)}, event, _KEY)


def gaussian_sum(value: Tensors, *, sensitivity: float, event: Gaussian, noise: NoiseStream, public: Params) -> Release:
    """Release a sum over a client's records (the sketch's and DP-MERF's uploads), with the noise that `event` states.

    The caller vouches that between neighbours of the event's relation all leaves together differ by `sensitivity` at
    most (L2). One record's event is that of the whole message. `public` leaves are sent as they are, and follow from
    what the event declares. Raises ValueError for a non-finite sum and a bad sensitivity or noise.
    """
    std = event.std_over_sensitivity * sensitivity
    _check_noise(std, sensitivity=sensitivity)
    _check_names(public, value.keys())
    if not tree.is_finite(value):
        raise ValueError("the sum must be finite: no sensitivity bounds an infinite or undefined record")
    noisy = {k: v.float() for k, v in add_noise_to_leaves(value, std=std, noise=noise).items()}
    return Release({**noisy, **_copied(public)}, event, _KEY)


def clip_update(value: Tensors, clip: float) -> Params:
    """Return `value * min(1, clip / ||value||)`, every leaf in its dtype. Raises ValueError for non-finite values."""
    norm = tree.norm(value)
    if not math.isfinite(norm):
        raise ValueError("the update must be finite: clipping does not bound an infinite or undefined one")
    length = torch.tensor(norm, dtype=torch.float64)
    return {k: _shrunk(v, length, clip * (1 - ROUNDING)) for k, v in value.items()}


def add_noise_to_leaves(value: Tensors, *, std: float, noise: NoiseStream) -> Params:
    """Return `value + std * z` on the grid, in float64, with independent noise for each leaf."""
    draws = {k: noise.normal([i], value[k].shape)[0] for i, k in enumerate(sorted(value))}
    return {k: grid.add_noise_on_grid(v, draws[k].to(v.device), std=std) for k, v in value.items()}


def _shrunk(v: Tensor, norm: Tensor, clip: float) -> Tensor:
    dtype = torch.result_type(v, 1.0)
    if torch.finfo(dtype).eps < ROUNDING:
        return v * tree.clip_factors(norm, clip, dtype)
    # Half precision is rounded toward 0.
    return tree.toward_zero(v.double() * tree.clip_factors(norm, clip, norm.dtype), dtype)


def _finite(x: Tensor, what: str) -> Tensor:
    x = x.float()
    if not x.isfinite().all():
        raise ValueError(f"the {what} must be finite in float32: clipping does not bound an infinite or undefined one")
    return x


def _check_noise(std: float, **positive: float) -> None:
    if not (all(0 < value < math.inf for value in positive.values()) and 0 <= std < math.inf):
        got = ", ".join(f"{value}" for value in (*positive.values(), std))
        raise ValueError(f"{' and '.join(positive)} must be > 0 and std >= 0, both finite, got {got}")


def _check_names(public: Params, private: Set[str]) -> None:
    if shared := public.keys() & private:
        raise ValueError(f"public must not have a field {min(shared)!r}: it would take the place of a noised one")
