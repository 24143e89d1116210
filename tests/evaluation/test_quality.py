"""clean-fid's Inception without clean-fid's weights: another network in their file, and no file at all."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image
from scipy.linalg import sqrtm
from sklearn.datasets import load_digits
from torch import Tensor, nn

from raydiff import tree
from raydiff.data.datasets import Dataset, Records
from raydiff.data.modality import PICTURES
from raydiff.data.picture_files import to_bytes, to_picture
from raydiff.data.records import half_counts
from raydiff.evaluation import suite
from raydiff.evaluation.evaluation_settings import Evaluation
from raydiff.evaluation.figures import draw_curves, draw_roc, roc
from raydiff.evaluation.quality import distances, inception
from raydiff.evaluation.quality.distances import (
    beside_halves,
    frechet,
    frechet_distances,
    frechet_metric,
    kernel,
    kernel_distances,
    kernel_metric,
    label_accuracy,
)
from raydiff.evaluation.quality.features import cnn, cnn_logits, train_cnn
from raydiff.evaluation.quality.neighbours import coverage, memorized_fraction
from raydiff.formats.metric_records import columns
from raydiff.seeding import generator
from raydiff.tree import Params


@pytest.fixture(scope="module")
def digits() -> Records:
    """All 1797 digits in a random order: rows below 250 train the network, the others are held out."""
    source = load_digits()
    order = torch.randperm(len(source.target), generator=generator(0, "order"))
    images = torch.tensor(source.images, dtype=torch.float32)[:, None] / 8 - 1
    labels = torch.tensor(source.target, dtype=torch.int64)[:, None]
    return Records(images[order], labels[order], order)


@pytest.fixture(scope="module")
def params(digits: Records) -> Params:
    return train_cnn(rows(digits, 0, 250), classes=10, dim=16, steps=200)


def rows(records: Records, start: int, stop: int) -> Records:
    return records.select(torch.arange(start, stop))


def test_recognises_held_out_digits(digits: Records, params: Params) -> None:
    held_out = rows(digits, 250, len(digits))
    assert label_accuracy(cnn_logits(params, held_out.images), held_out.labels[:, 0]) > 0.9


def test_features_are_standardised_on_the_training_records(digits: Records, params: Params) -> None:
    features = cnn(digits.images[:250], params)
    assert features.shape == (250, 16)
    torch.testing.assert_close(features.mean(0), torch.zeros(16), atol=1e-4, rtol=0)
    torch.testing.assert_close(features.std(0), torch.ones(16), atol=1e-4, rtol=0)


def test_same_bits_twice_and_the_global_generator_is_left_alone(digits: Records) -> None:
    few = rows(digits, 0, 60)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = tree.digest(train_cnn(few, classes=10, dim=4, steps=5))
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(2)
    assert tree.digest(train_cnn(few, classes=10, dim=4, steps=5)) == first
    assert tree.digest(train_cnn(few, classes=10, dim=4, steps=5, seed=1)) != first


@pytest.mark.parametrize(("channels", "height", "width"), [(1, 8, 8), (3, 9, 20), (3, 64, 64)])
def test_takes_images_of_any_supported_shape(channels: int, height: int, width: int) -> None:
    images = torch.rand(10, channels, height, width, generator=generator(0)) * 2 - 1
    records = Records(images, torch.arange(10)[:, None] % 3, torch.arange(10))
    trained = train_cnn(records, classes=3, dim=5, steps=1)
    assert cnn(images, trained).shape == (10, 5)
    assert cnn_logits(trained, images).shape == (10, 3)
    assert cnn_logits(trained, images).isfinite().all()


@pytest.mark.parametrize("shape", [(4, 2, 8, 8), (4, 1, 7, 8), (4, 1, 8, 65), (1, 1, 8, 8)])
def test_refuses_what_it_cannot_train_on(shape: tuple[int, ...]) -> None:
    records = Records(torch.zeros(shape), torch.arange(shape[0])[:, None] % 2, torch.arange(shape[0]))
    with pytest.raises(ValueError, match="at least 2 images with 1 or 3 channels and 8 to 64 pixels a side"):
        train_cnn(records, classes=2, dim=4, steps=1)


class Means(nn.Module):
    """Mean of each channel, then zeros: 2048 numbers."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.pad(x.mean(dim=[2, 3]), [0, 2045])


class Fake(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = Means()

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / inception.FILE
    torch.jit.save(torch.jit.script(Fake()), str(path))
    return path


def records(*classes: int) -> Records:
    of = torch.tensor(classes)[:, None]
    return Records(torch.zeros(len(classes), 1, 8, 8), of, torch.arange(len(classes)))


def dataset() -> Dataset:
    splits = {name: records(*[0, 1] * 20) for name in ("train", "public", "validation", "calibration", "test")}
    return Dataset("made", splits, (("a", "b"),), "digest")


def test_pictures_are_resized_and_scaled_as_clean_fid_does_it(file: Path) -> None:
    """From 8 bits, by PIL's bicubic filter without rounding, to (x - 128) / 128."""
    images = torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(0)) * 2 - 1
    result = inception.inception(images, str(file))
    assert result.shape == (3, 2048)
    for image, features in zip(images, result, strict=True):
        pixels = ((image[0] + 1) * 127.5).round().numpy().astype(np.float32)
        large = np.asarray(Image.fromarray(pixels, mode="F").resize((299, 299), Image.Resampling.BICUBIC)).clip(0, 255)
        expected = (float(large.mean(dtype=np.float64)) - 128) / 128
        assert features[:3].tolist() == pytest.approx([expected] * 3, abs=1e-4) and not features[3:].any()
    assert torch.equal(inception.inception(images.expand(-1, 3, -1, -1), str(file.parent)), result)


def test_only_its_distances_are_fid_and_kid() -> None:
    assert (frechet_metric("cnn", "all").name, kernel_metric("cnn", "all").name) == ("fd_cnn", "kd_cnn")
    assert str(Evaluation(features="inception").headline(PICTURES)) == "eval/fid/all"
    assert str(Evaluation(features="inception", metrics=("kernel",)).headline(PICTURES)) == "eval/kid/all"


def test_without_weights_it_is_refused_before_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inception, "USUAL", tmp_path)
    with pytest.raises(ValueError, match=f"{tmp_path}/{inception.FILE}: download https.* or give evaluation.weights$"):
        suite.check_evaluation(Evaluation(features="inception", attacks=None), dataset(), [records(0, 1)])
    suite.check_evaluation(Evaluation(dim=4, attacks=None), dataset(), [records(0, 1)])


def test_another_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^evaluation.weights must be the file inception-2015-12-05.pt or its folder"):
        inception.check_weights(str(tmp_path / "gone.pt"))
    (tmp_path / "x.pt").write_bytes(b"no archive")
    with pytest.raises(ValueError, match=r"x.pt does not hold clean-fid's Inception \(RuntimeError\)$"):
        inception.check_weights(str(tmp_path / "x.pt"))
    torch.jit.save(torch.jit.script(Means()), str(tmp_path / "means.pt"))
    with pytest.raises(ValueError, match=r"means.pt does not hold clean-fid's Inception \(AttributeError\)$"):
        inception.check_weights(str(tmp_path / "means.pt"))


# --- Pictures from the data's scale to 8 bits; curves of a new client's training and of attacks


def test_the_scale_of_the_data_becomes_bytes() -> None:
    x = torch.tensor([-2.0, -1.0, -1 + 0.6 / 127.5, 0.0, 1.0, 3.0]).view(1, 1, 2, 3)
    pixels = to_bytes(x)
    assert pixels.shape == (1, 2, 3, 1) and pixels.flatten().tolist() == [0, 0, 1, 128, 255, 255]


def test_bytes_are_what_a_data_set_reads_back() -> None:
    pixels = torch.arange(256, dtype=torch.uint8)
    read = pixels.float() / 127.5 - 1
    assert torch.equal(to_bytes(read.view(1, 16, 16)).flatten(), pixels)


def test_grey_and_colour() -> None:
    pixels = torch.arange(24, dtype=torch.uint8).view(2, 4, 3)
    assert np.array_equal(np.asarray(to_picture(pixels)), pixels.numpy()) and to_picture(pixels).size == (4, 2)
    assert to_picture(pixels[:, :, :1]).mode == "L"
    with pytest.raises(ValueError, match=r"^a picture has 1 or 3 channels, got 2$"):
        to_picture(pixels[:, :, :2])


def row(rate: float, epoch: int, kd: float) -> dict[str, float]:
    return {"learning_rate": rate, "epoch": epoch, "kd_cnn": kd, "kd_cnn_floor": -0.25}


def test_a_line_for_each_rate_in_the_order_of_epochs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures: list[Figure] = []
    save = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *a, **k: (figures.append(self), save(self, *a, **k)))
    rows = [row(0.1, 0, 3.0), row(0.1, 2, 90.0), row(0.1, 1, 2.0), row(0.01, 0, 3.0), row(0.01, 1, 2.5)]
    draw_curves(rows, tmp_path / "curves.png", title="a client")
    (axes,) = figures[0].axes
    lines = {line.get_label(): ([*line.get_xdata()], [*line.get_ydata()]) for line in axes.lines}
    assert lines["0.1"] == ([0, 1, 2], [3.0, 2.0, 90.0]) and lines["0.01"] == ([0, 1], [3.0, 2.5])
    assert lines["floor"][1] == [-0.25, -0.25]
    assert axes.get_ylim()[1] == 6.0  # twice the distance at epoch 0: not as far as 90
    assert Image.open(tmp_path / "curves.png").info["privacy"] == "none"


def test_the_roc_curve_and_its_picture(tmp_path: Path) -> None:
    fpr, tpr = roc(torch.tensor([1.0, 3.0]), torch.tensor([2.0, 3.0, 4.0, 5.0]))
    assert fpr.tolist() == [0, 0, 0.25, 0.5, 0.75, 1] and tpr.tolist() == [0, 0.5, 0.5, 1, 1, 1]
    draw_roc({"loss": (torch.arange(3.0), torch.arange(4.0))}, tmp_path / "roc.png", title="of something")
    assert Image.open(tmp_path / "roc.png").info["privacy"] == "none"


# --- Precision, recall, density and coverage against loops over the papers' formulas; memorised pictures by hand


def by_loops(samples: Tensor, real: Tensor, k: int) -> dict[str, float]:
    def distance(a: Tensor, b: Tensor) -> float:
        return math.dist(a.double().tolist(), b.double().tolist())

    def radii(x: Tensor) -> list[float]:
        return [sorted(distance(a, b) for j, b in enumerate(x) if i != j)[k - 1] for i, a in enumerate(x)]

    balls, sample_balls = radii(real), radii(samples)
    inside = [[distance(s, r) <= radius for r, radius in zip(real, balls, strict=True)] for s in samples]
    recalled = [any(distance(s, r) <= b for s, b in zip(samples, sample_balls, strict=True)) for r in real]
    return {
        "precision": sum(any(row) for row in inside) / len(samples),
        "recall": sum(recalled) / len(real),
        "density": sum(map(sum, inside)) / (k * len(samples)),
        "coverage": sum(any(column) for column in zip(*inside, strict=True)) / len(real),
    }


@pytest.mark.parametrize(("n", "m", "k"), [(23, 31, 3), (6, 40, 4), (40, 40, 1)])
@pytest.mark.parametrize("block", [1, 7, 256])
def test_blocks_give_what_loops_give(n: int, m: int, k: int, block: int) -> None:
    rng = generator(0)
    samples, real = torch.randn(n, 3, generator=rng) + 1.5, torch.randn(m, 3, generator=rng)
    result = coverage(samples, real, neighbours=k, block=block)
    assert result == pytest.approx(by_loops(samples, real, k), abs=1e-12)
    assert 0 < min(result.values()) < 1


def test_identical_sets_are_covered_and_disjoint_ones_not() -> None:
    x = torch.randn(60, 4, generator=generator(0))
    same = coverage(x, x.clone(), neighbours=3)
    assert (same["precision"], same["recall"], same["coverage"]) == (1.0, 1.0, 1.0) and same["density"] >= 1
    apart = coverage(x, x + 100, neighbours=3)
    assert apart == dict.fromkeys(("precision", "recall", "density", "coverage"), 0.0)


def test_what_each_of_them_sees() -> None:
    """One mode of two: all samples are real and half of the records is missed. Noise everywhere: the reverse."""
    rng = generator(1)
    left, right = (torch.randn(50, 2, generator=rng) + c for c in (-20.0, 20.0))
    real = torch.cat([left, right])
    collapsed = coverage(torch.randn(100, 2, generator=rng) - 20.0, real)
    assert collapsed["precision"] > 0.9 and collapsed["recall"] <= 0.5 and 0.4 < collapsed["coverage"] <= 0.5
    spread = coverage(torch.randn(100, 2, generator=rng) * 60, real)
    assert spread["precision"] < 0.3 and spread["recall"] > 0.9 and spread["coverage"] < 0.3


def test_features_that_are_not_finite_are_refused() -> None:
    with pytest.raises(ValueError, match="finite"):
        coverage(torch.zeros(9, 2), torch.full((9, 2), math.nan), neighbours=3)


# --- memorised pictures ---


def points(*xy: tuple[float, float]) -> Tensor:
    return torch.tensor(xy, dtype=torch.float32).view(-1, 1, 1, 2)


def noise(n: int, *path: str) -> Tensor:
    return torch.rand(n, 1, 8, 8, generator=generator(0, *path)) * 2 - 1


def test_training_images_fed_back_are_all_flagged() -> None:
    training = noise(150, "training")
    assert memorized_fraction(training, training) == 1.0
    assert memorized_fraction(training + 1e-4, training) == 1.0


def test_fresh_images_are_not_flagged() -> None:
    assert memorized_fraction(noise(150, "fresh"), noise(150, "training")) == 0.0


def test_the_bound_is_a_third_of_the_second_distance() -> None:
    training = points((0, 0), (8, 0), (100, 0))
    assert memorized_fraction(points((1.9, 0)), training) == 1.0  # 1.9 / 6.1 < 1/3
    assert memorized_fraction(points((2.1, 0)), training) == 0.0  # 2.1 / 5.9 > 1/3
    assert memorized_fraction(points((1.9, 0), (2.1, 0), (8, 0), (4, 0)), training) == 0.5


def test_repeated_training_images_count_once() -> None:
    training = points((0, 0), (0, 0), (0, 0), (8, 0), (8, 0))
    assert memorized_fraction(points((0, 0), (0.5, 0), (4, 0), (3, 0)), training) == 0.5


def test_refuses_sets_without_a_second_neighbour() -> None:
    with pytest.raises(ValueError, match="at least 2 distinct images for the ratio test, got 1"):
        memorized_fraction(points((0, 0)), points((1, 1), (1, 1)))


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
