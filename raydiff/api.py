"""The Python API: run an experiment or a sweep, and open its results. With `runtime.pool` local no Ray is started."""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from raydiff import process, seeding
from raydiff.data.records import Records, label_numbers, label_values
from raydiff.data.unseen_client import UnseenClient
from raydiff.experiment import presets
from raydiff.experiment.config import Experiment, Runtime
from raydiff.experiment.ledgers import ledger_of
from raydiff.experiment.searchers import Chosen, Space
from raydiff.experiment.study import Arm, Study
from raydiff.federated.method import Method
from raydiff.formats.json_files import outcomes, read_lines, read_plan
from raydiff.formats.metric_records import Metric, columns, read_metrics, select_shown
from raydiff.lookup import allowed_packages
from raydiff.privacy.ledger import Guarantee
from raydiff.results import personalization
from raydiff.results.finished import Finished, is_sweep, open_finished, single_trial
from raydiff.runtime import launch, sweep_folder
from raydiff.runtime.finish import Ended, Reporter
from raydiff.runtime.plan import Planned, SweepRequest, plan_sweep
from raydiff.storage import copies

if TYPE_CHECKING:
    import pandas as pd

Labels = Sequence[int] | Sequence[str] | NDArray[np.int64]
"""A class for each sample, by number or name; or label rows (N, K), by number."""


class Numbers(Mapping[str, float]):
    """Numbers by name, read-only, which are shown as a table."""

    def __init__(self, values: Mapping[str, float]) -> None:
        self._values = dict(values)

    def __getitem__(self, name: str) -> float:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return "\n".join(f"{name:20}{value:.4g}" for name, value in self.items())

    def _repr_html_(self) -> str:
        import pandas as pd

        from raydiff.report import html

        return html.render_table(pd.DataFrame({"number": list(self), "value": [f"{v:.4g}" for v in self.values()]}))


@dataclass(frozen=True)
class Run:
    """A finished trial.

    Examples:
        >>> trial = rd.open("example")
        >>> print(trial.guarantee)
        epsilon inf (no guarantee: weights sent as they are)
        >>> trial.ledger[["client", "rounds"]].values.tolist()
        [[0, 1], [1, 1]]
        >>> trial.sample([3, 8], seed=1).shape
        (2, 1, 8, 8)
    """

    folder: Path
    """Its files."""
    trust: tuple[str, ...] = ()
    """Packages that are imported where the folder names them."""

    @functools.cached_property
    def finished(self) -> Finished:
        """The trial with its data and server state. Raises ValueError where it has not finished."""
        with allowed_packages(self.trust):
            return open_finished(self.folder)

    @property
    def experiment(self) -> Experiment:
        """The settings, resolved against the data."""
        return self.finished.trial.experiment

    @property
    def guarantee(self) -> Guarantee:
        """Guarantee against the server, which sees every upload."""
        return self.finished.uploads

    @property
    def published(self) -> Guarantee:
        """Guarantee against outsiders, who see what the server publishes, or samples of its model."""
        return self.finished.published

    @property
    def metrics(self) -> Numbers:
        """The final numbers that one compares, by plain names as in MLflow: distances, epsilon, attacks, costs."""
        return Numbers(select_shown(self.records))

    @property
    def all_metrics(self) -> dict[str, float]:
        """Every final number by its column: with intervals, noise floors, each attack and sampler."""
        return columns(self.records)

    @property
    def records(self) -> list[Metric]:
        """Every final number as a record."""
        outcome = self.finished.trial.outcome()
        assert outcome is not None
        return read_metrics(outcome["final"])

    @property
    def rounds(self) -> pd.DataFrame:
        """Metrics by round."""
        import pandas as pd

        lines = read_lines(self.folder / "metrics.jsonl")
        rows = [
            {"step": line["step"], "time": line["time"], **columns(read_metrics(line["metrics"]))} for line in lines
        ]
        return pd.DataFrame(rows)

    @property
    def ledger(self) -> pd.DataFrame:
        """Events in words, epsilon and bytes by client."""
        import pandas as pd

        with allowed_packages(self.trust):
            return pd.DataFrame(ledger_of(self.folder).table(self.experiment.method.delta))

    def _repr_html_(self) -> str:
        """Guarantee, final numbers and sample grid, as a notebook shows them."""
        from raydiff.report import html

        grid = self.folder / "artifacts" / "samples.png"
        picture = html.embed_picture(grid.read_bytes(), alt="samples") if grid.exists() else ""
        return "".join([html.paragraph(str(self.guarantee)), self.metrics._repr_html_(), picture])

    def sample(self, labels: Labels, *, client: int | None = None, seed: int = 0) -> NDArray[Any] | pd.DataFrame:
        """Draw samples of a client's model or the server's.

        Args:
            labels: A class for each sample, by number or name; or label rows (N, K), by number.
            client: Whose model; None: the server's.
            seed: Of the samples.

        Returns:
            Images (N, C, H, W) float32 on [-1, 1], or rows of a table.

        Raises:
            ValueError: For an unknown class or client, and where the server has no model to sample.
        """
        return self._sampled(self.finished.source(client).sample, labels, seed)

    def personalize(
        self,
        images: NDArray[Any],
        labels: Labels,
        *,
        epochs: int = 5,
        learning_rate: float | None = None,
        seed: int = 0,
    ) -> Personal:
        """Fit what the method personalises to an unseen client; nothing is sent.

        Args:
            images: Its images, (N, C, H, W) on [-1, 1].
            labels: As of `sample`.
            epochs: Passes over the images.
            learning_rate: None: the method's.
            seed: Of the fit.

        Returns:
            The client's model.

        Raises:
            ValueError: Where the method personalises nothing.
        """
        rows = self._rows(labels)
        records = Records(torch.as_tensor(np.asarray(images), dtype=torch.float32), rows, torch.arange(len(rows)))
        client = UnseenClient(records=records, held_out=records, says="given from Python")
        joining = personalization.Joining(
            self.finished, client, personalization.prepare_distances(self.finished), seed=seed
        )
        rate = learning_rate or personalization.method_of(self.finished).joining.learning_rate
        *_, last = joining.stages(rate, [epochs])
        return Personal(self, joining, last, rate)

    def save(self, folder: str | Path, *, client: int | None = None) -> Path:
        """Write a sampler that needs neither the run nor its data.

        Args:
            folder: Where, a new or empty folder.
            client: Whose model; None: the server's.

        Returns:
            The folder, absolute.
        """
        target = Path(folder).expanduser().absolute()
        self.finished.save_sampler(target, client, shared=client is None)
        return target

    def _sampled(self, sample: Any, labels: Labels, seed: int) -> NDArray[Any] | pd.DataFrame:
        rows = self._rows(labels)
        x: Tensor = sample(rows, seeding.generator(seed, "api"))
        return self.finished.dataset.modality.decode(x, rows, seeding.generator(seed, "api", "numbers"))

    def _rows(self, labels: Labels) -> Tensor:
        """(N, K) label rows. Raises ValueError for an unknown class."""
        names = self.finished.dataset.label_names
        rows = np.asarray(labels)
        if rows.dtype.kind in "UO":
            if unknown := sorted({*rows.tolist()} - {*names[0]}):
                raise ValueError(f"there is no class {unknown[0]!r}: there are {', '.join(names[0])}")
            numbers = dict(zip(names[0], label_numbers(names[0]), strict=True))
            rows = np.array([numbers[name] for name in rows.tolist()])
        rows = rows[:, None] if rows.ndim == 1 else rows
        if rows.shape[1:] != (len(names),):
            raise ValueError(f"labels must be (N, {len(names)}), a number for each label column, got {rows.shape}")
        values = [label_values(rows[:, k], names[k], "labels") for k in range(len(names))]
        return torch.from_numpy(np.stack(values, axis=1))


@dataclass(frozen=True)
class Personal:
    """The model of an unseen client, made by `Run.personalize`.

    Examples:
        >>> import numpy as np
        >>> trial = rd.open("example")
        >>> personal = trial.personalize(np.zeros((4, 1, 8, 8)), [1, 1, 2, 2], epochs=1)
        >>> personal.sample([1], seed=3).shape
        (1, 1, 8, 8)
    """

    run: Run
    """The trial that was fitted."""
    joining: personalization.Joining
    """The client's records and what is trained."""
    stage: personalization.Stage
    """Its trained state."""
    learning_rate: float
    """Of the fit."""

    def sample(self, labels: Labels, *, seed: int = 0) -> NDArray[Any] | pd.DataFrame:
        """Draw samples.

        Args:
            labels: As of `Run.sample`.
            seed: Of the samples.

        Returns:
            As `Run.sample`.
        """
        return self.run._sampled(self.joining.deploy(self.stage.state).sample, labels, seed)

    def save(self, folder: str | Path) -> Path:
        """Write the personal part with its card; to use it again takes the run.

        Args:
            folder: Where.

        Returns:
            The written file.
        """
        target = Path(folder).expanduser().absolute()
        target.mkdir(parents=True, exist_ok=True)
        return personalization.save_personal(target, self.joining, self.stage, rate=self.learning_rate, more={})


@dataclass(frozen=True)
class Sweep:
    """The trials of a sweep.

    Examples:
        >>> sweep = rd.open("examples")
        >>> [type(trial.experiment.method).__name__ for trial in sweep.trials]
        ['FedAvg', 'FedAvg']
        >>> sorted(sweep.runs["seed"])
        [0, 1]
    """

    folder: Path
    """Its files."""
    trust: tuple[str, ...] = ()
    """As of `Run`."""

    @property
    def trials(self) -> list[Run]:
        """The finished trials, by digest."""
        return [
            Run(folder, self.trust) for folder, outcome in outcomes(self.folder) if outcome["outcome"] == "finished"
        ]

    @property
    def runs(self) -> pd.DataFrame:
        """Settings, guarantees and metrics by trial."""
        from raydiff.report import load

        return load.runs(self.folder)

    def frontier(self, *, all: bool = False) -> pd.DataFrame:
        """Compare privacy and quality by setting, over its seeds.

        Args:
            all: Every column, in place of six.

        Returns:
            A row per setting.
        """
        from raydiff.report.frontier.text import brief
        from raydiff.report.sweep_view import open_sweep

        view = open_sweep(self.folder)
        return view.frontier if all else brief(view)

    def best(self) -> Run:
        """Find the best trial, by the sweep's `metric`, else by the measure that ranks the frontier.

        Returns:
            The trial, a finished one.

        Raises:
            ValueError: Where no trial has finished with a measure.
        """
        from raydiff.report.sweep_view import open_sweep

        view = open_sweep(self.folder)
        return Run(view.trial(view.best[0]), self.trust)

    def _repr_html_(self) -> str:
        """The frontier, as a notebook shows it."""
        return f"<p>{self.folder.name}</p>{self.frontier().to_html(index=False)}"

    def report(self) -> Path:
        """Write a page with all tables and pictures.

        Returns:
            The page, report.html.
        """
        from raydiff.report import page
        from raydiff.report.sweep_view import open_sweep

        with allowed_packages(self.trust):
            return page.write_page(self.folder / "report", open_sweep(self.folder))


def run(experiment: Experiment | Study, *, name: str | None = None, resume: bool = False, track: bool = True) -> Run:
    """Run one trial and print each round.

    Args:
        experiment: Its settings; of a study, its base.
        name: None: made of the time.
        resume: Continue the run of this name.
        track: Log to MLflow.

    Returns:
        The finished trial.

    Raises:
        ValueError: Where it cannot begin, or has failed.

    Examples:
        >>> method = rd.FedAvg(rounds=1, model=rd.DDPM(timesteps=20), local=rd.Training(steps=4))
        >>> here = rd.Runtime(pool="local")  # in this process, without Ray
        >>> experiment = rd.Experiment(method=method, runtime=here, evaluation=None)
        >>> trial = rd.run(experiment, name="example", track=False)
        round 1/1: ... s
        >>> trial.metrics["bytes_sent"] > 0
        True
    """
    from raydiff.report.after_sweep import SUMMARY

    study = Study(experiment=experiment.experiment if isinstance(experiment, Study) else experiment)
    planned, ended = _start("run", study, SweepRequest(), name=name, resume=resume, report=SUMMARY, track=track)
    result = Run(planned.folder / "trials" / planned.trials[0].digest, tuple(planned.packages))
    if ended.failed and not (result.folder / "outcome.json").exists():
        raise ValueError(f"{planned.folder.name} did not begin: {ended.failed}")
    result.finished  # noqa: B018  # raises where it has not finished
    return result


def sweep(
    base: Experiment | Study,
    *,
    grid: Mapping[str, Sequence[Any]] | None = None,
    beside: Sequence[Arm | Method] = (),
    search: Chosen | None = None,
    sample: Space | None = None,
    samples: int | None = None,
    scheduler: Chosen | None = None,
    metric: str | None = None,
    concurrent: int | None = None,
    budget_s: float | None = None,
    name: str | None = None,
    resume: bool = False,
    track: bool = True,
) -> Sweep:
    """Run every combination of axes, and comparisons beside them; then report.

    Args:
        base: The experiment that trials are changes of, or a study.
        grid: Axes: field path -> values. None: the study's.
        beside: Comparisons. A method takes from the base's method what it leaves at its default.
        search: grid, random, optuna or `module:Name`; with keywords: (name, {keyword: value}). None, here and below: as
            the study has it.
        sample: Field path -> (distribution, values) that a search draws from.
        samples: Number of settings that it draws.
        scheduler: asha, median or `module:Name`, with keywords as `search`; it stops bad trials early.
        metric: The final number that is optimised, such as eval/fd_cnn/all.
        concurrent: Trials at a time, at most; None: as many as fit.
        budget_s: Seconds after which no trial starts, and those that run are stopped.
        name: None: made of the time.
        resume: Continue the sweep of this name.
        track: Log to MLflow.

    Returns:
        The sweep, ended.

    Raises:
        ValueError: Where it may not begin.

    Examples:
        >>> method = rd.FedAvg(rounds=1, model=rd.DDPM(timesteps=20), local=rd.Training(steps=4))
        >>> here = rd.Runtime(pool="local")
        >>> base = rd.Experiment(method=method, runtime=here, evaluation=None)
        >>> sweep = rd.sweep(base, grid={"seed": [0, 1]}, name="examples", track=False)
        sweep examples: 2 trials in ...
        >>> len(sweep.trials)
        2
    """
    from raydiff.report.after_sweep import FULL

    study = base if isinstance(base, Study) else Study(experiment=base)
    arms = tuple(arm if isinstance(arm, Arm) else Arm(method=arm) for arm in beside)
    study = replace(study, beside=(*study.beside, *arms))
    searching = study.search.changed(searcher=search, space=sample, samples=samples, scheduler=scheduler, metric=metric)
    study = replace(study, search=searching)
    asked = SweepRequest(grid=grid, concurrent=concurrent, budget_s=budget_s)
    planned, ended = _start("sweep", study, asked, name=name, resume=resume, report=FULL, track=track)
    return Sweep(ended.folder, tuple(planned.packages))


def preset(name: str) -> Study:
    """Look up a preset or read an experiment file.

    Args:
        name: Such as digits, or a file's that ends in .toml.

    Returns:
        The study: its experiment, axes and comparisons.

    Raises:
        ValueError: For an unknown name.

    Examples:
        >>> rd.preset("digits").grid["clients"]
        (2, 4)
    """
    return presets.study(name)


def open(name: str | Path, *, storage: str | Path = Runtime.storage, trust: Sequence[str] = ()) -> Run | Sweep:
    """Open a run or a sweep.

    Args:
        name: Its name, folder, place in a bucket, MLflow run's id, SWEEP/DIGEST, or digest.
        storage: A folder or bucket.
        trust: Packages from which code that the folder names is imported; no other is.

    Returns:
        The sweep; of one trial, its run.

    Raises:
        ValueError: Where none or several have the name.

    Examples:
        >>> rd.open("example").experiment.method.rounds
        1
    """
    root = copies.fetch_for_reading(str(storage)).expanduser().absolute()
    folder = sweep_folder.find_folder(str(copies.fetch_for_reading(str(name))), root)
    plan = read_plan(folder) if (folder / "sweep.json").exists() else {}
    several = len(plan.get("trials", ())) != 1 or plan.get("suggested")  # trials that are not planned
    whole = is_sweep(folder) and several
    return Sweep(folder, tuple(trust)) if whole else Run(single_trial(folder), tuple(trust))


def _start(
    call: str, study: Study, asked: SweepRequest, *, name: str | None, resume: bool, track: bool, report: Reporter
) -> tuple[Planned, Ended]:
    """Plan and run trials as a command does.

    Files are this user's only, output may fail, and signals end trials in order. The signal is raised again at the end:
    a script ends too.
    """
    name = name or sweep_folder.fresh_name(call)
    umask = os.umask(0o077)
    try:
        with process.optional_output("stdout", "stderr"), process.stop_signals(process.interrupt):
            planned = plan_sweep(call, study, asked, name=name)
            called = f'rd.{call}(..., name="{name}")'
            ended = launch.start(planned, resume=resume, track=track, report=report, call=called)
            ended.print_incomplete()
    finally:
        os.umask(umask)
    if ended.interrupted:
        signal.raise_signal(ended.interrupted)
        raise KeyboardInterrupt(ended.interrupted)  # Where the signal is ignored, as in the background of a shell.
    return planned, ended
