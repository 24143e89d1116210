"""Averaging: weights, the server's optimisers, and client-level privacy of the updates."""

import math
from dataclasses import replace

import pytest
import torch
from scipy import stats
from toys import KEYS, mean_upload, run

from raydiff import tree
from raydiff.experiment.config import Experiment
from raydiff.federated.method import Round, Upload
from raydiff.federated.upload_validator import UploadValidator
from raydiff.methods._averaging import Averaging
from raydiff.methods.fedavg import FedAvg
from raydiff.privacy import accountants, gaussian
from raydiff.privacy.client_level import DELTA, ClientPrivacy
from raydiff.privacy.ledger import Ledger
from raydiff.privacy.release import Gaussian, NonPrivate, disclose
from raydiff.seeding import NoiseStream, generator


def uploads(*sent: tuple[int, list[float]]) -> list[Upload]:
    return [Upload(i, n, disclose({"w": torch.tensor(w)}, "w")) for i, (n, w) in enumerate(sent)]


def server_round(noise: NoiseStream | None = None) -> Round:
    return Round(0, generator(0), noise, 2)


def mean_of(averaging: Averaging, *sent: tuple[int, list[float]]) -> list[float]:
    validator = UploadValidator(FedAvg(averaging=averaging), {"w": torch.zeros(2)}, 0, len(sent))
    mean, events = averaging.publish(mean_upload(validator, uploads(*sent)), server_round(), rounds=1)
    assert events == []
    return mean["w"].tolist()


def test_weights_are_by_examples_or_uniform() -> None:
    sent = ((30, [4.0, 0.0]), (10, [0.0, 8.0]))
    assert mean_of(Averaging(), *sent) == [3.0, 2.0]
    assert mean_of(Averaging(weights="uniform"), *sent) == [2.0, 4.0]


def steps(averaging: Averaging, *means: float) -> list[float]:
    params, moments, seen = {"w": torch.tensor([1.0])}, {}, []
    for mean in means:
        params, moments = averaging.step(params, {"w": torch.tensor([mean])}, moments)
        seen.append(float(params["w"]))
    return seen


def test_each_server_optimiser_by_hand() -> None:
    assert steps(Averaging(), 0.5, -0.25) == [1.5, 1.25]
    assert steps(Averaging(rate=2.0), 0.5) == [2.0]
    # v1 = .5, v2 = .5 * .5 - .25 = 0
    assert steps(Averaging(update="momentum", beta1=0.5), 0.5, -0.25) == [1.5, 1.5]
    adam = Averaging(update="adam", rate=0.1, beta1=0.5, beta2=0.75, tau=0.01)
    m1, v1 = 0.5 * 2.0, 0.25 * 4.0
    m2, v2 = 0.5 * m1 + 0.5 * 1.0, 0.75 * v1 + 0.25 * 1.0
    first = 1 + 0.1 * m1 / (math.sqrt(v1) + 0.01)
    assert steps(adam, 2.0, 1.0) == pytest.approx([first, first + 0.1 * m2 / (math.sqrt(v2) + 0.01)], rel=1e-6)
    m2, v2 = 0.5 * m1 + 0.5 * 0.4, v1 - 0.25 * 0.16  # Zaheer et al. 2018: towards the square by a fraction of it
    second = first + 0.1 * m2 / (math.sqrt(v2) + 0.01)
    assert steps(replace(adam, update="yogi"), 2.0, 0.4) == pytest.approx([first, second], rel=1e-6)


@pytest.fixture(scope="module")
def fedavg(tiny: Experiment) -> FedAvg:
    return FedAvg(model=tiny.method.model, local=tiny.method.local, rounds=3, averaging=Averaging(weights="uniform"))


def private(method: FedAvg, **privacy: float | str) -> FedAvg:
    return replace(method, averaging=replace(method.averaging, privacy=ClientPrivacy(**privacy)))  # type: ignore[arg-type]


@pytest.mark.parametrize("trust", ["local", "central"])
def test_without_noise_and_with_a_wide_clip_it_is_fedavg(fedavg: FedAvg, trust: str) -> None:
    room = fedavg.mean_spec(fedavg.init_server(None, generator(KEYS.seed, "server", "init"))).largest
    wide = run(private(fedavg, epsilon=math.inf, clip=room, trust=trust))[-1]  # The same grid for the sums.
    assert tree.digest(wide.server) == tree.digest(run(fedavg)[-1].server)
    assert wide.ledger.epsilon(DELTA, "exact") == math.inf


@pytest.mark.parametrize("trust", ["local", "central"])
def test_all_rounds_together_keep_to_the_budget(fedavg: FedAvg, trust: str) -> None:
    ledger: Ledger = run(private(fedavg, epsilon=3.0, clip=0.5, trust=trust))[-1].ledger
    covered, bare = (ledger.server, None) if trust == "local" else (ledger.outsiders, ledger.server)
    (guarantee,) = covered.guarantees(DELTA, "exact")
    assert (guarantee.unit, guarantee.relation, guarantee.trust) == ("client", "replace_one", trust)
    assert 3.0 - 1e-6 < guarantee.epsilon <= 3.0
    if bare is not None:  # the server sees the clipped updates as they are
        assert bare.epsilon(DELTA, "exact") == math.inf


def test_the_budget_is_the_closed_form_of_composed_gaussians() -> None:
    """Brute force: delta(epsilon) of the mechanism with R rounds, integrated numerically over its output."""
    privacy, rounds_ = ClientPrivacy(epsilon=2.0, clip=0.7), 5
    mu = 2 * privacy.clip * math.sqrt(rounds_) / privacy.std(rounds_)
    x = torch.linspace(-30, 30, 600_001, dtype=torch.float64)
    p, q = (torch.distributions.Normal(m, 1.0).log_prob(x).exp() for m in (mu, 0.0))
    delta = float(torch.trapezoid((p - math.exp(2.0) * q).clamp_min(0), x))
    assert delta == pytest.approx(DELTA, rel=1e-3)


def noise_of(privacy: ClientPrivacy, *, rounds_: int = 4) -> torch.Tensor:
    """What is sent, or published, for updates of 0: noise alone."""
    zero, noise = {"w": torch.zeros(4000)}, NoiseStream(b"0123456789abcdef", ("x",))
    if privacy.trust == "local":
        return privacy.release(zero, rounds=rounds_, noise=noise).value["w"]
    return privacy.publish(zero, count=5, rounds=rounds_, noise=noise)[0]["w"]


@pytest.mark.parametrize("trust", ["local", "central"])
def test_the_noise_has_its_scale_and_no_other(trust: str) -> None:
    privacy = ClientPrivacy(epsilon=2.0, clip=0.7, trust=trust)  # type: ignore[arg-type]
    mu = accountants.mu_for(2.0, DELTA)
    std = 2 * 0.7 * math.sqrt(4) / mu / (5 if trust == "central" else 1)
    drawn = noise_of(privacy).numpy()
    assert stats.kstest(drawn / std, "norm").pvalue > 1e-3
    for wrong in (2 / 3, 3 / 2):
        assert stats.kstest(drawn / (wrong * std), "norm").pvalue < 1e-6


def test_halved_noise_and_a_forgotten_clip_break_the_guarantee() -> None:
    """Likelihood-ratio test between a client's two extreme updates, u and -u: its advantage has a ceiling."""
    privacy, n = ClientPrivacy(epsilon=1.0, clip=1.0), 20_000
    std = privacy.std(1)
    ceiling = gaussian.gaussian_auc_ceiling(accountants.mu_for(1.0, DELTA))

    def auc(size: float, noise_std: float) -> float:
        rng = generator(1)
        yes, no = (s * size + noise_std * torch.randn(n, generator=rng) for s in (1, -1))
        return float(stats.mannwhitneyu(yes.numpy(), no.numpy()).statistic) / n**2

    def reach(value: float) -> float:
        (sent,) = privacy.release({"w": torch.tensor([value])}, rounds=1, noise=_Silent()).value["w"].tolist()
        return float(sent)

    assert reach(50.0) == pytest.approx(1.0, rel=1e-4) and reach(-50.0) == pytest.approx(-1.0, rel=1e-4)
    margin = 4 * 0.5 / math.sqrt(n)
    assert auc(reach(50.0), std) < ceiling + margin
    assert auc(reach(50.0), std / 2) > ceiling + margin
    assert auc(50.0, std) > ceiling + margin


class _Silent(NoiseStream):
    def __init__(self) -> None:
        super().__init__(b"0123456789abcdef", ())

    def normal(self, records: object, shape: object) -> torch.Tensor:
        return torch.zeros(1, *shape)  # type: ignore[misc]


def test_weights_go_as_they_are_and_the_ledger_says_so(fedavg: FedAvg) -> None:
    last = run(fedavg)[-1]
    assert [e.event for e in last.ledger.entries] == [NonPrivate("weights sent as they are")] * 6
    assert last.ledger.bytes_up == 6 * tree.nbytes(last.server)
    assert last.ledger.epsilon(DELTA, "exact") == math.inf


def test_events_say_what_was_sent(fedavg: FedAvg) -> None:
    local, central = (run(private(fedavg, trust=t))[-1].ledger for t in ("local", "central"))
    ratio = ClientPrivacy().std(3) / 2
    assert {e.event for e in local.entries} == {
        Gaussian(ratio, "client", "replace_one", "local", declared=("examples",))  # the server sees how many
    }
    assert {e.event for e in central.entries} == {
        NonPrivate("clipped updates, to a server trusted to add the noise"),
        Gaussian(ratio, "client", "replace_one", "central"),
    }


def test_an_update_that_is_not_finite_is_never_sent() -> None:
    with pytest.raises(ValueError, match="must be finite"):
        ClientPrivacy().release({"w": torch.tensor([math.nan])}, rounds=1, noise=NoiseStream(b"k" * 16, ()))
