"""The methods, one file each; adding one is a file and its name in `AnyMethod`."""

from typing import get_args

from raydiff.methods.dpsgd import DPSGD
from raydiff.methods.fedavg import FedAvg
from raydiff.methods.feddistr import FedDistr
from raydiff.methods.fedprox import FedProx
from raydiff.methods.localonly import LocalOnly
from raydiff.methods.moon import Moon
from raydiff.methods.perfedavg import PerFedAvg
from raydiff.methods.pfdm import PFDM
from raydiff.methods.scaffold import Scaffold
from raydiff.methods.sharedrep import SharedRep
from raydiff.methods.spire import SPIRE

AnyMethod = PFDM | LocalOnly | FedAvg | FedProx | Scaffold | Moon | PerFedAvg | SPIRE | SharedRep | DPSGD | FedDistr
METHODS = {method.__name__.lower(): method for method in get_args(AnyMethod)}

__all__ = [
    "DPSGD",
    "METHODS",
    "PFDM",
    "SPIRE",
    "AnyMethod",
    "FedAvg",
    "FedDistr",
    "FedProx",
    "LocalOnly",
    "Moon",
    "PerFedAvg",
    "Scaffold",
    "SharedRep",
]
