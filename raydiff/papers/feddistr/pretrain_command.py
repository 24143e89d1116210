"""Make the frozen latent diffusion model that FedDistr needs, from public records only. Minutes on one core.

    raydiff pretrain --data.name mnist --data.size 14 --data.public 10000 --out DIR
    raydiff pretrain --training.steps 3000 --out DIR

A public picture that is also in another split is left out. DIR is for --method.model.path: a folder in the form of
Stable Diffusion, with card.json (settings and losses), public.json (a hash of each picture, so that a run can refuse
clients who hold one) and samples.png (for each label: real, decoded and sampled pictures). It is logged to MLflow too.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from raydiff import seeding, tree
from raydiff.cli.options import StorageOptions, parse_command
from raydiff.data import datasets
from raydiff.data.datasets import SPLITS, Data, Dataset
from raydiff.data.picture_files import sample_grid
from raydiff.experiment import overrides
from raydiff.papers.feddistr.latent import model as latent, pretrain
from raydiff.papers.feddistr.latent.pretrain import Pretrained, Pretraining
from raydiff.runtime import sweep_folder
from raydiff.settings import Count, settings
from raydiff.storage import staging
from raydiff.tracking import mlflow_store

SHOWN = 6
STEPS = 50
GUIDANCE = 2.0
"""Of samples.png: real, decoded and sampled pictures in a row, and the sampler's settings."""


@dataclass(frozen=True, kw_only=True)
class PretrainOptions(StorageOptions):
    out: Path
    """Folder to write; it must not exist."""
    no_mlflow: bool = False
    """Do not log the folder to MLflow."""


@settings(frozen=True, kw_only=True)
class Plan:
    """Fields that the command line overrides."""

    data: Data = Data()
    """The data set; its `public` split is trained on."""
    training: Pretraining = Pretraining()
    """Settings of the model and its training."""
    seed: int = 0
    """Of initial weights, batches and noise."""
    threads: Count = 1
    """CPU threads, on which sums depend."""


def main(argv: Sequence[str]) -> int:
    """Read, train, save, draw, log."""
    options, fields = parse_command(PretrainOptions, argv, __doc__, Plan())
    plan: Plan = overrides.override(Plan(), overrides.parse_fields(Plan(), fields))
    if options.out.exists():
        raise ValueError(f"{options.out} exists already: give another --out")
    torch.set_num_threads(plan.threads)
    dataset = datasets.load_dataset(plan.data)
    plan.training.check(dataset.shape)
    if not len(dataset.splits["public"]):
        raise ValueError("there are no public records to train on: set data.public")
    options.out.mkdir(parents=True)  # now, not after minutes
    _draw(plan, dataset, _train(plan, dataset, options.out), options.out)
    print(f"files in {options.out}: {', '.join(sorted(p.name for p in options.out.iterdir()))}")
    if not options.no_mlflow:
        print(_log(dataset, options))
    print(f"use it: --method.model.path {options.out}")
    return 0


def _train(plan: Plan, dataset: Dataset, out: Path) -> Pretrained:
    """Train on the public records that are in no other split, and save."""
    public = dataset.splits["public"]
    kept = pretrain.find_unshared(public.images, [dataset.splits[s].images for s in SPLITS if s != "public"])
    records = public.select(kept)
    left_out = int((~kept).sum())
    print(f"{len(records)} public records of {dataset.says}; {left_out} left out, being in another split too")
    began = time.monotonic()
    rng = seeding.generator(plan.seed, "latent")
    trained = pretrain.pretrain(records.images, records.labels, training=plan.training, rng=rng, say=_print_progress)
    card = {
        "data": overrides.to_dict(plan.data),
        "data_digest": tree.digest(public.leaves),
        "public_records": len(records),
        "left_out": left_out,
        "training": overrides.to_dict(plan.training),
        "seed": plan.seed,
        "threads": plan.threads,
        "words": len(trained.words),
        "losses": trained.losses,
        "seconds": round(time.monotonic() - began, 1),
        "made_by": sweep_folder.code_version(),
    }
    pretrain.save_pretrained(trained, out, images=records.images, card=card)
    return trained


def _print_progress(name: str, done: int, steps: int, loss: float) -> None:
    print(f"{name}: step {done} of {steps}, loss {loss:.4f}", flush=True)


def _draw(plan: Plan, dataset: Dataset, trained: Pretrained, out: Path) -> None:
    """samples.png: a row per label, of real, decoded and sampled pictures."""
    model = latent.load_latent(str(out))
    rng = seeding.generator(plan.seed, "latent samples")
    public = dataset.splits["public"]
    rows = []
    for label in trained.word_labels.unique().tolist():
        real = public.images[public.labels[:, 0] == label][:SHOWN]
        words = trained.draw(label, SHOWN, rng)
        sampled = model.sample(words, rng, shape=dataset.shape, steps=STEPS, guidance=GUIDANCE)
        gap = torch.ones(1, *dataset.shape)
        rows.append(torch.cat([real, gap, model.decode(model.encode(real)), gap, sampled]))
    sample_grid(rows, out / "samples.png", privacy="public split", most=len(rows))


def _log(dataset: Dataset, options: PretrainOptions) -> str:
    staging.create_storage(options.storage)
    uri, artifacts = sweep_folder.tracking_store(options.storage)
    out = options.out
    name = options.out.name
    tags = {
        "raydiff.kind": "latent",
        "raydiff.data": tree.digest(dataset.splits["public"].leaves)[:16],
        "raydiff.latent": latent.load_latent(str(out)).digest,
        "raydiff.privacy": "public split",
        **{f"raydiff.made_by.{k}": v for k, v in sweep_folder.code_version().items()},
    }
    run = mlflow_store.log_folder(uri, out, experiment="raydiff-latent", name=name, tags=tags, artifacts=artifacts)
    return f"logged to {mlflow_store.redact_passwords(uri)}: run {run}, artifact {name}"
