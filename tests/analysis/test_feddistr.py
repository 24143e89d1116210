"""FedDistr's tables and figures: a small sweep with known numbers, what is paired with what, and what is refused."""

import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from trial_folders import finished, write_trial

from analysis import feddistr
from raydiff.report import load

pytestmark = pytest.mark.slow

T2, T1 = 4.302652729911275, 12.706204736432095
"""Student's t at 97.5 %, with 2 degrees of freedom and with 1."""
MODEL, PROMPTS = 4000.0, 160.0
"""Bytes of one message of one client."""
PLAIN: dict[str, Any] = {"averaging": {"kind": "Averaging", "privacy": None}}


def noisy(epsilon: float, trust: str = "local") -> dict[str, Any]:
    privacy = {"kind": "ClientPrivacy", "epsilon": epsilon, "clip": 1.0, "trust": trust}
    return {"averaging": {"kind": "Averaging", "privacy": privacy}}


def trial(
    sweep: Path,
    method: str,
    accuracy: float | None,
    *,
    seed: int = 0,
    xi: float | None = 0.0,
    clients: int = 2,
    epsilon: float = math.inf,
    sent: float = 0.0,
    **fields: Any,
) -> None:
    """A finished trial; `xi` None: on pooled data. `sent` in bytes, of all clients; `fields` of the method."""
    folder = sweep / "trials"
    digest = f"{len(list(folder.iterdir())) if folder.exists() else 0:04x}"
    client = {"unit": "client", "relation": "replace_one", "declared": ["labels"]} if 0 < epsilon < math.inf else {}
    final = {"comm/bytes_up": sent, "partition/entanglement_mean": (xi or 0) + 0.001}
    if accuracy is not None:
        final["eval/accuracy"] = accuracy
    write_trial(
        sweep,
        digest,
        method=method,
        fields=fields,
        partition={"kind": "Pooled"} if xi is None else {"kind": "Entangled", "xi": xi},
        clients=clients,
        seed=seed,
        outcome=finished(epsilon, 1.0, **client, **final),
    )


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Losses at xi 0, K 2, by seed: FedDistr .3 .4 .5, FedAvg of 10 rounds .5 .6 (seed 2 is missing)."""
    out = tmp_path_factory.mktemp("sweep")
    for seed, loss in enumerate((0.3, 0.4, 0.5)):
        trial(out, "FedDistr", 1 - loss, seed=seed, sent=2 * PROMPTS, upload="prompts", epsilon=math.inf)
        trial(out, "FedDistr", 0.7, seed=seed, sent=20 * PROMPTS, upload="latents")
        trial(out, "LocalOnly", 0.8, seed=seed, xi=None, clients=1, epsilon=0.0)
        trial(out, "LocalOnly", 0.65, seed=seed, xi=None, clients=1, epsilon=0.0, public_only=True)
        trial(out, "FedProx", 1 - loss + (-0.1, 0.1, 0.0)[seed], seed=seed, rounds=1, sent=2 * MODEL, **PLAIN)
    for seed, loss in enumerate((0.5, 0.6)):
        for rounds, worse in ((1, 0.3), (5, 0.009), (10, 0.0)):
            accuracy = 1 - loss - worse
            trial(out, "FedAvg", accuracy, seed=seed, rounds=rounds, sent=2 * rounds * MODEL, pretrain=None, **PLAIN)
        start = {"pretrain": {"kind": "Training", "steps": 9}}
        trial(out, "FedAvg", 0.75, seed=seed, rounds=10, sent=20 * MODEL, **start, **PLAIN)
    trial(out, "FedAvg", 0.2, rounds=10, epsilon=7.5, sent=20 * MODEL, **noisy(8.0))
    trial(out, "FedAvg", 0.3, rounds=10, sent=20 * MODEL, **noisy(8.0, "central"))
    for seed in range(2):
        trial(out, "FedDistr", 0.5, seed=seed, clients=5, xi=0.057, sent=5 * PROMPTS, upload="prompts")
    return out


@pytest.fixture(scope="module")
def found(sweep: Path) -> pd.DataFrame:
    return feddistr.readings(load.runs(sweep))


@pytest.fixture(scope="module")
def rows(found: pd.DataFrame) -> pd.DataFrame:
    return feddistr.summary(found)


def one(rows: pd.DataFrame, name: str, **where: Any) -> dict[str, Any]:
    own = rows[rows["name"] == name]
    for key, value in where.items():
        own = own[own[key] == value]
    assert len(own) == 1
    return own.iloc[0].to_dict()


def test_mean_and_interval_over_seeds(rows: pd.DataFrame) -> None:
    row = one(rows, "FedDistr", xi=0.0)
    half = T2 * 0.1 / math.sqrt(3)
    assert (row["n"], row["rounds"], row["epsilon"]) == (3, 1, math.inf)
    assert (row["loss"], row["low"], row["high"]) == pytest.approx((0.4, 0.4 - half, 0.4 + half))


def test_epsilon_is_the_ledgers_and_not_what_was_asked_for(rows: pd.DataFrame) -> None:
    row = one(rows, "FedAvg", epsilon=7.5)
    assert (row["target"], row["definition"]) == (8.0, "per client, replace-one, local trust, delta 1e-05")
    assert one(rows, "FedAvg, central trust, target 8")["epsilon"] == math.inf  # the server sees the updates
    pooled = rows[rows["name"] == "centralised"]  # in every cell
    assert pooled[["xi", "clients", "rounds"]].to_numpy().tolist() == [[0.0, 2.0, 0.0], [0.057, 5.0, 0.0]]


def test_differences_are_taken_over_the_seeds_that_both_have(found: pd.DataFrame) -> None:
    pairs = feddistr.differences(found)
    row = one(pairs, "FedAvg", rounds=10, epsilon=math.inf)
    assert row["n"] == 2 and row["mean"] == pytest.approx(-0.2)  # with seed 2: -0.15 of the means
    row = one(pairs, "FedAvg", rounds=5)
    assert (row["low"], row["high"]) == pytest.approx((-0.209, -0.209))
    row, half = one(pairs, "FedProx"), T2 * 0.1 / math.sqrt(3)
    assert (row["mean"], row["low"], row["high"]) == pytest.approx((0.0, -half, half))
    assert one(pairs, "centralised", xi=0.057)["mean"] == pytest.approx(0.3)
    assert "FedDistr" not in set(pairs["name"])
    half = T1 * math.sqrt(0.005) / math.sqrt(2)  # .3 and .4 against .5 of seed 0 and .5 of seed 1
    moved = found.assign(loss=found["loss"].mask((found["name"] == "FedAvg") & (found["seed"] == 1), 0.5))
    row = one(feddistr.differences(moved), "FedAvg", rounds=10, epsilon=math.inf)
    assert (row["mean"], row["low"]) == pytest.approx((-0.15, -0.15 - half))


def test_public_records_alone_are_a_control_in_every_cell_and_a_start_for_averaging(found: pd.DataFrame) -> None:
    pairs = feddistr.differences(found)
    assert one(pairs, "public records alone", xi=0.0)["mean"] == pytest.approx(0.4 - 0.35)
    assert one(pairs, "public records alone", xi=0.057)["mean"] == pytest.approx(0.5 - 0.35)
    assert one(pairs, "FedAvg, public start", rounds=10)["mean"] == pytest.approx(0.35 - 0.25)
    assert set(feddistr.convergence(found)["name"]) == {
        *("FedDistr", "FedDistr, decoded latents", "FedAvg", "FedAvg, public start", "FedProx")
    }


def test_convergence_is_the_first_round_count_near_the_last(found: pd.DataFrame) -> None:
    row = one(feddistr.convergence(found), "FedAvg")
    assert [row[c] for c in ("rounds", "last", "points")] == [5, 10, 3]
    assert (row["parameters"], row["per_message"]) == (10000.0, 1000.0)
    assert (row["paper_rounds"], row["paper_parameters"]) == (150, "11.7M")
    further = found.assign(loss=found["loss"] + 0.002 * (found["rounds"] == 5))  # .011 above the last
    assert one(feddistr.convergence(further), "FedAvg")["rounds"] == 10
    assert "centralised" not in set(feddistr.convergence(found)["name"])


def test_the_job_writes_what_the_sweep_has_an_answer_to(
    sweep: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    feddistr.main([str(sweep), "--out", str(tmp_path)])
    tables = {f"feddistr-{name}.csv" for name in ("losses", "paired", "convergence")}
    pictures = {f"feddistr-{name}.png" for name in ("rounds", "bytes")}
    assert {p.name for p in tmp_path.iterdir()} == {"feddistr.md", *tables, *pictures}
    says = capsys.readouterr().out
    assert (tmp_path / "feddistr.md").read_text().strip() in says
    assert "| 0 | 2 | FedAvg | 5 | 10 | 3 | 10,000 | 1,000 | 150 | 11.7M |" in says
    assert "FedProx" in says and "nan" not in says  # of which the paper says nothing
