"""How many local epochs an unseen client takes (SPIRE's Figure 4), on the digits sweep.

    python docs/data/newcomers-epochs/epochs.py SWEEP      # of `raydiff sweep spire-digits`; writes epochs.csv, prints
    python docs/data/newcomers-epochs/epochs.py            # prints table.txt; draws docs/img/newcomers-epochs.png

For each trial of the sweep five clients of 40 records of three classes join by `raydiff personalize`, at the method's
constant rate: the distance of their samples to held-out records after each number of epochs. The mean over clients is
one value of a seed.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import pandas as pd

from raydiff.cli import personalize
from raydiff.formats import plots
from raydiff.formats.intervals import format_interval, student
from raydiff.report import load

HERE = Path(__file__).parent
TABLE, PICTURE = HERE / "epochs.csv", HERE.parents[1] / "img" / "newcomers-epochs.png"
METHODS = {"FedAvg": "FedAvg + fine-tuning", "SharedRep": "shared representation", "SPIRE": "SPIRE"}
CLASSES = ("0,1,2", "3,4,5", "6,7,8", "9,0,3", "1,4,7")  # of the clients
EPOCHS = (1, 3, 10, 30, 100, 300)


def join(sweep: Path) -> None:
    """Fit every client, and write its curve."""
    runs, rows = load.finished(load.runs(sweep)), []
    for _, run in runs[runs["method"].isin(METHODS)].iterrows():
        name = METHODS[run["method"]] + (", 3 embeddings" if run.get("method.embeddings") == 3 else "")
        for classes in CLASSES:
            with tempfile.TemporaryDirectory() as scratch:
                out = Path(scratch) / "out"
                given = {"classes": classes, "records": 40, "epochs": ",".join(map(str, EPOCHS)), "seed": run["seed"]}
                options = [text for field, value in given.items() for text in (f"--{field}", str(value))]
                personalize.main([str(sweep / "trials" / run["digest"]), *options, "--out", str(out), "--no-mlflow"])
                curve = pd.read_csv(out / "curves.csv").drop(columns="seconds")
            rows.append(curve.assign(method=name, seed=run["seed"], classes=classes))
    table = pd.concat(rows).sort_values(["method", "seed", "classes", "epoch"])
    table.to_csv(TABLE, index=False, lineterminator="\n")


def show() -> None:
    """Print mean and interval over seeds, and the change from 10 to 300 epochs; draw."""
    means = pd.read_csv(TABLE).groupby(["method", "epoch", "seed"])["kd_cnn"].mean().unstack()
    figure, ((axes,),) = plots.panels(1, 1, size=(6.4, 3.2))
    for number, (method, of) in enumerate(means.groupby(level=0)):
        cells = pd.DataFrame([student(list(row)) for row in of.to_numpy()], columns=["mean", "low", "high"])
        epochs = of.index.get_level_values("epoch")
        for epoch, cell in zip(epochs, cells.to_numpy(), strict=True):
            print(f"{method}, {epoch} epochs: {format_interval(*cell, form='.3f')}")
        change = of.loc[(method, EPOCHS[-1])] - of.loc[(method, EPOCHS[2])]
        print(f"{method}, {EPOCHS[-1]} epochs - {EPOCHS[2]}: {format_interval(*student(list(change)), form='+.3f')}")
        look = {"color": plots.COLOURS[number], "marker": plots.MARKERS[number], "capsize": 2, "label": method}
        plots.points(axes, epochs, cells["mean"], (cells["low"], cells["high"]), linewidth=1, **look)
    axes.set_xscale("symlog", linthresh=1, linscale=0.3)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set(xlabel="epochs of the unseen client", ylabel="kernel distance", ylim=(0, 2.2))
    plots.legend(figure, [axes])
    plots.save_figure(figure, PICTURE)


if __name__ == "__main__":
    if sweeps := sys.argv[1:]:
        join(Path(sweeps[0]).expanduser())
    show()
