"""Records of `__consumer_offsets` in Kafka's formats, and the partition that holds those of a group."""

from __future__ import annotations

from uuid import UUID

import pytest

from images.broker.groups import rebalance
from images.broker.groups.group import ClassicGroupMember, GroupState
from images.broker.groups.membership import next_deadline_ms
from images.broker.groups.records import (
    GroupRecord,
    OffsetAndMetadata,
    OffsetRecord,
    UnreadableRecord,
    decode,
    encode_group,
    encode_group_gone,
    encode_offset,
    partition_for,
)
from tests.broker.groups.test_group import LIMITS, RANGE, ask, stable


def test_an_offset_is_written_as_kafka_writes_it() -> None:
    key, value = encode_offset("g", "t", 3, OffsetAndMetadata(7, 2, "me", 1))
    assert key.hex() == "0001" + "000167" + "000174" + "00000003"
    assert value is not None
    assert value.hex() == "0003" + f"{7:016x}" + f"{2:08x}" + "00026d65" + f"{1:016x}"
    assert decode(key, value) == OffsetRecord("g", "t", 3, OffsetAndMetadata(7, 2, "me", 1))


def test_an_offset_has_the_id_of_its_topic_as_kafka_writes_it() -> None:
    topic_id = UUID(int=1 << 64 | 2)
    offset = OffsetAndMetadata(7, 2, "me", 1, topic_id)
    key, value = encode_offset("g", "t", 3, offset)
    assert value is not None
    fields = f"{7:016x}" + f"{2:08x}" + "036d65" + f"{1:016x}"
    assert value.hex() == "0004" + fields + "010010" + f"{1:016x}{2:016x}"
    assert decode(key, value) == OffsetRecord("g", "t", 3, offset)
    without = offset._replace(topic_id=None)
    for tagged in ("00", "010010" + "00" * 16, "010203abcdef"):
        assert decode(key, bytes.fromhex("0004" + fields + tagged)) == OffsetRecord("g", "t", 3, without)


@pytest.mark.parametrize("tagged", ["", "01", "0100", "010004abcdef00", "010010" + "00" * 15])
def test_a_topic_id_that_is_cut_off_or_too_short_is_refused(tagged: str) -> None:
    key, value = encode_offset("g", "t", 3, OffsetAndMetadata(7, topic_id=UUID(int=1)))
    assert value is not None
    with pytest.raises(UnreadableRecord):
        decode(key, value[: value.index(b"\x01\x00\x10")] + bytes.fromhex(tagged))


def test_a_group_comes_back_from_its_record_as_far_as_a_new_coordinator_needs_it() -> None:
    group = stable("m1", "m2")
    decoded_group = decode(*encode_group(group, 99))
    assert isinstance(decoded_group, GroupRecord)
    assert decoded_group.value is not None
    again = decoded_group.value.loaded(5_000)
    assert again == group._replace(deadline_ms=again.deadline_ms, initial_delay_until_ms=0)


def test_a_record_that_a_generation_begins_holds_its_members_and_nothing_to_hand_out() -> None:
    group = rebalance.join(stable("m1"), ask(new="m2"), 6_000, LIMITS).group
    group = rebalance.join(group, ask("m1", protocols=(*RANGE, ("sticky", b"s"))), 6_000, LIMITS).group
    assert group.storing
    decoded_group = decode(*encode_group(rebalance.generation_record(group, 2), 99))
    assert isinstance(decoded_group, GroupRecord)
    assert decoded_group.value is not None
    again = decoded_group.value.loaded(7_000)
    assert (again.state, again.generation, again.leader) == (GroupState.PREPARING, 2, None)
    assert [(member.id, member.protocols, member.assignment) for member in again.members] == [
        ("m1", RANGE, b""),
        ("m2", RANGE, b""),
    ]
    assert next_deadline_ms(again) == 7_000 + 10_000
    assert again.deadline_ms == 7_000 + 20_000


def test_a_record_without_value_takes_back() -> None:
    assert decode(*encode_group_gone("g")) == GroupRecord("g", None)
    assert decode(*encode_offset("g", "t", 0, None)) == OffsetRecord("g", "t", 0, None)


@pytest.mark.parametrize("key", [b"", b"\x00", b"\x00\x07", b"\x00\x01\x00\x05ab", None])
def test_a_record_of_an_unknown_kind_is_refused(key: bytes | None) -> None:
    with pytest.raises(UnreadableRecord):
        decode(key, b"\x00\x03")


def test_a_group_falls_to_the_partition_javas_hash_says() -> None:
    # String.hashCode: "a" = 97, "ab" = 97 · 31 + 98, and the sign bit is dropped, not negated.
    assert partition_for("a", 50) == 97 % 50
    assert partition_for("ab", 50) == (97 * 31 + 98) % 50
    assert partition_for("polygenelubricants", 7) == 0, "its hash is the least of all integers"


def test_a_member_keeps_nothing_but_its_chosen_protocol() -> None:
    member = ClassicGroupMember("m", protocols=(("range", b"r"), ("sticky", b"s")))
    assert member.metadata_for("sticky") == b"s"
    assert member.metadata_for(None) == b""
