"""How a leader validates a fetch of the metadata log: records, a diverging epoch, or a snapshot to load.

As for any partition (`log/divergence.py`), except that the log may begin at the end of a snapshot. Below its start logs
cannot be compared, so a follower that may diverge there loads the latest snapshot. A follower whose log ends at the end
and in the epoch of a snapshot that is kept is valid, even if the leader's log begins there and has no record of that
epoch.
"""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from images.broker.log.divergence import diverging_epoch
from images.broker.log.leader_epochs import UNDEFINED, EpochEnd
from images.broker.raft.values import FetchValidation, LogView, MetadataFetch
from images.broker.rules import Rules


def validate_fetch(fetch: MetadataFetch, log: LogView, rules: Rules) -> FetchValidation:
    """The answer of a leader with `log`: valid if the follower's log is a prefix of it."""
    if fetch.offset < log.start:
        if not log.snapshots:
            return FetchValidation(ErrorCode.offset_out_of_range)
        return FetchValidation(snapshot=log.snapshots[-1])
    answer = _answer_to_other_log(fetch, log)
    return FetchValidation() if answer is None or not rules.metadata_cut_on_divergence else answer


def _answer_to_other_log(fetch: MetadataFetch, log: LogView) -> FetchValidation | None:
    """The answer to a follower whose log is no prefix of `log`; None if it is one."""
    if fetch.last_epoch == UNDEFINED:
        return FetchValidation(ErrorCode.offset_out_of_range) if fetch.offset > log.end else None
    if (fetch.offset, fetch.last_epoch) in log.snapshots:
        return None
    oldest = log.epochs.entries[0].epoch if log.epochs.entries else UNDEFINED
    if log.snapshots and log.start > 0 and fetch.last_epoch < oldest:
        return FetchValidation(snapshot=log.snapshots[-1])
    # The follower's records of an epoch that this leader does not know are uncommitted.
    latest = EpochEnd(log.epochs.latest, log.end) if log.epochs.entries else EpochEnd(0, log.start)
    diverging = diverging_epoch(log.epochs, log.end, fetch.last_epoch, fetch.offset, unknown=latest)
    return None if diverging is None else FetchValidation(diverging=diverging)
