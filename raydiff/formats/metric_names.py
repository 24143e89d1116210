"""Names of a trial's metrics, such as `ColumnName.parse("eval/ddim/fd_cnn/minor_floor")`.

In metrics.jsonl and outcome.json a name is words between slashes, the last one with an ending for its role:

    [SPLIT/][SAMPLER/][class/C/ | client/N/]READING[/GROUP][_ROLE]      eval/ddim/fd_cnn/minor_floor, privacy/mu
    attack/TARGET/ATTACK/STATISTIC[_ROLE]                               attack/global/best/auc_low

The columns of a sweep's table begin with `final/`, which is no part of the name. MLflow and `Run.metrics` have a few of
them under plain names (`plain`); all of them are in `final.json` and `Run.all_metrics`.
"""

from __future__ import annotations

from dataclasses import dataclass
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
Role = Literal["value", "floor", "low", "high", "spread", "real", "count", "calibration"]


@dataclass(frozen=True, kw_only=True)
class ColumnName:
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
    def parse(cls, text: str) -> ColumnName:
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
