"""The process of librdkafka's clients; `client_process` says what it reads and writes. Run as a program.

A producer has a thread that serves delivery reports, a consumer one that carries its commands out.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, cast

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

_RECORDS_MAX: Final = 500
_SERVE_S: Final = 0.1
_PURGE_S: Final = 1.0
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
        lines = "".join(json.dumps(message, separators=(",", ":")) + "\n" for message in messages)
        with self._lock:
            sys.stdout.write(lines)
            sys.stdout.flush()


class RdProducer:
    """A producer; after a fatal error another one of the library takes its place."""

    def __init__(self, opened: dict[str, Any], answers: Answers) -> None:
        self._topic = opened["topic"]
        self._properties = opened["properties"]
        self._answers = answers
        self._reports: list[dict[str, Any]] = []
        self._lock = threading.Lock()
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
        number = command["id"]
        try:
            with self._lock:
                self._producer.produce(
                    self._topic,
                    command["value"].encode(),
                    partition=command["partition"],
                    on_delivery=lambda error, message: self._delivered(number, error, message),
                )
        except BufferError:
            self._answers.write({"id": number, "error": "queue full", "taken": False})
        except KafkaException as refusal:
            error = refusal.args[0]
            self._fatal = self._fatal or error.fatal()
            self._answers.write({"id": number, "error": _word(error), "taken": False})

    def end(self) -> None:
        """Give everything up."""
        self._closing = self._closing or {}
        self._thread.join()

    def _delivered(self, number: int, error: KafkaError | None, message: Message) -> None:
        if error is None:
            offset = message.offset()
            self._reports.append({"id": number, "offset": offset if offset is not None and offset >= 0 else None})
        else:
            self._fatal = self._fatal or error.fatal()
            self._reports.append({"id": number, "error": _word(error), "taken": True})

    def _serve(self) -> None:
        while self._closing is None:
            self._producer.poll(_SERVE_S)
            self._report()
            if self._fatal:
                with self._lock:
                    spent, self._producer = self._producer, Producer(self._properties)
                    self._fatal = False
                self._purge(spent)
        self._purge(self._producer)
        if "id" in self._closing:
            self._answers.write({"id": self._closing["id"]})

    def _purge(self, producer: Producer) -> None:
        producer.purge()
        producer.flush(_PURGE_S)
        self._report()

    def _report(self) -> None:
        if self._reports:
            reports, self._reports = self._reports, []
            self._answers.write(*reports)


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
