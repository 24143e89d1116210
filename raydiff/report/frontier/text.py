"""The table of the frontier for people: its columns, its cells, and what the numbers mean."""

import math
import textwrap

import pandas as pd

from raydiff.formats.tables import aligned, number, shorten_value, size, span, with_deviation
from raydiff.report.frontier.rows import DONE, is_target_epsilon, measure_in_words, noise_floor, select_added
from raydiff.report.guarantees import adversary, by_definition, described, epsilons, shown
from raydiff.report.load import Row, records
from raydiff.report.sweep_view import SweepView, setting_name

WIDTH = 100  # characters of a line of notes in a terminal
RELEASED = (
    "epsilon bounds what clients send. Published samples of the server's model have the epsilon against outsiders, "
    "those of a client's own model have no guarantee; the card of `raydiff generate` states it"
)
NOTHING_SENT = "epsilon 0: nothing sent; samples of these models carry no guarantee: no star and no ceiling"
INCOMPARABLE = "epsilons of different privacy definitions do not compare; -: the row has none of this definition"
ATTACKED = "AUC: of membership inference, by the attack that calibrates best, beside what the noise allows"
REPEATED = "n: seeds and splits of the data; mean±standard deviation; the largest epsilon and ceiling"
STOPPED = "o  stopped early: epsilon until then; distances on the validation split, not ranked"
NOT_IN_TERMINAL = ("AUC's ceiling", "label accuracy", "sent", "seconds")
AVERAGED = {"label accuracy": "label_accuracy", "AUC global": "auc_global", "AUC client": "auc_client"}
LETTERS = "abcdefghijkl"  # of privacy definitions, where there are several


def text(sweep: SweepView) -> str:
    """The table for a terminal, what its numbers mean, and the trials that have no row."""
    blocks = [list_without_row(sweep)]
    table = cells(sweep)
    if len(table):
        hidden = [name for name, metric in sweep.quality.items() if metric.group == "major"]
        plain = table.drop(columns=[*hidden, *NOT_IN_TERMINAL], errors="ignore")
        plain = plain.map(lambda cell: cell.partition(" [")[0])
        notes = [*explain(sweep), "95 % intervals and more columns are in the report and in frontier.csv"]
        wrapped = [textwrap.fill(note, WIDTH, subsequent_indent="   ") for note in notes]
        blocks.insert(0, [*aligned([[*plain], *plain.to_numpy().tolist()], words=2), "", *wrapped])
    return "\n\n".join("\n".join(lines) for lines in blocks if lines)


def brief(sweep: SweepView) -> pd.DataFrame:
    """Six columns of the frontier.

    They are what was compared, target epsilon, epsilon, the measure that ranks with its standard deviation over seeds,
    and the AUC of the attack on the server's model.
    """
    table = sweep.frontier
    targets = [name for name in sweep.fields.values() if is_target_epsilon(name)]
    names = [name for name in sweep.fields.values() if name not in targets]
    out = pd.DataFrame({"setting": [setting_name(row, names) for row in records(table)]})
    out["target epsilon"] = table[targets[0]] if targets else None
    out["epsilon"] = table["epsilon"]
    if sweep.measure:
        out[str(sweep.measure)] = table[str(sweep.measure)]
        out["std"] = table[f"{sweep.measure}_std"]
    return out.assign(**{"AUC global": table["auc_global"]})


def cells(sweep: SweepView) -> pd.DataFrame:
    """The rows with results as text, without columns in which no row has anything."""
    rows = select_done(sweep)
    items = records(rows)
    averaged = {name: name for name in sweep.quality} | AVERAGED
    columns = {
        "": rows["pareto"].map({True: "*", False: ""}).mask(rows["outcome"] == "stopped", "o"),
        "method": rows["method"],
        **{name: rows[name].map(shorten_value) for name in sweep.fields.values()},
        "n": rows["n"].map(str) if rows["n"].max() > 1 else "-",
        **_format_epsilons(rows),
        **{header: [_format_mean(row, name) for row in items] for header, name in averaged.items()},
        "AUC's ceiling": rows["auc_ceiling"].map(number),
        "sent": [size(row["bytes_up"]) for row in items],
        "seconds": [number(row["seconds"], 3) for row in items],
        **{name: [_format_mean(row, name) for row in items] for name in select_added(sweep.metrics)},
    }
    out = pd.DataFrame(columns, rows.index)
    return out.loc[:, (out != "-").any()]


def _format_epsilons(rows: pd.DataFrame) -> dict[str, pd.Series]:
    """A column of epsilons, or one for each of several privacy definitions."""
    definitions = by_definition(rows)
    if len(definitions) < 2:
        return {"epsilon": rows["epsilon"].map(shown)}
    columns = {}
    for letter, definition in zip(LETTERS, definitions, strict=False):
        own = epsilons(rows, definition).map(lambda epsilon: "-" if math.isnan(epsilon) else shown(epsilon))
        columns[f"epsilon {letter}"] = own.mask(rows["epsilon"].isna(), "?")
    return columns


def select_done(sweep: SweepView) -> pd.DataFrame:
    """The rows of the frontier with results."""
    return sweep.frontier[sweep.frontier["outcome"].isin(DONE)]


def _format_mean(row: Row, name: str) -> str:
    """`mean±std` over seeds; of a single one `0.512 [0.470 0.554]`, or without an interval `0.512`."""
    low = row.get(f"{name}_low")
    if row[f"{name}_std"] is not None or low is None:
        return with_deviation(row[name], row[f"{name}_std"])
    return f"{number(row[name])} [{number(low)} {number(row[f'{name}_high'])}]"


def explain(sweep: SweepView) -> list[str]:
    """What the numbers mean."""
    rows = select_done(sweep)
    definitions = by_definition(rows)
    several = len(definitions) > 1
    letters = [f" {letter}" for letter in LETTERS] if several else [""]
    reasons = {g.statement.removeprefix("no guarantee: ") for g in rows["guarantee"] if g.epsilon == math.inf}
    attacked = rows[["auc_global", "auc_client"]].notna().any(axis=None)
    notes = [
        *(
            f"epsilon{letter} (against {adversary(same)}): {described(same)}"
            for letter, same in zip(letters, definitions.values(), strict=False)
        ),
        INCOMPARABLE if several else "",
        NOTHING_SENT if any(g.nothing_sent for g in rows["guarantee"]) else "",
        RELEASED,
        f"epsilon inf: no guarantee ({'; '.join(sorted(reasons))})" if reasons else "",
        *_explain_measure(sweep, rows),
        ATTACKED if attacked else "",
        REPEATED if rows["n"].max() > 1 else "",
        STOPPED if (rows["outcome"] == "stopped").any() else "",
    ]
    return [*filter(None, notes)]


def _explain_measure(sweep: SweepView, rows: pd.DataFrame) -> list[str]:
    if sweep.measure is None:
        return []
    floor = noise_floor(rows, str(sweep.measure))
    real = f"; real half against real half: {span(floor, number)}" if floor else ""
    better = f"with a guarantee, and no setting beside it has less epsilon and less {sweep.measure}"
    measure = f"{sweep.measure}: {measure_in_words(sweep.measure)}, mean over clients{real}"
    return [measure, f"*  Pareto-optimal: {better}"]


def list_without_row(sweep: SweepView) -> list[str]:
    """A line for each setting that failed, was killed or has not finished."""
    lines = []
    for row in records(sweep.frontier[~sweep.frontier["outcome"].isin(DONE)]):
        setting = setting_name(row, [*sweep.fields.values()])
        end = f"{row['reason'] or 'no reason recorded'} (epsilon {shown(row['epsilon'])}; {row['digests']})"
        lines.append(textwrap.shorten(f"{row['outcome']}: {setting}: {end}", 160, placeholder="…"))
    return lines
