"""What is attacked, with which records; and that the attacks find what there is to find, and nothing else."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from raydiff.data.datasets import Data, load_dataset
from raydiff.data.records import Records
from raydiff.evaluation.attacks import membership, scores as attacks, targets
from raydiff.federated.client import Client, Keys
from raydiff.federated.method import Deployed, Target, Upload, Uploads
from raydiff.federated.rounds import LocalExecutor, run_rounds
from raydiff.formats.metric_records import columns
from raydiff.methods.fedavg import FedAvg
from raydiff.methods.localonly import LocalOnly
from raydiff.models.ddpm import DDPM
from raydiff.models.networks import MLP
from raydiff.models.training import Training, fit
from raydiff.papers.pfdm.method import PFDM
from raydiff.seeding import NoiseStream, generator

SMALL = DDPM(network=MLP(width=32, depth=1), timesteps=20)
BRIEF = {"local": Training(steps=3, batch=4), "server": Training(steps=3, batch=4), "server_rounds": 1}
KEYS = Keys(0, b"s" * 16, "digest")


def pictures(n: int, seed: int, classes: int = 2) -> Records:
    images = torch.rand(n, 1, 8, 8, generator=generator(seed)) * 2 - 1
    return Records(images, torch.arange(n)[:, None] % classes, torch.arange(n))


def evaluated(method: Any, own: list[Records], **changes: Any) -> list[targets.Scores]:
    """Every client's scores after the last round."""
    arguments = {"names": ("pia", "sima"), "members": 100, "calibration": pictures(30, 8), "test": pictures(40, 9)}

    def instrument(deployed: Deployed, records: Records, rng: torch.Generator) -> targets.Scores:
        return targets.score_deployed(deployed, records, **{**arguments, **changes})

    pool = LocalExecutor([Client(i, method, d, keys=KEYS) for i, d in enumerate(own)], lambda split: instrument)
    last = list(run_rounds(method, pool, keys=KEYS))[-1]
    return list(pool.evaluate(pool.clients, last.sent, last.number, "test"))


def test_non_members_of_a_shared_model_are_scored_for_the_first_client_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two attacks: four roles of each of three targets for the first client, then two of the shared targets'."""
    method, own = PFDM(model=SMALL, clip=3.0, **BRIEF), [pictures(10, i) for i in range(3)]
    each, asked, scores = evaluated(method, own), [], attacks.score_records
    monkeypatch.setattr(
        attacks, "score_records", lambda *arguments, **more: asked.append(0) or scores(*arguments, **more)
    )
    together = evaluated(method, own, cache={})
    assert len(asked) == 2 * (3 * 4 + 2 * (4 + 2 * 2))
    for one, other in zip(each, together, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


# --- which targets there are ---


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        (PFDM(model=SMALL, clip=3.0, **BRIEF), {"client", "global", "global_uploaded", "uploads"}),
        (PFDM(model=SMALL, clip=3.0, start="gaussian", **BRIEF), {"client", "uploads"}),
        (PFDM(model=SMALL, clip=3.0, start="noise", **BRIEF), {"client"}),
        (FedAvg(model=SMALL, local=BRIEF["local"], rounds=1), {"global"}),
        (LocalOnly(model=SMALL, local=BRIEF["local"]), {"client"}),
    ],
)
def test_a_target_is_there_where_the_method_has_it(method: Any, expected: set[str]) -> None:
    (result,) = evaluated(method, [pictures(10, 0)])
    assert set(result) == expected
    for target, of in result.items():
        assert set(of) == ({targets.DISTANCE} if target == "uploads" else {"pia", "sima"})
        sizes = {role: scores.shape for role, scores in of.popitem()[1].items()}
        columns = 1 if target == "uploads" else len(attacks.grid(20))
        assert sizes["members"] == sizes["calibration_members"] == (5, columns)
        assert sizes["nonmembers"] == (40, columns) and sizes["calibration_nonmembers"] == (30, columns)


def test_what_is_attacked_as_uploaded_is_what_was_uploaded() -> None:
    """Bit for bit, the clip's center and the secret's noise included, and without noise its expectation."""
    method, seen = PFDM(model=SMALL, clip=3.0, center="public", epsilon=50.0, **BRIEF), {}
    client = Client(3, method, pictures(10, 0), keys=KEYS, public=pictures(20, 5))
    server = method.init_server(pictures(20, 5), generator(0))
    upload: Upload = client.run(server, 0)[0]

    def instrument(deployed: Deployed, own: Records, rng: torch.Generator) -> None:
        uploads = deployed.uploads
        assert uploads is not None
        seen.update(sent=uploads.sent, plain=uploads.make(own, None), make=uploads.make)

    client.evaluate(server, 0, instrument)
    assert torch.equal(seen["sent"].images, upload.release.value["x"])
    assert torch.equal(seen["sent"].labels, upload.release.value["labels"])
    many = torch.stack([seen["make"](pictures(10, 0), NoiseStream(b"n", (i,))).images for i in range(200)])
    apart = (many.mean(0) - seen["plain"].images).abs().max()
    assert apart < 5 * many.std(0).max() / 200**0.5


# --- a pool of prompts ---


def test_a_record_is_scored_by_the_prompt_that_knows_it_best() -> None:
    """Two denoisers of latents, each right for half of the records: all are known."""
    own = pictures(20, 0)

    def right_for(first: bool) -> Any:
        def z(x_t: torch.Tensor, t: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            mine = (x_t[:, 0, 0, 0] > 0) == first
            return torch.where(mine[:, None, None, None], torch.zeros_like(x_t), torch.ones_like(x_t))

        return z

    def pool(*denoisers: Any) -> Deployed:
        abar = torch.cat([torch.ones(1), SMALL.abar[1:]]).double()
        return Deployed(targets={"pool": Target(denoisers, abar, encode=lambda images: 2 * images)})

    splits = {"names": ("sima",), "members": 20, "calibration": pictures(6, 1), "test": pictures(8, 2)}
    deployed = pool(right_for(True), right_for(False))
    assert all(
        (scores == 0).all() for scores in targets.score_deployed(deployed, own, **splits)["pool"]["sima"].values()
    )
    alone = pool(right_for(True))
    scores = targets.score_deployed(alone, own, **splits)["pool"]["sima"]["nonmembers"][:, 0]
    assert torch.equal(scores == 0, splits["test"].images[:, 0, 0, 0] > 0)


# --- uploads ---


def test_the_distance_is_to_the_nearest_upload_of_the_class() -> None:
    own, candidates = pictures(6, 0), pictures(4, 1)
    uploads = Uploads(lambda r, noise: replace(r, images=0.5 * r.images), sent=own)
    result = targets.upload_distances(uploads, candidates)
    for i in range(4):
        alike = [j for j in range(6) if own.labels[j, 0] == candidates.labels[i, 0]]
        by_hand = min(float((own.images[j] - 0.5 * candidates.images[i]).norm()) for j in alike)
        assert float(result[i]) == pytest.approx(by_hand, rel=1e-6)
    other = replace(candidates, labels=candidates.labels + 7)
    assert targets.upload_distances(uploads, other).isinf().all()


def test_uploads_without_protection_give_every_record_away_and_noised_ones_keep_to_their_ceiling() -> None:
    open_, noised = (
        evaluated(PFDM(model=SMALL, clip=4.0, epsilon=epsilon, **BRIEF), [pictures(200, 0)]) for epsilon in (None, 1.0)
    )
    assert columns(targets.summary(open_))["attack/uploads/distance/auc"] == 1.0
    result = columns(targets.summary(noised))
    assert result["attack/uploads/distance/auc_low"] < 0.5 < result["attack/uploads/distance/auc_high"]


# --- the summary ---


def roles(shift: float, columns: int, seed: int, n: int = 60) -> dict[str, Tensor]:
    names = ("calibration_members", "calibration_nonmembers", "members", "nonmembers")
    rng = generator(seed)
    return {k: torch.randn(n, columns, generator=rng) + shift * k.endswith("nonmembers") for k in names}


def test_best_is_the_attack_of_the_best_calibration_whatever_the_evaluation_says() -> None:
    few = membership.ENOUGH - 1  # too few to be combined
    good, better = roles(3, 2, 0, few), roles(0.5, 2, 1, few)
    good["nonmembers"] = good["nonmembers"] - 3  # nothing is left of it in the evaluation
    result = columns(targets.summary([{"client": {"a": good, "b": better}}]))
    assert result["attack/client/best/auc"] == result["attack/client/a/auc"] < result["attack/client/b/auc"]
    assert result["attack/client/best/auc_high"] == result["attack/client/a/auc_high"]
    assert "attack/client/combined/auc" not in result


def test_best_is_the_combination_where_it_helps() -> None:
    of = {name: roles(1, 2, seed, 200) for seed, name in enumerate("abc")}
    result = columns(targets.summary([{"client": of}]))
    assert result["attack/client/best/auc"] == result["attack/client/combined/auc"]
    assert result["attack/client/best/auc"] > 0.05 + max(result[f"attack/client/{name}/auc"] for name in of)


def test_best_is_a_single_attack_where_the_combination_does_not_help() -> None:
    of = {"a": roles(4, 1, 0, 25), "b": roles(0, 30, 1, 25)}
    result = columns(targets.summary([{"client": of}]))
    assert result["attack/client/best/auc"] == result["attack/client/a/auc"] > result["attack/client/combined/auc"]


def test_the_combination_is_of_the_pooled_members_of_a_shared_model_and_missing_where_a_client_has_too_few() -> None:
    few = [{"pia": roles(1, 2, seed, 15)} for seed in (0, 1)]
    for name in ("calibration_nonmembers", "nonmembers"):
        few[1]["pia"][name] = few[0]["pia"][name] = roles(1, 2, 2, 40)[name]
    result = columns(targets.summary([{"global": of, "client": of} for of in few]))
    assert "attack/global/combined/auc" in result and "attack/client/combined/auc" not in result
    enough = {"pia": roles(1, 2, 3, 40)}
    result = columns(targets.summary([{"client": of} for of in (enough, few[0])]))
    assert "attack/client/combined/auc" not in result and "attack/client/best/auc" in result


def test_members_of_a_shared_model_are_pooled_and_those_of_the_clients_models_are_not() -> None:
    one, two = roles(1, 3, 0), roles(1, 3, 1)
    two |= {k: one[k] for k in ("calibration_nonmembers", "nonmembers")}
    both = [{"global": {"pia": each}, "client": {"pia": each}} for each in (one, two)]
    result = columns(targets.summary(both))
    assert result["attack/global/pia/n_members"] == 120 and result["attack/global/pia/n_nonmembers"] == 60
    each = [membership.attack_membership(**r).auc for r in (one, two)]
    assert result["attack/client/pia/auc"] == pytest.approx(sum(each) / 2)
    together = {k: torch.cat([one[k], two[k]]) if "non" not in k else one[k] for k in one}
    assert result["attack/global/pia/auc"] == membership.attack_membership(**together).auc


def test_a_reading_that_one_client_has_too_few_records_for_is_left_out() -> None:
    many, few = ({"client": {"pia": roles(1, 1, 0, n)}} for n in (500, 499))
    name = "attack/client/pia/tpr_at_1pct_fpr"
    assert name in columns(targets.summary([many, many])) and name not in columns(targets.summary([many, few]))
    assert "attack/client/pia/auc" in columns(targets.summary([many, few])) and targets.summary([{}]) == []


def test_proportions_are_kept_and_classes_that_are_not_there_are_left_out() -> None:
    rows = pictures(30, 0, classes=3)
    classes = torch.tensor([0] * 20 + [1] * 40 + [9] * 5)
    assert targets.in_proportion(rows, classes).labels[:, 0].tolist() == [0] * 5 + [1] * 10
    assert targets.in_proportion(rows, classes, most=6).labels[:, 0].tolist() == [0] * 2 + [1] * 4
    assert len(targets.in_proportion(rows, torch.tensor([9]), most=5)) == 0


# --- teeth ---


@pytest.fixture(scope="module")
def overfitted() -> dict[str, float]:
    """A non-private denoiser of 40 digits, shown 200 times each, and one that saw neither set."""
    splits = load_dataset(Data(train=80, public=0, validation=0, calibration=60, test=100)).splits
    own, strangers = (splits["train"].select(torch.arange(80) % 2 == k) for k in (0, 1))
    model = DDPM(network=MLP(width=128, depth=2), timesteps=40)
    training = Training(steps=400, batch=20, learning_rate=2e-3)
    attacked = {}
    for name, seen in (("client", own), ("global", strangers)):
        start, data = model.init(generator(0)), (seen.images, seen.labels)
        params, _, _ = fit(model, start, *data, training=training, rng=generator(1))
        attacked[name] = Target((model.denoiser(params),), model.abar)
    arguments = {"calibration": splits["calibration"], "test": splits["test"]}
    names = tuple(attacks.ATTACKS)
    return columns(
        targets.summary([targets.score_deployed(Deployed(targets=attacked), own, names=names, members=40, **arguments)])
    )


@pytest.mark.slow
def test_the_attacks_have_teeth_and_a_model_that_saw_neither_gives_nothing_away(overfitted: dict[str, float]) -> None:
    assert overfitted["attack/client/best/auc"] > 0.9
    # Not PIA: this model predicts next to no noise in a picture that it knows by heart (e0 near 0). So PIA takes its
    # error at a picture without noise, and that is larger than at the pictures of others.
    assert all(overfitted[f"attack/client/{name}/auc"] > 0.9 for name in ("loss", "sima"))
    assert overfitted["attack/global/best/auc_low"] < 0.5 < overfitted["attack/global/best/auc_high"]
