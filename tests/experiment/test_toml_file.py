"""Experiment files: a preset with changes, axes, and errors that say where."""

from pathlib import Path

import pytest

import raydiff as rd
from raydiff.cli import arguments
from raydiff.experiment.overrides import override
from raydiff.experiment.presets import PRESETS
from raydiff.methods.fedavg import FedAvg
from raydiff.models.networks import UNet

WHOLE = """\
preset = "digits"
clients = 4

[data]
name = "digits"
public = 200
labels = []

[method]
epsilon = "none"
t0 = 3

[method.model.network]
kind = "unet"
widths = [32, 64]

[grid]
method.t0 = [1, 5]
seed = [0, 1]
"""


def at(tmp_path: Path, text: str = WHOLE) -> str:
    path = tmp_path / "my own.toml"
    path.write_text(text)
    return str(path)


def test_a_file_is_its_preset_with_what_it_says(tmp_path: Path) -> None:
    name, study, rest = arguments.preset([at(tmp_path), "--seed", "3"])
    expected = override(
        PRESETS["digits"]().experiment,
        {
            "clients": 4,
            "data.public": 200,
            "method.epsilon": None,
            "method.t0": 3,
            "method.model.network": UNet,
            "method.model.network.widths": (32, 64),
        },
    )
    assert name == "my-own" and rest == ["--seed", "3"]
    assert study.experiment == expected
    assert study.grid == {"method.t0": (1, 5), "seed": (0, 1)}
    assert study.beside == PRESETS["digits"]().beside
    assert rd.preset(at(tmp_path)) == study


def test_without_axes_those_of_the_preset_stay_that_the_file_leaves_open(tmp_path: Path) -> None:
    study = rd.preset(at(tmp_path, 'clients = 3\n[method]\nkind = "fedavg"\n'))
    assert isinstance(study.experiment.method, FedAvg)
    assert list(study.grid) == ["method.model.schedule"]  # It has neither epsilon nor, any more, clients.


@pytest.mark.parametrize(
    ("was", "now", "says"),
    [
        ("clients = 4", "cliens = 4", r"unknown field --cliens; did you mean clients\?"),
        ("[32, 64]", '["a"]', "--method.model.network.widths must be some values, each an integer, got 'a'"),
        ('"unet"', '"unt"', r"--method\.model\.network must be one of mlp, unet, .*, got 'unt'; did you mean"),
        ("[1, 5]", '[1, "x"]', r"--method\.t0 must be an integer or none, got 'x'"),
        ('"digits"\nclients', '"digit"\nclients', r"--preset must be one of .*; did you mean digits\?"),
        ("clients = 4", "clients =", "Invalid value .at line 2"),
        ("clients = 4", "clients = 0", "clients must be at least 1, got 0"),
        ("[grid]", "[search]\nsamples = 0\n[grid]", "search.samples must be at least 1, got 0"),
        ("[grid]", "[search]\nsampels = 2\n[grid]", r"search.sampels is no field of Search; did you mean samples\?"),
        (
            "[grid]",
            '[search.space]\nseed = "normal:1,2"\n[grid]',
            "a sampled field looks like .*'seed=normal:1,2'",
        ),
        ("[grid]", '[runtime]\nnoise_secret = "aa"\n[grid]', "must not be where others can read it"),
    ],
)
def test_bad_files_are_refused_in_one_sentence_that_names_the_field(
    tmp_path: Path, was: str, now: str, says: str
) -> None:
    path = at(tmp_path, WHOLE.replace(was, now))
    with pytest.raises(ValueError, match=says) as error:
        rd.preset(path)
    assert str(error.value).startswith(path) and "\n" not in str(error.value)


def test_a_file_that_is_not_there_or_not_text(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="No such file"):
        rd.preset(str(tmp_path / "gone.toml"))
    (tmp_path / "bad.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match=r"bad\.toml: .*codec can't decode"):
        rd.preset(str(tmp_path / "bad.toml"))
