"""Promises about the replicas' logs while the run goes on: Log Matching, log starts, and logs that come back whole.
See `checkers.protocol.checker`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import pyarrow as pa

from checkers.evidence import CheckSettings
from checkers.protocol.batches import UNKNOWN, AppendedBatch
from checkers.protocol.state import ClusterState, PartitionState, TraceRowHandler, integers
from checkers.tables import WITH_BYTES_BEHIND, TraceRow

_SETTLED = frozenset({"appended", "became_leader", "converged", "follower_high_watermark"})
"""Last events of a log after which its node truncates it for no leader that it follows already: a follower takes its
high watermark from an answer that its log fits. A node that dies in a truncation leaves a shorter log and no event of
it."""


def _appended(partition: PartitionState, event: TraceRow, _: CheckSettings) -> None:
    """Log Matching: a batch of one offset and leader epoch is the same batch in every log, behind the same record.

    A record that any leader has deleted is not compared: its followers could not be compared with it any more.
    """
    detail = event.details()
    if detail.get("synced"):
        partition.synced_to[event.node] = event.log_end
    if detail.get("cut_unsynced"):
        appended = f"{event.node} appended offset {event.offset} {event.at}, behind a cut of its log that was unsynced"
        back = "a loss of power may bring back what was cut, in the place of a batch that is committed by then"
        partition.report(event, "cut-left-unsynced", event.offset, appended, back)
    crc = detail.get("crc")
    if not isinstance(crc, int):
        return
    log, start = partition.log(event.node), max(partition.decided_log_start, partition.log_starts.get(event.node, 0))
    previous = log[event.offset - 1] if start < event.offset <= len(log) else UNKNOWN
    batch = AppendedBatch(event.log_end, crc, previous, event.node, event.time_ns)
    first = partition.batches.setdefault((event.offset, event.leader_epoch), batch)
    follows_another = UNKNOWN not in (first.previous_epoch, previous) and first.previous_epoch != previous
    if (first.end, first.crc) != (batch.end, batch.crc) or follows_another:
        partition.report(
            event,
            "appended-batches-differ",
            event.offset,
            f"{event.node} appended {batch.described} at offset {event.offset} in leader epoch {event.leader_epoch} "
            f"{event.at}",
            f"{first.node} had appended {first.described} there in the same epoch at {first.time_ns / 1e9:.6f} s",
        )
    elif first.previous_epoch == UNKNOWN:
        partition.batches[event.offset, event.leader_epoch] = batch


def check_log_start(partition: PartitionState, event: TraceRow, start: int, how: str) -> None:
    """A log starts no higher than its own node has decided, or than the leader that it follows has ever started."""
    own = partition.greatest_log_starts.get(event.node, 0)
    leader = f"b{event.leader}"
    if leader != event.node and leader in partition.greatest_log_starts:
        bound, followed = max(own, partition.greatest_log_starts[leader]), f"and that of its leader {leader}"
    else:
        bound, followed = own, "and it follows no leader whose log start is known"
    leader_is_traced = leader == event.node or event.leader < 0 or leader in partition.opened
    if bound < start <= partition.decided_log_start and leader_is_traced and event.node in partition.opened:
        partition.report(
            event,
            "log-start-ahead",
            bound,
            f"the log of {event.node} starts at {start} {event.at}: it {how}",
            f"its own start had never been above {own}, {followed}: the highest of both is {bound}",
        )


def _check_on_disk(partition: PartitionState, event: TraceRow, _: CheckSettings) -> None:
    """Everything that a broker takes to be on its disk is there, as the simulated disk reports at that moment."""
    if not event.power_loss:
        return
    did = {
        "appended": f"took the batch at {event.offset} for synced",
        "log_closed": "closed its log and took all of it for synced",
        "log_recovered": "opened its log and took segments for synced",
        "log_start_written": f"took the start of its log at {event.offset} for written down",
        "replica_deleted": "took its log for deleted",
    }[event.kind]
    partition.report(event, "not-on-disk", event.offset, f"{event.node} {did} {event.at}", event.power_loss)


def _leader_log_start(partition: PartitionState, event: TraceRow, _: CheckSettings) -> None:
    """A follower takes its leader's high watermark as far as its log goes, then the start of its leader's log as far as
    that: later answers may leave a partition out in which nothing has changed."""
    leader_high_watermark = event.details().get("leader_high_watermark", UNKNOWN)
    start = partition.log_starts.get(event.node, 0)
    expected = min(max(leader_high_watermark, start), event.log_end)
    if leader_high_watermark >= 0 and (event.high_watermark, start) != (expected, min(event.offset, expected)):
        partition.report(
            event,
            "log-start-not-followed",
            start,
            f"{event.node} was told {event.at} that the log of its leader b{event.leader} starts at {event.offset}; "
            f"its high watermark is {leader_high_watermark}",
            f"its own log, up to {event.log_end}, starts at {start} then, with the high watermark "
            f"{event.high_watermark}: it may start at {min(event.offset, expected)}, and may not be told again",
        )


def check_recovered(cluster: ClusterState, partition: PartitionState, event: TraceRow) -> None:
    """A log comes back as it was, unless a fault destroyed data; after an accepted clean shutdown in any case."""
    node, known = event.node, len(partition.log(event.node))
    whole = node in partition.opened and node not in partition.removed
    if whole and event.log_end < known and not cluster.lied(node, event.time_ns):
        back = f"the log of {node} came back {event.at} and ended at {event.log_end}: it had ended at {known}"
        if cluster.clean_stop_covers(node, partition.opened[node]):
            accepted = (
                f"the controllers had accepted at {cluster.clean_lives[node] / 1e9:.6f} s that it shut down cleanly"
            )
            partition.report(event, "clean-shutdown-lost-records", event.log_end, back, accepted)
        elif _is_settled(partition, node, known) and not cluster.lost_data(node, partition.opened[node], event.time_ns):
            no_fault = "no fault that loses data had hit the node since the log was opened before"
            partition.report(event, "log-shortened", event.log_end, back, no_fault)
        elif event.log_end < partition.synced_to.get(node, 0) and _keeps_synced(cluster, partition, event):
            synced = f"it had synced all below {partition.synced_to[node]}, and no fault takes what is synced"
            partition.report(event, "synced-records-lost", event.log_end, back, synced)
    settled = partition.settled_log_starts.get(node, 0)
    if whole and max(event.offset, 0) < min(settled, event.log_end) and not cluster.lied(node, event.time_ns):
        back = f"{node} opened its log {event.at}: it starts at {event.offset} and ends at {event.log_end}"
        before = f"its start had moved to {settled}: what was deleted below is there again"
        partition.report(event, "log-start-fell", max(event.offset, 0), back, before)
    if event.log_end > max(event.offset, 0):
        opened = f"{node} opened a log with the offsets {event.offset} to {event.log_end - 1} {event.at}"
        _check_deleted(cluster, partition, event, opened)
    first, checkpointed = integers(event.details(), "first_segment") or (0, 0)
    if first != checkpointed and not cluster.lied(node, event.time_ns):
        said = f"names {checkpointed}" if checkpointed >= 0 else "is missing"
        partition.report(
            event,
            "log-beginning-missing",
            0,
            f"{node} opened a log whose first segment begins at {first} {event.at}",
            f"its log-start checkpoint, which says where a log begins above offset 0, {said}",
            end=first,
        )
    if event.log_end < event.offset:
        starts = f"{node} opened a log that starts at {event.offset} {event.at}, and goes on where it ends"
        partition.report(event, "log-end-below-start", event.log_end, starts, f"it ends at {event.log_end}")
    for end, base in event.details().get("holes") or ():
        if not cluster.lied(node, event.time_ns):
            opened = f"{node} opened a log {event.at}, one segment of which ends at {end}"
            partition.report(event, "log-with-hole", end, opened, f"the next one begins at {base}")
    partition.synced_to[node] = min(event.log_end, partition.synced_to.get(node, 0)) if whole else 0
    if (unsynced := event.details().get("unsynced")) is not None:
        partition.synced_to[node] = max(partition.synced_to[node], event.log_end - unsynced)
    partition.deleted.pop(node, None)
    partition.opened[node] = event.time_ns
    partition.removed.discard(node)


def _keeps_synced(cluster: ClusterState, partition: PartitionState, opened: TraceRow) -> bool:
    """Whether the disk of a node has what was synced, and its process had not begun to cut that off."""
    node = opened.node
    return not cluster.wiped(node, opened.time_ns) and _is_settled(partition, node, len(partition.log(node)))


def forget_undone(cluster: ClusterState, partition: PartitionState, event: TraceRow) -> None:
    """A loss may undo a cut: above it an opened log may have the records from before the cut. That nothing was appended
    behind it is not asked, since brokers of before appended without a sync. A log that is opened with a lower start was
    killed while it was cut below that: it has begun anew, and knows nothing of what was before."""
    node, cut_to = event.node, partition.cut_to.get(event.node)
    if event.kind == "log_recovered" and 0 < event.offset < partition.log_starts.get(node, 0):
        log = partition.log(node)
        log[:] = [UNKNOWN] * len(log)
    if event.kind == "truncated":
        partition.cut_to[node] = event.offset if cut_to is None else min(cut_to, event.offset)
    elif event.kind == "log_closed" and event.details().get("synced") is True:
        partition.cut_to.pop(node, None)
    elif (
        event.kind == "log_recovered"
        and cut_to is not None
        and cluster.lost_data(node, partition.opened.get(node, 0), event.time_ns)
    ):
        del partition.cut_to[node]
        log, batches = partition.log(node), partition.batches_of(node)
        log[cut_to:] = [UNKNOWN] * (len(log) - cut_to)
        end = batches.end
        batches.resize(cut_to)
        batches.resize(end)


def check_no_snapshot_above(cluster: ClusterState, partition: PartitionState, event: TraceRow) -> None:
    """A log that was opened or cut has no producer snapshot of an offset above its end: it was of records that are
    gone."""
    above = event.details().get("snapshots_above") or ()
    if above and not cluster.lied(event.node, event.time_ns):
        did, offsets, end = _did(event), ", ".join(map(str, above)), event.end_after
        left = f"{event.node} {did} its log {event.at}, which ends at {end}, and kept producer snapshots of {offsets}"
        later = "when the log is longer again, they count as the producers of its records, which may be other ones"
        partition.report(event, "producer-snapshot-left", end, left, later)


def check_stray(cluster: ClusterState, partition: PartitionState, event: TraceRow) -> None:
    """A log of no replica that a start finds on the disk had not been deleted before."""
    found = f"{event.node} found a log with records on its disk, the first segment at {event.offset}, {event.at}"
    _check_deleted(cluster, partition, event, found)


def _check_deleted(cluster: ClusterState, partition: PartitionState, event: TraceRow, back: str) -> None:
    node = event.node
    if node in partition.deleted and not cluster.lied(node, event.time_ns):
        deleted = f"it had deleted the log of this replica at {partition.deleted[node] / 1e9:.6f} s"
        partition.report(event, "deleted-log-came-back", event.offset, back, deleted)


def _is_settled(partition: PartitionState, node: str, end: int) -> bool:
    """Whether no truncation of the node's log, which ended at `end`, can have been under way: neither one for a leader
    that it follows, nor one to begin anew where its leader's log starts, as a log does that ends no higher."""
    last = partition.log_events.get(node)
    begins_anew = 0 < partition.decided_log_start and end <= partition.decided_log_start
    return last is not None and last.kind in _SETTLED and not begins_anew


def check_told_ends(
    partition: PartitionState, changes: Iterable[TraceRow], replica_ends: pa.Table, unreliable: Collection[str]
) -> None:
    """Where brokers tell no more of a log than when they opened and cut it (`changes`): it comes back at least as long
    as its node had said, and ends there on its disk. Nothing is said of what it appended meanwhile, of the nodes
    `unreliable`, from whose disks a fault may have taken something, and of replicas that were removed at some time."""
    assigned = [each.replicas for decisions in partition.decisions.values() for each in decisions if each.replicas]
    held = {f"b{broker}" for broker in frozenset[int]().union(*assigned).intersection(*assigned)} - set(unreliable)
    known: dict[str, TraceRow] = {}
    for event in changes:
        before = known.get(event.node)
        if before is not None and event.kind == "log_recovered" and event.log_end < before.end_after:
            lines = _told(before, f"came back {event.at}", event.log_end)
            partition.report(event, "log-shortened", event.log_end, *lines)
        if event.node in held:
            known[event.node] = event
    for row in replica_ends.to_pylist():
        last = known.get(row["node"])
        if last is not None and row["log_end"] < last.end_after:
            lines = _told(last, "is on its disk", row["log_end"])
            partition.report(last, "log-end-not-on-disk", row["log_end"], *lines)


def _told(before: TraceRow, what: str, end: int) -> tuple[str, str]:
    return (
        f"the log of {before.node} {what} and ends at {end}",
        f"{before.node} {_did(before)} it {before.at} at {before.end_after}, and no fault that loses data had hit the "
        "node",
    )


def _did(event: TraceRow) -> str:
    """The event of a log as a verb: it was cut or opened."""
    return "cut" if event.kind == "truncated" else "opened"


def check_disks(cluster: ClusterState, replica_ends: pa.Table, collected_ns: int) -> None:
    """At the end of the run every log on disk reaches as far as its node traced; `collected_ns` is when the last
    operation of clients completed, and what was appended later may not have been collected."""
    for row in replica_ends.to_pylist():
        partition, node = cluster.partitions.get((row["topic"], row["partition"])), row["node"]
        if partition is None or node not in partition.opened or node in partition.removed:
            continue
        traced, last = len(partition.logs.get(node, ())), partition.log_events.get(node)
        if last is None or last.time_ns > collected_ns or row["log_end"] >= traced:
            continue
        if not _is_settled(partition, node, traced):
            continue
        if not cluster.lost_data(node, partition.opened[node], collected_ns) and not cluster.lied(node, collected_ns):
            partition.report(
                last,
                "log-end-not-on-disk",
                row["log_end"],
                f"the log of {node} ended at {traced} {last.at}, after {last.kind}",
                f"on its disk it ends at {row['log_end']}, and no fault that loses data had hit the node",
            )


def _check_file(partition: PartitionState, event: TraceRow, settings: CheckSettings) -> None:
    """A log that was opened or cut ends where its file ends, counts nothing as synced and has nothing in its index that
    it has not, and leaves no more unsynced than its settings allow."""
    detail, end, did = event.details(), event.end_after, _did(event)
    if behind := detail.get("bytes_behind", 0):
        left = (
            f"{event.node} {did} its log {event.at}, which ends at {end}, and left {behind} bytes behind the last batch"
        )
        partition.report(event, "bytes-left-behind", end, left, WITH_BYTES_BEHIND)
    unsynced = detail.get("unsynced", 0)
    if 0 < settings.flush_messages <= unsynced:
        held = (
            f"{event.node} opened its log {event.at}, which ends at {end}, and goes on with {unsynced} records unsynced"
        )
        limit = f"with flush.messages {settings.flush_messages} they count as safe from a loss of power, and are not"
        partition.report(event, "opened-unsynced", end - unsynced, held, limit)
    if (synced := detail.get("synced_below", end)) > end:
        counts = f"{event.node} {did} its log {event.at}, which ends at {end}, and counts all below {synced} as on disk"
        partition.report(event, "synced-beyond-end", end, counts, "what it appends next would not be synced")
    if (indexed := detail.get("indexed_above")) is not None:
        left = (
            f"{event.node} {did} its log {event.at}, which ends at {end}, and kept an index entry of offset {indexed}"
        )
        later = "a read of what it appends next may begin where no batch does"
        partition.report(event, "index-entry-left", end, left, later)


def _deleted(partition: PartitionState, event: TraceRow, _: CheckSettings) -> None:
    partition.deleted[event.node] = event.time_ns


def _truncated(partition: PartitionState, event: TraceRow, _: CheckSettings) -> None:
    partition.synced_to[event.node] = min(event.offset, partition.synced_to.get(event.node, 0))


def _closed(partition: PartitionState, event: TraceRow, _: CheckSettings) -> None:
    partition.synced_to[event.node] = max(event.offset, partition.synced_to.get(event.node, 0))
    if event.details().get("synced") is False and event.offset < event.log_end:
        partition.unsynced[event.node] = event


def check_claim(cluster: ClusterState, event: TraceRow) -> None:
    """A process that starts presents the end of the life before as clean only if that had synced all of its logs."""
    for partition in cluster.partitions.values():
        closed = partition.unsynced.pop(event.node, None)
        if closed is not None and 0 <= event.broker_epoch == closed.broker_epoch:
            presents = f"{event.node} starts {event.at} and presents the end of its life {event.broker_epoch} as clean"
            unsynced = (
                f"a sync had failed when that life closed the log {closed.at}: it ended at {closed.log_end}, and only "
                f"what is below {closed.offset} was known to be on disk"
            )
            partition.report(event, "clean-claim-unsynced", closed.offset, presents, unsynced)


ON_DISK: Mapping[str, TraceRowHandler] = dict.fromkeys(
    ("appended", "log_closed", "log_recovered", "log_start_written", "replica_deleted"), _check_on_disk
)
FILES: Mapping[str, TraceRowHandler] = dict.fromkeys(("log_recovered", "truncated"), _check_file)
HANDLERS: Mapping[str, TraceRowHandler] = {
    "appended": _appended,
    "truncated": _truncated,
    "log_closed": _closed,
    "replica_deleted": _deleted,
    "leader_log_start": _leader_log_start,
}
