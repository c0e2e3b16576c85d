"""Kafka's metadata records are decoded by schemas in Kafka's form, and tell of the decisions of its controllers."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.cluster.systems import SYSTEMS
from images.kafka.decisions import recorded_decisions
from images.kafka.metadata_log import (
    MetadataBatch,
    MetadataSnapshot,
    VoterLog,
    committed,
    read_metadata_log,
    read_snapshots,
)
from images.kafka.record_schemas import RecordSchemas
from images.trace import TraceEvent
from images.wire import batch
from images.wire.codec import Malformed, encode_varint

EVERY_TYPE = """{
  // A record with every type that Kafka's schemas have.
  "apiKey": 40, "type": "metadata", "name": "EveryRecord", "validVersions": "0-2", "flexibleVersions": "0+",
  "fields": [
    { "name": "Flag", "type": "bool", "versions": "0+", "about": "not // a comment" },
    { "name": "Small", "type": "int8", "versions": "0+" },
    { "name": "Short", "type": "int16", "versions": "0+" },
    { "name": "Port", "type": "uint16", "versions": "0+" },
    { "name": "Int", "type": "int32", "versions": "0+" },
    { "name": "Long", "type": "int64", "versions": "1+", "default": "-1" }, // since version 1
    { "name": "Share", "type": "float64", "versions": "0+" },
    { "name": "Id", "type": "uuid", "versions": "0+" },
    { "name": "Text", "type": "string", "versions": "0+", "nullableVersions": "0+" },
    { "name": "Raw", "type": "bytes", "versions": "0+" },
    { "name": "Numbers", "type": "[]int32", "versions": "0+", "nullableVersions": "0+" },
    { "name": "Parts", "type": "[]Part", "versions": "0+", "fields": [
      { "name": "Name", "type": "string", "versions": "0+" },
      { "name": "Level", "type": "int16", "versions": "2+", "taggedVersions": "2+", "tag": 0, "default": "7" }
    ]},
    { "name": "Late", "type": "[]int32", "versions": "1+", "taggedVersions": "1+", "tag": 3, "default": "null",
      "nullableVersions": "1+" }
  ]
}"""
TOPIC, PARTITION, CHANGE, CONFIG, REGISTRATION, FENCING, IDS, CLEARING, BEGIN, ABORT, END, REMOVAL = range(1, 13)
ISR = {"type": "[]int32", "versions": "0+"}
TAGGED = {"versions": "0+", "taggedVersions": "0+", "nullableVersions": "0+", "default": "null"}
INT, LONG, ID, TEXT = ({"type": kind, "versions": "0+"} for kind in ("int32", "int64", "uuid", "string"))
RECORDS: Mapping[int, tuple[str, Mapping[str, Mapping[str, Any]]]] = {
    TOPIC: ("TopicRecord", {"Name": TEXT, "TopicId": ID}),
    PARTITION: (
        "PartitionRecord",
        {
            "PartitionId": INT,
            "TopicId": ID,
            "Replicas": ISR,
            "Isr": ISR,
            "RemovingReplicas": ISR,
            "AddingReplicas": ISR,
            "Leader": INT,
            "LeaderEpoch": INT,
            "PartitionEpoch": INT,
            "EligibleLeaderReplicas": {"type": "[]int32", **TAGGED, "tag": 1},
        },
    ),
    CHANGE: (
        "PartitionChangeRecord",
        {
            "PartitionId": INT,
            "TopicId": ID,
            "Isr": {"type": "[]int32", **TAGGED, "tag": 0},
            "Leader": {"type": "int32", **TAGGED, "tag": 1, "default": "-2"},
            "Replicas": {"type": "[]int32", **TAGGED, "tag": 2},
            "RemovingReplicas": {"type": "[]int32", **TAGGED, "tag": 3},
            "AddingReplicas": {"type": "[]int32", **TAGGED, "tag": 4},
            "EligibleLeaderReplicas": {"type": "[]int32", **TAGGED, "tag": 6},
            "LastKnownElr": {"type": "[]int32", **TAGGED, "tag": 7},
        },
    ),
    CONFIG: (
        "ConfigRecord",
        {"ResourceType": {"type": "int8", "versions": "0+"}, "ResourceName": TEXT, "Name": TEXT, "Value": TEXT},
    ),
    REGISTRATION: (
        "RegisterBrokerRecord",
        {"BrokerId": INT, "IncarnationId": ID, "BrokerEpoch": LONG, "Fenced": {"type": "bool", "versions": "0+"}},
    ),
    FENCING: (
        "BrokerRegistrationChangeRecord",
        {"BrokerId": INT, "BrokerEpoch": LONG, "Fenced": {"type": "int8", "versions": "0+"}},
    ),
    IDS: ("ProducerIdsRecord", {"BrokerId": INT, "BrokerEpoch": LONG, "NextProducerId": LONG}),
    CLEARING: ("ClearElrRecord", {"TopicName": TEXT}),
    BEGIN: ("BeginTransactionRecord", {"Name": TEXT}),
    ABORT: ("AbortTransactionRecord", {"Reason": TEXT}),
    END: ("EndTransactionRecord", {}),
    REMOVAL: ("RemoveTopicRecord", {"TopicId": ID}),
}
"""The fields of Kafka's records that the decisions rest on, by a number of the tests' own."""
SCHEMAS = RecordSchemas(
    json.dumps(
        {
            "apiKey": number,
            "type": "metadata",
            "name": name,
            "validVersions": "0",
            "fields": [{"name": each, **field} for each, field in fields.items()],
        }
    )
    for number, (name, fields) in RECORDS.items()
)
A = UUID(int=1)
Number = {"bool": ">?", "int8": ">b", "int16": ">h", "uint16": ">H", "int32": ">i", "int64": ">q", "float64": ">d"}


def encoded_value(kind: str, value: Any, fields: Sequence[Mapping[str, Any]] = (), version: int = 0) -> bytes:
    if kind.startswith("[]"):
        if value is None:
            return encode_varint(0)
        return encode_varint(len(value) + 1) + b"".join(encoded_value(kind[2:], x, fields, version) for x in value)
    if kind in Number:
        return struct.pack(Number[kind], value)
    if kind == "uuid":
        return bytes(value.bytes)
    if kind in ("string", "bytes"):
        data = value.encode() if isinstance(value, str) else value
        return encode_varint(0) if data is None else encode_varint(len(data) + 1) + data
    return encoded_fields(fields, value, version)


def encoded_fields(fields: Sequence[Mapping[str, Any]], values: Mapping[str, Any], version: int) -> bytes:
    plain, tagged = b"", []
    for field in fields:
        name = field["name"]
        if version < int(field["versions"][0]):
            continue
        if "tag" not in field:
            plain += encoded_value(field["type"], values[name], field.get("fields", ()), version)
        elif name in values:
            tagged.append((field["tag"], encoded_value(field["type"], values[name])))
    tags = b"".join(encode_varint(tag) + encode_varint(len(data)) + data for tag, data in tagged)
    return plain + encode_varint(len(tagged)) + tags


def record(number: int, **values: Any) -> bytes:
    fields = [{"name": name, **field} for name, field in RECORDS[number][1].items()]
    return b"".join(map(encode_varint, (1, number, 0))) + encoded_fields(fields, values, 0)


@given(
    version=st.integers(0, 2),
    numbers=st.none() | st.lists(st.integers(-(1 << 31), (1 << 31) - 1), max_size=200).map(tuple),
    text=st.none() | st.text(max_size=200),
    level=st.none() | st.integers(-(1 << 15), (1 << 15) - 1),
    late=st.none() | st.just((1, 2)),
    unknown=st.booleans(),
)
def test_a_record_is_decoded_as_it_was_encoded(
    version: int,
    numbers: tuple[int, ...] | None,
    text: str | None,
    level: int | None,
    late: tuple[int, ...] | None,
    unknown: bool,
) -> None:
    schemas = RecordSchemas([EVERY_TYPE, '{"type": "request", "name": "Other"}'])
    lines = "\n".join(line.split("//")[0] if "about" not in line else line for line in EVERY_TYPE.splitlines())
    fields = json.loads(lines)["fields"]
    values: dict[str, Any] = {
        "Flag": True,
        "Small": -8,
        "Short": -300,
        "Port": 65_000,
        "Int": -5,
        "Long": 1 << 40,
        "Share": 0.5,
        "Id": UUID(int=77),
        "Text": text,
        "Raw": b"\x00\xff",
        "Numbers": numbers,
        "Parts": ({"Name": "a"} | ({} if level is None else {"Level": level}), {"Name": "b"}),
    } | ({} if late is None else {"Late": late})
    body = encoded_fields(fields, values, version)
    if unknown:  # a tagged field of a later release
        body = encoded_fields(
            [*fields, {"name": "New", "type": "int64", "versions": "0+", "tag": 9}], {**values, "New": 5}, version
        )
    decoded = schemas.decode(b"".join(map(encode_varint, (1, 40, version))) + body)
    assert (decoded.name, decoded.version) == ("EveryRecord", version)
    levels = [7 if level is None or version < 2 else level, 7]
    parts = tuple({"Name": name, "Level": each} for name, each in zip("ab", levels, strict=True))
    expected = {**values, "Parts": parts, "Late": late if version >= 1 else None}
    assert decoded.fields == expected | ({} if version >= 1 else {"Long": -1})


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x01\x63\x00", "record 99 in version 0 of frame version 1 is unknown to this release"),
        (record(TOPIC, Name="t", TopicId=A)[:-1], "a varint does not end"),
        (record(TOPIC, Name="t", TopicId=A) + b"x", "TopicRecord in version 0: 1 bytes are left over"),
        (b"\x01\x01\x00\x7f", "126 bytes from 4 on are more than the record has"),
        (b"\x01\x01\x05", "TopicRecord in version 5 of frame version 1 is unknown to this release"),
    ],
)
def test_a_record_that_the_release_cannot_have_written_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(Malformed, match=reason):
        SCHEMAS.decode(data)


def held(offset: int, *records: bytes, epoch: int = 1, leader: int | None = None, crc: int = 0) -> MetadataBatch:
    numbered = tuple((offset + number, data) for number, data in enumerate(records))
    return MetadataBatch(offset, offset + max(1, len(records)), epoch, crc, 1_000 + offset, leader, numbered)


def registration(broker: int, epoch: int, *, fenced: bool = True) -> bytes:
    return record(REGISTRATION, BrokerId=broker, IncarnationId=UUID(int=broker), BrokerEpoch=epoch, Fenced=fenced)


CREATED = (
    record(TOPIC, Name="t", TopicId=A),
    record(
        PARTITION,
        PartitionId=0,
        TopicId=A,
        Replicas=(1, 2, 3),
        Isr=(1, 2, 3),
        RemovingReplicas=(),
        AddingReplicas=(),
        Leader=1,
        LeaderEpoch=0,
        PartitionEpoch=0,
    ),
)


def change(**fields: Any) -> bytes:
    return record(CHANGE, PartitionId=0, TopicId=A, **fields)


def decided(*records: bytes) -> list[TraceEvent]:
    """The events of three controllers that all hold these records, without those of each log."""
    log = [held(0, leader=2), held(1, *records)]
    events = recorded_decisions(dict.fromkeys((1, 2, 3), VoterLog(log)), SCHEMAS)
    return [item.event for item in events if item.event.kind not in ("metadata_appended", "quorum_leader")]


def changes(*records: bytes) -> list[TraceEvent]:
    return [event for event in decided(*CREATED, *records) if event.kind == "partition_changed"][1:]


def test_changes_of_a_partition_build_on_each_other() -> None:
    shrunk, elected, cleared = changes(
        change(Isr=(1,), EligibleLeaderReplicas=(2,)),
        change(Isr=(2,), Leader=2, EligibleLeaderReplicas=(), LastKnownElr=(1,)),
        record(CLEARING, TopicName="t"),
    )
    assert (shrunk.leader, shrunk.leader_epoch, shrunk.partition_epoch, shrunk.members) == (1, 0, 1, (1,))
    assert (shrunk.detail["elr"], shrunk.detail["replicas"]) == ([2], [1, 2, 3])
    assert (elected.leader, elected.leader_epoch, elected.partition_epoch, elected.members) == (2, 1, 2, (2,))
    assert elected.detail["last_known_elr"] == [1]
    assert (cleared.partition_epoch, cleared.leader_epoch, cleared.detail["last_known_elr"]) == (3, 1, [])
    assert [shrunk.offset, elected.offset, cleared.offset] == [4, 5, 6], "where the log ends with the change"


def test_a_partition_ends_with_its_topic() -> None:
    created, deleted = decided(*CREATED, record(REMOVAL, TopicId=A))
    place = (created.topic, created.partition, created.topic_id)
    assert (deleted.kind, deleted.topic, deleted.partition, deleted.topic_id) == ("partition_deleted", *place)
    assert (created.topic_id, deleted.offset) == (str(A), 4)


def test_a_topic_takes_its_configuration_with_it() -> None:
    minimum = record(CONFIG, ResourceType=2, ResourceName="t", Name="min.insync.replicas", Value="3")
    first, _, second = decided(minimum, *CREATED, record(REMOVAL, TopicId=A), *CREATED)
    assert (first.detail["min_isr"], "min_isr" in second.detail) == (3, False)


@pytest.mark.parametrize(
    ("records", "reason"),
    [
        ((change(Isr=(1,)), change(Isr=(1, 2))), "alter_partition"),
        ((change(Isr=(1, 2)), change(Isr=(2,), Leader=2)), "decided"),
        ((change(Isr=(), Leader=-1, LastKnownElr=(3,)), change(Isr=(3,), Leader=3)), "last_known_leader"),
        ((change(Isr=(1,)), change(Isr=(3,), Leader=3)), "decided"),
        (
            (
                change(Isr=(1,), AddingReplicas=(4,), Replicas=(1, 4)),
                change(Isr=(4,), Replicas=(4,), AddingReplicas=(), Leader=4),
            ),
            "alter_partition",
        ),
        (
            (
                change(Isr=(1,), RemovingReplicas=(1,), Replicas=(2, 1)),
                change(Isr=(2,), Replicas=(2,), RemovingReplicas=(), Leader=2),
            ),
            "alter_partition",
        ),
    ],
)
def test_the_reason_of_a_change_is_derived_as_far_as_it_shows(records: tuple[bytes, ...], reason: str) -> None:
    assert changes(*records)[-1].detail["reason"] == reason


def test_brokers_producer_ids_and_settings_are_told() -> None:
    events = decided(
        registration(1, 3),
        registration(1, 3),  # once more, unanswered
        record(FENCING, BrokerId=1, BrokerEpoch=3, Fenced=-1),
        record(FENCING, BrokerId=1, BrokerEpoch=3, Fenced=0),
        record(FENCING, BrokerId=1, BrokerEpoch=3, Fenced=1),
        record(IDS, BrokerId=1, BrokerEpoch=3, NextProducerId=4000),
        record(CONFIG, ResourceType=2, ResourceName="t", Name="min.insync.replicas", Value="3"),
        *CREATED,
    )
    assert [event.kind for event in events] == [
        "broker_registered",
        "broker_unfenced",
        "broker_fenced",
        "producer_ids_allocated",
        "partition_changed",
    ]
    assert events[3].detail == {"first": 3000, "count": 1000}
    assert events[4].detail["min_isr"] == 3


def test_a_transaction_takes_effect_when_it_ends_and_never_when_it_is_aborted() -> None:
    begin = record(BEGIN, Name="x")
    ended = changes(begin, change(Isr=(1,)), record(END))
    assert [event.members for event in ended] == [(1,)]
    assert changes(begin, change(Isr=(1,)), record(ABORT, Reason="no")) == []


def agreed(*logs: Sequence[MetadataBatch]) -> list[MetadataBatch]:
    return committed([VoterLog(log) for log in logs])


def test_only_a_majority_decides() -> None:
    first, second = held(0, CREATED[0], leader=None), held(1, CREATED[1])
    alone = held(2, change(Isr=(1,)), epoch=2)
    assert agreed([first, second, alone], [first, second], [first]) == [first, second]
    other = second._replace(crc=9)
    assert agreed([first, second, alone], [first, other], [first, other]) == [first]
    assert agreed([], [], []) == []


def test_a_snapshot_stands_for_what_it_took_the_place_of() -> None:
    whole = [held(0, CREATED[0]), held(1, CREATED[1]), held(2, change(Isr=(1,)))]
    covering, short = MetadataSnapshot(2, 1, 0, ()), MetadataSnapshot(1, 1, 0, ())
    assert committed([VoterLog(whole), VoterLog(whole[2:], [covering]), VoterLog([])]) == whole
    assert committed([VoterLog(whole), VoterLog(whole[2:], [short]), VoterLog([])]) == whole[:1]
    assert committed([VoterLog(whole), VoterLog([], [covering]), VoterLog([])]) == whole[:2]
    assert committed([VoterLog(whole), VoterLog(whole[:1], [covering]), VoterLog([])]) == whole[:2], "just fetched"
    assert committed([VoterLog(whole), VoterLog(whole[:1]), VoterLog([])]) == whole[:1]


def test_every_log_and_every_leader_is_told_with_its_node() -> None:
    log = [held(0, leader=2), held(1, *CREATED, epoch=1, crc=5)]
    items = list(recorded_decisions({1: VoterLog(log), 2: VoterLog(log[:1])}, SCHEMAS))
    appended = [(item.node_id, item.event.offset) for item in items if item.event.kind == "metadata_appended"]
    assert appended == [(1, 0), (2, 0), (1, 1)]
    assert [item.node_id for item in items if item.event.kind == "quorum_leader"] == [2]
    assert items[0].event.kind == "metadata_appended", "no log was trimmed"


def test_a_log_that_was_trimmed_begins_with_the_oldest_snapshot_that_reaches_it() -> None:
    records = [
        *CREATED,
        registration(1, 3),
        registration(2, 4),
        record(FENCING, BrokerId=1, BrokerEpoch=3, Fenced=-1),
        record(CONFIG, ResourceType=2, ResourceName="t", Name="min.insync.replicas", Value="3"),
        record(IDS, BrokerId=1, BrokerEpoch=3, NextProducerId=4000),
        change(Isr=(1,), Leader=1, EligibleLeaderReplicas=(2,)),
    ]
    later = [change(Isr=(2, 1), Leader=2), record(IDS, BrokerId=2, BrokerEpoch=4, NextProducerId=5000)]
    whole = [held(0, leader=3), held(1, *records), held(9, later[0]), held(10, later[1])]
    of_partition = {"PartitionId": 0, "TopicId": A, "Replicas": (1, 2, 3), "RemovingReplicas": (), "AddingReplicas": ()}
    elected = {"Leader": 1, "LeaderEpoch": 1, "PartitionEpoch": 1, "Isr": (1,), "EligibleLeaderReplicas": (2,)}
    state = (
        CREATED[0],
        record(PARTITION, **of_partition, **elected),
        registration(2, 4),
        registration(1, 3, fenced=False),
        records[5],
        record(IDS, BrokerId=-1, BrokerEpoch=-1, NextProducerId=4000),
    )
    oldest, newest = MetadataSnapshot(9, 1, 1_001, state), MetadataSnapshot(10, 1, 1_009, ())
    useless = MetadataSnapshot(1, 1, 1_000, ())
    trimmed = {1: VoterLog(whole[2:], [newest]), 2: VoterLog(whole[2:], [useless, oldest]), 3: VoterLog(whole)}
    told = [item for item in recorded_decisions(trimmed, SCHEMAS) if item.event.kind != "metadata_appended"]
    assert told[0].event.kind == "quorum_leader", "the log of one voter is whole"

    del trimmed[3]
    told = [item for item in recorded_decisions(trimmed, SCHEMAS) if item.event.kind != "metadata_appended"]
    assert [(item.node_id, item.event.kind, item.event.offset) for item in told] == [
        (2, "partition_changed", 9),
        (2, "broker_registered", 9),
        (2, "broker_unfenced", 9),
        (2, "broker_registered", 9),
        (2, "producer_ids_allocated", 9),
        (2, "partition_changed", 10),
        (2, "producer_ids_allocated", 11),
    ]
    restored, changed = (item.event for item in told if item.event.kind == "partition_changed")
    assert (restored.leader, restored.leader_epoch, restored.partition_epoch, restored.members) == (1, 1, 1, (1,))
    assert (restored.detail["elr"], restored.detail["min_isr"], restored.detail["reason"]) == ([2], 3, "snapshot")
    assert (changed.leader, changed.leader_epoch, changed.partition_epoch, changed.members) == (2, 2, 2, (2, 1))
    assert changed.detail["min_isr"] == 3
    assert [item.event.broker_epoch for item in told if item.event.kind == "broker_registered"] == [3, 4]
    blocks = [item.event.detail for item in told if item.event.kind == "producer_ids_allocated"]
    assert blocks == [{"first": 0, "count": 4000}, {"first": 4000, "count": 1000}]
    with pytest.raises(Malformed, match="the longest begins at offset 9, and no whole snapshot reaches that"):
        list(recorded_decisions({1: VoterLog(whole[2:], [useless])}, SCHEMAS))


def test_events_come_in_the_order_of_the_log_at_times_that_never_fall() -> None:
    behind = held(1, *CREATED)._replace(timestamp_ms=400)
    items = list(recorded_decisions({1: VoterLog([held(0, leader=1), behind])}, SCHEMAS))
    assert [item.time_ms for item in items] == [1_000] * 4
    assert [item.event.kind for item in items][-2:] == ["metadata_appended", "partition_changed"]


def test_a_log_is_read_up_to_its_torn_end(tmp_path: Path) -> None:
    directory = tmp_path / "data" / "__cluster_metadata-0"
    directory.mkdir(parents=True)
    whole = [
        batch.build([data], timestamp_ms=1, base_offset=offset, leader_epoch=4)
        for offset, data in enumerate((*CREATED, change(Isr=(1,))))
    ]
    (directory / f"{0:020}.log").write_bytes(b"".join(whole)[:-3])
    (directory / f"{9:020}.log").write_bytes(whole[0])
    log = read_metadata_log(tmp_path / "data")
    assert [(each.offset, each.end, each.leader_epoch, each.leader) for each in log] == [
        (0, 1, 4, None),
        (1, 2, 4, None),
    ]
    assert log[0].records == ((0, CREATED[0]),)
    assert read_metadata_log(tmp_path / "elsewhere") == []


def control(offset: int, kind: int, value: bytes) -> bytes:
    """A batch with one control record, as `images.wire.batch` builds none."""
    plain = batch.build([(struct.pack(">hh", 0, kind), value)], timestamp_ms=5, base_offset=offset, leader_epoch=4)
    marked = plain[: batch.CRC_START] + struct.pack(">h", 0x20) + plain[batch.CRC_START + 2 :]
    return marked[:17] + struct.pack(">I", google_crc32c.value(marked[batch.CRC_START :])) + marked[batch.CRC_START :]


def test_whole_snapshots_are_read_and_no_others(tmp_path: Path) -> None:
    directory = tmp_path / "data" / "__cluster_metadata-0"
    directory.mkdir(parents=True)
    header, footer = control(0, 3, struct.pack(">hqb", 0, 77, 0)), control(3, 4, struct.pack(">hb", 0, 0))
    records = batch.build(CREATED, timestamp_ms=5, base_offset=1, leader_epoch=4)
    contents = header + records + footer
    corrupt = contents[:-1] + bytes([contents[-1] ^ 1])
    files = {
        f"{12:020}-{4:010}.checkpoint": contents,
        f"{7:020}-{4:010}.checkpoint": header + footer,
        f"{13:020}-{4:010}.checkpoint": header + records,
        f"{14:020}-{4:010}.checkpoint": records + footer,
        f"{15:020}-{4:010}.checkpoint": contents[:-1],
        f"{16:020}-{4:010}.checkpoint": corrupt,
        f"{17:020}-{4:010}.checkpoint": b"",
        f"{18:020}-{4:010}.checkpoint.deleted": contents,
        f"{19:020}-{4:010}-123.checkpoint.part": contents,
    }
    for name, data in files.items():
        (directory / name).write_bytes(data)
    assert read_snapshots(tmp_path / "data") == [MetadataSnapshot(7, 4, 77, ()), MetadataSnapshot(12, 4, 77, CREATED)]
    assert read_snapshots(tmp_path / "elsewhere") == []


def test_files_without_schemas_are_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^no controller left the schemas of its metadata records$"):
        list(SYSTEMS["kafka"].decisions({1: tmp_path}))
