"""Clients in lock-step: the numbers of one after the other to rounding, and nothing waits for ever."""

import dataclasses
import math
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

import pytest
import torch
from cases import slow_but

from raydiff import tree
from raydiff.data.records import Records
from raydiff.federated.client import Client, Failed, Keys
from raydiff.federated.method import LocalResult
from raydiff.federated.rounds import LocalExecutor, run_rounds
from raydiff.methods.fedavg import FedAvg
from raydiff.methods.localonly import LocalOnly
from raydiff.methods.moon import Moon
from raydiff.methods.perfedavg import PerFedAvg
from raydiff.methods.scaffold import Scaffold
from raydiff.models import functional, lockstep
from raydiff.models.classifier import Classifier
from raydiff.models.ddpm import DDPM
from raydiff.models.networks import MLP, UNet
from raydiff.models.training import Task, Training, fit
from raydiff.papers.pfdm.method import PFDM
from raydiff.storage.checkpoint import Checkpoint

MODEL = DDPM(network=MLP(width=16, depth=1), timesteps=20)
UNET = DDPM(network=UNet(widths=(8, 16)), timesteps=20)
ADAMW = Training(steps=4, batch=8, weight_decay=0.1)
SGD = Training(steps=4, batch=8, optimizer="sgd", learning_rate=0.03)
MOMENTUM = dataclasses.replace(SGD, momentum=0.9, weight_decay=0.1)
METHODS = {
    "fedavg": FedAvg(model=MODEL, rounds=2, local=ADAMW),
    "fedavg-sgd-unet": FedAvg(model=UNET, rounds=1, local=SGD),
    "localonly": LocalOnly(model=MODEL, local=ADAMW),
    "pfdm": PFDM(model=MODEL, clip=6.8, local=ADAMW, server=ADAMW, server_rounds=1, local_parts=2),
    "moon": Moon(model=MODEL, rounds=2, local=ADAMW),
    "scaffold": Scaffold(model=MODEL, rounds=2, local=MOMENTUM),
    "perfedavg": PerFedAvg(model=MODEL, rounds=2, local=ADAMW),
    "epochs": FedAvg(model=MODEL, rounds=2, local=dataclasses.replace(MOMENTUM, epochs=2)),  # 20 .. 23 records: 3 steps
}
KEYS = Keys(0, b"secret" * 4, "digest")
SECONDS = 120  # what takes longer hangs, also on a busy machine

T = TypeVar("T")


def records(number: int, bad: bool = False) -> Records:
    """Of one client: 20 + number of them, so that no two clients have as many."""
    rng, n = torch.Generator().manual_seed(number), 20 + number
    images = torch.rand(n, 1, 8, 8, generator=rng) * 2 - 1
    return Records(images * math.inf if bad else images, torch.randint(10, (n, 1), generator=rng), torch.arange(n))


def clients(method: Any, *, count: int = 4, vectorize: bool = True, store: Checkpoint | None = None) -> list[Client]:
    return [Client(i, method, records(i), keys=KEYS, vectorize=vectorize, store=store) for i in range(count)]


def within(work: Callable[[], T]) -> T:
    """What the work gives; fails if it hangs."""
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as e:
            done.set_exception(e)

    threading.Thread(target=run, daemon=True).start()
    return done.result(timeout=SECONDS)


def difference(a: tree.Params, b: tree.Params) -> float:
    return max((float((a[k] - b[k]).abs().max()) for k in a | b), default=0.0)


def whole(method: Any, members: list[Client]) -> tuple[list[Any], list[tree.Params]]:
    """Every round's progress, and the clients' states at the end."""
    seen = list(run_rounds(method, LocalExecutor(members), keys=KEYS))
    return seen, [client.state(seen[-1].number) for client in members]


@pytest.mark.parametrize("name", slow_but(list(METHODS)[:4], METHODS))
def test_together_equals_one_after_the_other(name: str) -> None:
    method = METHODS[name]
    expected, apart = whole(method, clients(method, vectorize=False))
    seen, states = within(lambda: whole(method, clients(method)))
    assert seen[0].metrics["cohort/size"] == 4  # so they did train in lock-step
    assert difference(expected[-1].server, seen[-1].server) < 1e-5
    for state, other in zip(states, apart, strict=True):
        assert state.keys() == other.keys()
        assert difference(state, other) < 1e-5
    for before, now in zip(expected, seen, strict=True):
        assert before.ledger == now.ledger
        assert {k: v for k, v in now.metrics.items() if "cohort/size" not in k} == pytest.approx(
            before.metrics, abs=1e-5
        )


@pytest.mark.parametrize("method", [METHODS["moon"], FedAvg(model=Classifier(), rounds=1, local=ADAMW)])
def test_the_first_cohort_of_a_process_trains_together_and_has_the_bits_of_a_later_one(method: Any) -> None:
    functional.module_of.cache_clear()  # As a process is that has not used a network yet.
    first, states = within(lambda: whole(method, clients(method)))
    assert first[0].metrics["cohort/size"] == 4
    again, apart = within(lambda: whole(method, clients(method)))
    assert tree.digest(first[-1].server) == tree.digest(again[-1].server)
    assert [tree.digest(state) for state in states] == [tree.digest(state) for state in apart]
    assert first[-1].metrics == again[-1].metrics


@pytest.mark.parametrize(
    "training", [ADAMW, MOMENTUM, dataclasses.replace(ADAMW, ema=0.2), dataclasses.replace(MOMENTUM, max_grad_norm=0.2)]
)
def test_moments_and_losses_are_each_clients_own(training: Training) -> None:
    """A training that is continued in lock-step, as PFDM's parts are, on the optimiser's whole state."""

    def train(i: int, first: int, before: tuple[tree.Params, tree.Params]) -> Any:
        data, rng = records(i), torch.Generator().manual_seed(100 * first + i)
        (params, moments), two = before, range(first, first + 2)
        return fit(MODEL, params, data.images, data.labels, training=training, rng=rng, steps=two, moments=moments)

    def twice(i: int) -> Any:
        params, moments, loss = train(i, 0, (MODEL.init(torch.Generator().manual_seed(i)), {}))
        return (loss, *train(i, 2, (params, moments)))

    found = within(lambda: list(lockstep.run_in_lockstep([lambda i=i: twice(i) for i in range(3)])))
    for i, ((first, params, moments, loss), sizes) in enumerate(found):
        one, expected, state, mean = twice(i)
        assert sizes == [3, 3]
        assert (first, loss) == pytest.approx((one, mean), abs=1e-6)
        assert difference(params, expected) < 1e-5
        assert moments.keys() == state.keys() and difference(moments, state) < 1e-5


def test_a_client_holds_no_memory_of_its_cohort() -> None:
    start = tree.Flat.of(MODEL.init(torch.Generator().manual_seed(0)))  # one object, as the server's weights are

    def train(i: int) -> tuple[tree.Params, tree.Params, float]:
        data, rng = records(i), torch.Generator().manual_seed(i)
        return fit(MODEL, start, data.images, data.labels, training=ADAMW, rng=rng, moments={})

    found = within(lambda: list(lockstep.run_in_lockstep([lambda i=i: train(i) for i in range(3)])))
    for (weights, moments, _), sizes in found:
        assert sizes == [3] and isinstance(weights, tree.Flat) and isinstance(moments, tree.Flat)
        assert all(flat.buffer.untyped_storage().nbytes() == flat.buffer.nbytes for flat in (weights, moments))


def test_unequal_clients_are_not_padded() -> None:
    """Two of one batch, two of another, one with more steps: pairs and one by itself, which has its very bits."""
    other = FedAvg(model=MODEL, rounds=2, local=dataclasses.replace(ADAMW, batch=4))
    longer = FedAvg(model=MODEL, rounds=2, local=dataclasses.replace(ADAMW, steps=6))
    server = METHODS["fedavg"].init_server(None, torch.Generator().manual_seed(0))
    found: dict[bool, list[Any]] = {}
    for vectorize in (False, True):
        methods = [METHODS["fedavg"], other, longer, other, METHODS["fedavg"]]
        members = [Client(i, m, records(i), keys=KEYS, vectorize=vectorize) for i, m in enumerate(methods)]
        found[vectorize] = within(lambda members=members: list(LocalExecutor(members).run(range(5), server, 0)))
    assert [metrics["cohort/size"] for _, metrics in found[True]] == [2, 2, 1, 2, 2]
    sent = [[upload.release.value for upload, _ in found[v]] for v in (False, True)]
    assert all(difference(a, b) < 1e-5 for a, b in zip(*sent, strict=True))
    assert tree.digest(sent[0][2]) == tree.digest(sent[1][2])


def test_a_loss_that_vmap_cannot_do_is_trained_one_by_one_and_that_is_said() -> None:
    method = PerFedAvg(model=MODEL, rounds=2, local=ADAMW, order="second")
    expected, _ = whole(method, clients(method, vectorize=False))
    with pytest.warns(RuntimeWarning, match=r"^DDPM: clients train one by one: element 0 of tensors does not require"):
        seen, _ = within(lambda: whole(method, clients(method)))
    assert seen[-1].metrics["cohort/size"] == 1
    assert tree.digest(seen[-1].server) == tree.digest(expected[-1].server)


MACHINE = {
    "memory": torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    "device": torch.AcceleratorError("CUDA error: device-side assert triggered"),
    "cublas": RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm`"),
    "cpu": RuntimeError("[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate memory"),
}


@pytest.mark.parametrize("error", MACHINE.values(), ids=MACHINE)
def test_what_is_no_matter_of_the_loss_is_not_tried_again_one_by_one(
    error: RuntimeError, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    """Otherwise the numbers would depend on the memory that happened to be free."""
    method, alone = METHODS["fedavg"], []

    def refused(loss: Any) -> Any:
        def each(*_: Any) -> Any:
            raise error

        return each

    monkeypatch.setattr(torch.func, "vmap", refused)
    monkeypatch.setattr(Task, "alone", lambda task: alone.append(task))
    with pytest.raises(type(error), match=str(error)[:10].replace("[", r"\[")):
        within(lambda: whole(method, clients(method)))
    assert not alone and not [w for w in recwarn if "one by one" in str(w.message)]


def test_a_client_that_diverges_is_named_and_the_others_end() -> None:
    method = METHODS["fedavg"]
    members = clients(method)
    members[1].data = records(1, bad=True)
    server = method.init_server(None, torch.Generator().manual_seed(0))
    stream = LocalExecutor(members).run(range(4), server, 0)
    upload, _ = within(lambda: next(stream))
    assert upload.client == 0 and math.isfinite(tree.norm(upload.release.value))
    with pytest.raises(Failed, match=r"client 1, in round 0: the loss became nan at step 0"):
        within(lambda: next(stream))


class Faulty(FedAvg):
    """Fails on the client with 22 records: before its training, or after."""

    def local_update(self, server: Any, state: Any, data: Records, rnd: Any) -> LocalResult:
        if len(data) == 22 and self.rounds == 1:
            raise KeyError("before")
        result = super().local_update(server, state, data, rnd)
        if len(data) == 22:
            raise KeyError("after")
        return result


@pytest.mark.parametrize(("total", "when"), [(1, "before"), (2, "after")])
def test_an_exception_surfaces_and_nobody_waits(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, total: int, when: str
) -> None:
    monkeypatch.setattr("raydiff.federated.client.NOTE_S", 0.0)  # Each result is sent as it comes.
    method = Faulty(model=MODEL, rounds=total, local=ADAMW)
    store, running = Checkpoint(tmp_path), threading.active_count()
    with pytest.raises(Failed, match=rf"^client 2, in round .: \S+\.Faulty.local_update raised KeyError: '{when}'"):
        within(lambda: list(run_rounds(method, LocalExecutor(clients(method, store=store)), keys=KEYS, store=store)))
    assert [sent[1] for sent in store.sent_after(-1)] == [0, 1]  # What client 3 had made was never sent.
    assert threading.active_count() <= running + 1  # `within`'s own may not have gone yet


def test_an_interrupt_leaves_no_thread_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(tasks: Any) -> Any:
        assert len(tasks) == 4
        raise KeyboardInterrupt

    monkeypatch.setattr(lockstep, "train_all", interrupted)
    before = set(threading.enumerate())
    with pytest.raises(KeyboardInterrupt):
        whole(METHODS["fedavg"], clients(METHODS["fedavg"]))
    for thread in set(threading.enumerate()) - before:
        thread.join(timeout=SECONDS)
        assert not thread.is_alive()


def test_models_trained_in_lock_step_are_kept_apart(tmp_path: Any) -> None:
    """A trial one after the other must have its own bits, also where one in lock-step went before it in the sweep."""
    method = METHODS["localonly"]
    kept = {v: Checkpoint(tmp_path / str(v), tmp_path / "cache") for v in (True, False)}
    within(lambda: list(LocalExecutor(clients(method, store=kept[True])).run(range(4), {}, 0)))
    apart = clients(method, vectorize=False, store=kept[False])
    assert not any(client.is_trained(0) for client in apart)
    assert all(client.is_trained(0) for client in clients(method, store=kept[True]))
