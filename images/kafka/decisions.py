"""The decisions of Kafka's controllers, as the events of `images.trace` that its metadata logs hold.

Kafka writes no trace, but every decision is a record of its metadata log. What a majority of the voters holds when the
run ends was decided, in the order of the log: registrations and fences of brokers, blocks of producer ids, and every
change of a partition. Beside that each voter's batches are told as it holds them (`metadata_appended`), so that the
logs can be compared, and the elections of controllers (`quorum_leader`), by their records of a change of leader.

The reasons of a change are not in the records. Two are derived, as a controller does that takes over: within an
election no ISR grows, so a change that adds to one of which a member stays, or that completes a reassignment, is an
AlterPartition; and a replica that is elected when ISR and ELR are empty, being the only one that was in the ELR last,
is the last known leader. Whether a broker that registers had shut down cleanly is not in them either.

Where the longest log does not begin at offset 0, the oldest whole snapshot that reaches it is the beginning: the events
of its state, at its end, are those of brokers registered, and unfenced, of partitions changed (for the reason
`snapshot`) and of all producer ids below the next one. They are told of the node that has the snapshot; so is what was
decided before the next controller was elected, since the log does not name the one that led.

Times are those of the records, by the clock of the controller that led.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any, Final
from uuid import UUID

from images.kafka.metadata_log import MetadataBatch, MetadataSnapshot, VoterLog, committed, longest
from images.kafka.record_schemas import MetadataRecord, RecordSchemas
from images.system import RecordedEvent
from images.trace import TraceEvent
from images.wire.codec import Malformed

_NO_LEADER_CHANGE: Final = -2
_PRODUCER_IDS_PER_BLOCK: Final = 1000
_TOPIC_RESOURCE: Final = 2
_MIN_ISR: Final = "min.insync.replicas"


@dataclass(frozen=True, slots=True)
class _Partition:
    """A partition as decided last."""

    topic: str
    topic_id: str
    number: int
    leader: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[int, ...]
    elr: tuple[int, ...]
    last_known_elr: tuple[int, ...]
    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


def recorded_decisions(logs: Mapping[int, VoterLog], schemas: RecordSchemas) -> Iterator[RecordedEvent]:
    """The events of the metadata logs of all voters, by node id, batch by batch. Raises images.wire.codec.Malformed for
    a record that the schemas do not have, and for a log whose beginning is in no snapshot."""
    appended = [(held.offset, _appended(node, held)) for node, log in sorted(logs.items()) for held in log.batches]
    image, agreed = _Image(), committed(list(logs.values()))
    told: list[tuple[int, RecordedEvent]] = []
    begin, teller = 0, -1
    if start := longest(list(logs.values())).start:
        teller, snapshot = _beginning(logs, start)
        begin = snapshot.end
        for event in image.restore(schemas.decode(record) for record in snapshot.records):
            told.append((begin, RecordedEvent(snapshot.timestamp_ms, teller, event._replace(offset=begin))))
    told += _decided(image, agreed, schemas, begin, teller)
    latest_ms = 0
    for _, item in sorted([*appended, *told], key=itemgetter(0)):
        latest_ms = max(latest_ms, item.time_ms)  # clocks of controllers differ, and the order is that of the log
        yield item._replace(time_ms=latest_ms)


def _beginning(logs: Mapping[int, VoterLog], start: int) -> tuple[int, MetadataSnapshot]:
    """(node id, snapshot): the oldest whole snapshot that reaches a log which begins at `start`."""
    snapshots = [(snapshot.end, node, snapshot) for node, log in sorted(logs.items()) for snapshot in log.snapshots]
    reaching = [each for each in snapshots if each[0] >= start]
    if not reaching:
        raise Malformed(f"the longest begins at offset {start}, and no whole snapshot reaches that")
    _, node, snapshot = min(reaching, key=itemgetter(0))
    return node, snapshot


def _appended(node: int, held: MetadataBatch) -> RecordedEvent:
    epoch, detail = held.leader_epoch, {"crc": held.crc}
    event = TraceEvent("metadata_appended", leader_epoch=epoch, offset=held.offset, log_end=held.end, detail=detail)
    return RecordedEvent(held.timestamp_ms, node, event)


def _decided(
    image: _Image, batches: Iterable[MetadataBatch], schemas: RecordSchemas, begin: int, leader: int
) -> Iterator[tuple[int, RecordedEvent]]:
    """(offset of its batch, event) of each decision from offset `begin` on, by `leader` until another one begins."""
    for held in batches:
        if held.leader is not None:
            leader = held.leader
            elected = TraceEvent("quorum_leader", leader_epoch=held.leader_epoch, offset=held.offset)
            yield held.offset, RecordedEvent(held.timestamp_ms, leader, elected)
        for offset, record in held.records:
            if offset < begin:
                continue
            for event in image.events_of(schemas.decode(record)):
                yield held.offset, RecordedEvent(held.timestamp_ms, leader, event._replace(offset=offset + 1))


class _Image:
    """What was decided so far. A transaction takes effect when it ends."""

    def __init__(self) -> None:
        self._topics: dict[UUID, str] = {}
        self._partitions: dict[tuple[UUID, int], _Partition] = {}
        self._min_isr: dict[str, int] = {}
        self._registrations: dict[int, tuple[UUID, int]] = {}
        """Broker → its last incarnation, and the broker epoch that it got."""
        self._transaction: list[MetadataRecord] | None = None

    def restore(self, records: Iterable[MetadataRecord]) -> Iterator[TraceEvent]:
        """Takes in the records of a snapshot, and gives the events of the state that they make up. Brokers come last: a
        partition's last member stays in the ISR though it is fenced."""
        registered: list[Mapping[str, Any]] = []
        next_producer_id = 0
        for name, _, fields in records:
            for _ in self._apply(name, fields):
                pass
            if name == "RegisterBrokerRecord":
                registered.append(fields)
            elif name == "ProducerIdsRecord":
                next_producer_id = fields["NextProducerId"]
        for partition in self._partitions.values():
            yield self._partition_changed(partition, "snapshot")
        for fields in sorted(registered, key=itemgetter("BrokerEpoch")):
            yield _registered(fields)
            if not fields["Fenced"]:
                yield _fenced(fields["BrokerId"], fields["BrokerEpoch"], False)
        if next_producer_id:
            yield TraceEvent("producer_ids_allocated", detail={"first": 0, "count": next_producer_id})

    def events_of(self, record: MetadataRecord) -> Iterable[TraceEvent]:
        """The events of the next record; of a whole transaction at the record that ends it."""
        match record.name:
            case "BeginTransactionRecord":
                self._transaction = []
            case "AbortTransactionRecord":
                self._transaction = None
            case "EndTransactionRecord":
                records, self._transaction = self._transaction or [], None
                return [event for each in records for event in self._apply(each.name, each.fields)]
            case _ if self._transaction is not None:
                self._transaction.append(record)
            case _:
                return list(self._apply(record.name, record.fields))
        return ()

    def _apply(self, name: str, fields: Mapping[str, Any]) -> Iterator[TraceEvent]:
        match name:
            case "TopicRecord":
                self._topics[fields["TopicId"]] = fields["Name"]
            case "RemoveTopicRecord":
                # Its configuration goes with it, without records of that.
                self._min_isr.pop(self._topics.pop(fields["TopicId"], ""), None)
                for place in [place for place in self._partitions if place[0] == fields["TopicId"]]:
                    held = self._partitions.pop(place)
                    yield TraceEvent("partition_deleted", held.topic, held.number, topic_id=held.topic_id)
            case "ConfigRecord" if (fields["ResourceType"], fields["Name"]) == (_TOPIC_RESOURCE, _MIN_ISR):
                self._min_isr.pop(fields["ResourceName"], None)
                if fields["Value"] is not None:
                    self._min_isr[fields["ResourceName"]] = int(fields["Value"])
            case "RegisterBrokerRecord":
                broker, epoch, incarnation = fields["BrokerId"], fields["BrokerEpoch"], fields["IncarnationId"]
                # A broker that got no answer asks again, and keeps its epoch.
                if self._registrations.get(broker) != (incarnation, epoch):
                    yield _registered(fields)
                self._registrations[broker] = incarnation, epoch
            case "FenceBrokerRecord":
                yield _fenced(fields["Id"], fields["Epoch"], True)
            case "UnfenceBrokerRecord":
                yield _fenced(fields["Id"], fields["Epoch"], False)
            case "BrokerRegistrationChangeRecord" if fields["Fenced"]:
                yield _fenced(fields["BrokerId"], fields["BrokerEpoch"], fields["Fenced"] > 0)
            case "ProducerIdsRecord":
                first = fields["NextProducerId"] - _PRODUCER_IDS_PER_BLOCK
                block = {"first": first, "count": _PRODUCER_IDS_PER_BLOCK}
                broker, epoch = fields["BrokerId"], fields["BrokerEpoch"]
                yield TraceEvent("producer_ids_allocated", broker=broker, broker_epoch=epoch, detail=block)
            case "PartitionRecord":
                yield self._created(fields)
            case "PartitionChangeRecord":
                yield self._changed((fields["TopicId"], fields["PartitionId"]), fields)
            case "ClearElrRecord":
                cleared = {"EligibleLeaderReplicas": (), "LastKnownElr": ()}
                for place, held in self._partitions.items():
                    if fields["TopicName"] in ("", held.topic) and (held.elr or held.last_known_elr):
                        yield self._changed(place, cleared)

    def _created(self, fields: Mapping[str, Any]) -> TraceEvent:
        place = fields["TopicId"], fields["PartitionId"]
        after = self._partitions[place] = _Partition(
            self._topics[fields["TopicId"]],
            str(fields["TopicId"]),
            fields["PartitionId"],
            fields["Leader"],
            fields["LeaderEpoch"],
            fields["PartitionEpoch"],
            fields["Isr"],
            fields.get("EligibleLeaderReplicas") or (),
            fields.get("LastKnownElr") or (),
            fields["Replicas"],
            fields["AddingReplicas"],
            fields["RemovingReplicas"],
        )
        return self._partition_changed(after, "created")

    def _changed(self, place: tuple[UUID, int], fields: Mapping[str, Any]) -> TraceEvent:
        """A field that is absent or null leaves what it is about as it was."""
        before = self._partitions[place]

        def chosen(name: str, otherwise: tuple[int, ...]) -> tuple[int, ...]:
            value = fields.get(name)
            return otherwise if value is None else value

        leader = fields.get("Leader", _NO_LEADER_CHANGE)
        elects = leader != _NO_LEADER_CHANGE
        after = self._partitions[place] = replace(
            before,
            leader=leader if elects else before.leader,
            leader_epoch=before.leader_epoch + elects,
            partition_epoch=before.partition_epoch + 1,
            isr=chosen("Isr", before.isr),
            elr=chosen("EligibleLeaderReplicas", before.elr),
            last_known_elr=chosen("LastKnownElr", before.last_known_elr),
            replicas=chosen("Replicas", before.replicas),
            adding=chosen("AddingReplicas", before.adding),
            removing=chosen("RemovingReplicas", before.removing),
        )
        return self._partition_changed(after, _reason(before, after))

    def _partition_changed(self, partition: _Partition, reason: str) -> TraceEvent:
        detail: dict[str, object] = {
            "elr": list(partition.elr),
            "last_known_elr": list(partition.last_known_elr),
            "replicas": list(partition.replicas),
            "adding": list(partition.adding),
            "removing": list(partition.removing),
            "reason": reason,
        }
        if partition.topic in self._min_isr:
            detail["min_isr"] = self._min_isr[partition.topic]
        return TraceEvent(
            "partition_changed",
            topic=partition.topic,
            partition=partition.number,
            leader=partition.leader,
            leader_epoch=partition.leader_epoch,
            partition_epoch=partition.partition_epoch,
            members=partition.isr,
            detail=detail,
            topic_id=partition.topic_id,
        )


def _registered(fields: Mapping[str, Any]) -> TraceEvent:
    detail = {"incarnation": str(fields["IncarnationId"])}
    return TraceEvent("broker_registered", broker=fields["BrokerId"], broker_epoch=fields["BrokerEpoch"], detail=detail)


def _fenced(broker: int, epoch: int, fenced: bool) -> TraceEvent:
    return TraceEvent("broker_fenced" if fenced else "broker_unfenced", broker=broker, broker_epoch=epoch)


def _reason(before: _Partition, after: _Partition) -> str:
    """The reason of a change, as far as it shows (see the module's docstring)."""
    grown = set(after.isr) - set(before.isr)
    if grown and set(after.isr) & set(before.isr):
        return "alter_partition"
    completed = {*before.adding, *before.removing} - {*after.adding, *after.removing}
    if grown and completed and grown <= set(after.replicas):
        return "alter_partition"
    if grown and not (before.isr or before.elr) and before.last_known_elr == (after.leader,):
        return "last_known_leader"
    return "decided"
