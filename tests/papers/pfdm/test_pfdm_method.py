"""PFDM (Patel et al., CVPR 2026) against its algorithms and its Gaussian closed form."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from toys import KEYS, records, run

from raydiff import tree
from raydiff.experiment.config import Experiment
from raydiff.federated.client import Client
from raydiff.federated.method import Round, Upload
from raydiff.federated.rounds import LocalExecutor, Progress, run_rounds
from raydiff.models import samplers
from raydiff.models.ddpm import DDPM
from raydiff.models.samplers import Sampling, denoise
from raydiff.papers.pfdm import controls
from raydiff.papers.pfdm.method import PFDM
from raydiff.privacy.release import Gaussian, NonPrivate
from raydiff.seeding import NoiseStream, generator
from raydiff.tree import Params

NOISE = NoiseStream(b"0123456789abcdef", ("x",))
REAL: dict[str, Any] = {"start": "real", "epsilon": None, "t0": 12}
States = tuple[Params, Params]


@pytest.fixture(scope="module")
def method(tiny: Experiment) -> PFDM:
    assert isinstance(tiny.method, PFDM)
    return tiny.method


@pytest.fixture(scope="module")
def progress(method: PFDM) -> list[Progress]:
    """A whole run."""
    return run(method)


@pytest.fixture(scope="module")
def states(method: PFDM, progress: list[Progress]) -> States:
    """(what clients see of the server's state, client 0's state)."""
    return progress[-1].sent, method.init_client({}, records(0), None, Round(0, generator(5)))


# --- the release ---


def test_a_given_depth_must_keep_to_the_budget(method: PFDM) -> None:
    needed = method.depth
    assert replace(method, t0=needed).depth == needed
    assert replace(method, t0=needed + 1).depth == needed + 1
    with pytest.raises(ValueError, match=rf"^t0 = {needed - 1} spends more than epsilon = 10 .* at least {needed}$"):
        replace(method, t0=needed - 1)


def test_noisy_images_train_the_global_denoiser_at_levels_of_their_own(method: PFDM) -> None:
    """Whatever those of the clients are; clean ones (CollaFuse) at these."""
    same = []
    for epsilon in (method.epsilon, None):
        by_levels = [
            replace(method, epsilon=epsilon, model=replace(method.model, lognormal_mean=n)) for n in (-1.2, 0.0)
        ]
        sent = [tree.under("model", run(m)[-1].sent) for m in by_levels]
        same.append(tree.digest(sent[0]) == tree.digest(sent[1]))
    assert same == [True, False]


@pytest.mark.usefixtures("fine_grid")
def test_the_upload_is_algorithm_1_by_hand(method: PFDM) -> None:
    method, data = replace(method, clip=4.6), records(0)
    result = method.local_update({}, {}, data, Round(0, generator(0), NOISE))
    abar, z = float(method.model.abar[method.depth]), NOISE.normal(range(12), (1, 8, 8)).float()
    norms = data.images.flatten(1).norm(dim=1)
    assert bool((norms > 4.6).any()) and bool((norms < 4.6).any())
    clipped = data.images * (4.6 / norms).clamp_max(1).view(-1, 1, 1, 1)
    sent = result.release.value
    assert sorted(sent) == ["labels", "x"]
    torch.testing.assert_close(sent["x"], math.sqrt(abar) * clipped + math.sqrt(1 - abar) * z, rtol=1e-4, atol=1e-4)
    assert torch.equal(sent["labels"], data.labels)
    assert result.metrics["upload/clipped_fraction"] == pytest.approx(float((norms > 4.6).float().mean()))


def test_the_event_is_the_noise_over_the_sensitivity(method: PFDM) -> None:
    abar = float(method.model.abar[method.depth])
    event = method.local_update({}, {}, records(0), Round(0, generator(0), NOISE)).release.event
    assert isinstance(event, Gaussian)
    assert event.std_over_sensitivity == pytest.approx(math.sqrt(1 - abar) / (2 * 6.4 * math.sqrt(abar)), rel=1e-12)
    assert (event.unit, event.relation, event.trust) == ("example", "replace_one", "local")
    assert event.declared == ("labels",)


@pytest.mark.parametrize("epsilon", [1.0, 50.0])
def test_the_ledger_keeps_to_the_budget(method: PFDM, epsilon: float) -> None:
    epsilons = {p.ledger.epsilon(method.delta, method.accountant) for p in run(replace(method, epsilon=epsilon))}
    assert len(epsilons) == 1 and 0 < epsilons.pop() <= epsilon  # one release, in round 0


def test_without_a_budget_images_go_as_they_are_and_the_ledger_says_so(method: PFDM) -> None:
    method = replace(method, epsilon=None)
    progress = run(method)
    assert torch.equal(progress[0].server["server_only/pool/x"], torch.cat([records(0).images, records(1).images]))
    assert {type(e.event) for e in progress[-1].ledger.entries} == {NonPrivate}
    assert progress[-1].ledger.epsilon(method.delta, method.accountant) == math.inf
    assert method.depth == 1 and replace(method, t0=7).depth == 7


# --- the server ---


def test_the_server_pools_the_uploads_in_client_order(method: PFDM) -> None:
    rnd = Round(0, generator(0), NOISE)
    uploads = [Upload(i, 12, method.local_update({}, {}, records(i), rnd).release) for i in (0, 1)]
    server = method.init_server(None, generator(0))
    after, metrics, events = method.aggregate(server, iter(uploads), Round(0, generator(0)))
    assert torch.equal(after["server_only/pool/x"], torch.cat([u.release.value["x"] for u in uploads]))
    assert torch.equal(after["server_only/pool/labels"], torch.cat([records(0).labels, records(1).labels]))
    assert tree.digest(tree.under("model", after)) == tree.digest(tree.under("model", server))
    assert (metrics, events) == ({"server/pooled": 24.0}, [])


def test_the_servers_training_is_one_training_cut_into_rounds(progress: list[Progress]) -> None:
    assert [p.number for p in progress] == [0, 1, 2, 3]
    steps = [float(p.server["server_only/moments/step/enter.weight"]) for p in progress[1:]]
    assert steps == [2.0, 5.0, 8.0]
    assert len({tree.digest(tree.under("model", p.server)) for p in progress}) == 4
    assert len({tree.digest(tree.under("server_only/pool", p.server)) for p in progress}) == 1


def test_clients_never_see_the_pool(progress: list[Progress]) -> None:
    assert all(k.startswith("model/") for p in progress for k in p.sent)


# --- the samples ---


@pytest.mark.parametrize(("epsilon", "t0"), [(10.0, None), (None, 7)])
def test_samples_come_through_both_chains(
    method: PFDM, states: States, monkeypatch: pytest.MonkeyPatch, epsilon: float | None, t0: int | None
) -> None:
    """Algorithm 2: the global denoiser's whole chain, then the client's from t0, flag "unclipped"."""
    method, asked, predict = replace(method, epsilon=epsilon, t0=t0), [], DDPM.predict

    def spy(model: DDPM, params: Params, x: Tensor, t: Tensor, labels: Tensor) -> Tensor:
        flags = labels[:, 1:].unique().tolist()
        asked.append((int(t[0]), labels[:, 0].tolist(), flags))
        return predict(model, params, x, t, labels)

    monkeypatch.setattr(DDPM, "predict", spy)
    method.deploy(*states).sample(torch.tensor([[3], [8]]), generator(0))
    last = 1 if t0 is None else t0 + 1
    by_server: list[Any] = [(t, [3, 8], []) for t in range(20, last - 1, -1)]
    by_client = [(t, [3, 8], [0]) for t in range(method.depth, 0, -1)]
    assert asked == by_server + by_client


def test_the_servers_chain_may_leave_the_range_of_clean_images(method: PFDM, states: States) -> None:
    """Noised images reach sqrt(abar) + 4 sqrt(1 - abar); the client's chain brings them back."""
    method = replace(method, sampling=Sampling(sampler="ddim"), client_sampling=Sampling(sampler="ddim"))
    server, state = states
    loud = {k: v * 50 if k == "model/leave.1.weight" else v for k, v in server.items()}
    deployed, model = method.deploy(loud, state), method.model
    labels, abar, rng = torch.zeros(6, 1, dtype=torch.long), float(model.abar[method.depth]), generator(3)
    x = torch.randn(6, 1, 8, 8, generator=rng)
    reach = math.sqrt(abar) + 4 * math.sqrt(1 - abar)
    chain = {"labels": labels, "abar": model.abar, "sampler": "ddim"}
    x = denoise(deployed.targets["global"].denoisers[0], x, start=20, bound=reach, rng=rng, **chain)  # type: ignore[arg-type]
    assert 1.5 < float(x.abs().max()) <= reach + 1e-5
    x = denoise(deployed.targets["client"].denoisers[0], x, start=method.depth, bound=1.0, rng=rng, **chain)  # type: ignore[arg-type]
    assert torch.equal(deployed.sample(labels, generator(3)), x)


# --- what replaces the global denoiser ---


def test_started_from_noise_nothing_is_sent_and_the_chain_is_the_clients_alone(method: PFDM) -> None:
    method = replace(method, start="noise", client_sampling=Sampling(sampler="ddim"))
    progress = run(method)
    assert len(progress) == 1 and progress[0].ledger.bytes_up == 0
    assert progress[0].ledger.server.epsilon(method.delta, "exact") == 0
    state = method.init_client({}, records(0), None, Round(0, generator(5)))
    deployed = method.deploy(progress[0].sent, state)
    assert set(deployed.targets) == {"client"}
    rng, labels = generator(7), torch.arange(5)[:, None]
    x, chain = torch.randn(5, 1, 8, 8, generator=rng), method.client_sampling
    (z,) = deployed.targets["client"].denoisers
    x = chain.run(method.model, z, x, labels=labels, start=method.depth, bound=1.0, rng=rng)
    assert torch.equal(deployed.sample(labels, generator(7)), x)


def test_shuffled_labels_are_the_same_uploads_under_other_names(method: PFDM, progress: list[Progress]) -> None:
    shuffled = run(replace(method, start="shuffled"))
    pools = [tree.under("server_only/pool", p[0].server) for p in (progress, shuffled)]
    assert torch.equal(pools[0]["x"], pools[1]["x"])
    assert not torch.equal(pools[0]["labels"], pools[1]["labels"])
    assert torch.equal(pools[0]["labels"].sort(0).values, pools[1]["labels"].sort(0).values)
    assert progress[-1].ledger == shuffled[-1].ledger and len(progress) == len(shuffled)


def test_a_real_start_is_a_noised_picture_of_the_class_of_any_client_and_has_no_guarantee(method: PFDM) -> None:
    """By hand: x_{t0} without its noise is a picture that a client has sent; each of the class is drawn."""
    method = replace(method, **REAL, client_sampling=Sampling(sampler="ddim"))
    progress = run(method)
    assert len(progress) == 1 and {type(e.event) for e in progress[0].ledger.entries} == {NonPrivate}
    assert progress[0].ledger.epsilon(method.delta, method.accountant) == math.inf
    pictures, classes = (torch.cat([getattr(records(m), k) for m in (0, 1)]) for k in ("images", "labels"))
    labels, server, abar = classes.unique().repeat(60)[:, None], progress[0].sent, float(method.model.abar[12])
    rng, noise = generator(1), torch.randn(len(labels), 1, 8, 8, generator=generator(1))
    x, seen = controls.x_t0("real", server, labels, model=method.model, depth=12, rng=rng), set()
    for row, clean in zip(labels[:, 0], (x - math.sqrt(1 - abar) * noise) / math.sqrt(abar), strict=True):
        distances = (pictures - clean).flatten(1).norm(dim=1)
        assert distances.min() < 1e-3 and classes[distances.argmin()] == row
        seen.add(int(distances.argmin()))
    assert seen == set(range(len(pictures)))
    deployed, chain = method.deploy(server, method.init_client({}, records(0), None, Round(0, generator(5)))), "ddim"
    (denoiser,) = deployed.targets["client"].denoisers
    x = method.client_sampling.run(method.model, denoiser, x, labels=labels, start=12, bound=1.0, rng=rng)
    assert set(deployed.targets) == {"client"} and torch.equal(deployed.samplers[chain](labels, generator(1)), x)
    with pytest.raises(ValueError, match="has no model of its own: start is real"):
        method.deploy(server)
    with pytest.raises(ValueError, match="start = real sends the pictures as they are: epsilon must be none"):
        replace(method, epsilon=10.0)


@pytest.mark.usefixtures("fine_grid")
def test_a_center_moves_what_is_clipped_and_not_what_is_guaranteed(method: PFDM) -> None:
    """Images near the public mean pass unclipped, however small the clip; the event is the same."""
    public, data = records(9), records(0)
    near = replace(data, images=public.images.mean(0) + 0.01 * data.images)
    method = replace(method, clip=0.2, epsilon=1e6, center="public")
    server = method.init_server(public, generator(0))
    assert torch.equal(server["center"], public.images.mean(0))
    rnd = Round(0, generator(0), NOISE)
    centred = method.local_update(server, {}, near, rnd)
    plain = replace(method, center="grey").local_update({}, {}, near, rnd)
    assert centred.release.event == plain.release.event
    assert (centred.metrics["upload/clipped_fraction"], plain.metrics["upload/clipped_fraction"]) == (0.0, 1.0)
    abar = float(method.model.abar[method.depth])
    noise = math.sqrt(1 - abar) * NOISE.normal(range(len(near)), near.images.shape[1:]).float()
    sent = (centred.release.value["x"] - noise) / math.sqrt(abar)
    assert torch.allclose(sent, near.images, atol=1e-4)
    far = method.local_update(server, {}, data, rnd).release.value["x"]
    moved = ((far - noise) / math.sqrt(abar) - server["center"]).flatten(1).norm(dim=1)
    assert float(moved.max()) <= 0.2 + 1e-4 and float(moved.min()) > 0.19


@pytest.mark.parametrize("changes", [{"center": "public"}, {"center": "black"}, {"start": "gaussian"}, REAL])
def test_each_start_gives_images_by_both_samplers(method: PFDM, changes: dict[str, Any]) -> None:
    method, public = replace(method, **changes), records(9)
    pool = LocalExecutor([Client(i, method, records(i, 40), keys=KEYS, public=public) for i in range(2)])
    last = list(run_rounds(method, pool, keys=KEYS, public=public))[-1]
    deployed = Client(1, method, records(1, 40), keys=KEYS, public=public).deploy(last.sent, last.number)
    drawn = {name: sample(torch.arange(10)[:, None], generator(0)) for name, sample in deployed.samplers.items()}
    assert list(drawn) == ["ancestral", "ddim"] and not torch.equal(drawn["ancestral"], drawn["ddim"])
    for images in drawn.values():
        assert images.shape == (10, 1, 8, 8) and float(images.abs().max()) <= 1 + 1e-4


# --- the server's model by itself ---


def test_the_servers_own_samples_are_what_the_clients_chain_begins_with(
    method: PFDM, states: States, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels, starts, denoised = torch.arange(4)[:, None], list[Tensor](), samplers.denoise

    def spy(z_theta: Any, x: Tensor, **options: Any) -> Tensor:
        starts.append(x)
        return denoised(z_theta, x, **options)

    monkeypatch.setattr(samplers, "denoise", spy)
    method.deploy(*states).sample(labels, generator(2))
    shared = method.deploy(states[0])
    images = shared.sample(labels, generator(2))
    abar = float(method.model.abar[method.depth])
    reach = math.sqrt(abar) + 4 * math.sqrt(1 - abar)
    torch.testing.assert_close(images * reach, starts[1])
    assert images.abs().max() <= 1 and f"t0 = {method.depth}, divided by {reach:.6g}" in shared.about
