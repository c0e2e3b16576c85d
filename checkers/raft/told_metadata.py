"""Promises about what brokers tell clients of the cluster, for `checkers.raft`, whose table has them.

A broker answers Metadata, DescribeTopicPartitions and FindCoordinator from the metadata that it has applied by then,
the last that its process has traced so. What that has, the changes up to there add up to
(`checkers.decided_metadata`):

- the brokers that are not fenced;
- of each topic its id and its partitions, each with leader, leader epoch, replicas in order of preference, ISR, the
  replicas on fenced brokers, perhaps ELR and LastKnownELR, and an error where nobody leads; of a topic that does not
  exist an error;
- as a group's coordinator the leader of the partition of `__consumer_offsets` to which its name hashes.

An answer may be older than others, as its broker may be behind: no other broker's metadata says anything about it. A
broker that was started answers nobody before it has applied metadata that has its own registration.

Blind spots: requests that name a topic by its id; answers about more than 1,000 topics, and those whose broker applied
newer metadata meanwhile; hosts and ports; topics of which the trace says nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from checkers.decided_metadata import (
    NO_LEADER,
    OF_BROKERS,
    OF_PARTITIONS,
    DecidedMetadata,
    DecidedPartition,
    MetadataReplay,
    changes_of,
    differences,
)
from checkers.fault_model import OFFSETS_TOPIC
from checkers.tables import TraceRow
from checkers.verdict import Finding

TOLD: Final = ("metadata_told", "coordinators_told")
_SHOWN_OF_AN_ANSWER: Final = 3
_NONE: Final = "none"


def told_findings(events: Iterable[TraceRow]) -> Iterator[Finding]:
    """Every answer among these events, in the order of the trace, that its broker's metadata contradicts. Topics are
    named as brokers name them."""
    decided, ids, answers = [], [], []
    applied: dict[str, int | None] = {}
    """By broker; None in a process that has applied nothing yet."""
    for event in events:
        if event.kind in TOLD and applied.get(event.node, 0) is None:
            did = f"{event.node} told a client of the cluster {event.at} ({event.kind})"
            unready = "since it was started it had applied no metadata: it served clients before it could know anything"
            yield Finding("metadata-told-early", (did, unready), time_ns=event.time_ns)
        if event.kind == "node_started":
            applied[event.node] = None
        elif event.kind == "metadata_applied":
            applied[event.node] = event.log_end
        elif event.kind in TOLD:
            answers.append((applied.get(event.node), event))
        elif event.kind == "topic_configured":
            ids.append(event)
        elif event.kind in OF_BROKERS + OF_PARTITIONS and event.offset >= 0:
            decided.append(event)
    known = [(end, event) for end, event in answers if end is not None]
    replay, topics = _KnownMetadata(decided, ids), {event.topic for event in decided} - {""}
    for end, event in sorted(known, key=lambda each: each[0]):
        replay.read_to(end)
        lines = list(replay.contradictions(event, topics))
        if lines:
            did = f"{event.node} told a client of the cluster {event.at}, with the metadata up to {end} ({event.kind})"
            yield Finding("metadata-misstated", (did, *lines[:_SHOWN_OF_AN_ANSWER]), time_ns=event.time_ns)


class _KnownMetadata:
    """The metadata, with the ids of topics, as far as it is read."""

    def __init__(self, decided: Iterable[TraceRow], ids: Iterable[TraceRow]) -> None:
        self._replay = MetadataReplay(changes_of(decided))
        self._ids = sorted(ids, key=lambda each: each.offset, reverse=True)
        self._id_of: dict[str, str] = {}

    def read_to(self, end: int) -> None:
        """Take in the changes that end at `end` or before."""
        self._replay.read_to(end)
        while self._ids and self._ids[-1].offset <= end:
            detail = self._ids.pop().details()
            self._id_of[detail["name"]] = detail["id"]

    def contradictions(self, event: TraceRow, topics: set[str]) -> Iterator[str]:
        """How an answer differs from this metadata, which says something of `topics`."""
        metadata, detail = self._replay.metadata, event.details()
        if event.kind == "coordinators_told":
            for group, answer in detail["groups"].items():
                yield from _of_coordinator(metadata, group, answer)
            return
        unfenced = sorted(broker for broker, state in metadata.brokers.items() if not state.fenced)
        if detail.get("brokers", unfenced) != unfenced:
            yield f"brokers {detail['brokers']}, and unfenced are {unfenced}"
        partitions: dict[str, dict[int, DecidedPartition]] = {name: {} for name in topics}
        partitions |= _by_topic(metadata)
        told = {name: answer for name, *answer in detail["topics"]}
        asked = [name for name, has in partitions.items() if has] if detail["asked"] is None else detail["asked"]
        for name in sorted(partitions.keys() & {*asked, *told}):
            if name not in told:
                yield f"nothing of {name}"
            else:
                yield from (f"{name}: {line}" for line in self._of_topic(name, partitions[name], told[name]))

    def _of_topic(self, name: str, decided: Mapping[int, DecidedPartition], answer: list[Any]) -> Iterator[str]:
        error, topic_id, partitions = answer
        exists = error == _NONE
        if exists != bool(decided):
            yield f"error {error}, and it {'exists' if decided else 'does not exist'}"
            return
        if exists and topic_id != self._id_of.get(name, topic_id):
            yield f"id {topic_id}, and it has {self._id_of[name]}"
        told = {each["partition"]: each for each in partitions}
        if sorted(told) != sorted(decided):
            yield f"partitions {sorted(told)}, and it has {sorted(decided)}"
        for number in sorted(told.keys() & decided.keys()):
            facts = _facts(self._replay.metadata, decided[number])
            yield from (f"partition {number}: {line}" for line in differences(facts, told[number]))


def _by_topic(metadata: DecidedMetadata) -> dict[str, dict[int, DecidedPartition]]:
    topics: dict[str, dict[int, DecidedPartition]] = {}
    for (topic, number), partition in metadata.partitions.items():
        topics.setdefault(topic, {})[number] = partition
    return topics


def _facts(metadata: DecidedMetadata, partition: DecidedPartition) -> dict[str, object]:
    offline = (each for each in partition.replicas if each not in metadata.brokers or metadata.brokers[each].fenced)
    error = _NONE if partition.leader != NO_LEADER else "leader_not_available"
    return {"error": error, **partition.facts(), "offline": sorted(offline)}


def _of_coordinator(metadata: DecidedMetadata, group: str, answer: list[Any]) -> Iterator[str]:
    broker, error = answer
    partitions = _by_topic(metadata).get(OFFSETS_TOPIC)
    number = _hash(group) % len(partitions) if partitions else -1
    if partitions and number not in partitions:  # the trace lacks some of them
        return
    leader = partitions[number].leader if partitions else NO_LEADER
    expected = [leader, _NONE if leader != NO_LEADER else "coordinator_not_available"]
    if [broker, error] != expected:
        where = f"the leader of {OFFSETS_TOPIC}-{number}" if partitions else f"there is no {OFFSETS_TOPIC}"
        yield f"b{broker}, error {error}, as coordinator of {group}, and it is b{leader}, error {expected[1]}: {where}"


def _hash(group: str) -> int:
    """Java's hash of a string without its sign, by which Kafka distributes groups."""
    code, units = 0, group.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(units), 2):
        code = (31 * code + int.from_bytes(units[at : at + 2])) & 0xFFFFFFFF
    return code & 0x7FFFFFFF
