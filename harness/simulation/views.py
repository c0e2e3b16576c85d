"""The parts of a simulated world as the other parts see them.

Event loops, the network and nodes know the world, and loops and the network know nodes, only by these protocols: so no
module imports the world, which is made of all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Any, Protocol

from harness.simulation.clock import NodeClock
from harness.simulation.digest import Digest


class NodeView(Protocol):
    """A node: a machine that has a clock and a place in the network."""

    @property
    def name(self) -> str:
        """Its name and its address."""

    @property
    def index(self) -> int:
        """Its number in the world, for the digest."""

    @property
    def clock(self) -> NodeClock:
        """The clock that its processes read."""

    @property
    def powered(self) -> bool:
        """Whether the machine has power."""

    @property
    def frozen(self) -> bool:
        """Whether its process is frozen."""

    def record_error(self, text: str) -> None:
        """Note an error of its process that no code handles."""

    def left_unheard(self, peer: str) -> None:
        """Note that its process gives up a connection to `peer` on which it has read the answer to each request."""

    def exited(self, error: SystemExit) -> None:
        """End its process, which called sys.exit()."""


class WorldView(Protocol):
    """The world: virtual time, the schedule, the seed and the digest."""

    @property
    def now_ns(self) -> int:
        """True time since the world began."""

    @property
    def runnable(self) -> list[Any]:
        """Event loops that have a callback to run; a loop adds and removes itself."""

    @property
    def digest(self) -> Digest:
        """The hash of the run, to which every part adds."""

    @property
    def nodes(self) -> Mapping[str, NodeView]:
        """All nodes by name."""

    def node(self, name: str) -> NodeView:
        """The node called `name`. Raises KeyError naming it."""

    def at(self, time_ns: int, action: Callable[[Any], object], argument: Any) -> None:
        """Call `action(argument)` at a true time, outside any process."""

    def stream(self, name: str) -> Random:
        """A fresh generator, the same for the same seed and name, independent of all others."""

    def record_real_call(self, node: NodeView | None, call: str) -> None:
        """Note that a node reached for something real."""
