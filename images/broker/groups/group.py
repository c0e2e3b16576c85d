"""One consumer group, as a pure decision machine: who is a member, in which generation, with which assignment.

A `Group` is a plain value. The functions of `rebalance.py` and `membership.py` take a group, an event and the time, and
give a `GroupStep`: the next value, the response to the caller (None: the caller waits), and the decisions the shell
must carry out. Nothing here does I/O or reads a clock.

              first member joins                    everybody joined, or the time is up
    Empty ───────────────────────► PreparingRebalance ──────────────────────► CompletingRebalance
      ▲                              ▲     ▲                                            │ the leader's assignment
      └── nobody is left ────────────┘     └── a member joins, leaves or is silent ─┐   ▼ is in the log
                                                                                    └ Stable
    Dead: deleted, or coordinated elsewhere by now.

The *generation* counts completed rebalances. A member is told its partitions only once the assignment of its generation
is committed in `__consumer_offsets`; so of two brokers that both take themselves for the coordinator only one can hand
out partitions, and whoever takes over finds the newest generation handed out in its log.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from images.broker.rules import Rules

NO_GENERATION = -1
NEVER_MS = 1 << 62


class GroupState(StrEnum):
    """Where a group stands, in Kafka's words."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(frozen=True, slots=True)
class GroupLimits:
    """What groups are measured against."""

    session_timeout_ms_min: int
    session_timeout_ms_max: int
    initial_rebalance_delay_ms: int
    rules: Rules


class ClassicGroupMember(NamedTuple):
    """One member of a group."""

    id: str
    instance_id: str | None = None
    """`group.instance.id`: a static member, which keeps its place when it comes back under a new id."""
    client_id: str = ""
    client_host: str = ""
    session_timeout_ms: int = 0
    rebalance_timeout_ms: int = 0
    protocols: tuple[tuple[str, bytes], ...] = ()
    """(assignor, subscription), the preferred first."""
    assignment: bytes = b""
    last_contact_ms: int = 0
    joining: bool = False
    """It has asked to join and waits for the answer."""
    syncing: bool = False
    """It has asked for its assignment and waits for the answer."""

    def metadata_for(self, protocol: str | None) -> bytes:
        """Its subscription under `protocol`."""
        return dict(self.protocols).get(protocol or "", b"")


class Group(NamedTuple):
    """One group."""

    id: str
    state: GroupState = GroupState.EMPTY
    generation: int = 0
    protocol_type: str = ""
    protocol: str | None = None
    leader: str | None = None
    members: tuple[ClassicGroupMember, ...] = ()
    pending: tuple[tuple[str, int], ...] = ()
    """Ids given to joiners that are to come back with them (KIP-394), and until when each is waited for."""
    deadline_ms: int = NEVER_MS
    """Until when the rebalance waits for members to join, or the new generation for them to ask for assignments."""
    initial_delay_until_ms: int = 0
    """The first rebalance of a group waits so long for more members, even when all known ones have joined."""
    storing: bool = False
    """The leader's assignment is on its way into the log."""

    @classmethod
    def stored(
        cls,
        group: str,
        protocol_type: str,
        generation: int,
        protocol: str | None,
        leader: str | None,
        members: Sequence[ClassicGroupMember],
    ) -> Group:
        """The group that a record tells of: everything else of a group is gone when its coordinator is."""
        state = GroupState.STABLE if members else GroupState.EMPTY
        return cls(group, state, generation, protocol_type, protocol, leader, tuple(members))

    def member(self, member_id: str) -> ClassicGroupMember | None:
        """The member with this id."""
        return next((member for member in self.members if member.id == member_id), None)

    def static_member(self, instance_id: str | None) -> ClassicGroupMember | None:
        """The member with this group instance id."""
        if instance_id is None:
            return None
        return next((member for member in self.members if member.instance_id == instance_id), None)

    def with_member(self, changed: ClassicGroupMember) -> Group:
        """The same group with `changed` in place of the member with its id, or added."""
        if self.member(changed.id) is None:
            return self._replace(members=(*self.members, changed))
        return self._replace(members=tuple(changed if member.id == changed.id else member for member in self.members))

    def loaded(self, now_ms: int) -> Group:
        """This group, read from the log by a new coordinator: every member has its whole session to be heard."""
        return self._replace(members=tuple(member._replace(last_contact_ms=now_ms) for member in self.members))


# --- events -----------------------------------------------------------------------------------------------------------


class JoinRequest(NamedTuple):
    """A JoinGroup request."""

    member_id: str
    new_id: str
    """The id to give if one is to be given: never given before."""
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    session_timeout_ms: int
    rebalance_timeout_ms: int
    instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    id_required: bool = False
    """The client knows MEMBER_ID_REQUIRED (JoinGroup v4 and later)."""


class Caller(NamedTuple):
    """Who asks, as Heartbeat, SyncGroup and OffsetCommit tell it."""

    member_id: str
    generation: int
    instance_id: str | None = None


# --- answers and decisions --------------------------------------------------------------------------------------------


class JoinAnswer(NamedTuple):
    """The answer to the JoinGroup of `member_id`."""

    member_id: str
    error: ErrorCode = ErrorCode.none
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    members: tuple[tuple[str, str | None, bytes], ...] = ()
    """(id, instance id, subscription) of everybody, told to the leader alone."""
    skip_assignment: bool = False
    """The generation has its assignment: its leader is not to make another."""


class SyncAnswer(NamedTuple):
    """The answer to the SyncGroup of `member_id`."""

    member_id: str
    error: ErrorCode = ErrorCode.none
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


@dataclass(frozen=True, slots=True)
class StoreGroup:
    """Write the group as it is now into the log, and report with `stored` once it is committed or cannot be."""

    generation: int


Decision = JoinAnswer | SyncAnswer | StoreGroup


class GroupStep(NamedTuple):
    """Where an event leads. `answer` is for the caller of a join or a sync; with None its answer is a later decision,
    addressed to `waiting_member_id`."""

    group: Group
    decisions: tuple[Decision, ...] = ()
    answer: JoinAnswer | SyncAnswer | None = None
    waiting_member_id: str = ""
