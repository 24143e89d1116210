"""FedDistr: what is sent and at which price, what the server makes of it, and what is refused."""

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy.stats import kstest
from toys import KEYS, records, run

from raydiff import tree
from raydiff.data.records import Records
from raydiff.federated.method import SCRATCH, LocalResult, Round
from raydiff.methods.fedavg import FedAvg
from raydiff.models.classifier import Classifier
from raydiff.models.training import Training
from raydiff.papers.feddistr.latent import folder as latent_folder
from raydiff.papers.feddistr.latent.model import LatentModel
from raydiff.papers.feddistr.method import FedDistr
from raydiff.papers.feddistr.prompt_pool import PromptPool
from raydiff.privacy.release import Gaussian, NonPrivate
from raydiff.results.sampler import Card, Sampler, save_sampler
from raydiff.seeding import NoiseStream, generator
from raydiff.tree import Params

SHORT = Training(steps=2, batch=4)


@pytest.fixture
def method(latent_model: LatentModel) -> FedDistr:
    return FedDistr(model=latent_model, clusters=1, inversion=SHORT, threshold=1e-3, images=20, steps=2, training=SHORT)


def of_labels(*labels: int, each: int = 6, seed: int = 0) -> Records:
    """A client with so many records of each of these labels."""
    own = records(seed, each * len(labels))
    return replace(own, labels=torch.tensor(labels).repeat_interleave(each)[:, None])


def sent(method: FedDistr, data: Records) -> LocalResult:
    state = method.init_client({}, data, None, Round(0, generator(1)))
    server = method.init_server(None, generator(0))
    return method.local_update(server, state, data, Round(0, generator(2), NoiseStream(KEYS.secret, ("a",))))


def pool_of(server: Params) -> PromptPool:
    return PromptPool.from_params(tree.under("pool", server))


def test_one_round_and_a_small_fraction_of_fedavgs_bytes(method: FedDistr) -> None:
    data = [of_labels(0, 1), of_labels(2, 3, seed=1)]
    last = run(method, data)[-1]
    assert {e.round for e in last.ledger.entries} == {0} and len(last.ledger.entries) == 2
    width = method.model.load().width
    assert last.ledger.bytes_up == 2 * 2 * (4 * width + 8 + 8)  # two prompts each: a vector, a label and a count
    weights = run(FedAvg(model=Classifier(), rounds=1, local=SHORT), data)[-1].ledger.bytes_up
    assert last.ledger.bytes_up < weights / 100


def test_the_clients_pictures_and_vectors_stay_where_they_are(method: FedDistr) -> None:
    data = of_labels(0, 1)
    result = sent(method, data)
    assert set(result.release.value) == {"x", "label", "count"}
    assert all(name.startswith(f"{SCRATCH}/") for name in result.state)  # no saved sampler has them


# ------------------------------------------------------------------------------------------------------- privacy


def private(method: FedDistr, epsilon: float = 10.0) -> FedDistr:
    return replace(method, epsilon=epsilon, clip=0.5)


@pytest.mark.parametrize("labels", [(0,), (0, 1, 2, 3)])
def test_each_clients_epsilon_is_the_budget_however_many_vectors_it_sends(
    method: FedDistr, labels: tuple[int, ...]
) -> None:
    asked = private(method, 7.0)
    last = run(asked, [of_labels(*labels), of_labels(5, seed=1)])[-1]
    for client in (0, 1):
        only = replace(last.ledger, entries=tuple(e for e in last.ledger.entries if e.client == client))
        assert only.server.epsilon(asked.delta, "exact") == pytest.approx(7.0, rel=1e-6)
    event = next(e.event for e in last.ledger.entries if e.client == 0)
    assert isinstance(event, Gaussian)
    assert (event.unit, event.relation, event.trust) == ("client", "replace_one", "local")
    assert event.declared == ("label", "examples") == asked.upload_event(6, 0).declared  # type: ignore[union-attr]


def in_groups(*sizes: int, n: int = 12) -> Records:
    """A client with so many copies of a bright picture, of a dark one, ..., all of label 0, and others of label 1."""
    values = torch.linspace(0.9, -0.9, len(sizes)).repeat_interleave(torch.tensor(sizes))
    images = torch.cat([values, torch.rand(n - len(values), generator=generator(0)) - 0.5])
    labels = (torch.arange(n) >= len(values)).long()[:, None]
    return Records(images.view(-1, 1, 1, 1).expand(-1, 1, 8, 8).contiguous(), labels, torch.arange(n))


@pytest.mark.parametrize("epsilon", [8.0, math.inf])
def test_what_is_sent_under_an_epsilon_does_not_tell_the_sizes_of_clusters(method: FedDistr, epsilon: float) -> None:
    """Names, types, shapes, labels, and the bytes on the wire are the same; the vectors are clipped and noised."""
    asked = replace(private(method, epsilon), clusters=2)
    results = [sent(asked, data) for data in (in_groups(1, 7), in_groups(4, 4), in_groups(8))]
    sizes = [result.state[f"{SCRATCH}/count"].tolist()[:-2] for result in results]
    assert [sorted(s) for s in sizes] == [[1, 7], [4, 4], [8]]  # equal pictures are one cluster
    for result in results:
        value = result.release.value
        assert set(value) == {"x", "label"} and value["label"].tolist() == [0, 0, 1, 1]
        assert result.release.event == results[0].release.event
        assert asked.upload_spec(asked.init_server(None, generator(0)), 12, 0).mismatch(result.release.value) is None


def test_under_an_epsilon_prompts_have_equal_shares_of_their_clients_records(method: FedDistr) -> None:
    asked = replace(private(method, 1e6), clusters=2, threshold=1e-6)
    last = run(asked, [in_groups(1, 7), of_labels(3, each=30, seed=1)])[-1]
    assert last.rejected == {} and pool_of(last.server).prompts.counts.tolist() == [3, 3, 3, 3, 15, 15]


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({"label": torch.tensor([0, 0, 1])}, "its leaf 'label' has values that are not there 2 times"),
        ({"label": torch.tensor([0, 0]), "count": torch.tensor([4, 4])}, "it has a leaf 'count' that nobody asked for"),
    ],
)
def test_an_upload_that_tells_of_cluster_sizes_is_refused_under_an_epsilon(
    method: FedDistr, value: Params, says: str
) -> None:
    asked = replace(private(method), clusters=2)
    sent = {"x": torch.zeros(len(value["label"]), 8), **value}
    assert asked.upload_spec(asked.init_server(None, generator(0)), 8, 0).mismatch(sent) == says


def test_the_noise_that_is_added_is_the_noise_that_is_accounted_for(method: FedDistr) -> None:
    """Vectors at the start have offset 0: what is sent is noise alone."""
    asked = replace(private(method), inversion=replace(SHORT, steps=0))
    data, drawn = of_labels(0, 1, 2, 3), []
    state = asked.init_client({}, data, None, Round(0, generator(1)))
    for i in range(60):
        rnd = Round(0, generator(2), NoiseStream(KEYS.secret, (f"{i}",)))
        result = asked.local_update({}, state, data, rnd)
        event = result.release.event
        assert isinstance(event, Gaussian)
        sensitivity = 2 * 0.5 * math.sqrt(4)  # all four vectors, each from one end of its ball to the other
        drawn.append(result.release.value["x"].flatten() / (event.std_over_sensitivity * sensitivity))
    z = torch.cat(drawn).numpy()
    assert kstest(z, "norm").pvalue > 1e-3
    for wrong in (0.5, 2 / 3, 1.5):  # half the noise, and less than that
        assert kstest(wrong * z, "norm").pvalue < 1e-6


def test_vectors_are_clipped_before_the_noise(method: FedDistr) -> None:
    fast = replace(method, inversion=Training(steps=5, batch=4, learning_rate=0.5))
    plain = sent(fast, of_labels(0, 1)).release.value["x"]
    assert float(plain.norm(dim=1).min()) > 0.5
    clipped = sent(private(fast, math.inf), of_labels(0, 1))
    assert float(clipped.release.value["x"].norm(dim=1).max()) <= 0.5
    assert clipped.metrics["clipped_fraction"] == 1.0
    torch.testing.assert_close(
        clipped.release.value["x"], 0.5 * plain / plain.norm(dim=1, keepdim=True), rtol=1e-4, atol=0
    )


@pytest.mark.parametrize(("upload", "says"), [("prompts", "prompt vectors, labels and counts"), ("latents", "latents")])
def test_what_is_sent_in_clear_is_said_to_be(method: FedDistr, upload: Any, says: str) -> None:
    event = sent(replace(method, upload=upload), of_labels(0, 1)).release.event
    assert isinstance(event, NonPrivate) and event.what.startswith(says)


# ---------------------------------------------------------------------------------------- threshold, bounds, models


def test_a_threshold_comes_from_the_public_records(method: FedDistr) -> None:
    server = replace(method, threshold=None).init_server(of_labels(0, 1, each=9), generator(1))
    same, different, threshold = (float(server[k]) for k in ("public/same", "public/different", "threshold"))
    assert 0 < same < different and threshold == pytest.approx((same + different) / 2)
    with pytest.raises(ValueError, match="threshold must be set"):
        replace(method, threshold=None).init_server(None, generator(1))


def test_the_upper_bound_trains_on_the_decoded_latents(method: FedDistr) -> None:
    bound, data = replace(method, upload="latents"), [of_labels(0, 1), of_labels(2, 3, seed=1)]
    last = run(bound, data)[-1]
    latents = sum(len(d) for d in data) * (4 * 4 * 4 * 4 + 8)  # float32 of (4, 4, 4), and a label
    assert last.ledger.bytes_up == latents and last.metrics["server/images"] == sum(len(d) for d in data)
    deployed = bound.deploy(last.sent)
    assert deployed.classify is not None and not deployed.samplers and bound.tables(last.server) == {}
    with pytest.raises(ValueError, match="makes no pictures"):
        _ = deployed.sample


def test_a_saved_sampler_has_the_latent_model_in_it(method: FedDistr, tmp_path: Path) -> None:
    model = LatentModel(path=str(shutil.copytree(method.model.path, tmp_path / "moved"))).for_data((1, 8, 8), (10,))
    own = replace(method, model=model)
    last = run(own, [of_labels(0, 1), of_labels(2, seed=1)])[-1]
    labels = {"digit": tuple("0123456789")}
    card = Card(trial="t", seed=0, round=0, clients=(), labels=labels, shape=(1, 8, 8), about="the pool")
    save_sampler(tmp_path / "sampler", card, own, server=last.sent, states={})
    asked = torch.tensor([[0], [1], [2]])
    expected = own.deploy(last.sent).sample(asked, generator(0))
    shutil.rmtree(tmp_path / "moved")
    assert torch.equal(Sampler(tmp_path / "sampler").of(None)(asked, generator(0)), expected)


# ------------------------------------------------------------------------------------------------------ bad input


def test_a_label_with_fewer_pictures_than_clusters_is_refused_unless_it_is_left_out(method: FedDistr) -> None:
    own = of_labels(0, 1, each=6).select(torch.tensor([0, 1, 2, 3, 6, 7]))  # four of label 0, two of label 1
    three = replace(method, clusters=3)
    with pytest.raises(ValueError, match=r"2 records of a label, fewer than method\.clusters = 3"):
        three.check_records(own)
    left_out = replace(three, least=3)
    left_out.check_records(own)
    assert sent(left_out, own).release.value["label"].tolist() == [0, 0, 0]
    with pytest.raises(ValueError, match="a client has 0 records"):
        replace(three, least=7).check_records(own)


def test_clients_that_hold_a_public_picture_are_refused(method: FedDistr, tmp_path: Path) -> None:
    own = of_labels(0, 1)
    folder = shutil.copytree(method.model.path, tmp_path / "model")
    model = LatentModel(path=str(folder)).for_data((1, 8, 8), (10,))
    replace(method, model=model).check_records(own)  # a model that does not tell of its pictures
    (folder / latent_folder.PUBLIC).write_text(json.dumps({"sha256": tree.digests(own.images[3:4])}))
    with pytest.raises(ValueError, match=r"^client records are also in the public data .*: 1 of 12"):
        replace(method, model=model).check_records(own)


def test_every_prompt_of_the_pool_is_asked_about_records_of_its_label(method: FedDistr) -> None:
    last = run(replace(method, clusters=2), [of_labels(0, 1), of_labels(1, seed=1)])[-1]
    prompts, model = pool_of(last.server).prompts, method.model.load()
    deployed = method.deploy(last.sent)
    assert prompts.labels.bincount().tolist() == [2, 4] == [2, len(deployed.targets["pool"].denoisers)]
    z_t, t = torch.randn(2, *model.latent_shape((1, 8, 8)), generator=generator(3)), torch.tensor([3, 9])
    ones, zeros = torch.nonzero(prompts.labels == 1)[:, 0], torch.nonzero(prompts.labels == 0)[:, 0]
    for k, z in enumerate(deployed.targets["pool"].denoisers):
        vectors = prompts.vectors[torch.stack([ones[k], zeros[k % 2]])]
        assert torch.equal(z(z_t, t, torch.tensor([[1], [0]])), model.predict(z_t, t, vectors))
        unknown = model.predict(z_t, t, model.start.expand(2, -1))  # a label of which nobody sent a prompt
        assert torch.equal(z(z_t, t, torch.tensor([[7], [9]])), unknown)
