"""What is computed on a GPU: the CPU's numbers to rounding, the same ledger, a resumed run, clients in lock-step."""

import ast
import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from child_process import ROOT, answer
from test_contract import KEYS, experiment, method, pool, records

from raydiff import tree
from raydiff.experiment import trial
from raydiff.experiment.config import Experiment, Numerics, Runtime
from raydiff.experiment.ledgers import ledger_of
from raydiff.experiment.overrides import has_path, override
from raydiff.federated.client import Client
from raydiff.federated.method import SERVER_ONLY, Method
from raydiff.federated.rounds import run_rounds
from raydiff.methods.marginals import Marginals
from raydiff.models import training
from raydiff.models.compute import compute_with, device
from raydiff.models.ddpm import DDPM
from raydiff.models.lockstep import train_all
from raydiff.models.networks import MLP, UNet
from raydiff.models.training import Diverged, Fitted, Task, Training, optimize
from raydiff.privacy.release import Gaussian
from raydiff.seeding import generator
from raydiff.storage.checkpoint import Checkpoint
from raydiff.tree import Params

__all__ = ["experiment", "method"]

pytestmark = pytest.mark.gpu

SMALL = UNet(widths=(8, 8))
VARIANTS: dict[str, dict[str, Any]] = {
    "mlp": {},
    "unet": {"network": SMALL},
    "bfloat16": {"network": UNet(widths=(8, 8)), "precision": "bfloat16"},
    "compile": {"compile": True},
}


@pytest.fixture(autouse=True)
def full_float32() -> None:
    compute_with(1, "float32")


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_trial_has_the_numbers_of_the_cpu(
    experiment: Experiment, variant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two rounds and the evaluation end; the loss of the first step, the ledger and epsilon are those of the CPU."""
    if isinstance(experiment.method, Marginals):
        pytest.skip("it takes tables only, and there is none in the package")
    changes = {f"method.model.{name}": value for name, value in VARIANTS[variant].items()}
    if not all(has_path(experiment, path) for path in changes):
        pytest.skip("its model has no such setting")
    fewer = {f"method.{n}": 2 for n in ("rounds", "server_rounds") if has_path(experiment, f"method.{n}")}
    try:
        experiment = override(experiment, {"runtime.noise_secret": "ab" * 16, **fewer, **changes})
    except ValueError as e:
        pytest.skip(f"refused: {e}")

    losses: list[float] = []
    check = training._check_finite

    def checked(seen: torch.Tensor, first: int) -> None:
        losses.append(float(seen[0]))
        check(seen, first)

    monkeypatch.setattr(training, "_check_finite", checked)

    def run(one: Experiment, name: str) -> tuple[list[float], dict[str, float], object]:
        losses.clear()
        this = trial.open_trial(one, tmp_path / name)
        *_, final = trial.run_trial(this, trial.local_executor(this))
        return losses[:1], final, ledger_of(this.folder).to_json()

    on_gpu, final, ledger = run(experiment, "gpu")
    with monkeypatch.context() as hidden:
        hidden.setattr(torch.cuda, "is_available", lambda: False)
        plain = override(experiment, {"method.model.compile": False}) if variant == "compile" else experiment
        on_cpu, expected, same_ledger = run(plain, "cpu")
    assert on_gpu == pytest.approx(on_cpu, rel=2e-2 if variant == "bfloat16" else 1e-4)
    assert ledger == same_ledger and final["finished"] and final.keys() == expected.keys()
    epsilons = {k: v for k, v in final.items() if "epsilon" in k and not k.startswith("eval/")}
    assert epsilons and epsilons == {k: expected[k] for k in epsilons}


def tasks(network: MLP | UNet, clients: int, *, steps: int = 10, batch: int = 20) -> list[Task]:
    """Equal trainings of so many clients, each on its own records."""
    model = DDPM(network=network, timesteps=100).for_data((1, 8, 8), (10,))

    def of(client: int) -> Task:
        rng = generator(client, "task")
        return Task(
            model=model,
            params=model.init(generator(client, "init")),
            images=torch.rand(100, 1, 8, 8, generator=rng) * 2 - 1,
            labels=torch.randint(10, (100, 1), generator=rng),
            training=Training(steps=steps, batch=batch, optimizer="sgd", learning_rate=1e-2),
            rng=rng,
            steps=range(steps),
            moments={},
        )

    return [of(client) for client in range(clients)]


def distance(a: Params, b: Params) -> float:
    """Relative to b."""
    return tree.norm(tree.sub(a, b)) / tree.norm(b)


@pytest.mark.parametrize("network", [MLP(width=64), UNet(widths=(16, 32))], ids=["mlp", "unet"])
@pytest.mark.parametrize("clients", [1, 4, 16])
def test_clients_in_lockstep_train_as_one_by_one(network: MLP | UNet, clients: int) -> None:
    given, alone = tasks(network, clients), [task.alone() for task in tasks(network, clients)]
    start = [task.params for task in given]
    for (fitted, size), expected, begun in zip(train_all(given), alone, start, strict=True):
        assert not isinstance(fitted, BaseException) and size == clients
        moved, wanted = (tree.sub(params, begun) for params in (fitted[0], expected[0]))
        assert distance(moved, wanted) < 1e-4 and fitted[2] == pytest.approx(expected[2], rel=1e-4)


def test_a_run_resumes_after_each_commit(method: Method, tmp_path: Path, figure: Callable[..., None]) -> None:
    """What is stored is sent again bit for bit, whatever the GPU computes the second time; the ledger is the same, and
    the model is that of the undisturbed run to rounding."""

    def run(store: Checkpoint | None) -> Any:
        return run_rounds(method, pool(method, store=store), keys=KEYS, store=store)

    *_, whole = run(None)
    same_bits = []
    first = tree.without(SERVER_ONLY, method.init_server(None, generator(KEYS.seed, "server", "init")))
    for done in range(method.rounds + 1):
        store = Checkpoint(tmp_path / str(done))
        running = run(store)
        server = [first, *(progress.sent for progress in itertools.islice(running, done))][-1]
        running.close()
        if done < method.participating_rounds:
            clients = [Client(0, method, records(0), keys=KEYS, store=store) for _ in range(2)]
            (sent, _), (again, metrics) = (client.run(server, done) for client in clients)
            if isinstance(sent.release.event, Gaussian):
                assert tree.digest(sent.release.value) == tree.digest(again.release.value)
                assert metrics["upload/resent"] == 1.0
        *_, last = run(Checkpoint(tmp_path / str(done)))
        assert last.ledger == whole.ledger
        apart = {k: v.float() for k, v in last.server.items() if v.is_floating_point()}
        expected = {k: whole.server[k].float() for k in apart}  # Nothing where the server has no model.
        assert tree.norm(tree.sub(apart, expected)) <= 1e-3 * tree.norm(expected)
        same_bits.append(tree.digest(last.server) == tree.digest(whole.server))
    figure(f"resume of {type(method).__name__} after each round", same_bits=same_bits)


def test_moments_go_on_where_they_were() -> None:
    """A training cut in two, its moments handed back, is that of one piece to rounding; from new moments it is not."""

    def part(task: Task, steps: range, moments: Params) -> Fitted:
        given = Training(steps=20, batch=20)
        return training.replace(task, training=given, steps=steps, moments=moments).alone()

    whole, cut, fresh = (tasks(MLP(width=64), 1)[0] for _ in range(3))
    expected = part(whole, range(20), {})
    first = part(cut, range(10), {})
    second = part(training.replace(cut, params=first[0]), range(10, 20), first[1])
    part(fresh, range(10), {})
    other = part(training.replace(fresh, params=first[0]), range(10, 20), {})
    assert distance(second[0], expected[0]) < 1e-4 < distance(other[0], expected[0])
    assert second[1].keys() == expected[1].keys() and distance(second[1], expected[1]) < 1e-3


# --- several processes ---


def gradient_of_processes() -> Callable[..., tuple[Params, torch.Tensor]]:
    """`runtime.data_parallel._gradient`, read from its file: that module imports Ray, which is not needed here."""
    text = (ROOT / "raydiff" / "runtime" / "data_parallel.py").read_text()
    result = next(n for n in ast.parse(text).body if isinstance(n, ast.FunctionDef) and n.name == "_gradient")
    names: dict[str, Any] = {
        "dist": dist,
        "torch": torch,
        "Task": Task,
        "Params": Params,
        "Tensor": torch.Tensor,
    }
    exec("from __future__ import annotations\n" + ast.unparse(result), names)
    gradient: Callable[..., tuple[Params, torch.Tensor]] = names["_gradient"]
    return gradient


def test_nccl_with_one_process_has_the_gradient_of_none(figure: Callable[..., None]) -> None:
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    try:
        gradient = gradient_of_processes()
        (task,), (other,) = tasks(MLP(width=64), 1), tasks(MLP(width=64), 1)
        here = task.to(device())
        batches = here.batches()
        result = optimize(
            here.params, lambda theta: gradient(here, theta, next(batches)), training=here.training, steps=here.steps
        )
    except Diverged as e:
        raise AssertionError(str(e)) from None
    finally:
        dist.destroy_process_group()
    assert distance(result[0], other.alone()[0]) < 1e-6
    figure("nccl with one process", backend=backend)


RANK = """
    import json, sys, torch, torch.distributed as dist
    rank, path = int(sys.argv[1]), sys.argv[2]
    try:
        dist.init_process_group("nccl", store=dist.FileStore(path, 2), rank=rank, world_size=2)
        dist.all_reduce(torch.ones(1, device="cuda:0"))
        torch.cuda.synchronize()
        print(json.dumps({"error": ""}))
    except Exception as e:
        print(json.dumps({"error": f"{type(e).__name__}: {e}"}), flush=True)
    import os; os._exit(0)
"""


def test_two_processes_on_one_gpu_are_refused(card: int, tmp_path: Path, figure: Callable[..., None]) -> None:
    """By NCCL, which is why the configuration refuses them first, in one sentence."""
    with ThreadPoolExecutor(2) as both:
        result = list(both.map(lambda rank: answer(RANK, rank, tmp_path / "store", timeout=40)["error"], range(2)))
    figure("two NCCL processes on one GPU", nccl=result[0][:300])
    assert all(result)
    with pytest.raises(
        ValueError, match=r"^runtime\.gpu_server must be 0 or above 0\.5 with numerics\.server_workers[^\n]*$"
    ):
        Experiment(numerics=Numerics(server_workers=2), runtime=Runtime(gpu_server=0.5))
