"""What was written before a field came is found again."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from raydiff.later import counted, later, spelled, unsaid
from raydiff.models.ddpm import DDPM


@dataclass(frozen=True)
class Part:
    size: int = 1
    name: str | None = None
    hidden: int = field(default=0, repr=False)


@dataclass(frozen=True)
class Whole:
    part: Part = Part()
    sizes: tuple[int, ...] = (1, 2)
    added: float = later(0.5)
    other: tuple[str, ...] = later(("a",))


@pytest.mark.parametrize("value", [(), (1,), (1, "a", Part()), ((Part(3, "x"), 2.0), None), {"a": (1,)}, "a,b", Part()])
def test_without_such_fields_it_is_repr(value: Any) -> None:
    assert spelled(value) == repr(value)


def test_a_field_that_came_later_is_left_out_at_its_default_and_shown_elsewhere() -> None:
    whole = Whole()
    assert spelled((whole,)) == "(Whole(part=Part(size=1, name=None), sizes=(1, 2)),)"
    assert [f.name for f in counted(whole)] == ["part", "sizes"]
    assert spelled(replace(whole, added=0.25)) == "Whole(part=Part(size=1, name=None), sizes=(1, 2), added=0.25)"
    assert spelled(replace(whole, other=())) == "Whole(part=Part(size=1, name=None), sizes=(1, 2), other=())"


@dataclass(frozen=True)
class Moved:
    size: int = 1
    by: str = later("new", before="old")


def test_a_field_whose_default_is_not_how_it_was_is_left_out_as_it_was() -> None:
    assert spelled(Moved()) == "Moved(size=1, by='new')" and spelled(Moved(by="old")) == "Moved(size=1)"
    assert unsaid(Moved) == {"by": "old"} and unsaid(Whole) == {"added": 0.5, "other": ("a",)}


def test_a_model_of_the_noise_is_spelled_as_before_it_could_be_another() -> None:
    model = DDPM(timesteps=20, shape=(1, 4, 4), labels=(3, 2))
    old = (
        "DDPM(network=MLP(width=256, depth=3, skip=False), schedule='linear', timesteps=20, shape=(1, 4, 4), "
        "labels=(3, 2), conditional=True, embedding=False, precision='float32', compile=False)"
    )
    assert spelled(model) == old
    assert "prediction='v'" in spelled(replace(model, prediction="v"))
