"""Try to turn the uploads of a finished PFDM run back into the records behind them (PFDM, appendix D.2).

    raydiff reconstruct RUN --out DIR                        by the global model, and by one of the public split
    raydiff reconstruct RUN --public-steps 5000 --out DIR    trained for that many steps (default: as a client's)

DIR gets metrics.json and reconstruction.png (rows as in Figures 8 and 9: uploads, originals, reconstructions). They
show private records: both are confidential.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import torch
from annotated_types import Ge
from torch import Tensor

from raydiff import seeding, tree
from raydiff.cli.options import RunOptions, parse_options
from raydiff.data.picture_files import sample_grid
from raydiff.data.records import Records, join_records
from raydiff.experiment.trial import make_clients
from raydiff.formats.json_files import dumps
from raydiff.formats.tables import aligned
from raydiff.models.ddpm import DDPM
from raydiff.models.training import fit
from raydiff.papers.pfdm.controls import POOL
from raydiff.papers.pfdm.method import PFDM
from raydiff.papers.pfdm.reconstruction import Denoise, Reconstruction, compare, reconstruct
from raydiff.results.finished import Finished
from raydiff.settings import Count
from raydiff.storage.atomic_files import write_text
from raydiff.tree import Params

COLUMNS = 10  # of the picture
SHOWN = ("mse", "mse_wrong", "psnr", "ssim", "ssim_wrong", "closest", "closest_in_class")


@dataclass(frozen=True, kw_only=True)
class ReconstructOptions(RunOptions):
    out: Path
    """Folder for the files."""
    records: Annotated[int, Ge(2)] = 256
    """How many uploads are attacked."""
    public_steps: Count | None = None
    """Steps of the attacker's training on the public split."""


def main(argv: Sequence[str]) -> int:
    """Attack the run's uploads with each denoiser, print and save."""
    options = parse_options(ReconstructOptions, argv, __doc__)
    finished = options.open()
    method = method_of_run(finished)
    uploads, originals = load_uploads(finished, method, options.records)
    denoisers = {"global": tree.under("model", finished.server), "pretrained": _pretrained(finished, method, options)}
    images = originals.images
    classes = originals.labels[:, 0]
    attacked = {
        name: reconstruct(make_attacker(method, p), uploads, originals.labels) for name, p in denoisers.items() if p
    }
    if not attacked:
        raise ValueError("there is no attacker: this run has no global denoiser and no public split")
    results = {name: compare(x, images, classes) for name, x in {"upload": uploads, **attacked}.items()}
    print("\n".join(result_lines(results, len(originals), method)))
    metrics = {k: v for name, one in results.items() for k, v in one.metrics(f"reconstruction/{name}").items()}
    options.out.mkdir(parents=True, exist_ok=True)
    write_text(options.out / "metrics.json", dumps(metrics, indent=1))
    rows = {"upload": uploads, "original": images, **dict(reversed(attacked.items()))}
    privacy = "none: the second row are private records"
    picture = options.out / "reconstruction.png"
    sample_grid([x[:COLUMNS] for x in rows.values()], picture, privacy=privacy, names=tuple(rows))
    print(f"files in {options.out}: metrics.json, reconstruction.png")
    return 0


def method_of_run(finished: Finished) -> PFDM:
    """The run's method. Raises ValueError unless noised records were sent."""
    method = finished.trial.experiment.method
    if not isinstance(method, PFDM) or not isinstance(method.model, DDPM):
        raise ValueError(f"{type(method).__name__} sends no noised records: there is nothing to reconstruct")
    if method.start == "noise" or method.epsilon is None:
        what = "nothing" if method.start == "noise" else "its records as they are"
        raise ValueError(f"this run sent {what}: there is nothing to reconstruct")
    return method


def load_uploads(finished: Finished, method: PFDM, count: int) -> tuple[Tensor, Records]:
    """(uploads, the records behind them) of at most `count` records, the same ones in every attack on this run.

    The server's pool has the uploads in the order of the clients that took part.
    """
    trial = finished.trial
    last = trial.store.last_commit()
    assert last is not None  # an opened trial has one
    pool = trial.store.load_server(last[0])[f"{POOL}/x"]
    took_part = sorted(trial.store.ledger().bytes_by_client)
    records = join_records([c.data for c in make_clients(trial, took_part, keys=replace(trial.keys, secret=b""))])
    if len(pool) != len(records):
        raise ValueError(f"the server has {len(pool)} uploads of {len(records)} records: it was tampered with")
    rows = torch.randperm(len(pool), generator=seeding.generator(0, "reconstructed"))[:count]
    return pool[rows], records.select(rows)


def make_attacker(method: PFDM, params: Params) -> Denoise:
    """The client's chain from t0 to 0 with these parameters; the attacker knows that pictures end in [-1, 1]."""
    z = method.model.denoiser(params)
    chain = method.client_sampling

    def denoise(uploads: Tensor, labels: Tensor) -> Tensor:
        rng = seeding.generator(0, "reconstruction")
        return chain.run(method.model, z, uploads, labels=labels, start=method.depth, bound=1.0, rng=rng)

    return denoise


def result_lines(results: Mapping[str, Reconstruction], n: int, method: PFDM) -> list[str]:
    """Lines of text, one per attacker."""
    rows = [["attacker", *SHOWN], *([name, *(f"{getattr(r, k):.4g}" for k in SHOWN)] for name, r in results.items())]
    chance = next(iter(results.values()))
    return [
        f"{n} uploads of depth t0 = {method.depth}, epsilon = {method.epsilon:g} (per example, replace_one, local)",
        *aligned(rows, words=1),
        f"by chance: closest {chance.closest_random:.4g}, closest_in_class {chance.closest_in_class_random:.4g}",
    ]


def _pretrained(finished: Finished, method: PFDM, options: ReconstructOptions) -> Params:
    """A denoiser of the method's model trained on the public split; {} without one."""
    public = finished.dataset.splits["public"]
    steps = options.public_steps
    if not len(public):
        if steps is not None:
            raise ValueError("--public-steps needs public records: the run's data.public is 0")
        print("no pretrained attacker: the run has no public split")
        return {}
    training = method.local if steps is None else replace(method.local, steps=steps, epochs=None)
    training = training.of(len(public))
    print(f"training a denoiser on {len(public)} public records, {training.steps} steps", flush=True)
    rng = seeding.generator(0, "reconstruction", "pretrained")
    fresh = method.model.init(rng)
    return fit(method.model, fresh, public.images, public.labels, training=training, rng=rng)[0]
