"""Clusters of latents and a word for each, on a model whose best word is known."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from raydiff.models.training import Training
from raydiff.papers.feddistr.latent.inversion import Clusters, cluster, invert
from raydiff.seeding import generator
from raydiff.tree import Params

SHAPE = (2, 2, 1)
WIDTH = 4


@dataclass(frozen=True)
class Quadratic:
    """In place of a latent diffusion model: ||v - z - noise eps||^2 / 2, which is least at the mean of z."""

    start: Tensor = field(default_factory=lambda: torch.tensor([1.0, -1.0, 2.0, 0.5]))
    noise: float = 0.0
    seen: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    """(latents, noise) of each step."""
    losses: list[Tensor] = field(default_factory=list)

    def draws(self, count: int, shape: tuple[int, int, int], rng: torch.Generator) -> Params:
        assert shape == SHAPE
        return {"z": torch.randn(count, *shape, generator=rng)}

    def loss(self, v: Tensor, latents: Tensor, draws: Params) -> Tensor:
        assert v.shape == (len(latents), WIDTH)
        self.seen.append((latents, draws["z"]))
        out = (v - (latents + self.noise * draws["z"]).flatten(1)).square().sum(1) / 2
        self.losses.append(out.detach())
        return out


def groups(*members: int) -> Clusters:
    numbers = torch.tensor(members)
    count = int(numbers.max()) + 1
    return Clusters(numbers, torch.zeros(count).long(), torch.stack([(numbers == g).sum() for g in range(count)]))


def inverted(model: Quadratic, latents: Tensor, clusters: Clusters, training: Training) -> tuple[Tensor, float]:
    like: Any = model
    return invert(like, latents, clusters, training=training, rng=generator(3, "inversion"))


# --- inversion ---------------------------------------------------------------------------------------------


def test_each_word_is_its_own_groups_best() -> None:
    places = torch.randn(3, *SHAPE, generator=generator(0, "places"))
    result = groups(2, 0, 1, 0, -1, 2, 2)
    latents = torch.full((7, *SHAPE), 1e9)  # what is in no group is never looked at
    latents[result.members >= 0] = places[result.members[result.members >= 0]]
    halving = Training(steps=60, batch=3, learning_rate=1.5, optimizer="sgd", decay="constant")
    words, _ = inverted(Quadratic(), latents, result, halving)
    assert words.shape == (3, WIDTH) and not words.requires_grad
    assert torch.allclose(words, places.flatten(1), atol=1e-6)


OPTIMIZERS: dict[str, tuple[Training, Callable[[Tensor], torch.optim.Optimizer]]] = {
    "sgd": (
        Training(steps=7, batch=2, learning_rate=0.3, optimizer="sgd", decay="constant"),
        lambda v: torch.optim.SGD([v], lr=0.3),
    ),
    "adamw": (
        Training(steps=7, batch=2, learning_rate=0.3, weight_decay=0.1, decay="constant"),
        lambda v: torch.optim.AdamW([v], lr=0.3, weight_decay=0.1),
    ),
}


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_words_side_by_side_step_as_each_would_alone(kind: str) -> None:
    """Each group's recorded batches and draws, given to an optimiser of its word alone."""
    training, optimizer_of = OPTIMIZERS[kind]
    latents, result = torch.arange(9.0).view(9, 1, 1, 1).expand(9, *SHAPE) - 4, groups(0, 1, 2, 0, 1, 2, 0, 1, 2)
    model = Quadratic(noise=0.5)
    words, loss = inverted(model, latents, result, training)
    assert len(model.seen) == training.steps
    for g in range(3):
        v = model.start.clone().requires_grad_()
        optimizer = optimizer_of(v)
        for z, eps in model.seen:
            own = slice(g * training.batch, (g + 1) * training.batch)
            assert set(z[own].flatten().tolist()) <= set(latents[result.members == g].flatten().tolist())
            optimizer.zero_grad()
            ((v - (z[own] + 0.5 * eps[own]).flatten(1)).square().sum(1) / 2).mean().backward()
            optimizer.step()
        assert torch.allclose(words[g], v.detach(), rtol=1e-5, atol=1e-6)
    assert loss == pytest.approx(float(torch.stack(model.losses).mean()), rel=1e-6)


# --- clusters ----------------------------------------------------------------------------------------------


def blobs(*centers: tuple[float, int, int], spread: float = 0.1) -> tuple[Tensor, Tensor, Tensor]:
    """(latents, labels, blob) of (place, label, size), shuffled."""
    rng = generator(5, "blobs")
    blob = torch.cat([torch.full((n,), b) for b, (_, _, n) in enumerate(centers)])
    place, label = (torch.tensor([c[i] for c in centers])[blob] for i in (0, 1))
    latents = place.view(-1, 1, 1, 1) + spread * torch.randn(len(blob), *SHAPE, generator=rng)
    order = torch.randperm(len(blob), generator=rng)
    return latents[order], label[order].long(), blob[order]


def clustered(latents: Tensor, labels: Tensor, count: int, *, least: int = 0) -> Clusters:
    return cluster(latents, labels, count=count, least=least, rng=generator(2, "clusters"))


def assert_whole(result: Clusters, labels: Tensor) -> None:
    """Groups are numbered without a gap, ascend in their label, never mix labels, and are counted right."""
    assert result.labels.tolist() == sorted(result.labels.tolist())
    there = result.members >= 0
    assert torch.equal(result.labels[result.members[there]], labels[there])
    assert result.members[there].bincount(minlength=len(result.counts)).tolist() == result.counts.tolist()
    assert int(result.counts.min()) >= 1


def test_blobs_are_separated_exactly_within_each_label() -> None:
    """The blobs of different labels lie upon each other: only the labels tell them apart."""
    latents, labels, blob = blobs((0.0, 4, 10), (5.0, 4, 7), (0.0, 1, 6), (5.0, 1, 12))
    result = clustered(latents, labels, 2)
    assert_whole(result, labels)
    assert result.labels.tolist() == [1, 1, 4, 4] and sorted(result.counts.tolist()) == [6, 7, 10, 12]
    assert len({(int(g), int(b)) for g, b in zip(result.members, blob, strict=True)}) == 4  # one to one


@pytest.mark.parametrize(("least", "says"), [(0, r"2 records of a label.*method\.clusters = 3"), (9, "no label has 9")])
def test_too_few_records_are_refused(least: int, says: str) -> None:
    latents, labels, _ = blobs((0.0, 0, 8), (0.0, 1, 2))
    with pytest.raises(ValueError, match=says):
        clustered(latents, labels, 3, least=least)
