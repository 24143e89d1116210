"""Shadow models of a finished trial: on what they are trained, that it is once, and by the method itself."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from raydiff.data.records import Records
from raydiff.evaluation.attacks import lira
from raydiff.methods.fedavg import FedAvg
from raydiff.methods.localonly import LocalOnly
from raydiff.results import shadows
from raydiff.results.finished import open_finished
from raydiff.results.shadows import ROLES, Attacked, ShadowRequest, open_attacked
from raydiff.seeding import generator


def attacked(storage: Any, name: str, **more: Any) -> Attacked:
    return open_attacked(ShadowRequest(**{"trial": storage.folder(name), "shadows": 4, "draws": 1, **more}))


def numbers(records: Records) -> set[int]:
    return set(records.numbers.tolist())


def test_the_records_in_question(storage) -> None:
    result = attacked(storage, "localonly", client=1)
    finished = open_finished(storage.folder("localonly"))
    own, splits = finished.client(1).data, finished.dataset.splits
    by_role = {role: result.records.select(result.role == i) for i, role in enumerate(ROLES)}
    assert numbers(by_role["members"]) | numbers(by_role["calibration_members"]) == numbers(own)
    assert abs(len(by_role["members"]) - len(by_role["calibration_members"])) <= 1
    assert numbers(by_role["nonmembers"]) <= numbers(splits["test"]) and len(by_role["nonmembers"]) >= 2
    assert numbers(by_role["calibration_nonmembers"]) <= numbers(splits["calibration"])
    assert len(result.records) == len(numbers(result.records)) <= 2 * len(own)
    assert set(result.records.labels[:, 0].tolist()) == set(own.labels[:, 0].tolist())
    assert result.owner.tolist() == [1] * len(result.records)
    assert result.inside.shape == (4, len(result.records))


def test_a_shadow_is_the_method_itself_on_its_half(copied, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the target's own functions: a client with these records, on the shadow's random numbers."""
    result = attacked(copied, "localonly")
    method = result.finished.trial.experiment.method
    mine = result.records.select(result.inside[2])
    trained: list[Records] = []

    init = LocalOnly.init_client

    def watched(self: LocalOnly, state: Any, data: Records, *more: Any) -> Any:
        trained.append(data)
        return init(self, state, data, *more)

    monkeypatch.setattr(LocalOnly, "init_client", watched)
    state = result._train(2)
    assert [r.numbers.tolist() for r in trained] == [mine.numbers.tolist()]
    params = {k.removeprefix("state/"): v for k, v in state.items()}
    expected = lira.statistics(
        method.model.denoiser(params),
        result.records,
        alphas_bar=method.model.abar,
        timesteps=result.timesteps,
        draws=1,
        rng=generator(0, "statistics"),
    )
    assert torch.equal(result.losses(2), expected)
    assert not torch.equal(result.losses(2), result.losses(3))


def test_it_is_trained_once(copied, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process, or a second call, finds it; other timesteps need no new training, another seed does."""
    first = attacked(copied, "localonly").losses(0)
    monkeypatch.setattr(Attacked, "_train", lambda *_: pytest.fail("trained again"))
    assert torch.equal(attacked(copied, "localonly").losses(0), first)
    assert torch.equal(attacked(copied, "localonly", shadows=8).losses(0), first)
    other = attacked(copied, "localonly", timesteps=(3, 4)).losses(0)
    assert other.shape == (len(first), 2)
    with pytest.raises(pytest.fail.Exception, match="trained again"):
        attacked(copied, "localonly", seed=1).losses(0)


@pytest.mark.parametrize("name", ["fedavg", "pfdm"])
def test_of_the_shared_model_a_shadow_is_the_whole_protocol(copied, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    result = attacked(copied, name, source="global")
    assert not result.alone and set(result.owner.tolist()) == {0, 1}
    of_client: dict[int, Records] = {}

    def client(number: int, method: Any, data: Records, **more: Any) -> Any:
        of_client[number] = data
        return made(number, method, data, **more)

    made = shadows.Client
    monkeypatch.setattr(shadows, "Client", client)
    losses = result.losses(1)
    inside = result.records.select(result.inside[1])
    assert numbers(of_client[0]) | numbers(of_client[1]) == numbers(inside) and not numbers(of_client[0]) & numbers(
        of_client[1]
    )
    assert losses.shape == (len(result.records), len(result.timesteps)) and losses.isfinite().all()
    members = result.role < 2
    for i in (0, 1):  # a member stays with its client, a non-member goes where its class is
        own = result.finished.client(i).data
        assert numbers(result.records.select(members & (result.owner == i))) == numbers(own)
        dealt = result.records.select(~members & (result.owner == i)).labels[:, 0]
        assert set(dealt.tolist()) <= set(own.labels[:, 0].tolist())


def test_of_a_fine_tuned_client_the_others_keep_their_records(copied, tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    short = replace(tiny.method.local, steps=4)
    method = FedAvg(model=tiny.method.model, local=short, rounds=2, finetune=short)
    copied.finish("tuned", replace(tiny, method=method, evaluation=None))
    result = attacked(copied, "tuned", client=1)
    assert not result.alone
    assert numbers(result._records_in(0, 0)) == numbers(result.finished.client(0).data)
    assert numbers(result._records_in(0, 1)) == numbers(result.records.select(result.inside[0]))
    assert result.losses(0).isfinite().all()


def test_pfdms_client_model_needs_no_protocol(copied) -> None:
    result = attacked(copied, "pfdm")
    assert result.alone and set(result._train(0)) == {f"state/{k}" for k in result.finished.client(0).state(3)}


@pytest.mark.parametrize(
    ("name", "request_", "says"),
    [
        ("fedavg", {}, "no client denoiser .* has global"),
        ("localonly", {"source": "global"}, "no global denoiser .* has client"),
        ("localonly", {"client": 2}, "no client 2"),
        ("localonly", {"shadows": 5}, "^shadows must be .* got 5"),
    ],
)
def test_refused(storage, name: str, request_: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        attacked(storage, name, **request_)


def test_too_few_records_to_calibrate_are_refused(copied, tiny) -> None:
    data = replace(tiny.data, calibration=0)
    method = open_finished(copied.folder("localonly")).trial.experiment.method
    copied.finish("blind", replace(tiny, method=method, data=data, evaluation=None))
    with pytest.raises(ValueError, match="at least 2 records of each role, and there are fewer calibration_nonmembers"):
        attacked(copied, "blind")


def test_a_training_that_fails_is_one_sentence(copied, tiny) -> None:
    result = attacked(copied, "localonly")
    object.__setattr__(result, "inside", torch.zeros_like(result.inside))
    with pytest.raises(ValueError, match=r"^shadow 3 could not be trained: there are no records to train on$"):
        result.losses(3)
