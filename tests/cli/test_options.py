"""Options as dataclasses: their words become values, every command shows its options, and bad input is one sentence."""

import dataclasses
import itertools
import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import pytest

from raydiff.__main__ import COMMANDS
from raydiff.cli.options import parse_command, parse_options, positional
from raydiff.experiment.config import Experiment

MODULES = {
    name: import_module(f"raydiff.{module}") for group in COMMANDS.values() for name, (module, _) in group.items()
}
DECLARED: dict[str, Any] = {
    name: cls
    for name, module in MODULES.items()
    for cls in vars(module).values()
    if getattr(cls, "__name__", "").endswith("Options") and cls.__module__ == module.__name__
}
Command = Callable[..., tuple[int, str, str]]


@dataclass(frozen=True, kw_only=True)
class Sample:
    run: str = positional()
    """The run."""
    other: Path | None = positional(None)
    """Another file."""
    num: int = 3
    """How many. Not more."""
    rates: tuple[float, ...] | None = None
    """Learning rates."""
    names: tuple[str, ...] = ()
    """Axes."""
    dry_run: bool = False
    """Keep nothing."""
    source: Literal["client", "global"] = "client"
    """Whose."""


@pytest.mark.parametrize(
    ("line", "changes"),
    [
        ("it", {}),
        ("it --num 4", {"num": 4}),
        ("--num=4 it", {"num": 4}),
        ("--num 1 --num 4 it", {"num": 4}),
        ("--num -4 it", {"num": -4}),
        ("--dry-run it", {"dry_run": True}),
        ("it --dry_run", {"dry_run": True}),
        ("it --rates 1e-3,2 0.5", {"rates": (1e-3, 2.0, 0.5)}),
        ("it --rates none", {"rates": None}),
        ("it --rates", {"rates": ()}),
        ("it --names a=1,2 --num 4 --names b", {"names": ("a=1,2", "b"), "num": 4}),
        ("it --source global", {"source": "global"}),
        ("it /there", {"other": Path("/there")}),
    ],
)
def test_words_become_values_of_the_fields_types(line: str, changes: dict[str, Any]) -> None:
    assert parse_options(Sample, line.split(), None) == Sample(run="it", **changes)


def test_a_path_is_absolute_and_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    assert parse_options(Sample, ["it", "a/b"], None).other == tmp_path / "a" / "b"
    assert parse_options(Sample, ["it", "~/b"], None).other == Path("/home/me/b")
    with pytest.raises(ValueError, match=r"^OTHER must be a path on this machine or none, got 's3://a/b'"):
        parse_options(Sample, ["it", "s3://a/b"], None)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "RUN is missing: The run."),
        ("it that more", "unexpected argument 'more'"),
        ("it --num x", "--num must be an integer, got 'x'"),
        ("it --num", "--num must be an integer, got ''"),
        ("it --num 1.5", "--num must be an integer, got '1.5'"),
        ("it --rates 1,x", "--rates must be some values, each a number or none, got '1,x'"),
        ("it --source globl", "--source must be one of client, global, got 'globl'; did you mean global?"),
        ("it --dry-run=maybe", "--dry-run must be true or false, got 'maybe'"),
        ("it --nun 3", "unknown option --nun; did you mean --num?"),
        ("it --zzz", "unknown option --zzz"),
    ],
)
def test_what_cannot_be_is_one_sentence(line: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        parse_options(Sample, line.split(), None)


def test_other_options_are_left_for_the_fields() -> None:
    line = "it --method fedavg --num 4 --method.model.network.widths 8 16 --seed=3"
    options, rest = parse_command(Sample, line.split(), None, Experiment())
    assert options == Sample(run="it", num=4)
    assert rest == [("method", ["fedavg"]), ("method.model.network.widths", ["8", "16"]), ("seed", ["3"])]
    with pytest.raises(ValueError, match=r"^unknown option --nun; did you mean --num"):
        parse_command(Sample, ["it", "--nun", "3"], None, Experiment())


# --- every command ---


def required(cls: type) -> list[dataclasses.Field[Any]]:
    return [f for f in dataclasses.fields(cls) if f.init and f.default is dataclasses.MISSING]


def enough(cls: type, tmp_path: Path, *, leave_out: str = "") -> list[str]:
    """Words for all options that a command needs."""
    words = []
    for f in required(cls):
        value = str(tmp_path / "new") if f.name in ("out", "folder") else "1"
        if f.name != leave_out:
            words += [value] if "positional" in f.metadata else [f"--{f.name}", value]
    return words


def refusal(command: Command, *arguments: str) -> str:
    code, out, err = command(*arguments)
    assert (code, out) == (2, "") and err.startswith("error: ") and err.count("\n") == 1
    return err


@pytest.mark.parametrize("name", DECLARED)
def test_options_that_are_unknown_missing_or_of_another_type_are_named(
    name: str, command: Command, tmp_path: Path
) -> None:
    cls = DECLARED[name]
    words = enough(cls, tmp_path)
    labels = [
        f"--{f.name.replace('_', '-')}" for f in dataclasses.fields(cls) if f.init and "positional" not in f.metadata
    ]
    err = refusal(command, name, *words, f"{labels[-1]}s", "1")
    assert f"unknown option {labels[-1]}s" in err and f"did you mean {labels[-1]}" in err
    for f in dataclasses.fields(cls):
        label = f"--{f.name.replace('_', '-')}"
        if f.type == "int":
            assert f"{label} must be an integer, got 'two'" in refusal(command, name, *words, label, "two")
    for f in required(cls):
        assert "is missing" in refusal(command, name, *enough(cls, tmp_path, leave_out=f.name))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", DECLARED)
def test_help_shows_every_option_with_its_meaning(name: str, command: Command) -> None:
    code, out, err = command(name, "--help")
    assert (code, err) == (0, "") and out.startswith(str(MODULES[name].__doc__).strip())
    below = {line.split()[0]: text for line, text in itertools.pairwise(out.splitlines()) if line.strip()}
    for f in dataclasses.fields(DECLARED[name]):
        label = f.name.upper() if "positional" in f.metadata else f"--{f.name.replace('_', '-')}"
        assert f.init == (label in below) and below.get(label, " " * 6).startswith("      "), label


def test_bash_completes_commands_options_and_fields(command: Command, tmp_path: Path) -> None:
    code, out, _ = command("--completion")
    assert code == 0
    (tmp_path / "completion").write_text(out)
    for words, wanted in {"swe": "sweep", "sweep --dry": "--dry-run", "run --method.epsil": "--method.epsilon"}.items():
        script = f". {tmp_path}/completion; COMP_WORDS=(raydiff {words}); COMP_CWORD={len(words.split())}; _raydiff"
        done = subprocess.run(["bash", "-c", f'{script}; echo "${{COMPREPLY[@]}}"'], capture_output=True, text=True)
        assert wanted in done.stdout.split(), done.stderr
