"""`raydiff canary`: what it prints of a preset's own upload, and one sentence for bad input."""

import contextlib
import itertools
import math
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch

from raydiff import tree
from raydiff.cli import canary
from raydiff.data.records import Records
from raydiff.evaluation import canary_subjects
from raydiff.federated.method import LocalResult, Method, Round
from raydiff.methods import METHODS
from raydiff.methods._averaging import Averaging
from raydiff.methods.dpmerf import DPMERF
from raydiff.methods.dpsgd import DPSGD
from raydiff.methods.evolution import PICTURES, Evolution
from raydiff.methods.fedavg import FedAvg
from raydiff.methods.marginals import Marginals
from raydiff.methods.sketch import Sketch
from raydiff.models.ddpm import DDPM
from raydiff.models.forest import Forest
from raydiff.models.training import Training
from raydiff.papers.feddistr.latent.model import LatentModel
from raydiff.papers.feddistr.method import FedDistr
from raydiff.papers.pfdm.method import PFDM
from raydiff.papers.spire.method import SPIRE
from raydiff.privacy import accountants, aggregate, canaries, client_level, ghost_clipping, tradeoff
from raydiff.privacy.client_level import ClientPrivacy
from raydiff.privacy.ledger import Exposure
from raydiff.privacy.one_run import coins
from raydiff.privacy.release import Event, Gaussian, Trust, already_private
from raydiff.seeding import NoiseStream, generator
from raydiff.tree import Params

pytestmark = pytest.mark.usefixtures("fine_grid")
NOISE = NoiseStream(b"0123456789abcdef", ())
SILENT = canaries.Weakened(b"0123456789abcdef", (), 0.0)


def test_right_noise_passes_and_half_of_it_is_flagged(capsys: pytest.CaptureFixture[str]) -> None:
    assert canary.main(["digits", "--seeds", "1"]) == 0
    right = capsys.readouterr().out
    assert "mu 1.953" in right and "flagged: 0 of 1 seeds" in right and "most: mu 6.626, epsilon 49.447" in right
    assert canary.main(["digits", "--seeds", "1", "--halve"]) == 0
    assert "flagged: 1 of 1 seeds" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "more"),
    [
        ("sketch", ["--canaries", "400"]),
        ("dpmerf", ["--canaries", "1000", "--method.features", "100"]),
        ("evolution", ["--canaries", "200", "--method.rounds", "2"]),
    ],
)
def test_half_the_noise_of_a_sum_is_flagged_and_the_right_one_is_not(
    method: str, more: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    few = ["digits", "--method", method, "--epsilon", "4", "--seeds", "1", *more]
    assert canary.main(few) == 0
    right = capsys.readouterr().out
    assert "ledger: epsilon 4.00 (per example, replace-one, local" in right and "flagged: 0 of 1 seeds" in right
    assert canary.main([*few, "--halve"]) == 0
    assert "flagged: 1 of 1 seeds" in capsys.readouterr().out


def test_the_sketch_s_canaries_are_the_worst_pair() -> None:
    """What is seen of one is half the sensitivity on its own side, so that no attack could see more."""
    method = Sketch(clip=2.0, moment=1.2)
    subject = canary_subjects.build_subject(method, None)
    seen = subject.send(3 * torch.ones(1, 1, 64), SILENT)
    assert float(seen.norm()) == pytest.approx(method.sensitivity / 2, rel=1e-4)
    assert Exposure(subject.ledger).mu() == pytest.approx(accountants.mu_for(10.0, 1e-5), rel=1e-6)


def test_of_votes_the_canaries_see_every_round() -> None:
    """Half the sensitivity in each, so that no attack could see more."""
    method = Evolution(candidates=7, rounds=4, epsilon=3.0)
    subject = canary_subjects.build_subject(method, None)
    seen = subject.send(3 * torch.ones(1, 1, 64), SILENT)
    assert float(seen.norm()) == pytest.approx(4 * math.sqrt(2) / 2)
    assert Exposure(subject.ledger).mu() == pytest.approx(accountants.mu_for(3.0, 1e-5), rel=1e-6)


def test_a_method_that_leaks_ends_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(canary.HALVED, False, 0.5)
    assert canary.main(["digits", "--seeds", "1"]) == 1


def test_too_few_canaries_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    canary.main(["digits", "--seeds", "1", "--canaries", "20"])
    assert "so few canaries cannot flag this release" in capsys.readouterr().out


@pytest.mark.parametrize("trust", ["local", "central", "aggregate"])
@pytest.mark.parametrize("kind", [FedAvg, SPIRE])
def test_the_ledger_of_an_averaged_method_is_that_of_all_its_rounds(kind: type[FedAvg | SPIRE], trust: Trust) -> None:
    subject = canary_subjects.build_subject(_averaged(trust, kind, rounds=4), None)
    accountant: Any = "rdp" if trust == "aggregate" else "exact"
    assert accountants.renyi_mu(_events(subject)) == pytest.approx(accountants.mu_for(3.0, 1e-5, accountant), rel=1e-6)
    if trust != "aggregate":  # its noise cannot be silenced
        seen = subject.send(100 * torch.ones(1, 1, 16), SILENT)
        share = 0.5 if trust == "central" else 1.0  # of a mean of two
        assert float(seen.norm()) == pytest.approx(4 * 0.5 * share, rel=1e-4)  # clipped, in each of the rounds


def test_of_an_aggregate_the_canaries_see_the_sum_that_is_revealed() -> None:
    """The mean over the clients of the clipped canary, and noise: that of all shares, as the ledger says."""
    subject = canary_subjects.build_subject(_averaged("aggregate", rounds=2, epsilon=100.0), None)
    seen = subject.send(100 * torch.ones(100, 1, 16), NOISE).view(100, 16)
    assert float(seen.mean(0).norm()) == pytest.approx(2 * 0.5 / 2, rel=0.05)
    std = 2 * 0.5 * math.sqrt(2) / accountants.mu_for(100.0, 1e-5, "rdp")  # of a round's sum of two
    assert float(seen.std()) == pytest.approx(std * math.sqrt(2) / 2, rel=0.05)


@pytest.mark.parametrize(
    ("fault", "count"),
    [
        pytest.param("nothing", 300, marks=pytest.mark.slow),
        ("a quarter of every share", 300),
        pytest.param("half of every share", 1000, marks=pytest.mark.slow),
        pytest.param("seven shares of eight forgotten", 300, marks=pytest.mark.slow),
        pytest.param("no clip", 300, marks=pytest.mark.slow),
    ],
)
def test_a_broken_aggregate_is_flagged_and_the_right_one_is_not(
    fault: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject = canary_subjects.build_subject(_averaged("aggregate", rounds=1, epsilon=10.0), None)
    drawn, calls = aggregate.discrete_gaussian, itertools.count()
    if "of every share" in fault:
        part = 2 if fault.startswith("half") else 4
        monkeypatch.setattr(aggregate, "discrete_gaussian", lambda sigma, *rest: drawn(sigma // part, *rest))
    if fault == "seven shares of eight forgotten":
        monkeypatch.setattr(aggregate, "discrete_gaussian", lambda *a: (next(calls) % 8 == 0) * drawn(*a))
    if fault == "no clip":
        monkeypatch.setattr(client_level, "clip_update", lambda update, clip: update)
        monkeypatch.setattr(aggregate.Encoding, "rounded", _rounded)
    assert _flags(subject, count) == (fault != "nothing")


def _rounded(self: aggregate.Encoding, x: np.ndarray[Any, Any], noise: NoiseStream) -> Any:
    return np.round(self.scale * np.asarray(x, np.float64)).astype(np.int64)


def _events(subject: canary_subjects.Subject) -> list[Event]:
    return [e.event for e in subject.ledger.entries if e.client <= 0]


def _flags(subject: canary_subjects.Subject, count: int, factor: float = 1.0) -> bool:
    sizes, rng = {"clip": subject.clip, "shape": subject.shape, "count": count}, generator(0, "canaries")
    audit = canaries.audit_canaries(subject.send, **sizes, rng=rng, asks=1, factor=factor)
    return audit.flags(_events(subject), tradeoff.tpr_ceiling)


MARGINALS = Marginals(model=Forest(counts=(3, 2, 5), labels=(2,)), epsilon=4.0)


def test_of_marginals_half_the_noise_is_flagged_and_the_right_one_is_not() -> None:
    """The canaries differ in every column: no two records are further apart."""
    subject = canary_subjects.build_subject(MARGINALS, None)
    assert accountants.renyi_mu(_events(subject)) == pytest.approx(accountants.mu_for(4.0, 1e-5), rel=1e-6)
    seen = subject.send(torch.randn(20, 1, 3, generator=generator(0)), SILENT)
    assert torch.allclose(seen.norm(dim=2), torch.tensor(3 * math.sqrt(2) / 2), rtol=1e-4)
    assert not _flags(subject, 400) and _flags(subject, 400, factor=0.5)


LATER = [
    "nothing",
    "no noise after the first round",
    "a vote more in every round",
    "votes that count four times in the last round",
]


@pytest.mark.parametrize(
    "fault", [LATER[1], *(pytest.param(f, marks=pytest.mark.slow) for f in LATER if f != LATER[1])]
)
def test_what_is_wrong_with_the_votes_of_later_rounds_is_flagged(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of candidates that were drawn from the votes before, and with what the client keeps."""
    subject, real = canary_subjects.build_subject(Evolution(candidates=7, rounds=3), None), Evolution.local_update
    pictures: tuple[set[float], ...] = set(), set(), set()

    def update(self: Evolution, server: Params, state: Params, data: Records, rnd: Round) -> LocalResult:
        pictures[rnd.number].add(float(server[PICTURES].sum()))
        rounds = state.get("rounds", torch.zeros(()))
        method = replace(self, epsilon=None) if fault == LATER[1] and rnd.number else self
        value = dict(real(method, server, state, data, rnd).release.value)
        bare = real(replace(self, epsilon=None), server, state, data, rnd).release.value["votes"]
        more = {LATER[2]: float(rounds), LATER[3]: 3.0 * (rnd.number == 2)}
        value["votes"] = value["votes"] + more.get(fault, 0.0) * bare
        return LocalResult({"rounds": rounds + 1}, already_private(value, self.upload_event(1, 0)))

    if fault != "nothing":
        monkeypatch.setattr(Evolution, "local_update", update)
    assert _flags(subject, 120) == (fault != "nothing")
    assert fault == "nothing" or (len(pictures[0]) == 1 and len(pictures[1]) > 25)


def test_feddistr_sends_canaries_as_its_prompts(latent_model: LatentModel) -> None:
    method = FedDistr(model=latent_model, clusters=3, epsilon=5.0, clip=2.0)
    subject = canary_subjects.build_subject(method, None)
    assert subject.shape[0] == 3 and Exposure(subject.ledger).mu() == pytest.approx(
        accountants.mu_for(5.0, 1e-5), rel=1e-6
    )
    seen = subject.send(torch.ones(2, *subject.shape), SILENT)
    assert torch.allclose(seen.norm(dim=2), torch.full((2, 3), 2.0), rtol=1e-4)


def _averaged(
    trust: Trust, kind: type[FedAvg | SPIRE] = FedAvg, *, rounds: int = 2, epsilon: float = 3.0
) -> FedAvg | SPIRE:
    privacy = ClientPrivacy(epsilon=epsilon, clip=0.5, trust=trust, shares=2 if trust == "aggregate" else None)
    return kind(rounds=rounds, averaging=Averaging(weights="uniform", privacy=privacy))


@pytest.mark.parametrize("name", ["pfdm", "feddistr", "local", "central", "sketch", "dpmerf", "evolution", "marginals"])
def test_what_is_made_of_an_antipode_is_minus_what_is_made_of_its_canary(name: str, latent_model: LatentModel) -> None:
    """So the threshold between the two is 0, whatever the noise, for it is symmetric."""
    methods: dict[str, Callable[[], Method]] = {
        "pfdm": lambda: PFDM(model=DDPM(timesteps=100), epsilon=10.0, clip=6.8, center="public"),
        "feddistr": lambda: FedDistr(model=latent_model, clusters=3, epsilon=5.0, clip=2.0),
        "local": lambda: _averaged("local"),
        "central": lambda: _averaged("central"),
        "sketch": lambda: Sketch(clip=4.3, center="public"),
        "dpmerf": lambda: DPMERF(features=200, length=3.0),
        "evolution": lambda: Evolution(candidates=9),
        "marginals": lambda: MARGINALS,
    }
    public = Records(torch.rand(20, 1, 8, 8, generator=generator(5)), torch.zeros(20, 1).long(), torch.arange(20))
    subject = canary_subjects.build_subject(methods[name](), public)
    x = torch.randn(6, *subject.shape, generator=generator(1))
    seen, opposite = (subject.send(sign * 10 * x, SILENT) for sign in (1, -1))
    assert seen.norm() > 0.1 and torch.allclose(seen, -opposite, atol=1e-5 * float(seen.abs().max()))


@pytest.mark.parametrize(
    "fault", ["half the noise", *(pytest.param(f, marks=pytest.mark.slow) for f in ("nothing", "no noise", "no clip"))]
)
def test_a_broken_sum_of_central_images_is_flagged(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a record that counts, or not: with moment 1 the sums and the second moment together."""
    sums = Sketch(clip=2.0, moment=1.0, relation="zero_out", epsilon=5.0)
    subject = canary_subjects.build_subject(DPSGD(rounds=2, epsilon=8.0, central=sums).first, None)
    assert accountants.renyi_mu(_events(subject)) == pytest.approx(accountants.mu_for(5.0, 1e-5), rel=1e-6)
    if fault == "no clip":
        monkeypatch.setattr(tree, "clip_records", lambda x, clip: x)
    factor = {"half the noise": 0.5, "no noise": 0.0}.get(fault, 1.0)
    assert _flags(subject, 400, factor) == (fault != "nothing")


def test_dpsgd_trains_on_the_canaries() -> None:
    method = DPSGD(local=Training(steps=6, batch=10), rounds=2, epsilon=2.0, max_grad_norm=0.7)
    included = coins(40, generator(0))
    scores, ledger = canary_subjects.one_run(method, included, generator(1), SILENT)
    assert scores[~included].abs().max() == 0
    drawn = scores[included] * 10 / 0.7  # each time a canary is drawn it moves its parameter by C / B
    assert torch.allclose(drawn, drawn.round(), atol=1e-3) and drawn.sum() > 0
    assert 1.99 < ledger.epsilon(1e-5, "pld") <= 2.0


@pytest.mark.slow
def test_the_command_flags_a_fault_in_the_gradients_that_production_takes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    few = ["frontier", "--method", "dpsgd", "--epsilon", "2", "--seeds", "1", "--canaries", "2000"]
    few += ["--method.local.steps", "20"]
    assert canary.main(few) == 0
    for name, times in {"norms": 0.5, "weighted": 2.0}.items():
        real = getattr(ghost_clipping.Outer, name)
        with monkeypatch.context() as patch:
            patch.setattr(ghost_clipping.Outer, name, lambda *a, real=real, times=times: times * real(*a))
            assert canary.main(few) == 1 and "flagged: 1 of 1" in capsys.readouterr().out


# --- every private method has an audit ----------------------------------------------------------------------


def private(cls: Any) -> list[Any]:
    """The ways of this method to add noise."""
    names = {f.name for f in fields(cls)}
    tried: list[dict[str, Any]] = [{}, {"epsilon": 3.0}, {"epsilon": 3.0, "clip": 2.0}]
    for trust in get_args(Trust):
        privacy = ClientPrivacy(epsilon=3.0, trust=trust, shares=2 if trust == "aggregate" else None)
        tried.append({"averaging": Averaging(weights="uniform", privacy=privacy)})
    methods = []
    for options in (o for o in tried if o.keys() <= names):
        with contextlib.suppress(ValueError, AttributeError, TypeError):  # it refuses these
            method = cls(**options)
            if "averaging" in options or isinstance(method.upload_event(1000, 0), Gaussian):
                methods.append(method)
    return methods


def unaudited(methods: dict[str, Any], latent: LatentModel) -> list[str]:
    """Names of the private methods of which canaries say nothing."""
    missing, public = [], Records(torch.rand(20, 1, 8, 8), torch.zeros(20, 1).long(), torch.arange(20))
    for name, method in ((name, method) for name, cls in methods.items() for method in private(cls)):
        if isinstance(method, FedDistr):
            method = replace(method, model=latent)
        try:
            if isinstance(method, DPSGD):
                small = replace(method, rounds=1, local=Training(steps=1, batch=16))
                _, ledger = canary_subjects.one_run(small, coins(64, generator(0)), generator(1), NOISE)
            else:
                ledger = canary_subjects.build_subject(method, public).ledger
        except ValueError as e:
            missing.append(f"{name}: {e}")
        else:
            assert 0 < ledger.epsilon(1e-5, method.accountant) < math.inf, name
    return missing


def test_every_private_method_has_an_audit(latent_model: LatentModel) -> None:
    assert unaudited(METHODS, latent_model) == []
    silent = {name for name, cls in METHODS.items() if not private(cls)}
    assert silent == {"localonly", "scaffold"}  # They send nothing, and weights as they are: privacy is refused.


def test_a_private_method_without_an_audit_is_found(latent_model: LatentModel) -> None:
    class Novel(Method):
        accountant = "exact"

        def upload_event(self, records: int, round_number: int) -> Event:
            return Gaussian(1.0, "example", "replace_one", "local")

    Novel.__dataclass_fields__ = {}  # type: ignore[attr-defined]
    (missing,) = unaudited({"novel": Novel}, latent_model)
    assert missing.startswith("novel: there is no audit of Novel, which adds noise")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["digits", "--epsilon", "none"], "PFDM adds no noise .* nothing to audit"),
        (["digits", "--method", "fedavg"], "FedAvg adds no noise"),
        (["frontier", "--method", "dpsgd", "--epsilon", "none"], "DPSGD adds no noise"),
        (["digits", "--canaries", "6"], "at least 8 canaries"),
    ],
)
def test_bad_input_is_one_sentence(arguments: list[str], says: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=says) as e:
        canary.main([*arguments, "--storage", str(tmp_path)])
    assert "\n" not in str(e.value)
