"""The floating-point attack names the records of float32 noise, this project's of before and others', and of what is
released on a grid it rules nothing out."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import float_attack
import float_noise
import numpy as np
import pytest
import torch
from torch import Tensor

from raydiff.privacy import accountants, canaries, release
from raydiff.privacy.client_level import ClientPrivacy
from raydiff.privacy.private_gradient import Mechanism, PrivateGradient
from raydiff.seeding import NoiseStream, generator

CLIP, D, MU = 6.8, 64, accountants.mu_for(1.0, 1e-5)
SCALE = math.sqrt(1 / (1 + (2 * CLIP / MU) ** 2))
STD = math.sqrt(1 - SCALE**2)
FLOAT32_STD = float(np.float32(STD))


def digits(count: int, seed: int) -> Tensor:
    """Pictures of 16 grey levels, as scikit-learn's digits have them."""
    rng = torch.Generator().manual_seed(seed)
    return torch.randint(17, (count, 1, 8, 8), generator=rng) / 8 - 1


def of_records(mechanism: object, count: int) -> float_attack.Send:
    """The release of one record of each pair, under its own number."""
    pairs = [digits(count, seed) for seed in (1, 2)]

    def send(which: Tensor, noise: NoiseStream) -> Tensor:
        x = torch.where(which.view(-1, 1, 1, 1), *pairs)
        return mechanism(x, noise).flatten(1)  # type: ignore[operator, no-any-return]

    return send


def on_the_grid(x: Tensor, noise: NoiseStream) -> Tensor:
    sent = release.gaussian_records(x, clip=CLIP, scale=SCALE, std=STD, noise=noise, records=range(len(x)), public={})
    return sent.value["x"]


def in_float32(x: Tensor, noise: NoiseStream) -> Tensor:
    return float_noise.float32_records(x, clip=CLIP, scale=SCALE, std=STD, noise=noise)


def test_float32_noise_names_the_record_at_epsilon_1() -> None:
    audit = float_attack.audit(of_records(in_float32, 500), count=500, rng=generator(0), std=FLOAT32_STD)
    assert audit.named > 300 and audit.misnamed == 0 and audit.flags(MU)


@pytest.mark.parametrize("std", [None, FLOAT32_STD])
def test_a_million_numbers_on_the_grid_rule_nothing_out(std: float | None) -> None:
    """And the nearer signal is the true one as often as epsilon 1 allows."""
    audit = float_attack.audit(of_records(on_the_grid, 16_000), count=16_000, rng=generator(0), std=std)
    assert audit.named == audit.misnamed == 0 and not audit.flags(MU)
    assert 0.5 < audit.nearer / audit.count < 0.5 + math.erf(MU / math.sqrt(8)) / 2 + 0.02


def test_a_fifth_of_the_noise_is_flagged_by_the_nearer_signal() -> None:
    def send(x: Tensor, noise: NoiseStream) -> Tensor:
        factor = 0.2 * getattr(noise, "factor", 1.0)
        return on_the_grid(x, canaries.Weakened(noise.secret, noise.path, factor))

    assert float_attack.audit(of_records(send, 4_000), count=4_000, rng=generator(0)).flags(MU)


# --- sums, updates, vectors, steps of DP-SGD, and what others do --------------------------------------------


def vectors(count: int, width: int = 2_000) -> tuple[Tensor, Tensor]:
    """Pairs of unit vectors, as clipped gradients and updates are."""
    both = torch.randn(2, count, width, generator=torch.Generator().manual_seed(5))
    return tuple((both / both.norm(dim=2, keepdim=True)).unbind())  # type: ignore[return-value]


def of_vectors(mechanism: Callable[[Tensor, int, NoiseStream], Tensor], count: int) -> float_attack.Send:
    """One release for each pair."""
    pairs = vectors(count)

    def send(which: Tensor, noise: NoiseStream) -> Tensor:
        x = torch.where(which[:, None], *pairs)
        streams = [replace(noise, path=(*noise.path, i)) for i in range(count)]
        return torch.stack([mechanism(v, i, n) for i, (v, n) in enumerate(zip(x, streams, strict=True))])

    return send


def silent(noise: NoiseStream) -> bool:
    return getattr(noise, "factor", 1.0) == 0.0


def the_sum(v: Tensor, _: int, noise: NoiseStream) -> Tensor:
    event = release.Gaussian(1 / MU, "example", "replace_one", "local")
    return release.gaussian_sum({"v": v.double()}, sensitivity=2.0, event=event, noise=noise, public={}).value["v"]


def the_update(v: Tensor, _: int, noise: NoiseStream) -> Tensor:
    return release.gaussian_update({"v": v}, clip=1.0, std=2 / MU, noise=noise).value["v"]


def the_rows(v: Tensor, _: int, noise: NoiseStream) -> Tensor:
    return release.gaussian_rows(v[None], clip=1.0, std=2 / MU, noise=noise, public={}).value["x"][0]


def the_published_mean(v: Tensor, _: int, noise: NoiseStream) -> Tensor:
    central = ClientPrivacy(epsilon=1.0, trust="central")
    return central.publish({"v": v / 3}, count=3, rounds=1, noise=noise)[0]["v"]


def the_step(v: Tensor, _: int, noise: NoiseStream) -> Tensor:
    """DP-SGD's gradient of one record, which is v."""
    gradient = PrivateGradient(
        lambda theta, batch, draws, extras: (theta["w"] * batch[0].flatten(1)).sum(1).mean(),
        v.view(1, 1, 1, -1),
        torch.zeros(1, 1, dtype=torch.int64),
        draws=lambda count, rng: {"none": torch.zeros(count)},
        mechanism=Mechanism(noise_multiplier=2 / MU),
        batch=1,
        rng=generator(0),
        noise=noise,
    )
    return gradient({"w": torch.zeros(len(v))})[0]["w"]


@pytest.mark.parametrize("mechanism", [the_sum, the_update, the_rows, the_published_mean, the_step])
def test_no_release_on_the_grid_is_named(mechanism: Callable[[Tensor, int, NoiseStream], Tensor]) -> None:
    for std in (None, float(np.float32(2 / MU))):
        audit = float_attack.audit(of_vectors(mechanism, 80), count=80, rng=generator(0), std=std)
        assert audit.named == audit.misnamed == 0 and not audit.flags(MU)


def all_are_named(send: Callable[[Tensor, int, NoiseStream], Tensor]) -> bool:
    audit = float_attack.audit(of_vectors(send, 40), count=40, rng=generator(0))
    return audit.named == 40 and audit.flags(MU)


@pytest.mark.parametrize("secure", [False, True])
def test_opacus_noise_is_named(secure: bool) -> None:
    """Also that of its secure mode, which adds up four float32 draws."""
    assert all_are_named(lambda v, i, z: float_noise.opacus(v, std=2 / MU, seed=i, secure=secure, silent=silent(z)))


def test_flower_s_noise_is_named() -> None:
    options: dict[str, Any] = {"clip": 1.0, "epsilon": 1.0, "delta": 1e-5}
    assert all_are_named(lambda v, i, z: float_noise.flower(v, seed=i, silent=silent(z), **options))
