import pytest
import torch
from sklearn.datasets import load_digits

from raydiff import tree
from raydiff.data.datasets import Records
from raydiff.evaluation.quality.distances import label_accuracy
from raydiff.evaluation.quality.features import cnn, cnn_logits, train_cnn
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
