"""One local Ray and two workers for all tests that need them: a process costs 10 s to start."""

import pytest


@pytest.fixture(scope="session")
def workers(tmp_path_factory):
    """Two idle `Worker` actors on a local Ray, each with room for any number of clients."""
    ray = pytest.importorskip("ray")
    from raydiff.runtime.actors import start_workers
    from raydiff.runtime.place import Slot
    from raydiff.storage.staging import PLACE

    patch = pytest.MonkeyPatch()
    patch.setenv(PLACE, str(tmp_path_factory.mktemp("buckets")))  # Ray's processes inherit it.
    ray.init(
        address="local",
        num_cpus=4,  # logical: two for the workers here, two for a sweep
        num_gpus=1,  # logical too: of it slices are cut
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
        object_store_memory=100 * 2**20,
    )
    yield start_workers(Slot(workers=2, threads=1, gpu_per_worker=0.0, gpu_server=0.0), None)
    ray.shutdown()
    patch.undo()
