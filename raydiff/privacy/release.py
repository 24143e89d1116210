"""What may leave a client, and the privacy event that comes with it.

A `Release` is made by one of seven functions and by nothing else, so no value reaches the server without an
event:

    nothing()                       the client took part and sent no value
    disclose(value, ...)            sent as it is: epsilon is infinite
    gaussian_records(x, ...)        each record clipped, scaled and noised: one Gaussian event per record
    gaussian_update(value, ...)     all of it clipped as one vector, and noised: one Gaussian event of the client
    gaussian_rows(x, ...)           a fixed number of vectors, each clipped and noised: one Gaussian event of the client
    gaussian_sum(value, ...)        a sum over records of known sensitivity, noised: one Gaussian event of each record
    already_private(value, event)   the caller vouches for `event` (DP-SGD: the noise is inside the training)

Events are data (after Google's dp_accounting); `accountants` interprets them and `ledger` collects them.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import InitVar, asdict, dataclass
from types import MappingProxyType
from typing import Any, Literal

import torch
from torch import Tensor

from raydiff import tree
from raydiff.privacy import grid
from raydiff.seeding import NoiseStream
from raydiff.tree import Flat, Params, Tensors, clip_records

Unit = Literal["example", "client"]
Relation = Literal["replace_one", "zero_out", "add_remove"]
"""What neighbours differ in. zero_out: a unit counts, or nothing does in its place, so that their number may be public
(Kairouz et al. 2021, arXiv 2103.00039, Definition 1.1; Ponomareva et al. 2023, arXiv 2303.00654). add_remove:
one more or fewer, so that their number is not public."""
Trust = Literal["local", "central", "aggregate"]
"""Whom the noise holds against. local: the server too, for clients add it. central: all but the server, which adds it.
aggregate: the server too, which is taken to see only sums of clients' values, each with a share of the noise
(`aggregate`)."""


@dataclass(frozen=True)
class Nothing:
    """No value was sent."""


@dataclass(frozen=True)
class NonPrivate:
    """A value was sent without protection."""

    what: str
    """What was sent, in words, for the ledger."""
    trust: Trust = "local"


@dataclass(frozen=True)
class Gaussian:
    """A Gaussian mechanism, `steps` times in sequence.

    `std_over_sensitivity` is the noise's standard deviation over the L2 sensitivity under `relation`.
    `sampling_rate` < 1 means Poisson sampling of the unit in each step; under replace_one it then speaks of a sum to
    which a unit adds a vector of norm at most half the sensitivity (`pairs`). `declared` names fields of the
    message that are public by declaration.
    """

    std_over_sensitivity: float
    unit: Unit
    relation: Relation
    trust: Trust
    sampling_rate: float = 1.0
    steps: int = 1
    declared: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.std_over_sensitivity >= 0:
            raise ValueError(f"std_over_sensitivity must be >= 0, got {self.std_over_sensitivity}")
        if not 0 < self.sampling_rate <= 1:
            raise ValueError(f"sampling_rate must be in (0, 1], got {self.sampling_rate}")
        if self.steps < 1:
            raise ValueError(f"steps must be at least 1, got {self.steps}")


@dataclass(frozen=True)
class DiscreteGaussian(Gaussian):
    """A sum of discrete Gaussians, of which one theorem holds: its Renyi divergence of every order a is at most that of
    a Gaussian, a / (2 std_over_sensitivity^2). It has no sampling."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sampling_rate != 1:
            raise ValueError(f"sampling_rate must be 1 of a DiscreteGaussian, got {self.sampling_rate}")


Event = Nothing | NonPrivate | Gaussian


def event_to_dict(event: Event) -> dict[str, Any]:
    """A JSON-ready form; `event_from_dict` is its inverse."""
    return {"kind": type(event).__name__, **asdict(event)}


def event_from_dict(data: dict[str, Any]) -> Event:
    """Read back what `event_to_dict` wrote. Raises ValueError on an unknown kind."""
    kinds: dict[str, type] = {c.__name__: c for c in (Nothing, NonPrivate, Gaussian, DiscreteGaussian)}
    fields = dict(data)
    kind = fields.pop("kind", None)
    if kind not in kinds:
        raise ValueError(f"unknown privacy event {kind!r}; known: {', '.join(kinds)}")
    if "declared" in fields:
        fields["declared"] = tuple(fields["declared"])
    event: Event = kinds[kind](**fields)
    return event


UNACCOUNTED = NonPrivate("what is no release of local trust")
"""The event of a client that sent something which no ledger can take."""
ROUNDING = 1e-5
"""Share of the clip norm left free, so that no released signal exceeds it: norms and factors are no larger than in
exact arithmetic to 1e-9, and a float32 entry is rounded twice (by the factor, by the scale), by 6e-8 each time."""

_KEY = object()


@dataclass(frozen=True, eq=False)
class Release:
    """A value that has left its client, with its event. Made by this module's functions only.

    It holds copies, or tensors that were just made for it, by names that nobody can change: a view's pickle carries the
    whole storage behind it (other records too), and a tensor shared with the client could change after it was accounted
    for.
    """

    value: Tensors
    event: Event
    _key: InitVar[object] = None  # `dataclasses.replace` must not find it, so it is no field.

    def __post_init__(self, _key: object) -> None:
        if _key is not _KEY:
            raise TypeError("a Release is made by the functions of raydiff.privacy.release, and by nothing else")
        if self.value and isinstance(self.event, Nothing):
            raise ValueError(f"a release of no event must be empty, got {', '.join(self.value)}")
        if isinstance(self.value, Flat):  # It is read only, and made of the whole of its memory.
            return
        value = {k: _whole(v.detach().cpu()) for k, v in self.value.items()}
        object.__setattr__(self, "value", MappingProxyType(value))

    def __reduce__(self) -> tuple[Any, ...]:
        value = self.value if isinstance(self.value, Flat) else dict(self.value)
        return (already_private, (value, self.event))  # The key does not travel between processes.

    @property
    def nbytes(self) -> int:
        """Bytes of the value on the wire."""
        return tree.nbytes(self.value)


def _whole(v: Tensor) -> Tensor:
    """`v`, copied if it is a view of something larger: a pickled view would carry all of that with it."""
    return v if v.is_contiguous() and v.untyped_storage().nbytes() == v.nbytes else v.clone()


def _copied(value: Tensors) -> Params:
    return {k: v.detach().to("cpu", copy=True) for k, v in value.items()}


def nothing() -> Release:
    """Send no value; costs no privacy."""
    return Release({}, Nothing(), _KEY)


def disclose(value: Tensors, what: str, *, trust: Trust = "local", copy: bool = True) -> Release:
    """Send `value` as it is. Its epsilon is infinite, and the ledger says `what`.

    Without `copy` nobody else may write to its tensors: they were just made.
    """
    return Release(_copied(value) if copy else value, NonPrivate(what, trust), _KEY)


def already_private(value: Tensors, event: Event, *, copy: bool = True) -> Release:
    """Send a value whose noise was added inside its computation, or that was read back from the store.

    Without `copy` nobody else may write to its tensors: they were just read or received.
    """
    return Release(_copied(value) if copy else value, event, _KEY)


def accountable(sent: object) -> Release:
    """`sent` where it is a release that a ledger takes from a client; else an empty one of event `UNACCOUNTED`."""
    if isinstance(sent, Release) and (isinstance(sent.event, Nothing) or _is_a_client_s(sent.event)):
        return sent
    return Release({}, UNACCOUNTED, _KEY)


def _is_a_client_s(event: object) -> bool:
    return isinstance(event, NonPrivate | Gaussian) and event.trust != "central"


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

    With a public `center` (...), CLIP(x_i - center, clip) + center takes CLIP's place; the bound is the same.

    x (N, ...) is the private part, `records` its numbers in the client's data (the key of their noise),
    `public` the fields of the message that are public by declaration, e.g. labels. Replacing one record moves
    its row by at most 2 * clip * scale; rows are noised independently and each record fills one row, so the
    records compose in parallel. Raises ValueError for records that repeat or are not finite, and for a bad
    clip, scale or std.
    """
    numbers = [operator.index(r) for r in records]  # An int, numpy's or torch's, names the same record.
    if len(set(numbers)) != len(numbers) or len(numbers) != len(x):
        raise ValueError("each record may be released once only, under its own number")
    if not (clip > 0 and scale > 0 and std >= 0 and math.isfinite(clip + scale + std)):
        raise ValueError(f"clip and scale must be > 0, std >= 0, all finite, got {clip}, {scale}, {std}")
    if "x" in public:
        raise ValueError("public must not have a field 'x': it would take the place of the noised records")
    x = _finite(x if center is None else x - center, "records")
    signal = scale * clip_records(x, clip * (1 - ROUNDING))
    noisy = grid.noised(signal, noise.normal(numbers, x.shape[1:]), std=std)
    if center is not None:  # It is added last, on the same grid: its rounding is no part of the signal.
        noisy += grid.noised(scale * center, torch.zeros(center.shape, dtype=torch.float64), std=std)
    event = Gaussian(std / (2 * clip * scale), "example", "replace_one", "local", declared=tuple(public))
    return Release({"x": noisy.float(), **_copied(public)}, event, _KEY)


def _finite(x: Tensor, what: str) -> Tensor:
    """x in float32, in which it is released. Raises ValueError where it is no number there."""
    x = x.float()
    if not x.isfinite().all():
        raise ValueError(f"the {what} must be finite in float32: clipping does not bound an infinite or undefined one")
    return x


def gaussian_update(value: Tensors, *, clip: float, std: float, noise: NoiseStream) -> Release:
    """Release `value * min(1, clip / ||value||) + std * z`, the norm over all leaves together (DP-FedAvg, client unit).

    Replacing all of the client's records moves it by at most 2 * clip. How many they are travels beside every release
    (`Upload.examples`): it is public by declaration. Raises ValueError for values that are not
    finite, and for a bad clip or std.
    """
    if not (clip > 0 and std >= 0 and math.isfinite(clip)):
        raise ValueError(f"clip must be > 0 and finite, std >= 0, got {clip} and {std}")
    clipped = clipped_update(value, clip)
    noisy = {k: v.to(clipped[k].dtype) for k, v in noised(clipped, std=std, noise=noise).items()}
    event = Gaussian(std / (2 * clip), "client", "replace_one", "local", declared=("examples",))
    return Release(noisy, event, _KEY)


def gaussian_rows(x: Tensor, *, clip: float, std: float, noise: NoiseStream, public: Params) -> Release:
    """Release `CLIP(x_i, clip) + std * z_i` for each of the client's m vectors x (m, width) (FedDistr's upload).

    Replacing all of the client's records may move every vector by 2 * clip, and so all of them together by
    2 * clip * sqrt(m). `public` are the fields of the message that are public by declaration, one entry per vector, so
    m is public with them. Raises ValueError for vectors that are not finite, and for a bad clip or std.
    """
    if not (clip > 0 and std >= 0 and math.isfinite(clip + std)):
        raise ValueError(f"clip must be > 0 and std >= 0, both finite, got {clip} and {std}")
    if "x" in public:
        raise ValueError("public must not have a field 'x': it would take the place of the noised vectors")
    if not len(x):
        raise ValueError("there must be one vector at least")
    x = _finite(x, "vectors")
    signal = clip_records(x, clip * (1 - ROUNDING))
    noisy = grid.noised(signal, noise.normal(range(len(x)), x.shape[1:]), std=std).float()
    declared = (*public, "examples")
    event = Gaussian(std / (2 * clip * math.sqrt(len(x))), "client", "replace_one", "local", declared=declared)
    return Release({"x": noisy, **_copied(public)}, event, _KEY)


def gaussian_sum(
    value: Tensors, *, sensitivity: float, std: float, noise: NoiseStream, public: Params, declared: tuple[str, ...]
) -> Release:
    """Release `value + std * z` in float32, for a sum over a client's records (the sketch's and DP-MERF's uploads).

    The caller vouches that replacing one record moves all leaves together by `sensitivity` at most (L2): it clips each
    record's summand before it adds. All records share the one draw of noise, so one record's event is that of the
    whole message. `public` are leaves that are sent as they are, and `declared` says by what they are public. Raises
    ValueError for a sum that is not finite, and for a bad sensitivity or std.
    """
    if not (sensitivity > 0 and std >= 0 and math.isfinite(sensitivity + std)):
        raise ValueError(f"sensitivity must be > 0 and std >= 0, both finite, got {sensitivity} and {std}")
    if shared := value.keys() & public.keys():
        raise ValueError(f"public must not have a field {min(shared)!r}: it would take the place of a noised sum")
    if not tree.is_finite(value):
        raise ValueError("the sum must be finite: no sensitivity bounds an infinite or undefined record")
    noisy = {k: v.float() for k, v in noised(value, std=std, noise=noise).items()}
    event = Gaussian(std / sensitivity, "example", "replace_one", "local", declared=declared)
    return Release({**noisy, **_copied(public)}, event, _KEY)


def clipped_update(value: Tensors, clip: float) -> Params:
    """`value * min(1, clip / ||value||)`, every leaf in its type. Raises ValueError for values that are not finite."""
    norm = tree.norm(value)
    if not math.isfinite(norm):
        raise ValueError("the update must be finite: clipping does not bound an infinite or undefined one")
    length = torch.tensor(norm, dtype=torch.float64)
    return {k: _shrunk(v, length, clip * (1 - ROUNDING)) for k, v in value.items()}


def _shrunk(v: Tensor, norm: Tensor, clip: float) -> Tensor:
    dtype = torch.result_type(v, 1.0)
    if torch.finfo(dtype).eps < ROUNDING:
        return v * tree.shrinking(norm, clip, dtype)
    # Half precision rounds toward 0.
    return tree.toward_zero(v.double() * tree.shrinking(norm, clip, norm.dtype), dtype)


def noised(value: Tensors, *, std: float, noise: NoiseStream) -> Params:
    """`value + std * z` on the grid, in float64, with independent noise for each leaf."""
    draws = {k: noise.normal([i], value[k].shape)[0] for i, k in enumerate(sorted(value))}
    return {k: grid.noised(v, draws[k].to(v.device), std=std) for k, v in value.items()}
