"""The methods, one file each. A new one is a file and a line of METHODS; another package's is named `module:Class`."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from raydiff import lookup
from raydiff.federated.method import Method

METHODS: lookup.Registry[type[Method]] = lookup.Registry(
    {
        "pfdm": "raydiff.papers.pfdm.method:PFDM",
        "localonly": "raydiff.methods.localonly:LocalOnly",
        "fedavg": "raydiff.methods.fedavg:FedAvg",
        "fedprox": "raydiff.methods.fedprox:FedProx",
        "scaffold": "raydiff.methods.scaffold:Scaffold",
        "moon": "raydiff.methods.moon:Moon",
        "perfedavg": "raydiff.methods.perfedavg:PerFedAvg",
        "spire": "raydiff.papers.spire.method:SPIRE",
        "sharedrep": "raydiff.methods.sharedrep:SharedRep",
        "dpsgd": "raydiff.methods.dpsgd:DPSGD",
        "feddistr": "raydiff.papers.feddistr.method:FedDistr",
        "sketch": "raydiff.methods.sketch:Sketch",
        "dpmerf": "raydiff.methods.dpmerf:DPMERF",
        "evolution": "raydiff.methods.evolution:Evolution",
        "marginals": "raydiff.methods.marginals:Marginals",
    }
)
"""Name on the command line -> class. Files on disk have the class's own name."""
MEMBERS = [name for name in vars(Method) if not name.startswith("_")]


def imported(name: str) -> type[Method]:
    """The method `module:Class` of another package. Raises ValueError if it lacks a member, a default or a name."""
    cls: Any = lookup.imported(name)
    dataclass: Any = getattr(cls, "__dataclass_params__", None)
    if not (isinstance(cls, type) and dataclass is not None and dataclass.frozen):
        raise ValueError(f"{name} is no method: it must be a frozen dataclass with the members of {Method.__module__}")
    if needed := [f.name for f in dataclasses.fields(cls) if f.default is f.default_factory is dataclasses.MISSING]:
        raise ValueError(f"{name} is no method: its field {needed[0]} must have a default")
    instance = cls()
    if missing := [member for member in MEMBERS if not hasattr(instance, member)]:
        raise ValueError(f"{name} is no method: it has no {', '.join(missing)}")
    if cls.__name__.lower() in METHODS:
        raise ValueError(f"{name} has the name of a method of raydiff: give it another name")
    method: type[Method] = cls
    return method


def check_names(classes: Sequence[type]) -> None:
    """Raises ValueError if two methods of a sweep have one name, by which its tables tell them apart."""
    seen: dict[str, type] = {}
    for cls in classes:
        if seen.setdefault(cls.__name__, cls) is not cls:
            both = " and ".join(f"{c.__module__}:{c.__qualname__}" for c in (seen[cls.__name__], cls))
            raise ValueError(f"{both} are methods of one name: give one another name")
