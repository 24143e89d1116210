"""What one does with raydiff from Python: run an experiment or a sweep, and open what it left.

Nothing here starts Ray where `runtime.pool` is local. What is written is readable by its user alone.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from raydiff import seeding
from raydiff.data.records import Records
from raydiff.data.unseen_client import Newcomer
from raydiff.experiment import presets as names
from raydiff.experiment.config import Experiment, Runtime
from raydiff.experiment.ledgers import ledger_of
from raydiff.experiment.study import Arm, Study
from raydiff.federated.method import Method
from raydiff.formats.json_files import outcomes, read_lines
from raydiff.models.d3pm import codes_of
from raydiff.privacy.ledger import Guarantee
from raydiff.results import personalization as personalize
from raydiff.results.finished import Finished, open_finished
from raydiff.runtime import launch, sweep_folder
from raydiff.runtime.plan import Asked, Search, Space, plan
from raydiff.storage import artifact_sync as readable

if TYPE_CHECKING:
    import pandas as pd

STORAGE = Runtime().storage
Labels = Sequence[int] | Sequence[str] | NDArray[np.int64]
"""A class for each sample, by number or name; or label rows (N, K), by number."""


@dataclass(frozen=True)
class Run:
    """A trial that has finished. Raises ValueError, in one sentence, where it has not."""

    folder: Path
    """Where its files are."""

    @functools.cached_property
    def finished(self) -> Finished:
        """The trial with its data and the server's state."""
        return open_finished(self.folder)

    @property
    def experiment(self) -> Experiment:
        """What was run, with what only the data could tell filled in."""
        return self.finished.trial.experiment

    @property
    def guarantee(self) -> Guarantee:
        """What holds against the server, which sees every upload."""
        return self.finished.uploads

    @property
    def published(self) -> Guarantee:
        """What holds against outsiders, who see what the server publishes: of samples of its model alone."""
        return self.finished.published

    @property
    def metrics(self) -> dict[str, float]:
        """The final numbers: distances, attacks, epsilons, bytes, seconds."""
        outcome = self.finished.trial.outcome()
        assert outcome is not None
        return dict(outcome["final"])

    @property
    def rounds(self) -> pd.DataFrame:
        """A row for each round, a column for each number."""
        import pandas as pd

        lines = read_lines(self.folder / "metrics.jsonl")
        return pd.DataFrame([{k: v for k, v in line.items() if not isinstance(v, Mapping)} for line in lines])

    @property
    def ledger(self) -> pd.DataFrame:
        """What was sent, by client: events in words, epsilon, bytes."""
        import pandas as pd

        return pd.DataFrame(ledger_of(self.folder).table(self.experiment.method.delta))

    def sample(self, labels: Labels, *, client: int | None = None, seed: int = 0) -> NDArray[Any] | pd.DataFrame:
        """A sample for each label: images (N, C, H, W) float32 on [-1, 1], or the rows of a table.

        Of a client's own model, or with None the server's. Raises ValueError for a class or a client that does not
        exist, and where the server has no model that can be sampled.
        """
        return self._made(self.finished.source(client).sample, labels, seed)

    def personalize(
        self,
        images: NDArray[Any],
        labels: Labels,
        *,
        epochs: int = 5,
        learning_rate: float | None = None,
        seed: int = 0,
    ) -> Personal:
        """A new client makes the run's model its own: it trains what the method personalises on these images
        (N, C, H, W) on [-1, 1], and sends nothing.

        Default learning rate: the method's own. Raises ValueError where the method personalises nothing.
        """
        rows = self._rows(labels)
        records = Records(torch.as_tensor(np.asarray(images), dtype=torch.float32), rows, torch.arange(len(rows)))
        client = Newcomer(records=records, held_out=records, says="given from Python")
        joining = personalize.Joining(self.finished, client, personalize.prepare(self.finished), seed=seed)
        rate = learning_rate or personalize.method_of(self.finished).joining.learning_rate
        *_, last = joining.stages(rate, [epochs])
        return Personal(self, joining, last, rate)

    def save(self, folder: str | Path, *, client: int | None = None) -> Path:
        """The sampler of a client, or with None of the server, as a folder that needs neither the run nor its data."""
        target = Path(folder).expanduser().absolute()
        self.finished.save_sampler(target, client, shared=client is None)
        return target

    def _made(self, sample: Any, labels: Labels, seed: int) -> NDArray[Any] | pd.DataFrame:
        rows = self._rows(labels)
        made: Tensor = sample(rows, seeding.generator(seed, "api"))
        if (mapping := self.finished.dataset.mapping) is not None:
            return mapping.decode(codes_of(made).numpy(), rows[:, 0].numpy())
        return made.numpy()

    def _rows(self, labels: Labels) -> Tensor:
        """(N, K) label rows. Raises ValueError for a class that does not exist."""
        names = self.finished.dataset.label_names
        given = np.asarray(labels)
        if given.dtype.kind in "UO":
            known = {name: number for number, name in enumerate(names[0])}
            if unknown := sorted(set(given.tolist()) - known.keys()):
                raise ValueError(f"there is no class {unknown[0]!r}: there are {', '.join(names[0])}")
            given = np.array([known[name] for name in given.tolist()])
        rows = given[:, None] if given.ndim == 1 else given
        if rows.shape[1:] != (len(names),):
            raise ValueError(f"labels must be (N, {len(names)}), a number for each label column, got {given.shape}")
        for column, of in zip(rows.T, names, strict=True):
            if len(column) and not 0 <= column.min() <= column.max() < len(of):
                raise ValueError(f"labels must be in 0..{len(of) - 1}, got {column.min()}..{column.max()}")
        return torch.as_tensor(rows, dtype=torch.long)


@dataclass(frozen=True)
class Personal:
    """A new client's own model."""

    run: Run
    joining: personalize.Joining
    stage: personalize.Stage
    learning_rate: float

    def sample(self, labels: Labels, *, seed: int = 0) -> NDArray[Any] | pd.DataFrame:
        """As `Run.sample`."""
        return self.run._made(self.joining.deploy(self.stage.state).sample, labels, seed)

    def save(self, folder: str | Path) -> Path:
        """What was trained, with its card; it needs the run to be used again."""
        target = Path(folder).expanduser().absolute()
        target.mkdir(parents=True, exist_ok=True)
        return personalize.save(target, self.joining, self.stage, rate=self.learning_rate, more={})


@dataclass(frozen=True)
class Sweep:
    """The trials of a sweep."""

    folder: Path
    """Where its files are."""

    @property
    def trials(self) -> list[Run]:
        """Those that have finished, by digest."""
        return [Run(folder) for folder, outcome in outcomes(self.folder) if outcome["outcome"] == "finished"]

    @property
    def runs(self) -> pd.DataFrame:
        """A row for each trial: what was set, what it guarantees, what came out."""
        from raydiff.report import load

        return load.runs(self.folder)

    def frontier(self) -> pd.DataFrame:
        """Privacy against quality: a row for each setting, over its seeds."""
        from raydiff.report.frontier.rows import frontier

        return frontier(self.runs)

    def plot(self, file: str | Path | None = None) -> Path:
        """The frontier as a picture; default: frontier.png in its report. Raises ValueError without distances."""
        from raydiff.report.frontier.scatter import draw

        target = Path(file).expanduser() if file else self.folder / "report" / "frontier.png"
        target.parent.mkdir(parents=True, exist_ok=True)
        draw(self.frontier(), target)
        return target

    def report(self) -> Path:
        """A page with all tables and pictures."""
        from raydiff.report import page

        return page.write(self.folder / "report", self.folder)


def run(experiment: Experiment, *, name: str | None = None, resume: bool = False, track: bool = True) -> Run:
    """Run one trial, in this process where `runtime.pool` is local, else on Ray; it says each round.

    `resume` continues the run of this name; `track` logs it to MLflow. Raises ValueError where it cannot begin, and
    where it fails.
    """
    name = name or sweep_folder.fresh_name("run")
    with _private():
        planned = plan("run", Study(experiment=experiment), Asked(samplers=track), name=name)
        from raydiff.report.after_sweep import SUMMARY

        ended = launch.start(planned, resume=resume, report=SUMMARY, track=track)
    (trial,) = planned.trials
    done = Run(ended.folder / "trials" / trial.digest)
    done.finished  # noqa: B018  # raises where it is not
    return done


def sweep(
    base: Experiment | Study,
    *,
    grid: Mapping[str, Sequence[Any]] | None = None,
    beside: Sequence[Arm | Method] = (),
    search: Search = "grid",
    sample: Space | None = None,
    samples: int = 16,
    metric: str | None = None,
    concurrent: int | None = None,
    budget_s: float | None = None,
    name: str | None = None,
    resume: bool = False,
    track: bool = True,
) -> Sweep:
    """Run every combination of the axes `grid` (field path -> values) on `base`, and the arms `beside` it on those axes
    that they have; then report.

    A method as an arm takes from the base's method what it leaves at its default. `search` and what follows are as for
    `raydiff sweep`. Raises ValueError where the sweep may not begin.
    """
    study = base if isinstance(base, Study) else Study(experiment=base)
    arms = tuple(arm if isinstance(arm, Arm) else Arm(method=arm) for arm in beside)
    study = replace(study, beside=(*study.beside, *arms))
    asked = Asked(
        grid=grid,
        search=search,
        sample=sample or {},
        samples=samples,
        metric=metric,
        concurrent=concurrent,
        budget_s=budget_s,
    )
    name = name or sweep_folder.fresh_name("sweep")
    with _private():
        planned = plan("sweep", study, asked, name=name)
        from raydiff.report.after_sweep import FULL

        return Sweep(launch.start(planned, resume=resume, report=FULL, track=track).folder)


def preset(name: str) -> Study:
    """A study that comes with raydiff, such as digits, or that of an experiment file. Raises ValueError for a name that
    is unknown."""
    return names.study(name)


def open(name: str | Path, *, storage: str | Path = STORAGE) -> Run | Sweep:
    """What a run or a sweep has left: by its folder, the sweep's name, an MLflow run's id, SWEEP/DIGEST or a digest.

    `storage` is where names are looked up, a folder or a bucket; a sweep may also be named in its bucket. Raises
    ValueError where there is no such thing, or more than one.
    """
    name, at = readable.fetched(str(name)), readable.fetched(str(storage)).expanduser().absolute()
    for folder in (name.expanduser().absolute(), at / "sweeps" / str(name)):
        if (folder / "trials").is_dir():
            return Sweep(folder)
    return Run(sweep_folder.trial_folder(str(name), at))


@contextlib.contextmanager
def _private() -> Iterator[None]:
    """What is written within is its user's alone."""
    umask = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(umask)
