"""Doors: entries by name, and checked objects of other packages."""

import re
import sys
import types
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Protocol

import pytest
from pydantic import ConfigDict, TypeAdapter, ValidationError

from raydiff.lookup import Door, allowed_packages


class Shape(Protocol):
    sides: int

    def area(self) -> float: ...


@dataclass(frozen=True)
class Square:
    sides: int = 4

    def area(self) -> float:
        return 1.0


@dataclass(frozen=True)
class Lazy(Square):
    pass


@dataclass(frozen=True)
class Line:
    sides: int = 1


SHAPES: Door[type[Shape]] = Door("shape", {"square": Square, "late-one": f"{__name__}:Lazy"}, base=Shape)
SIZES: Door[object] = Door("size", {"length": len})
OUTSIDE = """
from dataclasses import dataclass

@dataclass(frozen=True)
class Circle:
    sides: int = 0
    def area(self): return 3.1

@dataclass(frozen=True)
class Square(Circle): pass

@dataclass(frozen=True)
class Bare:
    sides: int = 0

@dataclass
class Thawed: sides: int = 0

@dataclass(frozen=True)
class Needy:
    sides: int

class Bomb:
    def __init__(self): raise AssertionError("called")

number = 3
def length(x): return 0
"""


@pytest.fixture(autouse=True)
def outside(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("outside")
    monkeypatch.setitem(sys.modules, "outside", module)
    exec(OUTSIDE, vars(module))


def test_names_are_known_in_any_spelling_and_entries_are_imported_on_access() -> None:
    assert SHAPES.resolve("Square") is SHAPES["square"] is Square
    assert SHAPES.resolve("late_one") is SHAPES["late-one"]
    assert list(SHAPES) == ["square", "late-one"] and "Square" not in SHAPES
    assert SHAPES.resolve("outside:Circle").__name__ == "Circle"


@pytest.mark.parametrize(
    ("door", "name", "message"),
    [
        (
            SHAPES,
            "sqare",
            "must be one of square, late-one, or module:name of another, got 'sqare'; did you mean square",
        ),
        (SHAPES, "outside:Cirle", "outside:Cirle cannot be imported: outside has no Cirle; did you mean Circle"),
        (SHAPES, "nowhere:Circle", "nowhere:Circle cannot be imported: ModuleNotFoundError"),
        (SHAPES, "outside:Square", "outside:Square has the name of a shape of raydiff"),
        (SHAPES, "outside:Bare", "outside:Bare is no shape: it has no area"),
        (SHAPES, "outside:Thawed", "outside:Thawed is no shape: it must be a frozen dataclass"),
        (SHAPES, "outside:Needy", "outside:Needy is no shape: its field sides must have a default"),
        (SHAPES, "outside:Bomb", "outside:Bomb is no shape: it must be a frozen dataclass"),
        (SHAPES, "outside:number", "outside:number is no shape: it must be a frozen dataclass"),
        (SIZES, "outside:number", "outside:number is no size: it must be a function"),
        (SIZES, "outside:length", "outside:length has the name of a size of raydiff"),
    ],
)
def test_what_does_not_fit_is_refused_before_it_is_called(door: Door[object], name: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        door.resolve(name)


def test_a_package_that_a_call_does_not_allow_is_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hostile.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    monkeypatch.syspath_prepend(tmp_path)
    with allowed_packages(["outside"]):
        assert SHAPES.resolve("outside:Circle") and SHAPES.resolve("square")
        with pytest.raises(
            ValueError, match="hostile:Circle is code of the package hostile, which this call does not name"
        ):
            SHAPES.resolve("hostile:Circle")
    assert not (tmp_path / "ran").exists()
    with pytest.raises(ValueError, match="hostile has no Circle"):
        SHAPES.resolve("hostile:Circle")
    assert (tmp_path / "ran").exists()


def test_as_an_annotation_it_takes_instances_of_its_base_or_names() -> None:
    shape: TypeAdapter[Shape] = TypeAdapter(Annotated[Shape, SHAPES], config=ConfigDict(strict=True))
    for good in (Square(), SHAPES.resolve("outside:Circle")()):  # type: ignore[operator]  # a class
        assert shape.validate_python(good) is good
    for bad in (Square, Line(), "square"):
        with pytest.raises(ValidationError, match="must be an instance"):
            shape.validate_python(bad)
    names: TypeAdapter[tuple[str, ...]] = TypeAdapter(tuple[Annotated[str, SIZES], ...])
    assert names.validate_python(("length",)) == ("length",)
    with pytest.raises(ValidationError, match="must be one of length"):
        names.validate_python(("breadth",))
