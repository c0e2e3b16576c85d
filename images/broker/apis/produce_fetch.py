"""Produce and Fetch.

Each handler finds the replica of every partition in the request, appends to it or reads from it, waits if the request
allows it (for the high watermark, for data), and answers. The rules are in `replication/leader.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode
from kio.schema.fetch.v16.request import FetchRequest
from kio.schema.fetch.v16.response import EpochEndOffset as DivergingEpoch
from kio.schema.fetch.v16.response import FetchableTopicResponse, FetchResponse, LeaderIdAndEpoch
from kio.schema.fetch.v16.response import PartitionData as FetchPartitionResponse
from kio.schema.produce.v11.request import ProduceRequest
from kio.schema.produce.v11.response import LeaderIdAndEpoch as ProduceLeader
from kio.schema.produce.v11.response import PartitionProduceResponse, ProduceResponse, TopicProduceResponse

from images.broker.metadata.image import ClusterImage
from images.broker.metadata.internal_topics import CONSUMER_OFFSETS_TOPIC
from images.broker.replication.fetch_sessions import NO_SESSION, FetchContext, FetchSession, FetchSessionCache, Key
from images.broker.replication.partition import ReplicaFetch
from images.broker.replication.replica import ACKS_ALL, Replica
from images.broker.replication.replica_manager import ReplicaManager, find_replica
from images.broker.replication.replica_results import AppendResult, FetchResult
from images.broker.runtime.condition import Condition, wait_for_any
from images.broker.runtime.server import CloseConnection, Handler, Request
from images.trace import TraceEvent
from images.wire.batch import CorruptBatch, InvalidRecord, first_offset, is_transactional, produced_batch
from images.wire.field_values import NO_EPOCH, NO_ERROR, NO_THROTTLE
from images.wire.messages import Api

LAST_FETCH_BY_NAME = 12
"""The last version of Fetch that has names of topics instead of their ids."""
_LEADER_SINCE = 16
"""The first version of Fetch that tells the current leader to a client that asked another (KIP-951)."""
_OF_ANOTHER_LEADER = (ErrorCode.not_leader_or_follower, ErrorCode.fenced_leader_epoch)
NO_OFFSET = -1
_DIVERGING = "diverging"
"""In the trace: the logs part, which is no error."""


class _PartitionFetch(NamedTuple):
    """One partition of a Fetch request, with its replica if it is on this broker."""

    topic_id: Any
    partition: Any
    replica: Replica | None
    error: ErrorCode


class ProduceFetchApis:
    """The handlers of one broker. `image` returns the metadata that this broker has applied."""

    def __init__(
        self,
        replica_manager: ReplicaManager,
        image: Callable[[], ClusterImage],
        sessions: FetchSessionCache,
        fetch_max_bytes: int,
        trace: Callable[[TraceEvent], None],
    ) -> None:
        self._replica_manager = replica_manager
        self._image = image
        self._sessions = sessions
        self._fetch_max_bytes = fetch_max_bytes
        self._trace = trace
        self._followers_fetch: dict[int, tuple[int, object]] = {}
        """Follower → session of its last fetch, and the number of its partitions, without a session these themselves,
        for the trace."""

    def handlers(self) -> dict[Api, Handler]:
        """The handler of each API."""
        return {Api.PRODUCE: self.produce, Api.FETCH: self.fetch}

    # --- Produce ------------------------------------------------------------------------------------------------------

    async def produce(self, request: Request[ProduceRequest]) -> ProduceResponse | None:
        """Append, then (acks=all) wait until the records are committed.

        With acks=0 there is no answer. As in Kafka, a refusal then closes the connection, so that the producer looks
        for the leader again. Raises CloseConnection.
        """
        body = request.body
        until = asyncio.get_running_loop().time() + body.timeout.total_seconds()
        parts = _last_of_each_partition(body)
        batches = {key: _produced_batch(part.records) for key, part in parts.items()}
        unauthorized = body.transactional_id is None and any(
            isinstance(batch, bytes) and is_transactional(batch) for batch in batches.values()
        )
        appends: dict[str, list[tuple[int, Replica | None, AppendResult]]] = {}
        for (topic, index), batch in batches.items():
            if unauthorized:
                replica, result = None, AppendResult(ErrorCode.transactional_id_authorization_failed)
            else:
                replica, result = self._append(topic, index, batch, body.acks)
            appends.setdefault(topic, []).append((index, replica, result))
        if body.acks == 0:
            _hang_up_if_refused(appends)
            return None
        topics = []
        for name, partitions in appends.items():
            answers = []
            for index, replica, result in partitions:
                error = result.error
                if error is NO_ERROR and replica is not None:
                    if body.acks == ACKS_ALL:
                        error = await replica.wait_until_committed(result, until)
                    replica.trace_append_answered(result, body.acks, error)
                answers.append(_produce_response(index, error, result, replica))
            topics.append(TopicProduceResponse(name=name, partition_responses=tuple(answers)))
        return ProduceResponse(responses=tuple(topics), throttle_time=NO_THROTTLE)

    def _append(
        self, topic: str, index: int, batch: bytes | ErrorCode, acks: int
    ) -> tuple[Replica | None, AppendResult]:
        if acks not in (0, 1, ACKS_ALL):
            return None, AppendResult(ErrorCode.invalid_required_acks)
        if topic == CONSUMER_OFFSETS_TOPIC:
            return None, AppendResult(ErrorCode.invalid_topic_exception)
        replica, error = self._find(topic, index)
        if replica is None:
            return None, AppendResult(error)
        if isinstance(batch, ErrorCode):
            return replica, AppendResult(batch)
        if is_transactional(batch):  # there are no transactions, so the one it belongs to does not exist
            return replica, AppendResult(ErrorCode.invalid_producer_id_mapping)
        return replica, replica.append(batch, acks)

    def _find(self, topic: str, index: int) -> tuple[Replica | None, ErrorCode]:
        return find_replica(self._replica_manager, self._image(), topic, index)

    # --- Fetch --------------------------------------------------------------------------------------------------------

    async def fetch(self, request: Request[FetchRequest]) -> FetchResponse:
        """Read for a follower or a consumer; wait for data as long as the request allows."""
        body = request.body
        until = asyncio.get_running_loop().time() + body.max_wait.total_seconds()
        replica_id = body.replica_state.replica_id
        of_follower = _is_follower(replica_id)
        names = request.names if request.version <= LAST_FETCH_BY_NAME else None
        context = self._sessions.open(body, of_follower=of_follower, names=names)
        if context.error is not NO_ERROR:
            return FetchResponse(throttle_time=NO_THROTTLE, error_code=context.error, responses=())
        if of_follower:
            self._trace_session(body, context)
        if names is not None:
            names.update((context.session.names if context.session is not None else None) or {})
            fetches = [self._find_by_name(names[key], key, part) for key, part in context.partitions]
        else:
            fetches = [self._find_by_id(topic_id, part, context.session) for topic_id, part in context.partitions]
        # fetch.max.bytes limits consumers; a follower's own setting limits followers.
        max_bytes = body.max_bytes if of_follower else min(body.max_bytes, self._fetch_max_bytes)
        min_bytes = min(body.min_bytes, max_bytes)
        results = self._read(fetches, request, max_bytes, first=True)
        while not _worth_answering(results, min_bytes) and await wait_for_any(_changes(fetches, of_follower), until):
            results = self._read(fetches, request, max_bytes, first=False)
        if of_follower:
            for fetch, result in zip(fetches, results, strict=True):
                if fetch.replica is not None and result.error is NO_ERROR:
                    fetch.replica.on_fetch_answered(replica_id, request.connection)
        else:
            self._trace_moved_consumers(fetches, results)
        answer = _fetch_response(fetches, results, context, tell_leader=request.version >= _LEADER_SINCE)
        self._trace_refused(replica_id, fetches, results, answer, names)
        if of_follower:
            _trace_log_starts(replica_id, fetches, results, answer)
        return answer

    def _find_by_name(self, name: str, key: Any, partition: Any) -> _PartitionFetch:
        replica, error = self._find(name, partition.partition)
        return _PartitionFetch(key, partition, replica, error)

    def _trace_session(self, body: FetchRequest, context: FetchContext) -> None:
        """Trace the partitions of a follower's fetch when they are others than in its last one."""
        replica = body.replica_state.replica_id
        session = context.session.id if context.session is not None else NO_SESSION
        of_request = context.partitions if session == NO_SESSION else []
        keys = frozenset((topic_id, part.partition) for topic_id, part in of_request)
        fetched = session, keys or len(context.partitions)
        if self._followers_fetch.get(replica) == fetched and not body.forgotten_topics_data:
            return
        self._followers_fetch[replica] = fetched
        served = ((topic_id, part.partition) for topic_id, part in context.partitions)
        forgotten = ((topic.topic_id, index) for topic in body.forgotten_topics_data for index in topic.partitions)
        detail: dict[str, object] = {"replica": replica, "session": session, "partitions": self._names(served)}
        if body.forgotten_topics_data:
            detail["forgotten"] = self._names(forgotten)
        self._trace(TraceEvent("fetch_session", detail=detail))

    def _names(self, keys: Iterable[Key]) -> list[str]:
        """The partitions with these topic ids and indices by name, without those of topics that are not known."""
        topics = [(self._image().topic_by_id(topic_id), index) for topic_id, index in keys]
        return sorted(f"{topic.name}-{index}" for topic, index in topics if topic is not None)

    def _trace_moved_consumers(self, fetches: list[_PartitionFetch], results: list[FetchResult]) -> None:
        """Trace the answers that move a consumer: records behind the offset that it asked for, or no such offset."""
        for fetch, result in zip(fetches, results, strict=True):
            requested, last_epoch = fetch.partition.fetch_offset, fetch.partition.last_fetched_epoch
            first = first_offset(result.records) if result.records else NO_OFFSET
            moved = first > requested or result.error is ErrorCode.offset_out_of_range
            if fetch.replica is not None and moved:
                detail = {"first": first, "last_epoch": last_epoch}
                fetch.replica.trace("consumer_moved", requested, fetch.replica.state.log_end, detail)

    def _trace_refused(
        self,
        replica_id: int,
        fetches: list[_PartitionFetch],
        results: list[FetchResult],
        answer: FetchResponse,
        names: Mapping[Any, str] | None,
    ) -> None:
        """Trace each partition that cannot be read, or whose logs part, and what the answer tells of that."""
        refused = [
            (fetch, result)
            for fetch, result in zip(fetches, results, strict=True)
            if result.error is not NO_ERROR or result.diverging is not None
        ]
        if not refused:
            return
        told, image = _told(answer), self._image()
        for fetch, result in refused:
            key, index = fetch.topic_id, fetch.partition.partition
            topic = image.topic_by_id(key) if names is None else image.topics.get(names[key])
            if topic is not None:
                refusal, part = _refusal(result.error, result.diverging is not None), told.get((key, index))
                said = _refusal(part.error_code, part.diverging_epoch.end_offset >= 0) if part is not None else ""
                detail = {"replica": max(replica_id, -1), "refusal": refusal, "told": said}
                offset, topic_id = fetch.partition.fetch_offset, str(topic.id)
                self._trace(
                    TraceEvent("fetch_refused", topic.name, index, offset=offset, detail=detail, topic_id=topic_id)
                )

    def _find_by_id(self, topic_id: Any, partition: Any, session: FetchSession | None) -> _PartitionFetch:
        topic = self._image().topic_by_id(topic_id)
        if topic is None:
            # Kafka keeps the name of a topic in a session, and so looks for a deleted one by its name.
            known = session is not None and session.has_served(topic_id)
            error = ErrorCode.unknown_topic_or_partition if known else ErrorCode.unknown_topic_id
            return _PartitionFetch(topic_id, partition, None, error)
        replica, error = self._find(topic.name, partition.partition)
        return _PartitionFetch(topic_id, partition, replica, error)

    def _read(
        self, fetches: list[_PartitionFetch], request: Request[FetchRequest], max_bytes: int, *, first: bool
    ) -> list[FetchResult]:
        """A result for each partition, `max_bytes` in total; the first partition with data may exceed it by one batch,
        even if it is 0.
        Only the first read of a request updates a follower's position."""
        replica_id = request.body.replica_state.replica_id
        of_follower = _is_follower(replica_id)
        remaining, results, at_least_one = max(0, max_bytes), [], True
        for fetch in fetches:
            if fetch.replica is None:
                results.append(FetchResult(fetch.error))
                continue
            part, replica = fetch.partition, fetch.replica
            size = min(part.partition_max_bytes, remaining)
            if not of_follower:
                result = replica.fetch_for_consumer(
                    max(NO_EPOCH, part.current_leader_epoch),
                    part.fetch_offset,
                    max(NO_EPOCH, part.last_fetched_epoch),
                    size,
                    at_least_one,
                )
            elif first:
                follower_fetch = ReplicaFetch(
                    replica_id,
                    request.body.replica_state.replica_epoch,
                    part.current_leader_epoch,
                    part.fetch_offset,
                    part.last_fetched_epoch,
                    log_start=part.log_start_offset,
                )
                result = replica.fetch_for_replica(
                    follower_fetch, request.connection, self._replica_manager.active, size, at_least_one
                )
            else:
                result = replica.read_for_replica(
                    replica_id, part.current_leader_epoch, part.fetch_offset, size, at_least_one
                )
            if result.records:
                remaining, at_least_one = max(0, remaining - len(result.records)), False
            results.append(result)
        return results


def _refusal(error: ErrorCode, diverging: bool) -> str:
    """What an answer says of a partition of which it gives no records, for the trace."""
    return _DIVERGING if diverging else error.name


def _trace_log_starts(
    replica_id: int, fetches: list[_PartitionFetch], results: list[FetchResult], answer: FetchResponse
) -> None:
    """Trace each log start that this follower has had no answer with, and what this answer tells of it."""
    for fetch, result in zip(fetches, results, strict=True):
        replica = fetch.replica
        if replica is None or result.error is not NO_ERROR or result.diverging is not None:
            continue
        if replica.remember_start(replica_id, result.log_start):
            part = _told(answer).get((fetch.topic_id, fetch.partition.partition))
            detail = {"replica": replica_id, "told": part.log_start_offset if part is not None else NO_OFFSET}
            replica.trace("log_start_told", result.log_start, replica.state.log_end, detail)


def _told(answer: FetchResponse) -> dict[tuple[Any, int], FetchPartitionResponse]:
    """What an answer says of each partition that it does not leave out."""
    return {(topic.topic_id, part.partition_index): part for topic in answer.responses for part in topic.partitions}


def _is_follower(replica_id: int) -> bool:
    """Whether the sender is a broker. Consumers have negative ids: -1, and -2 in Kafka's debugging tools."""
    return replica_id >= 0


def _changes(fetches: list[_PartitionFetch], of_follower: bool) -> list[Condition]:
    """The conditions upon which the partitions are read again."""
    return [
        fetch.replica.changed_for_followers if of_follower else fetch.replica.changed
        for fetch in fetches
        if fetch.replica is not None
    ]


def _last_of_each_partition(body: ProduceRequest) -> dict[tuple[str, int], Any]:
    """Entries of a request by partition. As in Kafka, the last entry counts if there are several."""
    return {(topic.name, part.index): part for topic in body.topic_data for part in topic.partition_data}


def _produced_batch(records: bytes | None) -> bytes | ErrorCode:
    try:
        return produced_batch(records)
    except InvalidRecord:
        return ErrorCode.invalid_record
    except CorruptBatch:
        return ErrorCode.corrupt_message


def _hang_up_if_refused(appends: dict[str, list[tuple[int, Replica | None, AppendResult]]]) -> None:
    for topic, partitions in appends.items():
        for index, _, result in partitions:
            if result.error is not NO_ERROR:
                raise CloseConnection(f"refused with acks=0: {topic}-{index}: {result.error.name}")


def _worth_answering(results: list[FetchResult], min_bytes: int) -> bool:
    size = 0
    for result in results:
        if result.error is not NO_ERROR or result.diverging is not None or result.urgent:
            return True
        size += len(result.records)
    return size >= min_bytes or not results


def _produce_response(
    index: int, error: ErrorCode, result: AppendResult, replica: Replica | None
) -> PartitionProduceResponse:
    optional: dict[str, Any] = {}
    if error is ErrorCode.not_leader_or_follower and replica is not None:
        optional["current_leader"] = ProduceLeader(
            leader_id=replica.state.leader, leader_epoch=replica.state.leader_epoch
        )
    return PartitionProduceResponse(
        index=index,
        error_code=error,
        base_offset=result.base_offset if error is NO_ERROR else -1,
        log_append_time=None,
        log_start_offset=result.log_start,
        record_errors=(),
        **optional,
    )


def _fetch_response(
    fetches: list[_PartitionFetch], results: list[FetchResult], context: FetchContext, *, tell_leader: bool
) -> FetchResponse:
    session = context.session
    # Keyed by the topic id as a number: UUIDs hash in Python, which is slow.
    topics: dict[int | None, tuple[Any, list[FetchPartitionResponse]]] = {}
    for fetch, result in zip(fetches, results, strict=True):
        if session is not None:
            key = (fetch.topic_id, fetch.partition.partition)
            empty = result.error is NO_ERROR and result.diverging is None and not result.records
            differs = session.answered(key, result.high_watermark, result.log_start, records=bool(result.records))
            if context.incremental and empty and not differs:
                continue
        optional: dict[str, Any] = {}
        if result.diverging is not None:
            epoch, end = result.diverging
            optional["diverging_epoch"] = DivergingEpoch(epoch=epoch, end_offset=end)
        if fetch.replica is not None and tell_leader and result.error in _OF_ANOTHER_LEADER:
            state = fetch.replica.state
            optional["current_leader"] = LeaderIdAndEpoch(leader_id=state.leader, leader_epoch=state.leader_epoch)
        number = None if fetch.topic_id is None else fetch.topic_id.int
        topics.setdefault(number, (fetch.topic_id, []))[1].append(
            FetchPartitionResponse(
                partition_index=fetch.partition.partition,
                error_code=result.error,
                high_watermark=result.high_watermark,
                last_stable_offset=result.high_watermark,
                log_start_offset=result.log_start,
                aborted_transactions=None,
                records=result.records,
                **optional,
            )
        )
    return FetchResponse(
        throttle_time=NO_THROTTLE,
        error_code=NO_ERROR,
        session_id=NO_SESSION if session is None else session.id,
        responses=tuple(
            FetchableTopicResponse(topic_id=topic, partitions=tuple(partitions))
            for topic, partitions in topics.values()
        ),
    )
