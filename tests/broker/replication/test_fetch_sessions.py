"""Fetch sessions: each side alone, both sides when messages are lost, and at a broker."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping
from datetime import timedelta
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode
from kio.schema.fetch.v16 import request as fetching

from images.broker.replication.fetch_sessions import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    FetchSessionCache,
    FetchSessionHandler,
    Key,
    SessionPartition,
    SessionRequest,
)
from images.wire.messages import Api
from tests.broker.apis.data_path import TOPIC, Broker, produced

OTHER = uuid.UUID(int=99)


def request(session_request: SessionRequest, replica: int = 2) -> Any:
    """The FetchRequest with these session fields."""
    topics: dict[uuid.UUID, list[Any]] = {}
    for topic, part in session_request.changed:
        topics.setdefault(topic, []).append(part)
    forgotten: dict[uuid.UUID, list[int]] = {}
    for topic, index in session_request.forgotten:
        forgotten.setdefault(topic, []).append(index)
    return fetching.FetchRequest(
        replica_state=fetching.ReplicaState(replica_id=replica, replica_epoch=replica - 1),
        max_wait=timedelta(0),
        min_bytes=0,
        session_id=session_request.session_id,
        session_epoch=session_request.epoch,
        topics=tuple(fetching.FetchTopic(topic_id=topic, partitions=tuple(it)) for topic, it in topics.items()),
        forgotten_topics_data=tuple(
            fetching.ForgottenTopic(topic_id=topic, partitions=tuple(it)) for topic, it in forgotten.items()
        ),
    )


def part(index: int, offset: int = 0, epoch: int = 0) -> Any:
    return fetching.FetchPartition(
        partition=index, fetch_offset=offset, current_leader_epoch=epoch, partition_max_bytes=1 << 20
    )


def wanted(*parts: Any, topic: uuid.UUID = TOPIC) -> dict[Key, Any]:
    return {(topic, each.partition): each for each in parts}


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def sessions(slots: int = 2, clock: Clock | None = None) -> FetchSessionCache:
    return FetchSessionCache(slots, 60.0, clock or Clock(), Random(1))


def partitions_of(context: Any) -> dict[Key, Any]:
    return {(topic, each.partition): each for topic, each in context.partitions}


# --- both sides -------------------------------------------------------------------------------------------------------


def test_a_request_has_the_changed_partitions_and_the_leader_serves_all() -> None:
    leader, follower = sessions(), FetchSessionHandler()
    first = leader.open(request(follower.next_request(wanted(part(0), part(1)))), of_follower=True)
    assert follower.answered(ErrorCode.none, first.session.id if first.session else 0)
    next_request = follower.next_request(wanted(part(0, offset=5), part(1)))
    assert [each.partition.partition for each in next_request.changed] == [0]
    assert partitions_of(leader.open(request(next_request), of_follower=True)) == wanted(part(0, offset=5), part(1))


def test_a_partition_that_is_no_longer_fetched_is_forgotten() -> None:
    leader, follower = sessions(), FetchSessionHandler()
    first = leader.open(request(follower.next_request(wanted(part(0), part(1)))), of_follower=True)
    follower.answered(ErrorCode.none, first.session.id if first.session else 0)
    next_request = follower.next_request(wanted(part(1)))
    assert (next_request.changed, next_request.forgotten) == ([], [(TOPIC, 0)])
    assert partitions_of(leader.open(request(next_request), of_follower=True)) == wanted(part(1))


@settings(max_examples=300)
@given(st.data())
def test_the_leader_serves_exactly_the_follower_s_partitions_whatever_is_lost(data: st.DataObject) -> None:
    leader, follower = sessions(slots=1), FetchSessionHandler()
    rival = FetchSessionHandler()
    for _ in range(data.draw(st.integers(1, 12))):
        want: Mapping[Key, Any] = {
            (topic, index): part(index, offset=data.draw(st.integers(0, 2)))
            for topic in data.draw(st.sets(st.sampled_from([TOPIC, OTHER])))
            for index in data.draw(st.sets(st.integers(0, 2)))
        }
        fate = data.draw(st.sampled_from(["answered", "request lost", "answer lost", "evicted"]))
        if fate == "evicted":
            rival.begin_anew()
            leader.open(request(rival.next_request(wanted(part(7)))), of_follower=True)
        next_request = follower.next_request(want)
        if fate == "request lost":
            follower.begin_anew()
            continue
        context = leader.open(request(next_request), of_follower=True)
        if fate == "answer lost":
            follower.begin_anew()
            continue
        if context.error is ErrorCode.none:
            assert partitions_of(context) == want
        follower.answered(context.error, context.session.id if context.session else 0)


def test_a_partition_of_which_the_answer_was_discarded_is_sent_again_or_forgotten() -> None:
    leader, follower = sessions(), FetchSessionHandler()
    first = leader.open(request(follower.next_request(wanted(part(0), part(1)))), of_follower=True)
    assert first.session is not None
    assert follower.answered(ErrorCode.none, first.session.id)
    follower.discarded((TOPIC, 0))
    follower.discarded((OTHER, 0))
    again = follower.next_request(wanted(part(0), part(1)))
    assert ([each.partition.partition for each in again.changed], again.forgotten) == ([0], [])
    leader.open(request(again), of_follower=True)
    assert follower.answered(ErrorCode.none, first.session.id)
    follower.discarded((TOPIC, 0))
    last = follower.next_request(wanted(part(1)))
    assert (last.changed, last.forgotten) == ([], [(TOPIC, 0)])
    assert partitions_of(leader.open(request(last), of_follower=True)) == wanted(part(1))


# --- the leader's side ------------------------------------------------------------------------------------------------


def test_an_unknown_session_and_an_epoch_out_of_turn_are_refused() -> None:
    leader = sessions()
    assert (
        leader.open(request(SessionRequest(77, 3, [], [])), of_follower=True).error
        is ErrorCode.fetch_session_id_not_found
    )
    session = leader.open(request(FetchSessionHandler().next_request(wanted(part(0)))), of_follower=True).session
    assert session is not None
    error = leader.open(request(SessionRequest(session.id, 2, [], [])), of_follower=True).error
    assert error is ErrorCode.invalid_fetch_session_epoch


def test_a_full_request_closes_its_session() -> None:
    leader, follower = sessions(), FetchSessionHandler()
    session = leader.open(request(follower.next_request(wanted(part(0)))), of_follower=True).session
    assert session is not None
    closing = request(SessionRequest(session.id, FINAL_EPOCH, [], []))
    assert leader.open(closing, of_follower=True).session is None
    assert len(leader) == 0


def test_a_session_that_has_forgotten_everything_is_closed_and_the_client_opens_another() -> None:
    leader, follower = sessions(), FetchSessionHandler()
    first = leader.open(request(follower.next_request(wanted(part(0)))), of_follower=True)
    assert first.session is not None
    follower.answered(ErrorCode.none, first.session.id)
    forgetting = leader.open(request(follower.next_request({})), of_follower=True)
    assert (forgetting.error, forgetting.session, len(leader)) == (ErrorCode.none, None, 0)
    follower.answered(ErrorCode.none, 0)
    assert follower.next_request(wanted(part(1))).epoch == INITIAL_EPOCH


def test_a_partition_forgotten_and_wanted_at_once_is_served_for_the_last_time() -> None:
    leader = sessions()
    session = leader.open(request(SessionRequest(0, 0, _list(part(0), part(1)), [])), of_follower=True).session
    assert session is not None
    context = leader.open(request(SessionRequest(session.id, 1, _list(part(1)), [(TOPIC, 1)])), of_follower=True)
    assert partitions_of(context) == wanted(part(0))
    context = leader.open(request(SessionRequest(session.id, 2, _list(part(0)), [(TOPIC, 0)])), of_follower=True)
    assert partitions_of(context) == wanted(part(0))
    assert context.session is None


def test_a_session_may_begin_without_partitions() -> None:
    leader = sessions()
    session = leader.open(request(SessionRequest(0, 0, [], [])), of_follower=False).session
    assert session is not None
    context = leader.open(request(SessionRequest(session.id, 1, _list(part(0)), [])), of_follower=False)
    assert partitions_of(context) == wanted(part(0))
    assert context.session is session


def test_a_request_by_name_does_not_continue_a_session_by_id() -> None:
    leader = sessions()
    session = leader.open(request(SessionRequest(0, 0, _list(part(0)), [])), of_follower=False).session
    assert session is not None
    by_name = request(SessionRequest(session.id, 1, [], []))
    assert leader.open(by_name, of_follower=False, names={}).error is ErrorCode.fetch_session_topic_id_error
    assert leader.open(by_name, of_follower=False).error is ErrorCode.none, "the session and its epoch are as they were"


def _list(*parts: Any) -> list[SessionPartition]:
    return [SessionPartition(TOPIC, each) for each in parts]


def test_a_follower_evicts_a_consumer_s_session_and_a_consumer_only_an_idle_one() -> None:
    clock = Clock()
    leader = sessions(slots=1, clock=clock)

    def ask(*, of_follower: bool) -> Any:
        return leader.open(
            request(SessionRequest(0, INITIAL_EPOCH, [*_changed()], [])), of_follower=of_follower
        ).session

    assert ask(of_follower=False) is not None
    assert ask(of_follower=False) is None
    assert ask(of_follower=True) is not None
    assert ask(of_follower=True) is None
    clock.now_s = 60.0
    assert ask(of_follower=False) is not None


def _changed() -> Any:
    return FetchSessionHandler().next_request(wanted(part(0))).changed


def test_a_session_by_name_keeps_the_names_of_its_partitions_and_of_no_others() -> None:
    leader = sessions()
    first = SessionRequest(0, INITIAL_EPOCH, [*_changed(), SessionPartition(OTHER, part(0))], [])
    session = leader.open(request(first), of_follower=False, names={TOPIC: "t", OTHER: "o"}).session
    assert session is not None
    by_id = request(SessionRequest(session.id, 1, [], []))
    assert leader.open(by_id, of_follower=False).error is ErrorCode.fetch_session_topic_id_error
    forgetting = request(SessionRequest(session.id, 1, [], [(OTHER, 0)]))
    context = leader.open(forgetting, of_follower=False, names={OTHER: "o"})
    assert (context.session, partitions_of(context)) == (session, wanted(part(0)))
    assert session.names == {TOPIC: "t"}


# --- at a broker ------------------------------------------------------------------------------------------------------


def served(scenario: Any) -> None:
    async def limited() -> None:
        async with asyncio.timeout(120):
            await scenario()

    asyncio.run(limited())


def test_an_answer_within_a_session_has_only_the_changed_partitions() -> None:
    async def scenario() -> None:
        broker, consumer = Broker(), FetchSessionHandler()

        async def ask(*parts: Any) -> list[int]:
            answer = await broker.ask(Api.FETCH, request(consumer.next_request(wanted(*parts)), replica=-1))
            assert consumer.answered(answer.error_code, answer.session_id)
            return [each.partition_index for topic in answer.responses for each in topic.partitions]

        assert await ask(part(0), part(1)) == [0, 1]
        assert await ask(part(0), part(1)) == []
        await broker.produce((1, produced(b"news")))
        assert await ask(part(0), part(1)) == [1]
        assert await ask(part(0), part(1, offset=1)) == []

    served(scenario)


@pytest.mark.parametrize(("replica", "repeated"), [(2, [0]), (-1, [])])
def test_a_partition_that_a_follower_names_is_answered_though_nothing_has_changed(
    replica: int, repeated: list[int]
) -> None:
    """It may have discarded the last answer. A consumer's fetch is answered as by Kafka."""

    async def scenario() -> None:
        broker, client = Broker(), FetchSessionHandler()

        async def ask() -> list[int]:
            answer = await broker.ask(
                Api.FETCH, request(client.next_request(wanted(part(0), part(1))), replica=replica)
            )
            assert client.answered(answer.error_code, answer.session_id)
            return [each.partition_index for topic in answer.responses for each in topic.partitions]

        assert await ask() == [0, 1]
        client.discarded((TOPIC, 0))
        assert await ask() == repeated
        assert await ask() == []

    served(scenario)


@pytest.mark.parametrize("replica", [2, -1])
def test_a_partition_of_a_session_is_fenced_though_it_is_not_in_the_request(replica: int) -> None:
    async def scenario() -> None:
        broker, consumer = Broker(), FetchSessionHandler()

        async def ask() -> list[ErrorCode]:
            answer = await broker.ask(
                Api.FETCH, request(consumer.next_request(wanted(part(0), part(1))), replica=replica)
            )
            assert consumer.answered(answer.error_code, answer.session_id)
            return [each.error_code for topic in answer.responses for each in topic.partitions]

        await ask()
        broker.elect(1, 4)
        assert await ask() == [ErrorCode.fenced_leader_epoch]
        assert await ask() == [ErrorCode.fenced_leader_epoch]

    served(scenario)
