"""Workers that share no folder with the coordinator nor with each other, but a bucket."""

from dataclasses import replace

import pytest
from buckets import SECRET, begun

from raydiff import tree
from raydiff.data.partition import Iid
from raydiff.experiment import trial
from raydiff.experiment.config import Runtime
from raydiff.experiment.trial import Trial
from raydiff.federated.rounds import run_rounds
from raydiff.methods._averaging import Averaging
from raydiff.models.ddpm import DDPM
from raydiff.models.networks import MLP
from raydiff.models.training import Training
from raydiff.papers.spire.method import SPIRE
from raydiff.privacy.client_level import ClientPrivacy
from raydiff.storage import staging
from raydiff.storage.object_store import ObjectStore

pytestmark = pytest.mark.ray

MODEL = DDPM(network=MLP(width=16, depth=1), timesteps=8, conditional=False)
TRAINING = Training(steps=2, batch=8)
NOISED = Averaging(weights="uniform", privacy=ClientPrivacy(epsilon=20.0))
METHOD = SPIRE(model=MODEL, rounds=3, local=TRAINING, averaging=NOISED)


def last(pool, this: Trial, *, until: int | None = None):
    """The run's last progress on this pool, or the one after a round."""
    for end in run_rounds(this.experiment.method, pool, keys=this.keys, store=this.store):
        if end.number == until:
            break
    return end


def test_workers_with_folders_of_their_own_give_the_bits_of_one_process(tmp_path, workers, tiny, monkeypatch):
    """Also where they are two, then one, and then another driver goes on in its own process elsewhere."""
    from raydiff.runtime.actors import RayExecutor

    experiment = replace(tiny, method=METHOD, clients=3, partition=Iid(), evaluation=None, runtime=Runtime())
    sweep = tmp_path / "folder" / "sweeps" / "lab"
    trial.keep_secret(sweep, SECRET)
    local_one = trial.open_trial(experiment, sweep)
    alone = last(trial.local_executor(local_one), local_one)
    uri = f"file://{tmp_path}/bucket"
    monkeypatch.setenv(staging.PLACE, str(tmp_path / "driver"))
    remote_one = begun(experiment, uri)
    last(RayExecutor(workers, remote_one), remote_one, until=0)
    remote_one = begun(experiment, uri)
    last(RayExecutor(workers[:1], remote_one), remote_one, until=1)
    monkeypatch.setenv(staging.PLACE, str(tmp_path / "another"))
    remote_one = begun(experiment, uri)
    elsewhere = last(trial.local_executor(remote_one), remote_one)
    assert tree.digest(elsewhere.server) == tree.digest(alone.server)
    assert elsewhere.ledger == alone.ledger
    for client in range(3):
        mine, its = (trial.make_clients(t, [client])[0].state(alone.number) for t in (local_one, remote_one))
        assert tree.digest(mine) == tree.digest(its)


def test_every_node_must_see_the_bucket(workers, tmp_path, monkeypatch):
    from raydiff.runtime.cluster import check_shared_storage

    uri = f"file://{tmp_path}/bucket"
    monkeypatch.setenv(staging.PLACE, str(tmp_path / "driver"))
    staging.prepare_storage(uri)
    check_shared_storage(staging.storage_root(uri))
    assert not [path for path in tmp_path.rglob("*") if "nonce" in path.name]
    monkeypatch.setattr(ObjectStore, "put", lambda *_: None)  # into a store that only the driver sees
    with pytest.raises(ValueError, match=r"^node \S+ does not see what the driver writes to file://\S+/bucket"):
        check_shared_storage(staging.storage_root(uri))
