"""Promises about the high watermark of a leader: advancing it, and answers based on it. See
`checkers.protocol.checker`."""

from __future__ import annotations

from collections.abc import Mapping

from checkers.evidence import CheckSettings
from checkers.protocol.batches import UNKNOWN
from checkers.protocol.state import ClusterState, PartitionState, TraceRowHandler, differs, names
from checkers.tables import TraceRow


def _high_watermark(partition: PartitionState, event: TraceRow, _: CheckSettings) -> None:
    partition.watermark_moves += 1
    _check_within_log(partition, event)
    before, after, log = max(event.offset, 0), event.high_watermark, partition.log(event.node)
    quorum = frozenset(event.members) | {int(node) for node in [event.node[1:]] if node.isdigit()}
    moved = f"{event.node} moved the high watermark {before} → {after} {event.at} in leader epoch {event.leader_epoch}"
    was = max(before, partition.high_watermarks.get(event.node, UNKNOWN))
    if before < was or after < before:
        partition.report(event, "high-watermark-fell", after, moved, f"it had been {was} in the same leadership")
    partition.high_watermarks[event.node] = after
    with_quorum = f"{moved} with the quorum {names(quorum)}"
    minimum = min_isr_known_to(partition, event)
    if len(quorum) < minimum:
        lacking = f"min.insync.replicas asks for {minimum}"
        partition.report(event, "quorum-too-small", before, with_quorum, lacking)
    if partition.isr is not None and event.leader_epoch == partition.leader_epoch:
        expected = partition.isr | partition.elr
        if len(partition.isr) >= partition.min_isr and not expected <= quorum:
            held = f"the controller held the ISR {names(partition.isr)} and the ELR {names(partition.elr)}"
            partition.report(event, "quorum-not-superset", before, with_quorum, held)
    check_positions(partition, event, event.details().get("positions"), with_quorum)
    for member in sorted(quorum):
        _check_member_holds(partition, event, f"b{member}", before, after, with_quorum)
    known = min(after, len(partition.committed))
    if log[before:known] != partition.committed[before:known]:
        other = differs(log[before:known], partition.committed[before:known])
        if other is not None:
            partition.report(
                event, "committed-overwritten", before + other, moved, partition.describe_missing(before + other)
            )
    for offset in range(len(partition.committed), min(after, len(log))):
        partition.committed.append(log[offset])
        partition.committed_ns.append(event.time_ns)
        partition.committed_in.append(event.leader_epoch)


def _isr_counted(partition: PartitionState, event: TraceRow, _: CheckSettings) -> None:
    """Once a leader counts others, what all of them have is committed, and also those for which it waits: nobody may
    come who moves the high watermark."""
    detail = event.details()
    positions = detail.get("positions")
    if not isinstance(positions, dict) or len(event.members) < min_isr_known_to(partition, event):
        return
    held = min([*positions.values(), *detail.get("awaited", {}).values()], default=UNKNOWN)
    if event.high_watermark < held:
        partition.report(
            event,
            "high-watermark-behind",
            event.high_watermark,
            f"{event.node} counted {names(frozenset(map(int, positions)))} {event.at} with the high watermark "
            f"{event.high_watermark}",
            f"it held all of them at {held} or above",
        )


def check_founded(cluster: ClusterState, partition: PartitionState, event: TraceRow) -> None:
    """A log is opened, a leader begins, and a follower goes on with a high watermark that some leader of this partition
    had reached: what a checkpoint has of a deleted one of its name does not count."""
    known: object = event.high_watermark if event.kind != "became_leader" else event.details().get("high_watermark")
    committed, is_traced = len(partition.committed), not cluster.lied(event.node, event.time_ns)
    if event.kind == "follower_high_watermark":
        is_traced = is_traced and f"b{event.leader}" in partition.opened
    if isinstance(known, int) and known > committed and is_traced:
        did = {
            "log_recovered": "opened its log",
            "became_leader": f"led in leader epoch {event.leader_epoch}",
        }.get(event.kind, _followed(event))
        taken = f"{event.node} {did} {event.at} with the high watermark {known}"
        reached = f"no leader's high watermark had passed {committed} since the topic was created"
        partition.report(event, "high-watermark-unfounded", committed, taken, reached)


def _followed(event: TraceRow) -> str:
    return f"followed b{event.leader}" if event.leader >= 0 else "had no leader"


def check_positions(partition: PartitionState, event: TraceRow, positions: object, what: str) -> None:
    """A follower counts where the leader has seen it since it leads: under another leader it may have cut its log."""
    since, _ = partition.leads_since.get(event.node, (UNKNOWN, UNKNOWN))
    for member, position in positions.items() if isinstance(positions, dict) else ():
        seen = partition.accepted_in.get((event.node, int(member)))
        if seen is not None and position >= 0 and seen < since:
            partition.report(
                event,
                "position-of-another-leadership",
                position,
                what,
                f"it counted b{member} at {position}, where it had seen it in leader epoch {seen}; others may have led "
                f"until it led from leader epoch {since} on",
            )


def _check_within_log(partition: PartitionState, event: TraceRow) -> None:
    """HW ≤ LEO: a high watermark is an offset of the node's own log, on a follower as on a leader."""
    end = len(partition.log(event.node))
    if event.node in partition.opened and event.high_watermark > end:
        partition.report(
            event,
            "high-watermark-above-log-end",
            end,
            f"{event.node} moved the high watermark {event.offset} → {event.high_watermark} {event.at}",
            f"its own log ended at {end}",
        )


def _role_begun(partition: PartitionState, event: TraceRow, _: CheckSettings) -> None:
    """A checkpoint of the high watermark may have outlived the records: what a log does not hold does not count."""
    leads = event.kind == "became_leader"
    known = event.details().get("high_watermark") if leads else event.high_watermark
    if isinstance(known, int) and known > event.log_end >= 0:
        began = "led" if leads else _followed(event)
        partition.report(
            event,
            "high-watermark-above-log-end",
            event.log_end,
            f"{event.node} {began} in leader epoch {event.leader_epoch} {event.at} with the high watermark {known}",
            f"its own log ended at {event.log_end}",
        )


def _follower_high_watermark(partition: PartitionState, event: TraceRow, _: CheckSettings) -> None:
    _check_within_log(partition, event)
    start = partition.log_starts.get(event.node, 0)
    if event.high_watermark < start:
        partition.report(
            event,
            "high-watermark-below-log-start",
            event.high_watermark,
            f"{event.node} moved the high watermark {event.offset} → {event.high_watermark} {event.at}",
            f"its own log starts at {start}: what was deleted below was committed",
        )


def _isr_proposed(partition: PartitionState, event: TraceRow, _: CheckSettings) -> None:
    """A follower joins the ISR once the leader has seen it at its high watermark and at its epoch's start."""
    positions, start = event.details().get("positions"), partition.epoch_starts.get(event.node, event.offset)
    if event.offset != start and event.leader_epoch == partition.role_epochs.get(event.node):
        partition.report(
            event,
            "isr-proposal-behind",
            event.offset,
            f"{event.node} proposed the ISR {names(frozenset(event.members))} {event.at}, and took its leader epoch "
            f"{event.leader_epoch} to start at {event.offset}",
            f"its log had ended at {start} when it began to lead in that",
        )
    for member, position in positions.items() if isinstance(positions, dict) else ():
        if position < max(event.high_watermark, event.offset):
            where = "never in this leadership" if position < 0 else f"at {position}"
            partition.report(
                event,
                "isr-proposal-behind",
                position,
                f"{event.node} proposed the ISR {names(frozenset(event.members))} {event.at} in leader epoch "
                f"{event.leader_epoch}, and had seen b{member} {where}",
                f"its high watermark was {event.high_watermark}, and its leader epoch starts at {event.offset}",
            )


def check_starts_of_joining(cluster: ClusterState, partition: PartitionState, event: TraceRow) -> None:
    """… and once its log starts no lower: below its own start a leader cannot tell where the logs part. What a follower
    has in a later life than the proposal names, the leader has not seen, and the controllers refuse the proposal."""
    detail = event.details()
    for member in detail.get("positions") or ():
        standings, named = cluster.standings.get(int(member)), detail.get("epochs", {}).get(member)
        if standings is None or named is None or standings[-1].epoch == named:
            _check_start_of_joining(partition, event, f"b{member}")


def _check_start_of_joining(partition: PartitionState, event: TraceRow, joining: str) -> None:
    least, start = partition.log_starts.get(event.node, 0), partition.log_starts.get(joining, 0)
    if start < least and joining in partition.opened and joining not in partition.removed:
        partition.report(
            event,
            "isr-proposal-behind",
            start,
            f"{event.node} proposed the ISR {names(frozenset(event.members))} {event.at} in leader epoch "
            f"{event.leader_epoch}",
            f"the log of {joining} starts at {start}, and that of {event.node} at {least}: nobody knows whether they "
            "differ below",
        )


def min_isr_known_to(partition: PartitionState, event: TraceRow) -> int:
    """The minimum at the partition epoch in which the event's node acted. A change of the minimum moves that epoch, so
    that a leader which has not read of it yet is known by the one it still names."""
    known = [minimum for epoch, minimum in partition.min_isr_at.items() if epoch <= event.partition_epoch]
    return known[-1] if known else partition.min_isr


def _check_member_holds(
    partition: PartitionState, event: TraceRow, node: str, before: int, after: int, moved: str
) -> None:
    if node in partition.shrunk:
        return
    wanted, held = partition.log(event.node)[before:after], partition.log(node)[before:after]
    if len(wanted) < after - before:
        partition.report(event, "replica-counted-wrongly", before + len(wanted), moved, "beyond the end of its own log")
    elif wanted != held and (place := differs(held, wanted)) is not None:
        end = len(partition.log(node))
        lines = (moved, f"{node} did not hold the record at offset {before + place}: its log ended at {end}")
        if before + place < end:
            epoch = partition.log(node)[before + place]
            lines = (moved, f"{node} held another record at offset {before + place}, of leader epoch {epoch}")
        partition.report(event, "replica-counted-wrongly", before + place, *lines)


def _latest_told(partition: PartitionState, event: TraceRow, _: CheckSettings) -> None:
    start = partition.epoch_starts.get(event.node, UNKNOWN)
    if event.high_watermark < start:
        partition.report(
            event,
            "latest-below-start",
            event.high_watermark,
            f"{event.node} reported {event.high_watermark} as the latest offset {event.at}",
            f"its leader epoch {event.leader_epoch} starts at {start}: what lies between may be committed",
        )


def _acknowledged(partition: PartitionState, event: TraceRow, _: CheckSettings) -> None:
    if event.log_end > event.high_watermark and event.details().get("acks", -1) == -1:
        partition.report(
            event,
            "acknowledged-uncommitted",
            event.offset,
            f"{event.node} acknowledged offsets {event.offset} to {event.log_end - 1} with acks=all {event.at}",
            f"its high watermark was {event.high_watermark}",
        )


HANDLERS: Mapping[str, TraceRowHandler] = {
    "became_leader": _role_begun,
    "became_follower": _role_begun,
    "high_watermark": _high_watermark,
    "isr_counted": _isr_counted,
    "follower_high_watermark": _follower_high_watermark,
    "isr_proposed": _isr_proposed,
    "latest_told": _latest_told,
    "acknowledged": _acknowledged,
}
