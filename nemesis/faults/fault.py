"""Base class of faults, and their families: the whole declaration of a fault stands in its own module.

A fault is a frozen value that says what goes wrong and on which targets (`nemesis.targets`). It acts on a cluster only
through a `nemesis.handle.FaultHandle`, which undoes everything the fault did. `nemesis.registry` finds every subclass
in the modules of this folder; schedules, specs, random draws, figures and the tables of docs/faults.md take what they
need from the class:

- `name`, and `family` with its colour and whether `--faults all` draws it;
- `number`, after which its random streams are named, so that a rename changes no schedule;
- `draw`: one fault of the class, drawn at random;
- `needs`: capabilities that some environments lack, and `adapted`: the nearest fault without them;
- `proof`: the evidence that shows that the fault took effect;
- the first sentence of the docstring, for the table.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from random import Random
from typing import Any, ClassVar, Self

from nemesis.cluster_shape import ClusterShape
from nemesis.drawing import Draws
from nemesis.handle import FaultHandle
from nemesis.ports import EnvironmentCapability, Evidence


def _always(cluster: ClusterShape) -> bool:
    return True


def _no_background(random: Random, cluster: ClusterShape) -> Sequence[Fault]:
    return ()


@dataclass(frozen=True, slots=True)
class Family:
    """Faults that a spec asks for by one name. A family stands beside the first of its faults."""

    number: int
    """Names the random streams of the family, and its place in lists. Never changed and never given to another family:
    a seed stands for a schedule."""
    name: str
    """As `--faults` names it."""
    colour: str
    """In figures."""
    fair: bool = True
    """Whether `--faults all` draws it: False where the protocol promises nothing against it."""
    possible: Callable[[ClusterShape], bool] = _always
    """Whether such a cluster has anything for the family."""
    weight: float = 1.0
    """How often its faults are drawn, relative to those of other families: one may be many faults."""
    alone_share: float = 0.0
    """Share of the runs with this family in which it has the run to itself."""
    background: Callable[[Random, ClusterShape], Sequence[Fault]] = _no_background
    """Faults that last for the whole run, drawn once when the family takes part."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong. Subclasses add the effect and its targets."""

    name: ClassVar[str]
    """As a schedule names it."""
    number: ClassVar[int]
    """As a family's number, within the family. Never changed and never given to another fault."""
    family: ClassVar[Family]
    proof: ClassVar[tuple[str, ...]]
    """Names of evidence; the fault took effect when any of them is not zero."""
    weight: ClassVar[float] = 1.0
    """How often it is drawn where it is possible, relative to the other faults of its family."""
    ends_by_itself: ClassVar[bool] = False
    """Whether the fault heals as soon as its injection returns: for sequences of steps."""
    in_steps: ClassVar[bool] = False
    """Whether its injection is steps, or requests that the cluster may leave unanswered: they are cancelled when the
    fault's time is over, which counts from the first of them."""

    acts_within: ClassVar[float] = 0.0
    """How long a fault that is `effective_alone` may take to have an effect, in multiples of the cluster's patience: 1
    for one that acts on what passes by, since a node that says nothing for that long counts as silent."""

    of_brokers: ClassVar[bool] = False
    """Whether no controller may be among its targets; a name that stands for one fails the injection."""
    removes_replicas: ClassVar[bool] = False
    """Whether it takes a replica off a broker, which deletes it then."""
    deletes_records: ClassVar[bool] = False
    """Whether it deletes the records at the start of a log."""

    @classmethod
    def draw(cls, draws: Draws) -> Self | None:
        """A random fault of this class; None when the cluster or the run has no target for it."""
        raise NotImplementedError

    async def inject(self, handle: FaultHandle) -> None:
        """Apply the fault. A sequence of steps takes its time here, and is cancelled when the fault's time is over."""
        raise NotImplementedError

    def took_effect(self, evidence: Evidence) -> bool:
        """Whether the evidence shows that the fault did something."""
        return any(evidence.get(name, 0) != 0 for name in self.proof)

    def effective_alone(self, cluster: ClusterShape) -> bool:
        """Whether it has an effect where nothing else goes wrong, as the only fault of a run must."""
        return True

    def least_s(self, cluster: ClusterShape) -> float:
        """How long it lasts at least where it is drawn: as long as its steps may take, if its time counts from the
        first of them."""
        return 0.0

    def needs(self) -> frozenset[EnvironmentCapability]:
        """Capabilities that the environment must have."""
        return frozenset()

    def adapted(self, unsupported: Collection[EnvironmentCapability], random: Random) -> Self | None:
        """This fault, or the nearest one that needs nothing of `unsupported`; None where there is none.

        `random` has drawn the fault already: whatever is drawn for the environment comes after.
        """
        return None if self.needs() & frozenset(unsupported) else self

    def targets(self) -> tuple[str, ...]:
        """Every target the fault names, symbolic or not."""
        return self.nodes_named() + tuple(getattr(self, "against", ()))

    def nodes_named(self) -> tuple[str, ...]:
        """The targets in the field `nodes`, if it has one."""
        return tuple(getattr(self, "nodes", ()))

    def aimed_at(self, nodes: tuple[str, ...]) -> Self:
        """The same fault with other targets in its field `nodes`. Raises ValueError where they make no sense."""
        changes: dict[str, Any] = {"nodes": nodes}
        return replace(self, **changes)

    def limited(self, random: Random, cluster: ClusterShape) -> Self:
        """The same fault limited to the connections of one name, where it is about links and the cluster has such
        connections between the nodes that it concerns."""
        return self

    def strikes_starts(self) -> bool:
        """Whether it strikes what processes do only when they start."""
        return False

    def blacked_out(self, random: Random, cluster: ClusterShape) -> Self:
        """The same fault, if it is about processes, with the power cut where no promise rests on what is lost then, or,
        of nodes that may lose data, in the middle of a clean stop."""
        return self

    def at_risk(self, cluster: ClusterShape) -> tuple[str, ...]:
        """The targets that lose data, or restart uncleanly, which only victims of a run may (`nemesis.swarm`). Where an
        unclean recovery finds what a killed process has kept, any may be killed."""
        return ()

    def describe(self) -> str:
        """A few words for people: the fault and its targets."""
        return " ".join((self.name, *self.targets()))

    def to_mapping(self) -> dict[str, Any]:
        """The fault as YAML or JSON values, read back by `nemesis.schedule`."""
        given = {name: value for name, value in asdict(self).items() if value is not None}
        return {"fault": self.name} | {name: _plain(value) for name, value in given.items()}


def _plain(value: object) -> object:
    if isinstance(value, tuple):
        return list(value)
    return str(value) if isinstance(value, StrEnum) else value
