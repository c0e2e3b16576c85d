"""The versions of the truncation protocol, each described in `replication/truncation.py`."""

from __future__ import annotations

from enum import StrEnum


class TruncationProtocol(StrEnum):
    """How a follower makes its log match its leader's. Later versions are safer."""

    HIGH_WATERMARK = "high_watermark"
    KIP101 = "kip101"
    KIP279 = "kip279"
    KIP320 = "kip320"
    TRUNCATE_ON_FETCH = "truncate_on_fetch"

    @property
    def queries_epoch_end(self) -> bool:
        """Whether a follower sends OffsetForLeaderEpoch before it fetches."""
        return self in (TruncationProtocol.KIP101, TruncationProtocol.KIP279, TruncationProtocol.KIP320)

    @property
    def falls_back_to_high_watermark(self) -> bool:
        """Whether a follower whose OffsetForLeaderEpoch fails truncates to its high watermark (KIP-279: any error, also
        a timeout); later protocols send it again."""
        return self in (TruncationProtocol.KIP101, TruncationProtocol.KIP279)

    @property
    def fences_requests(self) -> bool:
        """Whether requests between brokers have the current leader epoch, which the leader checks."""
        return self in (TruncationProtocol.KIP320, TruncationProtocol.TRUNCATE_ON_FETCH)
