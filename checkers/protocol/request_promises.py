"""Promises about requests: none of another epoch is answered, or of an earlier life of its sender takes effect. See
`checkers.protocol.checker`.

Such a request may do no harm in its run, which is luck. What a broker can know of another one is what the metadata says
that it has applied.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from checkers.evidence import CheckSettings
from checkers.protocol.batches import UNKNOWN
from checkers.protocol.state import (
    BrokerStanding,
    ClusterRowHandler,
    ClusterState,
    Meeting,
    PartitionDecision,
    PartitionState,
    TracedProposal,
    TraceRowHandler,
    names,
)
from checkers.tables import TraceRow

_NO_EPOCH = -1
_STALE = "stale_broker_epoch"
_NOT_LEADER, _FENCED, _UNKNOWN_EPOCH = "not_leader_or_follower", "fenced_leader_epoch", "unknown_leader_epoch"
_OUT_OF_RANGE = "offset_out_of_range"
_NOT_OF_THE_CHANGE = frozenset(
    {"not_controller", "stale_broker_epoch", "unknown_server_error", "unknown_topic_id", "unknown_topic_or_partition"}
)
"""Errors that say nothing of the change itself: another controller, or the same one later, may answer otherwise."""


def broker_stands(cluster: ClusterState, event: TraceRow) -> None:
    """A broker was registered, unfenced, fenced, or told to shut down, at an offset of the metadata log."""
    cluster.stands(event.broker, BrokerStanding(event.offset, event.broker_epoch, event.kind == "broker_unfenced"))


# ---- fetches ---------------------------------------------------------------------------------------------------------


def _fetch_accepted(cluster: ClusterState, partition: PartitionState, event: TraceRow) -> None:
    detail = event.details()
    replica, requested = detail.get("replica", UNKNOWN), detail.get("requested", _NO_EPOCH)
    partition.accepted_in[event.node, replica] = event.leader_epoch
    accepted = f"{event.node} took a fetch of b{replica} from offset {event.offset} for its position {event.at}"
    life = detail.get("broker_epoch", _NO_EPOCH)
    given = partition.gave_epoch.setdefault((event.node, replica, life, event.leader_epoch), requested != _NO_EPOCH)
    if requested not in (_NO_EPOCH, event.leader_epoch):
        partition.report(
            event,
            "fetch-of-another-epoch",
            UNKNOWN,
            f"{accepted}, in leader epoch {event.leader_epoch}",
            f"the fetch was sent in leader epoch {requested}",
        )
    elif requested == _NO_EPOCH and given:
        partition.report(
            event,
            "fetch-of-another-epoch",
            UNKNOWN,
            f"{accepted}, without looking at the leader epoch in which it was sent",
            f"the fetches of b{replica} had been held to leader epoch {event.leader_epoch} before",
        )
    if life != _NO_EPOCH:
        partition.meetings.append(Meeting(event, replica, life, cluster.applied.get(event.node, UNKNOWN)))


def _request_refused(cluster: ClusterState, partition: PartitionState, event: TraceRow) -> None:
    """The error of a refusal tells its sender what to do: to look for a newer leader, to wait for one, or to begin its
    log anew. It is that of the first check that the request fails: its leader epoch, the role of the node, and of a
    follower's fetch the follower, its life and its position. A node that leads answers for that leadership, and not for
    one before."""
    detail = event.details()
    requested, error = detail["requested"], detail["error"]
    leads = event.node == f"b{event.leader}"
    led = partition.leading.get(event.node, _NO_EPOCH)
    if led > (event.leader_epoch if leads else _NO_EPOCH) and not partition.created_again:
        _report_refusal(partition, event, f"it had begun to lead in leader epoch {led}, and led still")
        return
    if requested not in (_NO_EPOCH, event.leader_epoch):
        due = _FENCED if requested < event.leader_epoch else _UNKNOWN_EPOCH
    elif not leads:
        due = _NOT_LEADER
    elif not _has_begun(partition, event):
        return
    elif detail["replica"] < 0 or error == _FENCED:
        due = ""
    elif error != _OUT_OF_RANGE:
        known_to = cluster.applied.get(event.node, UNKNOWN)
        partition.meetings.append(Meeting(event, detail["replica"], detail["broker_epoch"], known_to))
        return
    else:
        due = "" if _is_in_range(partition, event) else _OUT_OF_RANGE
    if error != due:
        range_is_wrong = error == _OUT_OF_RANGE and not due
        fits = _range(event, partition.log_starts.get(event.node, 0)) if range_is_wrong else "nothing was wrong"
        _report_refusal(partition, event, f"{due} is due" if due else f"it leads in that epoch, and {fits}")


def _has_begun(partition: PartitionState, event: TraceRow) -> bool:
    """Whether a node has begun to lead in the leader epoch that it knows, and not only been elected."""
    is_leader = partition.leaders.get(event.leader_epoch) == event.node
    return is_leader and partition.role_epochs.get(event.node) == event.leader_epoch


def _is_in_range(partition: PartitionState, event: TraceRow) -> bool:
    """Whether a leader can tell from its log whether a follower that fetches there has the same one."""
    last_epoch, start = event.details()["last_epoch"], partition.log_starts.get(event.node, 0)
    knows_end = event.offset <= event.log_end if last_epoch == _NO_EPOCH else last_epoch <= event.leader_epoch
    return start <= event.offset and knows_end


def _consumer_moved(partition: PartitionState, event: TraceRow, _: CheckSettings) -> None:
    """A consumer that is told that its offset is out of range goes by its policy, and skips records or reads all of
    them again."""
    detail = event.details()
    is_refused, last_epoch = detail["first"] < 0, detail["last_epoch"]
    start = partition.log_starts.get(event.node, 0)
    if is_refused and start <= event.offset <= event.log_end and last_epoch <= event.leader_epoch:
        partition.report(
            event,
            "request-refused-otherwise",
            event.offset,
            f"{event.node} told a consumer {event.at} that {event.offset} is out of range{_behind(last_epoch)}",
            _range(event, start),
        )


def _behind(last_epoch: int) -> str:
    """For a finding: what the sender of a fetch had said of the record before its offset, if it did."""
    return f", who had read a record of leader epoch {last_epoch} before that" if last_epoch != _NO_EPOCH else ""


def _range(event: TraceRow, start: int) -> str:
    return f"its log starts at {start} and ends at {event.log_end}, in leader epoch {event.leader_epoch}"


def _check_refusal(
    cluster: ClusterState, partition: PartitionState, fetch: Meeting, lives: Mapping[tuple[str, int, int], int]
) -> None:
    """A follower's fetch of the right leader epoch is refused where it is no replica, as the leader knows, or the fetch
    is of an earlier life. A leader that a follower is ahead of waits for the metadata with it (`_UNKNOWN_EPOCH`)."""
    event, replica = fetch.event, fetch.replica
    detail = event.details()
    known = partition.decisions.get(event.partition_epoch, ())
    is_replica = all(replica in decision.replicas for decision in known if decision.replicas)
    if not known or not is_replica or partition.created_again:
        return
    later = max(
        (each.epoch for each in cluster.standings.get(replica, ()) if each.offset <= fetch.metadata_end),
        default=_NO_EPOCH,
    )
    # A leader that leads in the next leader epoch, too, keeps what its followers' fetches have told.
    told = (life for (node, sender, _), life in lives.items() if (node, sender) == (event.node, replica))
    counted = max(told, default=_NO_EPOCH)
    if detail["error"] == _NOT_LEADER and _NO_EPOCH != fetch.life < max(later, counted):
        return
    _report_refusal(partition, event, f"it leads in that epoch, and knew of no later life of its replica b{replica}")


def _report_refusal(partition: PartitionState, event: TraceRow, why: str) -> None:
    detail = event.details()
    requested = detail["requested"]
    sender = f" of b{detail['replica']} from offset {event.offset}" if detail["replica"] >= 0 else ""
    of_epoch = f"of leader epoch {requested}" if requested != _NO_EPOCH else "without a leader epoch"
    partition.report(
        event,
        "request-refused-otherwise",
        UNKNOWN,
        f"{event.node} refused a request ({detail['api']}){sender} {event.at}, {of_epoch}: {detail['error']}",
        f"it was in leader epoch {event.leader_epoch}, with leader b{event.leader}: {why}",
    )


def _answered(partition: PartitionState, event: TraceRow, _: CheckSettings) -> None:
    """The log of a leader that has been deposed may end otherwise by now, and one that does not lead yet may lack what
    its predecessor has acknowledged: neither answers a client that asks the leader of another epoch."""
    requested = event.details().get("requested", _NO_EPOCH)
    if requested not in (_NO_EPOCH, event.leader_epoch):
        what = {"epoch_end_told": "for the end of a leader epoch", "latest_asked": "for the latest offset"}
        partition.report(
            event,
            "query-of-another-epoch",
            UNKNOWN,
            f"{event.node} answered a client that asked {what.get(event.kind, 'for an offset')} {event.at}, in leader "
            f"epoch {event.leader_epoch}",
            f"it had asked the leader of epoch {requested}",
        )


def check_session(cluster: ClusterState, event: TraceRow) -> None:
    """A leader leaves out of a session what the follower asks it to forget: else it takes the last fetch of such a
    partition for another one with each fetch of the others, although the follower does not ask for it any more."""
    detail = event.details()
    kept = sorted({*detail.get("forgotten", ())} & {*detail["partitions"]})
    for name in kept:
        topic, _, index = name.rpartition("-")
        if (partition := cluster.partitions.get((topic, int(index)))) is not None:
            partition.report(
                event,
                "forgotten-partition-fetched",
                UNKNOWN,
                f"{event.node} took a fetch of b{detail['replica']} for one of {name}, too, {event.at}",
                f"it had asked in this fetch for {name} to be left out of session {detail['session']}",
            )


def _fetch_refused(partition: PartitionState, event: TraceRow, _: CheckSettings) -> None:
    """An error or a divergence stands in the answer each time, also in that of a session that has told the same before:
    a client that did not act on the first one, as its metadata were old, would wait for records that never come."""
    detail = event.details()
    refusal, told, replica = detail["refusal"], detail["told"], detail["replica"]
    if told != refusal:
        client = f"b{replica}" if replica >= 0 else "a consumer"
        partition.report(
            event,
            "refusal-untold",
            UNKNOWN,
            f"{event.node} answered a fetch of {client} from offset {event.offset} {event.at}, and did not say that "
            + ("the logs diverge" if refusal == "diverging" else f"it is refused: {refusal}"),
            f"the answer has {told}" if told else "the answer leaves the partition out: nothing is new",
        )


def _log_start_told(partition: PartitionState, event: TraceRow, _: CheckSettings) -> None:
    """Also where nothing else is new: a follower that is not told keeps what its leader has deleted, and brings it back
    if it leads."""
    detail = event.details()
    if detail["told"] != event.offset:
        told = f"that it starts at {detail['told']}" if detail["told"] != UNKNOWN else "nothing of this partition"
        partition.report(
            event,
            "log-start-untold",
            event.offset,
            f"{event.node} answered a fetch of b{detail['replica']} {event.at}, and its log starts at {event.offset}",
            f"it had started elsewhere at the answer before, and this one tells {told}",
        )


def _check_fetch(
    cluster: ClusterState, partition: PartitionState, fetch: Meeting, lives: dict[tuple[str, int, int], int]
) -> None:
    """`lives` has, by leader, replica and leader epoch, the latest life whose fetch counted before."""
    event, replica = fetch.event, fetch.replica
    counted = lives.get((event.node, replica, event.leader_epoch), _NO_EPOCH)
    lives[event.node, replica, event.leader_epoch] = max(fetch.life, counted)
    standing = cluster.standing_at(replica, fetch.metadata_end)
    later = max(counted, standing.epoch if standing is not None and standing.active else _NO_EPOCH)
    if fetch.life < later:
        partition.report(
            event,
            "fetch-of-an-earlier-life",
            UNKNOWN,
            f"{event.node} took a fetch of b{replica} from offset {event.offset} for its position {event.at}, sent in "
            f"its broker epoch {fetch.life}",
            f"{event.node} knew it in broker epoch {later}: what the earlier life held it may have lost since",
        )
    known = partition.decisions.get(event.partition_epoch, ())
    is_replica = any(replica in decision.replicas or not decision.replicas for decision in known)
    if known and not is_replica and not partition.created_again:
        partition.report(
            event,
            "fetch-of-no-replica",
            UNKNOWN,
            f"{event.node} took a fetch of b{replica} from offset {event.offset} for its position {event.at}, in "
            f"partition epoch {event.partition_epoch}",
            f"the replicas were {names(known[0].replicas)} in that: nothing keeps the log of another broker",
        )


# ---- changes of the ISR ----------------------------------------------------------------------------------------------


def _isr_proposed(cluster: ClusterState, partition: PartitionState, event: TraceRow) -> None:
    """A leader proposes for the ISR whom it knows as unfenced, in the life whose fetch has reached it, and upon that
    fetch; older traces do not say upon which."""
    detail = event.details()
    epochs = {int(member): epoch for member, epoch in _mapping(detail, "epochs").items()}
    joining = sorted(int(member) for member in _mapping(detail, "positions"))
    state = event.leader_epoch, event.partition_epoch
    proposal = TracedProposal(event.node, frozenset(event.members), epochs)
    partition.proposed_in.setdefault(state, []).append(proposal)
    for member in joining:
        if member in epochs:
            known_to = cluster.applied.get(event.node, UNKNOWN)
            partition.meetings.append(Meeting(event, member, epochs[member], known_to))
        if detail.get("fetch_of", member) != member:
            fetch = f"a fetch of b{detail['fetch_of']}" if detail["fetch_of"] >= 0 else "no fetch"
            partition.report(
                event,
                "isr-proposal-without-fetch",
                UNKNOWN,
                f"{event.node} proposed b{member} for the ISR {names(frozenset(event.members))} {event.at}",
                f"it did so upon {fetch}: the log that b{member} had at its own last one may be gone",
            )


def _check_proposal(cluster: ClusterState, partition: PartitionState, proposal: Meeting) -> None:
    event, member = proposal.event, proposal.replica
    standing = cluster.standing_at(member, proposal.metadata_end)
    if standing is None or (standing.active and standing.epoch == proposal.life):
        return
    known = "unfenced" if standing.active else "fenced, or about to shut down"
    partition.report(
        event,
        "isr-proposal-of-absent",
        UNKNOWN,
        f"{event.node} proposed b{member}, which had fetched in broker epoch {proposal.life}, for the ISR "
        f"{names(frozenset(event.members))} {event.at}",
        f"in the metadata that {event.node} had applied it was {known}, in broker epoch {standing.epoch}",
    )


def _alter_partition_sent(partition: PartitionState, event: TraceRow, _: CheckSettings) -> None:
    senders = partition.senders.setdefault((event.leader_epoch, event.partition_epoch), set())
    senders.add((event.node, event.broker_epoch))


def check_requests(cluster: ClusterState, partition: PartitionState) -> None:
    """After the last event, since a change of a broker may be traced late by another controller: every fetch and every
    request about the ISR was of a life that counted."""
    lives: dict[tuple[str, int, int], int] = {}
    for meeting in partition.meetings:
        if meeting.event.kind == "fetch_accepted":
            _check_fetch(cluster, partition, meeting, lives)
        elif meeting.event.kind == "request_fenced":
            _check_refusal(cluster, partition, meeting, lives)
        else:
            _check_proposal(cluster, partition, meeting)
    for event, before in partition.changes:
        _check_change(cluster, partition, event, before)


def _check_change(cluster: ClusterState, partition: PartitionState, event: TraceRow, before: PartitionDecision) -> None:
    """The request was made in the state before the change, by a life of the leader and about lives of the members that
    were registered."""
    leader, state = f"b{before.leader}", (before.leader_epoch, before.partition_epoch)
    isr = frozenset(event.members)
    fitting = [
        proposal
        for proposal in partition.proposed_in.get(state, ())
        if proposal.leader == leader and isr <= proposal.members
    ]
    changed = f"the controllers changed the ISR to {names(isr)} {event.at}, as a leader had asked for"
    if not fitting:
        earlier = ((asked, made) for asked, made in partition.proposed_in.items() if asked < state)
        asked = [asked for asked, made in earlier if any(isr <= each.members for each in made)]
        if asked:
            leader_epoch, partition_epoch = max(asked)
            partition.report(
                event,
                "isr-change-outdated",
                UNKNOWN,
                changed,
                f"that was proposed in leader epoch {leader_epoch} and partition epoch {partition_epoch}; {leader} led "
                f"in {before.leader_epoch}, and the partition epoch was {before.partition_epoch}",
            )
        return
    if not any(_is_of_these_lives(cluster, proposal, event.offset, before.isr) for proposal in fitting):
        partition.report(
            event,
            "isr-change-of-an-earlier-life",
            UNKNOWN,
            changed,
            f"in the proposal of {leader} a member has a broker epoch in which it was not registered any more",
        )
    sent = {epoch for node, epoch in partition.senders.get(state, ()) if node == leader}
    registered = cluster.standing_at(before.leader, event.offset)
    if sent and registered is not None and registered.epoch not in sent:
        partition.report(
            event,
            "isr-change-of-an-earlier-life",
            UNKNOWN,
            changed,
            f"{leader} had sent that in broker epoch {max(sent)}, and was registered in {registered.epoch}",
        )


def _is_of_these_lives(cluster: ClusterState, proposal: TracedProposal, offset: int, before: frozenset[int]) -> bool:
    """Whether each member that joins is registered in the broker epoch that the proposal gives."""
    for member in proposal.members - before:
        standing = cluster.standing_at(member, offset)
        if standing is not None and proposal.epochs.get(member, standing.epoch) != standing.epoch:
            return False
    return True


def _refused(partition: PartitionState, event: TraceRow, _: CheckSettings) -> None:
    """The error tells the leader what was wrong, so that it does not go on as one whose view is merely old. In which
    broker epoch a controller had the sender older traces do not say."""
    detail = event.details()
    known, error = detail.get("known"), detail.get("error")
    registered = detail.get("registered", event.broker_epoch)
    if registered != event.broker_epoch and error != _STALE:
        now = f"registered in {registered}" if registered != _NO_EPOCH else "registered no more"
        partition.report(
            event,
            "isr-change-refused-otherwise",
            UNKNOWN,
            f"the controllers refused the ISR {names(frozenset(event.members))} of b{event.broker} {event.at}: {error}",
            f"b{event.broker} had sent it in broker epoch {event.broker_epoch}, and was {now}: {_STALE} is due, "
            "whatever is proposed",
        )
        return
    if not isinstance(known, list) or error == _STALE:
        return
    expected = _expected_error(event, *known)
    if expected is not None and error != expected:
        leader, leader_epoch, partition_epoch = known
        partition.report(
            event,
            "isr-change-refused-otherwise",
            UNKNOWN,
            f"the controllers refused the ISR {names(frozenset(event.members))} of b{event.broker} {event.at}: {error}",
            f"it was proposed in leader epoch {event.leader_epoch} and partition epoch {event.partition_epoch}; the "
            f"leader was b{leader} in {leader_epoch} and {partition_epoch}: {expected} is due",
        )


def _given_up(partition: PartitionState, event: TraceRow, _: CheckSettings) -> None:
    """A leader gives a proposal up if newer metadata is to follow the refusal: a controller that does not know the
    partition may be older than it, and one that is not active, or knows another life of the leader, proves nothing."""
    error = event.details().get("error")
    if error in _NOT_OF_THE_CHANGE:
        partition.report(
            event,
            "isr-change-given-up",
            UNKNOWN,
            f"{event.node} gave up the ISR {names(frozenset(event.members))} {event.at}, refused with {error}",
            "the controller that refused it may be deposed, and no newer metadata to come: it is to be sent again",
        )


def _expected_error(event: TraceRow, leader: int, leader_epoch: int, partition_epoch: int) -> str | None:
    """The error for the first of these checks that a proposal fails; None when it passes them."""
    if event.leader_epoch > leader_epoch or event.partition_epoch > partition_epoch:
        return "not_controller"
    if event.leader_epoch < leader_epoch:
        return "fenced_leader_epoch"
    if event.broker != leader:
        return "invalid_request"
    return "invalid_update_version" if event.partition_epoch < partition_epoch else None


def _mapping(detail: Mapping[str, Any], name: str) -> Mapping[str, int]:
    value = detail.get(name)
    return value if isinstance(value, dict) else {}


HANDLERS: Mapping[str, TraceRowHandler] = {
    "alter_partition_sent": _alter_partition_sent,
    "alter_partition_refused": _refused,
    "isr_rejected": _given_up,
    "latest_asked": _answered,
    "offset_told": _answered,
    "epoch_end_told": _answered,
    "consumer_moved": _consumer_moved,
    "fetch_refused": _fetch_refused,
    "log_start_told": _log_start_told,
}
CLUSTER_HANDLERS: Mapping[str, ClusterRowHandler] = {
    "fetch_accepted": _fetch_accepted,
    "request_fenced": _request_refused,
    "isr_proposed": _isr_proposed,
}
