"""Several trials on the same data, composed."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_ledger import BARE, DELTA, UPLOAD, ledger_of

from raydiff.privacy.accountants import exact, rdp
from raydiff.privacy.filters import compose
from raydiff.privacy.ledger import Ledger
from raydiff.privacy.release import Gaussian


@settings(deadline=None)
@given(
    trials=st.lists(st.lists(st.lists(st.floats(0.2, 20), max_size=3), min_size=1, max_size=4), min_size=1, max_size=4)
)
def test_trials_compose_to_the_worst_path_of_a_record(trials: list[list[list[float]]]) -> None:
    """trials[k][client] = noise of each of its uploads; a record may sit with any client in each trial."""
    made = [
        Ledger(
            tuple(
                entry
                for client, noises in enumerate(trial)
                for number, noise in enumerate(noises)
                for entry in Ledger()
                .with_upload(number, client, replace(UPLOAD, std_over_sensitivity=noise), 1)
                .entries
            )
        )
        for trial in trials
    ]
    paths = [
        exact([replace(UPLOAD, std_over_sensitivity=n) for noises in path for n in noises], DELTA)
        for path in itertools.product(*trials)
    ]
    together = compose(made)
    assert together.epsilon(DELTA, "exact") == pytest.approx(max(paths), rel=1e-9, abs=1e-12)
    assert together.bytes_up == sum(ledger.bytes_up for ledger in made)


def test_a_composed_ledger_is_a_ledger() -> None:
    trial = ledger_of({0: UPLOAD, 1: UPLOAD})
    together = compose([trial, trial])
    assert together.mu(0) == pytest.approx(math.sqrt(2))
    assert Ledger.from_json(together.to_json()) == together
    assert "public by declaration: labels" in str(together.guarantees(DELTA, "exact")[0])


SAMPLED = Gaussian(1.0, "example", "add_remove", "local", 0.1, 50)


@pytest.mark.parametrize("change", [{"std_over_sensitivity": 0.8}, {"sampling_rate": 0.15}, {"steps": 90}])
def test_sampled_trials_compose_to_an_upper_bound(change: dict[str, float]) -> None:
    worse = replace(SAMPLED, **change)
    trials = [ledger_of({0: SAMPLED, 1: worse}), ledger_of({0: worse, 1: SAMPLED}, {0: SAMPLED})]
    together = compose(trials).epsilon(DELTA, "rdp")
    for path in itertools.product([[SAMPLED], [worse]], [[worse, SAMPLED], [SAMPLED]]):
        assert together >= rdp([e for events in path for e in events], DELTA)


def test_one_unprotected_trial_makes_the_sweep_infinite() -> None:
    together = compose([ledger_of({0: UPLOAD}), ledger_of({0: UPLOAD, 1: BARE})])
    assert together.epsilon(DELTA, "exact") == math.inf
    assert "weights sent as they are" in str(together.guarantees(DELTA, "exact")[0])
