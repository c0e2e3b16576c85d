"""Which generation of the replication protocol a broker follows by; see `truncation.py` for what each does."""

from __future__ import annotations

from enum import StrEnum


class TruncationProtocol(StrEnum):
    """One way of truncating. Later is better."""

    HIGH_WATERMARK = "high_watermark"
    KIP101 = "kip101"
    KIP279 = "kip279"
    KIP320 = "kip320"
    TRUNCATE_ON_FETCH = "truncate_on_fetch"

    @property
    def queries_epoch_end(self) -> bool:
        """Whether a follower asks OffsetForLeaderEpoch before it fetches."""
        return self in (TruncationProtocol.KIP101, TruncationProtocol.KIP279, TruncationProtocol.KIP320)

    @property
    def fences_requests(self) -> bool:
        """Whether requests between brokers carry the leader epoch they are meant for."""
        return self in (TruncationProtocol.KIP320, TruncationProtocol.TRUNCATE_ON_FETCH)
