"""Algebra on `dict[str, Tensor]`, the only form in which model state crosses a boundary.

Every function returns new tensors and leaves its arguments alone.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

Params = dict[str, Tensor]
Tensors = Mapping[str, Tensor]
"""A tree that is only read."""
PIECE = 2**18  # entries


def add(a: Tensors, b: Tensors) -> Params:
    """a + b, leaf by leaf."""
    _same_keys(a, b)
    return {k: a[k] + b[k] for k in a}


def sub(a: Tensors, b: Tensors) -> Params:
    """a - b, leaf by leaf."""
    _same_keys(a, b)
    return {k: a[k] - b[k] for k in a}


def scale(a: Tensors, factor: float) -> Params:
    """factor * a."""
    return {k: v * factor for k, v in a.items()}


def norm(a: Tensors) -> float:
    """Euclidean norm over all leaves together."""
    norms = (float(torch.linalg.vector_norm(v, dtype=torch.float64)) for v in a.values())
    return math.sqrt(sum(n * n for n in norms))


def weighted_mean(pairs: Iterable[tuple[Tensors, float]]) -> Params:
    """sum w_i a_i / sum w_i over a stream of (params, weight), folded in the order given.

    Keeps one running sum, so memory does not grow with the number of clients. Raises ValueError when the stream
    is empty or its weights do not sum to something positive.
    """
    total, weight = None, 0.0
    for params, w in pairs:
        if total is None:
            total = scale(params, w)
        else:
            _same_keys(total, params)
            for k, v in params.items():
                total[k].add_(v, alpha=w)  # in place on our own running sum only
        weight += w
    if total is None or weight <= 0:
        raise ValueError("weighted_mean needs at least one entry and a positive total weight")
    return {k: v / weight for k, v in total.items()}


def prefixed(prefix: str, a: Params) -> Params:
    """{"prefix/key": leaf}: how several trees share one flat dict."""
    return {f"{prefix}/{k}": v for k, v in a.items()}


def under(prefix: str, a: Params) -> Params:
    """The inverse of `prefixed`: the subtree below `prefix`, with the prefix taken off."""
    start = prefix + "/"
    return {k[len(start) :]: v for k, v in a.items() if k.startswith(start)}


def clip_records(x: Tensor, clip: float, center: Tensor | None = None) -> Tensor:
    """x_i * min(1, clip / ||x_i||_2) for each record of x (N, ...), norm over the whole flattened record.

    With a center (...), x_i - center is clipped and the center added back.
    """
    if center is not None:
        return clip_records(x - center, clip) + center
    factor = shrinking(norms(x), clip, x.dtype)
    clipped: Tensor = x * factor.view(-1, *[1] * (x.dim() - 1))
    return clipped


def norms(x: Tensor) -> Tensor:
    """(N,) in float64: ||x_i||_2 of each record of x (N, ...), over the whole flattened record."""
    flat = x.reshape(len(x), math.prod(x.shape[1:]))
    # a CPU makes a float64 copy of what it sums: of a piece that stays in its cache
    rows = max(1, (PIECE if x.device.type == "cpu" else x.numel()) // max(1, flat.shape[1]))
    parts = [torch.linalg.vector_norm(part, dim=1, dtype=torch.float64) for part in flat.split(rows)]
    return torch.cat(parts)


def shrinking(norms: Tensor, clip: float, dtype: torch.dtype) -> Tensor:
    """min(1, clip / norm) of float64 norms in this type, rounded down: no factor is too large by its rounding."""
    return toward_zero((clip / norms.clamp_min(torch.finfo(norms.dtype).tiny)).clamp_max(1.0), dtype)


def toward_zero(exact: Tensor, dtype: torch.dtype) -> Tensor:
    """Float64 entries in this type, none larger in size for its rounding."""
    rounded = exact.to(dtype)
    return torch.where(rounded.abs() > exact.abs(), torch.nextafter(rounded, torch.zeros_like(rounded)), rounded)


def without(prefix: str, a: Params) -> Params:
    """All but the subtree below `prefix`."""
    return {k: v for k, v in a.items() if not k.startswith(prefix + "/")}


def nbytes(a: Tensors) -> int:
    """Bytes of all leaves: what a message costs on the wire, headers apart."""
    return sum(v.numel() * v.element_size() for v in a.values())


def is_finite(a: Tensors) -> bool:
    """Whether no leaf has a NaN or an infinite entry."""
    # a finite sum has finite terms, and costs much less than looking at each; one that overflows tells nothing
    return all(math.isfinite(float(v.sum())) or bool(v.isfinite().all()) for v in a.values())


def digest(a: Tensors) -> str:
    """Hex SHA-256 over names, shapes, types and bits: equal digests mean bit-equal trees."""
    h = hashlib.sha256()
    for k in sorted(a):
        v = a[k].detach().cpu().contiguous()
        h.update(f"{k}{tuple(v.shape)}{v.dtype}".encode())
        h.update(v.reshape(-1).view(torch.uint8).numpy().tobytes())
    return h.hexdigest()


def digests(x: Tensor) -> list[str]:
    """Hex SHA-256 over the bits of each record of x (N, ...): equal digests mean the same record."""
    return [hashlib.sha256(record.numpy().tobytes()).hexdigest() for record in x.cpu().contiguous()]


def _same_keys(a: Tensors, b: Tensors) -> None:
    if a.keys() != b.keys():
        raise ValueError(f"trees differ in their keys: {sorted(a.keys() ^ b.keys())}")
