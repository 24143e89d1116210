"""README and docs are claims: their commands exist and know their options, their Python runs, their links lead
somewhere, and the main job's numbers are those of the run that is kept beside them."""

import html
import importlib.util
import itertools
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from commands import parsed
from torch import Tensor

import raydiff
from raydiff.__main__ import COMMANDS
from raydiff.cli import arguments, sweep
from raydiff.cli.options import SHORT as SHORT_OPTIONS, parse_command
from raydiff.data import pictures
from raydiff.data.pictures import read_pictures
from raydiff.experiment import toml_file as file
from raydiff.experiment.presets import PRESETS
from raydiff.lookup import is_outside

ROOT = Path(__file__).resolve().parents[1]


def of_docs(name: str) -> ModuleType:
    """A script in docs/."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


FIGURES, NOTEBOOK = of_docs("figures"), of_docs("notebook")
NO_CODE = re.compile(r"```.*?```|^ {4}.*?$|`[^`]*`", re.S | re.M)
PAGES: list[Path] = FIGURES.PAGES
METHODS = [ROOT / "README.md", ROOT / "docs" / "methods" / "index.md"]
CURRENT = [page for page in PAGES if page.name.lower() != "changelog.md"]
NAMES = {name for group in COMMANDS.values() for name in group}
LAUNCHED = re.compile(r"\bpython ((?:jobs|analysis)/[a-z_]+\.py)([^\n`]*)")
SHORT = re.compile(r"(?:^    |`)raydiff ([a-z-]+)([^\n`]*)", re.MULTILINE)


def command_of(launcher: str) -> str:
    """The command behind jobs/... or analysis/..., which its last line calls; where there is none, the launcher."""
    call = (ROOT / launcher).is_file() and re.search(r'main\("([\w-]+)"', (ROOT / launcher).read_text())
    return call[1] if call else launcher


BLOCK = re.compile(r"^    (?:PYTHONPATH=(\S+) )?(?:raydiff ([a-z-]+)|python ((?:jobs|analysis)/\w+\.py))(.*)", re.M)
WORDS = {"PRESET": "digits", "...": "", "[": "", "]": "", " && ": "\n    ", "\\\n": " "}
"""What stands on pages for an argument, or for a line of its own."""


def typed(page: Path) -> Iterator[tuple[str, list[str], str]]:
    """(command, arguments, folder of PYTHONPATH) of each line of a block on a page, as a shell would read it."""
    text = page.read_text()
    for word, instead in WORDS.items():
        text = text.replace(word, instead)
    for variable, value in re.findall(r'^    ([A-Z]+)="(.*)"$', text, re.M):
        text = text.replace(f"${variable}", value)
    for path, name, launcher, rest in BLOCK.findall(text):
        yield name or command_of(launcher), _arguments(rest), path


def called(text: str) -> Iterator[tuple[str, list[str]]]:
    """(command, arguments) of every command line in a text."""
    text = text.replace("\\\n", " ")
    for launcher, rest in LAUNCHED.findall(text):
        yield command_of(launcher), _arguments(rest)
    for name, rest in SHORT.findall(text):
        yield name, _arguments(rest)


def _arguments(rest: str) -> list[str]:
    return shlex.split(re.sub(r"[\[\]]", "", rest), comments=True)


def options(page: Path) -> set[tuple[str, str]]:
    """(command, --option) that a page names, but for fields by their path and what is short for them."""
    return {
        (name, argument.partition("=")[0])
        for name, arguments in called(page.read_text())
        for argument in arguments
        if argument.startswith("--") and "." not in argument.partition("=")[0] and argument[2:] not in SHORT_OPTIONS
    }


def blocks(page: Path) -> list[str]:
    """Its Python."""
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) < 200


def test_citation_and_changelog_name_this_version() -> None:
    assert f"\nversion: {raydiff.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    versions = re.findall(r"^## (\d+\.\d+\.\d+) - \d{4}-\d{2}-\d{2}", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert versions[0] == raydiff.__version__
    assert len(versions) == len(set(versions)) > 1


def test_commands_and_presets_exist() -> None:
    lines = [(page, name, words) for page in CURRENT for name, words in called(page.read_text())]
    assert [(page, name) for page, name, _ in lines if name not in NAMES] == []
    presets = {words[0] for _, name, words in lines if name == "sweep" and words and words[0][0] not in "-."}
    unknown = {preset for preset in presets - set(PRESETS) if not is_outside(preset)}
    assert {preset for preset in unknown if preset != preset.upper() and not preset.endswith(file.SUFFIX)} == set()


def test_every_command_is_in_readme_and_in_the_list() -> None:
    for page in (ROOT / "README.md", ROOT / "docs" / "how-to" / "index.md"):
        assert {name for name in NAMES if not re.search(rf"`(raydiff )?{name}`", page.read_text())} == set()


NAMED: dict[str, set[str]] = {}
for _page in CURRENT:
    for _name, _option in options(_page):
        NAMED.setdefault(_name, set()).add(_option)


@pytest.mark.parametrize("name", sorted(NAMED))
def test_commands_know_their_options(name: str, command: Callable[..., tuple[int, str, str]]) -> None:
    text = "".join(command(name, option)[1] for option in ("--help", "--help-all"))  # some have only the former
    assert {option for option in NAMED[name] if not re.search(rf"(?<![\w-]){option}(?![\w-])", text)} == set()


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Files that pages name, in the working directory: the experiment file and the package of extending.md."""
    for name, code in re.findall(r"```python\n# (\S+)\n(.*?)```", (ROOT / "docs" / "extending.md").read_text(), re.S):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(code)
    for name, preset in (("pictures", "digits"), ("clinic", "tabular-german"), ("private", "tabular-german")):
        (tmp_path / f"{name}.toml").write_text(f'preset = "{preset}"\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.mark.parametrize("page", [p for p in CURRENT if [*typed(p)]], ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_of_a_page_parses(page: Path, packages: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the code of the command itself: names, types and ranges of its options, its fields, axes and presets."""
    for name, words, path in typed(page):
        monkeypatch.syspath_prepend(ROOT / path)
        if not {"--help", "--help-all"} & {*words}:
            parsed(name, words, monkeypatch)


def read_first_pictures(stored: Any, rows: dict[str, Tensor], options: Any, *, top: int) -> dict[str, Any]:
    """`read_pictures`, but for the time it takes: the first picture of each split stands for all."""
    first = read_pictures(stored, {split: numbers[:1] for split, numbers in rows.items()}, options, top=top)
    return {split: (first[split][0].expand(len(numbers), -1, -1, -1), numbers) for split, numbers in rows.items()}


@pytest.mark.slow
def test_every_sweep_of_a_page_can_be_planned(packages: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On its data: splits, partitions, clients that join and noise depths of every trial, seed by seed."""
    if "RAYDIFF_DATA" not in os.environ:
        pytest.skip("RAYDIFF_DATA names no folder of data sets")
    sweeps = {tuple(words): path for page in CURRENT for name, words, path in typed(page) if name == "sweep"}
    refused = []
    monkeypatch.setattr(pictures, "read_pictures", read_first_pictures)
    for words, path in sweeps.items():
        if not {"--help", "--help-all", "--extend"} & {*words} and "s3:" not in str(words):
            monkeypatch.syspath_prepend(ROOT / path)
            name, study, rest = arguments.split_preset(words)
            options, fields = parse_command(sweep.SweepOptions, rest, None, study.experiment)
            try:
                plan = sweep.plan_request(name, study, options, fields)
                assert plan.trials or plan.suggested
            except ValueError as e:
                if "raydiff pretrain makes one" not in str(e):  # as the page does first
                    refused.append((words, str(e)))
    assert refused == [] and len(sweeps) > 30


def test_links_lead_somewhere() -> None:
    links = [
        (page, target) for page in PAGES for target in re.findall(r"\]\(([^)#\s]+)(?:#[\w-]*)?\)", page.read_text())
    ]
    assert [link for link in links if "://" not in link[1] and not (link[0].parent / link[1]).exists()] == []


@pytest.mark.parametrize("page", CURRENT, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_number_of_a_page_is_in_a_file_that_a_command_wrote(page: Path) -> None:
    assert FIGURES.written(page) == page.read_text(), "run python docs/figures.py"
    assert FIGURES.unfounded(page) == []


def test_a_number_that_no_file_has_is_found(tmp_path: Path) -> None:
    page, file = tmp_path / "page.md", ROOT / "docs" / "data" / "main-job.csv"
    text = "From [here](data/main-job.csv): 1.929, and 0.93 of 0.934; `0.123`\n\n| `0.5` |\n\n    0.25\n"
    page.write_text(text)
    assert FIGURES.sources(page) == [file] and FIGURES.unfounded(page) == []
    page.write_text(text.replace("0.93 of", "7.77 of").replace("1.929", "2,111.5"))
    assert FIGURES.unfounded(page) == ["2,111.5", "7.77"]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of its own, where runs are kept."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_tutorial_runs_up_to_its_sweep(home: Path) -> None:
    """In fewer steps than the page's, on which its epsilon does not depend, and without its evaluation; the slow test
    runs everything."""
    before = itertools.takewhile(lambda block: "rd.sweep(" not in block, blocks(ROOT / "docs" / "tutorial.md"))
    names: dict[str, Any] = {}
    code = "\n".join(block for block in before if "eval/" not in block)
    for text, instead in (("steps=300", "steps=10"), ("runtime=here)", "runtime=here, evaluation=None)")):
        assert text in code
        code = code.replace(text, instead)
    exec(code, names)
    assert names["images"].shape == (2, 1, 8, 8)
    assert round(names["run"].guarantee.epsilon, 2) == 9.58  # as the page says


@pytest.mark.slow
@pytest.mark.ray
def test_readmes_python_runs(home: Path) -> None:
    """In a process of its own: that of the tests may have joined their Ray."""
    code = [*blocks(ROOT / "README.md"), "assert len(sweep.trials) == len(sweep.frontier()) > 2"]
    done = subprocess.run([sys.executable, "-c", "\n".join(code)], cwd=home, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def printed(cells: list[dict[str, Any]]) -> str:
    """What the code of a notebook has printed."""
    return "".join("".join(out.get("text", ())) for cell in cells for out in cell.get("outputs", ()))


def test_the_notebook_is_the_tutorial() -> None:
    """The same text and code, run, and what the page prints where no noise is in it."""
    kept = json.loads(NOTEBOOK.NOTEBOOK.read_text())["cells"]
    cells = NOTEBOOK.cells(NOTEBOOK.PAGE.read_text())
    assert [c["source"] for c in cells] == [c["source"] for c in kept], "run python docs/notebook.py"
    code = ["".join(c["source"]) for c in kept if c["cell_type"] == "code"]
    assert code == [block.strip() for block in blocks(NOTEBOOK.PAGE)] and len(code) > 6
    assert "/tmp" not in printed(kept) and "image/png" in str(kept)
    page = NOTEBOOK.PAGE.read_text()
    for line in ("epsilon 9.58 (per example", "0         LocalOnly            NaN   0.0000      2.941900"):
        assert line in page and line in printed(kept)


@pytest.mark.slow
def test_the_notebook_runs(home: Path) -> None:
    """Cell by cell in their order. Numbers without noise repeat but for last digits, which depend on the CPU."""
    run = [sys.executable, str(ROOT / "docs" / "notebook.py"), "out.ipynb"]
    done = subprocess.run(run, cwd=home, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    cells = json.loads((home / "out.ipynb").read_text())["cells"]
    kept = json.loads(NOTEBOOK.NOTEBOOK.read_text())["cells"]
    certain = re.compile(r"LocalOnly +NaN +0\.0000 +(\d\.\d+)|PFDM, steps \d+ +none +inf +(\d\.\d+)|(epsilon 9\.58.*)")
    for now, before in zip(certain.findall(printed(cells)), certain.findall(printed(kept)), strict=True):
        assert now == before or float("".join(now)) == pytest.approx(float("".join(before)), rel=1e-3)
    assert "image/png" in str(cells)


def test_formulas_are_mathml_on_the_site() -> None:
    """Each one on a page converts, and none is left as arithmatex writes it."""
    hook, texts = of_docs("mathml"), [NO_CODE.sub("", page.read_text()) for page in CURRENT]
    formulas = [formula for text in texts for formula in re.findall(r"\$\$?([^$\n]+)\$", text)]
    assert len(formulas) > 40
    for formula in formulas:
        page = hook.on_page_content(f'<p>a <span class="arithmatex">\\({html.escape(formula)}\\)</span> b</p>')
        assert page.startswith("<p>a <math") and page.endswith("</math> b</p>") and "\\" not in page


def test_experiment_files_on_pages_can_be_read() -> None:
    texts = re.findall(r"^```toml\n(.*?)^```", "\n".join(page.read_text() for page in CURRENT), re.M | re.S)
    assert texts and all(file.parse_study(text, "a page", PRESETS).grid for text in texts)


def test_files_of_the_code_that_a_page_names_exist() -> None:
    named = {name for page in CURRENT for name in re.findall(r"`((?:[a-z_]+/)+[a-z_0-9]+\.py)`", page.read_text())}
    assert {n for n in named if not any((top / n).exists() for top in (ROOT, ROOT / "raydiff", ROOT / "docs"))} == set()


def test_the_picture_of_the_rooms_is_of_these_imports() -> None:
    architecture = of_docs("architecture")
    arrows = architecture.arrows()
    drawn = architecture.described(architecture.shown(arrows))
    assert f">{drawn}<" in architecture.PICTURE.read_text(), "draw it: python docs/architecture.py"
    assert set(architecture.QUESTION) == set(arrows) - set(architecture.SMALL)


@pytest.mark.parametrize("page", METHODS, ids=lambda page: page.name)
def test_local_dp_is_said_of_no_method_that_noises_a_sum(page: Path) -> None:
    """Who adds up records before noise is added holds them in clear: that is no local DP of a record."""
    rows = [line for line in page.read_text().lower().splitlines() if line.startswith("|") and "dp of each rec" in line]
    assert len(rows) > 2
    for row in rows:
        sums = any(name in row for name in ("sketch", "dpmerf", "evolution", "marginals"))
        assert ("local dp of each record" in row) == ("pfdm" in row)
        assert ("dp of each record, against the server" in row) == sums
