"""One event of a broker: the shipped `Replica` is put into the broker's state, gets the event, and is read out again.

Fetching follows `Fetcher` and the handlers of Fetch, OffsetForLeaderEpoch and ListOffsets, which decide nothing
themselves: a request is made of the follower's state (`request_of`), answered by the leader (`serve`), and the answer
goes to the follower (`receive`). Every answer has one record at most.

Times are left out of the states: which members of the ISR lag too long is the exploration's choice (`tick`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Final

from kio.schema.errors import ErrorCode

from harness.search.exploration.cluster_values import (
    TOPIC,
    TOPIC_ID,
    BrokerState,
    Exchange,
    FollowerRequest,
    IsrAnswer,
    LeaderAnswer,
    MetadataUpdate,
    SentProposal,
    SharedExchange,
)
from harness.search.exploration.memory_log import MemoryLog, produced
from harness.search.exploration.normal_form import normalised, without_exchange, without_isr_exchange, without_times
from harness.search.state_space.interning import Remembered
from images.broker.apis.replica_log_info import last_epoch
from images.broker.controller.alter_partition import AlterPartition, AlterPartitionAnswer, IsrProposal
from images.broker.controller.unclean_recovery import ReplicaLogEnd
from images.broker.log.log import Log
from images.broker.replication.alter_partition_manager import RETRIABLE
from images.broker.replication.partition import (
    IsrCommitted,
    IsrRefused,
    Limits,
    Partition,
    PartitionRegistration,
    ProposeIsr,
    ReplicaFetch,
    ReplicaRole,
)
from images.broker.replication.replica import ACKS_ALL, Replica
from images.broker.truncation_protocol import TruncationProtocol
from images.trace import TraceEvent
from images.wire.field_values import NO_EPOCH, NO_LEADER

_MAX_BATCH_BYTES = 1 << 20
_NOW_MS = 1
"""In every step. In a state all followers were caught up at 0, which is too long ago: those outside of the ISR count as
fallen behind, as they may have between any two steps, so the high watermark waits for none of them."""


class OpenedReplica:
    """A `Replica` in the state of a broker."""

    def __init__(self, broker: BrokerState, limits: Limits) -> None:
        state = broker.partition
        self.broker = broker
        self._proposals: list[ProposeIsr] = []
        self.log = MemoryLog(broker.records, state.epochs)
        self.replica = shipped_replica(state.node, self.log, state.high_watermark, limits, self._proposals)
        self.replica.state = state
        self.replica.fetched_epoch = broker.fetched_epoch

    def read_out(self) -> BrokerState:
        """The broker after the event, not yet in its normal form."""
        proposal = self._proposals[-1] if self._proposals else self.broker.proposal
        disk = self.broker.disk
        return self.broker._replace(
            partition=without_times(self.replica.state),
            records=self.log.records,
            fetched_epoch=self._fetched_epoch(),
            proposal=proposal if proposal is not None and self.replica.still_proposes(proposal) else None,
            disk=disk and disk.after(self.broker.records, self.log.records, self.replica.state.high_watermark),
        )

    def _fetched_epoch(self) -> int:
        """The epoch of the last answered fetch, where it decides whether the next one is fenced."""
        replica = self.replica
        decides = replica.limits.truncation_protocol is TruncationProtocol.KIP320_FIRST_TRY
        return replica.fetched_epoch if decides and replica.fetched_epoch == replica.state.leader_epoch else NO_EPOCH


class ReplicaEvents:
    """The events of replicas with these settings. Each is carried out once for all brokers that differ in nothing that
    it depends on, such as the metadata that they have not read."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._remembered = Remembered(self._carried_out)

    def after(
        self, broker: BrokerState, event: Callable[..., Any], *arguments: Hashable, **changes: Any
    ) -> tuple[BrokerState, Any]:
        """The broker after `event`, a function of the opened replica and these arguments, with further `changes`; and
        the result of the event."""
        replica, result = self._remembered[_replica_alone(broker), event, arguments]
        if replica is not None:
            changed = {name: getattr(replica, name) for name in _OF_REPLICA}
            return normalised(broker._replace(**{**changed, **changes})), result
        return (normalised(broker._replace(**changes)) if changes else broker), result

    def _carried_out(
        self, key: tuple[BrokerState, Callable[..., Any], tuple[Hashable, ...]]
    ) -> tuple[BrokerState | None, Any]:
        """The replica after an event, None if it is the same as before; and the result."""
        before, event, arguments = key
        opened = OpenedReplica(before, self.limits)
        result = event(opened, *arguments)
        after = opened.read_out()
        return (None if after == before else after), result


_OF_REPLICA: Final = ("partition", "records", "fetched_epoch", "proposal", "disk")
"""What an event of the replica may change."""


def _replica_alone(broker: BrokerState) -> BrokerState:
    """The broker with nothing but what an event of its replica depends on."""
    return BrokerState(
        broker.partition,
        broker.records,
        fetched_epoch=broker.fetched_epoch,
        active=broker.active,
        proposal=broker.proposal,
        disk=broker.disk,
    )


def shipped_replica(node: int, log: Log, high_watermark: int, limits: Limits, proposals: list[ProposeIsr]) -> Replica:
    """A `Replica` as a broker opens it on this log, with the high watermark of its checkpoint."""
    return Replica(
        TOPIC,
        TOPIC_ID,
        0,
        node,
        limits,
        _MAX_BATCH_BYTES,
        log,
        high_watermark,
        trace=_discard,
        clock=lambda: _NOW_MS / 1000,
        record_ms=lambda: 0,
        propose=lambda _, proposal: proposals.append(proposal),
    )


def read_update(broker: BrokerState, position: int, events: ReplicaEvents) -> BrokerState:
    """The broker reads its unread update at `position`, and so skips those before. As in `ReplicaManager`, it creates
    its replica when it reads that it has one, and deletes it when it reads that it has none."""
    update, unread = broker.unread[position], broker.unread[position + 1 :]
    if broker.partition.node not in update.registration.replicas:
        return _without_replica(broker._replace(unread=unread), update)
    registration = update.registration
    return events.after(broker, _apply, registration, unread=unread, active=update.active, told=False)[0]


def _apply(opened: OpenedReplica, registration: PartitionRegistration) -> None:
    opened.replica.apply_registration(registration)


def _without_replica(broker: BrokerState, update: MetadataUpdate) -> BrokerState:
    """The broker once its replica is deleted, durably. The checkpoint on its disk may still name it."""
    return normalised(
        without_isr_exchange(broker)._replace(
            partition=Partition(broker.partition.node, partition_epoch=update.registration.partition_epoch),
            records=(),
            fetched_epoch=NO_EPOCH,
            active=(),
            told=False,
            proposal=None,
            lossy=False,
            disk=broker.disk and broker.disk._replace(truncated=()),
        )
    )


def append(broker: BrokerState, number: int, events: ReplicaEvents) -> BrokerState:
    """A producer appends the record with this number."""
    return events.after(broker, _append, number)[0]


def _append(opened: OpenedReplica, number: int) -> None:
    opened.replica.append(produced(number), ACKS_ALL)


def tick(broker: BrokerState, events: ReplicaEvents, lagging: tuple[int, ...] = ()) -> BrokerState:
    """Time passes in which those `lagging` alone have not caught up for `replica.lag.time.max.ms`."""
    return events.after(broker, _tick, lagging)[0]


def _tick(opened: OpenedReplica, lagging: tuple[int, ...]) -> None:
    state = opened.replica.state
    times = tuple(it._replace(caught_up_ms=0 if it.id in lagging else _NOW_MS) for it in state.leader_state.followers)
    opened.replica.state = state._replace(leadership=state.leader_state._replace(followers=times))
    opened.replica.tick(dict(opened.broker.active))


def alter_partition_of(broker: BrokerState) -> AlterPartition | None:
    """The request for the ISR change that this leader proposes, None without one, or once it is answered."""
    exchange, proposal = broker.isr_exchange, broker.proposal
    if exchange is not None:
        return _request(broker, exchange.sent) if exchange.answer is None else None
    return None if proposal is None else _request(broker, SentProposal(broker.broker_epoch, proposal))


def late_alter_partition_of(broker: BrokerState) -> AlterPartition | None:
    """The request that this broker had sent when it crashed or lost its connection, None if it has arrived."""
    return None if broker.late_proposal is None else _request(broker, broker.late_proposal)


def _request(broker: BrokerState, sent: SentProposal) -> AlterPartition:
    proposal = sent.proposal
    members = tuple(zip(proposal.members, proposal.broker_epochs, strict=True))
    isr = IsrProposal(TOPIC_ID, 0, proposal.leader_epoch, proposal.partition_epoch, members)
    return AlterPartition(broker.partition.node, sent.broker_epoch, (isr,))


def isr_answered(
    broker: BrokerState, answer: AlterPartitionAnswer, events: ReplicaEvents, *, certain: bool
) -> BrokerState:
    """The controller's answer to the proposal of this leader. As in `AlterPartitionManager`, an error that does not
    concern the change itself leaves the request to be sent again."""
    proposal, outcome = broker.proposal, isr_answer_of(answer)
    if proposal is None or outcome.error in RETRIABLE:
        return broker
    return isr_resolved(broker, proposal, outcome, events, certain=certain)


def isr_answer_of(answer: AlterPartitionAnswer) -> IsrAnswer:
    """The error of the whole answer or of its only partition, and what is committed for that partition."""
    changed = answer.results[0].partition if answer.results else None
    if changed is not None:
        committed = IsrCommitted(changed.isr, changed.leader_epoch, changed.partition_epoch)
        return IsrAnswer(ErrorCode.none, committed)
    return IsrAnswer(answer.error if answer.error is not ErrorCode.none else answer.results[0].error)


def isr_resolved(
    broker: BrokerState,
    proposal: ProposeIsr,
    answer: IsrAnswer,
    events: ReplicaEvents,
    *,
    certain: bool,
    **changes: Any,
) -> BrokerState:
    """This broker takes an answer to `proposal`, with these further `changes`."""
    refused = IsrRefused(answer.error, certain)
    return events.after(broker._replace(proposal=None), _resolve, proposal, answer.committed or refused, **changes)[0]


def _resolve(opened: OpenedReplica, proposal: ProposeIsr, answer: IsrCommitted | IsrRefused) -> None:
    if isinstance(answer, IsrCommitted):
        opened.replica.isr_committed(answer)
    else:
        opened.replica.isr_refused(proposal, answer)


def request_of(broker: BrokerState, events: ReplicaEvents) -> FollowerRequest:
    """The next request of a follower to its leader."""
    request: FollowerRequest = events.after(broker, _request_of, broker.broker_epoch)[1]
    return request


def _request_of(opened: OpenedReplica, broker_epoch: int) -> FollowerRequest:
    replica, state = opened.replica, opened.replica.state
    fetch = ReplicaFetch(
        state.node,
        broker_epoch,
        replica.fence_of_fetch(),
        state.log_end,
        state.epochs.latest if replica.limits.truncation_protocol.sends_last_fetched_epoch else NO_EPOCH,
        log_start=state.log_start,
    )
    return FollowerRequest(fetch, state.leader_epoch, replica.fence(), state.epoch_query)


def log_end_of(broker: BrokerState, events: ReplicaEvents) -> ReplicaLogEnd:
    """What a broker tells of its log for an unclean recovery."""
    _, (epoch, end) = events.after(broker, _log_end_of)
    return ReplicaLogEnd(broker.broker_epoch, broker.partition.leader_epoch, epoch, end)


def _log_end_of(opened: OpenedReplica) -> tuple[int, int]:
    return last_epoch(opened.replica), opened.log.end


def serve(broker: BrokerState, request: FollowerRequest, events: ReplicaEvents) -> tuple[BrokerState, LeaderAnswer]:
    """The broker answers a follower's request."""
    return events.after(broker, _serve, request)


def _serve(opened: OpenedReplica, request: FollowerRequest) -> LeaderAnswer:
    replica = opened.replica
    if request.epoch_query is not None:
        error = replica.check_leader("offset_for_leader_epoch", request.fence)
        end = replica.state.epochs.end_offset_for(request.epoch_query, replica.state.log_end)
        return LeaderAnswer(epoch_end=end if error is ErrorCode.none else None)
    fetched = replica.fetch_for_replica(request.fetch, 0, dict(opened.broker.active), max_bytes=1, at_least_one=True)
    leader_end = None
    if fetched.error is ErrorCode.offset_out_of_range:
        known = replica.check_leader("list_offsets", request.fence) is ErrorCode.none
        leader_end = replica.log.end if known else None
    return LeaderAnswer(fetched, leader_end)


def receive(broker: BrokerState, request: FollowerRequest, answer: LeaderAnswer, events: ReplicaEvents) -> BrokerState:
    """The answer to `request` reaches the follower."""
    return events.after(broker, _receive, request, answer)[0]


def _receive(opened: OpenedReplica, request: FollowerRequest, answer: LeaderAnswer) -> None:
    replica, sent_epoch = opened.replica, request.leader_epoch
    fetched, sent_offset = answer.fetched, request.fetch.offset
    if request.epoch_query is not None:
        if answer.epoch_end is not None:
            replica.on_epoch_end(request.epoch_query, sent_epoch, *answer.epoch_end)
        else:
            replica.on_epoch_query_failed(request.epoch_query, sent_epoch)
    elif fetched is None:
        return
    elif fetched.error is ErrorCode.offset_out_of_range:
        if answer.leader_end is not None and answer.leader_end < sent_offset:
            replica.truncate_to_leader_end(sent_epoch, answer.leader_end)
    elif fetched.error is not ErrorCode.none:
        return
    elif fetched.diverging is not None:
        replica.on_divergence(sent_offset, sent_epoch, *fetched.diverging)
    else:
        replica.replicate(sent_offset, sent_epoch, fetched.records, fetched.high_watermark, fetched.log_start)


def exchanged(broker: BrokerState, events: ReplicaEvents, *, shared: bool) -> list[tuple[str, BrokerState]]:
    """The steps of a follower's exchange with its leader, by name: a request is sent, by a fetcher that other
    partitions may share; its answer is received; the connection is lost, and the request perhaps with it."""
    exchange, state = broker.exchange, broker.partition
    if exchange is None:
        if state.role is not ReplicaRole.FOLLOWER or state.leader == NO_LEADER:
            return []
        kind = SharedExchange if shared else Exchange
        return [("send", broker._replace(exchange=kind(state.leader, request_of(broker, events))))]
    left = without_exchange(broker)
    lost = receive(left, exchange.request, LeaderAnswer(), events)
    if exchange.answer is None:
        return [("lose", lost)]
    return [("receive", receive(left, exchange.request, exchange.answer, events)), ("lose", lost)]


def answered(broker: BrokerState, answer: LeaderAnswer, *, late: bool) -> BrokerState:
    """The leader has answered the follower's request; the answer to a late one goes nowhere."""
    if late:
        return broker._replace(late=None)
    return broker._replace(exchange=broker.exchange and broker.exchange._replace(answer=answer))


def _discard(event: TraceEvent) -> None:
    """The exploration needs no trace."""
