"""What is read off a classifier, and off a method that is judged by one."""

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from raydiff.data.datasets import Dataset
from raydiff.data.records import Records
from raydiff.evaluation.evaluation_settings import Evaluation
from raydiff.evaluation.suite import GRID_COLUMNS, Instruments, check_evaluation, prepare_instruments, summarise
from raydiff.federated.method import Deployed
from raydiff.formats.metric_records import columns
from raydiff.seeding import generator

NONE = Evaluation(metrics=("accuracy",), attacks=None)
JUDGED = Evaluation(metrics=("downstream",), attacks=None)


def split(*classes: int) -> Records:
    """A record of each of these classes: pixel 0 says which, and the labels' second column is no class."""
    labels = torch.tensor([[c, 9] for c in classes]).reshape(-1, 2)
    images = torch.zeros(len(classes), 1, 2, 2)
    images[:, 0, 0, 0] = labels[:, 0].float()
    return Records(images, labels, torch.arange(len(classes)))


SPLITS = {
    "train": split(0),
    "public": split(),
    "calibration": split(),
    "validation": split(0, 1, 2, 3),
    "test": split(*[0] * 6, *[1] * 8, *[2] * 7, *[3] * 3),
}
DATASET = Dataset("made", SPLITS, (("a", "b", "c", "d"),), "digest")
OWN = split(0, 0, 0, 2, 2, 2)


def tells(*right: int) -> Any:
    """Logits that are right for these classes, and say class 1 of all others."""

    def classify(images: Tensor) -> Tensor:
        classes = images[:, 0, 0, 0].long()
        answer = torch.where(torch.isin(classes, torch.tensor(right)), classes, 1)
        return torch.nn.functional.one_hot(answer, 4).float()

    return classify


@dataclass
class Sampler:
    """Pictures of what was asked for, which remembers it."""

    asked: list[Tensor] = field(default_factory=list)

    def __call__(self, labels: Tensor, rng: torch.Generator) -> Tensor:
        self.asked.append(labels)
        return labels[:, :1, None, None].float().expand(-1, 1, 2, 2)


def read(deployed: Deployed, *, of: str = "test", config: Evaluation = NONE, own: Records = OWN) -> Any:
    return Instruments(config, DATASET, {}).of_client(of)(deployed, own, generator(0))


@pytest.mark.parametrize(
    ("of", "right", "accuracy"),
    [
        ("test", (0, 2), (6 + 8 + 7) / 24),  # class 1 too, which the client has not
        ("test", (), 8 / 24),
        ("test", (0, 2, 3), 1.0),
        ("validation", (0,), 2 / 4),
    ],
)
@pytest.mark.parametrize("config", [NONE, Evaluation(attacks=None)])
def test_accuracy_is_of_the_whole_split(of: str, right: tuple[int, ...], accuracy: float, config: Evaluation) -> None:
    report = read(Deployed(classify=tells(*right), of_server=True), of=of, config=config)
    assert columns(report.metrics) == {"accuracy": pytest.approx(accuracy), "utility_loss": pytest.approx(1 - accuracy)}
    assert report.pictures.shape == (0, 1, 2, 2) and report.scores == {} and report.of_server


def test_without_a_distance_only_the_grids_pictures_are_made() -> None:
    first, second = Sampler(), Sampler()
    report = read(Deployed({"ddim": first, "ancestral": second}, classify=tells(0, 1, 2, 3)))
    (labels,) = first.asked
    assert labels[:, 0].tolist() == [0] * GRID_COLUMNS + [2] * GRID_COLUMNS and not second.asked
    assert torch.equal(report.pictures[:, 0, 0, 0], labels[:, 0].float())
    assert columns(report.metrics) == {"accuracy": 1.0, "utility_loss": 0.0} and report.scores == {}


def test_a_classifier_that_takes_larger_pictures_is_refused_before_anything_is_trained() -> None:
    check_evaluation(replace(JUDGED, downstream=("linear", "cnn", "resnet18")), DATASET, [OWN])
    says = r"^downstream must not name lenet for such pictures: shape must be larger for .* got \(1, 2, 2\)$"
    with pytest.raises(ValueError, match=says):
        check_evaluation(replace(JUDGED, downstream=("linear", "lenet")), DATASET, [OWN])


def test_the_summary_is_the_mean_over_clients() -> None:
    reports = [read(Deployed(classify=tells(*right))) for right in ((0, 2, 3), ())]
    assert columns(summarise(reports))["eval/accuracy"] == pytest.approx((1 + 8 / 24) / 2)


def test_without_a_distance_no_feature_network_is_trained_and_no_public_split_needed() -> None:
    def never(key: str, make: object) -> Any:
        raise AssertionError(key)

    check_evaluation(NONE, DATASET, [OWN])
    assert prepare_instruments(DATASET, NONE, never).cnn == {}
    with pytest.raises(ValueError, match=r"^the evaluation needs records in the split public: data.public is 0$"):
        check_evaluation(Evaluation(metrics=("kernel",), attacks=None), DATASET, [OWN])


def test_a_trial_for_the_choice_of_settings_needs_the_validation_split_alone() -> None:
    """The split has one record of each class; there is neither a test split nor one for thresholds."""
    config, splits = Evaluation(metrics=("kernel",), split="validation"), {**SPLITS, "public": split(0)}
    few = Dataset("made", splits, DATASET.label_names, "digest")
    made = replace(few, splits={**splits, "validation": splits["test"], "test": split()})
    check_evaluation(config, made, [OWN])
    with pytest.raises(
        ValueError, match=r"^the validation split has 0 of 1 pairs of records that the classes of client 0 need: raise"
    ):
        check_evaluation(config, few, [OWN])
    with pytest.raises(ValueError, match=r"^the evaluation needs records in the split test: data.test is 0$"):
        check_evaluation(Evaluation(metrics=("kernel",)), made, [OWN])
    with pytest.raises(ValueError, match=r"^split must be one of test, validation, got 'public'$"):
        Evaluation(split="public")  # type: ignore[arg-type]


@pytest.mark.parametrize("metric", ["kernel", "accuracy"])
def test_a_client_none_of_whose_classes_can_be_compared_is_refused(metric: str) -> None:
    few = Dataset("made", {**SPLITS, "public": split(0), "test": split(0, 1, 1)}, DATASET.label_names, "digest")
    config = Evaluation(metrics=(metric,), attacks=None)
    check_evaluation(config, few, [split(0, 1)])
    with pytest.raises(
        ValueError,
        match=r"^the test split has 0 of 1 pairs of records that the classes of client 1 need: raise data\.t",
    ):
        check_evaluation(config, few, [split(0, 1), split(0, 0, 2)])
