"""The papers' tables as presets, PAPER_SCALE: `python jobs/sweep.py analysis.reproduce:pfdm_cpu`.

PAPER is pfdm, spire, feddistr or pdp. SCALE `cpu`: for 2 cores, at most 30 minutes each, on small data (MNIST coloured
and cut to 14x14, 8x8 digits, German Credit). `gpu`: the papers' data and sizes, as far as the data are available, and
their FID and KID, which take the file of Inception's weights. Whether a sweep shows what a paper claims:
`python -m analysis.claims SWEEP`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from raydiff.data.partition import Pooled
from raydiff.evaluation.evaluation_settings import Evaluation
from raydiff.experiment import tuning
from raydiff.experiment.overrides import override
from raydiff.experiment.searchers import Settings
from raydiff.experiment.study import SEEDS, Arm, Study
from raydiff.methods.dpsgd import DPSGD
from raydiff.methods.fedavg import FedAvg
from raydiff.methods.localonly import LocalOnly
from raydiff.papers.discrete import presets as tables
from raydiff.papers.feddistr import presets as feddistr
from raydiff.papers.pfdm import presets as pfdm
from raydiff.papers.spire import presets as spire

CENTRAL = {"method": LocalOnly, **pfdm.UNCLIPPED, "partition": Pooled, "clients": 1}
INCEPTION = {"evaluation.features": "inception"}
PRIVATE = {"method": DPSGD, "method.averaging.weights": "uniform"}


def _three_seeds(study: Study, only: Callable[[Settings], bool] = lambda changes: True) -> Study:
    """Three seeds, and the arms whose changes pass `only`."""
    beside = tuple(arm for arm in study.beside if only(arm.changes))
    return replace(study, grid={**study.grid, "seed": SEEDS[:3]}, beside=beside)


def pfdm_cpu() -> Study:
    """Tables 1 and 2 (quality of majority and minority, DP-SGD), the attack on the global model, memorisation.

    100 records a minority class, the paper's; the attack on a model of all records over the length of its training is
    Table 6 of the appendix.
    """
    changes = {
        "partition.minority": 100,
        "data.calibration": 500,  # what a rate at 1 % takes
        "data.test": 1000,
        "evaluation": Evaluation(clusters=True, attacks=("pia",), members=2000),
    }
    base = override(pfdm.collaboration_colour().experiment, changes)
    beside = (
        Arm(method=LocalOnly),
        Arm(method=FedAvg),
        *(Arm(changes={**CENTRAL, "method.local.steps": steps}) for steps in (1000, 8000)),
        Arm(changes={**PRIVATE, "method.local.steps": 300}),  # one costs 15 times another's
    )
    return Study(experiment=base, grid={"seed": SEEDS[:3]}, beside=beside)


def pfdm_gpu() -> Study:
    """The same on coloured MNIST at 28x28 and on CIFAR-10, T = 1000, with UNets."""
    grid = {"seed": SEEDS[:3]}
    parts = []
    for study in (pfdm.colour_mnist(), pfdm.cifar10()):
        base = override(study.experiment, INCEPTION)
        central = Arm(changes={**CENTRAL, "method.local.steps": 2 * base.method.local.steps})
        parts.append(Study(experiment=base, grid=grid, beside=(*study.beside, central)))
        exact = override(base, {"method.model.precision": "float32"})  # per-example gradients need it
        parts.append(Study(experiment=override(exact, PRIVATE), grid=grid))
    return replace(parts[0], also=tuple(parts[1:]))


def spire_cpu() -> Study:
    """Table 1 on digits: clients of the federation and clients that join, five methods; one embedding, as there."""
    tuned = tuning.apply_tuned("spire-digits", spire.spire_digits)
    return _three_seeds(tuned, lambda changes: "method.embeddings" not in changes)


def spire_gpu() -> Study:
    """Table 1 on MNIST and CIFAR-10, with the paper's widths, clients and rounds."""
    parts = (_three_seeds(spire.spire_mnist()), _three_seeds(spire.spire_cifar10()))
    first, second = (replace(part, experiment=override(part.experiment, INCEPTION)) for part in parts)
    return replace(first, also=(second,))


def feddistr_cpu() -> Study:
    """Figures 4, 5 and 7: one round against fifty, disentangled or not, with noise or without; public records of MNIST.

    Needs a latent diffusion model (`--method.model.path`), as does the next one.
    """
    return _three_seeds(feddistr.feddistr_elsewhere())


def feddistr_gpu() -> Study:
    """CIFAR-100 with ResNet-18, K = 5, 10, 20."""
    return _three_seeds(feddistr.feddistr_cifar100())


def pdp_cpu() -> Study:
    """Figures 6 and 7 on German Credit; the attack's training rows are a fifth, as the paper's of Adult."""
    removed = tables.removal_german()
    attacked = tables.tabular_german()
    fractions = {**removed.grid, "audit.remove": (0.0, 0.01, 0.1, 0.5)}
    rates = {**attacked.grid, "seed": SEEDS, "method.model.schedule.rate": (0.1, 0.5, 1.0)}
    return replace(removed, grid=fractions, also=(replace(attacked, grid=rates, beside=()),))


def pdp_gpu() -> Study:
    """Figures 6 and 7 on Adult with the paper's 100 epochs; no GPU is needed, but hours of a CPU core are."""
    removed = tables.removal_adult()
    base = override(removed.experiment, {"method.local.steps": 24_574 * 100 // 30})
    return replace(removed, experiment=base, also=(replace(tables.tabular_adult(), beside=()),))
