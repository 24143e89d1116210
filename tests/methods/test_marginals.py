"""Marginals: the upload by hand, its noise, and what the server makes of it."""

import itertools
import math
from dataclasses import replace

import pytest
import torch
from scipy.stats import kstest
from torch import Tensor
from toys import KEYS, run

from raydiff.data.records import Records, codes_of, images_of
from raydiff.federated.method import Round
from raydiff.methods.marginals import Marginals
from raydiff.models.forest import Forest
from raydiff.privacy import accountants
from raydiff.privacy.canaries import Weakened
from raydiff.privacy.release import Gaussian
from raydiff.seeding import NoiseStream, generator

pytestmark = pytest.mark.usefixtures("fine_grid")

COUNTS = (3, 2, 4, 3)
METHOD = Marginals(model=Forest(counts=COUNTS, labels=(2,)))
NOISE = NoiseStream(b"0123456789abcdef", ("x",))


def table(codes: Tensor, labels: Tensor) -> Records:
    return Records(images_of(codes), labels[:, None], torch.arange(len(codes)))


def rows(seed: int, n: int = 40) -> Records:
    rng = generator(seed, "rows")
    codes = torch.stack([torch.randint(k, (n,), generator=rng) for k in COUNTS], dim=1)
    return table(codes, torch.randint(2, (n,), generator=rng))


def chained(seed: int, n: int) -> Records:
    """Column 2 follows column 0, 3 follows 2; 1 follows the label alone."""
    rng = generator(seed, "chained")
    labels, first = (torch.randint(k, (n,), generator=rng) for k in (2, 3))

    def kept(share: float, values: Tensor, k: int) -> Tensor:
        return torch.where(torch.rand(n, generator=rng) < share, values, torch.randint(k, (n,), generator=rng))

    third = kept(0.8, (first + labels) % 4, 4)
    return table(torch.stack([first, kept(0.7, labels, 2), third, kept(0.9, third % 3, 3)], dim=1), labels)


def pairs(data: Records, label: int, a: int, b: int) -> Tensor:
    codes = codes_of(data.images)[data.labels[:, 0] == label]
    found = torch.zeros(COUNTS[a], COUNTS[b])
    found.index_put_((codes[:, a], codes[:, b]), torch.ones(len(codes)), accumulate=True)
    return found / found.sum()


def sent(method: Marginals, data: Records, noise: NoiseStream = NOISE) -> Tensor:
    return method.local_update({}, {}, data, Round(0, generator(0), noise)).release.value["pairs"].double()


def test_the_upload_by_hand() -> None:
    data, method = rows(0), replace(METHOD, epsilon=3.0)
    expected = []
    for label in range(2):
        u = torch.zeros(40, 12, dtype=torch.float64)
        for i, row in enumerate(codes_of(data.images).tolist()):
            for column, value in enumerate(row):
                u[i, sum(COUNTS[:column]) + value] = float(data.labels[i, 0] == label)
        both = u.T @ u
        expected.append([both[i, j] * (1 if i == j else math.sqrt(2)) for i in range(12) for j in range(i, 12)])
    sigma = 4 * math.sqrt(2) / accountants.mu_for(3.0, 1e-5)
    value = method.local_update({}, {}, data, Round(0, generator(0), NOISE)).release.value
    noisy = torch.tensor(expected) + sigma * NOISE.normal([0], (2, 78))[0]
    torch.testing.assert_close(value["pairs"].double(), noisy, rtol=1e-5, atol=1e-4)
    assert value["counts"].tolist() == data.labels[:, 0].bincount().tolist()


def test_every_pair_of_records_is_as_near_as_the_sensitivity_says() -> None:
    """All 72 x 72 pairs of rows of one label; rows that agree in no column are as far apart as that."""
    method = replace(METHOD, epsilon=None)
    whole = torch.cartesian_prod(*(torch.arange(k) for k in COUNTS))
    zero = torch.zeros(1, dtype=torch.int64)
    each = torch.stack([sent(method, table(row[None], zero)).flatten() for row in whole])
    assert float(torch.cdist(each, each).max()) == pytest.approx(method.sensitivity, rel=1e-6)


def noise_of(factor: float) -> Tensor:
    """What is added to no records at all, in units of what the event says."""
    nothing = table(torch.zeros(0, 4, dtype=torch.int64), torch.zeros(0, dtype=torch.int64))
    method, drawn = replace(METHOD, epsilon=2.0), []
    for i in range(10):
        drawn.append(sent(method, nothing, Weakened(b"0123456789abcdef", (i,), factor)).flatten())
    event = method.upload_event(40, 0)
    assert isinstance(event, Gaussian)
    return torch.cat(drawn) / (event.std_over_sensitivity * method.sensitivity)


@pytest.mark.parametrize(("factor", "found"), [(1.0, False), (0.5, True), (2.0, True)])
def test_the_noise_is_what_the_ledger_says(factor: float, found: bool) -> None:
    assert (kstest(noise_of(factor).numpy(), "norm").pvalue < 1e-9) == found


def test_without_noise_rows_have_the_records_pairs_along_the_tree() -> None:
    data = [chained(0, 6000), chained(1, 4000)]
    server = run(replace(METHOD, epsilon=None), data)[-1].server
    edges = {frozenset((i, int(p))) for i, p in enumerate(server["forest/parent"]) if p >= 0}
    assert edges == {frozenset((0, 2)), frozenset((2, 3))} or edges > {frozenset((0, 2)), frozenset((2, 3))}
    whole = Records(*(torch.cat([getattr(d, name) for d in data]) for name in ("images", "labels", "numbers")))
    wanted = torch.arange(2).repeat(40_000)[:, None]
    images = METHOD.deploy(server).sample(wanted, generator(0))
    assert images.shape == (80_000, 1, 1, 4)
    made = table(codes_of(images), wanted[:, 0])
    for label, (a, b) in itertools.product(range(2), itertools.combinations(range(4), 2)):
        away = float((pairs(made, label, a, b) - pairs(whole, label, a, b)).abs().sum() / 2)
        assert away < 0.02, (label, a, b)


def test_under_noise_that_drowns_the_pairs_columns_are_drawn_alone() -> None:
    """And with enough records the tree is the same as without noise."""
    few = run(replace(METHOD, epsilon=0.1), [chained(0, 60)])[-1].server
    assert few["forest/parent"].tolist() == [-1, -1, -1, -1]
    made = METHOD.deploy(few).sample(torch.tensor([[0], [1]]).repeat(50, 1), generator(0))
    assert bool((codes_of(made) < torch.tensor(COUNTS)).all())
    many = run(replace(METHOD, epsilon=1.0), [chained(0, 20_000)])[-1].server
    edges = {frozenset((i, int(p))) for i, p in enumerate(many["forest/parent"]) if p >= 0}
    assert edges == {frozenset((0, 2)), frozenset((2, 3))}


def test_noise_alone_joins_no_columns() -> None:
    """Columns that are independent stay so, of 20 draws in 17 at least: a chi square with few degrees of freedom is
    four deviations above its mean in about one case of 300, and there are six pairs of columns."""
    joined = 0
    for seed in range(20):
        keys = replace(KEYS, secret=bytes([seed]) * 16)
        server = run(replace(METHOD, epsilon=3.0), [rows(seed, 2000)], keys=keys)[-1].server
        joined += int((server["forest/parent"] >= 0).any())
    assert joined <= 3
