"""raydiff: personalised, private, federated training of diffusion models, on a laptop or a Ray cluster.

    import raydiff as rd

    run = rd.run(rd.preset("digits").experiment)
    print(run.guarantee)
    pictures = run.sample([3, 8], client=0)

A method is one file: read `raydiff/federated/method.py` first, `raydiff/federated/rounds.py` second.
"""

import ast
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

__version__ = "0.3.0"

if TYPE_CHECKING:  # for type checkers and editors; `_homes` reads it too
    from raydiff.api import (
        Personal as Personal,
        Run as Run,
        Sweep as Sweep,
        open as open,
        preset as preset,
        run as run,
        sweep as sweep,
    )
    from raydiff.data.datasets import Data as Data
    from raydiff.data.partition import (
        ByClass as ByClass,
        Dirichlet as Dirichlet,
        Entangled as Entangled,
        Iid as Iid,
        MajorityMinority as MajorityMinority,
        Pooled as Pooled,
        UnseenClients as UnseenClients,
    )
    from raydiff.evaluation.evaluation_settings import Evaluation as Evaluation
    from raydiff.experiment.config import Experiment as Experiment, Numerics as Numerics, Runtime as Runtime
    from raydiff.experiment.study import Arm as Arm, Study as Study
    from raydiff.methods._averaging import Averaging as Averaging
    from raydiff.methods.dpmerf import DPMERF as DPMERF
    from raydiff.methods.dpsgd import DPSGD as DPSGD
    from raydiff.methods.evolution import Evolution as Evolution
    from raydiff.methods.fedavg import FedAvg as FedAvg
    from raydiff.methods.fedprox import FedProx as FedProx
    from raydiff.methods.localonly import LocalOnly as LocalOnly
    from raydiff.methods.marginals import Marginals as Marginals
    from raydiff.methods.moon import Moon as Moon
    from raydiff.methods.perfedavg import PerFedAvg as PerFedAvg
    from raydiff.methods.scaffold import Scaffold as Scaffold
    from raydiff.methods.sharedrep import SharedRep as SharedRep
    from raydiff.methods.sketch import Sketch as Sketch
    from raydiff.models.classifier import Classifier as Classifier
    from raydiff.models.d3pm import DiscreteDiffusion as DiscreteDiffusion
    from raydiff.models.ddpm import DDPM as DDPM
    from raydiff.models.networks import MLP as MLP, UNet as UNet
    from raydiff.models.samplers import Sampling as Sampling
    from raydiff.models.training import Training as Training
    from raydiff.papers.feddistr.method import FedDistr as FedDistr
    from raydiff.papers.pfdm.method import PFDM as PFDM
    from raydiff.papers.spire.method import SPIRE as SPIRE
    from raydiff.privacy.client_level import ClientPrivacy as ClientPrivacy
    from raydiff.privacy.ledger import Guarantee as Guarantee, Ledger as Ledger


def _homes() -> dict[str, str]:
    """Public name -> its module, from the imports above."""
    block = next(node for node in ast.parse(Path(__file__).read_text()).body if isinstance(node, ast.If))
    return {alias.name: str(f.module) for f in block.body if isinstance(f, ast.ImportFrom) for alias in f.names}


_HOME = _homes()
__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    """Import a name on first use: `import raydiff` takes a hundredth of a second, and `raydiff.report` no torch."""
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'raydiff' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
