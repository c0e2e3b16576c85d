"""Translation between the versions that clients use and the canonical version that handlers use.

A version with the layout of the canonical one is read and written as that (`encoding_class`). In the others most fields
are translated by name (`convert`). The remaining differences:

API            versions  difference                                             here
-------------  --------  -----------------------------------------------------  ------------------------------------
Fetch          to 12     topics by name, later by id                            each name has an id made from it, and
                                                                                the handler looks the name up
Fetch          to 14     the replica is one field, later a struct               replica epoch unknown (-1)
Metadata       0         an empty list means every topic, later null does       empty becomes null
DeleteTopics   to 5      a list of names, later a list of structs               one struct for each name
FindCoord.     to 3      one key, later a list of them                          a list of one
LeaveGroup     to 2      one member, later a list of them                       a list of one; its error is the
                                                                                answer's when that has none
OffsetFetch    to 7      one group, later a list of them                        a list of one

Error codes that older versions lack:

API            versions  error                               answered as
-------------  --------  ----------------------------------  --------------------------------
Fetch          to 12     UNKNOWN_TOPIC_ID (100),             UNKNOWN_TOPIC_OR_PARTITION (3)
                         INCONSISTENT_TOPIC_ID (103)
Fetch          to 5      KAFKA_STORAGE_ERROR (56)            NOT_LEADER_OR_FOLLOWER (6)
Produce        3         KAFKA_STORAGE_ERROR (56)            NOT_LEADER_OR_FOLLOWER (6)
ListOffsets    to 4      OFFSET_NOT_AVAILABLE (78)           LEADER_NOT_AVAILABLE (5)
InitProducerId to 3      PRODUCER_FENCED (90)                INVALID_PRODUCER_EPOCH (47)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from uuid import UUID, uuid5

from kio.schema.errors import ErrorCode

from images.wire.group_versions import LAST_SINGLE_VERSION, to_list_form, to_single_form
from images.wire.messages import CANONICAL, SUPPORTED, Api, encoding_class, request_class, response_class
from images.wire.schema import Entity, convert, shapes

Names = dict[UUID, str]
"""Topics by name, by the id that stands for each."""

_NAMED_TOPICS = UUID("7c2d3f6e-52b1-5d0c-9a51-0f6f0d8a4e10")
"""Namespace of the ids that stand for names."""


def named_topic_id(name: str) -> UUID:
    """The id that stands for a topic's name, whether there is such a topic or not: always the same for one name."""
    return uuid5(_NAMED_TOPICS, name)


def to_canonical(api: Api, version: int, body: Entity) -> tuple[Entity, Names]:
    """A request of `version` in the canonical version, and its topics' names if it has names where that has ids."""
    if version == CANONICAL[api]:
        return body, {}
    names: Names = {}
    canonical = convert(body, request_class(api))
    if api is Api.FETCH:
        if version <= 14:
            state = type(canonical.replica_state)(replica_id=body.replica_id, replica_epoch=-1)
            canonical = replace(canonical, replica_state=state)
        if version <= 12:
            forgotten = getattr(body, "forgotten_topics_data", ())
            ids = {topic.topic: named_topic_id(topic.topic) for topic in (*body.topics, *forgotten)}
            names = {topic_id: name for name, topic_id in ids.items()}
            canonical = replace(
                canonical,
                topics=_with_ids(canonical.topics, body.topics, ids),
                forgotten_topics_data=_with_ids(canonical.forgotten_topics_data, forgotten, ids),
            )
    elif api is Api.METADATA and version == 0 and not body.topics:
        canonical = replace(canonical, topics=None)
    elif api is Api.DELETE_TOPICS and version <= 5:
        topic_class = next(shape.element for shape in shapes(type(canonical)) if shape.name == "topics")
        canonical = replace(canonical, topics=tuple(topic_class(name=name, topic_id=None) for name in body.topic_names))
    elif version <= LAST_SINGLE_VERSION.get(api, -1):
        canonical = to_list_form(api, body, canonical)
    return canonical, names


def from_canonical(api: Api, version: int, answer: Entity, names: Names) -> Entity:
    """A canonical response in the `version` of its request. `names` has the topics of a request by name."""
    if version == CANONICAL[api]:
        return answer
    older = errors_before(api, version)
    if older:
        answer = _with_errors(answer, older)
    if version <= LAST_SINGLE_VERSION.get(api, -1):
        return to_single_form(api, answer, response_class(api, version))
    converted = convert(answer, encoding_class(api, version, "response"))
    if api is Api.FETCH and version <= 12:
        converted = replace(
            converted,
            responses=tuple(
                replace(topic, topic=names[by_id.topic_id])
                for topic, by_id in zip(converted.responses, answer.responses, strict=True)
            ),
        )
    return converted


# API, last version without the error, the error, what stands for it
_NEWER_ERRORS: tuple[tuple[Api, int, ErrorCode, ErrorCode], ...] = (
    (Api.FETCH, 12, ErrorCode.unknown_topic_id, ErrorCode.unknown_topic_or_partition),
    (Api.FETCH, 12, ErrorCode.inconsistent_topic_id, ErrorCode.unknown_topic_or_partition),
    (Api.FETCH, 5, ErrorCode.kafka_storage_error, ErrorCode.not_leader_or_follower),
    (Api.PRODUCE, 3, ErrorCode.kafka_storage_error, ErrorCode.not_leader_or_follower),
    (Api.LIST_OFFSETS, 4, ErrorCode.offset_not_available, ErrorCode.leader_not_available),
    (Api.INIT_PRODUCER_ID, 3, ErrorCode.producer_fenced, ErrorCode.invalid_producer_epoch),
)


@cache
def errors_before(api: Api, version: int) -> Mapping[ErrorCode, ErrorCode]:
    """Errors that `version` lacks, and the errors sent in their place."""
    return {error: instead for of, last, error, instead in _NEWER_ERRORS if of is api and version <= last}


def _with_errors(entity: Entity, instead: Mapping[ErrorCode, ErrorCode]) -> Entity:
    changes: dict[str, object] = {}
    for shape in shapes(type(entity)):
        value = getattr(entity, shape.name)
        if shape.kafka_type == "error_code":
            if value in instead:
                changes[shape.name] = instead[value]
        elif shape.struct and shape.array and value:
            changed = tuple(_with_errors(item, instead) for item in value)
            if any(new is not old for new, old in zip(changed, value, strict=True)):
                changes[shape.name] = changed
    return replace(entity, **changes) if changes else entity


def _with_ids(canonical: tuple[Entity, ...], named: tuple[Entity, ...], ids: Mapping[str, UUID]) -> tuple[Entity, ...]:
    return tuple(replace(topic, topic_id=ids[by_name.topic]) for topic, by_name in zip(canonical, named, strict=True))


def api_versions(served: Mapping[Api, object]) -> tuple[Entity, ...]:
    """The API list of an ApiVersions response, for a node with handlers for `served`, in canonical version.

    Produce is announced from version 0, which is not served, as in Kafka 4 (KAFKA-18659): librdkafka otherwise assumes
    that the broker cannot store compressed batches.
    """
    entry = next(shape.element for shape in shapes(response_class(Api.API_VERSIONS)) if shape.name == "api_keys")
    return tuple(
        entry(
            api_key=int(api),
            min_version=0 if api is Api.PRODUCE else SUPPORTED[api][0],
            max_version=SUPPORTED[api][-1],
        )
        for api in Api
        if api in served or api is Api.API_VERSIONS
    )
