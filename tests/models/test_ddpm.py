"""The forward and reverse processes against their formulas."""

import functools
import itertools
import math
from dataclasses import replace
from itertools import pairwise
from typing import Any, get_args

import pytest
import torch
from diffusers import DPMSolverMultistepScheduler
from torch import Tensor

from raydiff import tree
from raydiff.data.picture_files import to_bytes
from raydiff.federated.method import Deployed
from raydiff.models import compute, ddpm, samplers
from raydiff.models.d3pm import DiscreteDiffusion
from raydiff.models.ddpm import DDPM
from raydiff.models.generator import Generator
from raydiff.models.networks import MLP
from raydiff.models.samplers import Sampling, chain, denoise
from raydiff.models.schedules import SCHEDULES, CosineBetas, LinearBetas, ScaledLinearBetas, Schedule, alphas_bar
from raydiff.seeding import generator

SMALL = DDPM(network=MLP(width=16, depth=1), timesteps=20, shape=(1, 4, 4), labels=(3, 2))


def batch(model: DDPM, n: int, *path: str) -> tuple[Tensor, Tensor]:
    """Images (n, C, H, W) and labels (n, K)."""
    rng = generator(0, "batch", *path)
    labels = [torch.randint(count, (n, 1), generator=rng) for count in model.labels]
    return torch.rand(n, *model.shape, generator=rng) * 2 - 1, torch.cat(labels, dim=1)


@pytest.mark.parametrize(
    ("schedule", "theirs", "start", "end"),
    [
        ("linear", "linear", 1e-4, 0.02),
        ("scaled_linear", "scaled_linear", 0.00085, 0.012),
        ("cosine", "squaredcos_cap_v2", 1e-4, 0.02),
    ],
)
def test_schedules_are_those_of_diffusers_at_1000(schedule: str, theirs: str, start: float, end: float) -> None:
    from diffusers import DDPMScheduler

    reference: Any = DDPMScheduler(1000, beta_start=start, beta_end=end, beta_schedule=theirs)
    abar = alphas_bar(SCHEDULES[schedule](), 1000)
    assert abar.dtype == torch.float64 and abar.shape == (1001,) and abar[0] == 1
    torch.testing.assert_close(1 - abar[1:] / abar[:-1], reference.betas.double(), rtol=1e-5, atol=1e-8)
    torch.testing.assert_close(abar[1:], reference.alphas_cumprod.double(), rtol=1e-4, atol=0)


@pytest.mark.parametrize("prediction", ["epsilon", "v", "x0", "edm"])
def test_loss_is_algorithm_3_by_hand(prediction: Any) -> None:
    model = replace(SMALL, prediction=prediction)
    params, (x, labels) = model.init(generator(0)), batch(SMALL, 6)
    draws = model.draws(6, generator(1))
    module = model.build()
    module.load_state_dict(params)
    errors = []
    for i in range(6):
        abar, t = 1.0, int(draws["t"][i])
        for s in range(1, t + 1):
            abar *= 1 - min(0.999, (1e-4 + (0.02 - 1e-4) * (s - 1) / 19) * 50)
        x_t = math.sqrt(abar) * x[i] + math.sqrt(1 - abar) * draws["z"][i]
        seen = x_t / math.sqrt(0.25 * abar + 1 - abar) if prediction == "edm" else x_t
        predicted = module(seen[None], draws["t"][i : i + 1] * 50.0, labels[i : i + 1])[0]
        z = draws["z"][i]
        target = {
            "epsilon": z,
            "v": math.sqrt(abar) * z - math.sqrt(1 - abar) * x[i],
            "x0": x[i],
            "edm": karras(x[i], x_t, abar),
        }[prediction]
        errors.append(float((target - predicted.detach()).square().mean()))
    assert float(model.loss(params, (x, labels), draws, {})) == pytest.approx(sum(errors) / 6, rel=1e-5)


def karras(x: Tensor, x_t: Tensor, abar: Any, std: float = 0.5) -> Tensor:
    """What F should be in D = c_skip y + c_out F(c_in y) for y = x + sigma n (Karras et al. 2022, Table 1)."""
    abar = torch.as_tensor(abar)
    sigma = ((1 - abar) / abar).sqrt()
    y, total = x_t / abar.sqrt(), (sigma**2 + std**2).sqrt()
    return (x - std**2 / total**2 * y) / (sigma * std / total)


@pytest.mark.parametrize("prediction", ["epsilon", "v", "x0", "edm"])
def test_whatever_is_predicted_the_noise_is_what_one_gets(prediction: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A network that is right about its own target is right about the noise, at every depth."""
    model = replace(SMALL, prediction=prediction)
    x, t = torch.randn(20, 1, 4, 4, generator=generator(0)), torch.arange(1, 21)
    z, abar = torch.randn(20, 1, 4, 4, generator=generator(1)), model.abar[1:].float().view(-1, 1, 1, 1)
    x_t = abar.sqrt() * x + (1 - abar).sqrt() * z
    v = abar.sqrt() * z - (1 - abar).sqrt() * x
    right = {"epsilon": z, "v": v, "x0": x, "edm": karras(x, x_t, abar)}[prediction]
    monkeypatch.setattr(DDPM, "_output", lambda self, *_: right)
    torch.testing.assert_close(model.predict({}, x_t, t, torch.zeros(20, 2)), z, rtol=1e-4, atol=1e-4)
    assert float(model.loss({}, (x, torch.zeros(20, 2)), {"t": t, "z": z}, {})) < 1e-10


def test_lognormal_levels_are_edms() -> None:
    """ln sigma is normal with mean -1.2, or another one, and deviation 1.2, on a schedule that has all of it; uniform
    levels are not."""
    model = DDPM(schedule=CosineBetas(), timesteps=4000, shape=(1, 1, 1), levels="lognormal")
    higher = replace(model, lognormal_mean=0.9)
    for of, mean, close in ((model, -1.2, True), (higher, 0.9, True), (replace(model, levels="uniform"), -1.2, False)):
        t = of.draws(20_000, generator(0))["t"]
        log_sigma = 0.5 * (1 / model.abar[t] - 1).log()
        moments = float(log_sigma.mean()), float(log_sigma.std())
        assert (moments == pytest.approx((mean, 1.2), abs=0.03)) is close
    model = DDPM(schedule=CosineBetas(), timesteps=3, shape=(1, 1, 1), levels="lognormal")
    few = model.draws(20_000, generator(0))["t"]
    assert set(few.tolist()) == {1, 2, 3}


@pytest.mark.parametrize("prediction", ["epsilon", "v", "x0", "edm"])
@pytest.mark.parametrize("cap", [0.5, 1e9])
def test_min_snr_weighs_the_error_in_x_0(prediction: Any, cap: float, monkeypatch: pytest.MonkeyPatch) -> None:
    model = replace(SMALL, prediction=prediction, snr_cap=cap)
    x, out = (torch.randn(20, 1, 4, 4, generator=generator(i)) for i in (0, 1))
    draws = {"t": torch.arange(1, 21), "z": torch.randn(20, 1, 4, 4, generator=generator(2))}
    monkeypatch.setattr(DDPM, "_output", lambda self, *_: out)
    abar = model.abar[1:].float().view(-1, 1, 1, 1)
    x_t = abar.sqrt() * x + (1 - abar).sqrt() * draws["z"]
    x_0 = (x_t - (1 - abar).sqrt() * model.predict({}, x_t, draws["t"], torch.zeros(20, 2))) / abar.sqrt()
    expected = ((abar / (1 - abar)).clamp_max(cap) * (x - x_0).square()).mean()
    assert float(model.loss({}, (x, torch.zeros(20, 2)), draws, {})) == pytest.approx(float(expected), rel=1e-3)


def test_half_of_the_pictures_are_mirrored() -> None:
    model, (x, labels) = replace(SMALL, flip=True), batch(SMALL, 6)
    params, draws = model.init(generator(0)), model.draws(6, generator(1))
    mirrored = torch.where(draws["flip"].view(-1, 1, 1, 1), x.flip(3), x)
    assert 0 < draws["flip"].sum() < 6
    plain = SMALL.loss(params, (mirrored, labels), draws, {})
    assert torch.equal(model.loss(params, (x, labels), draws, {}), plain)


def test_init_is_its_streams_alone() -> None:
    digests = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        before = torch.random.get_rng_state()
        digests.append(tree.digest(SMALL.init(generator(0))))
        assert torch.equal(torch.random.get_rng_state(), before)
    assert digests[0] == digests[1] != tree.digest(SMALL.init(generator(1)))


def test_the_denoiser_is_predict_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    (x, labels), t = batch(SMALL, 8), torch.arange(1, 9)
    params = {k: v.requires_grad_() for k, v in SMALL.init(generator(0)).items()}
    monkeypatch.setattr(compute, "CHUNK", 3)
    out = SMALL.denoiser(params)(x, t, labels)
    assert not out.requires_grad
    torch.testing.assert_close(out, SMALL.predict(params, x, t, labels).detach())


def test_fixed_labels_are_appended() -> None:
    params, (x, labels) = SMALL.init(generator(0)), batch(SMALL, 8)
    t = torch.arange(1, 9)
    for value in (0, 1):
        labels[:, 1] = value
        fixed = SMALL.denoiser(params, fixed=(value,))
        assert torch.equal(fixed(x, t, labels[:, :1]), SMALL.denoiser(params)(x, t, labels))


def odd(x: Tensor, t: Tensor, labels: Tensor) -> Tensor:
    """Some denoiser that depends on all of its arguments."""
    return 0.4 * x + (t / 50 + labels[:, 0] / 10).view(-1, 1, 1, 1).to(x.dtype)


def start(n: int = 5) -> tuple[Tensor, Tensor]:
    return torch.randn(n, 1, 4, 4, generator=generator(0), dtype=torch.float64), torch.arange(n)[:, None]


def test_the_ancestral_chain_is_algorithm_4_by_hand() -> None:
    T, (x, labels) = 12, start()
    abar = alphas_bar(ScaledLinearBetas(), T)
    out = denoise(odd, x, labels=labels, abar=abar, start=T, sampler="ancestral", rng=generator(3))
    rng = generator(3)
    for t in range(T, 0, -1):
        beta = 1 - float(abar[t] / abar[t - 1])
        z_theta = odd(x, torch.full((len(x),), t), labels)
        mean = (x - beta / math.sqrt(1 - float(abar[t])) * z_theta) / math.sqrt(1 - beta)
        x = mean + math.sqrt(beta) * torch.randn(x.shape, generator=rng) if t > 1 else mean
    torch.testing.assert_close(out, x)


@pytest.mark.parametrize(("first", "steps"), [(100, 10), (100, 25), (60, 7), (100, 1)])
def test_dpm_solver_is_that_of_diffusers(first: int, steps: int) -> None:
    """Its timesteps count from 0."""
    (x, labels), abar = start(), alphas_bar(ScaledLinearBetas(), 100)
    betas = (1 - abar[1:] / abar[:-1]).numpy()
    theirs = DPMSolverMultistepScheduler(
        num_train_timesteps=100, trained_betas=betas, final_sigmas_type="zero", lower_order_final=False
    )
    theirs.set_timesteps(timesteps=[t - 1 for t in chain(first, 0, steps)[:-1]])
    y = x
    for t in theirs.timesteps:
        y = theirs.step(odd(y, torch.full((len(y),), int(t) + 1), labels), t, y).prev_sample
    ours = denoise(odd, x, labels=labels, abar=abar, start=first, steps=steps, sampler="dpmsolver", rng=generator(0))
    torch.testing.assert_close(ours, y, rtol=1e-4, atol=1e-4)  # Their sigmas are float32.


@pytest.mark.parametrize("sampler", ["ancestral", "ddim", "dpmsolver"])
@pytest.mark.parametrize("steps", [None, 1, 7])
def test_a_perfect_denoiser_of_one_point_gives_that_point(sampler: Any, steps: int | None) -> None:
    (x, labels), abar = start(), alphas_bar(LinearBetas(), 100)
    point = torch.linspace(-1, 1, 16, dtype=torch.float64).view(1, 1, 4, 4)

    def perfect(x: Tensor, t: Tensor, labels: Tensor) -> Tensor:
        a = abar[t].view(-1, 1, 1, 1)
        return (x - a.sqrt() * point) / (1 - a).sqrt()

    out = denoise(perfect, x, labels=labels, abar=abar, start=60, steps=steps, sampler=sampler, rng=generator(0))
    torch.testing.assert_close(out, point.expand_as(x))


@pytest.mark.parametrize("steps", [None, 4, 1])
def test_ddim_follows_the_flow_of_a_unit_gaussian(steps: int | None) -> None:
    """For data N(0, 1) the flow leaves x where it is; a DDIM step shrinks it by the cosine of its angle."""
    (x, labels), abar = start(), alphas_bar(CosineBetas(), 100)

    def exact(x: Tensor, t: Tensor, labels: Tensor) -> Tensor:
        return (1 - abar[t]).sqrt().view(-1, 1, 1, 1) * x

    out = denoise(exact, x, labels=labels, abar=abar, start=80, stop=20, steps=steps, sampler="ddim", rng=generator(0))
    angles = [math.acos(math.sqrt(float(abar[t]))) for t in chain(80, 20, steps)]
    factor = math.prod(math.cos(a - b) for a, b in pairwise(angles))
    torch.testing.assert_close(out, factor * x)


@pytest.mark.parametrize("steps", [None, 4, 1])
def test_skipped_ancestral_steps_keep_a_unit_gaussian(steps: int | None) -> None:
    """Data N(0, 1): x_s given x_t ~ N(sqrt(a) x_t, 1 - a), a = abar_t / abar_s, however many steps."""
    abar, labels = alphas_bar(LinearBetas(), 100), torch.zeros(10_000, 1)

    def exact(x: Tensor, t: Tensor, labels: Tensor) -> Tensor:
        return (1 - abar[t]).sqrt().view(-1, 1, 1, 1) * x

    def run(x: Tensor) -> Tensor:
        part: dict[str, Any] = {"start": 70, "stop": 30, "steps": steps, "sampler": "ancestral"}
        return denoise(exact, x, labels=labels, abar=abar, rng=generator(0), **part)

    x = torch.zeros(10_000, 1, 1, 1, dtype=torch.float64)
    noise, weight = run(x), math.sqrt(float(abar[70] / abar[30]))
    torch.testing.assert_close(run(x + 1) - noise, torch.full_like(x, weight))
    assert float(noise.var()) == pytest.approx(1 - weight**2, rel=5 * math.sqrt(2 / 10_000))


@pytest.mark.parametrize("sampler", ["ancestral", "ddim"])
def test_a_chain_in_two_parts_is_the_whole_chain(sampler: Any) -> None:
    (x, labels), abar = start(), alphas_bar(LinearBetas(), 20)

    def part(x: Tensor, rng: torch.Generator, first: int, stop: int) -> Tensor:
        return denoise(odd, x, labels=labels, abar=abar, start=first, stop=stop, sampler=sampler, rng=rng)

    whole, rng = part(x, generator(4), 20, 0), generator(4)
    assert torch.equal(part(part(x, rng, 20, 7), rng, 7, 0), whole)


@pytest.mark.parametrize("sampler", ["ancestral", "ddim", "dpmsolver"])
def test_the_bound_holds_where_the_network_errs(sampler: Any) -> None:
    (x, labels), abar = start(), alphas_bar(CosineBetas(), 20)
    options: dict[str, Any] = {"labels": labels, "abar": abar, "start": 20, "sampler": sampler}
    lost = denoise(odd, x, **options, rng=generator(0))
    kept = denoise(odd, x, **options, bound=1.5, rng=generator(0))
    assert float(lost.abs().max()) > 2
    assert float(kept.abs().max()) <= 1.5 + 1e-9
    loose = denoise(odd, x, **options, bound=1e9, rng=generator(0))
    torch.testing.assert_close(loose, lost)


@pytest.mark.parametrize(
    ("steps", "first", "last", "calls"),
    [(None, 20, 0, 20), (10, 20, 0, 10), (10, 10, 0, 5), (7, 10, 0, 4), (3, 20, 14, 1), (1, 2, 0, 1)],
)
def test_a_part_of_a_chain_takes_its_share_of_the_steps(steps: int | None, first: int, last: int, calls: int) -> None:
    (x, labels), asked = start(), []

    def spy(x: Tensor, t: Tensor, labels: Tensor) -> Tensor:
        asked.append(int(t[0]))
        return odd(x, t, labels)

    sampling = Sampling(sampler="ddim", steps=steps)
    sampling.run(SMALL, spy, x, labels=labels, start=first, stop=last, bound=1.0, rng=generator(0))
    assert asked == chain(first, last, calls)[:-1]


def small(**changes: Any) -> tuple[DDPM, Tensor]:
    """A model and its output for fixed inputs."""
    model = DDPM(network=MLP(width=32, depth=2), timesteps=100, **changes)
    params, rng = DDPM(network=MLP(width=32, depth=2), timesteps=100).init(generator(0)), generator(1)
    inputs = torch.randn(6, 1, 8, 8, generator=rng), torch.arange(1, 7), torch.arange(6)[:, None]
    return model, model.predict(params, *inputs)


def test_bfloat16_rounds_inside_the_network_alone() -> None:
    exact, (model, rounded) = small()[1], small(precision="bfloat16")
    assert rounded.dtype == torch.float32 and not torch.equal(rounded, exact)
    assert float((rounded - exact).norm() / exact.norm()) < 0.02
    assert {v.dtype for v in model.init(generator(0)).values()} == {torch.float32}


@pytest.mark.slow
def test_a_compiled_network_computes_the_same() -> None:
    assert torch.allclose(small(compile=True)[1], small()[1], atol=1e-5)


@pytest.mark.parametrize("schedule", [cls() for cls in SCHEDULES.values()])
def test_samples_are_finite_and_within_the_bound_at_any_number_of_timesteps_and_steps(
    schedule: Schedule, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the network's outputs are 0, or far from what they should be."""
    outputs = torch.tensor([0.0, 1.0, 1e6]).view(3, 1, 1, 1)
    monkeypatch.setattr(DDPM, "_output", lambda self, params, x_t, *_, **__: outputs * x_t)
    labels = torch.zeros(3, 1, dtype=torch.long)
    for timesteps, prediction in itertools.product((1, 2, 5, 7, 9, 10, 16, 20, 100), get_args(ddpm.Prediction)):
        model = DDPM(schedule=schedule, timesteps=timesteps, prediction=prediction, shape=(1, 1, 2), labels=(2,))
        for sampler, steps in itertools.product(samplers.SAMPLERS, {1, 2, min(timesteps, 5)}):
            samples = Sampling(sampler=sampler, steps=steps).samplers(model, model.denoiser({}))[sampler]
            largest = float(samples(labels, generator(0)).abs().max())
            assert largest < 1.1, (timesteps, prediction, sampler, steps, largest)


def test_a_step_that_keeps_little_signal_has_the_same_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    """No chain of a preset has such a step, since they have 100 or 1000 timesteps: bits are as before."""
    ends = [alphas_bar(schedule(), T)[-1] for schedule in SCHEDULES.values() for T in (100, 1000)]
    assert min(ends) > samplers.LEAST_KEPT
    abar, x = torch.tensor([1.0, 0.9, 0.3], dtype=torch.float64), torch.randn(4, 1, 2, 2, generator=generator(0))
    for stop in (0, 1):
        arguments: Any = {"labels": torch.zeros(4, 1), "abar": abar, "start": 2, "stop": stop, "steps": 1}
        run = functools.partial(denoise, lambda x_t, *_: 0.3 * x_t, x, **arguments, sampler="ancestral", bound=1.0)
        plain = run(rng=generator(1))
        monkeypatch.setattr(samplers, "LEAST_KEPT", 1.0)
        torch.testing.assert_close(run(rng=generator(1)), plain)
        monkeypatch.undo()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_outputs_that_are_not_finite_are_no_samples(bad: float) -> None:
    """Clamped, an infinite one would be a black or white picture; a diverged table's rows would all be of code 0."""
    table = DiscreteDiffusion(hidden=8, layers=2, counts=(2, 3), labels=(2,))
    for model in (SMALL, table, Generator(labels=(2,))):
        params = model.init(generator(0))
        params |= {list(params)[-1]: torch.full_like(list(params.values())[-1], bad)}
        labels = torch.zeros(2, len(model.labels), dtype=torch.long)
        with pytest.raises(tree.NotFinite, match=r"^the model's (weights|outputs) are not finite: training diverged"):
            if isinstance(model, DDPM):
                Sampling(steps=1).samplers(model, model.denoiser(params))["ancestral"](labels, generator(0))
            elif isinstance(model, Generator):
                model.draw(params, labels, generator(0))
            else:
                model.sampler(params)(labels, generator(0))
    for images in (torch.full((2, 1, 4, 4), bad), torch.tensor([0.0, bad]).view(2, 1, 1, 1)):
        with pytest.raises(tree.NotFinite, match=r"^the samples are not finite"):
            Deployed(samplers={"a": lambda labels, rng, images=images: images}).sample(labels, generator(0))
        with pytest.raises(tree.NotFinite, match=r"^pictures are not finite"):
            to_bytes(images)
