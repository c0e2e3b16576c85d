"""The versions of the truncation protocol, each described in `replication/truncation.py`."""

from __future__ import annotations

from enum import StrEnum


class TruncationProtocol(StrEnum):
    """How a follower makes its log match its leader's, in the order in which they came. Later versions are safer."""

    HIGH_WATERMARK = "high_watermark"
    KIP101 = "kip101"
    KIP279 = "kip279"
    KIP320_FIRST_TRY = "kip320_first_try"
    KIP320 = "kip320"
    TRUNCATE_ON_FETCH = "truncate_on_fetch"

    @property
    def queries_epoch_end(self) -> bool:
        """Whether a follower sends OffsetForLeaderEpoch before it fetches."""
        return self not in (TruncationProtocol.HIGH_WATERMARK, TruncationProtocol.TRUNCATE_ON_FETCH)

    @property
    def epoch_query_version(self) -> int | None:
        """The version of OffsetForLeaderEpoch that came with this protocol; None if there was no such request."""
        return _EPOCH_QUERY_VERSIONS.get(self, 4)

    @property
    def falls_back_to_high_watermark(self) -> bool:
        """Whether a follower whose OffsetForLeaderEpoch fails truncates to its high watermark (KIP-279: any error, also
        a timeout); later protocols send it again."""
        return self in (TruncationProtocol.KIP101, TruncationProtocol.KIP279)

    @property
    def fences_requests(self) -> bool:
        """Whether requests between brokers have the current leader epoch, which the leader checks."""
        return self not in _BEFORE_FENCING

    @property
    def fences_every_fetch(self) -> bool:
        """Whether every fetch has the current leader epoch, not only the first one in that epoch."""
        return self not in _BEFORE_FENCING_OF_EVERY_FETCH

    @property
    def sends_last_fetched_epoch(self) -> bool:
        """Whether a fetch has the last fetched epoch, so that the leader's answer shows a divergence."""
        return self is TruncationProtocol.TRUNCATE_ON_FETCH

    def came_with_or_after(self, other: TruncationProtocol) -> bool:
        """Whether this protocol is `other` or a later one."""
        order = tuple(TruncationProtocol)
        return order.index(self) >= order.index(other)


_BEFORE_FENCING = tuple(TruncationProtocol)[:3]
_BEFORE_FENCING_OF_EVERY_FETCH = tuple(TruncationProtocol)[:4]
"""Every fetch asks, so this is not worked out from the order each time."""
_EPOCH_QUERY_VERSIONS = {
    TruncationProtocol.HIGH_WATERMARK: None,
    TruncationProtocol.KIP101: 0,
    TruncationProtocol.KIP279: 1,
}
