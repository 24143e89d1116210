"""Names of metrics: what each word says, which ones MLflow shows, and which way is better."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from raydiff.formats.metric_names import Metric, mlflow_name
from raydiff.tracking import mlflow_store


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("eval/fd_cnn/minor", {"name": "fd_cnn", "split": "eval", "group": "minor"}),
        ("ddim/fd_cnn/minor_floor", {"name": "fd_cnn", "sampler": "ddim", "group": "minor", "role": "floor"}),
        ("eval/class/7/label_accuracy", {"name": "label_accuracy", "split": "eval", "part": ("class", "7")}),
        ("client/0/train/loss", {"name": "train/loss", "part": ("client", "0")}),
        ("attack/client/best/auc_low", {"name": "auc", "target": "client", "attack": "best", "role": "low"}),
        ("attack/a/pia/threshold", {"name": "threshold", "target": "a", "attack": "pia", "role": "calibration"}),
        ("eval/label_accuracy/real", {"name": "label_accuracy", "split": "eval", "group": "real", "role": "real"}),
        ("eval/recall/all_real", {"name": "recall", "split": "eval", "group": "all", "role": "real"}),
        ("eval/blackbox/n_members", {"name": "blackbox/n_members", "split": "eval", "role": "count"}),
        ("privacy/epsilon_server", {"name": "privacy/epsilon_server"}),
        ("t0", {"name": "t0"}),
    ],
)
def test_a_name_is_read_and_written(text: str, fields: dict[str, Any]) -> None:
    metric = Metric(**fields)
    assert Metric.parse(text) == Metric.parse(f"final/{text}") == metric and str(metric) == text


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        ("privacy/epsilon_server privacy/mu privacy/auc_ceiling train/loss time/seconds upload/clipped", True),
        ("eval/fd_cnn/minor eval/fd_cnn/minor_floor eval/fd_cnn/all_floor eval/kd_cnn/all eval/recall/all", True),
        ("eval/label_accuracy/all eval/label_accuracy/real eval/accuracy/majority eval/blackbox/accuracy", True),
        ("attack/global/best/auc attack/client/best/tpr_at_1pct_fpr new/parameters_share", True),
        ("eval/fd_cnn/major eval/fd_cnn/cluster_a eval/ddim/fd_cnn/all eval/class/3/fd_cnn client/0/train/loss", False),
        ("eval/fd_cnn/major_floor eval/kd_cnn/all_floor eval/kd_cnn/all_spread eval/tv_pairs_floor", False),
        ("eval/recall/minor eval/recall/all_real eval/memorized_fraction/sanity eval/vendi/all_low", False),
        ("attack/global/pia/auc attack/global/best/auc_low attack/global/best/tpr_at_0.1pct_fpr", False),
        ("attack/global/best/threshold attack/global/best/n_members privacy/tpr_ceiling_at_1pct_fpr", False),
    ],
)
def test_mlflow_shows_what_stands_by_itself(names: str, shown: bool) -> None:
    assert {name: Metric.parse(name).shown for name in names.split()} == dict.fromkeys(names.split(), shown)


@pytest.mark.parametrize(
    ("names", "lower"),
    [
        ("fd_cnn/all kid/minor tv_pairs utility_loss", True),
        ("accuracy label_accuracy/all", False),
        ("privacy/mu attack/global/best/auc", None),
    ],
)
def test_which_way_is_better(names: str, lower: bool | None) -> None:
    assert {Metric.parse(name).lower_is_better for name in names.split()} == {lower}


def test_what_changes_with_the_sampler() -> None:
    changes = ("fd_cnn/all", "kid/minor", "fid/all", "kd_cnn/all_spread", "density/major", "own_classes")
    others = ("fd_cnn/all_floor", "recall/all_real", "label_accuracy/real", "accuracy")
    assert [Metric.parse(name).of_samples for name in (*changes, *others)] == [True] * 6 + [False] * 4


ODD_NAMES = [
    *("recall@1", "recall_1", "recall#1", "x" * 250, "x" * 251, "x" * 300, "x" * 299 + "y", "", ".", "..", "...", "/a"),
    *("a", "a/", "a//b", "a/b", "./a", "../a", "a/../b", "a/..", "a\0b", "a\nb", "a\tb", "a\\b", "é", "é@1", "日本"),
    *(
        "😀",
        " ",
        " a",
        "a b",
        "a:b",
        "a%b",
        "a?b",
        "a;b",
        'a"b',
        "a'b",
        "a`b",
        "a*b",
        "\udcff",
        "-",
        "/",
        "//",
        "a/./b",
    ),
]


def test_every_name_has_one_of_its_own_in_mlflow(tmp_path: Path, migrated: Path) -> None:
    """Those that MLflow takes stay as they are; it takes all others, too, and no two become one."""
    shutil.copy(migrated, tmp_path / "mlflow.db")
    client = mlflow_store.connect(f"sqlite:///{tmp_path}/mlflow.db")
    run = client.create_run("0").info.run_id
    mlflow_store.log_values(client, run, [(name, 0, number) for number, name in enumerate(ODD_NAMES)])
    mlflow_store.log_params(client, run, {name: number for number, name in enumerate(ODD_NAMES)})
    logged = client.get_run(run).data
    assert [logged.metrics[mlflow_name(name)] for name in ODD_NAMES] == list(range(len(ODD_NAMES)))
    assert [logged.params[mlflow_name(name)] for name in ODD_NAMES] == [str(n) for n in range(len(ODD_NAMES))]
    kept = {"recall_1", "x" * 250, "a", "a/b", "é", "日本", " ", " a", "a b", "a:b", "-"}
    assert {name for name in ODD_NAMES if mlflow_name(name) == name} == kept
    assert mlflow_name("final/eval/hits/top@1") == "final/eval/hits/top_1-7ef76561"  # in docs/how-to/sweep.md
