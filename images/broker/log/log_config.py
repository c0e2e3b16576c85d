"""The settings of one log."""

from __future__ import annotations

from dataclasses import dataclass, field

from images.broker.rules import Rules

NEVER = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class LogConfig:
    """Settings of a log. Sizes in bytes."""

    segment_bytes: int = 1 << 30
    """A batch that would make the segment larger begins a new one."""
    segment_ms: int = NEVER
    """So does a batch whose timestamp is so much later than that of the segment's first batch."""
    flush_interval_messages: int = NEVER
    """Sync after so many records (Kafka's `flush.messages`)."""
    producer_expiration_ms: int = NEVER
    """Age of a producer's newest batch at which its state expires (Kafka's `producer.id.expiration.ms`)."""
    max_batch_bytes: int = 1_048_588
    """The largest batch that a leader accepts from a producer. The leader checks it, the log does not."""
    index_interval_bytes: int = 0
    """Least distance between two index entries; with 0 every batch has one (Kafka's `index.interval.bytes`). A segment
    keeps that with which it was created or opened."""
    rules: Rules = field(default_factory=Rules)
    """The safety rules that its broker follows."""
