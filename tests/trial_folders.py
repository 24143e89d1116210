"""Trials as a sweep leaves them in its folder."""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from raydiff.evaluation.quality.distances import frechet_metric, kernel_metric
from raydiff.evaluation.quality.table_fidelity import TV_PAIRS, UTILITY_LOSS
from raydiff.formats.json_files import dumps
from raydiff.formats.metric_records import CUMULATIVE, ENDINGS, SECONDS, Metric

SPLITS = ("eval", "unseen", "validation")
ABOUT = {
    str(metric): metric
    for metric in (
        *CUMULATIVE,
        SECONDS,
        *(frechet_metric("cnn", group) for group in ("all", "major", "minor")),
        *(kernel_metric("cnn", group) for group in ("all", "major", "minor")),
        frechet_metric("inception", "all"),
        frechet_metric("other", "minor"),
        TV_PAIRS,
        UTILITY_LOSS,
        Metric(name="vendi", group="all", shown="vendi/all"),
        Metric(name="gap", shown="gap"),
        Metric(name="accuracy", shown="accuracy"),
        *(Metric(name="auc", target=name, attack="best", shown=f"attack_auc_{name}") for name in ("global", "client")),
    )
}
"""Column, without its split -> what raydiff says of such a metric."""
GAUSSIAN = {"unit": "example", "relation": "replace_one", "trust": "local"}
FIELDS: dict[str, dict[str, Any]] = {
    "PFDM": {
        "epsilon": 10.0,
        "delta": 1e-5,
        "accountant": "exact",
        "clip": 6.4,
        "server": {"kind": "Training", "steps": 1000},
    },
    "LocalOnly": {},
    "FedAvg": {"rounds": 10, "finetune": None},
}


def write_trial(
    sweep: Path,
    digest: str,
    *,
    method: str = "PFDM",
    fields: dict[str, Any] | None = None,
    schedule: str = "linear",
    partition: dict[str, Any] | None = None,
    clients: int = 2,
    seed: int = 0,
    split: int = 0,
    outcome: dict[str, Any] | None = None,
    lines: list[dict[str, Any]] | None = None,
) -> Path:
    """A trial's folder as a sweep leaves it; `outcome` None leaves out outcome.json."""
    folder = sweep / "trials" / digest
    folder.mkdir(parents=True)
    model = {"kind": "DDPM", "schedule": schedule, "shape": [1, 8, 8]}
    config = {
        "kind": "Experiment",
        "method": {"kind": method, "model": model, **FIELDS.get(method, {}), **(fields or {})},
        "data": {"kind": "Data", "name": "digits", "split_seed": split, "root": None},
        **({"partition": partition} if partition else {}),
        "clients": clients,
        "seed": seed,
        "evaluation": {"kind": "Evaluation", "features": "cnn", "every": 0},
        "runtime": {"kind": "Runtime", "threads": 1, "workers": 1},
        "data_digest": f"hmac:fb425{split}",
    }
    (folder / "config.json").write_text(dumps(config, indent=1))
    (folder / "metrics.jsonl").write_text("".join(dumps(line) + "\n" for line in lines or []))
    if outcome is not None:
        (folder / "outcome.json").write_text(dumps(outcome))
    return folder


def metric(column: str, value: float) -> Metric:
    """The metric that has this column."""
    words = column.split("/")
    where: dict[str, Any] = {}
    if words[0] == "attack":
        where = {"target": words[1], "attack": words[2]}
        words = words[3:]
    for field, values in (("split", SPLITS), ("sampler", ("ddim", "ancestral"))):
        if words[0] in values:
            where[field] = words.pop(0)
    stem, _, ending = words[-1].rpartition("_")
    if stem and ending in ENDINGS:
        where["role"] = ending
        words[-1] = stem
    if words[-1] in ("all", "major", "minor", "real"):
        where["group"] = words.pop()
    if where.get("group") == "real":
        where["role"] = "real"
    name = "/".join(words)
    of_method = Metric(name=name, shown=name.replace("/", "_") if not where else "")
    about = ABOUT.get(column.partition("/")[2] if where.get("split") else column, of_method)
    return replace(about, name=name, value=value, **where)


def written(values: Mapping[str, float]) -> list[dict[str, Any]]:
    """Metrics by column, as files have them."""
    return [metric(column, value).to_json() for column, value in values.items()]


def finished(epsilon: float, distance: float, **changes: Any) -> dict[str, Any]:
    """outcome.json of a finished trial. `changes` with a "/" are numbers, others go to the guarantee."""
    sent = 0 < epsilon < math.inf
    guarantee = {
        "epsilon": epsilon,
        "delta": 1e-5,
        "accountant": "exact",
        **(GAUSSIAN if sent else {"unit": None, "relation": None, "trust": "local"}),
        "declared": ["labels"] if sent else [],
        "unprotected": ["weights sent as they are"] if epsilon == math.inf else [],
        **{k: v for k, v in changes.items() if "/" not in k},
    }
    final = {
        "privacy/epsilon_server": epsilon,
        "privacy/auc_ceiling": 0.917,
        "comm/bytes_up": 223608.0,
        "eval/label_accuracy/all": 0.83,
        "attack/client/best/auc": 0.848,
        "attack/client/best/auc_low": 0.816,
        "attack/client/best/auc_high": 0.88,
        "time/seconds": 6.46,
        **{k: v for k, v in changes.items() if "/" in k},
    }
    for group, factor in (("all", 0.6), ("major", 0.7), ("minor", 1.0)):
        final.setdefault(f"eval/fd_cnn/{group}", distance * factor)
        final.setdefault(f"eval/fd_cnn/{group}_floor", 0.686 if group != "all" else 0.431)
    return {"outcome": "finished", "final": written(final), "server": guarantee, "outsiders": guarantee}


def line(step: int, epsilon: float = 9.77, **more: Any) -> dict[str, Any]:
    """A round of metrics.jsonl."""
    values = {
        "privacy/epsilon_server": epsilon,
        "privacy/epsilon_outsiders": epsilon,
        "privacy/auc_ceiling": 0.9,
        "comm/bytes_up": 100.0,
        "time/seconds": 2.0,
        **{k: v for k, v in more.items() if "/" in k},
    }
    fields = {view: finished(epsilon, 1.0)[view] for view in ("server", "outsiders")}
    fields |= {k: v for k, v in more.items() if "/" not in k}
    return {"step": step, "time": 1.8e9 + step, "metrics": written(values), **fields}


def stop(sweep: Path, digest: str, epsilon: float, distance: float, **fields: Any) -> None:
    """A trial that a scheduler stopped after its first round."""
    validation = {f"validation/fd_cnn/{group}": distance for group in ("minor", "major", "all")}
    lines = [line(0, epsilon, **validation)]
    end = {k: v for k, v in finished(epsilon, distance).items() if k != "final"}
    write_trial(sweep, digest, outcome={**end, "outcome": "stopped"}, lines=lines, **fields)
