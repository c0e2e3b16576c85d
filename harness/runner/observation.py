"""Sources of the situation that the conditions of a schedule are checked against (`nemesis.situation`).

In simulation every trace event changes it at once. Elsewhere brokers are polled for their metadata every `POLL_S`: a
condition is seen up to that much later, plus the time of the answers, and what begins and ends between two polls is
missed. The first poll comes before the clients begin: what it shows has not occurred, it was there before. Metadata
shows leaders, ISR, ELR, the brokers that are not fenced, the active controller, and the high watermark of each leader.
Restarts and acknowledged appends are the harness's own doing, and known at once everywhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from images.trace import TraceEvent
from nemesis.ports import ClusterUnderTest
from nemesis.situation import Occurrence, Situation
from nemesis.wholeness import Wholeness

POLL_S: Final = 0.2


class TraceSource:
    """Keeps a situation up to date from the trace of a whole cluster."""

    def __init__(self, situation: Situation, names: Mapping[int, str], topic: str) -> None:
        """`names` by node id."""
        self._situation = situation
        self._names = names
        self._topic = topic
        self._handlers: Mapping[str, Callable[[str, TraceEvent], None]] = {
            "partition_changed": self._partition_changed,
            "high_watermark": self._high_watermark,
            "follower_high_watermark": self._high_watermark,
            "appended": self._log_end,
            "log_recovered": self._recovered,
            "truncated": self._truncated,
            "resigned": self._replica(Occurrence.RESIGNED),
            "replica_deleted": self._deleted,
            "log_start_written": self._replica(Occurrence.LOG_START_MOVED),
            "isr_proposed": self._isr_proposed,
            "isr_committed": self._isr_resolved,
            "isr_rejected": self._isr_resolved,
            "broker_registered": self._broker(Occurrence.REGISTERED),
            "broker_fenced": self._broker(Occurrence.FENCED),
            "broker_unfenced": self._broker(Occurrence.UNFENCED),
            "quorum_leader": lambda node, event: self._situation.occurred(Occurrence.CONTROLLER_ELECTED, node),
        }

    def take(self, node: str, event: TraceEvent) -> None:
        """Take in one event, in the order of the whole cluster."""
        handler = self._handlers.get(event.kind)
        if handler is not None and event.topic in ("", self._topic):
            handler(node, event)
        if self._situation.watched.get(event.kind):
            self._situation.occurred(Occurrence.TRACED, node, event.partition, event.kind)

    def _partition_changed(self, node: str, event: TraceEvent) -> None:
        state = self._situation.partition(event.partition)
        leader = self._names.get(event.leader)
        change = leader != state.leader
        self._situation.isr_changed(event.partition, _nodes(event.members, self._names))
        state.known = True
        state.leader = leader
        state.elr = _nodes(event.detail.get("elr"), self._names)
        if change and leader is not None:
            self._situation.occurred(Occurrence.ELECTED, leader, event.partition)
        else:
            self._situation.changed()

    def _isr_proposed(self, node: str, event: TraceEvent) -> None:
        self._situation.partition(event.partition).proposed_isr = _nodes(event.members, self._names)
        self._situation.changed()

    def _isr_resolved(self, node: str, event: TraceEvent) -> None:
        self._situation.partition(event.partition).proposed_isr = ()
        self._situation.changed()

    def _high_watermark(self, node: str, event: TraceEvent) -> None:
        state = self._situation.partition(event.partition)
        state.high_watermarks[node] = event.high_watermark
        state.high_watermark = max(state.high_watermark, event.high_watermark)
        self._situation.changed()

    def _log_end(self, node: str, event: TraceEvent) -> None:
        self._situation.partition(event.partition).log_ends[node] = event.log_end
        self._situation.changed()

    def _recovered(self, node: str, event: TraceEvent) -> None:
        """The log as its broker finds it, with the high watermark of the checkpoint."""
        self._situation.partition(event.partition).high_watermarks[node] = event.high_watermark
        self._log_end(node, event)

    def _deleted(self, node: str, event: TraceEvent) -> None:
        self._situation.replica_lost(event.partition, node)
        self._situation.occurred(Occurrence.REPLICA_DELETED, node, event.partition)

    def _truncated(self, node: str, event: TraceEvent) -> None:
        self._situation.partition(event.partition).log_ends[node] = event.offset
        self._situation.occurred(Occurrence.TRUNCATED, node, event.partition)

    def _replica(self, kind: Occurrence) -> Callable[[str, TraceEvent], None]:
        return lambda node, event: self._situation.occurred(kind, node, event.partition)

    def _broker(self, kind: Occurrence) -> Callable[[str, TraceEvent], None]:
        def occurred(node: str, event: TraceEvent) -> None:
            broker = self._names.get(event.broker)
            if broker is not None:
                self._situation.occurred(kind, broker)

        return occurred


class WholenessSource:
    """Keeps up to date, from the trace of a whole cluster, which brokers are whole."""

    def __init__(self, wholeness: Wholeness, names: Mapping[int, str], topic: str) -> None:
        """`names` by node id; of topics beside `topic` only those count that the system keeps for itself."""
        self._wholeness = wholeness
        self._names = names
        self._topic = topic

    def take(self, node: str, event: TraceEvent) -> None:
        """Take in one event, in the order of the whole cluster."""
        kind = event.kind
        if event.topic not in ("", self._topic) and not event.topic.startswith("__"):
            return
        if kind == "appended":
            self._wholeness.log_ends(node, (event.topic, event.partition), event.log_end)
        elif kind == "truncated":
            self._wholeness.log_ends(node, (event.topic, event.partition), event.offset)
        elif kind == "log_recovered":
            self._wholeness.recovered(node, (event.topic, event.partition), event.log_end)
        elif kind == "partition_changed":
            replicas = _nodes(event.detail.get("replicas"), self._names)
            isr = _nodes(event.members, self._names)
            self._wholeness.decided((event.topic, event.partition), replicas, isr)
        elif kind == "broker_registered" and not event.detail.get("taken_over"):
            self._wholeness.registered(self._names.get(event.broker, ""))


class MetadataSource:
    """Keeps a situation up to date from what brokers answer."""

    def __init__(self, situation: Situation, cluster: ClusterUnderTest, topic: str) -> None:
        self._situation = situation
        self._cluster = cluster
        self._topic = topic
        self._brokers: frozenset[str] | None = None
        self._controller: str | None = None

    async def run(self) -> None:
        """Poll until cancelled."""
        while True:
            await self.poll()
            await asyncio.sleep(POLL_S)

    async def poll(self) -> None:
        """Ask once."""
        view = await self._cluster.admin.describe(self._topic)
        if view is not None:
            self._compare_brokers(frozenset(view.brokers))
            for number, partition in sorted(view.partitions.items()):
                state = self._situation.partition(number)
                change = state.known and partition.leader != state.leader
                self._situation.isr_changed(number, partition.isr)
                state.known = True
                state.leader, state.elr = partition.leader, partition.elr
                if change and partition.leader is not None:
                    self._situation.occurred(Occurrence.ELECTED, partition.leader, number)
                offsets = await self._cluster.admin.offsets(self._topic, number)
                if offsets is not None:
                    state.high_watermark = max(state.high_watermark, offsets[1])
        controller = await self._cluster.controller()
        if controller is not None and controller != self._controller:
            before, self._controller = self._controller, controller
            if before is not None:
                self._situation.occurred(Occurrence.CONTROLLER_ELECTED, controller)
        self._situation.changed()

    def _compare_brokers(self, unfenced: frozenset[str]) -> None:
        """Metadata shows the brokers that are not fenced; one that comes back may have registered anew."""
        before, self._brokers = self._brokers, unfenced
        if before is None:
            return
        for broker in sorted(before - unfenced):
            self._situation.occurred(Occurrence.FENCED, broker)
        for broker in sorted(unfenced - before):
            self._situation.occurred(Occurrence.REGISTERED, broker)
            self._situation.occurred(Occurrence.UNFENCED, broker)


def _nodes(ids: object, names: Mapping[int, str]) -> tuple[str, ...]:
    """The names of the nodes that an event lists by their ids."""
    numbers = ids if isinstance(ids, list | tuple) else ()
    return tuple(names[number] for number in numbers if number in names)
