import math

import numpy as np
import pytest
import torch
from scipy.linalg import sqrtm
from torch import Tensor

from raydiff.data.records import half_counts
from raydiff.evaluation.quality import distances
from raydiff.evaluation.quality.distances import beside_halves, frechet, frechet_distances, kernel, kernel_distances
from raydiff.formats.metric_records import columns
from raydiff.seeding import generator


def exact(mean: Tensor, covariance: Tensor, rng: torch.Generator, n: int = 50) -> Tensor:
    """n rows whose sample mean and covariance are exactly those asked for."""
    x = torch.randn(n, len(mean), generator=rng, dtype=torch.float64)
    x = x - x.mean(0)
    white = torch.linalg.solve_triangular(torch.linalg.cholesky(torch.cov(x.T)), x.T, upper=False).T
    return torch.add(mean, white @ torch.linalg.cholesky(covariance).T)


def test_frechet_is_the_gaussian_closed_form() -> None:
    rng = generator(0)
    first = torch.tensor([[1.0, 0.0], [0.0, 4.0]], dtype=torch.float64)
    second = torch.tensor([[2.0, 1.0], [1.0, 2.0]], dtype=torch.float64)  # does not commute with the first
    a = exact(torch.tensor([0.0, 0.0]).double(), first, rng)
    b = exact(torch.tensor([3.0, -4.0]).double(), second, rng, n=70)
    # tr sqrt(M) = sqrt(tr M + 2 sqrt(det M)) for 2 x 2; here tr M = 2 + 8 and det M = 4 * 3
    expected = 25 + 5 + 4 - 2 * math.sqrt(10 + 2 * math.sqrt(12))
    assert frechet(a, b) == pytest.approx(expected, abs=1e-9)
    assert frechet(a, a) == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("n", [12, 60])
def test_frechet_is_the_formula_with_the_root_of_the_product(n: int) -> None:
    """Fewer rows than features, whose covariances are singular, and more."""
    rng = generator(3)
    a = torch.randn(n, 20, generator=rng).double()
    b = 2 * torch.randn(n + 5, 20, generator=rng).double() @ torch.randn(20, 20, generator=rng).double() + 1
    first, second = (np.cov(z.numpy(), rowvar=False) for z in (a, b))
    product = np.trace(sqrtm(sqrtm(first).real @ second @ sqrtm(first).real).real)
    expected = (a.mean(0) - b.mean(0)).square().sum() + np.trace(first) + np.trace(second) - 2 * product
    assert frechet(a, b) == pytest.approx(float(expected), rel=1e-6)


def test_both_distances_are_clean_fids(monkeypatch: pytest.MonkeyPatch) -> None:
    from cleanfid import fid

    monkeypatch.setattr(fid.linalg, "sqrtm", lambda m, disp: (sqrtm(m), None))  # SciPy 1.18 has no disp
    rng = generator(4)
    a, b = torch.randn(90, 20, generator=rng).double(), torch.randn(90, 20, generator=rng).double() * 1.5 + 0.2
    moments = [m for z in (a.numpy(), b.numpy()) for m in (z.mean(0), np.cov(z, rowvar=False))]
    assert frechet(a, b) == pytest.approx(float(fid.frechet_distance(*moments)), rel=1e-9)
    once = fid.kernel_distance(a.numpy(), b.numpy(), num_subsets=1)
    assert kernel(a, b, rng)[0] == pytest.approx(once, rel=1e-9)


def test_kernel_is_unbiased_between_equal_laws() -> None:
    rng = generator(0)
    draws = [kernel(torch.randn(30, 8, generator=rng), torch.randn(30, 8, generator=rng), rng)[0] for _ in range(200)]
    standard_error = float(np.std(draws, ddof=1)) / math.sqrt(len(draws))
    assert abs(float(np.mean(draws))) < 3 * standard_error
    assert min(draws) < 0


@pytest.mark.parametrize(("n", "m", "subsets"), [(20, 20, 1), (20, 21, 100), (1001, 1001, 100)])
def test_kernel_averages_subsets_only_where_they_differ(
    n: int, m: int, subsets: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, int]] = []

    def recorded(x: Tensor, y: Tensor) -> float:
        asked.append((len(x), len(y)))
        return float(len(asked))

    monkeypatch.setattr(distances, "_discrepancy", recorded)
    mean, spread = kernel(torch.zeros(n, 2), torch.zeros(m, 2), generator(0))
    assert asked == [(min(n, 1000), min(n, 1000))] * subsets
    assert mean == np.mean(range(1, subsets + 1))
    assert spread == (0 if subsets == 1 else pytest.approx(np.std(range(1, subsets + 1), ddof=1)))


def test_the_spread_of_whole_sets_is_the_jackknife_over_pairs() -> None:
    rng = generator(2)
    a, b = torch.randn(7, 3, generator=rng).double(), torch.randn(7, 3, generator=rng).double() + 1
    rows = [[j for j in range(7) if j != i] for i in range(7)]
    left_out = np.array([kernel(a[keep], b[keep], rng)[0] for keep in rows])
    by_hand = math.sqrt(6 / 7 * ((left_out - left_out.mean()) ** 2).sum())
    assert kernel(a, b, rng)[1] == pytest.approx(by_hand, rel=1e-9)


def test_every_distance_is_between_equal_counts_of_the_same_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    classes = torch.tensor([0] * 7 + [1] * 4 + [2] * 6 + [3])
    reference = torch.stack([torch.arange(18.0), classes.double()], 1)  # column 0 names the record
    wanted = half_counts(classes)
    sample_classes = torch.tensor([c for c, n in wanted.items() for _ in range(n)])
    samples = torch.stack([torch.full((len(sample_classes),), -1.0), sample_classes.double()], 1)
    calls: list[tuple[Tensor, Tensor]] = []

    def recorded(a: Tensor, b: Tensor, *_: object) -> float:
        calls.append((a, b))
        return float([1, 3, 7][(len(calls) - 1) % 3])

    monkeypatch.setattr(distances, "frechet", recorded)
    monkeypatch.setattr(distances, "kernel", lambda a, b, rng: (recorded(a, b), 0.25))
    groups = {"major": [0, 1], "minor": [2], "nobody": [9], "single": [3]}
    out = {}
    for measure, more in ((frechet_distances, {}), (kernel_distances, {"rng": generator(0)})):
        beside = beside_halves(samples, sample_classes, reference, classes, groups=groups, rng=generator(0))
        out |= columns(measure(beside, features="net", **more))
    assert out == {
        f"{kind}_net/{group}{end}": value
        for kind in ("fd", "kd")
        for group in ("major", "minor")
        for end, value in (("", 2.0), ("_floor", 7.0))
    } | {f"kd_net/{group}_spread": 0.25 for group in ("major", "minor")}
    for first, second in calls:
        assert sorted(first[:, 1].tolist()) == sorted(second[:, 1].tolist())
    (own, a), (_, b), (floor_a, floor_b) = calls[:3]
    assert (own[:, 0] == -1).all() and sorted(own[:, 1].tolist()) == [0, 0, 0, 1, 1]
    assert torch.equal(a, floor_a) and torch.equal(b, floor_b)
    assert not set(a[:, 0].tolist()) & set(b[:, 0].tolist())


def test_the_split_and_the_floor_do_not_depend_on_the_samples() -> None:
    rng = generator(0)
    classes = torch.arange(60) % 2
    reference, half = torch.randn(60, 3, generator=rng), torch.arange(30) % 2

    def floors(samples: Tensor, seed: int) -> list[float]:
        again = generator(seed)
        beside = beside_halves(samples, half, reference, classes, groups={"a": [0], "b": [1]}, rng=again)
        out = kernel_distances(beside, features="x", rng=again)
        return [metric.value for metric in out if metric.role == "floor"]

    first = floors(torch.randn(30, 3, generator=rng), 0)
    assert floors(torch.randn(30, 3, generator=rng) + 5, 0) == first
    assert floors(torch.randn(30, 3, generator=rng), 1) != first


@pytest.mark.parametrize("sample_classes", [[0, 0, 1], [0, 0, 0, 1, 1], [0, 0]])
def test_refuses_unequal_counts(sample_classes: list[int]) -> None:
    samples, classes, real = torch.zeros(len(sample_classes), 2), torch.tensor(sample_classes), torch.zeros(8, 2)
    with pytest.raises(ValueError, match="samples must hold 2 of class"):
        list(beside_halves(samples, classes, real, torch.arange(8) // 4, groups={"all": [0, 1]}, rng=generator(0)))


@pytest.mark.parametrize(
    ("a", "message"),
    [
        (torch.zeros(1, 3), "at least 2 rows"),
        (torch.zeros(5, 2), "equal width"),
        (torch.full((5, 3), math.nan), "features must be finite"),
        (torch.full((5, 3), math.inf), "features must be finite"),
    ],
)
def test_refuses_features_without_a_distance(a: Tensor, message: str) -> None:
    for call in (lambda: frechet(a, torch.zeros(5, 3)), lambda: kernel(torch.zeros(5, 3), a, generator(0))):
        with pytest.raises(ValueError, match=message):
            call()
