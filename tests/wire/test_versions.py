"""Clients of every version receive the handlers' responses, and handlers receive the clients' requests."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from kio.schema.delete_topics.v5.request import DeleteTopicsRequest as DeleteTopicsByName
from kio.schema.errors import ErrorCode
from kio.schema.fetch.v12.request import FetchRequest as FetchByName
from kio.schema.fetch.v16.response import FetchableTopicResponse, FetchResponse, PartitionData
from kio.schema.leave_group.v5.response import LeaveGroupResponse
from kio.schema.list_offsets.v7.response import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from kio.schema.metadata.v0.request import MetadataRequest as MetadataV0
from kio.schema.metadata.v1.request import MetadataRequest as MetadataV1

from images.wire.group_versions import LAST_SINGLE_VERSION
from images.wire.messages import (
    CANONICAL,
    Api,
    RequestDecoder,
    encode_request,
    encode_response,
    encoding_class,
    read_request_header,
    request_class,
    response_class,
)
from images.wire.schema import convert, shapes
from images.wire.versions import (
    api_versions,
    errors_before,
    from_canonical,
    named_topic_id,
    to_canonical,
)
from tests.wire.message_values import EVERY_VERSION, filled, leaves


def shared(one: Any, other: Any) -> dict[tuple[object, ...], tuple[Any, Any]]:
    """The fields two messages have in common, with the value in each."""
    left, right = dict(leaves(one)), dict(leaves(other))
    return {path: (left[path], right[path]) for path in left if path in right}


def every(versions: list[tuple[Api, int]]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(("api", "version"), versions, ids=lambda part: getattr(part, "name", part))


def for_one_thing(api: Api, version: int) -> bool:
    return version <= LAST_SINGLE_VERSION.get(api, -1)


ORDERS = UUID(int=7)
EVERY = every([(api, version) for api, version in EVERY_VERSION if not for_one_thing(api, version)])
FOR_ONE_THING = every([(api, version) for api, version in EVERY_VERSION if for_one_thing(api, version)])
DROPPED = ((Api.METADATA, "include_cluster_authorized_operations"), (Api.OFFSET_COMMIT, "retention_time"))
"""Fields of older versions that the newest does not have."""


@EVERY
def test_a_request_of_every_version_reaches_the_handler_with_every_field(api: Api, version: int) -> None:
    asked = filled(request_class(api, version))
    canonical, names = to_canonical(api, version, asked)
    assert type(canonical) is request_class(api)
    common = shared(asked, canonical)
    assert common or api in (Api.API_VERSIONS, Api.LIST_GROUPS)
    assert all(left == right for left, right in common.values())
    seen = dict(leaves(canonical))
    for path, value in leaves(asked):
        if path in common:
            continue
        if api is Api.FETCH and path[-1] == "topic":
            assert names[seen[(*path[:-1], "topic_id")]] == value
        elif api is Api.FETCH and path == ("replica_id",):
            assert canonical.replica_state.replica_id == value
        elif api is Api.DELETE_TOPICS and path == ("topic_names",):
            assert tuple(topic.name for topic in canonical.topics) == value
        else:
            assert (api, path[-1]) in DROPPED


@EVERY
def test_an_answer_reaches_a_client_of_every_version_with_every_field_it_knows(api: Api, version: int) -> None:
    answer = filled(response_class(api))
    if api is Api.FETCH:  # answered by id, to be told by name to older clients
        answer = replace(answer, responses=tuple(replace(topic, topic_id=ORDERS) for topic in answer.responses))
    if errors := [found for found in _errors(answer) if found in errors_before(api, version)]:
        pytest.fail(f"the filled answer has errors that older versions lack: {errors}")
    told = from_canonical(api, version, answer, {ORDERS: "orders"})
    assert type(told) is encoding_class(api, version, "response")
    assert all(left == right for left, right in shared(told, answer).values())
    for path, value in leaves(told):
        if path not in dict(leaves(answer)):
            assert (api, path[-1], value) == (Api.FETCH, "topic", "orders") or (
                (api, path) == (Api.METADATA, ("cluster_authorized_operations",))
            )


@EVERY
def test_a_version_with_the_canonical_layout_is_read_and_written_as_the_canonical_one(api: Api, version: int) -> None:
    """Equal bytes, and only for equal layouts: a field more or less, or another header, shows in them."""
    request, response = filled(request_class(api, version)), filled(response_class(api, version))
    read_as, written_as = encoding_class(api, version, "request"), encoding_class(api, version, "response")
    frame = encode_request(request, 7, "me")
    assert RequestDecoder().decode(frame, read_request_header(frame)) == convert(request, read_as)
    assert encode_response(convert(response, written_as), 7) == encode_response(response, 7)


def test_requests_of_librdkafka_to_produce_need_no_translation() -> None:
    assert encoding_class(Api.PRODUCE, 10, "request") is request_class(Api.PRODUCE)
    assert encoding_class(Api.PRODUCE, 10, "response") is response_class(Api.PRODUCE)


def _errors(answer: Any) -> list[ErrorCode]:
    return [value for path, value in leaves(answer) if path[-1] == "error_code"]


@FOR_ONE_THING
def test_a_request_for_one_thing_reaches_the_handler_as_a_list_of_one(api: Api, version: int) -> None:
    asked = filled(request_class(api, version))
    canonical, names = to_canonical(api, version, asked)
    assert type(canonical) is request_class(api)
    seen = [value for _, value in leaves(canonical)]
    assert names == {}
    assert all(value in seen or (value,) in seen for _, value in leaves(asked))


@FOR_ONE_THING
def test_the_answer_about_one_thing_reaches_its_client(api: Api, version: int) -> None:
    answer = filled(response_class(api))
    listed = next(shape.name for shape in shapes(type(answer)) if shape.struct)
    answer = replace(answer, **{listed: getattr(answer, listed)[:1]})
    response = from_canonical(api, version, answer, {})
    assert type(response) is response_class(api, version)
    known = [value for _, value in leaves(answer)]
    assert all(value in known for _, value in leaves(response))


def test_a_client_that_leaves_alone_is_told_its_own_error() -> None:
    member = replace(filled(LeaveGroupResponse).members[0], error_code=ErrorCode.unknown_member_id)
    answer = LeaveGroupResponse(throttle_time=timedelta(0), error_code=ErrorCode.none, members=(member,))
    response = from_canonical(Api.LEAVE_GROUP, 2, answer, {})
    assert response.error_code is ErrorCode.unknown_member_id


@EVERY
def test_the_canonical_version_is_passed_on_untouched(api: Api, version: int) -> None:
    if version == CANONICAL[api]:
        request, answer = filled(request_class(api)), filled(response_class(api))
        assert to_canonical(api, version, request) == (request, {})
        assert from_canonical(api, version, answer, {}) is answer


def test_names_in_an_old_fetch_become_ids_and_names_again() -> None:
    asked = filled(FetchByName)
    asked = replace(asked, topics=(replace(asked.topics[0], topic="orders"), replace(asked.topics[1], topic="gone")))
    canonical, names = to_canonical(Api.FETCH, 12, asked)
    assert [topic.topic_id for topic in canonical.topics] == [named_topic_id("orders"), named_topic_id("gone")]
    answer = fetch_answer(
        (named_topic_id("orders"), ErrorCode.none), (named_topic_id("gone"), ErrorCode.unknown_topic_id)
    )
    response = from_canonical(Api.FETCH, 12, answer, names)
    assert [(topic.topic, topic.partitions[0].error_code) for topic in response.responses] == [
        ("orders", ErrorCode.none),
        ("gone", ErrorCode.unknown_topic_or_partition),
    ]


def test_the_id_that_stands_for_a_name_is_always_the_same_and_no_two_share_one() -> None:
    assert named_topic_id("a") == named_topic_id("a") != named_topic_id("b")


def test_a_newer_fetch_keeps_the_newer_error() -> None:
    answer = fetch_answer((ORDERS, ErrorCode.unknown_topic_id))
    response = from_canonical(Api.FETCH, 13, answer, {})
    assert response.responses[0].partitions[0].error_code is ErrorCode.unknown_topic_id


@pytest.mark.parametrize(
    ("version", "told"), [(4, ErrorCode.leader_not_available), (5, ErrorCode.offset_not_available)]
)
def test_a_latest_offset_not_known_yet_has_another_error_before_version_5(version: int, told: ErrorCode) -> None:
    partition = ListOffsetsPartitionResponse(partition_index=0, error_code=ErrorCode.offset_not_available)
    answer = ListOffsetsResponse(
        throttle_time=timedelta(0), topics=(ListOffsetsTopicResponse(name="orders", partitions=(partition,)),)
    )
    asked = from_canonical(Api.LIST_OFFSETS, version, answer, {})
    assert asked.topics[0].partitions[0].error_code is told


def test_the_oldest_metadata_request_asks_for_every_topic_with_an_empty_list() -> None:
    canonical, _ = to_canonical(Api.METADATA, 0, MetadataV0(topics=()))
    assert canonical.topics is None
    canonical, _ = to_canonical(Api.METADATA, 1, MetadataV1(topics=()))
    assert canonical.topics == ()


def test_topics_to_delete_come_as_names_or_as_structs() -> None:
    asked = DeleteTopicsByName(topic_names=("a", "b"), timeout=timedelta(seconds=1))
    canonical, _ = to_canonical(Api.DELETE_TOPICS, 5, asked)
    assert [(topic.name, topic.topic_id) for topic in canonical.topics] == [("a", None), ("b", None)]
    assert canonical.timeout == timedelta(seconds=1)


def test_converting_to_the_same_class_gives_the_same_object() -> None:
    request = filled(request_class(Api.FETCH))
    assert convert(request, type(request)) is request


def test_only_what_is_served_is_announced_and_produce_from_zero_for_librdkafka() -> None:
    announced = {entry.api_key: (entry.min_version, entry.max_version) for entry in api_versions({Api.PRODUCE: None})}
    assert announced == {Api.PRODUCE: (0, 11), Api.API_VERSIONS: (0, 3)}


def fetch_answer(*topics: tuple[UUID, ErrorCode]) -> FetchResponse:
    return FetchResponse(
        throttle_time=timedelta(0),
        error_code=ErrorCode.none,
        responses=tuple(
            FetchableTopicResponse(
                topic_id=topic_id,
                partitions=(
                    PartitionData(
                        partition_index=0,
                        error_code=error,
                        high_watermark=3,
                        aborted_transactions=None,
                        records=b"",
                    ),
                ),
            )
            for topic_id, error in topics
        ),
    )
