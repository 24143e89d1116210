"""Experiments by name. A preset is a function that returns a `Study`; what `raydiff tune` has found for it is put in.

Every field can be overridden on the command line; see `raydiff sweep --help`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

from raydiff import lookup
from raydiff.experiment import toml_file, tuning
from raydiff.experiment.study import Study
from raydiff.lookup import nearest


class _Presets(lookup.Door[Callable[[], Study]]):
    def __getitem__(self, name: str) -> Callable[[], Study]:
        return functools.partial(tuning.apply_tuned, name, super().__getitem__(name))


PRESETS = _Presets(
    "preset",
    {
        "tradeoff": "raydiff.papers.pfdm.presets:tradeoff",
        "digits": "raydiff.papers.pfdm.presets:digits",
        "frontier": "raydiff.papers.pfdm.presets:frontier",
        "mnist": "raydiff.papers.pfdm.presets:mnist",
        "mnist-cpu": "raydiff.papers.pfdm.presets:mnist_cpu",
        "colour-mnist": "raydiff.papers.pfdm.presets:colour_mnist",
        "cifar10": "raydiff.papers.pfdm.presets:cifar10",
        "collaboration": "raydiff.papers.pfdm.presets:collaboration",
        "collaboration-colour": "raydiff.papers.pfdm.presets:collaboration_colour",
        "clients": "raydiff.papers.pfdm.presets:clients",
        "feddistr-digits": "raydiff.papers.feddistr.presets:feddistr_digits",
        "feddistr-elsewhere": "raydiff.papers.feddistr.presets:feddistr_elsewhere",
        "feddistr-mnist": "raydiff.papers.feddistr.presets:feddistr_mnist",
        "feddistr-cifar100": "raydiff.papers.feddistr.presets:feddistr_cifar100",
        "frontier-adult": "raydiff.papers.discrete.presets:frontier_adult",
        "removal-adult": "raydiff.papers.discrete.presets:removal_adult",
        "removal-german": "raydiff.papers.discrete.presets:removal_german",
        "spire-digits": "raydiff.papers.spire.presets:spire_digits",
        "spire-mnist14": "raydiff.papers.spire.presets:spire_mnist14",
        "spire-mnist": "raydiff.papers.spire.presets:spire_mnist",
        "spire-cifar10": "raydiff.papers.spire.presets:spire_cifar10",
        "spire-faces": "raydiff.papers.spire.presets:spire_faces",
        "tabular-adult": "raydiff.papers.discrete.presets:tabular_adult",
        "tabular-german": "raydiff.papers.discrete.presets:tabular_german",
    },
)
"""Name -> a function that gives its study, with the settings that `raydiff tune` has kept for it."""
MAIN = "tradeoff"  # what `raydiff sweep` runs without a preset


def study(name: str) -> Study:
    """Return the study of an experiment file or of a preset, which may be `module:name`, a function without arguments.

    Raises ValueError where there is none.
    """
    if name.endswith(toml_file.SUFFIX):
        return toml_file.read_study(Path(name).expanduser(), PRESETS)
    if lookup.is_outside(name):
        return _check_study(name, PRESETS.resolve(name)())
    if name not in PRESETS:
        raise ValueError(
            f"unknown preset {name!r}; known: {', '.join(PRESETS)}, module:name of another, or a {toml_file.SUFFIX} "
            f"file{nearest(name, PRESETS)}"
        )
    return PRESETS[name]()


def _check_study(name: str, built: object) -> Study:
    if not isinstance(built, Study):
        raise ValueError(f"{name} must return a Study, got {built!r}")
    return built
