"""The training loop, and its golden losses: `python tests/models/test_training.py` writes them anew."""

import itertools
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from raydiff import tree
from raydiff.models.classifier import Classifier, Perceptron
from raydiff.models.ddpm import DDPM
from raydiff.models.networks import MLP, UNet
from raydiff.models.schedules import CosineBetas
from raydiff.models.training import Diverged, Training, fit, fit_part, with_clipped_copies
from raydiff.seeding import generator
from raydiff.tree import Params

MODEL = DDPM(network=MLP(width=16, depth=1), timesteps=20, shape=(1, 4, 4), labels=(3,))
GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "losses.json"
GOLDEN_MODELS = {
    "mlp": DDPM(network=MLP(width=32, depth=2), timesteps=100),
    "unet": DDPM(network=UNet(widths=(8, 16)), timesteps=100, schedule=CosineBetas()),
}


def records(model: DDPM = MODEL, n: int = 12) -> tuple[Tensor, Tensor]:
    """Images (n, C, H, W) on [-1, 1] and labels (n, 1)."""
    rng = generator(0, "records")
    return torch.rand(n, *model.shape, generator=rng) * 2 - 1, torch.randint(model.labels[0], (n, 1), generator=rng)


def train(training: Training, *, model: DDPM = MODEL, rng: torch.Generator | None = None, **options: Any) -> Any:
    images, labels = records(model)
    params = options.pop("params", None) or model.init(generator(0))
    return fit(model, params, images, labels, training=training, rng=rng or generator(1), **options)


def losses(model: DDPM, steps: int) -> list[float]:
    """The loss of each step."""
    seen: list[float] = []

    def objective(params: Params, batch: tuple[Tensor, Tensor], draws: Params, extras: Params) -> Tensor:
        loss = model.loss(params, batch, draws, extras)
        seen.append(float(loss.detach()))
        return loss

    train(Training(steps=steps, batch=16), model=model, objective=objective)
    return seen


@pytest.mark.parametrize("name", GOLDEN_MODELS)
def test_losses_of_ten_steps_are_the_golden_ones(name: str) -> None:
    golden = json.loads(GOLDEN.read_text())
    assert losses(GOLDEN_MODELS[name], 10) == pytest.approx(golden[name], rel=1e-5)


def test_fit_is_adamw_on_the_models_loss_along_a_cosine() -> None:
    training = Training(steps=6, batch=5, learning_rate=1e-2, weight_decay=0.1)
    fitted, _, mean = train(training)
    (images, labels), rng, seen = records(), generator(1), []
    theta = {k: v.requires_grad_() for k, v in MODEL.init(generator(0)).items()}
    optimizer = torch.optim.AdamW(list(theta.values()), lr=1e-2, weight_decay=0.1, fused=True)
    for step in range(6):
        rows = torch.randint(12, (5,), generator=rng)
        loss = MODEL.loss(theta, (images[rows], labels[rows]), MODEL.draws(5, rng), {})
        optimizer.param_groups[0]["lr"] = 1e-2 * (1 + math.cos(math.pi * step / 6)) / 2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.append(float(loss.detach()))
    for k in theta:
        assert torch.equal(fitted[k], theta[k].detach())
    assert mean == pytest.approx(sum(seen) / 6, rel=1e-5)


@pytest.mark.parametrize("model", [MODEL, GOLDEN_MODELS["unet"]])
@pytest.mark.parametrize("at", [1, 3])
def test_continuing_with_the_moments_is_as_if_uninterrupted(model: DDPM, at: int) -> None:
    training = Training(steps=4, batch=4)
    whole, whole_moments, _ = train(training, model=model, moments={})
    rng = generator(1)
    half, moments, _ = train(training, model=model, rng=rng, steps=range(at), moments={})
    state = rng.get_state()
    rest, rest_moments, _ = train(training, model=model, rng=rng, params=half, steps=range(at, 4), moments=moments)
    assert tree.digest(rest) == tree.digest(whole)
    assert tree.digest(rest_moments) == tree.digest(whole_moments)
    forgetful, _, _ = train(training, model=model, rng=rng.set_state(state), params=half, steps=range(at, 4))
    assert tree.digest(forgetful) != tree.digest(whole)


SGD = Training(
    epochs=3, batch=5, learning_rate=0.05, optimizer="sgd", momentum=0.9, weight_decay=0.1, replacement=False
)


def test_passes_by_sgd_with_momentum_are_torchs_along_a_data_loader() -> None:
    """12 records in batches of 5: 5, 5 and 2 in each of three passes, at the rates of 9 steps."""
    model, seen = Classifier(network=Perceptron(widths=(6,)), shape=MODEL.shape, labels=MODEL.labels), list[int]()

    def objective(params: Params, batch: tuple[Tensor, Tensor], draws: Params, extras: Params) -> Tensor:
        seen.append(len(batch[0]))
        return model.loss(params, batch, draws, extras)

    images, labels = records()
    fitted, _, _ = fit(
        model, model.init(generator(0)), images, labels, training=SGD, rng=generator(1), objective=objective
    )
    theta, rng = {k: v.requires_grad_() for k, v in model.init(generator(0)).items()}, generator(1)
    optimizer = torch.optim.SGD(list(theta.values()), lr=0.05, momentum=0.9, weight_decay=0.1, fused=True)
    steps = 0
    for _ in range(3):
        order = torch.randperm(12, generator=rng).tolist()
        for rows in DataLoader(range(12), batch_size=5, sampler=order):  # type: ignore[arg-type]
            optimizer.param_groups[0]["lr"] = 0.05 * (1 + math.cos(math.pi * steps / 9)) / 2
            optimizer.zero_grad()
            model.loss(theta, (images[rows], labels[rows]), {}, {}).backward()
            optimizer.step()
            steps += 1
    assert seen == [5, 5, 2] * 3 and steps == SGD.of(12).steps == 9
    for k in theta:
        assert torch.equal(fitted[k], theta[k].detach())


def test_each_pass_takes_every_record_once_and_a_continued_training_begins_a_new_one() -> None:
    def batches(rng: torch.Generator, steps: range) -> list[list[float]]:
        seen: list[list[float]] = []

        def objective(params: Params, batch: tuple[Tensor, Tensor], draws: Params, extras: Params) -> Tensor:
            seen.append(batch[0][:, 0, 0, 0].tolist())
            return MODEL.loss(params, batch, draws, extras)

        train(replace(SGD, learning_rate=1e-3), rng=rng, objective=objective, steps=steps)
        return seen

    every = sorted(records()[0][:, 0, 0, 0].tolist())
    whole = batches(generator(1), range(9))
    passes = [[*itertools.chain(*whole[i : i + 3])] for i in (0, 3, 6)]
    assert [sorted(p) for p in passes] == [every] * 3 and len({tuple(p) for p in passes}) == 3
    rng = generator(1)
    assert batches(rng, range(2)) == whole[:2]
    rest = batches(rng, range(2, 9))
    assert [len(b) for b in rest] == [5, 5, 2, 5, 5, 2, 5] and sorted(itertools.chain(*rest[:3])) == every


GAMMA = 1.8262137798958396  # (GAMMA + 1) / ((GAMMA + 2)^2 (GAMMA + 3)) = 0.2^2


def test_the_moving_average_is_as_wide_as_it_says() -> None:
    assert pytest.approx(0.04, rel=1e-9) == (GAMMA + 1) / ((GAMMA + 2) ** 2 * (GAMMA + 3))
    for width in (0.05, 0.2, 0.28):
        training, n = Training(ema=width), 2000
        weights = torch.zeros(n, dtype=torch.float64)
        for i in range(n):
            weights = training.ema_weight(i + 1) * weights
            weights[i] += 1 - training.ema_weight(i + 1)
        steps = torch.arange(1, n + 1) / n
        spread = ((weights * steps.square()).sum() - (weights * steps).sum().square()).sqrt()
        assert (float(weights.sum()), float(spread)) == pytest.approx((1, width), abs=5e-4)


def test_the_rate_rises_before_it_falls() -> None:
    cosine, rising = Training(steps=10, learning_rate=0.4), Training(steps=10, learning_rate=0.4, warmup=4)
    ratios = [rising.rate(step) / cosine.rate(step) for step in range(10)]
    assert ratios == pytest.approx([0.25, 0.5, 0.75] + [1] * 7)
    assert Training(learning_rate=0.4, warmup=4, decay="constant").rate(0) == pytest.approx(0.1)


@pytest.mark.parametrize("norm", [0.3, 1e6])
def test_a_gradient_is_no_longer_than_it_may_be(norm: float) -> None:
    """One step of SGD moves the weights by the rate times the gradient's norm, or by that times the limit."""
    once = Training(steps=1, batch=4, optimizer="sgd", learning_rate=1e-2, decay="constant")
    far = [
        tree.norm(tree.sub(train(t)[0], MODEL.init(generator(0)))) / 1e-2
        for t in (once, replace(once, max_grad_norm=norm))
    ]
    assert far[0] > 0.6 and far[1] == pytest.approx(min(far[0], norm), rel=1e-3)


def test_a_training_ends_with_the_moving_average_of_its_weights() -> None:
    """By hand, from the weights after each step; in parts it is the same."""
    training = Training(steps=9, batch=4, ema=0.2)
    average, rng, state = MODEL.init(generator(0)), generator(1), (MODEL.init(generator(0)), {})
    for step in range(9):
        weights, moments, _ = train(
            replace(training, ema=0.0), rng=rng, params=state[0], steps=range(step, step + 1), moments=state[1]
        )
        state, decay = (weights, moments), (1 - 1 / (step + 1)) ** (GAMMA + 1)
        average = {k: decay * v + (1 - decay) * weights[k] for k, v in average.items()}
    whole, _, _ = train(training)
    for k in whole:
        torch.testing.assert_close(whole[k], average[k], rtol=1e-5, atol=1e-7)
    rng = generator(1)
    half, moments, _ = train(training, rng=rng, steps=range(4), moments={})
    assert tree.digest(half) == tree.digest(train(replace(training, ema=0.0), steps=range(4))[0])
    rest, _, _ = train(training, rng=rng, params=half, steps=range(4, 9), moments=moments)
    assert tree.digest(rest) == tree.digest(whole) != tree.digest(weights)


def test_parts_of_epochs_are_one_training() -> None:
    images, labels = records()
    for training in (SGD, replace(SGD, optimizer="adamw", momentum=0.0, ema=0.2)):
        whole = fit_part(MODEL, {}, (images, labels), training=training, rng=generator(1), part=0, parts=1)
        rng, state = generator(1), dict[str, Tensor]()
        for part in range(3):  # of a pass each
            state = fit_part(MODEL, state, (images, labels), training=training, rng=rng, part=part, parts=3)
        assert tree.digest(state) == tree.digest(whole)


def test_training_on_nothing_is_refused() -> None:
    images, labels = torch.empty(0, *MODEL.shape), torch.empty(0, 1, dtype=torch.long)
    with pytest.raises(ValueError, match=r"^there are no records to train on$"):
        fit(MODEL, MODEL.init(generator(0)), images, labels, training=Training(steps=1), rng=generator(0))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize(
    ("steps", "first", "at", "seen_at"), [(10, 0, 7, 9), (120, 0, 60, 100), (120, 30, 30, 50), (60, 0, 0, 0)]
)
@pytest.mark.parametrize("lasting", [True, False])
def test_a_loss_that_is_no_number_stops_the_training(
    bad: float, steps: int, first: int, at: int, seen_at: int, lasting: bool
) -> None:
    """The step is that of the first such loss, also if it is looked at later and the loss has recovered."""
    step = itertools.count(first)

    def objective(params: Params, batch: tuple[Tensor, Tensor], draws: Params, extras: Params) -> Tensor:
        now = next(step)
        loss = torch.stack([v.sum() for v in params.values()]).sum() * 1e-6
        return loss + bad if now == at or (lasting and now > at) else loss

    with pytest.raises(Diverged) as failure:
        train(Training(steps=steps, batch=1), objective=objective, steps=range(first, steps))
    assert failure.value.args[0] == at and next(step) == seen_at + 1
    assert str(failure.value) == f"the loss became {bad} at step {at}: lower the learning rate"


@pytest.mark.parametrize(("steps", "parts"), [(8, 3), (10, 10), (3, 5), (0, 2), (1000, 7)])
def test_parts_of_a_training_are_the_whole(steps: int, parts: int) -> None:
    cut = [Training(steps=steps).part(part, parts) for part in range(parts)]
    assert [step for part in cut for step in part] == list(range(steps))
    counts = [len(part) for part in cut]
    assert max(counts) - min(counts) <= 1


def test_the_mixture_is_the_images_and_their_clipped_copies() -> None:
    images, labels = records()
    both, flagged = with_clipped_copies(images, labels, clip=1.0)
    assert torch.equal(both, torch.cat([images, tree.clip_records(images, 1.0)]))
    assert torch.equal(flagged[:, :1], torch.cat([labels, labels])) and flagged[:, 1].tolist() == [0] * 12 + [1] * 12
    around, _ = with_clipped_copies(images, labels, clip=1.0, center=images[3])
    assert torch.equal(around[12 + 3], images[3]) and not torch.equal(around[12], both[12])


if __name__ == "__main__":
    torch.set_num_threads(1)
    GOLDEN.write_text(json.dumps({name: losses(model, 10) for name, model in GOLDEN_MODELS.items()}, indent=1) + "\n")
