"""Numbers that papers print, each with the preset and the config of ours that it may stand beside, and what differs.

An entry whose data we do not have under the paper's name is not here: a look-alike's number never stands beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Number:
    """One published number."""

    source: str
    """Paper and table."""
    preset: str
    """The preset that is this paper's experiment on these data."""
    config: Mapping[str, Any]
    """Config column -> value that a trial must have; None: the field is empty."""
    data: str
    """The data, in the paper's words."""
    method: str
    """The method, in the paper's words."""
    measure: str
    """What the number measures there."""
    value: str
    """As printed."""
    ours: str
    """Metric of ours, as in the final numbers."""
    differs: str
    """What else differs between the two."""


# --- PFDM: Patel et al., CVPR 2026, main table (arXiv 2504.00952); per-record local DP, replace-one ---

FID = "FID there, on Inception features; ours is a distance of a small CNN's features: only orders can be compared"
CLASSES = "theirs is of the first client, ours the mean over clients"
EPSILON = "epsilon is of local DP of each record under replace-one; ours is the ledger's"
PFDM = {
    "cifar10": ("cifar10", "CIFAR-10", {
        "non-collaborative": (19.87, 36.44, 28.16), "PFDM": (19.85, 35.78, 27.82),
        "non-private FedDM": (18.05, 19.15, 18.60)}, "50.01"),
    "colour-mnist": ("colour-mnist", "C-MNIST", {
        "non-collaborative": (2.19, 5.99, 4.09), "PFDM": (1.72, 4.79, 3.26),
        "non-private FedDM": (1.89, 1.51, 1.70)}, "49.70"),
}  # fmt: skip
"""preset -> data set, its name in the paper, FID (major, minor, average) by method, PIA's AUC in percent."""
ARMS: dict[str, tuple[dict[str, Any], str]] = {
    "non-collaborative": ({"method": "LocalOnly"}, ""),
    "PFDM": ({"method": "PFDM", "method.epsilon": 10.0}, f"; {EPSILON}"),
    "non-private FedDM": (
        {"method": "FedAvg"},
        "; FedDM's vanilla is FedAvg of a DDPM, and its settings are not given",
    ),
}
"""Method in the paper -> config of ours, and what else differs."""


def _pfdm() -> list[Number]:
    found = []
    for preset, (name, data, table, pia) in PFDM.items():
        of = {"preset": preset, "data": data}
        same = {"data.name": name, "data.size": None, "data.train": 22_000 if preset == "colour-mnist" else None}
        for method, values in table.items():
            config, more = ARMS[method]
            if preset == "cifar10":
                more = f"; sizes of the clients are not given there{more}"
            for measure, value in zip(("major", "minor"), values[:2], strict=True):
                found.append(
                    Number(
                        **of,
                        source="PFDM, main table",
                        config={**same, **config},
                        method=method,
                        measure=f"FID, {measure}",
                        value=f"{value:.2f}",
                        ours=f"eval/fd_cnn/{measure}",
                        differs=f"{FID}; {CLASSES}{more}",
                    )
                )
        config = {**same, **ARMS["PFDM"][0]}
        chosen = (
            "their timestep is t = 200 and the set-up of the threshold is not said; ours are chosen on calibration rows"
        )
        found.append(
            Number(
                **of,
                source="PFDM, PIA on the global model",
                config=config,
                method="PFDM, 300 epochs",
                measure="AUC, %",
                value=pia,
                ours="attack/global/pia/auc",
                differs=f"ours is a fraction, not %; {chosen}",
            )
        )
    return found


def _two_clients() -> list[Number]:
    """PFDM's comparison with DP-SGD, on MNIST with two clients."""
    table = {"PFDM": ("PFDM", (5.40, 8.51)), "federated DPDM": ("DPSGD", (31.06, 36.40))}
    found = []
    for method, (ours, values) in table.items():
        config = {"data.name": "mnist", "data.size": None, "clients": 2, "method": ours, "method.epsilon": 10.0}
        for measure, value in zip(("major", "minor"), values, strict=True):
            found.append(
                Number(
                    source="PFDM, comparison with DP-SGD",
                    preset="mnist",
                    config=config,
                    data="MNIST, two clients",
                    method=f"{method}, epsilon 10",
                    measure=f"FID, {measure}",
                    value=f"{value:.2f}",
                    ours=f"eval/fd_cnn/{measure}",
                    differs=f"{FID}; PFDM's epsilon is of local DP of each record, DPDM's of DP-SGD: not comparable",
                )
            )
    return found


# --- SPIRE: Ozkara et al., arXiv 2506.12303, Table 1 ---

KID = "KID there, on Inception features, its settings not given; ours is a kernel distance of a small CNN's features"
SPIRE = {
    "FedAvg + fine-tuning": ("FedAvg", {"mnist": (0.015, 0.028), "cifar10": (0.034, 0.101)}),
    "SPIRE": ("SPIRE", {"mnist": (0.010, 0.012), "cifar10": (0.034, 0.038)}),
    "Shared representation": ("SharedRep", {"mnist": (0.010, 0.017), "cifar10": (0.031, 0.048)}),
    "Meta-learning": ("PerFedAvg", {"mnist": (0.061, 0.079), "cifar10": (0.073, 0.093)}),
}
"""Method in the paper -> ours; data set -> KID of the clients, of new clients."""
SPIRE_DATA = {
    "mnist": ("MNIST", "spire-mnist", {"clients": 30, "data.train": 24_000}, "batch 20 is ours: the paper gives none"),
    "cifar10": ("CIFAR-10", "spire-cifar10", {"clients": 18}, "700 records a client here, 2,750 in the paper"),
}


def _spire() -> list[Number]:
    found = []
    for method, (ours, table) in SPIRE.items():
        for name, values in table.items():
            data, preset, sizes, more = SPIRE_DATA[name]
            config: dict[str, Any] = {**sizes, "data.name": name, "data.size": None, "method": ours}
            for group, value, metric in zip(("clients", "new clients"), values, ("eval", "new"), strict=True):
                found.append(
                    Number(
                        source="SPIRE, Table 1",
                        preset=preset,
                        config=config,
                        data=data,
                        method=method,
                        measure=f"KID, {group}",
                        value=f"{value:.3f}",
                        ours=f"{metric}/kd_cnn/all",
                        differs=f"{KID}; no deviation is given there; {more}",
                    )
                )
    return found


# --- pDP of discrete diffusion: Wei et al., TMLR 2024, Figure 7 ---


def _discrete() -> list[Number]:
    rows = "the paper trains on 6,144 rows of Adult's training table, here on 3,800"
    theirs = "read from a figure, 3 runs; random guessing there 20 %"
    found = []
    for steps, rate, value in (
        (20, 0.1, "about 28"),
        (30, 0.1, "about 29"),
        (20, 1.0, "about 22"),
        (30, 1.0, "about 22"),
    ):
        config = {
            "data.name": "adult",
            "data.train": 3800,
            "method": "LocalOnly",
            "method.model.steps": steps,
            "method.model.schedule": "Linear",
            "method.model.schedule.rate": rate,
        }
        found.append(
            Number(
                source="Wei et al., Figure 7",
                preset="tabular-adult",
                config=config,
                data="Adult",
                method=f"DDM, linear schedule, T = {steps}, rate {rate:g}",
                measure="accuracy of the black-box attack, %",
                value=value,
                ours="eval/blackbox/accuracy",
                differs=f"ours is a fraction, not %; {rows}; {theirs}",
            )
        )
    return found


# --- FedDistr: Zhao et al., arXiv 2410.12530, Figure 4; its Table 2 stands in the tables of `feddistr_table` ---


def _feddistr() -> list[Number]:
    config = {"data.name": "cifar100", "data.superclasses": "cifar100-10x2", "data.size": None, "partition.xi": 0.0}
    more = "read from a figure without a table; the paper does not say how its classifier is trained, which latent "
    more += "model it uses, nor the number of clients"
    arms = (
        ("FedDistr", {"method": "FedDistr", "method.rounds": None}, "about 40", "1 round"),
        ("MOON", {"method": "Moon"}, "about 60", "after 100 rounds there, ours after as many as the setting says"),
    )
    return [
        Number(
            source="FedDistr, Figure 4",
            preset="feddistr-cifar100",
            config={**config, **own},
            data="CIFAR-100, disentangled",
            method=method,
            measure="utility loss, %",
            value=value,
            ours="eval/utility_loss",
            differs=f"ours is a fraction, not %; {rounds}; {more}",
        )
        for method, own, value, rounds in arms
    ]


# --- DPDM: Dockhorn et al., TMLR 2023, Table 1; central DP of records ---


def _dpdm() -> list[Number]:
    differs = f"{FID}; one central data set of 60,000 there, federated clients here; both epsilons are of DP-SGD's "
    differs += "records (add-remove there, zero-out here: one bound), and none is comparable with PFDM's of local DP"
    return [
        Number(
            source="DPDM, Table 1",
            preset="mnist",
            config={
                "data.name": "mnist",
                "data.size": None,
                "data.train": 22_000,
                "method": "DPSGD",
                "method.epsilon": epsilon,
            },
            data="MNIST",
            method=f"DPDM, epsilon {epsilon:g}",
            measure="FID",
            value=value,
            ours="eval/fd_cnn/all",
            differs=differs,
        )
        for epsilon, value in ((1.0, "23.4"), (10.0, "5.01"))
    ]


NUMBERS = (*_pfdm(), *_two_clients(), *_spire(), *_discrete(), *_feddistr(), *_dpdm())
