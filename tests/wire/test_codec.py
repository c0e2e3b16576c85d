"""The generated code writes what kio writes, reads what kio reads, and refuses what would end the process."""

from __future__ import annotations

import io
from dataclasses import replace
from datetime import timedelta
from random import Random
from struct import pack
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.broker_heartbeat.v1.request import BrokerHeartbeatRequest
from kio.schema.delete_topics.v6.request import DeleteTopicsRequest
from kio.schema.fetch.v16.request import FetchRequest, FetchTopic
from kio.schema.fetch.v16.response import FetchResponse
from kio.schema.metadata.v12.request import MetadataRequest, MetadataRequestTopic
from kio.serial import entity_reader, entity_writer

from images.wire.codec import Malformed, decode_varint, encode_varint, writer
from images.wire.messages import (
    Api,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    read_request_header,
    request_class,
    response_class,
)
from images.wire.reader import ELEMENTS_MAX, reader
from tests.wire.message_values import EVERY_CLASS, class_name, filled, instances


def written(entity: Any) -> bytes:
    pieces: list[bytes] = []
    writer(type(entity))(entity, pieces)
    return b"".join(pieces)


def written_by_kio(entity: Any) -> bytes:
    buffer = io.BytesIO()
    entity_writer(type(entity))(buffer, entity)
    return buffer.getvalue()


@pytest.mark.parametrize("message", EVERY_CLASS, ids=class_name)
def test_every_message_is_written_and_read_as_by_kio(message: type) -> None:
    for seed in range(3):
        entity = filled(message, seed)
        expected = written_by_kio(entity)
        assert written(entity) == expected
        assert entity_reader(message)(expected, 0) == (entity, len(expected))
        assert reader(message)(b"ab" + expected + b"cde", 2, len(expected) + 5) == (entity, len(expected) + 2)


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_any_message_is_written_and_read_as_by_kio(data: st.DataObject) -> None:
    entity = data.draw(st.sampled_from(EVERY_CLASS).flatmap(instances))
    expected = written_by_kio(entity)
    assert written(entity) == expected
    assert entity_reader(type(entity))(expected, 0) == (entity, len(expected))
    assert reader(type(entity))(expected, 0, len(expected)) == (entity, len(expected))


@pytest.mark.parametrize("message", EVERY_CLASS, ids=class_name)
def test_every_beginning_of_a_message_is_refused(message: type) -> None:
    whole = written(filled(message))
    for size in range(0, len(whole), max(1, len(whole) // 50)):
        with pytest.raises(Malformed):
            reader(message)(whole[:size], 0, size)


def test_an_array_that_claims_more_elements_than_there_are_bytes_is_refused_before_kio_reserves_memory() -> None:
    # 2^31 topics in a Fetch of each form: kio would abort the process here, not raise.
    old = pack(">iiiib", -1, 500, 1, 1 << 20, 0) + pack(">i", 2**31 - 1) + bytes(40)
    with pytest.raises(Malformed, match="topics claims too many"):
        reader(request_class(Api.FETCH, 4))(old, 0, len(old))
    new = pack(">iiibii", 500, 1, 1 << 20, 0, 0, -1) + encode_varint(2**33) + bytes(40)
    with pytest.raises(Malformed, match="topics claims too many"):
        reader(request_class(Api.FETCH, 16))(new, 0, len(new))


def test_a_negative_length_is_refused() -> None:
    metadata = pack(">i", -2)
    with pytest.raises(Malformed, match="length of -2"):
        reader(request_class(Api.METADATA, 1))(metadata, 0, len(metadata))


def test_a_tagged_field_that_lies_about_its_size_is_refused() -> None:
    fetch = filled(FetchRequest)
    body = written(fetch)
    state = written(fetch.replica_state)
    tagged = b"\x01" + bytes([len(state)]) + state
    assert body.count(tagged) == 1
    lying = body.replace(tagged, b"\x01" + bytes([len(state) + 1]) + state)
    with pytest.raises(Malformed, match="tagged field 1"):
        reader(FetchRequest)(lying, 0, len(lying))


@settings(max_examples=400, deadline=None)
@given(seed=st.integers(0, 2**32), message=st.sampled_from([c for c in EVERY_CLASS if c.__name__.endswith("Request")]))
def test_damaged_requests_are_read_or_refused_but_never_end_the_process(seed: int, message: Any) -> None:
    random = Random(seed)
    frame = bytearray(encode_request(filled(message, seed % 5), 1, "client"))
    for _ in range(random.randrange(1, 5)):
        at = random.randrange(12, len(frame))
        frame[at : at + random.choice((1, 4, 5))] = random.choice(
            (bytes([random.randrange(256)]), b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff\x7f")
        )
    try:
        decode_request(bytes(frame))
    except Malformed:
        pass


@given(st.integers(0, 2**35 - 1))
def test_varints_read_back(value: int) -> None:
    encoded = encode_varint(value)
    assert decode_varint(encoded, 0) == (value, len(encoded))


def test_a_varint_without_end_is_refused() -> None:
    for endless in (b"", b"\x80", b"\xff" * 6):
        with pytest.raises(Malformed, match="does not end"):
            decode_varint(endless, 0)


def test_a_frame_says_its_own_length_and_who_asks_what() -> None:
    fetch = filled(FetchRequest)
    frame = encode_request(fetch, 77, "me")
    assert int.from_bytes(frame[:4]) == len(frame) - 4
    head = read_request_header(frame)
    assert (head.api_key, head.version, head.correlation_id, head.client_id) == (1, 16, 77, "me")
    assert decode_request(frame) == (head, fetch)
    assert read_request_header(encode_request(fetch, 1, None)).client_id is None


def test_tagged_fields_in_a_request_header_are_skipped() -> None:
    fetch = filled(FetchRequest)
    frame = encode_request(fetch, 77, "me")
    end = read_request_header(frame).end
    tagged = frame[:end] + b"\x02" + b"\x00\x03abc" + b"\x05\x00" + frame[end + 1 :]
    assert decode_request(tagged)[1] == fetch


def test_bytes_after_a_request_are_ignored_and_those_after_a_response_refused() -> None:
    request = filled(FetchRequest)
    assert decode_request(encode_request(request, 77, "me") + b"abc")[1] == request
    response = filled(FetchResponse)
    with pytest.raises(Malformed, match="3 bytes too many"):
        decode_response(FetchResponse, encode_response(response, 77) + b"abc")


def metadata_request(*topics: MetadataRequestTopic) -> MetadataRequest:
    return MetadataRequest(topics=topics, include_topic_authorized_operations=False)


UNKNOWN = b"\x64\x02ab"
"""Tag 100 with two bytes."""


def test_tagged_fields_that_a_message_does_not_know_are_skipped() -> None:
    topics = tuple(MetadataRequestTopic(topic_id=UUID(int=number), name="some") for number in (1, 2))
    whole = encode_request(metadata_request(*topics), 7, None)
    topic = b"\x05some\0"
    assert whole.count(topic) == 2
    inside = whole.replace(topic, topic[:-1] + b"\x01" + UNKNOWN)
    assert decode_request(inside)[1].topics == topics
    twice_and_unordered = inside[:-1] + b"\x03" + UNKNOWN + UNKNOWN + b"\x63\0"
    assert decode_request(twice_and_unordered)[1].topics == topics
    assert decode_request(twice_and_unordered + b"more")[1].topics == topics


def test_an_unknown_tag_beside_and_within_known_ones_is_skipped() -> None:
    request = filled(FetchRequest)
    state = request.replica_state
    encoded_state = state.replica_id.to_bytes(4, signed=True) + state.replica_epoch.to_bytes(8, signed=True)
    whole = encode_request(request, 7, None)
    tag = b"\x01\x0d" + encoded_state + b"\0"
    assert whole.count(tag) == 1
    changed = whole.replace(tag, b"\x01\x11" + encoded_state + b"\x01" + UNKNOWN)
    assert decode_request(changed)[1] == request
    with pytest.raises(Malformed, match="tagged field 100 runs past the end"):
        decode_request(whole.replace(tag, b"\x01\x10" + encoded_state + b"\x01" + UNKNOWN))


@pytest.mark.parametrize("end", [b"\x01\x64\x7f", b"\x01\x64", b"\xff\xff\xff\xff\x0f" + UNKNOWN])
def test_an_unknown_tag_that_runs_past_the_end_is_malformed(end: bytes) -> None:
    whole = encode_request(metadata_request(), 7, None)
    with pytest.raises(Malformed):
        decode_request(whole[:-1] + end)


def test_unknown_tags_do_not_lift_the_bound_of_the_elements() -> None:
    topic = MetadataRequestTopic(topic_id=None, name="")
    first = b"\x01\0"
    content = written(metadata_request(*(topic,) * (ELEMENTS_MAX + 1)))
    at = content.index(first) + 1
    changed = content[:at] + b"\x01" + UNKNOWN + content[at + 1 :]
    with pytest.raises(Malformed, match="more than 500,000 elements"):
        reader(MetadataRequest)(changed, 0, len(changed))


@pytest.mark.parametrize(("elements", "accepted"), [(ELEMENTS_MAX, True), (ELEMENTS_MAX + 1, False)])
def test_the_elements_of_a_tagged_field_are_bounded_too(elements: int, accepted: bool) -> None:
    content = written(replace(filled(BrokerHeartbeatRequest), offline_log_dirs=(None,) * elements))
    if accepted:
        assert len(reader(BrokerHeartbeatRequest)(content, 0, len(content))[0].offline_log_dirs) == elements
    else:
        with pytest.raises(Malformed, match="more than 500,000 elements"):
            reader(BrokerHeartbeatRequest)(content, 0, len(content))


def test_an_answer_to_api_versions_has_the_old_header_in_every_version() -> None:
    # A client does not know what the broker speaks before it has read this answer (KIP-511).
    for version in range(4):
        frame = encode_response(filled(response_class(Api.API_VERSIONS, version)), 9)
        assert frame[4:8] == pack(">i", 9)
        assert frame[8:] == written(filled(response_class(Api.API_VERSIONS, version)))


def test_a_missing_id_is_written_as_zeros() -> None:
    assert written(FetchTopic(topic_id=None, partitions=()))[:16] == UUID(int=0).bytes


def test_a_null_that_the_protocol_does_not_allow_is_malformed() -> None:
    whole = encode_request(DeleteTopicsRequest(topics=(), timeout=timedelta(0)), 1, None)
    assert decode_request(whole)[1].topics == ()
    null = whole.replace(b"\x01\0\0\0\0\0", b"\0\0\0\0\0\0")
    assert null != whole
    with pytest.raises(Malformed, match="topics is null"):
        decode_request(null)


def test_a_follower_fetches_all_partitions_of_a_leader_in_one_request() -> None:
    fetch = filled(FetchRequest)
    topics = tuple(replace(fetch.topics[0], topic_id=UUID(int=1 + number)) for number in range(30_000))
    assert decode_request(encode_request(replace(fetch, topics=topics), 1, None))[1].topics == topics


@pytest.mark.parametrize(("elements", "accepted"), [(ELEMENTS_MAX, True), (ELEMENTS_MAX + 1, False)])
def test_a_request_has_a_bounded_number_of_elements(elements: int, accepted: bool) -> None:
    topics = tuple(MetadataRequestTopic(topic_id=None, name="") for _ in range(elements))
    frame = encode_request(MetadataRequest(topics=topics, include_topic_authorized_operations=False), 1, None)
    if accepted:
        assert len(decode_request(frame)[1].topics) == elements
    else:
        with pytest.raises(Malformed, match="more than 500,000 elements"):
            decode_request(frame)
