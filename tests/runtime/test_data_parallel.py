"""Data-parallel training takes the steps of one process, to rounding."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.multiprocessing import start_processes

from raydiff import tree
from raydiff.experiment.config import Experiment, Numerics, Runtime
from raydiff.models.ddpm import DDPM
from raydiff.models.networks import MLP
from raydiff.models.training import Diverged, Fitted, Task, Training
from raydiff.runtime.data_parallel import DataParallel, train_together

MODEL = DDPM(network=MLP(width=16, depth=1), timesteps=20).for_data((1, 8, 8), (10,))


PASSES = Training(steps=10, optimizer="sgd", momentum=0.9, weight_decay=0.1, replacement=False)


def task(*, batch: int, training: Training | None = None) -> Task:
    """Six steps in the middle of a training that has moments already."""
    rng = torch.Generator().manual_seed(0)
    images, labels = torch.rand(40, 1, 8, 8, generator=rng), torch.randint(10, (40, 1), generator=rng)
    whole = Task(
        model=MODEL,
        params=MODEL.init(rng),
        images=images,
        labels=labels,
        training=replace(training or Training(steps=10), batch=batch),
        rng=rng,
        steps=range(4),
        moments={},
        objective=None,
        extras={},
    )
    params, moments, _ = whole.alone()
    return replace(whole, params=params, moments=moments, steps=range(4, 10))


@pytest.fixture
def alone() -> Iterator[None]:
    """A process group of this process."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def distance(a: Fitted, b: Fitted) -> float:
    """The largest, over parameters, moments and loss, relative to b."""
    pairs = [*zip(a[:2], b[:2], strict=True), ({"loss": torch.tensor(a[2])}, {"loss": torch.tensor(b[2])})]
    return max(tree.norm(tree.sub(x, y)) / tree.norm(y) for x, y in pairs)


@pytest.mark.parametrize("training", [None, PASSES])
def test_one_process_takes_the_steps_of_the_plain_training(alone: None, training: Training | None) -> None:
    """Without replacement: batches of 17, 17 and 6."""
    batch = 17 if training else 5
    drawn, other = task(batch=batch, training=training), task(batch=batch, training=training)
    fitted = train_together(drawn)
    assert not isinstance(fitted, Diverged)
    assert distance(fitted, other.alone()) == 0
    assert torch.equal(drawn.rng.get_state(), other.rng.get_state())


def test_a_diverged_loss_is_returned(alone: None) -> None:
    drawn = task(batch=5)
    fitted = train_together(replace(drawn, params={k: v * torch.nan for k, v in drawn.params.items()}))
    assert isinstance(fitted, Diverged) and fitted.args[0] == 4
    assert str(fitted) == "the loss became nan at step 4: lower the learning rate"


def one_of_three(rank: int, folder: Path, batch: int, training: Training | None) -> None:
    """A process of a group of three; the first keeps what it returns, and its generator's state."""
    dist.init_process_group("gloo", store=dist.FileStore(str(folder / "store"), 3), rank=rank, world_size=3)
    drawn = task(batch=batch, training=training)
    fitted = train_together(drawn)
    dist.destroy_process_group()
    if rank == 0:
        torch.save((fitted, drawn.rng.get_state()), folder / "fitted.pt")


@pytest.mark.slow
@pytest.mark.parametrize(("batch", "training"), [(2, None), (13, PASSES)])
def test_a_process_without_records_takes_the_steps_of_one_too(
    tmp_path: Path, batch: int, training: Training | None
) -> None:
    """With a batch of two, or a last one of one (13, 13, 13 and 1)."""
    start_processes(one_of_three, (tmp_path, batch, training), nprocs=3, start_method="fork")
    fitted, state = torch.load(tmp_path / "fitted.pt", weights_only=False)
    other = task(batch=batch, training=training)
    assert distance(fitted, other.alone()) < 1e-5
    assert torch.equal(state, other.rng.get_state())


@pytest.mark.slow
@pytest.mark.ray
def test_three_processes_of_ray_train_take_the_steps_of_one(workers: object, tmp_path: Path) -> None:
    drawn, other = task(batch=13, training=PASSES), task(batch=13, training=PASSES)
    fitted = DataParallel(Experiment(numerics=Numerics(server_workers=3)), tmp_path / "train")(drawn)
    assert distance(fitted, other.alone()) < 1e-5
    assert torch.equal(drawn.rng.get_state(), other.rng.get_state())
    assert not (tmp_path / "train").exists()


@pytest.mark.parametrize("gpu_server", [0.3, 0.5])
def test_two_processes_cannot_share_a_gpu(gpu_server: float) -> None:
    with pytest.raises(ValueError, match=r"gpu_server must be 0 or above 0.5 with numerics.server_workers"):
        Experiment(numerics=Numerics(server_workers=2), runtime=Runtime(gpu_server=gpu_server))
