"""`python jobs/canary.py`: what it prints of a preset's own upload, and one sentence for bad input."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from raydiff.cli import canary, canary_methods
from raydiff.data.records import Records
from raydiff.methods import DPMERF, DPSGD, PFDM, SPIRE, Evolution, FedAvg, FedDistr, Method, Sketch
from raydiff.methods._averaging import Averaging
from raydiff.models.ddpm import DDPM
from raydiff.models.latent.model import LatentModel
from raydiff.models.training import Training
from raydiff.privacy import accountants
from raydiff.privacy.client_level import ClientPrivacy
from raydiff.privacy.one_run import coins
from raydiff.seeding import NoiseStream, generator

ROOT = Path(__file__).resolve().parents[2]

NOISE = NoiseStream(b"0123456789abcdef", ())


def test_right_noise_passes_and_half_of_it_is_flagged(capsys: pytest.CaptureFixture[str]) -> None:
    assert canary.main(["digits", "--seeds", "2"]) == 0
    right = capsys.readouterr().out
    assert "mu 1.953" in right and "flagged: 0 of 2 seeds" in right and "most: mu 5.807, epsilon 40.887" in right
    assert canary.main(["digits", "--seeds", "2", "--halve"]) == 0
    assert "flagged: 2 of 2 seeds" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("method", ["sketch", "dpmerf", "evolution"])
def test_half_the_noise_of_a_sum_is_flagged_and_the_right_one_is_not(
    method: str, capsys: pytest.CaptureFixture[str]
) -> None:
    few = ["digits", "--method", method, "--epsilon", "4", "--seeds", "1", "--canaries"]
    few += {
        "sketch": ["400"],
        "dpmerf": ["1000", "--method.features", "100"],
        "evolution": ["400", "--method.rounds", "3"],
    }[method]
    assert canary.main(few) == 0
    right = capsys.readouterr().out
    assert "ledger: epsilon 4.00 (per example, replace-one, local" in right and "flagged: 0 of 1 seeds" in right
    assert canary.main([*few, "--halve"]) == 0
    assert "flagged: 1 of 1 seeds" in capsys.readouterr().out


def test_the_sketch_s_canaries_are_the_worst_pair() -> None:
    """What is seen of one is half the sensitivity on its own side, so that no attack could see more."""
    method = Sketch(clip=2.0, moment=1.2)
    subject = canary_methods.subject(method, None)
    seen = subject.send(3 * torch.ones(1, 1, 64), _Silent(b"0123456789abcdef", ()))
    assert float(seen.norm()) == pytest.approx(method.sensitivity / 2, rel=1e-4)
    assert subject.ledger.mu(0) == pytest.approx(accountants.mu_for(10.0, 1e-5), rel=1e-6)


def test_of_votes_the_canaries_see_every_round() -> None:
    """Half the sensitivity in each, so that no attack could see more."""
    method = Evolution(candidates=7, rounds=4, epsilon=3.0)
    subject = canary_methods.subject(method, None)
    seen = subject.send(3 * torch.ones(1, 1, 64), _Silent(b"0123456789abcdef", ()))
    assert float(seen.norm()) == pytest.approx(4 * math.sqrt(2) / 2)
    assert subject.ledger.mu(0) == pytest.approx(accountants.mu_for(3.0, 1e-5), rel=1e-6)


def test_a_method_that_leaks_ends_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(canary, "_factor", lambda options: 0.5)
    assert canary.main(["digits", "--seeds", "2"]) == 1


def test_too_few_canaries_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    canary.main(["digits", "--seeds", "1", "--canaries", "20"])
    assert "so few canaries cannot flag this release" in capsys.readouterr().out


@pytest.mark.parametrize("trust", ["local", "central"])
@pytest.mark.parametrize("kind", [FedAvg, SPIRE])
def test_the_ledger_of_an_averaged_method_is_that_of_all_its_rounds(kind: type[FedAvg | SPIRE], trust: str) -> None:
    privacy = ClientPrivacy(epsilon=3.0, clip=0.5, trust=trust)  # type: ignore[arg-type]
    method = kind(rounds=4, averaging=Averaging(weights="uniform", privacy=privacy))
    subject = canary_methods.subject(method, None)
    assert subject.ledger.mu(0) == pytest.approx(accountants.mu_for(3.0, 1e-5), rel=1e-6)
    seen = subject.send(100 * torch.ones(1, 1, 16), _Silent(b"0123456789abcdef", ()))
    share = 0.5 if trust == "central" else 1.0  # of a mean of two
    assert float(seen.norm()) == pytest.approx(4 * 0.5 * share, rel=1e-4)  # clipped, in each of the rounds


def test_feddistr_sends_canaries_as_its_prompts(latent_model: LatentModel) -> None:
    method = FedDistr(model=latent_model, clusters=3, epsilon=5.0, clip=2.0)
    subject = canary_methods.subject(method, None)
    assert subject.shape[0] == 3 and subject.ledger.mu(0) == pytest.approx(accountants.mu_for(5.0, 1e-5), rel=1e-6)
    seen = subject.send(torch.ones(2, *subject.shape), _Silent(b"0123456789abcdef", ()))
    assert torch.allclose(seen.norm(dim=2), torch.full((2, 3), 2.0), rtol=1e-4)


def _averaged(trust: str) -> FedAvg:
    privacy = ClientPrivacy(epsilon=3.0, clip=0.5, trust=trust)  # type: ignore[arg-type]
    return FedAvg(rounds=2, averaging=Averaging(weights="uniform", privacy=privacy))


@pytest.mark.parametrize("name", ["pfdm", "feddistr", "local", "central", "sketch", "dpmerf", "evolution"])
def test_what_is_made_of_an_antipode_is_minus_what_is_made_of_its_canary(name: str, latent_model: LatentModel) -> None:
    """So the threshold between the two is 0, whatever the noise, for it is symmetric."""
    methods: dict[str, Callable[[], Method]] = {
        "pfdm": lambda: PFDM(model=DDPM(timesteps=100), epsilon=10.0, clip=6.8, center=True),
        "feddistr": lambda: FedDistr(model=latent_model, clusters=3, epsilon=5.0, clip=2.0),
        "local": lambda: _averaged("local"),
        "central": lambda: _averaged("central"),
        "sketch": lambda: Sketch(clip=4.3, center=True),
        "dpmerf": lambda: DPMERF(features=200, center=True, radius=0.8),
        "evolution": lambda: Evolution(candidates=9),
    }
    public = Records(torch.rand(20, 1, 8, 8, generator=generator(5)), torch.zeros(20, 1).long(), torch.arange(20))
    subject = canary_methods.subject(methods[name](), public)
    x = torch.randn(6, *subject.shape, generator=generator(1))
    seen, opposite = (subject.send(sign * 10 * x, _Silent(b"0123456789abcdef", ())) for sign in (1, -1))
    assert seen.norm() > 0.1 and torch.allclose(seen, -opposite, atol=1e-5 * float(seen.abs().max()))


def test_dpsgd_trains_on_the_canaries() -> None:
    method = DPSGD(local=Training(steps=6, batch=10), rounds=2, epsilon=2.0, max_grad_norm=0.7)
    included = coins(40, generator(0))
    scores, ledger = canary_methods.one_run(method, included, generator(1), _Silent(b"0123456789abcdef", ()))
    assert scores[~included].abs().max() == 0
    drawn = scores[included] * 10 / 0.7  # each time a canary is drawn it moves its parameter by C / B
    assert torch.allclose(drawn, drawn.round(), atol=1e-3) and drawn.sum() > 0
    assert 1.99 < ledger.epsilon(1e-5, "pld") <= 2.0


class _Silent(NoiseStream):
    """No noise, but the real samples."""

    def normal(self, records: object, shape: object) -> torch.Tensor:
        return torch.zeros(len(records), *shape)  # type: ignore[arg-type,misc]

    def generator(self, *path: str | int) -> object:  # type: ignore[override]
        from raydiff.privacy.canaries import Weakened

        return Weakened(self.secret, self.path, 0.0).generator(*path)


PRIVACY = "--method.averaging.privacy"
SHARED = ["--method.averaging.weights", "uniform", PRIVACY, "clientprivacy"]
SHARED += [f"{PRIVACY}.trust", "aggregate", f"{PRIVACY}.shares", "2"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["digitz"], "'digitz' is no preset; did you mean digits.*, and no run: "),
        (["digits", "--epsilon", "none"], "PFDM adds no noise .* nothing to audit without method.epsilon"),
        (["digits", "--method", "localonly"], "LocalOnly adds no noise"),
        (["digits", "--method", "fedavg"], "FedAvg adds no noise .* without method.averaging.privacy"),
        (["frontier", "--method", "dpsgd", "--epsilon", "none"], "DPSGD adds no noise"),
        (
            ["digits", "--method", "fedavg", "--min_clients", "2", *SHARED],
            "there is no audit of averaging.privacy.trust = aggregate",
        ),
        (["frontier-adult"], "there is no audit of Marginals: canaries are pictures"),
        (["digits", "--canaries", "6"], "at least 8 canaries"),
        (["digits", "--seeds", "0"], "--seeds must be at least 1, got 0"),
        (["digits", "--confidence", "2"], r"confidence must be in \(0, 1\), got 2.0"),
        (["digits", "--canary", "6"], "unknown field --canary"),
    ],
)
def test_bad_input_is_one_sentence(arguments: list[str], says: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=says) as e:
        canary.main([*arguments, "--storage", str(tmp_path)])
    assert "\n" not in str(e.value)


def test_the_methods_without_noise_are_refused() -> None:
    with pytest.raises(ValueError, match="PFDM adds no noise"):
        canary_methods.subject(PFDM(model=DDPM(timesteps=100), clip=6.8, start="noise"), None)
