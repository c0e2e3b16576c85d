"""One consumer group as a pure state machine: its members, its generation, their assignments.

A `Group` is a plain value. The functions of `rebalance.py` and `membership.py` take a group, an event and the time, and
return a `GroupStep`: the next value, the response to the caller (None: the caller waits), and the decisions that the
shell must carry out. There is no I/O and no clock.

              first member joins             all members joined, or timeout; stored
    Empty ───────────────────────► PreparingRebalance ──────────────────────► CompletingRebalance
      ▲                              ▲     ▲                                            │ the leader's assignment
      └── no member is left ─────────┘     └── a member joins, leaves or expires ────┐   ▼ is committed
                                                                                     └ Stable
    Dead: what DescribeGroups tells of a group that does not exist.

The *generation* counts completed rebalances. Members get its number only once a record that it has begun is committed
in `__consumer_offsets`, so a new coordinator never gives the same number to another generation. The record holds the
members, no leader and no partitions: a group that is loaded from it is in PreparingRebalance, and waits for them to
join again. A member receives its partitions only once the assignment of its generation is committed in
`__consumer_offsets`, and a static member that returns takes its old place, with the partitions of it, only once a
record of that is; so of two brokers that both act as coordinator only one can hand out partitions, and a new
coordinator finds the latest assigned generation in its log.
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
    """State of a group, with Kafka's names."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(frozen=True, slots=True)
class GroupLimits:
    """Limits that requests are checked against."""

    session_timeout_ms_min: int
    session_timeout_ms_max: int
    initial_rebalance_delay_ms: int
    rules: Rules


class ClassicGroupMember(NamedTuple):
    """One member of a group."""

    id: str
    instance_id: str | None = None
    """`group.instance.id`: a static member, which keeps its place when it returns under a new member id."""
    client_id: str = ""
    client_host: str = ""
    session_timeout_ms: int = 0
    rebalance_timeout_ms: int = 0
    protocols: tuple[tuple[str, bytes], ...] = ()
    """(assignor, subscription) in order of preference."""
    assignment: bytes = b""
    last_contact_ms: int = 0
    joining: bool = False
    """Its JoinGroup waits for a response."""
    syncing: bool = False
    """Its SyncGroup waits for a response."""
    replaces: ClassicGroupMember | None = None
    """The static member whose place it takes, until a record that it does so is committed."""

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
    """Member ids given to clients that must join again with them (KIP-394), each with its expiry."""
    deadline_ms: int = NEVER_MS
    """End of the wait for members to join, which may begin anew, or for members of the new generation to send
    SyncGroup."""
    initial_delay_until_ms: int = 0
    """End of the initial delay: the first rebalance waits for more members until then, even if all known ones have
    joined."""
    storing: bool = False
    """A record is appended and not yet committed: in PreparingRebalance that the next generation begins, in
    CompletingRebalance the leader's assignment."""
    record_outdated: bool = False
    """A static member was replaced, or joined, since the record that the next generation begins was made, which may
    have its instance with an earlier member id."""

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
        """The group in a stored record; the record does not hold the rest of the state. Without a leader it says that
        the generation begins."""
        state = GroupState.EMPTY
        if members:
            state = GroupState.STABLE if leader is not None else GroupState.PREPARING
        return cls(group, state, generation, protocol_type, protocol, leader, tuple(members))

    def member(self, member_id: str) -> ClassicGroupMember | None:
        """The member with this member id."""
        return next((member for member in self.members if member.id == member_id), None)

    def static_member(self, instance_id: str | None) -> ClassicGroupMember | None:
        """The member with this group instance id."""
        if instance_id is None:
            return None
        return next((member for member in self.members if member.instance_id == instance_id), None)

    @property
    def longest_rebalance_timeout_ms(self) -> int:
        """How long a rebalance waits for the members to join."""
        return max((member.rebalance_timeout_ms for member in self.members), default=0)

    def with_member(self, changed: ClassicGroupMember) -> Group:
        """This group with `changed` added, or in place of the member with its id."""
        if self.member(changed.id) is None:
            return self._replace(members=(*self.members, changed))
        return self._replace(members=tuple(changed if member.id == changed.id else member for member in self.members))

    def loaded(self, now_ms: int) -> Group:
        """This group, as loaded by a new coordinator: every member has a full session timeout, and in a rebalance the
        longest rebalance timeout to join again."""
        members = tuple(member._replace(last_contact_ms=now_ms) for member in self.members)
        if self.state is not GroupState.PREPARING:
            return self._replace(members=members)
        return self._replace(members=members, deadline_ms=now_ms + self.longest_rebalance_timeout_ms)


# --- events -----------------------------------------------------------------------------------------------------------


class JoinRequest(NamedTuple):
    """A JoinGroup request."""

    member_id: str
    new_id: str
    """The member id to assign to a new member; never used before."""
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    session_timeout_ms: int
    rebalance_timeout_ms: int
    instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    id_required: bool = False
    """The client supports MEMBER_ID_REQUIRED (JoinGroup v4 and later)."""


class Caller(NamedTuple):
    """The sender of a Heartbeat, SyncGroup or OffsetCommit request."""

    member_id: str
    generation: int
    instance_id: str | None = None


# --- answers and decisions --------------------------------------------------------------------------------------------


class JoinAnswer(NamedTuple):
    """The response to JoinGroup of `member_id`."""

    member_id: str
    error: ErrorCode = ErrorCode.none
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    members: tuple[tuple[str, str | None, bytes], ...] = ()
    """(member id, instance id, subscription) of every member; sent to the leader only."""
    skip_assignment: bool = False
    """The generation has an assignment already, so its leader must not compute one."""
    leader_before: str = ""
    """The member that this leader has replaced; it leads in answers that have no field for `skip_assignment`."""
    id_known: bool = True
    """Whether the client is told the member id; if not, the group has forgotten it."""


class SyncAnswer(NamedTuple):
    """The response to SyncGroup of `member_id`."""

    member_id: str
    error: ErrorCode = ErrorCode.none
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


@dataclass(frozen=True, slots=True)
class StoreGroup:
    """Append the group as it is now, and report with `stored` once it is committed or has failed."""

    generation: int


@dataclass(frozen=True, slots=True)
class StoreGeneration:
    """Append that this generation begins, and report with `generation_stored` once it is committed or has failed."""

    generation: int


@dataclass(frozen=True, slots=True)
class StoreReplacement:
    """Append the group as it is now, in which `member_id` takes the place of a static member, and report with
    `replacement_stored` once it is committed or has failed."""

    generation: int
    member_id: str


Decision = JoinAnswer | SyncAnswer | StoreGroup | StoreGeneration | StoreReplacement


class GroupStep(NamedTuple):
    """Result of an event. `answer` is the response to a join or sync; if None, the response is a later decision for the
    member `waiting_member_id`."""

    group: Group
    decisions: tuple[Decision, ...] = ()
    answer: JoinAnswer | SyncAnswer | None = None
    waiting_member_id: str = ""
