"""The outcome a producer reports is never more than it knows."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

import pytest

from images.wire.batch import parse
from tests.workloads.scripted_cluster import (
    APPEND,
    APPEND_IN_SILENCE,
    DROP_AFTER,
    DROP_BEFORE,
    SILENCE,
    TOPIC,
    ScriptedCluster,
    Step,
    answer,
)
from tests.workloads.virtual_time import run
from workloads.clients import partition_sender
from workloads.clients.native import Client, ClientTimeouts, Delivery, Producer

TIMEOUTS = ClientTimeouts(request_timeout_s=1.0, connect_timeout_s=1.0, backoff_s=0.05, backoff_s_max=0.4)
DELIVERY_TIMEOUT_S = 4.0


def with_producer(
    test: Callable[[ScriptedCluster, Producer], Awaitable[None]],
    *,
    brokers: int = 1,
    partitions: int = 1,
    acks: int = -1,
    first_sequence: int = 0,
) -> None:
    async def main() -> None:
        async with ScriptedCluster(brokers=brokers, partitions=partitions) as cluster:
            client = Client(cluster.addresses, "test", Random(5), TIMEOUTS)
            producer = Producer(
                client, TOPIC, acks=acks, delivery_timeout_s=DELIVERY_TIMEOUT_S, first_sequence=first_sequence
            )
            try:
                await test(cluster, producer)
            finally:
                await producer.close()
                await client.close()

    run(main())


def deliver(script: list[Step], otherwise: Step = APPEND) -> tuple[Delivery, ScriptedCluster]:
    """The outcome of one append under a script."""
    result: list[Delivery] = []
    clusters: list[ScriptedCluster] = []

    async def test(cluster: ScriptedCluster, producer: Producer) -> None:
        clusters.append(cluster)
        cluster.script.extend(script)
        cluster.otherwise = otherwise
        result.append(await producer.append(0, [b"1"]))

    with_producer(test)
    return result[0], clusters[0]


def test_an_acknowledged_batch_is_ok_with_its_offset() -> None:
    delivery, cluster = deliver([])
    assert delivery == Delivery("ok", base_offset=0, attempts=1)
    assert cluster.logs[0].values() == [1]


def test_an_error_of_the_producer_itself_reaches_every_append_also_later_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_batch(*_: object, **__: object) -> bytes:
        raise ZeroDivisionError

    async def test(_: ScriptedCluster, producer: Producer) -> None:
        monkeypatch.setattr(partition_sender, "build", no_batch)
        for _append in range(2):
            with pytest.raises(ZeroDivisionError):
                await producer.append(0, [b"1"])

    with_producer(test)


def test_not_enough_replicas_until_the_timeout_is_fail() -> None:
    delivery, cluster = deliver([], otherwise=answer(19))
    assert (delivery.outcome, delivery.error) == ("fail", "NOT_ENOUGH_REPLICAS")
    assert delivery.attempts > 5
    assert cluster.logs[0].values() == []


@pytest.mark.parametrize(
    "before", [DROP_BEFORE, DROP_AFTER, SILENCE, APPEND_IN_SILENCE, answer(6), answer(7), answer(20)]
)
def test_not_enough_replicas_is_info_once_an_earlier_attempt_may_have_appended(before: Step) -> None:
    delivery, _ = deliver([before], otherwise=answer(19))
    assert (delivery.outcome, delivery.error) == ("info", "NOT_ENOUGH_REPLICAS")


@pytest.mark.parametrize("error", [3, 5, 6, 7, 20, 56, 74, 75, 78, -1])
@pytest.mark.parametrize("appended", [True, False])
def test_an_error_that_may_follow_an_append_is_info(error: int, appended: bool) -> None:
    delivery, _ = deliver([], otherwise=answer(error, append=appended))
    assert delivery.outcome == "info"


@pytest.mark.parametrize("step", [DROP_BEFORE, DROP_AFTER])
def test_lost_connections_until_the_timeout_are_info(step: Step) -> None:
    delivery, _ = deliver([], otherwise=step)
    assert (delivery.outcome, delivery.error) == ("info", "connection")


@pytest.mark.parametrize("step", [SILENCE, APPEND_IN_SILENCE])
def test_no_answer_until_the_timeout_is_info_within_the_delivery_and_one_request_timeout(step: Step) -> None:
    async def test(cluster: ScriptedCluster, producer: Producer) -> None:
        cluster.otherwise = step
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        delivery = await producer.append(0, [b"1"])
        assert (delivery.outcome, delivery.error) == ("info", "timeout")
        assert DELIVERY_TIMEOUT_S <= loop.time() - begun_s <= DELIVERY_TIMEOUT_S + TIMEOUTS.request_timeout_s + 0.1

    with_producer(test)


def test_a_batch_that_was_never_sent_is_fail() -> None:
    async def main() -> None:
        async with ScriptedCluster() as cluster:
            addresses = cluster.addresses
        client = Client(addresses, "test", Random(5), TIMEOUTS)
        producer = Producer(client, TOPIC, delivery_timeout_s=DELIVERY_TIMEOUT_S)
        delivery = await producer.append(0, [b"1"])
        assert (delivery.outcome, delivery.attempts) == ("fail", 0)
        await producer.close()
        await client.close()

    run(main())


@pytest.mark.parametrize(
    "trouble",
    [answer(19), answer(6), answer(7), answer(7, append=True), answer(20, append=True), DROP_BEFORE, DROP_AFTER,
     SILENCE, APPEND_IN_SILENCE, answer(2), answer(74)],
)  # fmt: skip
def test_a_retry_sends_the_same_bytes_and_appends_once(trouble: Step) -> None:
    delivery, cluster = deliver([trouble, trouble])
    assert delivery == Delivery("ok", base_offset=0, attempts=3)
    assert len(set(cluster.produced)) == 1
    assert cluster.logs[0].values() == [1]


@pytest.mark.parametrize(("error", "name"), [(45, "OUT_OF_ORDER_SEQUENCE_NUMBER"), (47, "INVALID_PRODUCER_EPOCH"),
                                             (59, "UNKNOWN_PRODUCER_ID"), (10, "MESSAGE_TOO_LARGE")])  # fmt: skip
def test_a_final_refusal_is_fail_alone_and_info_after_an_attempt_that_may_have_appended(error: int, name: str) -> None:
    delivery, _ = deliver([answer(error)])
    assert delivery == Delivery("fail", error=name, attempts=1)
    delivery, _ = deliver([answer(19), answer(error)])
    assert delivery == Delivery("fail", error=name, attempts=2)
    delivery, _ = deliver([DROP_AFTER, answer(error)])
    assert delivery == Delivery("info", error=name, attempts=2)


@pytest.mark.parametrize(("error", "same_id"), [(45, True), (10, True), (47, False), (59, False)])
def test_after_a_final_refusal_the_sequence_restarts(error: int, same_id: bool) -> None:
    async def test(cluster: ScriptedCluster, producer: Producer) -> None:
        await producer.append(0, [b"1"])
        cluster.script.append(answer(error))
        await producer.append(0, [b"2"])
        assert (await producer.append(0, [b"3"])).outcome == "ok"
        first, last = parse(cluster.produced[0]), parse(cluster.produced[-1])
        assert last.base_sequence == 0
        assert (last.producer_id == first.producer_id) is same_id
        assert last.producer_epoch == (first.producer_epoch + 1 if same_id else 0)
        assert cluster.logs[0].values() == [1, 3]

    with_producer(test)


def test_a_batch_that_is_acknowledged_without_an_offset_is_ok() -> None:
    delivery, cluster = deliver([Step(without_offset=True)])
    assert delivery == Delivery("ok", base_offset=None, attempts=1)
    assert cluster.logs[0].values() == [1]


def test_sequence_numbers_begin_again_at_0_after_the_last_one() -> None:
    async def test(cluster: ScriptedCluster, producer: Producer) -> None:
        for values in ([b"1", b"2"], [b"3", b"4", b"5"], [b"6"]):
            assert (await producer.append(0, values)).outcome == "ok"
        assert [parse(data).base_sequence for data in cluster.produced] == [(1 << 31) - 4, (1 << 31) - 2, 1]

    with_producer(test, first_sequence=(1 << 31) - 4)


def test_a_duplicate_without_a_known_offset_is_info_and_the_sequence_goes_on() -> None:
    async def test(cluster: ScriptedCluster, producer: Producer) -> None:
        cluster.script.append(answer(46, append=True))
        assert await producer.append(0, [b"1"]) == Delivery("info", error="DUPLICATE_SEQUENCE_NUMBER", attempts=1)
        assert (await producer.append(0, [b"2"])).outcome == "ok"
        assert [parse(data).base_sequence for data in cluster.produced] == [0, 1]

    with_producer(test)


@pytest.mark.parametrize("trouble", [answer(19), answer(7), DROP_BEFORE, DROP_AFTER, SILENCE])
def test_five_batches_in_flight_stay_in_order_when_the_first_is_retried(trouble: Step) -> None:
    async def test(cluster: ScriptedCluster, producer: Producer) -> None:
        await producer.append(0, [b"0"])  # so that the broker knows the producer and can see a gap
        cluster.script.append(trouble)
        deliveries = await asyncio.gather(*(producer.append(0, [b"%d" % value]) for value in range(1, 9)))
        assert [delivery.base_offset for delivery in deliveries] == [1, 2, 3, 4, 5, 6, 7, 8]
        assert cluster.logs[0].values() == list(range(9))

    with_producer(test)


def test_the_first_batch_of_a_producer_id_is_sent_alone() -> None:
    async def test(cluster: ScriptedCluster, producer: Producer) -> None:
        cluster.script.append(answer(7))  # not appended: were the next one there, an unknowing broker would take it
        deliveries = await asyncio.gather(*(producer.append(0, [b"%d" % value]) for value in range(5)))
        assert [delivery.base_offset for delivery in deliveries] == [0, 1, 2, 3, 4]
        assert [parse(data).base_sequence for data in cluster.produced] == [0, 0, 1, 2, 3, 4]

    with_producer(test)


def test_batches_of_several_records_are_numbered_by_record() -> None:
    async def test(cluster: ScriptedCluster, producer: Producer) -> None:
        first = await producer.append(0, [b"1", b"2", b"3"])
        second = await producer.append(0, [b"4"])
        assert (first.base_offset, second.base_offset) == (0, 3)
        assert [parse(data).base_sequence for data in cluster.produced] == [0, 3]

    with_producer(test)


def test_batches_behind_a_final_refusal_are_renumbered_and_appended_once() -> None:
    async def test(cluster: ScriptedCluster, producer: Producer) -> None:
        await producer.append(0, [b"0"])
        cluster.script.append(answer(10))
        deliveries = await asyncio.gather(*(producer.append(0, [b"%d" % value]) for value in range(1, 6)))
        assert [delivery.outcome for delivery in deliveries] == ["fail", "ok", "ok", "ok", "ok"]
        assert cluster.logs[0].values() == [0, 2, 3, 4, 5]

    with_producer(test)


def test_batches_behind_an_unresolved_one_that_may_be_appended_are_info_and_the_rest_goes_on() -> None:
    async def test(cluster: ScriptedCluster, producer: Producer) -> None:
        await producer.append(0, [b"-1"])
        cluster.otherwise = SILENCE
        early = [producer.append(0, [b"%d" % value]) for value in range(3)]
        await asyncio.sleep(DELIVERY_TIMEOUT_S - 0.5)
        late = [producer.append(0, [b"%d" % value]) for value in range(3, 10)]  # two find places, five wait
        await asyncio.wait(early)
        cluster.otherwise = APPEND
        assert {future.result().outcome for future in early} == {"info"}
        outcomes = [(await future).outcome for future in late]
        assert outcomes == ["info", "info", "ok", "ok", "ok", "ok", "ok"]
        assert parse(cluster.produced[-1]).producer_epoch == 1
        appended = [value for value, outcome in zip(range(3, 10), outcomes, strict=True) if outcome == "ok"]
        assert cluster.logs[0].values() == [-1, *appended]

    with_producer(test)


def test_a_moved_leader_is_found_and_gets_the_batches_in_order() -> None:
    async def test(cluster: ScriptedCluster, producer: Producer) -> None:
        await producer.append(0, [b"0"])
        futures = [producer.append(0, [b"%d" % value]) for value in range(1, 4)]
        cluster.leaders[0] = (2, 1)
        assert [(await future).base_offset for future in futures] == [1, 2, 3]
        assert cluster.logs[0].values() == [0, 1, 2, 3]

    with_producer(test, brokers=2)


def test_nothing_reaches_a_new_leader_before_the_old_one_has_answered() -> None:
    async def test(cluster: ScriptedCluster, producer: Producer) -> None:
        await producer.append(0, [b"0"])
        cluster.script.append(Step(append=False, error=6, delay_s=0.5))
        first = producer.append(0, [b"1"])
        await asyncio.sleep(0.1)
        cluster.leaders[0] = (2, 1)
        await producer.client.refresh()
        second = producer.append(0, [b"2"])
        assert [(await first).base_offset, (await second).base_offset] == [1, 2]
        assert [parse(data).base_sequence for data in cluster.produced] == [0, 1, 1, 2]

    with_producer(test, brokers=2)


def test_partitions_do_not_wait_for_each_other() -> None:
    async def test(cluster: ScriptedCluster, producer: Producer) -> None:
        cluster.leaders[0] = (9, 5)  # nobody knows where
        stuck = producer.append(0, [b"0"])
        assert (await producer.append(1, [b"1"])).outcome == "ok"
        assert not stuck.done()

    with_producer(test, brokers=2, partitions=2)


def test_acks_0_is_info_since_no_broker_acknowledged() -> None:
    async def test(cluster: ScriptedCluster, producer: Producer) -> None:
        deliveries = [await producer.append(0, [b"%d" % value]) for value in range(3)]
        assert deliveries == [Delivery("info", error="no acknowledgement", attempts=1)] * 3
        await asyncio.sleep(0.1)
        assert cluster.logs[0].values() == [0, 1, 2]
        assert {parse(data).producer_id for data in cluster.produced} == {-1}

    with_producer(test, acks=0)


def test_acks_1_is_idempotent_too() -> None:
    async def test(cluster: ScriptedCluster, producer: Producer) -> None:
        cluster.script.append(DROP_AFTER)
        assert await producer.append(0, [b"1"]) == Delivery("ok", base_offset=0, attempts=2)
        assert cluster.logs[0].values() == [1]

    with_producer(test, acks=1)


def test_close_resolves_every_batch_with_the_outcome_that_is_known() -> None:
    async def test(cluster: ScriptedCluster, producer: Producer) -> None:
        await producer.append(0, [b"-1"])
        cluster.otherwise = SILENCE
        futures = [producer.append(0, [b"%d" % value]) for value in range(7)]
        await asyncio.sleep(0.5)
        await producer.close()
        assert [future.result().outcome for future in futures] == ["info"] * 5 + ["fail"] * 2
        with pytest.raises(RuntimeError, match="closed"):
            producer.append(0, [b"8"])

    with_producer(test)


@pytest.mark.parametrize("seed", range(60))
def test_under_any_script_ok_is_in_the_log_once_at_its_offset_and_fail_is_not_in_it(seed: int) -> None:
    random = Random(seed)
    troubles = [APPEND, APPEND, answer(19), answer(6), answer(7), answer(7, append=True), answer(20, append=True),
                DROP_BEFORE, DROP_AFTER, SILENCE, APPEND_IN_SILENCE, answer(45), answer(47), answer(10), answer(59),
                Step(delay_s=0.7), Step(delay_s=1.4), Step(append=False, error=19, delay_s=0.6)]  # fmt: skip

    async def test(cluster: ScriptedCluster, producer: Producer) -> None:
        troubled = random.random()
        cluster.script.extend(random.choice(troubles) if random.random() < troubled else APPEND for _ in range(150))
        futures = []
        for value in range(60):
            futures.append(producer.append(0, [b"%d" % value]))
            await asyncio.sleep(random.expovariate(10))
            if random.random() < 0.05:
                leader, epoch = cluster.leaders[0]
                cluster.leaders[0] = (3 - leader, epoch + 1)
        deliveries = await asyncio.gather(*futures)
        await asyncio.sleep(3)
        log = cluster.logs[0].values()
        assert len(log) == len(set(log))
        for value, delivery in enumerate(deliveries):
            if delivery.outcome == "ok":
                assert delivery.base_offset is not None
                assert log[delivery.base_offset] == value
            elif delivery.outcome == "fail":
                assert value not in log
        acknowledged = [delivery.base_offset for delivery in deliveries if delivery.base_offset is not None]
        assert acknowledged == sorted(acknowledged)

    with_producer(test, brokers=2)
