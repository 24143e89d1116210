"""The one-run audit of DP-SGD: its theorem against randomised response, and the real code path, right and broken."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from raydiff.privacy import accountants, canaries, one_run, private_gradient
from raydiff.privacy.one_run import Bits, Pulls
from raydiff.privacy.private_gradient import Budget, Mechanism, PrivateGradient, noise_multiplier_for
from raydiff.seeding import generator

EPSILON, DELTA, CLIP, CANARIES = 2.0, 1e-5, 1.5, 1000


# --- the theorem -------------------------------------------------------------------------------------------


def test_the_papers_own_number() -> None:
    """Appendix D: m = 1000, 75 of 100 guesses right, delta 1e-4."""
    assert one_run.epsilon_low(1000, 100, 75, delta=1e-4) == pytest.approx(0.673, abs=5e-4)


def test_all_right_and_no_delta_is_the_closed_form() -> None:
    """e^eps / (1 + e^eps) = (1 - confidence)^(1/r)."""
    accuracy = 0.05 ** (1 / 60)
    assert one_run.epsilon_low(80, 60, 60, delta=0.0) == pytest.approx(math.log(accuracy / (1 - accuracy)), abs=2e-6)
    assert one_run.epsilon_low(80, 60, 60, delta=1e-3) < one_run.epsilon_low(80, 60, 60, delta=0.0)
    assert one_run.epsilon_low(80, 60, 30, delta=0.0) == 0.0


@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 0.0), (2.0, 0.0), (1.0, 1e-4)])
def test_randomised_response_exceeds_its_epsilon_in_at_most_the_stated_share(epsilon: float, delta: float) -> None:
    """Each coin is told truly with probability e^eps / (1 + e^eps), with probability delta in any case."""
    m, seeds = 400, 2000
    rng = np.random.default_rng(0)
    told = (1 - delta) / (1 + math.exp(-epsilon)) + delta
    counts = rng.binomial(m, told, size=seeds)
    bounds = {v: one_run.epsilon_low(m, m, int(v), delta=delta) for v in set(counts.tolist())}
    lows = np.array([bounds[v] for v in counts.tolist()])
    assert (lows > epsilon).mean() <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / seeds)
    if delta == 0:  # and not for want of trying: this mechanism is the theorem's worst case
        assert (lows > epsilon).mean() > 0.02
    assert np.median(lows) > 0.5 * epsilon


@pytest.mark.parametrize(
    ("numbers", "says"), [((10, 20, 5), "must be ordered"), ((10, 5, 6), "must be ordered"), ((5, 0, 0), "ordered")]
)
def test_bad_counts_are_refused(numbers: tuple[int, int, int], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        one_run.epsilon_low(*numbers, delta=1e-5)
    with pytest.raises(ValueError, match=r"delta must be in \[0, 1\) and confidence"):
        one_run.epsilon_low(10, 5, 5, delta=1.0)


# --- the guesses -------------------------------------------------------------------------------------------


def test_the_surest_are_guessed() -> None:
    scores, coins = torch.tensor([5.0, -4.0, 0.0, 0.1, 3.0, -9.0]), torch.tensor([1, 0, 1, 0, 0, 0]).bool()
    found = one_run.guess(scores, coins, guesses=4, delta=0.0, rng=generator(0))
    assert (found.canaries, found.guesses, found.right) == (6, 4, 3)  # +0 +4 -5 -1, and 4 was left out


def test_equal_scores_are_guessed_by_chance() -> None:
    coins = torch.arange(1000) < 500  # in the order of a stable sort all guesses would be wrong
    found = one_run.guess(torch.zeros(1000), coins, guesses=400, delta=0.0, rng=generator(0))
    assert 150 < found.right < 250


@pytest.mark.parametrize("guesses", [0, 3, 1002])
def test_a_number_of_guesses_that_is_none_is_refused(guesses: int) -> None:
    with pytest.raises(ValueError, match=r"guesses must be an even number in 2\.\.1000"):
        one_run.guess(torch.zeros(1000), torch.zeros(1000).bool(), guesses=guesses, delta=0.0, rng=generator(0))


# --- DP-SGD's own code -------------------------------------------------------------------------------------


def run(seed: int, *, steps: int = 1, rate: float = 1.0, factor: float = 1.0) -> tuple[Bits, float]:
    """(what was guessed, the epsilon of the events) of one run whose records are the canaries."""
    rng = generator(seed, "one run")
    pulls, coins = Pulls(CANARIES), one_run.coins(CANARIES, rng)
    images, labels = pulls.records(coins, clip=CLIP)
    sigma = noise_multiplier_for(Budget(epsilon=EPSILON, delta=DELTA), sampling_rate=rate, steps=steps)
    gradient = PrivateGradient(
        pulls.loss,
        images,
        labels,
        draws=pulls.draws,
        mechanism=Mechanism(noise_multiplier=sigma, max_grad_norm=CLIP),
        batch=int(rate * CANARIES),
        rng=rng,
        noise=canaries.stream(rng, factor),
    )
    theta = pulls.init(rng)
    scores: Tensor = -sum(gradient(theta)[0]["w"] for _ in range(steps))
    spent = accountants.pld([gradient.event], DELTA)
    return one_run.guess(scores, coins, guesses=100, delta=DELTA, rng=rng), spent


@pytest.mark.parametrize(("steps", "rate"), [(1, 1.0), (8, 0.5)])
def test_right_noise_is_not_flagged_and_a_quarter_of_it_is(steps: int, rate: float) -> None:
    for seed in range(2):
        right, epsilon = run(seed, steps=steps, rate=rate)
        assert EPSILON - 0.01 < epsilon <= EPSILON and not right.flags(epsilon)
        assert right.epsilon_most > 3 > epsilon  # so many canaries could flag it
        assert run(seed, steps=steps, rate=rate, factor=0.25)[0].flags(epsilon)


def test_a_forgotten_clip_is_flagged(monkeypatch: pytest.MonkeyPatch) -> None:
    def unclipped(gradients: dict[str, Tensor], clip: float) -> dict[str, Tensor]:
        return {k: v.sum(0) for k, v in gradients.items()}

    monkeypatch.setattr(private_gradient, "clipped_sum", unclipped)
    found, epsilon = run(0, steps=8, rate=0.5)
    assert found.flags(epsilon) and found.epsilon_low == found.epsilon_most


def test_too_few_canaries_cannot_show_it() -> None:
    few = Bits(canaries=20, guesses=20, right=20, delta=DELTA, confidence=0.95)
    assert few.epsilon_low == few.epsilon_most < EPSILON and not few.flags(EPSILON)


def test_a_canary_that_is_left_out_does_not_change_the_sampling_rate() -> None:
    pulls = Pulls(4)
    images, labels = pulls.records(torch.tensor([True, False, True, False]), clip=2.0)
    assert images.flatten().tolist() == [20.0, 0.0, 20.0, 0.0] and labels.flatten().tolist() == [0, 1, 2, 3]
