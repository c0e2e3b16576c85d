"""Broken steps of answers and refusals: what was compared there contradicts what is known.

A refusal names the facts that were compared: epochs, a position, a session. The comparison is done again here, with the
facts of the event and with those that other events have: what the controllers have committed, what the logs hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from checkers.evidence import SEQUENCE_MODULUS
from checkers.protocol.batches import BATCHES_KEPT
from checkers.tables import TraceRow
from results.explanation.replay import UNKNOWN, PartitionReplay, ReplicaView
from results.explanation.story import Step, StepKind, brokers, leader_name

_REPETITIONS: Final = 3
"""So often a fetch diverges at the same place before it is taken for one that does not converge."""


def _step(kind: StepKind, event: TraceRow, text: str, first: int = 0) -> Step:
    return Step(kind, event.time_ns, event.node, f"{event.node} {text}", first)


# ---- brokers and their sessions --------------------------------------------------------------------------------------


def _registration_refused(state: PartitionReplay, event: TraceRow) -> Iterator[Step]:
    """The earlier process has ended: once heartbeats of it that were on their way may renew its session between two
    refusals of the new one, and then none is left."""
    detail = event.details()
    if detail.get("over"):
        yield _step(
            StepKind.REGISTRATION_REFUSED_AFTER_SESSION,
            event,
            f"refused to register the new process of b{event.broker}, because the session of the earlier one (broker "
            f"epoch {event.broker_epoch}) lasts, though its last contact is longer ago than the session timeout of "
            f"{detail['session_timeout_ms']} ms: that session is over",
        )
    earlier = state.contacts(event)
    if len(earlier) > 1 and earlier[-1] < detail["contact_ms"]:
        yield _step(
            StepKind.SESSION_OF_ENDED_PROCESS_RENEWED,
            event,
            f"refused again to register the new process of b{event.broker}, because the session of the earlier one "
            f"(broker epoch {event.broker_epoch}) lasts, and had renewed that session since its last refusal, by "
            f"{detail['contact_ms'] - earlier[-1]} ms, and once before that: that process has ended and sends nothing, "
            "so only the refused registration itself can have renewed it, and the session never ends",
        )


def _stays_fenced(state: PartitionReplay, event: TraceRow) -> Iterator[Step]:
    detail = event.details()
    if detail["metadata_offset"] < event.broker_epoch or event.broker in state.leave_asked:
        return
    text = f"kept b{event.broker} fenced upon a heartbeat that says that it has read the metadata up to "
    text += f"{detail['metadata_offset']}: its registration is at {event.broker_epoch}, so it has read that and may be "
    text += "unfenced"
    if detail["shutting_down"]:
        text += "; but it still counts as shutting down, which this process has not asked for"
        if (earlier := state.left_before.get(event.broker)) is not None:
            text += f": its earlier one, with broker epoch {earlier.broker_epoch}, shut down {earlier.at}, and the new "
            text += "registration kept that mark"
    yield _step(StepKind.BROKER_KEPT_FENCED, event, text)


def _unfenced(state: PartitionReplay, event: TraceRow) -> Iterator[Step]:
    offset = event.details().get("metadata_offset", event.broker_epoch)
    _, end = state.applied.get(f"b{event.broker}", (-1, event.broker_epoch + 1))
    if min(offset, end - 1) < event.broker_epoch:
        yield _step(
            StepKind.UNFENCED_BEFORE_REGISTRATION_READ,
            event,
            f"unfenced b{event.broker}, which had read the metadata up to {min(offset, end - 1)} only, not its own "
            f"registration at {event.broker_epoch}: it acts on what was decided for its earlier process",
        )


def _session_ended(state: PartitionReplay, event: TraceRow) -> Iterator[Step]:
    """A session lasts for its timeout after the last contact."""
    detail = event.details()
    silent_ms, timeout_ms = detail.get("silent_ms"), detail.get("session_timeout_ms")
    if silent_ms is None or timeout_ms is None or silent_ms >= timeout_ms:
        return
    after = f"{silent_ms} ms after its last contact, within its session of {timeout_ms} ms"
    if event.kind == "broker_fenced" and detail.get("reason") == "session_timeout":
        yield _step(StepKind.FENCED_WITHIN_SESSION, event, f"fenced b{event.broker} {after}")
    elif event.kind == "broker_registered" and event.broker not in state.fenced:
        text = f"registered another process of b{event.broker} {after}: both may act as this broker"
        yield _step(StepKind.REGISTERED_WITHIN_SESSION, event, text)


# ---- changes of the ISR ----------------------------------------------------------------------------------------------


def _alter_partition_refused(state: PartitionReplay, event: TraceRow) -> Iterator[Step]:
    """The checks of a proposal, in their order, against the leader and the epochs that the controller had."""
    detail = event.details()
    registered = detail.get("registered", event.broker_epoch)
    if registered != event.broker_epoch and detail["error"] != "stale_broker_epoch":
        yield _step(
            StepKind.ISR_CHANGE_REFUSED_WRONGLY,
            event,
            f"refused the ISR {brokers(frozenset(event.members))} of b{event.broker} with {detail['error']}, and not "
            f"for its earlier life: it was sent in broker epoch {event.broker_epoch}, and the controller had it in "
            f"{registered if registered >= 0 else 'none'}",
        )
        return
    if detail.get("known") is None or detail["error"] == "stale_broker_epoch":
        return
    leader, leader_epoch, partition_epoch = detail["known"]
    right = ""
    if event.leader_epoch > leader_epoch or event.partition_epoch > partition_epoch:
        right = "not_controller"
    elif event.leader_epoch < leader_epoch:
        right = "fenced_leader_epoch"
    elif event.broker != leader:
        right = "invalid_request"
    elif event.partition_epoch < partition_epoch:
        right = "invalid_update_version"
    elif detail["error"] not in ("invalid_request", "ineligible_replica") or _may_all_join(state, detail["epochs"]):
        right = "none"
    if right and right != detail["error"]:
        yield _step(
            StepKind.ISR_CHANGE_REFUSED_WRONGLY,
            event,
            f"refused the ISR {brokers(frozenset(event.members))} of b{event.broker} with {detail['error']}: it was "
            f"proposed in leader epoch {event.leader_epoch}, partition epoch {event.partition_epoch}, and the "
            f"controller had {leader_name(leader)} for the leader, leader epoch {leader_epoch}, partition epoch "
            f"{partition_epoch}",
        )


def _may_all_join(state: PartitionReplay, epochs: Mapping[str, int]) -> bool:
    decision = state.decision
    return (
        decision is not None
        and decision.leader in map(int, epochs)
        and decision.replicas >= set(map(int, epochs))
        and all(state.is_active(int(one)) and state.broker_epochs[int(one)] == epoch for one, epoch in epochs.items())
    )


def _isr_proposed(state: PartitionReplay, event: TraceRow) -> Iterator[Step]:
    detail = event.details()
    limit_ms, leader = detail.get("lag_max_ms", -1), state.replica(event.node)
    for member, lag_ms in detail.get("lag_ms", {}).items():
        waits = int(member) in detail.get("unconfirmed", ())  # a read of the latest offset, for this member
        has_all = leader.positions.get(int(member)) == event.log_end == len(_log(state, member))
        if lag_ms > limit_ms and has_all and not waits:
            yield _step(
                StepKind.ISR_SHRINK_OF_CAUGHT_UP_MEMBER,
                event,
                f"proposed an ISR without b{member}, which it had counted at {event.log_end}, the end of its own log: "
                "nothing was appended since, so that member is caught up",
            )
        if lag_ms <= limit_ms:
            yield _step(
                StepKind.ISR_SHRINK_OF_CAUGHT_UP_MEMBER,
                event,
                f"proposed an ISR without b{member}, which was caught up {lag_ms} ms before: "
                f"replica.lag.time.max.ms is {limit_ms}",
            )


def _log(state: PartitionReplay, broker: str) -> list[int]:
    return state.replica(f"b{broker}").log


def _isr_rejected(state: PartitionReplay, event: TraceRow) -> Iterator[Step]:
    detail, proposal = event.details(), state.replica(event.node).proposal
    if detail.get("rolled_back") and detail.get("error") != "ineligible_replica" and proposal is not None:
        yield _step(
            StepKind.ISR_CHANGE_GIVEN_UP_UNCERTAIN,
            event,
            f"gave up its proposal {brokers(proposal.members)} upon {detail['error']}: "
            "that does not prove that no controller has committed it",
        )


# ---- fetches ---------------------------------------------------------------------------------------------------------


def _fetch_refused(state: PartitionReplay, event: TraceRow) -> Iterator[Step]:
    detail, leader = event.details(), state.replica(event.node)
    if "broker_epoch" not in detail or leader.role != "leader":
        return
    requested, held, replica = detail["requested"], event.leader_epoch, detail["replica"]
    decision = state.decisions.get(event.partition_epoch)
    is_replica = decision is not None and replica in decision.replicas
    error, position = detail["error"], event.offset
    current = requested in (UNKNOWN, held)
    wrong = {
        "fenced_leader_epoch": requested >= held or requested == UNKNOWN,
        "unknown_leader_epoch": current and is_replica,
        "not_leader_or_follower": current and is_replica and detail["broker_epoch"] >= _registered(state, replica),
        "offset_out_of_range": current and _in_log(leader, position, detail["last_epoch"]),
    }.get(error, False)
    if wrong:
        yield _step(
            StepKind.FETCH_REFUSED_WRONGLY,
            event,
            f"refused the fetch of b{replica} from {position} with {error}: it was sent in leader epoch {requested} by "
            f"broker epoch {detail['broker_epoch']}, behind a record of epoch {detail['last_epoch']}; the leader has "
            f"leader epoch {held}, its log goes from {leader.log_start} to {len(leader.log)}, and broker epoch "
            f"{_registered(state, replica)} is registered",
        )


def _registered(state: PartitionReplay, broker: int) -> int:
    return state.broker_epochs.get(broker, UNKNOWN)


def _in_log(leader: ReplicaView, position: int, last_epoch: int) -> bool:
    """Whether a leader's log has the position, and the epoch of the record before."""
    return leader.log_start <= position <= len(leader.log) and last_epoch in (UNKNOWN, *leader.log)


def _diverging(state: PartitionReplay, event: TraceRow) -> Iterator[Step]:
    detail = event.details()
    follower = state.replica(f"b{detail['replica']}")
    fetched = detail.get("fetched", ())
    if not fetched or follower.divergences.get((event.leader_epoch, *fetched), 0) != _REPETITIONS - 1:
        return
    epoch, offset = fetched
    last = follower.log[offset - 1] if 0 < offset <= len(follower.log) else UNKNOWN
    does = "cuts nothing, and fetches as before"
    if last not in (UNKNOWN, epoch):
        does = f"gives epoch {epoch} again as that of its last record, which is of epoch {last}"
    yield Step(
        StepKind.DIVERGENCE_REPEATED,
        event.time_ns,
        follower.node,
        f"{follower.node} fetched from {offset} behind epoch {epoch} for the {_REPETITIONS}rd time, and its leader "
        f"{event.node} answered again that they diverge: epoch {detail['epoch']} ends at {event.offset}. "
        f"{follower.node}, whose log ends at {len(follower.log)}, {does}",
    )


def _records_refused(state: PartitionReplay, event: TraceRow) -> Iterator[Step]:
    leader = state.replicas.get(f"b{event.leader}")
    if leader is None or leader.role != "leader" or leader.leader_epoch != event.leader_epoch:
        return
    if not leader.log_start <= event.log_end < len(leader.log):
        return
    if event.offset < 0:
        text = f"{leader.node} answered the fetch of {event.node} from {event.log_end} with bytes that are no sound "
        text += "batch (their length or checksum is wrong), though its log holds a record there"
        yield Step(StepKind.DAMAGED_RECORDS_ANSWERED, event.time_ns, leader.node, text)
        return
    why = "it read at a wrong position of its log"
    if event.offset < event.log_end:
        why += ", or from an earlier fetch offset of its follower, which their fetch session kept"
    yield Step(
        StepKind.FETCH_ANSWERED_FROM_ELSEWHERE,
        event.time_ns,
        leader.node,
        f"{leader.node} answered the fetch of {event.node} from {event.log_end} with a batch at {event.offset}, though "
        f"its log holds a record at {event.log_end}: {why}",
        before=((leader.shortened.time_ns, _cut(leader)),) if leader.shortened is not None else (),
    )


def _consumer_moved(state: PartitionReplay, event: TraceRow) -> Iterator[Step]:
    """A consumer reads on from where it asks, if the log has that."""
    leader, detail = state.replica(event.node), event.details()
    if leader.role != "leader" or not leader.log_start <= event.offset <= len(leader.log):
        return
    held = f"its log goes from {leader.log_start} to {len(leader.log)}, its high watermark is {event.high_watermark}"
    if detail["first"] >= 0:
        yield Step(
            StepKind.ANSWER_SKIPS_RECORDS,
            event.time_ns,
            event.node,
            f"{event.node} answered the fetch of a consumer from {event.offset} with records from {detail['first']} "
            f"on, and left out those between, which it holds: {held}",
            event.offset,
            detail["first"],
        )
    elif detail["last_epoch"] in (UNKNOWN, *leader.log):
        yield _step(
            StepKind.OFFSET_REFUSED_WRONGLY,
            event,
            f"refused the fetch of a consumer from {event.offset} as out of range, upon which the consumer resets its "
            f"position: {held}",
        )


def _cut(replica: ReplicaView) -> str:
    assert replica.shortened is not None
    return f"{replica.node} cut its log {replica.shortened.log_end} → {replica.shortened.offset}"


# ---- appends ---------------------------------------------------------------------------------------------------------


def _append_refused(state: PartitionReplay, event: TraceRow) -> Iterator[Step]:
    detail: dict[str, Any] = event.details()
    leader = state.replica(event.node)
    if leader.role != "leader" or detail["error"] != "out_of_order_sequence_number":
        return
    # A new epoch of a producer begins at sequence 0, whatever it sent before.
    epoch = detail.get("producer_epoch", 0)
    held = sorted(
        (copy.offset, key[1], copy.end)
        for key, copy in leader.batches.items()
        if key[0] == detail["producer_id"] and copy.producer_epoch == epoch
    )
    kept = {sequence: offset for offset, sequence, _ in held[-BATCHES_KEPT:] if offset >= leader.log_start}
    last = UNKNOWN
    if held:
        offset, sequence, end = held[-1]
        last = (sequence + end - offset - 1) % SEQUENCE_MODULUS
    if detail["sequence"] in kept:
        yield _step(
            StepKind.BATCH_REFUSED_WRONGLY,
            event,
            f"refused sequence {detail['sequence']} of producer id {detail['producer_id']} as out of order: its log "
            f"holds that batch at {kept[detail['sequence']]}, one of the producer's last {BATCHES_KEPT}, so it is a "
            f"retry; its producer state has {detail['last']} for the last one",
        )
    elif (last + 1) % SEQUENCE_MODULUS == detail["sequence"]:
        yield _step(
            StepKind.BATCH_REFUSED_WRONGLY,
            event,
            f"refused sequence {detail['sequence']} of producer id {detail['producer_id']} as out of order: in its log "
            f"the producer's last sequence is {last}, its producer state has {detail['last']}",
        )


def _acknowledged(state: PartitionReplay, event: TraceRow) -> Iterator[Step]:
    """An append is acknowledged in the leader epoch in which it was written."""
    leader = state.replica(event.node)
    written = set(leader.log[event.offset : event.log_end]) - {UNKNOWN, event.leader_epoch}
    if leader.role == "leader" and written and "retry" not in event.details():
        yield _step(
            StepKind.ACKNOWLEDGED_IN_LATER_EPOCH,
            event,
            f"acknowledged offset {event.offset} as leader of epoch {event.leader_epoch}, and its log has a record of "
            f"epoch {min(written)} there: the append was made in another leadership, and may have been replaced since",
            event.offset,
        )


LOOKS: Final[Mapping[str, tuple[Callable[[PartitionReplay, TraceRow], Iterator[Step]], ...]]] = {
    "registration_refused": (_registration_refused,),
    "broker_stays_fenced": (_stays_fenced,),
    "broker_unfenced": (_unfenced,),
    "broker_fenced": (_session_ended,),
    "broker_registered": (_session_ended,),
    "alter_partition_refused": (_alter_partition_refused,),
    "isr_proposed": (_isr_proposed,),
    "isr_rejected": (_isr_rejected,),
    "request_fenced": (_fetch_refused,),
    "consumer_moved": (_consumer_moved,),
    "diverging": (_diverging,),
    "records_refused": (_records_refused,),
    "append_refused": (_append_refused,),
    "acknowledged": (_acknowledged,),
}
