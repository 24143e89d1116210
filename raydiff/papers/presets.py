"""The papers' tables as studies: `raydiff sweep reproduce --paper pfdm|spire|feddistr|pdp`.

`--scale cpu`: for 2 cores, at most 30 minutes each, on small data (MNIST coloured and cut to 14x14, 8x8 digits, German
Credit). `gpu`: the papers' data and sizes, as far as the data are available, and their FID and KID, which take the file
of Inception's weights. `smoke`: the CPU's with a hundredth of the training and one seed, minutes in all. Whether a
sweep shows what a paper claims: `raydiff claims SWEEP`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from raydiff.data.partition import Pooled
from raydiff.evaluation.suite import Evaluation
from raydiff.experiment import tuning
from raydiff.experiment.overrides import flat, override
from raydiff.experiment.study import SEEDS, Arm, Settings, Study
from raydiff.lookup import check_one_of
from raydiff.methods.dpsgd import DPSGD
from raydiff.methods.fedavg import FedAvg
from raydiff.methods.localonly import LocalOnly
from raydiff.papers.discrete import presets as tables
from raydiff.papers.feddistr import presets as feddistr
from raydiff.papers.pfdm import presets as pfdm
from raydiff.papers.spire import presets as spire

PAPERS = ("pfdm", "spire", "feddistr", "pdp")
SCALES = ("cpu", "gpu", "smoke")
CENTRAL = {"method": LocalOnly, **pfdm.UNCLIPPED, "partition": Pooled, "clients": 1}
INCEPTION = {"evaluation.features": "inception"}
PRIVATE = {"method": DPSGD, "method.averaging.weights": "uniform"}


def study(paper: str, scale: str) -> Study:
    """What is swept for this paper. Raises ValueError for a paper or scale that is unknown."""
    check_one_of("--paper", paper, PAPERS)
    check_one_of("--scale", scale, SCALES)
    return _smoke(STUDIES[paper, "cpu"]()) if scale == "smoke" else STUDIES[paper, scale]()


def _smoke(study: Study) -> Study:
    """One seed, and a hundredth of the steps of every training."""

    def fewer(changes: Settings) -> dict[str, int]:
        trained = r"method\.(?!model\b|sampling\b|client_sampling\b)\w+\.steps"
        return {k: max(1, v // 100) for k, v in changes.items() if re.fullmatch(trained, k)}

    start = override(study.experiment, fewer(flat(study.experiment)))
    grid = {path: values[:1] if path.endswith("seed") else values for path, values in study.grid.items()}
    beside = tuple(
        replace(arm, changes={**arm.changes, **fewer(flat(arm.apply(study.experiment)))}) for arm in study.beside
    )
    return Study(experiment=start, grid=grid, beside=beside, also=tuple(map(_smoke, study.also)))


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


def spire_gpu() -> Study:
    """Table 1 on MNIST and CIFAR-10, with the paper's widths, clients and rounds."""
    parts = (_three_seeds(spire.spire_mnist()), _three_seeds(spire.spire_cifar10()))
    first, second = (replace(part, experiment=override(part.experiment, INCEPTION)) for part in parts)
    return replace(first, also=(second,))


def pdp_cpu() -> Study:
    """Figures 6 and 7 on German Credit; the attack's training rows are a fifth, as the paper's of Adult."""
    removed, attacked = tables.removal_german(), tables.tabular_german()
    fractions = {**removed.grid, "audit.remove": (0.0, 0.01, 0.1, 0.5)}
    rates = {**attacked.grid, "seed": SEEDS, "method.model.schedule.rate": (0.1, 0.5, 1.0)}
    return replace(removed, grid=fractions, also=(replace(attacked, grid=rates, beside=()),))


def pdp_gpu() -> Study:
    """Figures 6 and 7 on Adult with the paper's 100 epochs; no GPU is needed, but hours of a CPU core are."""
    removed = tables.removal_adult()
    base = override(removed.experiment, {"method.local.steps": 24_574 * 100 // 30})
    return replace(removed, experiment=base, also=(replace(tables.tabular_adult(), beside=()),))


STUDIES: dict[tuple[str, str], Callable[[], Study]] = {
    ("pfdm", "cpu"): pfdm_cpu,
    ("pfdm", "gpu"): pfdm_gpu,
    # Table 1: clients of the federation and clients that join, five methods, on digits; one embedding, as there.
    ("spire", "cpu"): lambda: _three_seeds(
        tuning.with_tuned("spire-digits", spire.spire_digits), lambda changes: "method.embeddings" not in changes
    ),
    ("spire", "gpu"): spire_gpu,
    # Figures 4, 5 and 7: one round against fifty, disentangled or not, with noise or without; public records of MNIST.
    ("feddistr", "cpu"): lambda: _three_seeds(feddistr.feddistr_elsewhere()),
    # CIFAR-100 with ResNet-18, K = 5, 10, 20; needs a latent diffusion model (`--method.model.path`).
    ("feddistr", "gpu"): lambda: _three_seeds(feddistr.feddistr_cifar100()),
    ("pdp", "cpu"): pdp_cpu,
    ("pdp", "gpu"): pdp_gpu,
}
