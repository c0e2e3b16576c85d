"""Brokers under other names. A state and the state with its brokers renamed have the same future, renamed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from harness.search.exploration.cluster_values import (
    BrokerState,
    ControllerState,
    Exchange,
    IsrExchange,
    MetadataUpdate,
    SentProposal,
)
from harness.search.state_space.explored_model import Names, Renaming
from images.broker.replication.partition import Follower, LeaderState, PartitionRegistration, ProposeIsr
from images.wire.field_values import NO_LEADER


def renamed_broker(broker: BrokerState, names: Names) -> BrokerState:
    """The broker, and the brokers that it knows, under new names."""
    state, late = broker.partition, broker.late_proposal
    return broker._replace(
        partition=state._replace(
            node=names[state.node],
            replicas=_members(state.replicas, names),
            isr=_members(state.isr, names),
            leader=_leader(state.leader, names),
            leadership=state.leadership and _leadership(state.leadership, names),
        ),
        active=_epochs(broker.active, names),
        unread=tuple(_update(update, names) for update in broker.unread),
        proposal=broker.proposal and _proposal(broker.proposal, names),
        exchange=broker.exchange and _exchange(broker.exchange, names),
        late=broker.late and _exchange(broker.late, names),
        late_proposal=late and _sent(late, names),
        isr_exchange=broker.isr_exchange and _isr_exchange(broker.isr_exchange, names),
    )


def renamed_controller(controller: ControllerState, names: Names) -> ControllerState:
    """The controller's metadata, with its brokers under new names."""
    known = controller.partition
    return ControllerState(
        tuple(sorted(broker._replace(id=names[broker.id]) for broker in controller.brokers)),
        replace(
            known,
            replicas=_members(known.replicas, names),
            isr=_members(known.isr, names),
            elr=_members(known.elr, names),
            last_known_elr=_members(known.last_known_elr, names),
            adding=_members(known.adding, names),
            removing=_members(known.removing, names),
            leader=_leader(known.leader, names),
        ),
    )


def nameless_broker(broker: BrokerState) -> tuple[object, ...]:
    """What is the same of the broker in every renaming."""
    state = broker.partition
    leads, proposes = state.leadership is not None, broker.proposal is not None
    epochs = tuple(update.registration.leader_epoch for update in broker.unread)
    return leads, proposes, state.leader_epoch, state.high_watermark, broker.records, state.epochs.entries, epochs


def nameless_place(controller: ControllerState, broker: int) -> tuple[object, ...]:
    """The place of a broker in the controller's metadata, without its name."""
    known = controller.partition
    members = (known.replicas, known.isr, known.elr, known.last_known_elr, known.adding, known.removing)
    places = (*members, (known.leader,))
    (registered,) = (it._replace(id=0) for it in controller.brokers if it.id == broker)
    return (registered, *(broker in place for place in places))


def _members(members: Iterable[int], names: Names) -> tuple[int, ...]:
    return tuple(sorted(names[member] for member in members))


def _leader(leader: int, names: Names) -> int:
    return leader if leader == NO_LEADER else names[leader]


def _epochs(epochs: Iterable[tuple[int, int]], names: Names) -> tuple[tuple[int, int], ...]:
    return tuple(sorted((names[broker], epoch) for broker, epoch in epochs))


def _leadership(leadership: LeaderState, names: Names) -> LeaderState:
    return leadership._replace(
        followers=tuple(sorted((it._replace(id=names[it.id]) for it in leadership.followers), key=_id)),
        proposed=leadership.proposed and _members(leadership.proposed, names),
        unresolved_members=_members(leadership.unresolved_members, names),
    )


def _update(update: MetadataUpdate, names: Names) -> MetadataUpdate:
    known: PartitionRegistration = update.registration
    registration = replace(
        known,
        replicas=_members(known.replicas, names),
        isr=_members(known.isr, names),
        leader=_leader(known.leader, names),
    )
    return MetadataUpdate(registration, _epochs(update.active, names))


def _proposal(proposal: ProposeIsr, names: Names) -> ProposeIsr:
    members = _epochs(zip(proposal.members, proposal.broker_epochs, strict=True), names)
    return replace(
        proposal,
        members=tuple(member for member, _ in members),
        broker_epochs=tuple(epoch for _, epoch in members),
    )


def _sent(sent: SentProposal, names: Names) -> SentProposal:
    return sent._replace(proposal=_proposal(sent.proposal, names))


def _isr_exchange(exchange: IsrExchange, names: Names) -> IsrExchange:
    answer = exchange.answer
    if answer is not None and answer.committed is not None:
        isr = _members(answer.committed.isr, names)
        answer = answer._replace(committed=replace(answer.committed, isr=isr))
    return exchange._replace(sent=_sent(exchange.sent, names), answer=answer)


def _exchange(exchange: Exchange, names: Names) -> Exchange:
    request = exchange.request
    fetch = request.fetch._replace(replica=names[request.fetch.replica])
    return exchange._replace(leader=names[exchange.leader], request=request._replace(fetch=fetch))


def _id(follower: Follower) -> int:
    return follower.id


RENAMING = Renaming(renamed_broker, renamed_controller, nameless_broker, nameless_place)
"""A state of the cluster under other names of its brokers."""
