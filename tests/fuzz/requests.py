"""Requests that are well-formed and make little sense, drawn from a seed.

Every version of every API: numbers at the ends of their ranges, ids and names of what does not exist, damaged records,
strings that only the flexible versions can carry.
"""

from __future__ import annotations

import uuid
from datetime import timedelta
from random import Random
from typing import Any

from images.wire import batch as batches
from images.wire.schema import FieldShape, shapes

_BITS = {"int8": 7, "int16": 15, "int32": 31, "int64": 63, "uint8": 8, "uint16": 16, "uint32": 32, "uint64": 64}
_NUMBERS = ("1", "true", "-5", "9" * 30)
_TEXTS = ("t", "t", "u", "", "..", "__cluster_metadata", "é..x", "\0", "x" * 249, "127.0.0.1")
_LONG_TEXTS = ("x" * 40_000,)
"""More bytes than a length of two bytes can say: only flexible versions carry them."""
_SETTINGS = (
    "min.insync.replicas",
    "unclean.leader.election.enable",
    "segment.bytes",
    "leader.replication.throttled.replicas",
    "leader.replication.throttled.rate",
    "no.such.setting",
)
_PARTITIONS_MAX = 2
"""A topic of ten thousand partitions is legal, and slow."""


class OddRequests:
    """Draws requests. `topics` are the ids that exist, and some that do not."""

    def __init__(self, random: Random, topics: list[uuid.UUID]) -> None:
        self._random = random
        self._topics = topics

    def request(self, message: type) -> Any:
        values: dict[str, Any] = {}
        for shape in shapes(message):
            if shape.nullable and shape.tag is None and shape.kafka_type != "uuid" and self._random.random() < 0.1:
                values[shape.name] = None
            elif shape.array:
                count = self._random.choice((0, 1, 1, 2))
                values[shape.name] = tuple(self._one(shape, message) for _ in range(count))
            else:
                values[shape.name] = self._one(shape, message)
        return message(**values)

    def _one(self, shape: FieldShape, message: type) -> Any:
        if shape.struct:
            return self.request(shape.element)
        flexible = shape.kafka_type == "string" and getattr(message, "__flexible__", False)
        return self._random.choice(self._values(shape) + (_LONG_TEXTS if flexible else ()))

    def _values(self, shape: FieldShape) -> tuple[Any, ...]:
        match shape.kafka_type:
            case "string":
                return _TEXTS + _NUMBERS + _SETTINGS
            case "bytes" | "records":
                whole = self._batch()
                return whole, whole, whole + whole, whole[:-1], whole[:61], bytes(70), b""
            case "bool":
                return True, False
            case "uuid":
                return tuple(self._topics)
            case "timedelta_i32" | "timedelta_i64":
                return tuple(timedelta(milliseconds=ms) for ms in (-(1 << 31), -1, 0, 1, 3))
            case kind:
                most = _PARTITIONS_MAX if shape.name == "num_partitions" else 2 ** _BITS[kind] - 1
                below = () if kind.startswith("u") else (-1, -1, -2, -3, -(2 ** _BITS[kind]))
                return (0, 1, 1, 2, most, *below)

    def _batch(self) -> bytes:
        producer = self._random.choice((-1, 7))
        return batches.build(
            [b"value"] * self._random.randint(1, 3),
            timestamp_ms=self._random.choice((-1, 0, 5, 1 << 40)),
            producer_id=producer,
            producer_epoch=-1 if producer < 0 else self._random.randint(0, 1),
            base_sequence=-1 if producer < 0 else self._random.randint(-1, 3),
        )
