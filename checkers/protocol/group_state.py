"""State of consumer groups according to a trace: what each coordinator has of them, and what their log has."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from checkers.tables import FaultTimes

PREPARING: Final = "PreparingRebalance"
COMPLETING: Final = "CompletingRebalance"
STABLE: Final = "Stable"
EMPTY: Final = "Empty"
JOIN, SYNC = "join", "sync"
EXTENSION_MS_MIN: Final = 100
"""By which a rebalance that nobody has joined goes on at least, as brokers do it."""
AWAKE_MS_MAX: Final = 100
"""Of the time between two events of a coordinator, as much counts as time in which it could act: it may be paused."""

Offsets = dict[str, dict[str, int]]
"""Group → partition → committed offset."""


@dataclass(frozen=True, slots=True)
class Identity:
    """A member as it described itself when it last joined."""

    instance: str | None
    session_ms: int
    rebalance_ms: int
    protocols: frozenset[str] | None = None
    """Those that it supports; None where that is not known."""
    wants: tuple[object, ...] = ()
    """The coordinator that heard it, its leader epoch, and the protocols in order with what the member says under each;
    empty where that is not known."""


@dataclass(slots=True)
class HeldMember:
    """A member, as a coordinator has it."""

    identity: Identity
    wait: str
    """The answer that it waits for: `join`, `sync` or empty."""
    contact_ms: int
    """The last contact, on the coordinator's clock."""
    overdue_ms: int = 0
    """Time in which the coordinator could have removed it."""

    def expires_ms(self) -> int | None:
        """The end of its session; None while it waits for an answer."""
        return None if self.wait else self.contact_ms + self.identity.session_ms


@dataclass(slots=True)
class HeldGroup:
    """A group, as a coordinator has it."""

    state: str = EMPTY
    generation: int = 0
    storing: bool = False
    leader: str = ""
    """The member that leads the generation; empty where that is not known."""
    since_ms: int = 0
    """When the wait for its members began."""
    longest_ms: int = 0
    """The longest rebalance timeout of its members then."""
    waited_out: bool = False
    """Whether a wait for members to join has lasted that long: static ones may be absent from the next generation."""
    joined: frozenset[str] = frozenset()
    """The members that had joined when the generation began."""
    members: dict[str, HeldMember] = field(default_factory=dict)
    pending: set[str] = field(default_factory=set)
    """Member ids that clients were given to join with."""
    left: set[str] = field(default_factory=set)
    """Members whose LeaveGroup was accepted; nobody joins with their ids again."""
    overdue_ms: int = 0
    """Time in which the coordinator could have ended a rebalance that has lasted too long."""
    recorded: int = 0
    """The generation in the last record that was loaded, or whose append was tried."""

    def holder(self, instance: str | None) -> str | None:
        """The member with this instance id."""
        if instance is None:
            return None
        return next((one for one, member in self.members.items() if member.identity.instance == instance), None)

    def take_over_leader(self, before: HeldGroup) -> None:
        """Within a generation, keep the leader that the group had `before`: the member itself, or the one that has its
        instance id now."""
        if self.generation != before.generation:
            return
        self.leader = before.leader
        if self.leader not in self.members:
            known = before.members.get(self.leader)
            self.leader = self.holder(known.identity.instance if known is not None else None) or ""

    def longest_timeout_ms(self) -> int:
        """The longest rebalance timeout of its members."""
        return max((member.identity.rebalance_ms for member in self.members.values()), default=0)

    def wait_longer(self, at_ms: int) -> None:
        """While a group has only static members and none has joined, its wait begins anew each time it ends: by now at
        the latest, since the coordinator may notice late. Whoever joins before that ends the wait with those absent."""
        until_ms = self.waits_until_ms()
        if until_ms is None or until_ms > at_ms or self.state != PREPARING:
            return
        self.waited_out = True
        if self.members and not any(one.wait == JOIN or one.identity.instance is None for one in self.members.values()):
            self.since_ms, self.longest_ms = at_ms, max(self.longest_timeout_ms(), EXTENSION_MS_MIN)

    def waits_until_ms(self) -> int | None:
        """The end of the wait for members; None where there is none."""
        waits = self.state in (PREPARING, COMPLETING) and not self.storing
        return self.since_ms + self.longest_ms if waits else None


@dataclass(slots=True)
class Coordinator:
    """A leader of a partition of `__consumer_offsets`, with its groups."""

    serving: bool = False
    loaded: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Group → what it has loaded of it."""
    groups: dict[str, HeldGroup] = field(default_factory=dict)
    at_ms: int = 0
    """Its clock at its last event."""
    seen_ns: int = 0
    """Time of that event."""
    changed: tuple[int, int] | None = None
    """The time in ns, and that in ms on its clock, when it loaded or changed a group last."""
    offsets: Offsets | None = None
    """Below its high watermark; None where its log is not known."""
    uncommitted: list[tuple[int, list[list[Any]]]] = field(default_factory=list)
    """(end, changes) of the records above it."""
    leaves: list[list[Any]] = field(default_factory=list)
    """[Member id, instance id, error] of each member that it has judged for the LeaveGroup that it carries out."""
    metadata_end: int = 0
    """Of the metadata that it has applied: topics that were deleted before are forgotten."""
    owed: dict[tuple[str, str], int | None] = field(default_factory=dict)
    """(Group, partition) of forgotten offsets that its log has → the end of their tombstone, until it is known to be
    below the high watermark; None without one."""

    def commit(self, high_watermark: int) -> None:
        """Apply the changes of offsets that are below the high watermark."""
        while self.uncommitted and self.uncommitted[0][0] <= high_watermark:
            change = self.uncommitted.pop(0)
            if self.offsets is not None:
                change_offsets(self.offsets, change[1])
        self.owed = {key: end for key, end in self.owed.items() if end is None or end > high_watermark}

    def forget(self, is_gone: Callable[[str, str], bool]) -> None:
        """The offsets of deleted topics, by group and partition, count no more, also those above the high watermark.
        The log needs a tombstone for each that nothing in it deletes yet."""
        in_log = {group: dict(of_group) for group, of_group in (self.offsets or {}).items()}
        for _, changes in self.uncommitted:
            change_offsets(in_log, changes)
        for group, of_group in in_log.items():
            self.owed |= {(group, key): None for key in of_group if is_gone(group, key)}
        for group, of_group in (self.offsets or {}).items():
            for key in [key for key in of_group if is_gone(group, key)]:
                del of_group[key]
        self.uncommitted = [
            (end, [change for change in changes if change[1] is None or not is_gone(change[0], change[1])])
            for end, changes in self.uncommitted
        ]


@dataclass(frozen=True, slots=True)
class StoredChange:
    """A record, or a batch of records, in a log of `__consumer_offsets`."""

    base: int
    end: int
    epoch: int
    group: str = ""
    """Of a record of a group."""
    record: Mapping[str, Any] = field(default_factory=dict)
    changes: tuple[list[Any], ...] = ()
    """Of committed offsets."""
    metadata_end: int = 0
    """Of the metadata that the coordinator had applied which appended it: commits are for topics in that."""

    def of(self, group: str) -> bool:
        """Whether it is a record of the group, or deletes it."""
        return self.group == group or any(name == group and key is None for name, key, _ in self.changes)


@dataclass(slots=True)
class Loading:
    """A leader of a partition of `__consumer_offsets` that has not loaded its groups yet."""

    end: int
    """Of its log when it began to lead."""
    ready_ns: int = -1
    """Since when it has known all of that to be committed; -1 before."""


class LateLoading(NamedTuple):
    """A leader that had not loaded its groups for long although nothing kept it."""

    node: str
    ready_ns: int
    until_ns: int
    """When it loaded them, or led no more."""


@dataclass(slots=True)
class GroupsState:
    """The groups of one partition of `__consumer_offsets`."""

    coordinators: dict[str, Coordinator] = field(default_factory=dict)
    """By node."""
    identities: dict[str, Identity] = field(default_factory=dict)
    """By member id."""
    stored: dict[tuple[int, int], StoredChange] = field(default_factory=dict)
    """(base offset, leader epoch) → what was appended there."""
    assigned: dict[tuple[str, int], dict[int, Mapping[str, str]]] = field(default_factory=dict)
    """(Group, generation) → the assignments in the SyncGroup of its leader, by leader epoch: after an unclean election
    a generation may begin once more."""
    member_ids: set[str] = field(default_factory=set)
    """Those that coordinators gave to clients without one."""
    begun: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    """Group → (leader epoch, generation) of each that began."""
    loading: dict[str, Loading] = field(default_factory=dict)
    """By node."""
    late: list[LateLoading] = field(default_factory=list)
    stalls: FaultTimes = field(default_factory=FaultTimes)
    """When processes did not run."""

    def forget_assigned(self, group: str, generation: int) -> None:
        """A deleted group had come to this generation; one of its name begins again."""
        for key in [key for key in self.assigned if key[0] == group and key[1] <= generation]:
            del self.assigned[key]

    def serving(self, node: str) -> Coordinator | None:
        """The coordinator on this node, once it has loaded its log."""
        coordinator = self.coordinators.get(node)
        return coordinator if coordinator is not None and coordinator.serving else None

    def changes_in(self, log: list[int], end: int) -> list[StoredChange]:
        """The changes that a log, given as leader epochs, holds below `end`, in order."""
        found = [one for one in self.stored.values() if one.end <= end and log[one.base] == one.epoch]
        return sorted(found, key=lambda one: one.base)


def topic_of(partition: str) -> str:
    """The topic of a partition by name."""
    return partition.rpartition("-")[0]


def change_offsets(offsets: Offsets, changes: Iterable[list[Any]]) -> None:
    """Change committed offsets as records do."""
    for group, partition, offset in changes:
        if partition is None:
            offsets.pop(group, None)
        elif offset is None:
            offsets.get(group, {}).pop(partition, None)
        else:
            offsets.setdefault(group, {})[partition] = offset
