"""Experiments by name. A preset is a function that returns a `Study`; what `raydiff tune` has found for it is put in.

Every field can be overridden on the command line; see `raydiff sweep --help`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

from raydiff.experiment import file, tuning
from raydiff.experiment.presets import feddistr, pfdm, referees, spire, tables
from raydiff.experiment.study import Study
from raydiff.lookup import nearest

_FUNCTIONS = (
    pfdm.digits,
    pfdm.frontier,
    pfdm.mnist,
    pfdm.mnist_cpu,
    pfdm.colour_mnist,
    pfdm.cifar10,
    pfdm.collaboration,
    pfdm.collaboration_colour,
    pfdm.clients,
    feddistr.feddistr_digits,
    feddistr.feddistr_mnist,
    feddistr.feddistr_cifar100,
    referees.niid_bench,
    referees.dpimagebench,
    tables.frontier_adult,
    tables.removal_adult,
    tables.removal_german,
    spire.spire_digits,
    spire.spire_mnist14,
    spire.spire_mnist,
    spire.spire_cifar10,
    spire.spire_faces,
    tables.tabular_adult,
    tables.tabular_german,
)
PRESETS: dict[str, Callable[[], Study]] = {
    name: functools.partial(tuning.used, name, made)
    for name, made in ((made.__name__.replace("_", "-"), made) for made in _FUNCTIONS)
}
"""Of each function its name, with hyphens: mnist-cpu."""


def study(name: str) -> Study:
    """The preset of this name, or what an experiment file says. Raises ValueError where there is none."""
    if name.endswith(file.SUFFIX):
        return file.read(Path(name).expanduser(), PRESETS)
    if name not in PRESETS:
        known = f"{', '.join(PRESETS)}, or a {file.SUFFIX} file"
        raise ValueError(f"unknown preset {name!r}; known: {known}{nearest(name, PRESETS)}")
    return PRESETS[name]()
