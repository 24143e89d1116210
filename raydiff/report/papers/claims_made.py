"""What the papers claim, with their numbers, and where our sweeps could show it.

PFDM: Patel et al., CVPR 2026 (arXiv 2504.00952). SPIRE: Ozkara et al. (arXiv 2506.12303). FedDistr: Zhao et al. (arXiv
2410.12530). pDP: Wei et al., TMLR 2024 (arXiv 2310.15524). Gains are relative to the other side.
"""

from __future__ import annotations

import math

import pandas as pd

from raydiff.report.papers.claims import Claim, Where, higher, holds, lower, same, untested


def of(runs: pd.DataFrame) -> list[Claim]:
    """The claims of the papers whose methods the runs have, for each data set there is."""
    out: list[Claim] = []
    for data in sorted(set(runs["data.name"])) if len(runs) else ():
        own = set(runs[runs["data.name"] == data]["method"])
        model = set(runs[runs["data.name"] == data]["method.model"].dropna())
        out += pfdm(data) if "PFDM" in own else []
        out += spire(data) if "SPIRE" in own else []
        out += feddistr(data) if "FedDistr" in own else []
        out += pdp(data, runs) if "DiscreteDiffusion" in model else []
    return out


# ----------------------------------------------------------------------------------------------------------- PFDM

PIA = "attack/global/pia/auc"


def pfdm(data: str) -> list[Claim]:
    """Tables 1, 2, 4 and 6; the numbers are of coloured MNIST, or of CIFAR-10 where the data are."""
    cifar = data == "cifar10"
    differs = f"{data}, our sizes and networks; Fréchet distance of a small CNN's features, not FID; 2 or 4 clients"

    def where(method: str, **more: object) -> Where:
        return {"method": method, "data.name": data, **more}

    ours, local = where("PFDM", **{"method.epsilon": 10.0}), where("LocalOnly", partition="MajorityMinority")
    minor, major = "eval/fd_cnn/minor", "eval/fd_cnn/major"
    steps = ("method.local.steps", 1000), ("method.local.steps", 8000)
    short, long = (where("LocalOnly", partition="Pooled", **{k: v}) for k, v in steps)
    numbers = {
        "minor": ("35.78 against 36.44", 0.018) if cifar else ("4.79 against 5.99", 0.200),
        "major": ("19.85 against 19.87", 0.001) if cifar else ("1.72 against 2.19", 0.215),
        "fedavg": ("19.15 against 35.78", 0.465) if cifar else ("1.51 against 4.79", 0.685),
        "pia": "50.01 %" if cifar else "49.70 %",
        "longer": "53.0 to 82.1 % (300 to 1,000 epochs)" if cifar else "62.7 to 99.6 % (300 to 1,000 epochs)",
    }
    return [
        Claim(
            says="at epsilon 10 PFDM's minority classes are better than local training's",
            source="Table 1",
            paper=f"FID {numbers['minor'][0]}",
            differs=differs,
            judge=lower(minor, ours, local, gain=float(numbers["minor"][1])),
        ),
        Claim(
            says="and so are its majority classes",
            source="Table 1",
            paper=f"FID {numbers['major'][0]}",
            differs=differs,
            judge=lower(major, ours, local, gain=float(numbers["major"][1])),
        ),
        Claim(
            says="non-private federated training is better for minorities than PFDM",
            source="Table 1",
            paper=f"FID {numbers['fedavg'][0]}",
            differs=differs,
            judge=lower(minor, where("FedAvg"), ours, gain=float(numbers["fedavg"][1])),
        ),
        *(
            Claim(
                says=f"PFDM's {name} classes are better than DP-SGD's at epsilon 10",
                source="Table 2 (MNIST)",
                paper=paper,
                differs=f"{differs}; zero-out for DP-SGD, replace-one for PFDM; DP-SGD for 300 steps",
                judge=lower(metric, ours, where("DPSGD", **{"method.epsilon": 10.0}), gain=gain),
            )
            for name, metric, paper, gain in (
                ("minority", minor, "FID 8.51 against 36.40", 0.766),
                ("majority", major, "FID 5.40 against 31.06", 0.826),
            )
        ),
        Claim(
            says="an attack (PIA) on the global model at epsilon 10 does not tell members from others",
            source="Table 3",
            paper=f"AUC {numbers['pia']}",
            differs=f"{differs}; timestep and threshold from calibration records",
            judge=holds(PIA, ours, 0.5, within=0.03),
        ),
        Claim(
            says="no generated sample is a copy of a training picture",
            source="appendix D.2",
            paper="none",
            differs=differs,
            judge=holds("eval/memorized_fraction", ours, 0.0, within=0.01, at_most=True),
        ),
        Claim(
            says="the attack on a non-private model succeeds the more, the longer it is trained",
            source="Table 6 (appendix)",
            paper=f"AUC {numbers['longer']}",
            differs=f"{differs}; 1,000 against 8,000 steps",
            judge=higher("attack/client/pia/auc", long, short, gain=0.55 if cifar else 0.588),
        ),
        Claim(
            says="a classifier trained on PFDM's samples is better than one trained on local models'",
            source="Table 4 (appendix)",
            paper="CIFAR-10: CNN 57.4 against 55.4 %",
            differs=differs,
            judge=higher("eval/downstream/cnn/all", ours, local, gain=0.036)
            if cifar
            else untested("data (CIFAR-10, CelebA)"),
        ),
        Claim(
            says="the same on CelebA",
            source="Tables 1, 4",
            paper="FID 28.09 against 41.38 (minority)",
            differs="",
            judge=untested("data (CelebA's attributes)"),
        ),
    ]


# ---------------------------------------------------------------------------------------------------------- SPIRE

TABLE_1 = {
    "mnist": {
        "FedAvg": (0.015, 0.028),
        "SharedRep": (0.010, 0.017),
        "PerFedAvg": (0.061, 0.079),
        "SPIRE": (0.010, 0.012),
    },
    "cifar10": {
        "FedAvg": (0.034, 0.101),
        "SharedRep": (0.031, 0.048),
        "PerFedAvg": (0.073, 0.093),
        "SPIRE": (0.034, 0.038),
    },
}
"""KID of clients of the federation and of those that join."""


def spire(data: str) -> list[Claim]:
    """Table 1; where the data are not the paper's, its MNIST numbers stand beside ours."""
    paper = TABLE_1.get(data, TABLE_1["mnist"])
    differs = f"{data}, our networks; kernel distance of a small CNN's features, not KID"
    out = []
    for name, metric, column in (("that join", "new/kd_cnn/all", 1), ("of the federation", "eval/kd_cnn/all", 0)):
        mine = paper["SPIRE"][column]
        for other, words in (
            ("FedAvg", "FedAvg with fine-tuning"),
            ("SharedRep", "shared representations"),
            ("PerFedAvg", "meta-learning"),
        ):
            theirs = paper[other][column]
            if mine >= theirs:
                continue  # no claim
            out.append(
                Claim(
                    says=f"SPIRE serves clients {name} better than {words}",
                    source=f"Table 1 ({data if data in TABLE_1 else 'MNIST'})",
                    paper=f"KID {mine} against {theirs}",
                    differs=differs,
                    judge=lower(
                        metric,
                        {"method": "SPIRE", "data.name": data},
                        {"method": other, "data.name": data},
                        gain=1 - mine / theirs,
                    ),
                )
            )
    celeba = Claim(
        says="SPIRE serves clients that join better than every competitor, on CelebA",
        source="Table 1",
        paper="KID 0.061 against 0.075, 0.094, 0.120",
        differs="",
        judge=untested("data (CelebA's identities)"),
    )
    return [*out, celeba]


# ------------------------------------------------------------------------------------------------------- FedDistr

LOSS = "eval/utility_loss"


def feddistr(data: str) -> list[Claim]:
    """Figures 4, 5 and 7, Table 2. The figures' numbers are read off."""
    differs = f"{data}, a small latent model of our own, 50 rounds of the others; K as in the sweep"

    def where(method: str, xi: float, **more: object) -> Where:
        return {"method": method, "data.name": data, "partition.xi": xi, **more}

    def noiseless(xi: float) -> Where:
        return where("FedDistr", xi, **{"method.epsilon": None, "method.upload": "prompts"})

    many: Where = {"method.rounds": 50, "method.averaging.privacy": None}
    apart = [
        Claim(
            says=f"disentangled clients: one round of FedDistr loses less than {name}",
            source="Figure 4 (CIFAR-100)",
            paper="about 40 % against 60 % and more, after 100 rounds",
            differs=differs,
            judge=lower(LOSS, noiseless(0.0), where(name, 0.0, **many), gain=1 / 3),
        )
        for name in ("FedAvg", "FedProx", "Scaffold", "Moon")
    ]
    return [
        *apart,
        Claim(
            says="FedDistr's loss does not depend on how entangled clients are (to 5 points)",
            source="Figure 4 (CIFAR-100)",
            paper="about 40 % at every xi",
            differs=differs,
            judge=same(LOSS, noiseless(0.385), noiseless(0.0), within=0.05),
        ),
        Claim(
            says="FedProx gains as clients get entangled",
            source="Figure 4 (CIFAR-100)",
            paper="falls with xi",
            differs=differs,
            judge=lower(LOSS, where("FedProx", 0.385, **many), where("FedProx", 0.0, **many), gain=0.1),
        ),
        Claim(
            says="entangled clients: MOON ends with a lower loss than FedDistr",
            source="Figure 7",
            paper="after more than 100 rounds",
            differs=differs,
            judge=lower(LOSS, where("Moon", 0.385, **many), noiseless(0.385), gain=0.1),
        ),
        Claim(
            says="FedDistr sends hundreds of times less than FedAvg",
            source="Table 2",
            paper="30K parameters in one round against 11.7M in each of 80 to 150",
            differs=differs,
            judge=lower("comm/bytes_up", noiseless(0.0), where("FedAvg", 0.0, **many), gain=0.99),
        ),
        Claim(
            says="with noise FedDistr loses less than FedAvg at the same leakage",
            source="Figure 5 (CIFAR-100)",
            paper="lowest at every level of noise",
            differs=f"{differs}; client-level epsilon 1,000 from the ledger, where the paper has a standard deviation",
            judge=lower(
                LOSS,
                where("FedDistr", 0.0, **{"method.epsilon": 1000.0}),
                where("FedAvg", 0.0, **{"method.averaging.privacy.epsilon": 1000.0}),
                gain=1 / 3,
            ),
        ),
        Claim(
            says="FedDistr loses less than FedAvg on DomainNet with 20 clients",
            source="Figure 8",
            paper="at every xi",
            differs="",
            judge=untested("data (DomainNet)"),
        ),
    ]


# ------------------------------------------------------------------------------------------------------------ pDP


def pdp(data: str, runs: pd.DataFrame) -> list[Claim]:
    """Figures 6 and 7."""
    best, end = {"adult": (0.03, 0.78 - 0.81), "german": (0.01, 0.70 - 0.73)}.get(data, (0.01, math.nan))
    differs = f"{data}, bins and classifier of our own"

    def removed(share: float) -> Where:
        return {"method": "LocalOnly", "data.name": data, "audit.remove": share}

    def attacked(rate: float) -> Where:
        return {
            "method": "LocalOnly",
            "data.name": data,
            "method.model.schedule": "Linear",
            "method.model.schedule.rate": rate,
        }

    blackbox = "eval/blackbox/accuracy"
    claims = [
        Claim(
            says="leaving the most exposed tenth out lowers the largest bound of the rest",
            source="Figure 6",
            paper="falls, then levels off",
            differs=differs,
            judge=lower("pdp/own/largest", removed(0.1), removed(0.0), gain=0.1),
        ),
        Claim(
            says=f"leaving {best:.0%} out beats leaving none out, for a classifier on generated rows",
            source="Figure 6",
            paper="better",
            differs=differs,
            judge=higher("eval/accuracy", removed(best), removed(0.0), gain=0.01),
        ),
        Claim(
            says="leaving half out costs about three points of accuracy",
            source="Figure 6",
            paper={"adult": "81 to 78 %", "german": "73 to 70 %"}.get(data, ""),
            differs=differs,
            judge=higher("eval/accuracy", removed(0.0), removed(0.5), gain=-end if end < 0 else 0.03),
        ),
        Claim(
            says="a black-box attack succeeds less, the faster the schedule decays (rate 0.1 against 1)",
            source="Figure 7 (Adult)",
            paper="28 to 22 %, random 20 %",
            differs=differs,
            judge=lower(blackbox, attacked(1.0), attacked(0.1), gain=0.21),
        ),
    ]
    needed = {"audit.remove": claims[:3], f"final/{blackbox}": claims[3:]}
    there = runs[runs["data.name"] == data]
    return [c for column, own in needed.items() if column in there and there[column].nunique() > 1 for c in own]
