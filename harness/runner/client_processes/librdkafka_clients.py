"""The process of librdkafka's clients; `client_process` says what it reads and writes. Run as a program.

A producer has a thread that serves delivery reports, a consumer one that carries its commands out.
"""

from __future__ import annotations

import json
import math
import os
import queue
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final, cast

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

_RECORDS_MAX: Final = 500
_SERVE_S: Final = 0.1
_PURGE_S: Final = 1.0
_UNANSWERED_MAX: Final = 5
"""librdkafka's RD_KAFKA_IDEMP_MAX_INFLIGHT."""
_TRUNCATED: Final = KafkaError(KafkaError._LOG_TRUNCATION).str()
_OUT_OF_RANGE: Final = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE})
_WORDS: Final = {
    KafkaError._MSG_TIMED_OUT: "timeout",
    KafkaError._TIMED_OUT: "timeout",
    KafkaError._TRANSPORT: "connection",
    KafkaError._ALL_BROKERS_DOWN: "connection",
}


class Answers:
    """Standard output, shared by all threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def write(self, *messages: dict[str, Any]) -> None:
        """Write whole lines."""
        if not messages:
            return
        lines = "".join(json.dumps(message, separators=(",", ":")) + "\n" for message in messages)
        with self._lock:
            sys.stdout.write(lines)
            sys.stdout.flush()


class HeldRecords:
    """Records of one partition that the library is not given while it could not send them.

    An idempotent producer of librdkafka sends a batch only while fewer than `_UNANSWERED_MAX` records of the partition
    are unanswered (records, not batches: its pull request 4989). Others it keeps; and once the first of them is older
    than the linger, its thread for that broker asks again and again without a pause whether they may be sent, which
    takes processors from the brokers. So records go on in the batches that the library makes of them: the next one
    when the one before it is answered.
    """

    def __init__(self, batch_records: int, linger_s: float, unanswered_max: float) -> None:
        self._batch_records = batch_records
        self._linger_s = linger_s
        self._unanswered_max = unanswered_max
        self._waiting: deque[tuple[int, bytes, float]] = deque()
        self._unanswered = 0
        self._room = 0
        """Records that the batch which the library puts together may still have."""
        self._closes_s = 0.0
        """When it is sent even so."""

    def add(self, number: int, value: bytes, now_s: float) -> None:
        """Take a record."""
        self._waiting.append((number, value, now_s))

    def ready(self, now_s: float) -> Iterator[tuple[int, bytes]]:
        """Remove the records that the library may have; each counts as unanswered."""
        while self._waiting and self._has_room(now_s):
            number, value, _ = self._waiting.popleft()
            self._room -= 1
            self._unanswered += 1
            yield number, value

    def answered(self) -> None:
        """The library has answered a record, or refused it."""
        self._unanswered -= 1

    def expired(self, until_s: float) -> Iterator[int]:
        """Remove the records that have waited since `until_s` or longer."""
        while self._waiting and self._waiting[0][2] <= until_s:
            yield self._waiting.popleft()[0]

    def forget_unanswered(self) -> HeldRecords:
        """The same records for another producer of the library."""
        renewed = HeldRecords(self._batch_records, self._linger_s, self._unanswered_max)
        renewed._waiting = self._waiting
        return renewed

    def _has_room(self, now_s: float) -> bool:
        if self._unanswered < self._unanswered_max and (not self._room or now_s > self._closes_s):
            self._room, self._closes_s = self._batch_records, now_s + self._linger_s
        return self._room > 0 and now_s <= self._closes_s


Report = tuple[HeldRecords, int, KafkaError | None, int | None]
"""Of a record: where it was held back, its id, its error, its offset."""


class RdProducer:
    """A producer; after a fatal error another one of the library takes its place."""

    def __init__(self, opened: dict[str, Any], answers: Answers) -> None:
        self._topic = opened["topic"]
        self._properties = opened["properties"]
        self._timeout_s = int(self._properties["delivery.timeout.ms"]) / 1000
        self._answers = answers
        self._reports: list[Report] = []
        self._held: dict[int, HeldRecords] = {}
        self._lock = threading.Lock()
        """Of the library's producer and of what is held back."""
        self._producer = Producer(self._properties)
        self._fatal = False
        self._closing: dict[str, Any] | None = None
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def take(self, command: dict[str, Any]) -> None:
        """Carry a command out."""
        if command["do"] == "close":
            self._closing = command
            return
        partition, now_s = command["partition"], time.monotonic()
        with self._lock:
            held = self._held.get(partition) or self._held.setdefault(partition, self._hold())
            for number, value in enumerate(command["values"], start=command["id"]):
                held.add(number, value.encode(), now_s)
            refused = self._pass_on(partition, now_s)
        self._answers.write(*refused)

    def end(self) -> None:
        """Give everything up."""
        self._closing = self._closing or {}
        self._thread.join()

    def _hold(self) -> HeldRecords:
        idempotent = self._properties["enable.idempotence"] == "true"
        return HeldRecords(
            int(self._properties["batch.num.messages"]),
            int(self._properties["linger.ms"]) / 1000,
            _UNANSWERED_MAX if idempotent else math.inf,
        )

    def _pass_on(self, partition: int, now_s: float) -> list[dict[str, Any]]:
        """Give the library what it may have, with the lock; the answers to what it refuses."""
        held, refused = self._held[partition], []
        for number, value in held.ready(now_s):
            try:
                self._producer.produce(
                    self._topic, value, partition=partition, on_delivery=self._reporter(held, number)
                )
            except BufferError:
                held.answered()
                refused.append({"id": number, "error": "queue full", "taken": False})
            except KafkaException as refusal:
                held.answered()
                error = refusal.args[0]
                self._fatal = self._fatal or error.fatal()
                refused.append({"id": number, "error": _word(error), "taken": False})
        return refused

    def _reporter(self, held: HeldRecords, number: int) -> Callable[[KafkaError | None, Message], None]:
        """Notes the outcome of a record: a delivery report, on the thread of this producer."""

        def note(error: KafkaError | None, message: Message) -> None:
            self._reports.append((held, number, error, message.offset()))

        return note

    def _serve(self) -> None:
        while self._closing is None:
            self._producer.poll(_SERVE_S)
            self._report()
            if self._fatal:
                with self._lock:
                    spent, self._producer = self._producer, Producer(self._properties)
                    self._held = {partition: held.forget_unanswered() for partition, held in self._held.items()}
                    self._fatal = False
                self._purge(spent)
        with self._lock:
            self._held.clear()
        self._purge(self._producer)
        if "id" in self._closing:
            self._answers.write({"id": self._closing["id"]})

    def _purge(self, producer: Producer) -> None:
        producer.purge()
        producer.flush(_PURGE_S)
        self._report()

    def _report(self) -> None:
        """Answer what was reported, then give the library what was held back for it."""
        reports, self._reports = self._reports, []
        now_s = time.monotonic()
        with self._lock:
            for held, _, error, _ in reports:
                held.answered()
                self._fatal = self._fatal or (error is not None and error.fatal())
            refused = [answer for partition in self._held for answer in self._pass_on(partition, now_s)]
            expired = [number for held in self._held.values() for number in held.expired(now_s - self._timeout_s)]
        too_late = ({"id": number, "error": "timeout", "taken": False} for number in expired)
        self._answers.write(*_answers_to(reports), *refused, *too_late)


def _answers_to(reports: Sequence[Report]) -> list[dict[str, Any]]:
    """One answer for acknowledged records whose ids and offsets follow each other."""
    answers: list[dict[str, Any]] = []
    following: tuple[int, int | None] | None = None
    for _, number, error, reported in reports:
        if error is not None:
            answers.append({"id": number, "error": _word(error), "taken": True})
            following = None
            continue
        offset = reported if reported is not None and reported >= 0 else None
        if following == (number, offset):
            answers[-1]["count"] += 1
        else:
            answers.append({"id": number, "count": 1, "offset": offset})
        following = number + 1, None if offset is None else offset + 1
    return answers


class RdConsumer:
    """A consumer, whose commands are carried out one after the other."""

    def __init__(self, opened: dict[str, Any], answers: Answers) -> None:
        self._topic = opened["topic"]
        self._answers = answers
        self._consumer = Consumer(opened["properties"])
        self._commands: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def take(self, command: dict[str, Any]) -> None:
        """Carry a command out after those before."""
        self._commands.put(command)

    def end(self) -> None:
        """Close it."""
        self._commands.put({"do": "close"})
        self._thread.join()

    def _serve(self) -> None:
        while (command := self._commands.get())["do"] != "close":
            match command["do"]:
                case "assign":
                    self._consumer.assign([self._at(partition, 0) for partition in command["partitions"]])
                case "seek":
                    place = self._at(command["partition"], command["offset"], command["epoch"])
                    self._consumer.incremental_unassign([place])
                    self._consumer.incremental_assign([place])
                case "poll":
                    self._answers.write({"id": command["id"], "polled": self._poll(command["wait_ms"] / 1000)})
                case "ends":
                    self._answers.write({"id": command["id"], **self._ends(command)})
        self._consumer.close()
        if "id" in command:
            self._answers.write({"id": command["id"]})

    def _at(self, partition: int, offset: int, epoch: int | None = None) -> TopicPartition:
        return TopicPartition(self._topic, partition, offset, leader_epoch=-1 if epoch is None else epoch)

    def _poll(self, wait_s: float) -> list[dict[str, Any]]:
        first = self._consumer.poll(wait_s)
        messages = [] if first is None else [first, *self._consumer.consume(_RECORDS_MAX - 1, 0)]
        parts: list[dict[str, Any]] = []
        records: dict[int, dict[str, Any]] = {}
        for message in messages:
            partition, error = message.partition(), message.error()
            if partition is None or partition < 0:
                continue  # an error of a connection, after which the library tries again
            if error is None:
                if partition not in records:
                    records[partition] = {"partition": partition, "offsets": [], "values": []}
                    parts.append(records[partition])
                value = message.value()
                records[partition]["offsets"].append(message.offset())
                records[partition]["values"].append(None if value is None else value.decode(errors="replace"))
            elif error.code() == KafkaError._LOG_TRUNCATION or _TRUNCATED in error.str():
                parts.append({"partition": partition, "truncated": True, "offset": None, "epoch": None})
            elif error.code() in _OUT_OF_RANGE:
                parts.append({"partition": partition, "error": "OFFSET_OUT_OF_RANGE"})
            else:
                parts.append({"partition": partition, "error": _word(error)})
        return parts

    def _ends(self, command: dict[str, Any]) -> dict[str, Any]:
        place, limit_s = self._at(command["partition"], 0), command["wait_ms"] / 1000
        try:
            ends = cast("tuple[int, int] | None", self._consumer.get_watermark_offsets(place, limit_s))
        except KafkaException as error:
            if error.args[0].code() == KafkaError._UNKNOWN_PARTITION:
                self._refresh_metadata(limit_s)
            return {"error": _word(error.args[0])}
        return {"beginning": ends[0], "end": ends[1]} if ends is not None else {"error": "timeout"}

    def _refresh_metadata(self, limit_s: float) -> None:
        """A consumer that is assigned nothing does not look for leaders by itself."""
        with suppress(KafkaException):
            self._consumer.list_topics(self._topic, limit_s)


def _word(error: KafkaError) -> str:
    return _WORDS.get(error.code()) or error.name().lstrip("_")


def _end_the_process(failed: threading.ExceptHookArgs) -> None:
    """A client without its thread would never answer."""
    traceback.print_exception(failed.exc_value)
    sys.stderr.flush()
    os._exit(1)


KINDS: Final[dict[str, Callable[[dict[str, Any], Answers], RdProducer | RdConsumer]]] = {
    "producer": RdProducer,
    "consumer": RdConsumer,
}


def main() -> None:
    """Carry commands out until the input ends."""
    threading.excepthook = _end_the_process
    answers = Answers()
    clients: dict[str, RdProducer | RdConsumer] = {}
    answers.write({})
    try:
        for line in sys.stdin:
            command = json.loads(line)
            name = command["client"]
            if command["do"] == "open":
                clients[name] = KINDS[command["kind"]](command, answers)
            else:
                clients[name].take(command)
    finally:
        for client in clients.values():
            client.end()


if __name__ == "__main__":
    main()
