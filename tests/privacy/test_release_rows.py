"""A client's vectors, clipped and noised one by one, are one event of the client: `gaussian_rows`.

`faults` inspects any mechanism with its signature. It is shown to pass the real one and to catch broken ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kstest
from torch import Tensor

from raydiff.privacy import accountants
from raydiff.privacy.ledger import Ledger
from raydiff.privacy.release import ROUNDING, Gaussian, Release, already_private, gaussian_rows
from raydiff.seeding import NoiseStream

pytestmark = pytest.mark.usefixtures("fine_grid")

Mechanism = Callable[..., Release]

CLIP, STD, WIDTH = 1.5, 0.7, 500
IMPROBABLE = 1e-9  # chance of a false alarm of one comparison


def stream(client: int = 0, round: int = 0) -> NoiseStream:
    return NoiseStream(b"secret", ("digest", client, round))


def send(mechanism: Mechanism, x: Tensor, *, std: float = STD, noise: NoiseStream | None = None) -> Release:
    labels = torch.arange(len(x))
    return mechanism(x, clip=CLIP, std=std, noise=noise or stream(), public={"label": labels, "count": labels + 1})


def extremes(m: int) -> tuple[Tensor, Tensor]:
    """x and -x, every row beyond the clip norm."""
    x = torch.randn(m, WIDTH, generator=torch.Generator().manual_seed(0))
    x *= 10 * CLIP / x.norm(dim=1, keepdim=True)
    return x, -x


def moved(mechanism: Mechanism, x: Tensor, y: Tensor) -> float:
    """How far apart two uploads of the same round are, whose noise is the same."""
    return float((send(mechanism, x).value["x"].double() - send(mechanism, y).value["x"].double()).norm())


# --- the checker, the real mechanism, and broken ones ------------------------------------------------------


def faults(mechanism: Mechanism) -> list[str]:
    """What is wrong with a mechanism of `gaussian_rows`' signature; empty if nothing is."""
    z = send(mechanism, torch.zeros(40, WIDTH)).value["x"] / STD
    checks = {"noise scale": kstest(z.flatten().numpy(), "norm").pvalue > IMPROBABLE}
    unit = z / z.norm(dim=1, keepdim=True)
    # |correlation| of two independent rows exceeds this with probability about 1e-9 (Fisher's transformation)
    bound = math.tanh(6.1 / math.sqrt(WIDTH - 3))
    checks["correlated rows"] = float((unit @ unit.T).triu(1).abs().max()) < bound
    for m in (1, 4, 9):
        x, y = extremes(m)
        event, reach = send(mechanism, x).event, moved(mechanism, x, y)
        wanted = 2 * CLIP * math.sqrt(m)
        checks[f"sensitivity of {m}"] = wanted * (1 - 2 * ROUNDING) < reach <= wanted
        checks[f"event of {m}"] = isinstance(event, Gaussian) and event.std_over_sensitivity == pytest.approx(
            STD / wanted, rel=1e-12
        )
    return [name for name, passed in checks.items() if not passed]


def with_noise_times(factor: float) -> Mechanism:
    def mechanism(x: Tensor, *, clip: float, std: float, **rest: object) -> Release:
        sent = gaussian_rows(x, clip=clip, std=factor * std, **rest)  # type: ignore[arg-type]
        return already_private(sent.value, gaussian_rows(x, clip=clip, std=std, **rest).event)  # type: ignore[arg-type]

    return mechanism


def without_clip(x: Tensor, *, clip: float, **rest: object) -> Release:
    sent = gaussian_rows(x, clip=1e12, **rest)  # type: ignore[arg-type]
    return already_private(sent.value, gaussian_rows(x, clip=clip, **rest).event)  # type: ignore[arg-type]


def with_m_left_out(x: Tensor, **rest: object) -> Release:
    sent = gaussian_rows(x, **rest)  # type: ignore[arg-type]
    assert isinstance(sent.event, Gaussian)
    ratio = sent.event.std_over_sensitivity * math.sqrt(len(x))
    return already_private(sent.value, replace(sent.event, std_over_sensitivity=ratio))


def with_one_noise_for_all(x: Tensor, **rest: object) -> Release:
    each = [gaussian_rows(row[None], **rest) for row in x]  # type: ignore[arg-type]
    event = gaussian_rows(x, **rest).event  # type: ignore[arg-type]
    return already_private({**each[0].value, "x": torch.cat([sent.value["x"] for sent in each])}, event)


def test_the_real_mechanism_has_no_faults() -> None:
    assert faults(gaussian_rows) == faults(with_noise_times(1.0)) == []


@pytest.mark.parametrize("factor", [1 / 2, 2 / 3, 0.9, 1.1, 3 / 2])
def test_a_wrong_noise_scale_is_found_on_either_side(factor: float) -> None:
    assert faults(with_noise_times(factor)) == ["noise scale"]


@pytest.mark.parametrize(
    ("mechanism", "found"),
    [
        (without_clip, ["sensitivity of 1", "sensitivity of 4", "sensitivity of 9"]),
        (with_m_left_out, ["event of 4", "event of 9"]),
        (with_one_noise_for_all, ["correlated rows"]),
    ],
)
def test_a_broken_mechanism_is_found(mechanism: Mechanism, found: list[str]) -> None:
    assert [fault for fault in faults(mechanism) if fault != "noise scale"] == found


# --- the clip and the sensitivity --------------------------------------------------------------------------


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


@pytest.mark.parametrize("m", [1, 2, 30])
def test_the_worst_pair_attains_the_sensitivity(m: int) -> None:
    wanted = 2 * CLIP * math.sqrt(m)
    assert wanted * (1 - 2 * ROUNDING) < moved(gaussian_rows, *extremes(m)) <= wanted


# --- noise -------------------------------------------------------------------------------------------------


def test_rows_and_rounds_and_clients_have_noise_of_their_own_and_a_repeated_round_has_the_same() -> None:
    zero = torch.zeros(2, 50)
    first = send(gaussian_rows, zero).value["x"]
    assert torch.equal(first, send(gaussian_rows, zero).value["x"])
    others = [send(gaussian_rows, zero, noise=stream(*where)).value["x"] for where in ((0, 1), (1, 0))]
    rows = torch.cat([first, *others])
    assert len(rows.unique(dim=0)) == 6
    assert float(torch.corrcoef(rows).triu(1).abs().max()) < 0.8  # by chance with probability 1e-12 or so


@pytest.mark.parametrize("m", [1, 4, 24])
@pytest.mark.parametrize("epsilon", [0.5, 2.0, 10.0])
def test_the_budget_of_all_vectors_together_is_spent(m: int, epsilon: float) -> None:
    """Beside the accountant: delta of the two extreme uploads' likelihood ratio, integrated numerically."""
    delta = 1e-5
    std = 2 * CLIP * math.sqrt(m) / accountants.mu_for(epsilon, delta)
    x, y = extremes(m)
    sent = send(gaussian_rows, x, std=std)
    (guarantee,) = Ledger().with_upload(0, 0, sent.event, sent.nbytes).guarantees(delta, "exact")
    assert guarantee.epsilon == pytest.approx(epsilon, rel=1e-6)
    assert (guarantee.unit, guarantee.relation, guarantee.trust) == ("client", "replace_one", "local")
    mu = moved(gaussian_rows, x, y) / std
    grid = torch.linspace(-20, 30, 400_001, dtype=torch.float64)
    p, q = (torch.distributions.Normal(mean, 1.0).log_prob(grid).exp() for mean in (mu, 0.0))
    assert float(torch.trapezoid((p - math.exp(epsilon) * q).clamp_min(0), grid)) == pytest.approx(delta, rel=2e-3)
