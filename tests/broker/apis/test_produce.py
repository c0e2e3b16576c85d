"""Produce: each partition is answered for itself, and nothing that is refused is appended."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from kio.schema.errors import ErrorCode

from images.broker.runtime.server import CloseConnection
from images.wire import batch as batches
from tests.broker.apis.data_path import MAX_INT32, Broker, produced, run, settle


def test_a_partition_that_changed_hands_while_another_was_waited_for_is_not_acknowledged() -> None:
    async def scenario() -> None:
        broker = Broker()
        broker.elect(1, 1, isr=(1, 2))
        broker.elect(1, 1, index=1, isr=(1, 2))
        waiting = asyncio.ensure_future(broker.produce((0, produced(b"a")), (1, produced(b"b"))))
        await settle()
        broker.elect(2, 2, index=1, isr=(2,))
        broker.partition(1).on_divergence(1, 2, 1, 0)
        assert broker.partition(1).log.end == 0
        broker.elect(1, 3, index=1)
        await broker.produce((1, produced(b"c")))
        broker.follow(0, 1, epoch=1)
        first, second = await waiting
        assert first.error_code is ErrorCode.none
        assert second.error_code is ErrorCode.not_leader_or_follower

    run(scenario)


def test_a_former_leader_answers_with_the_current_leader() -> None:
    async def scenario() -> None:
        broker = Broker()
        broker.elect(2, 1)
        (answer,) = await broker.produce((0, produced(b"a")))
        assert answer.error_code is ErrorCode.not_leader_or_follower
        assert (answer.current_leader.leader_id, answer.current_leader.leader_epoch) == (2, 1)

    run(scenario)


@pytest.mark.parametrize("acks", [2, -2, MAX_INT32 % 1000, -100])
def test_acks_that_do_not_exist_are_refused_before_anything_is_appended(acks: int) -> None:
    async def scenario() -> None:
        broker = Broker()
        answers = await broker.produce((0, produced(b"a")), (7, None), acks=acks)
        assert [answer.error_code for answer in answers] == [ErrorCode.invalid_required_acks] * 2
        assert broker.partition().log.end == 0

    run(scenario)


def test_each_partition_of_a_produce_is_answered_for_itself() -> None:
    async def scenario() -> None:
        broker = Broker()
        two = produced(b"a") + produced(b"b")
        answers = await broker.produce((0, produced(b"a")), (-1, produced(b"a")), (1, two))
        assert [(answer.index, answer.error_code, answer.base_offset) for answer in answers] == [
            (0, ErrorCode.none, 0),
            (-1, ErrorCode.unknown_topic_or_partition, -1),
            (1, ErrorCode.invalid_record, -1),
        ]

    run(scenario)


def test_of_a_partition_twice_in_a_produce_the_last_batch_counts() -> None:
    async def scenario() -> None:
        broker = Broker()
        answers = await broker.produce((0, produced(b"a")), (0, produced(b"b", b"c")))
        assert [(answer.index, answer.base_offset) for answer in answers] == [(0, 0)]
        assert broker.partition().log.end == 2

    run(scenario)


def test_a_produce_tells_the_log_start_unless_the_log_did_not_look_into_the_batch() -> None:
    async def scenario() -> None:
        broker = Broker()
        (good,) = await broker.produce((0, produced(b"a")))
        (without_sequence,) = await broker.produce((0, batches.build([b"a"], timestamp_ms=5, producer_id=7)))
        (damaged,) = await broker.produce((0, produced(b"a")[:-1] + b"\xff"))
        assert [answer.log_start_offset for answer in (good, without_sequence, damaged)] == [0, 0, -1]
        assert without_sequence.error_code is ErrorCode.invalid_record
        assert damaged.error_code is ErrorCode.corrupt_message

    run(scenario)


def test_a_transactional_batch_is_refused_and_without_a_transactional_id_its_whole_request() -> None:
    async def scenario() -> None:
        broker = Broker()
        content = bytearray(produced(b"a"))
        content[22] |= 0x10
        transactional = bytes(content[:17]) + batches.crc32c(bytes(content[21:])).to_bytes(4) + bytes(content[21:])
        answers = await broker.produce((0, transactional), (1, produced(b"b")))
        assert {answer.error_code for answer in answers} == {ErrorCode.transactional_id_authorization_failed}
        answers = await broker.produce((0, transactional), (1, produced(b"b")), transactional_id="some")
        assert [answer.error_code for answer in answers] == [ErrorCode.invalid_producer_id_mapping, ErrorCode.none]
        assert broker.partition().log.end == 0

    run(scenario)


def test_a_batch_larger_than_a_segment_is_refused() -> None:
    async def scenario() -> None:
        broker = Broker()
        log = broker.partition().log
        log.config = replace(log.config, segment_bytes=100)
        (answer,) = await broker.produce((0, produced(b"x" * 100)))
        assert (answer.error_code, answer.log_start_offset) == (ErrorCode.record_list_too_large, -1)
        (answer,) = await broker.produce((0, produced(b"x")))
        assert answer.error_code is ErrorCode.none

    run(scenario)


@pytest.mark.parametrize("timeout_s", [-1.0, 0.0])
def test_a_produce_that_may_not_wait_does_not(timeout_s: float) -> None:
    async def scenario() -> None:
        broker = Broker()
        broker.elect(1, 1, isr=(1, 2))
        (answer,) = await broker.produce((0, produced(b"a")), timeout_s=timeout_s)
        assert answer.error_code is ErrorCode.request_timed_out

    run(scenario)


def test_a_producer_that_wants_no_answer_learns_of_a_refusal_by_its_connection() -> None:
    async def scenario() -> None:
        broker = Broker()
        assert await broker.produce((0, produced(b"a")), acks=0) is None
        broker.elect(2, 1, index=1, isr=(2,))
        with pytest.raises(CloseConnection, match="t-1: not_leader_or_follower"):
            await broker.produce((0, produced(b"b")), (1, produced(b"c")), acks=0)
        assert broker.partition().log.end == 2

    run(scenario)
