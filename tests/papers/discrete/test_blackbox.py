"""The black-box attack on rows: finds what was memorised, and nothing where there is nothing."""

import pytest
import torch

from raydiff.formats.metric_records import columns
from raydiff.papers.discrete import blackbox
from raydiff.papers.discrete.blackbox import Rows
from raydiff.seeding import generator


def table(count: int, *, seed: int, k: int = 5, classes: int = 2) -> Rows:
    """Rows of six columns whose labels say nothing of them."""
    rng = generator(seed)
    return torch.randint(k, (count, 6), generator=rng), torch.randint(classes, (count,), generator=rng)


def test_members_that_were_made_again_are_found() -> None:
    members, nonmembers = table(100, seed=0, classes=4), table(400, seed=1, classes=4)
    result = columns(blackbox.attack_rows(members, members=members, nonmembers=nonmembers, rng=generator(2)))
    counted = [result[f"blackbox/{name}"] for name in ("random", "n_members", "n_nonmembers")]
    assert counted == [0.2, 100, 400]
    low, high = result["blackbox/accuracy_low"], result["blackbox/accuracy_high"]
    assert 0.4 < low < result["blackbox/accuracy"] < high <= 1


def test_independent_rows_find_no_more_than_guessing() -> None:
    members, nonmembers, made = table(200, seed=0), table(800, seed=1), table(200, seed=2)
    result = columns(blackbox.attack_rows(made, members=members, nonmembers=nonmembers, rng=generator(3)))
    low, high = result["blackbox/accuracy_low"], result["blackbox/accuracy_high"]
    assert low < result["blackbox/random"] < high
    assert high - low < 0.15


def test_records_that_are_equal_are_called_at_random() -> None:
    one = torch.zeros(2000, 6).long(), torch.ones(2000).long()
    result = columns(blackbox.attack_rows(table(50, seed=0), members=one, nonmembers=one, rng=generator(1)))
    low, high = result["blackbox/accuracy_low"], result["blackbox/accuracy_high"]
    assert low < result["blackbox/random"] == 0.5 < high


def test_confidence_is_that_of_the_true_label() -> None:
    codes, _ = table(200, seed=0)
    labels = 3 * (codes[:, 0] > 1)
    sure = blackbox.confidence((codes, labels), (codes, labels), generator(1))
    wrong = blackbox.confidence((codes, labels), (codes, 3 - labels), generator(1))
    assert sure.min() > 0.9
    torch.testing.assert_close(sure + wrong, torch.ones_like(sure))
    unseen = blackbox.confidence((codes, labels), (codes, labels + 1), generator(1))
    assert unseen.tolist() == [0.0] * 200


def test_rows_of_one_label_are_refused() -> None:
    codes, labels = table(5, seed=0)
    with pytest.raises(ValueError, match="at least two labels"):
        blackbox.attack_rows((codes, 0 * labels), members=(codes, labels), nonmembers=(codes, labels), rng=generator(0))
