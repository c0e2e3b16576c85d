"""Promises about the ISR that a leader counts: the one decided, the changes of it that may have been decided, and no
others. See `checkers.protocol.checker`.

A change that is not ended keeps a leader from the next one, and lets the high watermark wait for whoever was to join,
so that a partition may stand still for good. A run may be over before that shows, or another change may help.
"""

from __future__ import annotations

from collections.abc import Mapping

from checkers.evidence import CheckSettings
from checkers.protocol.batches import UNKNOWN
from checkers.protocol.read_promises import changes_in_flight
from checkers.protocol.state import (
    ClusterRowHandler,
    ClusterState,
    LeaderWait,
    PartitionState,
    TraceRowHandler,
    integers,
    names,
)
from checkers.protocol.watermark_promises import min_isr_known_to
from checkers.tables import TraceRow

_FINAL = frozenset({"fenced_leader_epoch", "ineligible_replica", "invalid_request", "invalid_update_version"})
"""Errors that are about the change itself: sent again, it gets the same one, or is another change by then."""
_INEXACT_NS = 50_000_000
"""Lags are counted in milliseconds, and a clock of the one machine may be set while it runs."""
_AT_WORK_NS = 300_000_000
"""So long after an event its node counts as at work; what comes later, it may have been paused or dead."""
_OVERDUE_NS = 1_000_000_000
"""A leader looks for lagging followers twice within the longest lag. It has until twice the lag, and this long …"""
_LATE_NS = 500_000_000
"""… and where it is known since when one follower lags, until one and a half times the lag, and this long."""
_SENT_AGAIN_NS = 2_000_000_000
"""A change that an answer has not ended is sent again after a pause that the trace tells, and this at the latest."""


def _isr_counted(partition: PartitionState, event: TraceRow, _: CheckSettings) -> None:
    """A change that is in flight, or may still be made, was proposed in the partition epoch that the leader knows:
    newer metadata has ended all others."""
    if partition.created_again:
        return
    partition.acts.append(event)
    detail = event.details()
    here = partition.proposed_in.get((event.leader_epoch, event.partition_epoch), ())
    proposed = [each.members for each in here if each.leader == event.node]
    kept = frozenset(integers(detail, "unresolved")) - frozenset[int]().union(*proposed)
    if "proposed" in detail and frozenset(integers(detail, "proposed")) not in proposed:
        kept |= frozenset(integers(detail, "proposed"))
    if kept:
        partition.report(
            event,
            "isr-change-kept",
            UNKNOWN,
            f"{event.node} knew of partition epoch {event.partition_epoch} {event.at}, with the ISR "
            f"{names(frozenset(event.members))}",
            f"it still counted {names(kept)} as of a change in flight, which it had proposed in another state: newer "
            "metadata, or the end of its leadership, has ended that",
        )


def _high_watermark(partition: PartitionState, event: TraceRow, _: CheckSettings) -> None:
    if partition.created_again or event.node != f"b{event.leader}":
        return
    in_flight = frozenset[int]().union(*changes_in_flight(partition, event))
    key = event.node, event.leader_epoch, event.partition_epoch, frozenset(event.members), in_flight
    partition.quorums.setdefault(key, (event, in_flight))


def check_quorums(partition: PartitionState) -> None:
    """After the last event, since a decision may be traced late: every quorum was the leader's maximal ISR. Where no
    decision of its partition epoch is in the trace, nothing is said about it."""
    for event, in_flight in partition.quorums.values():
        known = [
            decision.isr
            for decision in partition.decisions.get(event.partition_epoch, ())
            if (decision.leader, decision.leader_epoch) == (event.leader, event.leader_epoch)
        ]
        quorum = frozenset(event.members) | {event.leader}
        if not known or any(quorum == isr | in_flight | {event.leader} for isr in known):
            continue
        proposed = f", and it had proposed {names(in_flight)}" if in_flight else ""
        partition.report(
            event,
            "quorum-not-maximal-isr",
            event.offset,
            f"{event.node} moved the high watermark {event.offset} → {event.high_watermark} {event.at} with the quorum "
            f"{names(quorum)}, in partition epoch {event.partition_epoch}",
            f"the ISR was {names(known[0])} in that{proposed}",
        )


# ---- changes in flight -----------------------------------------------------------------------------------------------


def _proposed(partition: PartitionState, event: TraceRow, _: CheckSettings) -> None:
    partition.to_send_again.pop(event.node, None)
    partition.ended_proposals.pop(event.node, None)
    partition.lost_requests.pop(event.node, None)


def _answered(partition: PartitionState, event: TraceRow, _: CheckSettings) -> None:
    """An answer may end a change, or leave it to be sent again. A granted one has a partition epoch of its own: by that
    the leader knows that it is made. Grants are kept for `check_granted`."""
    detail = event.details()
    granted = detail.get("partition_epoch")
    if detail.get("sent"):
        partition.lost_requests[event.node] = event
    _check_certain(partition, event)
    wait = partition.waits.get(event.node)
    if wait is not None and "again_ms" in detail and detail["error"] not in {"none", *_FINAL}:
        partition.to_send_again[event.node] = event, wait.worked_ns
    if detail["error"] in _FINAL:
        partition.ended_proposals[event.node] = event
    elif detail["error"] == "none" and isinstance(granted, int):
        partition.granted.append((event, granted))
        if granted <= event.partition_epoch:
            partition.report(
                event,
                "partition-epoch-stood",
                UNKNOWN,
                f"the controllers granted {event.node} the ISR {names(frozenset(event.members))} {event.at}",
                f"it had proposed that in partition epoch {event.partition_epoch}, and the answer has {granted}: no "
                "leader can tell that from the state before, and the change stays in flight",
            )


def _check_certain(partition: PartitionState, event: TraceRow) -> None:
    """While a request with a change has no answer it may still arrive, whatever becomes of the later ones."""
    lost = partition.lost_requests.get(event.node)
    if event.details().get("certain") and lost is not None and _place(lost) == _place(event):
        partition.report(
            event,
            "isr-change-taken-for-certain",
            UNKNOWN,
            f"{event.node} asked for the ISR {names(frozenset(event.members))} once more, and knew {event.at} what "
            "became of that",
            f"a request with it had no answer {lost.at}, and may still arrive",
        )


def check_granted(partition: PartitionState) -> None:
    """After the last event, since a decision may be traced late: what a leader is told to be made has been decided."""
    for event, granted in partition.granted:
        if partition.decisions and granted not in partition.decisions and not partition.created_again:
            partition.report(
                event,
                "isr-answer-undecided",
                UNKNOWN,
                f"{event.node} was told {event.at} that its proposal {names(frozenset(event.members))} is the ISR of "
                f"partition epoch {granted}",
                "no controller has decided anything in that partition epoch: the answer was given before the commit",
            )


def _rejected(partition: PartitionState, event: TraceRow, _: CheckSettings) -> None:
    """A leader takes a change back that is certainly not made: it was refused for its members, and no earlier request
    with it may still arrive."""
    detail, lost = event.details(), partition.lost_requests.get(event.node)
    if not detail.get("rolled_back"):
        return
    if detail["error"] != "ineligible_replica":
        why = f"it was refused with {detail['error']}: the controllers may have made it before"
    elif lost is not None and _place(lost) == _place(event):
        why = f"a request with it had no answer {lost.at}, and may be granted later, once the member may join again"
    else:
        return
    partition.report(
        event,
        "isr-change-taken-back-early",
        UNKNOWN,
        f"{event.node} took its last proposal back {event.at}, and counts the ISR {names(frozenset(event.members))}",
        why,
    )


def _place(event: TraceRow) -> tuple[int, int]:
    return event.leader_epoch, event.partition_epoch


def _sent(partition: PartitionState, event: TraceRow, _: CheckSettings) -> None:
    """A change that was refused for what it is, is not sent again before it is proposed again."""
    partition.to_send_again.pop(event.node, None)
    ended = partition.ended_proposals.get(event.node)
    if ended is None or _change(ended) != _change(event):
        return
    partition.report(
        event,
        "isr-change-sent-again",
        UNKNOWN,
        f"{event.node} sent the ISR {names(frozenset(event.members))} of partition epoch {event.partition_epoch} again "
        f"{event.at}",
        f"it had read {ended.at} that it is refused with {ended.details()['error']}: what it is to change is another "
        "state by now, or a member is in another life",
    )


def _change(event: TraceRow) -> tuple[object, ...]:
    return *_place(event), frozenset(event.members)


def _check_sent_again(cluster: ClusterState, partition: PartitionState, event: TraceRow, wait: LeaderWait) -> None:
    """A change in flight is sent until its answer, or metadata, ends it: no other one is proposed before."""
    answer, answered_at = partition.to_send_again.get(event.node, (None, 0))
    if answer is None or not wait.in_flight:
        return
    silent_ns = wait.worked_ns - answered_at
    due_ns = answer.details()["again_ms"] * 1_000_000 + _SENT_AGAIN_NS
    if _place(answer) != _place(event) or silent_ns <= due_ns:
        return
    del partition.to_send_again[event.node]
    partition.report(
        event,
        "isr-change-not-sent-again",
        UNKNOWN,
        f"{event.node} has the ISR {names(frozenset(answer.members))} of partition epoch {answer.partition_epoch} in "
        f"flight {event.at}, and can propose no other one",
        f"{answer.at} the request with it was {_outcome(answer)}, and it has sent none for {silent_ns / 1e9:.1f} s "
        "since then",
    )


def _check_settled(cluster: ClusterState, partition: PartitionState, event: TraceRow, wait: LeaderWait) -> None:
    """A refused change that an earlier request may still make is settled by the next one, if only of the ISR to itself:
    its members count until then, and nobody else may join."""
    if wait.unsettled_at is None or cluster.lag_max_ms < 0:
        return
    unsettled_ns = wait.worked_ns - wait.unsettled_at
    if unsettled_ns <= _longest_ns(cluster):
        return
    partition.report(
        event,
        "isr-change-unsettled",
        UNKNOWN,
        f"{event.node} has counted for {unsettled_ns / 1e9:.1f} s {event.at}, beside its ISR {names(wait.isr)}, who "
        "was to join it by a change that was refused, and of which an earlier request may still arrive",
        "it has proposed nothing since then: a change of the ISR to itself would end that",
    )
    wait.unsettled_at = None


def _outcome(answer: TraceRow) -> str:
    error = answer.details()["error"]
    return "lost" if error == "lost" else f"answered with {error}"


# ---- followers that lag ----------------------------------------------------------------------------------------------


def _leads(cluster: ClusterState, partition: PartitionState, event: TraceRow) -> None:
    """Followers count as caught up from when the leader applies the metadata. This event may come long after: once the
    leader's disk has the epoch."""
    isr, known = frozenset(event.members), event.details().get("high_watermark")
    watermark = known if isinstance(known, int) else event.log_end
    caught_up_ns = dict.fromkeys(sorted(isr), cluster.applied_ns.get(event.node, event.time_ns))
    partition.waits[event.node] = LeaderWait(isr, watermark, event.time_ns, event.time_ns, caught_up_ns)


def _leads_no_more(_: ClusterState, partition: PartitionState, event: TraceRow) -> None:
    partition.waits.pop(event.node, None)
    partition.to_send_again.pop(event.node, None)


def _counts(cluster: ClusterState, partition: PartitionState, event: TraceRow) -> None:
    if (wait := partition.waits.get(event.node)) is not None:
        wait.isr, wait.in_flight = frozenset(event.members), "proposed" in event.details()
        _works(cluster, event, wait)
        wait.waited_ns, wait.counted_at = 0, wait.worked_ns
        unsettled = bool(event.details().get("unresolved")) and not wait.in_flight
        wait.unsettled_at = wait.worked_ns if unsettled else None


def _passes(cluster: ClusterState, partition: PartitionState, event: TraceRow) -> None:
    """A follower with the whole log has fetched since that ends there."""
    wait, positions = partition.waits.get(event.node), event.details().get("positions")
    if wait is None:
        return
    _works(cluster, event, wait)
    wait.high_watermark, wait.waited_ns = event.high_watermark, 0
    for member, position in positions.items() if isinstance(positions, dict) else ():
        if position >= len(partition.log(event.node)):
            wait.caught_up_ns[int(member)] = max(wait.caught_up_ns.get(int(member), UNKNOWN), wait.appended_ns)


def _works(cluster: ClusterState, event: TraceRow, wait: LeaderWait) -> int:
    """A leader has an event. Returns for how long it has been at work since the last one, by timers that ran right."""
    wrong = (cluster.stalls, cluster.wrong_timers)
    is_known = not any(times.between(event.node, wait.seen_ns, event.time_ns) for times in wrong)
    return wait.works(event.time_ns, _AT_WORK_NS if is_known else 0)


def _is_at_work(cluster: ClusterState, partition: PartitionState, event: TraceRow) -> None:
    """Whom the high watermark waits for has not been caught up since it began to wait."""
    wait = partition.waits.get(event.node)
    if wait is None or event.node != f"b{event.leader}":
        return
    gap_ns = _works(cluster, event, wait)
    _check_ends(cluster, partition, event, wait)
    _check_sent_again(cluster, partition, event, wait)
    _check_settled(cluster, partition, event, wait)
    if event.kind == "appended":
        wait.appended_ns = event.time_ns
        wait.ends.append((event.log_end, wait.worked_ns))
    if wait.high_watermark >= len(partition.log(event.node)):
        wait.waited_ns = 0
        return
    wait.waited_ns += gap_ns
    may_count = len(wait.isr) >= max(2, min_isr_known_to(partition, event)) and not wait.in_flight
    if not may_count or wait.waited_ns <= _longest_ns(cluster) or cluster.lag_max_ms < 0:
        return
    partition.report(
        event,
        "isr-shrink-overdue",
        wait.high_watermark,
        f"{event.node} has waited {wait.waited_ns / 1e9:.1f} s {event.at} for its ISR {names(wait.isr)} to pass offset "
        f"{wait.high_watermark}",
        f"whom it waits for has lagged for longer than replica.lag.time.max.ms, {cluster.lag_max_ms}, and it has not "
        "proposed to go on without",
    )
    wait.waited_ns = 0


def _check_ends(cluster: ClusterState, partition: PartitionState, event: TraceRow, wait: LeaderWait) -> None:
    """A follower whose log has not ended where the leader's did then has not been caught up since, however often it
    fetches."""
    due_at = wait.worked_ns - (cluster.lag_max_ms * 1_500_000 + _LATE_NS)
    if wait.in_flight or wait.counted_at >= due_at or cluster.lag_max_ms < 0:
        return
    for member in sorted(wait.isr - {event.leader}):
        node = f"b{member}"
        end = max(len(partition.log(node)), wait.told_ends.get(member, 0))
        passed_at = wait.passed_at(end)
        if passed_at is None or passed_at >= due_at or node not in partition.opened:
            continue
        partition.report(
            event,
            "isr-shrink-overdue",
            end,
            f"{event.node} still counted {node} in its ISR {names(wait.isr)} {event.at}",
            f"the log of {node} ends at {len(partition.log(node))}, and its own ended above {end} for "
            f"{(wait.worked_ns - passed_at) / 1e9:.1f} s: that has lagged for longer than replica.lag.time.max.ms, "
            f"{cluster.lag_max_ms}",
        )
        wait.counted_at = wait.worked_ns


def _longest_ns(cluster: ClusterState) -> int:
    return 2 * cluster.lag_max_ms * 1_000_000 + _OVERDUE_NS


def _measured_ns(cluster: ClusterState, event: TraceRow, since_ns: int) -> int:
    """For how long a node counts something to have lasted since then, at most, by its own timers."""
    lasted_ns = event.time_ns - since_ns
    return lasted_ns + cluster.clocks.fast_ns(event.node, since_ns, event.time_ns) + _INEXACT_NS


def _begins_anew(_: ClusterState, partition: PartitionState, event: TraceRow) -> None:
    """A leader may have seen the follower where its log ended before; so it may not lag, as far as the leader knows,
    before the leader has appended more."""
    for leader, wait in partition.waits.items():
        if leader != event.node and event.node[1:].isdigit():
            wait.told_ends[int(event.node[1:])] = len(partition.log(leader))


def _recovered(cluster: ClusterState, partition: PartitionState, event: TraceRow) -> None:
    _leads_no_more(cluster, partition, event)
    _begins_anew(cluster, partition, event)


def _shrinks(cluster: ClusterState, partition: PartitionState, event: TraceRow) -> None:
    wait, detail = partition.waits.get(event.node), event.details()
    if wait is None or detail.get("reason") != "shrink":
        return
    for member in sorted(map(int, detail.get("lag_ms", {}))):
        caught_up_ns = wait.caught_up_ns.get(member)
        lag_max_ms = detail["lag_max_ms"]
        if caught_up_ns is None or _measured_ns(cluster, event, caught_up_ns) >= lag_max_ms * 1_000_000:
            continue
        partition.report(
            event,
            "isr-shrink-early",
            UNKNOWN,
            f"{event.node} proposed the ISR {names(frozenset(event.members))} without b{member} {event.at}",
            f"that had the whole log, or began to follow it, {(event.time_ns - caught_up_ns) / 1e6:.0f} ms before at "
            f"the earliest, and replica.lag.time.max.ms is {lag_max_ms}",
        )


CLUSTER_HANDLERS: Mapping[str, ClusterRowHandler] = {
    "became_leader": _leads,
    "became_follower": _leads_no_more,
    "resigned": _leads_no_more,
    "log_recovered": _recovered,
    "truncated": _begins_anew,
    "isr_counted": _counts,
    "high_watermark": _passes,
    "appended": _is_at_work,
    "acknowledged": _is_at_work,
    "append_unacknowledged": _is_at_work,
    "latest_asked": _is_at_work,
    "latest_told": _is_at_work,
    "fetch_answered": _is_at_work,
    "reads_confirmed": _is_at_work,
    "isr_proposed": _shrinks,
}
HANDLERS: Mapping[str, TraceRowHandler] = {
    "isr_counted": _isr_counted,
    "high_watermark": _high_watermark,
    "isr_proposed": _proposed,
    "alter_partition_answered": _answered,
    "alter_partition_sent": _sent,
    "isr_rejected": _rejected,
}
