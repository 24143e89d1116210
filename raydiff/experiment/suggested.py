"""Default settings for a data set by size and shape, and the experiment file with them (docs/how-to/init.md)."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from raydiff.data import source_registry
from raydiff.data.datasets import Data, Dataset
from raydiff.data.public_preview import suggest_clip
from raydiff.data.tables import cells, read
from raydiff.evaluation.evaluation_settings import Evaluation
from raydiff.formats import json_files
from raydiff.models.training import Training

SPLITS = {"public": (0.14, 1000), "validation": (0.11, 500), "calibration": (0.06, 500), "test": (0.22, 1000)}
"""Split -> (fraction of the rows, most records). The fractions are those of digits."""
TRAIN = 0.47  # Fraction of the rows that the others leave.
RECORDS = 10_000  # Most training pictures on a CPU: 12,000 steps pass 77 times over them.
PICTURES_BY = ("data.name", "data.size", "data.colour")
CLIP_BY = (*PICTURES_BY, "data.labels", "data.public", "data.public_from", "data.test", "data.split_seed")
NETWORK = ("method.model.network.width", "method.model.network.widths", "method.local.steps", "method.server.steps")
CHOSEN_BY = {"method.clip": CLIP_BY, **dict.fromkeys(NETWORK, PICTURES_BY)}
"""Setting -> fields that it was chosen by. The clip's decide which pictures are public; of other splits, some of these
are private."""
ORDER = ("data", "partition", "unseen", "method", "audit", "evaluation", "numerics", "runtime", "chosen_by")
FEWEST = 40  # With fewer records in a class the partition is iid.
TABLE_EPOCHS = 100
TABLE_STEPS = 20_000
SIZES = ((64, 256, 2000, 2e-3), (256, 384, 4000, 1e-3), (math.inf, 512, 12_000, 1e-3))
"""(most values of a picture, width of the MLP, most steps of each training, initial learning rate)."""
PICTURE_EPOCHS = 200
FEWEST_STEPS = 100
"""Passes over the records in a training, and its fewest steps: more passes copy records (docs/how-to/init.md)."""
DP_SGD = {"batch": 64, "steps": 1000, "learning_rate": 3e-3, "decay": "cosine"}
RELEASING: Mapping[str, Mapping[str, Any]] = {
    "Marginals": {},
    "DPSGD": {f"method.local.{name}": value for name, value in DP_SGD.items()} | {"method.relation": "replace_one"},
}
"""Methods whose rows of a table carry a guarantee -> their settings, for DP-SGD those of frontier-adult."""
BATCH = Training.batch
WHOSE = {"local": "a client", "server": "all clients"}
MANY = 3072  # From this many values on an MLP samples colours and outlines, not objects.


@dataclass(frozen=True)
class Suggestion:
    """Settings that differ from a preset."""

    preset: str
    values: Mapping[str, Any]
    """Field path -> value as in an experiment file."""
    why: Mapping[str, str] = field(default_factory=dict)
    """Field path -> comment in the file."""
    warns: str = ""
    """A warning about sample quality, or ""."""


def splits(data: Data, changes: Mapping[str, Any]) -> dict[str, int]:
    """Return default sizes, by field path, of the splits that the user's changes leave open.

    That of train is among them for more than RECORDS pictures without a GPU.
    """
    folder = source_registry.folder_of(data.name, data.root)
    if folder is not None and read.is_file(data.name):  # Only counts rows: the public ones are not chosen yet.
        rows = len(cells.read_cells(folder, data.csv).frame)
        test_rows = 0
    else:
        source = source_registry.open_source(data.name, folder, data.labels, table=data.superclasses)
        rows = len(source.labels) - source.own_test
        test_rows = source.own_test
    by_hand = {split: getattr(data, split) or 0 for split in ("train", *SPLITS) if f"data.{split}" in changes}
    suggested = {split: of for split, of in SPLITS.items() if split not in by_hand}
    left = rows - sum(by_hand.values()) + (by_hand.get("test", 0) if test_rows else 0)
    needed = sum(fraction for fraction, _ in suggested.values()) + TRAIN * (not by_hand.get("train"))
    sizes = {
        f"data.{split}": max(1, min(most, int(fraction * rows), int(fraction / needed * left)))
        for split, (fraction, most) in suggested.items()
    }
    if test_rows and "test" in suggested:
        sizes["data.test"] = min(SPLITS["test"][1], test_rows)
    on_cpu = not (read.is_table(data.name) or torch.cuda.is_available())
    if on_cpu and "train" not in by_hand and left - sum(sizes.values()) > RECORDS:
        sizes["data.train"] = RECORDS
    return sizes


def for_pictures(dataset: Dataset, *, clients: int, gpu: bool) -> Suggestion:
    """Suggest PFDM: network by the pictures' size, steps by their number, clip by the public records' norms."""
    pixels = math.prod(dataset.shape)
    train = dataset.splits["train"]
    public = dataset.splits["public"]
    target = 'target: per record, replace-one, local trust, delta 1e-5, exact accountant; or "none"'
    entries: dict[str, tuple[Any, str]] = {"clients": (clients, "")}  # path -> value, comment
    if len(train) == RECORDS and not gpu:
        entries["data.train"] = RECORDS, "enough for a CPU; none takes all that the other splits leave"
    entries |= {"method.model.schedule": ("cosine", ""), "method.epsilon": (10.0, target)}
    fewest = int(train.labels[:, 0].unique(return_counts=True)[1].min())
    if fewest < FEWEST:
        entries["partition.kind"] = "iid", f"a class has {fewest} training records: too few for a minority"
    if len(public):
        clip = float(f"{suggest_clip(public, 'grey'):.3g}")
        entries["method.clip"] = clip, "the median L2 norm of the public pictures"
    entries |= _network(dataset, clients=clients, gpu=gpu)
    if (dim := int(len(dataset.splits["test"]) * 0.08)) < Evaluation().dim:
        entries["evaluation.dim"] = max(1, dim), "as many features as so few test records can estimate"
    if gpu:
        comment = "fraction of a GPU: a worker beside the coordinator on one"
        entries |= {"runtime.gpu_per_worker": (0.5, comment), "runtime.gpu_server": (0.5, "")}
    entries["runtime.workers"] = "none", "as many as fit, at most one for each client"
    warning = (
        f"{pixels} values per picture are many for a CPU: expect colours and outlines, not objects. Use a machine with "
        "a GPU, or smaller pictures (--data.size 14)."
    )
    return Suggestion(
        "digits",
        values={path: value for path, (value, _) in entries.items()},
        why={path: comment for path, (_, comment) in entries.items() if comment},
        warns=warning if pixels >= MANY and not gpu else "",
    )


def _network(dataset: Dataset, *, clients: int, gpu: bool) -> dict[str, tuple[Any, str]]:
    """Entries of the network and of its trainings."""
    pixels = math.prod(dataset.shape)
    network = "method.model.network"
    if gpu:
        scales = sum(dataset.shape[1] % 2**n == 0 and dataset.shape[2] % 2**n == 0 for n in range(3))
        entries: dict[str, tuple[Any, str]] = {
            f"{network}.kind": ("unet", ""),
            f"{network}.widths": ([64, 128, 128][:scales], ""),
        }
        most_steps = 20_000
        rate = 2e-4
    else:
        width, most_steps, rate = next((w, n, lr) for most, w, n, lr in SIZES if pixels <= most)
        comment = f"for the {pixels} values of a picture; a UNet is for a GPU"
        entries = {f"{network}.kind": ("mlp", ""), f"{network}.width": (width, comment), f"{network}.skip": (True, "")}
    records = len(dataset.splits["train"])
    for training, seen in (("local", max(1, records // clients)), ("server", records)):
        steps = min(most_steps, max(FEWEST_STEPS, round(PICTURE_EPOCHS * seen / BATCH)))
        comment = f"{steps * BATCH / seen:.0f} passes over the {seen} pictures of {WHOSE[training]}"
        entries |= {f"method.{training}.steps": (steps, comment), f"method.{training}.learning_rate": (rate, "")}
    return entries


def for_rows(dataset: Dataset, *, clients: int, gpu: bool) -> Suggestion:
    """Suggest discrete diffusion of one client on the rows of a table, with a privacy bound per row."""
    rows = len(dataset.splits["train"])
    steps = min(TABLE_STEPS, TABLE_EPOCHS * math.ceil(rows / 30))
    why = {
        "data.train": f"all that the others leave: {rows}",
        "method.local.steps": f"{steps * 30 / rows:.0f} epochs of {rows} rows in batches of 30",
    }
    values: dict[str, Any] = {"data.train": "none", "method.local.steps": steps}
    if len(dataset.splits["train"].labels.unique()) < 2:
        values["evaluation.attacks"] = None
        why["evaluation.attacks"] = "the training rows have one class only, and attacks compare classes"
    return Suggestion("tabular-german", values, why)


SUGGESTED: Mapping[str, Callable[..., Suggestion]] = {"pictures": for_pictures, "rows": for_rows}
"""Modality -> its settings."""


def suggested(dataset: Dataset, *, clients: int) -> Suggestion:
    """Return settings for this data set on this machine."""
    if (name := dataset.modality.name) not in SUGGESTED:
        raise ValueError(f"there are no suggested settings for {name}, only for {', '.join(SUGGESTED)}")
    return SUGGESTED[name](dataset, clients=clients, gpu=torch.cuda.is_available())


def written(head: str, suggestion: Suggestion, values: Mapping[str, Any]) -> str:
    """Return an experiment file with `head` as comment; suggested values have theirs."""
    lines = [
        *(f"# {line}" for line in head.splitlines()),
        "",
        f'preset = "{suggestion.preset}"  # all other settings are those of this preset',
    ]
    tables: dict[str, list[str]] = {"": []}
    for path, value in values.items():
        table, _, key = path.rpartition(".")
        as_suggested = path in suggestion.why and value == suggestion.values.get(path)
        comment = f"  # {suggestion.why[path]}" if as_suggested else ""
        tables.setdefault(table, []).append(f"{key} = {_toml(value)}{comment}")
    chosen = [path for path, value in suggestion.values.items() if path in CHOSEN_BY and values.get(path) == value]
    if chosen:  # A run that changes one of the fields must give the setting too.
        tables["chosen_by"] = [f"{path} = {_toml(CHOSEN_BY[path])}" for path in chosen]
    lines += tables.pop("")
    for table in sorted(tables, key=lambda table: (ORDER.index(table.partition(".")[0]), table)):
        lines += ["", f"[{table}]", *tables[table]]
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, float):
        return str(value)  # JSON has no inf.
    return json_files.dumps("none" if value is None else value, ensure_ascii=False)
