"""`Coordinator`, Tune's trainable: the coordinator of one trial after the other, in the same processes."""

import contextlib
import itertools
import signal
import traceback
from collections.abc import Iterator
from typing import Any

import ray
from ray import tune

from raydiff import process
from raydiff.experiment import trial as trials
from raydiff.runtime import actors, device_faults, gauges, place, plan, sweep_folder, worker_deaths
from raydiff.storage.atomic_files import LeaseLost
from raydiff.storage.copies import ERROR
from raydiff.storage.staging import StorageCredentials
from raydiff.storage.storage import storage_at

GPU_LOST = "gpu_lost"  # Key of a result: (node id, message).


class Coordinator(tune.Trainable):
    """Runs one trial. Reused for the next one (`reset_config`): the processes stay, all state is replaced."""

    _credentials: StorageCredentials | None = None

    def setup(self, config: dict[str, Any], credentials: StorageCredentials | None = None) -> None:
        """Start the workers in this trial's own placement group, then begin. `credentials`: those of a bucket."""
        process.prepare_process()
        signal.signal(signal.SIGINT, process.interrupt)
        self._credentials = credentials
        self._slot: place.Slot = config["slot"]
        self._workers = actors.start_workers(self._slot, ray.util.get_current_placement_group())
        self.reset_config(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Take the next trial in the same processes."""
        self._trial: trials.Trial | None = None
        self._round = -1
        # A generator: its errors are raised in `step`, which handles them.
        self._results = self._run(new_config)
        return True

    def step(self) -> dict[str, Any]:
        """Run one round. An error of the experiment is its last result; Tune restarts it after lost processes only."""
        try:
            who = "the server", self._round + 1
            with device_faults.explain_out_of_memory(lambda: who, "gpu_server", self._slot.gpu_server):
                result = next(self._results)
        except (worker_deaths.WorkersLost, LeaseLost):
            raise
        except device_faults.GpuLost as e:
            result = {"finished": False, "round": self._round, GPU_LOST: _cause(e).args}
            self._results = itertools.repeat(result)
        except Exception as e:
            result = {"round": self._round, **_failure(self._trial, e)}  # Schedulers read the round of every result.
        self._round = result.get("round", self._round)
        if self._trial is not None:
            gauges.export_trial(self._trial, result)
        return {"done": result["finished"], **result}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Nothing: the trial's folder has everything. Tune calls it when a trial ends."""

    def _run(self, config: dict[str, Any]) -> Iterator[dict[str, Any]]:
        experiment = plan.parse_experiment(config)
        self._trial = trials.localize(trials.Trial(experiment, config["sweep"], config["owner"], self._credentials))
        trials.begin(self._trial)
        device_faults.check_gpu(self._slot.gpu_server)
        with device_faults.exit_on_device_error(self._trial.folder, "the coordinator"):
            place.cap_memory(self._slot.gpu_server)
            pool = actors.RayExecutor(self._workers, self._trial, gpu=self._slot.gpu_per_worker)
            for result in trials.run_trial(self._trial, pool):
                yield {"digest": self._trial.experiment.digest, **result}


def _failure(trial: trials.Trial | None, error: Exception) -> dict[str, Any]:
    """Return the last result of a failed trial (None: one that had not begun), and write its error.txt."""
    raised = _cause(error)
    reason = (str(raised).strip().splitlines() or [type(raised).__name__])[-1]
    if trial is None:
        return {"finished": True, "failed": reason}
    with contextlib.suppress(OSError, ValueError):  # on a full disk, or beside a damaged file
        text = "".join(traceback.format_exception(error))
        storage_at(trial.folder, private=True).put(ERROR, text.encode())
    reason = sweep_folder.not_writable(raised, trial.sweep) or reason
    return {"finished": True, "failed": reason, "digest": trial.experiment.digest}


def _cause(error: Exception) -> BaseException:
    return error.cause if isinstance(error, ray.exceptions.RayTaskError) else error
