"""The methods, one file each. A new one is a file and a line of METHODS; another package's is named `module:Class`."""

from collections.abc import Sequence

from raydiff.federated.method import Method
from raydiff.lookup import Door

METHODS: Door[type[Method]] = Door(
    "method",
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
    },
    base=Method,
)
"""Name on the command line -> class. Files on disk have the class's own name."""


def check_names(classes: Sequence[type]) -> None:
    """Raises ValueError if two methods of a sweep have one name, by which its tables tell them apart."""
    seen: dict[str, type] = {}
    for cls in classes:
        if seen.setdefault(cls.__name__, cls) is not cls:
            both = " and ".join(f"{c.__module__}:{c.__qualname__}" for c in (seen[cls.__name__], cls))
            raise ValueError(f"{both} are methods of one name: give one another name")
