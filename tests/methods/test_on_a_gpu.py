"""All that computes on the accelerator, on one that is none (`fake_gpu`): no tensors of unlike devices meet, the bits
are those of the CPU, and little travels to the device in a step."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_gpu import FakeGpu, attached
from toys import records, run

from raydiff.experiment import trial
from raydiff.experiment.config import Experiment
from raydiff.experiment.overrides import override
from raydiff.methods.dpsgd import DPSGD
from raydiff.models import training
from raydiff.models.compute import device
from raydiff.models.ddpm import DDPM
from raydiff.models.lockstep import train_all
from raydiff.models.networks import MLP, UNet
from raydiff.models.samplers import Sampling
from raydiff.models.training import Task, Training
from raydiff.privacy import private_gradient
from raydiff.results.finished import open_finished
from raydiff.seeding import generator

SMALL = UNet(widths=(8, 8))
CHANGES: dict[str, dict[str, Any]] = {
    "lock-step": {"numerics.vectorize": True, "method.server_rounds": 1, "method.client_sampling.steps": 4},
    "bfloat16": {"method.model.precision": "bfloat16"},
    "unet": {"method.model.network": SMALL},
}


@pytest.fixture
def gpu() -> Iterator[FakeGpu]:
    with attached() as result:
        yield result


def test_the_fake_is_strict(gpu: FakeGpu) -> None:
    here, there = torch.ones(3), torch.ones(3).to(device())
    assert there.device.type == (there + 1)[:2].t().device.type == torch.zeros_like(there).device.type == "cuda"
    assert here.device.type == there.cpu().device.type == "cpu" and (there + torch.tensor(1.0)).device.type == "cuda"
    wrong: list[Callable[[], Any]] = [
        lambda: here + there,
        lambda: torch.cat([here, there]),
        lambda: there.numpy(),
        lambda: here[there.long() - 1],
        lambda: torch.randn(3, device=there.device, generator=torch.Generator()),
        lambda: torch.nn.Linear(3, 1)(there),
    ]
    for call in wrong:
        with pytest.raises((RuntimeError, TypeError)):
            call()
    leaf = here.clone().requires_grad_()
    (leaf.to(there.device) * there).sum().backward()
    assert leaf.grad is not None and leaf.grad.device.type == "cpu" and gpu.counts["up"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("changes", CHANGES.values(), ids=CHANGES)
def test_a_trial_has_the_numbers_of_the_cpu(tmp_path: Path, tiny: Experiment, changes: dict[str, Any]) -> None:
    """Rounds, evaluation, attacks; then samples of what it has left. Training by itself: `test_contract`."""
    result = []
    for name, where in (("cpu", contextlib.nullcontext()), ("gpu", attached())):
        this = trial.open_trial(override(tiny, {"runtime.noise_secret": "ab" * 16, **changes}), tmp_path / name, None)
        with where as gpu:
            *_, final = trial.run_trial(this, trial.local_executor(this))
            made = open_finished(this.folder).source(0).sample(torch.tensor([[0], [1]]), generator(0))
        result.append(({k: v for k, v in final.items() if not k.startswith("time/")}, made.tolist()))
    assert gpu is not None and gpu.counts["ops"] > 1000
    assert result[0] == result[1]


def test_float32_is_full_unless_the_model_says_otherwise(tmp_path: Path, tiny: Experiment) -> None:
    """Torch's own default is TF32 in convolutions alone. Both flags are set anew by each trial of a process."""
    seen = []
    for precision in ("tf32", "float32", "bfloat16"):
        this = trial.open_trial(override(tiny, {"method.model.precision": precision}), tmp_path)
        trial.compute(this.experiment)
        seen.append((torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32))
    assert seen == [(True, True), (False, False), (False, False)]


@pytest.mark.slow
def test_private_gradients_of_a_large_model_are_not_taken_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU; the sums are the CPU's but for their order."""
    monkeypatch.setattr(private_gradient, "FLOATS", 1)
    pieces: list[int] = []
    result = private_gradient.per_record

    def counted(loss: Any, theta: Any, batch: Any, draws: Any) -> Any:
        pieces.append(len(batch[0]))
        return result(loss, theta, batch, draws)

    monkeypatch.setattr(private_gradient, "per_record", counted)
    network = UNet(widths=(4, 4), attention=())
    dpsgd = DPSGD(
        model=DDPM(network=network, timesteps=8), rounds=1, local=Training(steps=1, batch=10), noise_multiplier=1.0
    )
    alone = run(dpsgd)[-1].server
    assert set(pieces) == {1}
    pieces.clear()
    with attached():
        together = run(dpsgd)[-1].server
    assert max(pieces) == 8
    assert all(torch.allclose(alone[name], together[name], atol=1e-5) for name in alone)


@pytest.mark.parametrize(
    "network", [MLP(width=16, depth=1), pytest.param(SMALL, marks=pytest.mark.slow)], ids=["mlp", "unet"]
)
@pytest.mark.parametrize("together", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_little_travels_in_a_step(network: Any, together: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Less than a copy in five steps and client: schedules lie on the device, and batches are drawn ahead."""
    model = DDPM(network=network, timesteps=20)

    def copies(steps: int) -> int:
        tasks = []
        for client in range(together):
            own, rng = records(client), generator(client)
            data: dict[str, Any] = {"images": own.images, "labels": own.labels, "rng": rng, "steps": range(steps)}
            params, training_ = model.init(generator(client, "init")), Training(steps=steps, batch=8)
            tasks.append(Task(model=model, params=params, training=training_, **data))
        with attached() as gpu:
            assert all(not isinstance(fitted, BaseException) for fitted, _ in train_all(tasks))
        return gpu.counts["up"]

    monkeypatch.setattr(training, "AHEAD", 16)
    assert 0 < copies(32) - copies(16) <= 16 * together / 5


@pytest.mark.parametrize(("sampler", "travels"), [("ddim", 0), ("dpmsolver", 0), ("ancestral", 1)])
def test_a_chain_stays_on_the_device(sampler: Any, travels: int) -> None:
    """Pictures travel there and back once, whatever the steps; only `ancestral` sends noise, drawn on the CPU."""
    model, labels = DDPM(network=MLP(width=16, depth=1), timesteps=20), torch.zeros(4, 1, dtype=torch.long)
    params = model.init(generator(0))

    def copies(steps: int) -> tuple[int, int]:
        with attached() as gpu:
            chain = Sampling(sampler=sampler, steps=steps).samplers(model, model.denoiser(params, fixed=()))[sampler]
            chain(labels, generator(0))
        return gpu.counts["up"], gpu.counts["down"]

    few, many = copies(5), copies(15)
    assert (many[0] - few[0], many[1] - few[1]) == (10 * travels, 0)
