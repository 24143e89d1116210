"""A third modality, given by a data set of another module: whole trials run, and no caller asks what a record is."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from raydiff.cli import attack, preview
from raydiff.data.datasets import Data, load_dataset
from raydiff.data.modality import PICTURES, Pictures, SamplePart
from raydiff.data.pictures import PictureOptions
from raydiff.data.records import Records
from raydiff.data.source import Source
from raydiff.evaluation.evaluation_settings import Evaluation
from raydiff.experiment import suggested, trial
from raydiff.experiment.config import Experiment
from raydiff.experiment.trial import open_trial
from raydiff.results import generation
from raydiff.results.finished import open_finished
from raydiff.results.generation import GenerationRequest


@dataclass(frozen=True)
class Waves(Pictures):
    """Series of 64 numbers, kept as whole numbers of a tenth."""

    name = "waves"
    measures = ("accuracy",)
    attacks = ()
    is_shown = False
    part_suffix = "txt"

    def encode(self, rows: dict[str, Tensor], options: PictureOptions, **stored: Any) -> Any:
        series = stored["codes"].float() / 10
        return {split: (series[numbers].view(-1, 1, 8, 8), numbers) for split, numbers in rows.items()}

    def describe(self, shape: Sequence[int]) -> str:
        return "waves of 64 numbers"

    def describe_public(self, public: Records, **asked: Any) -> str:
        return f"{len(public)} public waves"

    def decode(self, samples: Tensor, labels: Tensor, rng: torch.Generator | None) -> NDArray[Any]:
        return samples.flatten(1).mul(10).round().numpy()

    def write_part(self, part: SamplePart) -> None:
        part.path.write_text(f"{len(part.samples)} waves; {part.about['privacy']}")

    def card(self, numbers: Any, **more: Any) -> dict[str, Any]:
        return {"unit": "a tenth"}


def waves(folder: Path | None, labels: Sequence[str]) -> Source:
    kinds = torch.arange(600) % 3
    codes = (10 * torch.sin(torch.arange(64.0) * (1 + kinds[:, None]))).long()
    names = (("slow", "middle", "fast"),)
    return Source(kinds[:, None], ("kind",), names, 0, lambda rows: iter(()), "waves", codes=codes, modality=Waves())


DATA = Data(name=f"{__name__}:waves", train=90, public=30, validation=20, calibration=20, test=40)


def test_a_third_modality_needs_no_change_of_any_caller(tiny: Experiment, tmp_path: Path, capsys: Any) -> None:
    wanted = replace(tiny, data=DATA, evaluation=Evaluation())
    opened = open_trial(wanted, tmp_path / "sweep")
    *_, final = trial.run_trial(opened, trial.local_executor(opened))
    assert not [name for name in final if name.startswith(("eval/fd", "attack/"))]
    finished = open_finished(opened.folder)
    out = tmp_path / "made"
    generation.write_samples(finished, None, out, GenerationRequest(num=5), code={})
    assert (out / "train-00000-of-00001.txt").read_text().startswith("5 waves; epsilon 5.97 ")
    assert '"unit": "a tenth"' in (out / "card.json").read_text()
    assert preview.main([DATA.name, "--data.train", "90", "--out", str(tmp_path / "preview")]) == 0
    assert "waves of 64 numbers" in capsys.readouterr().out
    with pytest.raises(ValueError, match=r"^there is no attack on waves$"):
        attack.main([str(opened.folder), "--out", str(tmp_path / "attacked")])
    with pytest.raises(ValueError, match=r"^there are no suggested settings for waves, only for pictures, rows$"):
        suggested.suggested(load_dataset(DATA), clients=2)
    with pytest.raises(ValueError, match=r"^evaluation\.metrics must be of waves \(accuracy\), got frechet$"):
        trial.resolve_on_data(replace(wanted, evaluation=Evaluation(metrics=("frechet",))))


def test_nobody_outside_of_data_asks_what_a_record_is() -> None:
    root = Path(trial.__file__).parents[1]
    files = [path for path in root.rglob("*.py") if path.parts[len(root.parts)] != "data"]
    asking = [path.name for path in files if "mapping is" in path.read_text() or "== PICTURES" in path.read_text()]
    assert len(files) > 100 and asking == [] and PICTURES.name == "pictures"
