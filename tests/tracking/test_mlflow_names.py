"""Names that MLflow takes."""

import shutil
from pathlib import Path

from raydiff.tracking import mlflow_store
from raydiff.tracking.mlflow_store import mlflow_name

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
