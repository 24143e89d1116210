"""A sweep's folder: where it is, what it says of itself (sweep.json), and the MLflow runs that follow it."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path, PurePath
from typing import Any

import raydiff
from raydiff import seeding
from raydiff.experiment import config, overrides, trial
from raydiff.experiment.config import Experiment
from raydiff.formats.json_files import outcomes, read_json, sealed
from raydiff.results.finished import find, open_finished
from raydiff.runtime.slots import cap_memory
from raydiff.storage import artifact_sync as readable
from raydiff.storage import staging as away
from raydiff.storage.atomic_files import write_text
from raydiff.storage.storage import storage_at
from raydiff.tracking import mlflow_models
from raydiff.tracking.mlflow_store import ARTIFACTS, redacted
from raydiff.tracking.writer import Mlflow

ELSEWHERE = ("runtime.", "data_digest")
"""Fields that tell no old trial from a new one: where it runs, and what only the data know."""
Plan = dict[str, Any]
"""The content of sweep.json."""
NOT_WRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EFBIG, errno.EIO)


def place(base: Experiment, name: str) -> Path:
    """<storage>/sweeps/<name>, on this machine; nothing is made. Raises ValueError when the name will not do."""
    if not re.fullmatch(r"[\w.-]+", name) or name.startswith("."):
        raise ValueError(f"--name must be letters, digits, '.', '_' and '-', got {name!r}")
    return away.root(base.runtime.storage) / "sweeps" / name


def folder(base: Experiment, name: str) -> Path:
    """`place`, below a storage folder that is there. Raises ValueError when the name or the storage will not do."""
    at = place(base, name)
    storage = at.parents[1]
    check_writable(storage, "the storage folder")
    away.prepare(base.runtime.storage)
    (storage / "sweeps").mkdir(exist_ok=True)
    (storage / "sweeps").chmod(0o700)  # mkdir leaves a folder that is there as open as it was.
    return at


def not_writable(error: BaseException, at: Path) -> str:
    """The sentence for an error that says that the sweep in this folder cannot be written; "" for any other."""
    if isinstance(error, OSError) and error.errno in NOT_WRITABLE:
        return f"the storage folder {at} cannot be written: {error.strerror}"
    return ""


def check_writable(folder: Path, what: str) -> None:
    """Make the folder where there is none. Raises ValueError, in one sentence, where nothing can be written there."""
    probe = folder / f".writable-{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.write_text("")
        probe.unlink()
    except OSError as e:
        raise ValueError(f"{what} {folder} cannot be written: {e.strerror}") from None


def fresh_name(preset: str) -> str:
    """A name that no other sweep has, be it begun in the same second."""
    return f"{preset}-{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:8]}"


def plan(
    at: Path,
    *,
    trials: Sequence[Experiment],
    space: Mapping[str, Any],
    search: str,
    resume: bool,
    extend: bool = False,
    secret: bytes | None = None,
) -> Plan:
    """What sweep.json is to say; nothing is written yet.

    Raises ValueError if the sweep exists, or with `resume`, saying the difference, under other code or another space;
    with `extend` the space may be larger than it was. Under another version of raydiff a sweep of the same trials is
    resumed, and that is printed and noted. Where `secret` is given, the sweep's, it is compared too.
    """
    now: Plan = {
        "id": uuid.uuid4().hex,
        "version": raydiff.__version__,
        "code": _code(),
        "git": _git(),
        "trials": sorted(e.digest for e in trials),
        "space": json.loads(json.dumps(space)),
        "search": search,
        "command": list(sys.argv),
        "secret": seeding.keyed_digest(secret, "sweep", at.name)[:16] if secret else None,  # that it is the same
    }
    path = at / "sweep.json"
    if not path.exists():
        return now
    if not resume:
        raise ValueError(f"{at.name} exists already: continue it with --resume, or give another --name")
    then: Plan = read_json(path, needs="trials")
    if None not in (then.get("secret"), now["secret"]) and then["secret"] != now["secret"]:
        if not (at / "secret").exists() and storage_at(at).remote:
            raise ValueError(f"runtime.noise_secret is not the one that {at.name} was started with")
        raise ValueError(f"{at / 'secret'} is gone or damaged: trials are named by it, and noise is drawn from it")
    changed = sorted(f for f in {*then["code"], *now["code"]} if then["code"].get(f) != now["code"].get(f))
    other = then["version"] != now["version"]
    if changed and not other:
        raise ValueError(f"{at.name} was started under other code; changed since: {', '.join(changed)}")
    old, new = set(then["trials"]), set(now["trials"])
    same = all(then[k] == now[k] for k in ("space", "search"))
    if not same or (old - new if extend else old != new):
        advice = ": --extend adds trials and takes none away" if extend else ""
        advice = ": --extend adds them" if same and not extend and old < new else advice
        raise ValueError(
            f"{at.name} has another space: {len(new - old)} trials are new and {len(old - new)} are gone "
            f"(it was started by: {' '.join(then['command'])}){advice}"
            f"{_apart(at, old - new, [e for e in trials if e.digest not in old])}"
        )
    this = {**then, **{k: now[k] for k in ("trials", "command")}, "extended": True} if new - old else then
    return _under_another_version(at, this, now) if other else this


def _apart(at: Path, gone: set[str], new: Sequence[Experiment]) -> str:
    """By which fields to have a trial that is gone again, said by the new one that is nearest to it; "" where none is
    on disk: a preset that has changed is told so from a grid that was."""
    for path in (at / "trials" / digest / "config.json" for digest in sorted(gone)):
        if not path.exists() or not new:
            continue
        then = overrides.flat(config.read(path))
        news = map(overrides.flat, new)
        apart = [[k for k, v in now.items() if then.get(k, v) != v and not k.startswith(ELSEWHERE)] for now in news]
        fields = " ".join(f"--{k} {overrides.short(then[k])}" for k in min(apart, key=len))
        return f"; trial {path.parent.name} had {fields}" if fields else ""
    return ""


def _under_another_version(at: Path, then: Plan, now: Plan) -> Plan:
    """The plan of a sweep that another version began: which, and what trials have rounds of both, is kept in "before".

    Code that has moved cannot be compared file by file; that trials are the same is what their digests say.
    """
    done = {folder.name for folder, outcome in outcomes(at) if outcome["outcome"] == "finished"}
    both = sorted({path.parent.name for path in at.glob("trials/*/commit-*.json")} - done)
    print(
        f"{at.name} was begun under other code, by raydiff {then['version']}, and this is {now['version']}: "
        f"{len(done)} finished trials keep their numbers; with rounds of both, which one version alone might not have "
        f"given: {', '.join(both) or 'none'}",
        flush=True,
    )
    before = {"version": then["version"], "code": then["code"], "both": both}
    return {**then, **{k: now[k] for k in ("version", "code", "git")}, "before": [*then.get("before", []), before]}


def ended(at: Path, *so: str) -> list[Experiment]:
    """The trials that ended so."""
    return [config.read(folder / "config.json") for folder, outcome in outcomes(at) if outcome["outcome"] in so]


def open_ended(at: Path) -> list[str]:
    """The trials that began and have no outcome."""
    begun = (path.parent for path in at.glob("trials/*/config.json"))
    return sorted(folder.name for folder in begun if not (folder / "outcome.json").exists())


def write(at: Path, this: Plan, secret: bytes, *, again: bool = True) -> None:
    """Write the sweep's secret and sweep.json. `again`: what failed or was cut short by anything but the scheduler will
    be run again."""
    trial.keep_secret(at, secret)  # It is written first, for the trials in sweep.json are named by it.
    write_text(at / "sweep.json", sealed(this, indent=1))
    for folder, outcome in outcomes(at) if again else ():
        if outcome["outcome"] in ("killed", "failed") or outcome.get("reason") == "time budget":
            (folder / "outcome.json").unlink()
    readable.put(at)


def mlflow_experiment(at: Path, base: Experiment, *, asked: str | None) -> str:
    """MLflow's experiment in which a sweep's runs are, or are to be; by default it is called as the data set is. Raises
    ValueError where another is asked for than the one they are in."""
    name = asked or f"raydiff-{PurePath(base.data.name).stem.replace(':', '-')}"
    if not (at / "sweep.json").exists():
        return name
    kept = str(read_json(at / "sweep.json", needs="experiment")["experiment"])
    if asked not in (None, kept):
        raise ValueError(f"{at.name} logs to MLflow's experiment {kept}, not {asked}: leave --experiment out")
    return kept


def mlflow(at: Path, preset: str, base: Experiment, *, experiment: str, samplers: bool) -> Mlflow:
    """The follower of this folder. `samplers`: it logs those of finished trials too."""
    uri, artifacts = tracking_store(at.parents[1])
    return Mlflow(
        uri,
        experiment=experiment,
        sweep=at,
        tags=_tags(preset, base),
        artifacts=artifacts,
        log_sampler=_log_sampler if samplers else None,
        # Under --protocol-only nothing is told but the protocol's own costs.
    )


def tracking_store(storage: Path) -> tuple[str, str | None]:
    """(URI, where artifacts go): MLFLOW_TRACKING_URI, or a SQLite store beside the sweeps."""
    uri = os.environ.get("MLFLOW_TRACKING_URI", f"sqlite:///{storage}/mlflow.db")
    # A server says where artifacts go; a database does not, and MLflow's own choice is the working directory.
    return uri, None if uri.startswith(("http", "databricks")) else f"file://{storage}/{ARTIFACTS}"


def opened_by(at: Path, experiment: str) -> str:
    """What opens a sweep's runs in the MLflow UI, to be said after "open the runs "; the experiment by its number."""
    uri = redacted(tracking_store(at.parents[1])[0])
    # Without the last part MLflow 3 opens on traces of language models.
    page = f"/#/experiments/{experiment}/runs?workflowType=machine_learning"
    if uri.startswith("http"):
        return f"at {uri.rstrip('/')}{page}"
    return f"at http://127.0.0.1:5000{page} after: mlflow ui --backend-store-uri {uri}"


def trial_folder(run: str, storage: Path) -> Path:
    """The trial that is called so: an MLflow run, or as in `finished.find`. Raises ValueError where there is none."""
    if re.fullmatch("[0-9a-f]{32}", run):
        run = mlflow_models.find_trial(tracking_store(storage)[0], run, storage / "sweeps")
    return find(run, storage / "sweeps")


def version() -> dict[str, str]:
    """What files are made by: the version, and the commit where this is a checkout."""
    return {"raydiff": metadata.version("raydiff")} | ({"git": git} if (git := _git()) else {})


def _git() -> str:
    here = str(Path(raydiff.__file__).parent)
    describe = ["git", "-C", here, "describe", "--always", "--dirty", "--abbrev=40", "--match", ""]
    return subprocess.run(describe, capture_output=True, text=True, check=False).stdout.strip()


def _log_sampler(client: Any, run: str, folder: Path) -> None:
    if read_json(folder / "config.json", needs="evaluation")["evaluation"] is None:
        raise ValueError("it holds the clients' own models, and under --protocol-only these stay with them")
    cap_memory(0)  # The GPU belongs to the trials.
    mlflow_models.log_sampler(client, run, open_finished(folder))


def resume_command(name: str) -> str:
    """The command line that continues this sweep."""
    named = any(a == "--name" or a.startswith("--name=") for a in sys.argv)
    return " ".join([command(), *([] if named else ["--name", name]), "--resume"])


def command() -> str:
    """This command line, without a --resume."""
    script, *argv = sys.argv
    program = f"python {script}" if script.endswith("jobs/sweep.py") else "raydiff"
    return " ".join([program, *(a for a in argv if a != "--resume")])


def _code() -> dict[str, str]:
    root = Path(raydiff.__file__).parent
    return {
        str(p.relative_to(root)): hashlib.sha256(p.read_bytes()).hexdigest()[:12] for p in sorted(root.rglob("*.py"))
    }


def _tags(preset: str, base: Experiment) -> dict[str, str]:
    tags = {
        "raydiff.preset": preset,
        "raydiff.accountant": base.method.accountant,
        "raydiff.replayable": str(base.runtime.noise_secret is not None).lower(),
        "mlflow.source.name": redacted(command()),
        "mlflow.source.type": "JOB",
    }
    git = _git().removesuffix("-dirty")
    return tags | ({"raydiff.git": git, "mlflow.source.git.commit": git} if git else {})
