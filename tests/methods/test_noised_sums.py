"""What clients send as a noised sum (sketch, DP-MERF, the votes of evolution): its noise, its sensitivity, its cost.

`faults` inspects any mechanism with the signature of `mechanism`. It is shown to pass the real ones and to catch broken
ones.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from scipy.stats import kstest
from torch import Tensor
from toys import records, run

from raydiff import tree
from raydiff.data.records import Records
from raydiff.federated.method import Round
from raydiff.methods.dpmerf import DPMERF
from raydiff.methods.evolution import Evolution
from raydiff.methods.sketch import Sketch
from raydiff.models.by_row import Population
from raydiff.models.generator import Generator
from raydiff.models.moments import Gaussians
from raydiff.models.training import Training
from raydiff.privacy.canaries import Weakened
from raydiff.privacy.release import Gaussian, Release, gaussian_sum
from raydiff.seeding import NoiseStream, generator
from raydiff.tree import Params

pytestmark = pytest.mark.usefixtures("fine_grid")

Summed = Sketch | DPMERF | Evolution
Mechanism = Callable[[Summed, Records, NoiseStream], Release]

IMPROBABLE = 1e-9  # chance of a false alarm of one comparison
FLAT = (1, 1, 2)  # pictures of two pixels, so that pairs can be tried out
ONE_WAVE = DPMERF(model=Generator(shape=FLAT, labels=(2,)), features=2, length=1.0, training=Training(steps=2))
SUMMED: dict[str, Summed] = {
    "sketch": Sketch(clip=1.5),
    "sketch, weight for nothing": Sketch(clip=1.5, moment=0.5),
    "sketch, sums about black": Sketch(clip=1.5, moment=0.0, center="black"),
    "sketch, zero-out": Sketch(clip=1.5, relation="zero_out"),
    "dpmerf": DPMERF(features=100, length=2.0, training=Training(steps=2, batch=20)),
    "evolution": Evolution(rounds=3),
}
CLIPPED = [name for name in SUMMED if name != "evolution"]  # A record's one vote is one, whatever the record is.
SKETCHES = [name for name in SUMMED if name.startswith("sketch")]


def stream(client: int = 0) -> NoiseStream:
    return NoiseStream(b"secret", ("digest", client))


def mechanism(method: Summed, data: Records, noise: NoiseStream) -> Release:
    server = method.init_server(None, generator(0))
    return method.local_update(server, {}, data, Round(0, generator(1), noise)).release


def with_noise_times(factor: float) -> Mechanism:
    return lambda method, data, noise: mechanism(method, data, Weakened(noise.secret, noise.path, factor))


def leaves(value: tree.Tensors) -> Tensor:
    """All that is noised, in one vector."""
    return torch.cat([v.double().flatten() for k, v in sorted(value.items()) if k != "counts"])


def moved(mechanism: Mechanism, method: Summed, a: Records, b: Records) -> float:
    """How far apart two uploads of the same round are, whose noise is the same."""
    return float((leaves(mechanism(method, a, stream()).value) - leaves(mechanism(method, b, stream()).value)).norm())


def flat(*pictures: tuple[float, float], label: int = 0) -> Records:
    """Records of two pixels, all of this label."""
    n = len(pictures)
    return Records(torch.tensor(pictures).view(n, *FLAT), torch.full((n, 1), label), torch.arange(n))


def worst(method: Summed) -> tuple[Records, Records]:
    """Neighbours whose uploads are as far apart as can be: they differ in the last of three records."""
    others = ((0.3, 0.2), (-1.0, 0.1))
    if isinstance(method, Sketch):
        half, long = math.acos(-1 / max(1.0, 2 * method.moment**2)) / 2, 7 * method.clip
        o = -1.0 if method.center == "black" else 0.0
        u, v = ((o + long * math.cos(half), o + sign * long * math.sin(half)) for sign in (1, -1))
        if method.relation == "zero_out":
            return flat(*others, u, label=1), flat(*others, label=1)
    elif isinstance(method, Evolution):
        u, v = (tuple(x.flatten().tolist()) for x in method.init_server(None, generator(0))["model/pictures"][1, :2])
    else:
        w = method._frequencies(method.init_server(None, generator(0)))[0]
        step = math.pi * w / w.square().sum()  # <w, u - v> = pi
        u, v = (0.2, -0.4), (0.2 - float(step[0]), -0.4 - float(step[1]))
    return flat(*others, u, label=1), flat(*others, v, label=1)


def narrow(method: Summed) -> Summed:
    """The same for two pixels and two labels, with one wave."""
    if isinstance(method, DPMERF):
        return ONE_WAVE
    kind = Gaussians if isinstance(method, Sketch) else Population
    return replace(method, model=kind(shape=FLAT, labels=(2,)))  # type: ignore[arg-type]


def faults(mechanism: Mechanism, method: Summed) -> list[str]:
    """What is wrong with a mechanism, empty if nothing is."""
    bare, many = replace(method, epsilon=None), records(0)
    sent = mechanism(method, many, stream())
    message = method.upload_event(len(many), 0)
    assert isinstance(message, Gaussian)
    std = message.std_over_sensitivity * method.sensitivity
    z = (leaves(sent.value) - leaves(mechanism(bare, many, stream()).value)) / std
    checks = {"noise scale": kstest(z.numpy(), "norm").pvalue > IMPROBABLE, "event": sent.event == message}
    small = narrow(method)
    apart = moved(mechanism, small, *worst(small))
    checks["sensitivity"] = 1 - 1e-4 < apart / method.sensitivity <= 1 + 1e-6
    return [name for name, passed in checks.items() if not passed]


@pytest.mark.parametrize("name", SUMMED)
def test_the_real_mechanism_has_no_faults(name: str) -> None:
    """Its noise has its scale, and the worst pair attains the sensitivity."""
    assert faults(mechanism, SUMMED[name]) == []


@pytest.mark.parametrize("name", SUMMED)
@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_half_and_twice_the_noise_are_found(name: str, factor: float) -> None:
    assert faults(with_noise_times(factor), SUMMED[name]) == ["noise scale"]


@pytest.mark.parametrize("name", SKETCHES)
def test_a_forgotten_clip_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "clip_records", lambda x, clip: x)
    assert faults(mechanism, SUMMED[name]) == ["sensitivity"]


def test_a_record_that_votes_twice_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that votes for several candidates with a whole vote each."""
    once = Evolution.add_up

    def twice(self: Evolution, server: Params, data: Records) -> tuple[Params, Any]:
        sums, metrics = once(self, server, data)
        return tree.scale(sums, 2), metrics

    monkeypatch.setattr(Evolution, "add_up", twice)
    assert faults(mechanism, SUMMED["evolution"]) == ["sensitivity"]


def test_a_round_that_is_noised_as_if_it_were_the_only_one_is_found() -> None:
    """By the event that was told of it, which is that of T rounds."""

    def broken(method: Summed, data: Records, noise: NoiseStream) -> Release:
        return mechanism(replace(method, rounds=1), data, noise)  # type: ignore[arg-type]

    assert faults(broken, replace(SUMMED["evolution"], rounds=9)) == ["noise scale", "event"]


@pytest.mark.parametrize("moment", [0.0, 0.3, math.sqrt(0.5), 1.0, 1.5, 4.0])
def test_no_pair_is_further_apart_than_the_sketchs_sensitivity_and_one_attains_it(moment: float) -> None:
    """By brute force over norms and angles, of what a picture adds by hand; beyond the plane of two pictures there is
    nothing else."""
    clip, angles = 1.5, torch.linspace(0, math.pi, 7201, dtype=torch.float64)

    def adds(norm: Tensor, angles: Tensor) -> Tensor:
        u = norm * torch.stack([angles.cos(), angles.sin()], dim=1)
        return torch.cat([u, moment / clip * (u[:, :, None] * u[:, None, :]).flatten(1)], dim=1)

    norms = torch.linspace(0, clip, 13, dtype=torch.float64)
    apart = [(adds(a, angles) - adds(b, angles[:1])).norm(dim=1).max() for a in norms for b in norms]
    sensitivity = Sketch(clip=clip, moment=moment).sensitivity
    assert sensitivity * (1 - 1e-6) < max(map(float, apart)) <= sensitivity * (1 + 1e-12)
    counted_or_not = max(float(adds(a, angles).norm(dim=1).max()) for a in norms)
    assert Sketch(clip=clip, moment=moment, relation="zero_out").sensitivity == pytest.approx(counted_or_not, rel=1e-12)


def test_random_neighbours_of_dpmerf_are_no_further_apart_than_its_sensitivity() -> None:
    rng = generator(3)
    method = replace(SUMMED["dpmerf"], epsilon=None)
    server = method.init_server(None, generator(0))
    result = []
    for scale in (0.1, 1.0, 30.0):
        for _ in range(20):
            x = scale * torch.randn(2, 1, 8, 8, generator=rng)
            a, b = (Records(own[None], torch.zeros(1, 1, dtype=torch.int64), torch.arange(1)) for own in x)
            both = [method.local_update(server, {}, own, Round(0, generator(1))).release.value for own in (a, b)]
            result.append(float((leaves(both[0]) - leaves(both[1])).norm()))
    assert 0.5 < max(result) <= 2 * (1 + 1e-6)


def test_a_sum_without_noise_is_an_error() -> None:
    method = SUMMED["sketch"]
    with pytest.raises(ValueError, match="needs the round's noise stream"):
        method.local_update(method.init_server(None, generator(0)), {}, records(0), Round(0, generator(1)))


@pytest.mark.parametrize("name", CLIPPED)
def test_a_record_that_is_no_number_is_refused(name: str) -> None:
    data = records(0)
    data = replace(data, images=torch.where(torch.arange(12)[:, None, None, None] == 3, math.nan, data.images))
    with pytest.raises(ValueError, match="finite"):
        mechanism(SUMMED[name], data, stream())


def test_clients_add_up_to_one_that_has_all_records() -> None:
    """Without noise to the last digits; with it the noise of each is its own."""
    method = replace(SUMMED["sketch"], epsilon=None)
    parts = [records(i, 10 + i) for i in range(3)]
    images, labels = torch.cat([p.images for p in parts]), torch.cat([p.labels for p in parts])
    pooled = run(method, [Records(images, labels, torch.arange(len(images)))])[-1].server
    apart = run(method, parts)[-1].server
    torch.testing.assert_close(apart["gaussians/mean"], pooled["gaussians/mean"], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(_covariance(apart), _covariance(pooled), rtol=1e-4, atol=1e-5)
    noisy = SUMMED["sketch"]
    sent = [leaves(mechanism(noisy, records(0), stream(i)).value) for i in (0, 1)]
    bare = leaves(mechanism(method, records(0), stream()).value)
    assert abs(float(torch.corrcoef(torch.stack([v - bare for v in sent]))[0, 1])) < 5 / math.sqrt(len(bare))


def _covariance(server: Params) -> Tensor:
    factor = server["gaussians/vectors"] * server["gaussians/scales"]
    return factor @ factor.T


def test_a_bad_release_is_refused() -> None:
    event = Gaussian(1.0, "example", "replace_one", "local")
    good: dict[str, Any] = {"sensitivity": 1.0, "event": event, "noise": stream(), "public": {}}
    for change, says in (
        ({"sensitivity": 0.0}, "sensitivity must be > 0"),
        ({"sensitivity": math.inf}, "both finite"),
        ({"event": replace(event, std_over_sensitivity=math.inf)}, "std >= 0"),
        ({"public": {"a": torch.ones(1)}}, "public must not have a field 'a'"),
    ):
        with pytest.raises(ValueError, match=says):
            gaussian_sum({"a": torch.zeros(2)}, **{**good, **change})
