"""A sweep's folder: its place, its description in sweep.json, and its MLflow runs."""

import errno
import hashlib
import os
import re
import shlex
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

import raydiff
from raydiff import seeding
from raydiff.experiment import trial
from raydiff.experiment.config import Experiment
from raydiff.experiment.study import Varying
from raydiff.formats.json_files import dumps, outcomes, read_json, read_plan, trial_folders
from raydiff.results.finished import find, is_sweep, open_finished, single_trial
from raydiff.runtime.place import cap_memory
from raydiff.storage import atomic_files, copies, object_store, staging
from raydiff.storage.storage import storage_at
from raydiff.tracking import mlflow_models, mlflow_store, mlflow_writer, shared_view

Plan = dict[str, Any]  # the content of sweep.json
UNFINISHED = {"failed", "killed", "time budget"}  # outcomes and reasons of trials that a resumed sweep runs again
NOT_WRITABLE = {
    *(errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES),
    *(errno.EPERM, errno.EFBIG, errno.EIO, errno.ENAMETOOLONG),
}
SMALL_BYTES = 50_000_000  # of a sampler that a sweep of several trials logs
LONGEST = 200  # bytes of a name: file systems take 255


def locate_sweep(base: Experiment, name: str) -> Path:
    """Return <storage>/sweeps/<name> on this machine; nothing is created. Raises ValueError for an invalid name."""
    if not re.fullmatch(r"[\w.-]+", name) or name.startswith(".") or len(os.fsencode(name)) > LONGEST:
        raise ValueError(f"a sweep's name must be at most {LONGEST} letters, digits, '.', '_' and '-', got {name!r}")
    return staging.storage_root(base.runtime.storage) / "sweeps" / name


def create_folder(base: Experiment, name: str) -> Path:
    """Create the storage folder, and return `place`. Raises ValueError for an invalid name or unusable storage."""
    at = locate_sweep(base, name)
    storage = at.parents[1]
    check_writable(storage, "the storage folder", links=True)
    staging.prepare_storage(base.runtime.storage)
    (storage / "sweeps").mkdir(exist_ok=True)
    (storage / "sweeps").chmod(0o700)  # mkdir does not change the mode of an existing folder.
    return at


def not_writable(error: BaseException, at: Path) -> str:
    """Return a message if the error means that the sweep's folder cannot be written; "" for any other error."""
    if isinstance(error, OSError) and error.errno in NOT_WRITABLE:
        return f"the storage folder {at} cannot be written: {error.strerror}"
    return ""


def check_writable(folder: Path, what: str, *, links: bool = False) -> None:
    """Create the folder if it does not exist. Raises ValueError if it cannot be written, or cannot hold hard links."""
    probe = folder / f".writable-{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        atomic_files.write_bytes(probe, bytes(4096), if_absent=links)  # A full disk still takes an empty file.
        probe.unlink()
    except OSError as e:
        remedy = "set runtime.storage to a folder on a local disk, NFS or Lustre, or a bucket"
        can = f"needs hard links, which exFAT and some network mounts lack ({remedy})"
        if e.filename2 is None:  # Else it was the link, by which one of several processes gets a lease or a round.
            can = "cannot be written"
        why = "it is a file" if isinstance(e, FileExistsError) else e.strerror
        raise ValueError(f"{what} {folder} {can}: {why}") from None


def fresh_name(preset: str) -> str:
    """Return a unique name, also among sweeps that begin in the same second."""
    return f"{preset}-{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:8]}"


def describe_sweep(
    at: Path,
    *,
    trials: Sequence[Experiment],
    search: Mapping[str, Any],
    resume: bool,
    extend: bool = False,
    secret: bytes,
    data: str,
    experiment: str | None = None,
    call: str = "",
) -> Plan:
    """Return the content of sweep.json.

    `data`: the name of the data set; `experiment`: the MLflow experiment that was asked for; `call`: the Python call
    that starts the sweep; "": this command line. Raises ValueError if the sweep exists and may not be continued so.
    """
    now: Plan = {
        "id": uuid.uuid4().hex,
        "version": raydiff.__version__,
        "code": _code(),
        "git": _git(),
        "trials": sorted(e.digest for e in trials),
        **search,
        "experiment": experiment or f"raydiff-{PurePath(data).stem.replace(':', '-')}",
        "command": [call] if call else _command_line(at.name),
        "secret": seeding.keyed_digest(secret, "sweep", at.name)[:16],  # to recognise it
    }
    path = at / "sweep.json"
    if not path.exists():
        return now
    if not resume:
        raise ValueError(f"{at.name} exists already: resume it, or choose another name")
    then: Plan = read_plan(at, needs="trials")
    _check_same(at, then, now, extend=extend)
    if experiment not in (None, then["experiment"]):
        raise ValueError(
            f"{at.name} logs to MLflow's experiment {then['experiment']}, not {experiment}: leave the experiment out"
        )
    if then["trials"] == now["trials"]:
        return {**then, "suggested": now["suggested"]}
    return {**then, "trials": now["trials"], "command": now["command"], "extended": True}


def _check_same(at: Path, then: Plan, now: Plan, *, extend: bool) -> None:
    """Raises ValueError for another noise secret, code or space; with `extend` the space may have grown."""
    if then["secret"] != now["secret"]:
        if not (at / "secret").exists() and object_store.bucket_at(at.parents[1]):
            raise ValueError(f"runtime.noise_secret is not the one that {at.name} was started with")
        raise ValueError(f"{at / 'secret'} is gone or damaged: trials are named by it, and noise is drawn from it")
    if changed := sorted(f for f in {*then["code"], *now["code"]} if then["code"].get(f) != now["code"].get(f)):
        raise ValueError(f"{at.name} was started under other code; changed since: {', '.join(changed)}")
    old = set(then["trials"])
    new = set(now["trials"])
    for field in ("search", "scheduler", "space", "base"):
        if then.get(field) != now[field]:
            raise ValueError(
                f"{at.name} has another {field}, and a sweep keeps how its trials are chosen (it was started by: "
                f"{shlex.join(then['command'])})"
            )
    if old <= new if extend else old == new:
        return
    advice = ": --extend adds trials and takes none away" if extend or old < new else ""
    raise ValueError(
        f"{at.name} has another space: {len(new - old)} trials are new and {len(old - new)} are gone "
        f"(it was started by: {shlex.join(then['command'])}){advice}"
    )


def list_open_trials(at: Path) -> list[str]:
    """Return the digests of trials that began and have no outcome."""
    return [folder.name for folder in trial_folders(at) if not (folder / "outcome.json").exists()]


def write_sweep(at: Path, this: Plan, secret: bytes) -> None:
    """Write the sweep's secret and sweep.json. Remove the outcomes of trials to run again."""
    staging.create_storage(at.parents[1])
    trial.keep_secret(at, secret)  # Before sweep.json, since the trials in sweep.json are named by it.
    storage_at(at).put("sweep.json", dumps(this, indent=1).encode())
    copies.download(at)
    for folder, outcome in outcomes(at):
        if {outcome["outcome"], outcome.get("reason")} & UNFINISHED:
            storage_at(folder).delete(["outcome.json"])
            (folder / "outcome.json").unlink(missing_ok=True)


def build_writer(at: Path, preset: str, *, base: Experiment, about: Plan, swept: Varying) -> mlflow_writer.Mlflow:
    """Return the writer of this sweep's MLflow runs.

    `about`: sweep.json; `swept`: `study.varying_fields`.
    """
    uri, artifacts = tracking_store(at.parents[1])
    git = _git().removesuffix("-dirty")
    tags = {
        "raydiff.preset": preset,
        "raydiff.accountant": base.method.accountant,
        "raydiff.replayable": str(base.runtime.noise_secret is not None).lower(),
        "mlflow.source.name": mlflow_store.redact_passwords(shlex.join(about["command"])),
        "mlflow.source.type": "JOB",
        **({"raydiff.git": git, "mlflow.source.git.commit": git} if git else {}),
    }
    return mlflow_writer.Mlflow(
        uri,
        experiment=about["experiment"],
        sweep=at,
        tags=tags,
        artifacts=artifacts,
        swept=swept,
        log_sampler=_log_sampler,
    )


def tracking_store(storage: Path) -> tuple[str, str | None]:
    """Return (URI, artifact location) of the MLflow store. Raises ValueError if MLflow cannot keep it there.

    It is MLFLOW_TRACKING_URI, or a SQLite database beside the sweeps.
    """
    uri = os.environ.get("MLFLOW_TRACKING_URI", "").strip()
    storage = storage.absolute()
    if not uri and (odd := re.search("[#?%]", str(storage))):
        raise ValueError(
            f"MLflow would write beside the storage folder {storage}, for its {odd[0]!r}: choose another storage "
            "folder, or set MLFLOW_TRACKING_URI to a store elsewhere"
        )
    uri = uri or f"sqlite:///{storage}/mlflow.db"
    # A server sets the location of artifacts; for a database MLflow would take the working directory.
    return uri, None if uri.startswith(("http", "databricks")) else (storage / mlflow_store.ARTIFACTS).as_uri()


def describe_view(at: Path, experiment: str, view: str) -> str:
    """Return where a shared view of an MLflow experiment opens; it follows "open the runs "."""
    uri = mlflow_store.redact_passwords(tracking_store(at.parents[1])[0])
    page = shared_view.view_address(experiment, view)
    if uri.startswith("http"):
        return f"at {uri.rstrip('/')}{page}"
    return f"at http://127.0.0.1:5000{page} after: mlflow ui --backend-store-uri {shlex.quote(uri)}"


def find_folder(name: str, storage: Path) -> Path:
    """Return the folder of a sweep or trial, by MLflow run or as in `finished.find`. Raises ValueError without one."""
    if re.fullmatch("[0-9a-f]{32}", name):
        name = mlflow_models.find_trial(tracking_store(storage)[0], name, storage / "sweeps")
    return find(name, storage / "sweeps")


def trial_named(name: str, storage: Path) -> Path:
    """Return the folder of a trial; a sweep of one trial is that trial. Raises ValueError as `find_folder`."""
    return single_trial(find_folder(name, storage))


def sweep_named(name: str, storage: Path) -> Path:
    """Return the folder of a sweep; a trial's name is that of its sweep. Raises ValueError as `find_folder`."""
    folder = find_folder(name, storage)
    if not is_sweep(folder) and not is_sweep(folder := folder.parents[1]):
        raise ValueError(f"{name} is a trial's folder apart from its sweep")
    return folder


def code_version() -> dict[str, str]:
    """Return the version of raydiff, and the commit if this is a checkout."""
    return {"raydiff": raydiff.__version__} | ({"git": git} if (git := _git()) else {})


def _git() -> str:
    here = str(Path(raydiff.__file__).parent)
    describe = ["git", "-C", here, "describe", "--always", "--dirty", "--abbrev=40", "--match", ""]
    return subprocess.run(describe, capture_output=True, text=True, check=False).stdout.strip()


def _log_sampler(client: Any, run: str, folder: Path) -> None:
    alone = len(trial_folders(folder.parents[1])) == 1
    if not alone and sum(path.stat().st_size for path in folder.glob("*.safetensors")) > SMALL_BYTES:
        raise ValueError("it is large: raydiff generate --log-model logs it all the same")
    if read_json(folder / "config.json", needs="evaluation")["evaluation"] is None:
        raise ValueError("it holds the clients' own models, and under --protocol-only these stay with them")
    cap_memory(0)  # The GPU belongs to the trials.
    mlflow_models.log_sampler(client, run, open_finished(folder))


def resume_command(at: Path) -> str:
    """Return the command line or the Python call that continues the sweep in this folder."""
    script, *arguments = read_json(at / "sweep.json", needs="command")["command"]
    if not arguments:
        return str(script).removesuffix(")") + ", resume=True)"
    program = ["python", script] if script.endswith("jobs/sweep.py") else ["raydiff"]
    return shlex.join([*program, *arguments, "--resume"])


def _command_line(name: str) -> list[str]:
    """This command line, which need not have named the sweep, without --resume."""
    words = [word for word in sys.argv if word != "--resume"]
    named = any(word == "--name" or word.startswith("--name=") for word in words)
    return words if named else [*words, "--name", name]


def _code() -> dict[str, str]:
    root = Path(raydiff.__file__).parent
    files = sorted(root.rglob("*.py"))
    return {str(p.relative_to(root)): hashlib.sha256(p.read_bytes()).hexdigest()[:12] for p in files}
