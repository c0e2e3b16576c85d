"""Where two copies of a log diverge: of a data partition or of the metadata (docs/protocol.md, sections 1 and 2).

The leader compares the follower's (last fetched epoch, fetch offset) with its own leader epoch cache. The follower's
log is a prefix of the leader's iff the leader knows that epoch and the epoch ends at or above the fetch offset.
Otherwise the leader answers with the *diverging epoch*: the greatest epoch it shares with the follower, and where that
epoch ends.

The follower truncates to the last offset that both logs may share, and fetches from there. If it does not have the
diverging epoch it truncates to the end of its next lower epoch and is answered again; epochs decrease strictly, so any
two logs converge.
"""

from __future__ import annotations

from images.broker.log.leader_epochs import UNDEFINED_END, EpochCache, EpochEnd


def diverging_epoch(
    epochs: EpochCache,
    log_end: int,
    last_fetched_epoch: int,
    fetch_offset: int,
    unknown: EpochEnd = UNDEFINED_END,
) -> EpochEnd | None:
    """The leader's answer to a fetch: None if the follower's log is a prefix of this one.

    `unknown` is the answer if the leader has no epoch at or above `last_fetched_epoch`.
    """
    end = epochs.end_offset_for(last_fetched_epoch, log_end)
    if end.undefined:
        end = unknown
    return end if end.epoch < last_fetched_epoch or end.end < fetch_offset else None


def truncation_offset(epochs: EpochCache, log_end: int, diverging: EpochEnd) -> int:
    """The offset to which a follower truncates its log after the leader's answer `diverging`."""
    own = epochs.end_offset_for(diverging.epoch, log_end)
    if own.undefined:
        return min(diverging.end, log_end)
    if own.epoch != diverging.epoch:
        return min(own.end, log_end)
    return min(own.end, diverging.end, log_end)
