"""A delta that is too large is refused, and one of at least 1/n is said wherever epsilon is."""

import re
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from raydiff.experiment import config, overrides, trial
from raydiff.experiment.config import Experiment
from raydiff.formats.json_files import read_json
from raydiff.methods import METHODS
from raydiff.methods.dpsgd import DPSGD
from raydiff.methods.fedavg import FedAvg
from raydiff.privacy.filters import Budget
from raydiff.privacy.ledger import Guarantee
from raydiff.report.guarantees import by_definition, described, tabulate_guarantees
from raydiff.results.finished import open_finished

WITH_DELTA = [name for name in METHODS if "delta" in {field.name for field in fields(METHODS[name])}]
LARGE = r"delta must be (above 0 and at most 0\.1|in \(0, 0\.1\], and below 1 / \(number of records\)), got 0\.5"


class Loose(FedAvg):
    """A method from elsewhere that checks nothing."""

    delta = 0.5


MAKERS: dict[str, Callable[[], object]] = {
    **{name: lambda name=name: Experiment(method=METHODS[name](delta=0.5)) for name in WITH_DELTA},
    "budget": lambda: Budget(delta=0.5),
    "outside": lambda: Experiment(method=Loose()),
}


@pytest.mark.parametrize("name", MAKERS)
def test_a_large_delta_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=LARGE):
        MAKERS[name]()


@pytest.mark.parametrize("arguments", ["account --noise 1", "calibrate --clip 1"])
def test_a_large_delta_is_refused_by_commands(command: Any, arguments: str) -> None:
    code, _, err = command(*arguments.split(), "--delta", 0.5)
    assert code == 2 and re.fullmatch(f"error: .*{LARGE}\n", err)


def test_a_delta_of_one_over_n_is_said_in_every_place(tmp_path: Path, tiny: Experiment) -> None:
    """In the text, which the terminal, MLflow's tag and note and the card have, and in the report."""
    for delta in (0.1, 1 / 40):  # 60 records of two clients: the larger one has at least 30
        method = DPSGD(delta=delta, epsilon=5.0, model=tiny.method.model, local=tiny.method.local, rounds=1)
        opened = trial.open_trial(replace(tiny, method=method, evaluation=None), tmp_path / f"{delta}")
        list(trial.run_trial(opened, trial.local_executor(opened)))
        outcome = read_json(opened.folder / "outcome.json")
        most = max(len(client.data) for client in trial.make_clients(opened, opened.experiment.everyone))
        says = "delta is not below 1 / (number of records of a client)" if delta * most >= 1 else ""
        assert outcome["server"]["caution"] == outcome["outsiders"]["caution"] == says
        assert bool(says) == (delta == 0.1) and says in outcome["text"]
        assert says in open_finished(opened.folder).source(None).privacy
        stated = tabulate_guarantees(
            pd.DataFrame([{f"server/{k}": v for k, v in outcome["server"].items() if type(v) is not list}])
        )
        assert says in described(*by_definition(stated).values()) and says in str(stated["guarantee"][0])
        assert overrides.from_dict(overrides.to_dict(opened.experiment), config.Experiment).method == method


@pytest.mark.parametrize(("count", "is_said"), [(0, False), (99_999, False), (100_000, True), (10**9, True)])
def test_the_caution_begins_at_one_over_n(count: int, is_said: bool) -> None:
    guarantee = Guarantee(
        epsilon=1.0, delta=1e-5, accountant="exact", unit="client", relation="add_remove", trust="local", clients=2
    )
    text = str(guarantee.among(count, "clients"))
    assert text.endswith("; delta is not below 1 / (number of clients))") == is_said
    assert (text == str(guarantee)) != is_said
