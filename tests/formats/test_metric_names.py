"""Names of metrics: what each word says, which ones MLflow shows, and which way is better."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from raydiff.formats import metric_names
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


PICTURES = "eval/fd_cnn/all eval/fd_cnn/minor privacy/epsilon_server attack/global/best/auc attack/client/best/auc"
PICTURES += " comm/bytes_up time/seconds eval/label_accuracy/all privacy/auc_ceiling eval/memorized_fraction"
PLAIN = "distance_all distance_minority epsilon attack_auc_global attack_auc_client"
PLAIN += " bytes_sent seconds label_accuracy auc_ceiling memorized_fraction"
OTHERS = (
    "eval/fd_cnn/major eval/fd_cnn/all_floor eval/kd_cnn/all_spread eval/ddim/fd_cnn/all eval/class/3/fd_cnn privacy/mu"
)
OTHERS += " attack/global/pia/auc attack/global/best/auc_low eval/recall/all eval/vendi/all_low eval/client/0/vendi"


@pytest.mark.parametrize(
    ("names", "plain"),
    [
        (PICTURES, PLAIN),
        ("new/kd_cnn/all eval/kd_cnn/all eval/kd_cnn/minor", "distance_all distance_minority distance_unseen"),  # SPIRE
        ("eval/fid/all eval/kid/all", "distance_all"),
        ("eval/tv_pairs eval/accuracy eval/blackbox/accuracy", "distance_all accuracy attack_accuracy"),  # tables
        ("eval/accuracy attack/pool/best/auc", "accuracy attack_auc_global"),  # FedDistr
        ("eval/vendi eval/vendi/minor", "vendi vendi/minor"),  # of another package
    ],
)
def test_the_numbers_that_one_compares_have_plain_names(names: str, plain: str) -> None:
    values = {name: float(number) for number, name in enumerate(names.split())}
    out = metric_names.plain({**values, **dict.fromkeys(OTHERS.split(), -1.0)})
    assert " ".join(out) == plain and -1.0 not in out.values()


def test_at_most_twelve_and_none_of_another_package_in_the_place_of_raydiffs() -> None:
    added = {f"eval/own_{number}": 1.0 for number in range(20)} | {"eval/epsilon": 0.0, "eval/auc_ceiling": 0.5}
    out = metric_names.plain({**added, **dict.fromkeys(PICTURES.split(), 2.0)})
    assert len(out) == 12 and [*out][7:] == [f"own_{number}" for number in range(5)] and out["epsilon"] == 2.0
    assert metric_names.plain({"privacy/auc_ceiling": 1.0, "eval/auc_ceiling": 0.5}) == {"auc_ceiling": 1.0}


def test_of_a_round_mlflow_gets_epsilon_losses_clipping_and_quality() -> None:
    shown = {"privacy/epsilon_server": 1.0, "server/loss": 2.0, "train/loss": 3.0, "upload/clipped_fraction": 4.0}
    others = ("t0", "client/0/train/loss", "comm/bytes_up", "validation/fd_cnn/major", "server/update_norm", "time")
    out = metric_names.of_round({**shown, "validation/fd_cnn/all": 5.0, **dict.fromkeys(others, 0.0)})
    names = ("distance_all", "epsilon", "server_loss", "train_loss", "upload_clipped_fraction")
    assert out == dict(zip((f"round/{name}" for name in names), (5.0, 1.0, 2.0, 3.0, 4.0), strict=True))


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
    assert mlflow_name("hits/top@1") == "hits/top_1-21e16b3b"  # in docs/how-to/sweep.md
