"""Delivery of a batch: its outcome, which never claims more than is known.

- `ok`: the leader acknowledged it, as `acks` asks, and returned its offset; or -1 in its place, as a broker does for a
  duplicate of which it knows no more than that it was appended.
- `fail`: it is certainly in no log. Either no byte of it ever left, or every attempt was answered by an error that a
  broker gives *before* appending (`NEVER_APPENDED`, such as NOT_ENOUGH_REPLICAS 19).
- `info`: anything else. NOT_LEADER_OR_FOLLOWER (6), REQUEST_TIMED_OUT (7), NOT_ENOUGH_REPLICAS_AFTER_APPEND (20) and
  a lost connection may all follow an append. Once one attempt may have appended, no later error makes it a `fail`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from kio.schema.errors import ErrorCode

from workloads.history import OperationOutcome

NEVER_APPENDED: Final = frozenset(
    int(code)
    for code in (
        ErrorCode.corrupt_message,
        ErrorCode.message_too_large,
        ErrorCode.invalid_topic_exception,
        ErrorCode.record_list_too_large,
        ErrorCode.not_enough_replicas,
        ErrorCode.invalid_required_acks,
        ErrorCode.topic_authorization_failed,
        ErrorCode.cluster_authorization_failed,
        ErrorCode.invalid_timestamp,
        ErrorCode.unsupported_version,
        ErrorCode.unsupported_for_message_format,
        ErrorCode.policy_violation,
        ErrorCode.out_of_order_sequence_number,
        ErrorCode.invalid_producer_epoch,
        ErrorCode.unknown_producer_id,
        ErrorCode.invalid_record,
    )
)
"""Error codes that a broker answers to Produce only before it appends anything (protocol.md §6)."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """The outcome of one batch."""

    outcome: OperationOutcome
    base_offset: int | None = None
    """Offset of its first record; the others follow it. None unless `ok`, and where the answer had none."""
    error: str | None = None
    """The last error's name in Kafka's words, `timeout`, `connection` …; None when `ok`."""
    attempts: int = 0
    """Number of times it was sent over a connection."""


class ProducerBatch:
    """One batch until it is delivered or given up."""

    __slots__ = ("attempts", "data", "deadline_s", "error", "future", "may_be_appended", "under_way", "values")

    def __init__(self, values: Sequence[bytes], deadline_s: float, future: asyncio.Future[Delivery]) -> None:
        self.values = values
        self.deadline_s = deadline_s
        self.future = future
        self.data: bytes | None = None
        """Its bytes, once it has a sequence number."""
        self.attempts = 0
        self.under_way = False
        self.may_be_appended = False
        """Some attempt ended in a way that does not rule out an append."""
        self.error = "timeout"

    def end(self, outcome: OperationOutcome, base_offset: int | None = None, error: str | None = None) -> None:
        """Resolve its future, unless that has happened."""
        if not self.future.done():
            self.future.set_result(Delivery(outcome, base_offset, error, self.attempts))

    def give_up(self, error: str) -> None:
        """End without acknowledgement: `info` if an append is possible, else `fail`."""
        self.end("info" if self.may_be_appended or self.under_way else "fail", error=error)
