"""librdkafka's producers are given no more than they send, and every record is answered."""

from __future__ import annotations

import threading
from typing import Any

import pytest

pytest.importorskip("confluent_kafka")

from harness.runner.client_processes import librdkafka_clients
from harness.runner.client_processes.librdkafka_clients import HeldRecords, RdProducer

LIMIT_S = 300.0
"""For a busy machine."""


def numbers(held: HeldRecords, now_s: float) -> list[int]:
    return [number for number, _ in held.ready(now_s)]


def holding(batch_records: int, linger_s: float, records: int, unanswered_max: float = 5) -> HeldRecords:
    held = HeldRecords(batch_records, linger_s, unanswered_max)
    for number in range(records):
        held.add(number, b"", 0.0)
    return held


def test_the_next_batch_goes_on_when_the_one_before_is_answered() -> None:
    held = holding(batch_records=10, linger_s=1.0, records=25)
    assert numbers(held, 0.0) == list(range(10))
    assert numbers(held, 9.0) == []
    for _ in range(5):
        held.answered()
    assert numbers(held, 9.0) == [], "five records are unanswered"
    held.answered()
    assert numbers(held, 9.0) == list(range(10, 20))


def test_records_join_a_batch_for_as_long_as_it_lingers() -> None:
    held = holding(batch_records=10, linger_s=1.0, records=6)
    assert numbers(held, 0.0) == list(range(6))
    for number in (6, 7):
        held.add(number, b"", 1.0)
    assert numbers(held, 1.0) == [6, 7]
    held.add(8, b"", 1.1)
    assert numbers(held, 1.1) == []


def test_batches_of_one_record_are_five_at_once() -> None:
    held = holding(batch_records=1, linger_s=0.0, records=9)
    assert numbers(held, 0.0) == list(range(5))
    held.answered()
    assert numbers(held, 0.0) == [5]


def test_a_producer_that_is_not_idempotent_sends_whatever_it_is_given() -> None:
    assert numbers(holding(10, 0.0, records=35, unanswered_max=float("inf")), 0.0) == list(range(35))


def test_a_record_that_was_held_back_for_too_long_was_never_given_to_the_library() -> None:
    held = holding(batch_records=5, linger_s=0.0, records=7)
    held.add(7, b"", 3.0)
    assert numbers(held, 3.0) == list(range(5))
    assert list(held.expired(0.0)) == [5, 6]
    for _ in range(5):
        held.answered()
    assert numbers(held, 3.0) == [7]


def test_another_producer_gets_what_was_held_back_for_the_one_before() -> None:
    held = holding(batch_records=5, linger_s=0.0, records=7)
    assert numbers(held, 0.0) == list(range(5))
    assert numbers(held.forget_unanswered(), 0.0) == [5, 6]


class Answered:
    """Stands for standard output; keeps the offset of each record."""

    def __init__(self, records: int) -> None:
        self.offsets: dict[int, int] = {}
        self.complete = threading.Event()
        self._records = records

    def write(self, *messages: dict[str, Any]) -> None:
        for message in messages:
            for place in range(message["count"]):
                self.offsets[message["id"] + place] = message["offset"] + place
        if len(self.offsets) == self._records:
            self.complete.set()


def test_a_producer_is_never_given_more_than_a_batch_beyond_what_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against the broker that librdkafka has within it, which answers after a while."""
    unanswered: list[int] = []

    class Watched(librdkafka_clients.Producer):  # type: ignore[misc]
        def produce(self, *arguments: Any, **others: Any) -> None:
            super().produce(*arguments, **others)
            unanswered.append(len(self))

    monkeypatch.setattr(librdkafka_clients, "Producer", Watched)
    properties = {
        "test.mock.num.brokers": "1",
        "test.mock.broker.rtt": "20",
        "enable.idempotence": "true",
        "batch.num.messages": "40",
        "linger.ms": "5",
        "delivery.timeout.ms": "300000",
    }
    answered = Answered(records=200)
    producer = RdProducer({"topic": "records", "properties": properties}, answered)  # type: ignore[arg-type]
    try:
        for first in (1, 101):
            producer.take({"do": "append", "id": first, "partition": 0, "values": ["7"] * 100})
        assert answered.complete.wait(LIMIT_S)
    finally:
        producer.end()
    assert answered.offsets == {number: number - 1 for number in range(1, 201)}
    assert max(unanswered) == 40
