"""Where a follower's copy of the metadata log parts from its leader's: what the leader answers, and where it is cut.

As for any partition (protocol notes 2), but that a log may begin with a snapshot: what lies below it cannot be compared
any more, so a follower that may differ there begins anew with the snapshot.
"""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from images.broker.log.leader_epochs import UNDEFINED, EpochEnd
from images.broker.raft.values import FetchValidation, LogView, MetadataFetch
from images.broker.rules import Rules


def validate_fetch(fetch: MetadataFetch, log: LogView, rules: Rules) -> FetchValidation:
    """Whether the leader with `log` may serve that fetch: records if the follower's log is a prefix of its own, else
    where the two part, or the snapshot to begin anew with."""
    if fetch.offset < log.start:
        return (
            FetchValidation(snapshot=log.snapshot) if log.snapshot else FetchValidation(ErrorCode.offset_out_of_range)
        )
    if fetch.last_epoch == UNDEFINED or not rules.metadata_cut_on_divergence:
        beyond = fetch.offset > log.end and rules.metadata_cut_on_divergence
        return FetchValidation(ErrorCode.offset_out_of_range) if beyond else FetchValidation()
    if log.snapshot is not None and (fetch.offset, fetch.last_epoch) == log.snapshot:
        return FetchValidation()
    oldest = log.epochs.entries[0].epoch if log.epochs.entries else UNDEFINED
    if log.snapshot is not None and log.start > 0 and fetch.last_epoch < oldest:
        return FetchValidation(snapshot=log.snapshot)
    found = log.epochs.end_offset_for(fetch.last_epoch, log.end)
    if found.undefined:
        # A log of epochs that this one has never seen, all of them uncommitted: nothing above its start counts.
        found = EpochEnd(log.epochs.latest, log.end) if log.epochs.entries else EpochEnd(0, log.start)
    return (
        FetchValidation(diverging=found) if found.diverges_from(fetch.last_epoch, fetch.offset) else FetchValidation()
    )


def cut(log: LogView, diverging: EpochEnd) -> int:
    """Where a follower with `log` cuts it after that answer of its leader (protocol notes 2). Below an answer whose
    epoch it does not have it asks again from there."""
    found = log.epochs.end_offset_for(diverging.epoch, log.end)
    if found.undefined:
        return min(diverging.end, log.end)
    if found.epoch != diverging.epoch:
        return min(found.end, log.end)
    return min(found.end, diverging.end, log.end)
