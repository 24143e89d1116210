"""The results of an audited table as text, Parquet, JSON and a picture. All of them are confidential."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from raydiff.data.tables.read import Encoded
from raydiff.formats.json_files import dumps
from raydiff.formats.plots import panels
from raydiff.papers.discrete.bound import Audit, ReleasedRows, caveats
from raydiff.papers.discrete.kernel import Ints
from raydiff.papers.discrete.summary import QUANTILES, REMOVED, Removal, Summary, format_bound, most_exposed, summarize

FILES = ("report.txt", "records.parquet", "removals.json", "audit.png")
EXPOSED = 10
"""Number of most exposed records that the report lists."""


@dataclass(frozen=True, eq=False, kw_only=True)
class AuditResults:
    """The audit of a table, and of what is left after removing records."""

    encoded: Encoded
    labels: Ints | None
    """(s,) conditions of the model; None: an unconditional one."""
    release: ReleasedRows
    setting: Sequence[str]
    """Lines that describe table, release and noise."""
    audit: Audit
    removals: Sequence[Removal]

    @property
    def summary(self) -> Summary:
        """Over all records."""
        return summarize(self.audit.of_records(self.audit.delta))

    @property
    def caveats(self) -> tuple[str, ...]:
        """Printed and logged with every number."""
        return caveats(self.release, conditional=self.labels is not None)

    def save(self, folder: Path, *, with_records: bool) -> str:
        """Write FILES; without records no Parquet file and no number of a single record or label. Return the report."""
        folder.mkdir(parents=True, exist_ok=True)
        text = "\n".join([*self.setting, "", *_summary_lines(self.summary, self.removals), "", *self.caveats])
        if with_records:
            text = "\n".join([text, "", *self.record_lines()])
            self.frame().to_parquet(folder / "records.parquet")
        (folder / "report.txt").write_text(text + "\n")
        (folder / "removals.json").write_text(dumps([dataclasses.asdict(r) for r in self.removals], indent=1))
        _draw(self.audit if with_records else None, self.removals, folder / "audit.png")
        return text

    def frame(self) -> pd.DataFrame:
        """One row per record: delta, and psi_t, radius, similarity for each step."""
        audit = self.audit
        label = self.encoded.mapping.label
        names = np.array([*self.encoded.columns, None if label is None else label.name, None], dtype=object)
        columns = {
            "row": self.encoded.rows.numpy(),
            "delta": audit.of_records(audit.delta),
            "overlap": audit.of_records(audit.overlap),
            "alone_in": names[audit.of_records(audit.alone)],
        }
        for name in ("psi", "radius", "similarity"):
            values = audit.of_records(getattr(audit, name))
            columns |= {f"{name}_{t}": values[:, i] for i, t in enumerate(self.release.steps)}
        return pd.DataFrame(columns)

    def record_lines(self) -> list[str]:
        """Lines about each label's records and about the most exposed ones."""
        records = self.frame()
        lines = list[str]()
        delta = records["delta"].to_numpy()
        label = None if self.labels is None else self.encoded.mapping.label
        if label is not None:
            lines.append(f"by {label.name}:")
            for code, name in enumerate(label.categories):
                part = summarize(delta[self.labels == code])
                median = part.quantiles[QUANTILES.index(0.5)]
                lines.append(
                    f"  {name}: {part.records} records, median {format_bound(median)}, "
                    f"largest {format_bound(part.largest)}"
                )
        lines.append("most exposed (row of the file, 0 below the header):")
        for record in records.iloc[most_exposed(delta)[:EXPOSED]].to_dict("records"):
            of_label = f" of its {label.name}" if label is not None and record["alone_in"] != label.name else ""
            reason = f"  no other record{of_label} has its {record['alone_in']}" if record["alone_in"] else ""
            lines.append(f"  row {record['row']}: {format_bound(record['delta'])}{reason}")
        return lines


def _summary_lines(whole: Summary, removals: Sequence[Removal]) -> list[str]:
    """Lines without a number of a single record or label."""
    quantiles = (f"{q:.0%} {format_bound(value)}" for q, value in zip(QUANTILES, whole.quantiles, strict=True))
    lines = [
        f"delta: largest {format_bound(whole.largest)}, mean {format_bound(whole.mean)}"
        + (" of the finite" if whole.infinite else ""),
        f"quantiles: {', '.join(quantiles)}",
        f"vacuous (1 or more): {whole.vacuous} of {whole.records}, {whole.infinite} of them infinite",
    ]
    lines += ["", f"after removing the most exposed ({REMOVED}):"] if removals else []
    for removal in removals:
        left = removal.left
        numbers = f"largest {format_bound(left.largest)}, mean {format_bound(left.mean)}, vacuous {left.vacuous}"
        lines.append(f"  {removal.share:.1%}: {numbers}")
    return lines


def _draw(audit: Audit | None, removals: Sequence[Removal], path: Path) -> None:
    """Figure 6 without its accuracy: delta over the fraction removed, and each record's against overlap."""
    count = 1 if audit is None else 2
    figure, ((left, *others),) = panels(1, count, size=(5 * count, 4))
    fractions = [r.share for r in removals]
    left.plot(fractions, [r.left.mean for r in removals], "o-", label="mean (finite)")
    left.plot(fractions, [r.left.largest for r in removals], "s-", label="largest")
    left.set(xlabel="fraction of records removed", ylabel="bound on delta (pDP) of the rest", yscale="log")
    left.set_title(REMOVED, fontsize=8)
    left.legend()
    if audit is not None:
        (right,) = others
        finite = np.isfinite(audit.delta) & (audit.delta > 0)
        right.scatter(audit.overlap[finite], audit.delta[finite], s=4, alpha=0.4)
        right.axhline(1, color="gray", lw=0.8)
        right.set(xlabel="mean overlap with the other records", ylabel="bound on delta (pDP)", yscale="log")
        right.set_title("confidential to the curator", fontsize=8)
    figure.savefig(path, dpi=120)
