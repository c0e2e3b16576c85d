"""Producer state of one partition: the last batches of each idempotent producer (KIP-98; docs/protocol.md §6).

For each producer id the partition keeps the producer epoch and the last five batches: as many as an idempotent producer
may have in flight, so that the first copy of every retry is among them.

A leader calls `check_sequence` before it appends. Leader and follower `record` every appended batch, in log order and
without a check, so that a replica's table follows from its log alone. Unsynced batches count like any other.

`check_sequence`, first match from the top:

    batch                                              result
    -------------------------------------------------  --------------------------------------------------
    no producer id                                     Accept
    a producer id but no sequence number               Refuse(INVALID_RECORD)
    no state of its producer                           Accept
    known epoch, same sequence numbers as a kept one   Duplicate, with the offsets of the first copy
    a lower epoch                                      Refuse(INVALID_PRODUCER_EPOCH)
    a new epoch that does not start at sequence 0      Refuse(OUT_OF_ORDER_SEQUENCE_NUMBER)
    the known epoch, not at last sequence + 1          Refuse(OUT_OF_ORDER_SEQUENCE_NUMBER)
    anything else                                      Accept

A state expires `producer.id.expiration.ms` after the time of its newest batch (Kafka's default: a day), as if the
producer had never been here. As in Kafka `without_expired` alone removes such states, now and then and by the clock of
each replica. No batch makes another one's state expire: timestamps are the producers', and may lie a day apart in
batches that are in flight together.

Two rules can be switched off. Without `idempotent_dedupe` there is no Duplicate: a retry is accepted and appended
again, while gaps are still refused. Without `producer_sequence_checked` no batch is refused.

Sequence numbers count 0 … 2^31 - 1 and start again at 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import NamedTuple, TypeAlias

from google_crc32c import value as crc32c
from kio.schema.errors import ErrorCode

from images.broker.frozen_map import FrozenMap
from images.broker.rules import Rules
from images.wire.batch import SEQUENCE_MODULUS, Header

BATCHES_KEPT = 5
"""Batches remembered of each producer: Kafka's limit of requests in flight with idempotence."""


# Named tuples, not dataclasses: one of each is made for every batch appended.


class ProducedBatch(NamedTuple):
    """One batch in the log: its sequence numbers and offsets, all inclusive."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int


class ProducerState(NamedTuple):
    """The state of one producer id. `batches` is never empty; the newest is last."""

    epoch: int
    batches: tuple[ProducedBatch, ...]
    timestamp_ms: int
    """The largest timestamp in the newest batch."""


ProducerTable: TypeAlias = FrozenMap[int, ProducerState]
"""Producer id → state. A value: `ProducerTable()` is the empty one."""


@dataclass(frozen=True, slots=True)
class Accept:
    """Append the batch."""


@dataclass(frozen=True, slots=True)
class Duplicate:
    """The batch is in the log already, from `base_offset` to `last_offset` (both inclusive)."""

    base_offset: int
    last_offset: int


@dataclass(frozen=True, slots=True)
class Refuse:
    """Do not append; answer `error`."""

    error: ErrorCode


SequenceCheck: TypeAlias = Accept | Duplicate | Refuse

ACCEPT = Accept()


def check_sequence(table: ProducerTable, header: Header, rules: Rules) -> SequenceCheck:
    """Whether a leader with this producer table appends a produced batch. The header's offset does not matter."""
    producer = header.producer_id
    if producer < 0:
        return ACCEPT
    first = header.base_sequence
    if first < 0:
        if not rules.producer_sequence_checked:
            return ACCEPT
        return Refuse(ErrorCode.invalid_record)
    state = table.get(producer)
    if state is None:
        return ACCEPT
    copy = _first_copy(state, header)
    if copy is not None:
        # Without deduplication the retry is a new batch, so it must pass the gap check, too.
        return Duplicate(copy.base_offset, copy.last_offset) if rules.idempotent_dedupe else ACCEPT
    refusal = _out_of_order(state, header)
    return ACCEPT if refusal is None or not rules.producer_sequence_checked else refusal


def _out_of_order(state: ProducerState, header: Header) -> Refuse | None:
    epoch = header.producer_epoch
    if epoch < state.epoch:
        return Refuse(ErrorCode.invalid_producer_epoch)
    expected = (state.batches[-1].last_sequence + 1) % SEQUENCE_MODULUS if epoch == state.epoch else 0
    return Refuse(ErrorCode.out_of_order_sequence_number) if header.base_sequence != expected else None


def record(table: ProducerTable, header: Header) -> ProducerTable:
    """The table once this batch is in the log at the header's offset. No batch is refused.

    A second copy of a kept batch changes nothing: the first keeps its offsets, and the producer continues after it.
    """
    producer = header.producer_id
    if producer < 0 or header.base_sequence < 0:
        return table
    state = table.get(producer)
    batch = ProducedBatch(header.base_sequence, header.last_sequence, header.base_offset, header.last_offset)
    timestamp_ms = header.max_timestamp
    if state is None or state.epoch != header.producer_epoch:
        return table.set(producer, ProducerState(header.producer_epoch, (batch,), timestamp_ms))
    if _first_copy(state, header) is not None:
        return table
    return table.set(producer, ProducerState(state.epoch, (*state.batches[1 - BATCHES_KEPT :], batch), timestamp_ms))


def without_expired(table: ProducerTable, now_ms: int, expiration_ms: int) -> ProducerTable:
    """The table without the producers whose newest batch is `expiration_ms` old; the same one if there are none."""
    kept = {producer: state for producer, state in table.items() if now_ms - state.timestamp_ms < expiration_ms}
    return table if len(kept) == len(table) else ProducerTable(kept)


def _first_copy(state: ProducerState, header: Header) -> ProducedBatch | None:
    if state.epoch == header.producer_epoch:
        first = header.base_sequence
        for batch in reversed(state.batches):
            if batch.first_sequence == first and batch.last_sequence == header.last_sequence:
                return batch
    return None


# ---- snapshot --------------------------------------------------------------------------------------------------------
#
# Not Kafka's layout, which has only the last batch of each producer: a restarted replica would not detect retries of
# the other four.

SNAPSHOT_VERSION = 102

_PREFIX = Struct(">hI")
_COUNT = Struct(">i")
_PRODUCER = Struct(">qhqb")
_BATCH = Struct(">iiqq")


def to_snapshot(table: ProducerTable) -> bytes:
    """The table as bytes: version, CRC-32C of the rest, count, producers in the order of their ids."""
    parts = [_COUNT.pack(len(table))]
    for producer, state in table.items():
        parts.append(_PRODUCER.pack(producer, state.epoch, state.timestamp_ms, len(state.batches)))
        parts += [_BATCH.pack(*batch) for batch in state.batches]
    body = b"".join(parts)
    return _PREFIX.pack(SNAPSHOT_VERSION, crc32c(body)) + body


def from_snapshot(data: bytes) -> ProducerTable | None:
    """Read what `to_snapshot` wrote; None when it is torn, damaged or of another version."""
    body = data[_PREFIX.size :]
    if len(body) < _COUNT.size or _PREFIX.unpack_from(data) != (SNAPSHOT_VERSION, crc32c(body)):
        return None
    (count,) = _COUNT.unpack_from(body)
    at = _COUNT.size
    states: dict[int, ProducerState] = {}
    for _ in range(count):
        producer, epoch, timestamp_ms, kept = _PRODUCER.unpack_from(body, at)
        at += _PRODUCER.size
        stop = at + kept * _BATCH.size
        states[producer] = ProducerState(
            epoch, tuple(ProducedBatch(*batch) for batch in _BATCH.iter_unpack(body[at:stop])), timestamp_ms
        )
        at = stop
    return ProducerTable(states)
