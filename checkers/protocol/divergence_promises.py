"""Promises about where a leader finds that its log and a follower's part. See `checkers.protocol.checker`.

A leader compares the follower's last leader epoch, and where its log ends, with its own log (docs/protocol.md,
section 1). Where it compares wrongly, a follower keeps records that its leader does not have, or loses some that it
has. Neither does harm by itself: another leader may find it, or nobody reads there.
"""

from __future__ import annotations

from collections.abc import Mapping

from checkers.evidence import CheckSettings
from checkers.protocol.batches import UNKNOWN
from checkers.protocol.log_knowledge_promises import CachedEpoch, epoch_cache_of, is_before_unknown
from checkers.protocol.state import ClusterRowHandler, ClusterState, PartitionState, TraceRowHandler
from checkers.tables import TraceRow


def epoch_end(entries: list[CachedEpoch], log_end: int, epoch: int) -> CachedEpoch:
    """The greatest leader epoch up to `epoch` in a log with these epochs, and where that ends; `epoch` itself where the
    log has none."""
    shared = [entry.epoch for entry in entries if entry.epoch <= epoch]
    end = next((entry.start for entry in entries if entry.epoch > epoch), log_end)
    return CachedEpoch(shared[-1] if shared else epoch, end)


def _fetch_accepted(partition: PartitionState, event: TraceRow, _: CheckSettings) -> None:
    """A position is in the leader's log, and the record before it has the leader epoch that the follower's log has
    there."""
    log, start, detail = partition.log(event.node), partition.log_starts.get(event.node, 0), event.details()
    epoch, replica = detail.get("last_epoch", UNKNOWN), detail.get("replica")
    if 0 <= event.offset < start:
        partition.report(
            event,
            "fetch-of-another-log",
            event.offset,
            f"{event.node} took a fetch of b{replica} from offset {event.offset} for its position {event.at}, in "
            f"leader epoch {event.leader_epoch}",
            f"its own log starts at {start}: nobody knows whether their logs are the same below",
        )
        return
    if epoch >= 0 and event.offset > event.log_end >= 0:
        partition.report(
            event,
            "fetch-of-another-log",
            event.log_end,
            f"{event.node} took a fetch of b{replica} from offset {event.offset} for its position {event.at}, in "
            f"leader epoch {event.leader_epoch}",
            f"its own log ends at {event.log_end}: their logs part there at the latest",
        )
        return
    if epoch < 0 or not max(start, 1) <= event.offset <= len(log) or log[event.offset - 1] in (UNKNOWN, epoch):
        return
    partition.report(
        event,
        "fetch-of-another-log",
        event.offset - 1,
        f"{event.node} took a fetch of b{replica} from offset {event.offset} for its position {event.at}, in leader "
        f"epoch {event.leader_epoch}",
        f"the last record of b{replica} is of leader epoch {epoch}; {event.node} has one of epoch "
        f"{log[event.offset - 1]} there: their logs part before",
    )


def _diverging(partition: PartitionState, event: TraceRow, _: CheckSettings) -> None:
    """A leader answers with the greatest leader epoch of its log up to the follower's last one, and where that ends."""
    detail = event.details()
    if "fetched" not in detail:
        return
    epoch, fetch_offset = detail["fetched"]
    entries = _epochs_of_leader(partition, event, epoch)
    if not entries:
        return
    expected = epoch_end(entries, len(partition.log(event.node)), epoch)
    if epoch > entries[-1].epoch or (detail["epoch"], event.offset) == expected:
        return
    partition.report(
        event,
        "divergence-misstated",
        min(event.offset, expected.start),
        f"{event.node} answered b{detail['replica']}, whose log ends at {fetch_offset} in leader epoch {epoch}, "
        f"{event.at} that its own has epoch {detail['epoch']} up to {event.offset}",
        f"it has epoch {expected.epoch} up to {expected.start}",
    )


def _truncated(cluster: ClusterState, partition: PartitionState, event: TraceRow) -> None:
    """A follower cuts off no record that its leader has in the same place: while it lacks that, it is no copy of it.
    The protocols before KIP-320 cut to the high watermark, without an answer of the leader; a follower that tells the
    epoch of its last record with its fetches does not. A leader that has deleted its log answers for that of another
    topic of the name: a request for the end of an epoch names no id."""
    node, leader, cut = event.node, f"b{event.leader}", event.offset
    if event.details().get("log_start") == cut == event.log_end:
        partition.report(
            event,
            "producers-forgotten",
            cut,
            f"{node} deleted all of its log {event.at}, and began anew where that ended, at {cut}",
            f"its leader, {leader}, had not said that their logs part before: a retry of what it had is new to it now",
        )
    own, known = partition.log(node), partition.log(leader)
    start = max(partition.log_starts.get(node, 0), partition.log_starts.get(leader, 0))
    if "answer" in event.details():
        start = max(start - 1, 0)  # a leader compares the record before, too
    by_answers = node in cluster.cuts_by_answers or "answer" in event.details()
    to_high_watermark = not by_answers and cut == event.high_watermark
    lied = cluster.lied(node, event.time_ns) or cluster.lied(leader, event.time_ns)
    if to_high_watermark or lied or not partition.has_log(leader) or leader == node:
        return
    if not start <= cut < min(len(own), len(known)) or own[cut] == UNKNOWN or own[cut] != known[cut]:
        return
    partition.report(
        event,
        "truncation-needless",
        cut,
        f"{node} cut its log {event.log_end} → {cut} {event.at}, as a follower of {leader}",
        f"{leader} has the same record of leader epoch {own[cut]} at offset {cut}",
    )


def _epoch_end_told(partition: PartitionState, event: TraceRow, _: CheckSettings) -> None:
    """A leader that is asked where an epoch ends answers in the same way; of one above all of its own it knows
    nothing."""
    asked = event.details()["asked"]
    entries = _epochs_of_leader(partition, event, asked)
    if not entries:
        return
    unknown = not 0 <= asked <= entries[-1].epoch
    expected = CachedEpoch(UNKNOWN, UNKNOWN) if unknown else epoch_end(entries, len(partition.log(event.node)), asked)
    told = CachedEpoch(event.details()["epoch"], event.offset)
    if told != expected:
        partition.report(
            event,
            "divergence-misstated",
            max(min(told.start, expected.start), UNKNOWN),
            f"{event.node} was asked where leader epoch {asked} ends in its log, and answered that epoch {told.epoch} "
            f"ends at {told.start} {event.at}",
            f"its own log has epoch {expected.epoch} up to {expected.start}",
        )


def _epochs_of_leader(partition: PartitionState, event: TraceRow, asked: int) -> list[CachedEpoch]:
    """The epochs of a leader's log, with the one that it leads in; none where those from `asked` on are not known."""
    leads_from = partition.epoch_starts.get(event.node, UNKNOWN)
    log, start = partition.log(event.node), partition.log_starts.get(event.node, 0)
    entries = epoch_cache_of(log, start)
    if not entries or leads_from < 0 or (asked < entries[0].epoch and is_before_unknown(log, start)):
        return []
    if entries[-1].epoch != event.leader_epoch:
        entries.append(CachedEpoch(event.leader_epoch, leads_from))
    return entries


def _tells_last_epoch(cluster: ClusterState, _: PartitionState, event: TraceRow) -> None:
    detail = event.details()
    if detail.get("last_epoch", UNKNOWN) >= 0:
        cluster.cuts_by_answers.add(f"b{detail['replica']}")


CLUSTER_HANDLERS: Mapping[str, ClusterRowHandler] = {"truncated": _truncated, "fetch_accepted": _tells_last_epoch}
HANDLERS: Mapping[str, TraceRowHandler] = {
    "fetch_accepted": _fetch_accepted,
    "diverging": _diverging,
    "epoch_end_told": _epoch_end_told,
}
