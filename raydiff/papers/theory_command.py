"""What could PFDM reach if its denoisers were perfect? Predictions in seconds, without training.

    raydiff theory                  theory, mixture and digits
    raydiff theory theory           Theorem 5.2 and Eq. 9 against Monte-Carlo, both samplers
    raydiff theory mixture          the hierarchical mixture of the paper's Figure 5, as pictures over t
    raydiff theory digits           minority W2^2 of each arm, for any data set that raydiff knows
    raydiff theory collaboration    the same for a preset's data and minority sizes: raydiff collaboration reads it
    raydiff theory mnist --size 14 --covariance own --out mine.csv
    raydiff theory spire            SPIRE's theory (Figure 3, Theorems 4.2 and 4.3), measured; not about PFDM
    raydiff theory feddistr         FedDistr's Theorems 1 and 2, measured where the truth is known; nor this one
    raydiff theory pdp              the per-instance privacy bound of discrete diffusion on random tables

Pictures and csv go to the folder --out. Columns of the csv: data, minority, epsilon, sampler, arm, w2_squared, w2_low,
w2_high, gain_over_local, gain_low, gain_high: means over seeds with 95 % t intervals; the gain is paired by seed, and
positive where the arm is better than local training. The arms and the assumptions:
raydiff/papers/pfdm/theory/on_data.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from raydiff.cli.parser import Parser
from raydiff.data.datasets import Data
from raydiff.experiment import presets as names
from raydiff.papers.discrete.theory import random_tables
from raydiff.papers.discrete.theory import trained as pdp_trained
from raydiff.papers.feddistr import theory as feddistr
from raydiff.papers.pfdm.theory import mixture as pfdm_mixture
from raydiff.papers.pfdm.theory import on_data as pfdm_data
from raydiff.papers.pfdm.theory import theorems as pfdm_theorems
from raydiff.papers.spire import theory as spire

THEORIES: dict[str, Callable[[Path], list[str]]] = {
    "theory": lambda out: [*pfdm_theorems.report(), ""],
    "mixture": lambda out: [*pfdm_mixture.report(out), ""],
    "spire": spire.report,
    "feddistr": feddistr.report,
    "pdp": lambda out: [*random_tables.report(out), "", *pdp_trained.report()],
}
"""What may be named -> its lines, and its files into a folder. Anything else is a data set or a preset."""
MINORITIES = (3, 20, 100)
CUT = ("size", "train", "public", "test")


def main(argv: Sequence[str]) -> int:
    """Print the tables, write the files and say where they are."""
    given = _parser().parse_args(argv)
    if given.seeds < 1:
        raise ValueError(f"--seeds must be at least 1, got {given.seeds}")
    one_file = given.out.suffix == ".csv"
    if one_file and given.what in ("all", *THEORIES):
        raise ValueError(f"--out must be a folder unless a data set is named, got {given.out}")
    for what in ("theory", "mixture") if given.what == "all" else {given.what} & set(THEORIES):
        if what != "theory":  # which writes no file
            given.out.mkdir(parents=True, exist_ok=True)
        print("\n".join(THEORIES[what](given.out)))
    if given.what not in THEORIES:
        name = "digits" if given.what == "all" else given.what
        path = given.out if one_file else given.out / f"{Path(name).name}.csv"
        config, minorities = _preset(name) or (_data(name), MINORITIES)
        config = replace(config, **{field: value for field in CUT if (value := getattr(given, field)) is not None})
        shared = given.covariance == "shared"
        print("\n".join(pfdm_data.report(config, path, minorities, shared=shared, seeds=given.seeds)))
    return 0


def _preset(name: str) -> tuple[Data, tuple[int, ...]] | None:
    """The data and the minority sizes of a preset that varies these."""
    if name not in names.PRESETS:
        return None
    study = names.PRESETS[name]()
    sizes = tuple(int(n) for n in study.grid.get("partition.minority", ()))
    return (study.experiment.data, sizes) if sizes else None


def _data(name: str) -> Data:
    """Digits cut as in its preset; others at 14 x 14 pixels with 2,000 training records. All rows make the truth."""
    if name == "digits":
        return Data()
    return Data(name=name, size=14, train=2000, public=1000, validation=0, calibration=0, test=4000)


def _parser() -> Parser:
    parser = Parser("theory", __doc__)
    what = "theory, mixture, spire, feddistr, pdp or a data set (default: theory, mixture, digits)"
    parser.add_argument("what", nargs="?", default="all", help=what)
    parser.add_argument("--out", type=Path, default=Path("oracle-report"), help="folder; for a data set also x.csv")
    parser.add_argument("--seeds", type=int, default=20, help="draws of the clients' records (default 20)")
    parser.add_argument("--size", type=int, help="resize images to size x size (default: 14, digits as stored)")
    parser.add_argument("--train", type=int, help="training records of all clients (default: 2000, of digits 847)")
    parser.add_argument("--public", type=int, help="public records, for the clip norm (default: 1000, of digits 250)")
    parser.add_argument("--test", type=int, help="more records for the truth (default: 4000, of digits 400)")
    parser.add_argument(
        "--covariance", choices=("shared", "own"), default="shared", help="of a fit: one for all classes, or its own"
    )
    return parser
