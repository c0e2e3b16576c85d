"""The schedule that a search shows, of several that are the shortest."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import pytest

from harness.search.state_space.breadth_first import search
from harness.search.state_space.explored_model import Explored, Numbers, Renaming, ValueTables
from harness.search.state_space.interning import Interned


class Stride(NamedTuple):
    """A step of the crossing."""

    action: str
    state: Numbers
    broken: str | None = None


class Crossing:
    """From the start over one of two bridges to the other side, where a promise is broken, or a longer way over land;
    both bridges may be crossed on a street or on foot, to the same place."""

    names, symmetry = (1,), False
    renaming = Renaming(lambda it, _: it, lambda it, _: it, lambda it: it, lambda it, _: it)

    def __init__(self, ends: str) -> None:
        self.places: Interned[str] = Interned()
        self.tables = ValueTables(self.places, Interned(), Interned())
        self._nothing = (self.tables.shared.number(""), self.tables.histories.number(""))
        self._by_step = ends == "step"

    def initial(self) -> Numbers:
        return self._at("start")

    def steps(self, state: Numbers) -> Iterator[Stride]:
        match self.places.values[state[0]]:
            case "start":
                yield Stride("north street", self._at("north"))
                yield Stride("north on foot", self._at("north"))
                yield Stride("south street", self._at("south"))
                yield Stride("land", self._at("land"))
            case "north" | "south" as bridge:
                broken = f"crossed in the {bridge}" if self._by_step else None
                yield Stride(f"{bridge} across", self._at("other side"), broken)
            case "land":
                yield Stride("land", self._at("hill"))
            case "hill":
                yield Stride("land", self._at("other side"))

    def broken(self, state: Numbers) -> str | None:
        return "crossed" if self.places.values[state[0]] == "other side" else None

    def cluster(self, state: Numbers) -> str:
        return self.places.values[state[0]]

    def _at(self, place: str) -> Numbers:
        return (self.places.number(place), *self._nothing)


def crossing(ends: str, avoided: tuple[str, ...]) -> Explored:
    return Explored(Crossing(ends), lambda _, step: step.action, avoided=lambda _, step: step.action in avoided)


@pytest.mark.parametrize("ends", ["state", "step"])
@pytest.mark.parametrize(
    ("avoided", "shown"),
    [
        (("south street", "north street"), ("north on foot", "north across")),
        (("south street", "north on foot"), ("north street", "north across")),
        (("north street", "north on foot"), ("south street", "south across")),
        (("north across",), ("south street", "south across")),
        (("north street", "north on foot", "north across", "south street"), ("south street", "south across")),
        (("north street", "north on foot", "north across", "south street", "south across"), None),
    ],
)
def test_of_the_shortest_schedules_one_with_the_fewest_avoided_steps_is_shown(
    avoided: tuple[str, ...], shown: tuple[str, ...] | None, ends: str
) -> None:
    """A longer one without any is not."""
    result = search(partial(crossing, ends, avoided), 1)
    violation = result.violation
    assert violation is not None
    assert len(violation.schedule) == result.depth == 2
    if shown is not None:
        assert violation.schedule == shown


def test_a_last_step_that_alone_breaks_a_promise_counts_for_the_depth() -> None:
    class Fall(Crossing):
        def steps(self, state: Numbers) -> Iterator[Stride]:
            yield Stride("fall", state, "fell")

    result = search(lambda: Explored(Fall("step"), lambda _, step: step.action), 1)
    assert result.violation is not None
    assert (result.violation.schedule, result.depth) == (("fall",), 1)
