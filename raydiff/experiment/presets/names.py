"""Experiments by name. A preset is a function that returns a `Study`.

Every field can be overridden on the command line; see `raydiff sweep --help`.
"""

from __future__ import annotations

from collections.abc import Callable

from raydiff.experiment.presets.feddistr import feddistr_cifar100, feddistr_digits, feddistr_mnist
from raydiff.experiment.presets.pfdm import (
    cifar10,
    clients,
    collaboration,
    collaboration_colour,
    colour_mnist,
    digits,
    frontier,
    mnist,
    mnist_cpu,
)
from raydiff.experiment.presets.spire import spire_cifar10, spire_digits, spire_faces, spire_mnist
from raydiff.experiment.presets.tables import removal_adult, removal_german, tabular_adult, tabular_german
from raydiff.experiment.study import Study

PRESETS: dict[str, Callable[[], Study]] = {
    "digits": digits,
    "frontier": frontier,
    "mnist": mnist,
    "mnist-cpu": mnist_cpu,
    "colour-mnist": colour_mnist,
    "cifar10": cifar10,
    "collaboration": collaboration,
    "collaboration-colour": collaboration_colour,
    "clients": clients,
    "feddistr-digits": feddistr_digits,
    "feddistr-mnist": feddistr_mnist,
    "feddistr-cifar100": feddistr_cifar100,
    "removal-adult": removal_adult,
    "removal-german": removal_german,
    "spire-digits": spire_digits,
    "spire-mnist": spire_mnist,
    "spire-cifar10": spire_cifar10,
    "spire-faces": spire_faces,
    "tabular-adult": tabular_adult,
    "tabular-german": tabular_german,
}
