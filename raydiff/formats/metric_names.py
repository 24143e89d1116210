"""Names of a trial's metrics, such as `Metric.parse("eval/ddim/fd_cnn/minor_floor")`.

In metrics.jsonl and outcome.json a name is words between slashes, the last one with an ending for its role:

    [SPLIT/][SAMPLER/][class/C/ | client/N/]READING[/GROUP][_ROLE]      eval/ddim/fd_cnn/minor_floor, privacy/mu
    attack/TARGET/ATTACK/STATISTIC[_ROLE]                               attack/global/best/auc_low

The columns of a sweep's table begin with `final/`, which is no part of the name. MLflow and `Run.metrics` have a few of
them under plain names (`plain`); all of them are in `final.json` and `Run.all_metrics`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

SPLITS = ("eval", "new", "validation")  # test split, unseen clients, validation split
SAMPLERS = ("ddim", "ancestral", "dpmsolver")
GROUPS = ("all", "major", "minor", "cluster_a", "cluster_b")
COVERAGE = ("precision", "recall", "density", "coverage")
LOWER_IS_BETTER = ("fd", "kd", "fid", "kid", "tv", "utility_loss")
HIGHER_IS_BETTER = ("accuracy", "label_accuracy", "own_classes", *COVERAGE)
FAMILIES = (*LOWER_IS_BETTER, *HIGHER_IS_BETTER, "memorized_fraction", "downstream", "blackbox")  # raydiff's readings
CALIBRATION = ("threshold", "timestep_index", "fpr_reached")
ENDINGS = ("floor", "low", "high", "spread", "real")
NAME = 250  # characters of a name that MLflow takes
DISTANCES = ("fd_cnn", "fid", "kd_cnn", "kid")  # an evaluation measures the first or the third, or the others
Names = Mapping[str, tuple[str, ...]]
"""Plain name -> the metrics that have it, of which a trial's first one counts."""
COMPARED: Names = {
    "distance_all": (*(f"eval/{name}/all" for name in DISTANCES), "eval/tv_pairs"),
    "distance_minority": tuple(f"eval/{name}/minor" for name in DISTANCES),
    "distance_unseen": tuple(f"new/{name}/all" for name in DISTANCES),
    "accuracy": ("eval/accuracy",),
    "epsilon": ("privacy/epsilon_server",),
    "attack_auc_global": ("attack/global/best/auc", "attack/pool/best/auc"),
    "attack_auc_client": ("attack/client/best/auc",),
    "attack_accuracy": ("eval/blackbox/accuracy",),
    "bytes_sent": ("comm/bytes_up",),
    "seconds": ("time/seconds",),
}
"""Quality is first: MLflow's page for comparing runs opens on the first metric that a run got."""
DETAILED: Names = {
    "label_accuracy": ("eval/label_accuracy/all",),
    "auc_ceiling": ("privacy/auc_ceiling",),
    "memorized_fraction": ("eval/memorized_fraction",),
    "attack_auc_uploads": ("attack/uploads/best/auc",),
}
PLAIN_AT_MOST = 12  # of a trial
QUALITY = ("distance_all", "distance_minority", "distance_unseen", "accuracy")
Role = Literal["value", "floor", "low", "high", "spread", "real", "count", "calibration"]


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One number of a trial."""

    name: str  # the reading or statistic: fd_cnn, label_accuracy, auc, privacy/mu
    split: str = ""  # one of SPLITS; empty where no split was read
    sampler: str = ""  # sampler of the pictures, where it is not the configured one
    part: tuple[str, str] | None = None  # ("class" or "client", its number) of a reading of one
    group: str = ""  # the classes that were read, or real: real records in the place of samples
    target: str = ""  # what was attacked
    attack: str = ""  # pia, loss, ..., or best: the one that calibrates best
    role: Role = "value"
    """floor: real records against real; low, high: ends of a 95 % interval; spread: jackknife over records; real: the
    same of real records; count: a number of records; calibration: chosen on the calibration split."""

    @classmethod
    def parse(cls, text: str) -> Metric:
        """Return the metric of a name on disk, or of a column of `report.load.runs`."""
        words = text.removeprefix("final/").split("/")
        where: dict[str, Any] = {}
        if words[0] == "attack" and len(words) == 4:
            where = {"target": words[1], "attack": words[2]}
            words = words[3:]
        else:
            for field, values in (("split", SPLITS), ("sampler", SAMPLERS)):
                if len(words) > 1 and words[0] in values:
                    where[field] = words.pop(0)
            if len(words) > 2 and (words[0] == "class" or (words[0] == "client" and words[1].isdigit())):
                where["part"] = (words[0], words[1])
                words = words[2:]
        stem, _, ending = words[-1].rpartition("_")
        if ending in ENDINGS and stem:
            where["role"], words[-1] = ending, stem
        elif words[-1] == "real" and len(words) > 1:
            where["role"] = where["group"] = words.pop()
        elif words[-1].startswith("n_"):
            where["role"] = "count"
        elif where.get("attack") and words[-1].startswith(CALIBRATION):
            where["role"] = "calibration"
        if len(words) > 1 and words[-1] in GROUPS:
            where["group"] = words.pop()
        return cls(name="/".join(words), **where)

    def __str__(self) -> str:
        """Return the name on disk."""
        attacked = ("attack", self.target, self.attack) if self.attack else ()
        words = [self.split, self.sampler, *(self.part or ()), *attacked, self.name, self.group]
        ending = f"_{self.role}" if self.role in ENDINGS and self.group != "real" else ""
        return "/".join(filter(None, words)) + ending

    @property
    def family(self) -> str:
        """fd of fd_cnn, kd of kd_cnn, tv of tv_pairs; else the first word."""
        first = self.name.partition("/")[0]
        return first[:2] if first[:3] in ("fd_", "kd_", "tv_") else first

    @property
    def lower_is_better(self) -> bool | None:
        """Which way is better; None where neither is."""
        if self.attack or self.family not in (*LOWER_IS_BETTER, *HIGHER_IS_BETTER):
            return None
        return self.family in LOWER_IS_BETTER

    @property
    def qualifies(self) -> bool:
        """Whether the number stands beside another one: an interval's end, a floor, a count, another sampler's."""
        return self.role not in ("value", "real") or bool(self.sampler)

    @property
    def of_samples(self) -> bool:
        """Whether the number changes with the sampler of pictures."""
        families = ("fd", "kd", "fid", "kid", "label_accuracy", "own_classes", *COVERAGE)
        return self.family in families and self.role not in ("floor", "real")

    @property
    def added(self) -> bool:
        """Whether it is the value of another package's measure of quality."""
        alone = self.role == "value" and not (self.sampler or self.part)
        return self.split == "eval" and self.family not in FAMILIES and alone


def mlflow_name(name: str) -> str:
    """Return the name that MLflow gets: the same where it takes it; else with `_` for the letters it refuses, and a
    digest of the name at the end, so that no two names become one."""
    allowed = "/".join(word for word in re.sub(r"[^\w\-. :/]", "_", name).split("/") if word.strip("."))
    if allowed == name and 0 < len(name) <= NAME:
        return name
    return f"{allowed[: NAME - 9]}-{hashlib.sha256(name.encode(errors='replace')).hexdigest()[:8]}"


def plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a trial's final numbers by their plain names, at most PLAIN_AT_MOST: of COMPARED, then those of other
    packages, then of DETAILED."""
    added = {str(replace(m, split="")): values[text] for text in values if (m := Metric.parse(text)).added}
    compared, detailed = _named(COMPARED, values), _named(DETAILED, values)
    every = {**compared, **added, **compared, **detailed}  # again: nobody else's number has a name of raydiff's
    return dict(list(every.items())[:PLAIN_AT_MOST])


def _named(names: Names, values: Mapping[str, Any]) -> dict[str, Any]:
    first = {name: next((m for m in metrics if m in values), None) for name, metrics in names.items()}
    return {name: values[metric] for name, metric in first.items() if metric is not None}


def of_round(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return what MLflow gets of a round: epsilon, the quality on the validation split, losses and clipping."""
    named = _named(COMPARED, {text.replace("validation/", "eval/", 1): value for text, value in values.items()})
    out = {f"round/{name}": value for name, value in named.items() if name in ("epsilon", *QUALITY)}
    losses = (k for k in values if k.endswith(("loss", "clipped_fraction")) and not k.startswith("client/"))
    return out | {f"round/{k.replace('/', '_')}": values[k] for k in losses}
