"""The methods, one file each; adding one is a file and its name in `AnyMethod`."""

from typing import get_args

from raydiff.methods.fedavg import FedAvg
from raydiff.methods.localonly import LocalOnly
from raydiff.methods.pfdm import PFDM

AnyMethod = PFDM | LocalOnly | FedAvg
METHODS = {method.__name__.lower(): method for method in get_args(AnyMethod)}

__all__ = ["METHODS", "PFDM", "AnyMethod", "FedAvg", "LocalOnly"]
