"""Ports of the nemesis: the operations that a fault needs from a cluster.

An environment implements `ClusterUnderTest`: the simulation by reaching into its world, others by commands on the node.
Nodes are named `b1 … bN` (brokers) and `c1 … cM` (controllers). Every call that ends a fault returns *evidence*:
numbers that show whether the fault took effect, measured by the environment and not assumed by the fault.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final, NamedTuple, Protocol

Evidence = Mapping[str, float]
"""Measurements: messages held, bytes lost, seconds frozen … A fault declares which of them must be positive."""


CLIENTS: Final = "clients"
"""Everything outside of the cluster that sends it requests, as one end of a link."""
SIDE_TOPIC: Final = "faultline-side"
"""The topic beside that of the run which faults create, write and delete."""
PASSING_TOPIC: Final = "faultline-passing"
"""Another one, which is created and deleted while there is that."""
SIDE_TOPICS: Final = (SIDE_TOPIC, PASSING_TOPIC)
SIDE_GROUP: Final = SIDE_TOPIC
"""The consumer group, without members, whose offsets of that topic they commit."""


class ChannelName(StrEnum):
    """The connections of a cluster, by their purpose: the first request on each says what it is for."""

    FETCH = "fetch"
    """A follower's, to the leader that it fetches from."""
    METADATA = "metadata"
    """A broker's, on which it reads the metadata log from a controller."""
    HEARTBEAT = "heartbeat"
    """A broker's, for its registration and its heartbeats."""
    ALTER_PARTITION = "alter-partition"
    """A leader's, for changes of an ISR."""
    FORWARDING = "forwarding"
    """A broker's, for what it passes on from clients to the controller."""
    QUORUM = "quorum"
    """A controller's, to another controller."""
    CLIENT = "client"
    """A client's, to any node."""


@dataclass(frozen=True, slots=True, order=True)
class Link:
    """One direction between two nodes: what `source` sends no longer reaches `target`."""

    source: str
    target: str
    channel: str = ""
    """A ChannelName: only what is sent on connections of that name. Empty: everything."""


def both_ways(ones: Iterable[str], others: Iterable[str]) -> tuple[Link, ...]:
    """Every link between one of `ones` and one of `others`, in both directions."""
    others = tuple(others)
    return tuple(link for a in ones for b in others if a != b for link in (Link(a, b), Link(b, a)))


def one_way(sources: Iterable[str], targets: Iterable[str]) -> tuple[Link, ...]:
    """Every link from one of `sources` to one of `targets`."""
    targets = tuple(targets)
    return tuple(Link(a, b) for a in sources for b in targets if a != b)


def on_channel(links: Iterable[Link], channel: ChannelName | None) -> tuple[Link, ...]:
    """The links, of the connections of one name only if one is given."""
    return tuple(links) if channel is None else tuple(replace(link, channel=channel.value) for link in links)


@dataclass(frozen=True, slots=True)
class LinkQuality:
    """Quality of a degraded link; each value comes on top of the environment's own."""

    delay_ms: float = 0.0
    jitter_ms: float = 0.0
    loss: float = 0.0
    """Share of packets lost, 0 to 1. On a stream a loss shows as the delay of a retransmission."""


class KeepUnsynced(StrEnum):
    """The unsynced writes that survive a power loss."""

    NOTHING = "nothing"
    PREFIX = "prefix"
    """A prefix, of a length the environment draws, of each file's unsynced writes."""
    TORN = "torn"
    """As PREFIX, and the last write kept is cut in its middle."""
    EVERYTHING = "everything"


@dataclass(frozen=True, slots=True)
class ClockChange:
    """A node's clock from now on: jumps by `jump_ms` at once, then runs at `rate` (0 is frozen, 1 is true). Its wall
    clock, which tells the time of day, jumps by `wall_jump_ms` beside that; timers do not go by it."""

    jump_ms: float = 0.0
    rate: float = 1.0
    wall_jump_ms: float = 0.0


class MessagePart(StrEnum):
    """One half of an exchange."""

    REQUEST = "request"
    RESPONSE = "response"


class MessageEffect(StrEnum):
    """What becomes of a message."""

    DELAY = "delay"
    """It is late, and all that follows on its connection comes after it; it arrives even if its sender has ended."""
    HOLD = "hold"
    """It waits until the fault heals, and so does all that follows on its connection; it, too, arrives if its sender
    has ended, even if that has lost its power: it had left the machine."""
    DROP = "drop"
    """It is lost, and its connection breaks at both ends."""


@dataclass(frozen=True, slots=True)
class MessageRule:
    """Messages to look for, and what becomes of them."""

    api_key: int
    """Kafka's number of the request."""
    part: MessagePart
    effect: MessageEffect
    delay_ms: float = 0.0
    count: int = 1
    """So many messages, or with 0 every one."""


class EnvironmentCapability(StrEnum):
    """Capability that some faults need and some environments lack."""

    DELAY = "delay"
    """Slow links: `LinkQuality.delay_ms` and `jitter_ms`."""
    MESSAGES = "messages"
    """Telling one message from another on its way: `ClusterUnderTest.intercept`."""
    CHANNELS = "channels"
    """Telling connections between two nodes apart: links with a channel."""
    CLOCKS = "clocks"
    """Clocks that can be changed: `ClusterUnderTest.set_clock`."""
    FROZEN_CLOCKS = "frozen-clocks"
    """Clocks that can stand still, and run again."""
    WALL_CLOCKS = "wall-clocks"
    """Wall clocks that can be changed while timers go on: `ClockChange.wall_jump_ms`."""
    RESIGNATION = "resignation"
    """A controller that resigns when it is asked to: `ClusterAdmin.move_controller`."""
    REPLACED_REASSIGNMENTS = "replaced-reassignments"
    """A second reassignment that takes the place of the first: without, the first is cancelled before."""
    EMPTY_DISKS = "empty-disks"
    """Brokers that may lose their whole disk: no broker is a voter of the controllers' quorum."""
    FAILING_SYNCS = "failing-syncs"
    """Syncs that fail: `ClusterUnderTest.stop_unsynced` and `fail_syncs`."""
    LIVE_TRACE = "live-trace"
    """The protocol trace while the run goes on: conditions that no metadata shows."""


DONE, UNANSWERED = "", "UNANSWERED"
"""Outcome of an administrator's request: DONE, UNANSWERED, or the name of a Kafka error."""


class AdminResult(NamedTuple):
    """Result of an administrator's request that changes something."""

    outcome: str
    in_doubt: bool = False
    """Another node was asked, too, and did not answer: the request may still take effect, even a second time."""


class ConfigOperation(StrEnum):
    """A change of one key of a configuration."""

    SET = "set"
    DELETE = "delete"
    """It has its default again."""
    APPEND = "append"
    SUBTRACT = "subtract"
    REPLACE = "replace"
    """It is set, and every other key has its default again."""


@dataclass(slots=True)
class AdminRequest:
    """A change of the metadata that the administrator asked for, once, and what it was told."""

    change: str
    """`create`, `grow`, `delete`, `configure`, `reassign`, `cancel`, `elect` (the preferred replica) or
    `elect-unclean`."""
    topic: str
    partition: int
    """-1 for all partitions of the topic."""
    wanted: Any
    """Of a reassignment the ids of the replicas, of a configuration [key, value, operation], of added partitions how
    many there are to be, of a creation how many replicas; else None."""
    began_ns: int
    ended_ns: int | None = None
    """None until there is a result, and for ever where nobody waited for that."""
    outcome: str = UNANSWERED
    in_doubt: bool = True
    created_topic: Any = None
    """Of a creation that is done: the topic in the answer, as [partitions, replicas, configuration]."""


@dataclass(slots=True)
class ToldReassignments:
    """What a broker answered an administrator who asked which reassignments are under way."""

    broker: str
    began_ns: int
    ended_ns: int
    reassignments: list[Any]
    """Of each [topic, partition, ids of its replicas, of those that are being added, of those being removed]."""


class PartitionView(NamedTuple):
    """A partition as metadata shows it."""

    leader: str | None
    isr: tuple[str, ...]
    elr: tuple[str, ...]


class ClusterView(NamedTuple):
    """The cluster as a broker's metadata shows it."""

    brokers: tuple[str, ...]
    """Those that are not fenced."""
    partitions: Mapping[int, PartitionView]


class ClusterAdmin(Protocol):
    """An administrator of the cluster under test, over Kafka's protocol."""

    @property
    def requests(self) -> Sequence[AdminRequest]:
        """The changes of the metadata that were asked for so far."""

    @property
    def dry_runs(self) -> Sequence[AdminRequest]:
        """Those of which only a dry run was asked for: they are validated and answered, and change nothing."""

    @property
    def told_reassignments(self) -> Sequence[ToldReassignments]:
        """What brokers have answered to `list_reassignments` so far."""

    async def describe(self, topic: str) -> ClusterView | None:
        """The cluster and the partitions of a topic, in the latest leader epoch that a broker shows; where brokers
        differ within it, as most of them do. None when none answers."""

    async def replicas(self, topic: str, partition: int) -> tuple[str, ...]:
        """The brokers that hold a partition, the preferred one first, in the latest leader epoch that a broker shows;
        where brokers differ within it, as most of them do. Empty when none answers."""

    async def reassign(self, topic: str, partition: int, replicas: Sequence[str] | None) -> AdminResult:
        """Move a partition to other replicas, or (None) cancel its reassignment."""

    async def list_reassignments(self) -> None:
        """Ask every broker which reassignments are under way, and record the answers."""

    async def elect_preferred(self, topic: str, partition: int) -> AdminResult:
        """Have the preferred replica elected."""

    async def elect_unclean(self, topic: str, partition: int) -> AdminResult:
        """Have any live replica elected where a partition has no leader, whatever its topic permits."""

    async def offsets(self, topic: str, partition: int) -> tuple[int, int] | None:
        """Log start offset and high watermark of a partition; None when no leader answers."""

    async def delete_records(
        self, topic: str, partition: int, offset: int, waits_s: float | None = None
    ) -> AdminResult:
        """Delete a partition's records below `offset`, or with -1 below the high watermark. The leader waits for its
        replicas so long, by default half a second."""

    async def create_topic(self, topic: str, replicas: int | Sequence[str], *, dry_run: bool = False) -> AdminResult:
        """Create a topic of one partition with so many replicas, or on these brokers, the preferred one first."""

    async def create_partitions(self, topic: str, count: int, *, dry_run: bool = False) -> AdminResult:
        """Add partitions to a topic, so that it has so many."""

    async def delete_topic(self, topic: str, *, by_id: bool = False) -> AdminResult:
        """Delete a topic, named by the id which some broker tells, if one does."""

    async def append(self, topic: str, partition: int, records: Sequence[bytes], acks: int) -> AdminResult:
        """Append a batch of records to a partition; with acks -1 all in-sync replicas are to have it, with 1 its
        leader. Sent once."""

    async def coordinator(self, group: str) -> str | None:
        """The broker that coordinates a group; None when no broker tells."""

    async def committed(self, group: str, topic: str, partition: int) -> int | None:
        """The committed offset of a partition, -1 without any; None when no coordinator answers. One is found first."""

    async def commit(self, group: str, topic: str, partition: int, offset: int) -> AdminResult:
        """Commit the offset of a partition for a group without members. Sent once, and to no coordinator where none was
        found before."""

    async def configure(
        self,
        topic: str,
        name: str,
        value: str,
        operation: ConfigOperation = ConfigOperation.SET,
        *,
        dry_run: bool = False,
    ) -> AdminResult:
        """Change one key of a topic's configuration. DELETE ignores `value`; REPLACE gives every other key its default
        again."""

    async def move_controller(self) -> AdminResult:
        """Have the active controller resign, so that another one is elected."""


class ClusterUnderTest(Protocol):
    """A running cluster that can be broken. Calls are idempotent: cutting what is cut changes nothing."""

    @property
    def brokers(self) -> tuple[str, ...]: ...

    @property
    def controllers(self) -> tuple[str, ...]: ...

    @property
    def unsupported(self) -> Mapping[EnvironmentCapability, str]:
        """Missing capabilities, each with the reason in a few words."""

    @property
    def admin(self) -> ClusterAdmin: ...

    def now_ns(self) -> int:
        """True time since the run began, unaffected by clock faults."""

    def alive(self, node: str) -> bool:
        """Whether the node's process runs, as far as is known."""

    async def leaders(self) -> Mapping[tuple[str, int], str]:
        """The leader of each (topic, partition), as far as the cluster reports; partitions without one are absent."""

    async def controller(self) -> str | None:
        """The active controller, as far as the cluster reports; None when no node reports one."""

    async def cut(self, links: Sequence[Link], *, reset: bool = False, kept: bool = False) -> None:
        """Stop delivery on each link. Open connections hang (`reset=False`) or break. With a channel new connections
        are still made, and stop or break at their first request. What is stopped arrives after the healing: once its
        sender sends it again, or at once where it is to be `kept` and the environment can keep it."""

    async def heal_links(self, links: Sequence[Link]) -> Evidence:
        """Deliver again, held data first. Evidence: `held` (messages that were stopped), `refused` (connections)."""

    async def degrade(self, links: Sequence[Link], quality: LinkQuality) -> None:
        """Make links slow or lossy."""

    async def clear_degradation(self, links: Sequence[Link]) -> Evidence:
        """Undo `degrade`. Evidence: `delayed` (messages), `delay_seconds` (in all), `lost` (retransmissions)."""

    async def intercept(self, number: int, links: Sequence[Link], rule: MessageRule) -> None:
        """Apply `rule` to the requests sent on `links`, or to the responses to such requests. `number` names the
        interception."""

    async def intercepted(self, number: int) -> int:
        """Messages that an interception has taken so far."""

    async def stop_intercepting(self, number: int) -> Evidence:
        """Let messages pass again, those that were held first. Evidence: `intercepted` (messages)."""

    async def pause(self, node: str) -> None:
        """Freeze the process (SIGSTOP)."""

    async def resume(self, node: str) -> Evidence:
        """Thaw it. Evidence: `frozen_seconds`, `missed` (callbacks or messages that waited meanwhile)."""

    async def kill(self, node: str) -> Evidence:
        """End the process at once (SIGKILL); what it wrote stays. Evidence: `killed` (1 if it was alive)."""

    async def stop(self, node: str) -> Evidence:
        """Stop the process cleanly (SIGTERM) and wait for its end. Evidence: `stopped` (1 if it ended by itself)."""

    async def start(self, node: str) -> None:
        """Start the process of a node that is down; returns once the process runs, not once it is ready.
        A process that is stopping is waited for first."""

    async def power_off(self, node: str, keep: KeepUnsynced, stopping_s: float | None = None) -> Evidence:
        """Kill the node and drop unsynced writes. With `stopping_s` it has been told to stop cleanly so long before, or
        less. Evidence: `killed`, `unsynced_bytes`, `lost_bytes`, `lost_names` (creations, renames and deletions
        undone), and of a clean stop `interrupted` (1 if it was not over)."""

    async def stop_unsynced(self, node: str, failing_syncs: int, keep: KeepUnsynced) -> Evidence:
        """Stop the process cleanly while so many syncs of its disk fail, the first ones, with ENOSPC; wait for its end
        and cut the power. Evidence: `failed_syncs`, and that of `power_off`, but not whether it `stopped`: a process
        that ends before it opens a log syncs nothing, and what it loses then is a loss like any other."""

    async def wipe(self, node: str) -> Evidence:
        """Kill the node and leave it an empty disk. Evidence: `killed`, `lost_bytes` (of all its files)."""

    async def lie_about_fsync(self, node: str, lying: bool) -> Evidence:
        """Acknowledge fsync without keeping anything. Evidence when it ends: `lies` (fsyncs not kept)."""

    async def fill_disk(self, node: str, room_bytes: int) -> None:
        """Leave a disk `room_bytes` of room; a write that needs more fails with ENOSPC."""

    async def fail_syncs(self, node: str, failing_syncs: int) -> None:
        """Have so many of the next syncs of a disk fail with ENOSPC, and none of its writes."""

    async def free_disk(self, node: str) -> Evidence:
        """Give a disk its room back. Evidence: `refused_writes`, of writes and of syncs."""

    async def slow_disk(self, node: str, delay_ms: float) -> None:
        """Delay every write and every sync of a disk. Of several calls the latest holds."""

    async def restore_disk_speed(self, node: str) -> Evidence:
        """Undo `slow_disk`. Evidence: `delayed_operations`, `delayed_ms` in all."""

    async def set_clock(self, node: str, change: ClockChange) -> Evidence:
        """Change a node's clock. Evidence: `offset_ms` read back inside the node."""

    async def reset_clock(self, node: str) -> Evidence:
        """Let the clock run at its true rate again, keeping it monotonic, and put the wall clock right. Evidence:
        `offset_ms` before the reset."""
