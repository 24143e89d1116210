"""Settings that a method refuses. The message is one line and names the field."""

import math
from typing import Any

import pytest
from toys import QUADRATIC

from raydiff.methods._averaging import Averaging
from raydiff.methods.dpmerf import DPMERF
from raydiff.methods.dpsgd import DPSGD
from raydiff.methods.evolution import Evolution
from raydiff.methods.fedavg import FedAvg
from raydiff.methods.fedprox import FedProx
from raydiff.methods.localonly import LocalOnly
from raydiff.methods.marginals import Marginals
from raydiff.methods.moon import Moon
from raydiff.methods.perfedavg import PerFedAvg
from raydiff.methods.scaffold import Scaffold
from raydiff.methods.sharedrep import SharedRep
from raydiff.methods.sketch import Sketch
from raydiff.models.classifier import Classifier
from raydiff.models.ddpm import DDPM
from raydiff.models.schedules import ScaledLinearBetas
from raydiff.models.training import Training
from raydiff.papers.feddistr.method import FedDistr
from raydiff.papers.pfdm.method import PFDM
from raydiff.papers.spire.method import SPIRE
from raydiff.privacy.client_level import ClientPrivacy

PRIVATE = {"privacy": ClientPrivacy()}
SECURE = {"trust": "aggregate", "shares": 2}
REFUSED: list[tuple[Any, dict[str, Any], str]] = [
    *((cls, {"rounds": 0}, "rounds") for cls in (FedAvg, FedProx, Scaffold, SharedRep, SPIRE, DPSGD, Evolution)),
    *((cls, {"epsilon": 0.0}, "epsilon") for cls in (DPSGD, DPMERF, Evolution, Marginals, Sketch, PFDM)),
    *((cls, {"delta": 1.0}, "delta") for cls in (DPSGD, DPMERF, Evolution, Marginals, Sketch, PFDM)),
    *((cls, {"clip": value}, "clip") for cls in (Sketch, PFDM, LocalOnly, FedDistr) for value in (0.0, math.inf)),
    *((cls, {"server_rounds": 0}, "server_rounds") for cls in (DPMERF, PFDM)),
    *((cls, {"local_parts": 0}, "local_parts") for cls in (LocalOnly, PFDM)),
    *((cls, {"averaging": Averaging(moments="kept")}, "averaging.moments") for cls in (Scaffold, DPSGD)),
    (Moon, {"model": QUADRATIC}, "features"),
    (Averaging, {"weights": "best"}, "weights"),
    (Averaging, {"update": "sgd"}, "update"),
    (Averaging, {"rate": 0.0}, "rate"),
    *((Averaging, {"moments": "averaged", **more}, "moments") for more in ({"update": "adam"}, {"rate": 0.5}, PRIVATE)),
    (Averaging, {"beta1": 1.0}, "beta1"),
    (Averaging, {"privacy": ClientPrivacy(trust="central")}, "weights"),
    (Averaging, {"privacy": ClientPrivacy(**SECURE)}, "weights"),  # type: ignore[arg-type]
    (ClientPrivacy, {"clip": math.inf}, "clip"),
    (ClientPrivacy, {"epsilon": 0.0}, "epsilon"),
    (ClientPrivacy, {"trust": "none"}, "trust"),
    (ClientPrivacy, {"shares": 3}, "shares"),
    (ClientPrivacy, {"trust": "aggregate"}, "shares"),
    (ClientPrivacy, {**SECURE, "epsilon": math.inf}, "epsilon"),
    (FedProx, {"mu": -0.1}, "mu"),
    (FedProx, {"mu": math.nan}, "mu"),
    (Moon, {"mu": -1.0}, "mu"),
    (Moon, {"temperature": 0.0}, "temperature"),
    (Scaffold, {"local": Training()}, "local.optimizer"),
    (Scaffold, {"averaging": Averaging(privacy=ClientPrivacy())}, "averaging.privacy"),
    (PerFedAvg, {"order": "third"}, "order"),
    (PerFedAvg, {"inner_rate": math.nan}, "inner_rate"),
    (PerFedAvg, {"adapt_steps": -1}, "adapt_steps"),
    (PerFedAvg, {"local": Training(replacement=False)}, "local.replacement"),
    (PerFedAvg, {"local": Training(batch=1)}, "local.batch"),
    (PerFedAvg, {"order": "second", "model": DDPM(compile=True)}, "model.compile"),
    (LocalOnly, {"center": "public"}, "center"),
    (LocalOnly, {"center": True}, "center"),
    (Sketch, {"center": True}, "center"),
    (PFDM, {"center": True}, "center"),
    (PFDM, {"start": "real"}, "start"),
    (LocalOnly, {"clip": 1.0, "model": Classifier()}, "clip"),
    (DPSGD, {"noise_multiplier": -1.0}, "noise_multiplier"),
    (DPSGD, {"max_grad_norm": 0.0}, "max_grad_norm"),
    (DPSGD, {"local": Training(epochs=3)}, "local.epochs"),
    (DPSGD, {"local": Training(replacement=False)}, "local.replacement"),
    (DPSGD, {"multiplicity": 0}, "multiplicity"),
    (DPSGD, {"relation": "add_remove"}, "relation"),
    (DPSGD, {"accountant": "exact"}, "accountant"),
    (DPSGD, {"accountant": "rdp", "relation": "replace_one"}, "accountant"),
    (DPSGD, {"averaging": Averaging(privacy=ClientPrivacy())}, "averaging.privacy"),
    (DPSGD, {"model": DDPM(compile=True)}, "compiled"),
    (DPSGD, {"model": DDPM(precision="bfloat16")}, "bfloat16"),
    (DPMERF, {"features": 5}, "features"),
    (DPMERF, {"length": -1.0}, "length"),
    (DPMERF, {"training": Training(epochs=2)}, "training.epochs"),
    (Evolution, {"candidates": 1}, "candidates"),
    (Evolution, {"variation": 1.5}, "variation"),
    (Sketch, {"moment": -1.0}, "moment"),
    (Sketch, {"refine": 1.5}, "refine"),
    (PFDM, {"t0": 0}, "t0"),
    (PFDM, {"t0": 1001}, "t0"),
    (PFDM, {"start": "warm"}, "start"),
    (PFDM, {"start": "gaussian", "epsilon": None}, "start"),
    (PFDM, {"accountant": "none"}, "accountant"),
    (PFDM, {"model": DDPM(schedule=ScaledLinearBetas()), "epsilon": 0.001}, "epsilon"),
    (SPIRE, {"embedding_std": -1}, "embedding_std"),
    (SPIRE, {"embeddings": 0}, "embeddings"),
    (SPIRE, {"model": DDPM(), "embeddings": 2}, "model.conditional"),
    (FedDistr, {"threshold": 0.0}, "threshold"),
    (FedDistr, {"epsilon": 1.0}, "clip"),
    (FedDistr, {"epsilon": 0.0, "clip": 1.0}, "epsilon"),
    (FedDistr, {"epsilon": 1.0, "clip": 1.0, "upload": "latents"}, "upload"),
    (FedDistr, {"clusters": 0}, "clusters"),
    (FedDistr, {"upload": "pictures"}, "upload"),
    (FedDistr, {"images": 0}, "images"),
    (FedDistr, {"guidance": math.nan}, "guidance"),
    (FedDistr, {"inversion": Training(epochs=2)}, "inversion.epochs"),
]


@pytest.mark.parametrize(("cls", "fields", "named"), REFUSED, ids=lambda v: getattr(v, "__name__", None))
def test_a_bad_setting_is_refused_by_name(cls: Any, fields: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=rf"^[^\n]*\b{named}\b[^\n]*$"):
        cls(**fields)
