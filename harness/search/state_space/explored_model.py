"""What a model offers to the search.

A state is a tuple of numbers: one for the state of each machine, one for what they share, one for the history. The
history has no names of machines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, Protocol

from harness.search.state_space.interning import Interned

Numbers = tuple[int, ...]
"""A state: the numbers of the machines' states, of what they share, and of the history."""
Names = Mapping[int, int]
"""The new name of every machine."""


class ModelStep(Protocol):
    """A step from a state."""

    @property
    def action(self) -> Any:
        """The step in short."""

    @property
    def state(self) -> Numbers:
        """The state after it."""

    @property
    def broken(self) -> str | None:
        """The promise that it breaks."""


class ValueTables(NamedTuple):
    """The values that the numbers of a state stand for."""

    machines: Interned[Any]
    shared: Interned[Any]
    histories: Interned[Any]


class Renaming(NamedTuple):
    """The values of a model under other names of its machines."""

    machine: Callable[[Any, Names], Any]
    shared: Callable[[Any, Names], Any]
    nameless_machine: Callable[[Any], object]
    """What is the same of a machine in every renaming."""
    nameless_place: Callable[[Any, int], object]
    """The place of a machine in what they share, without its name."""


class ExploredModel(Protocol):
    """The states of a model, and the steps between them."""

    @property
    def tables(self) -> ValueTables:
        """All values found so far."""

    @property
    def names(self) -> tuple[int, ...]:
        """The names of the machines, 1 and on."""

    @property
    def symmetry(self) -> bool:
        """Whether states that differ only by the names of the machines count as one."""

    @property
    def renaming(self) -> Renaming:
        """How machines get other names."""

    def initial(self) -> Numbers:
        """The first state."""

    def steps(self, state: Numbers) -> Iterable[ModelStep]:
        """Every step from `state` that changes it."""

    def broken(self, state: Numbers) -> str | None:
        """The promise that does not hold in `state`."""

    def cluster(self, state: Numbers) -> Any:
        """The values that the numbers of a state stand for."""


class Explored(NamedTuple):
    """A model, and the words for it."""

    model: ExploredModel
    line: Callable[[Numbers, Any], str]
    """A step from a state, in words."""
    situation: Callable[[Numbers], str] | None = None
    """The code of a state's situation (docs/situations.md); None for a model that they do not speak of."""
    avoided: Callable[[Numbers, Any], bool] | None = None
    """Whether a step from a state is one of those of which a schedule has as few as a shortest one can."""
