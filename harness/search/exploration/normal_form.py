"""The normal form of a broker's state: one for all those that differ only in what decides nothing.

Only a leader makes use of the replicas, of the ISR and of the active brokers. Updates of the metadata that a broker has
no use for are as good as read. Partition epochs count back over those that are left: 0 for the newest, -1 for the one
before it, and so on.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from typing import NamedTuple

from harness.search.exploration.cluster_values import (
    BrokerState,
    IsrExchange,
    MetadataUpdate,
    SentProposal,
    SharedExchange,
)
from images.broker.replication.partition import Follower, Partition, PartitionRegistration, ReplicaRole


def publish(broker: BrokerState, update: MetadataUpdate) -> BrokerState:
    """The controller commits `update`. A partition epoch of 1 is the newest from now on; with 0 no partition has
    changed. A broker that is down will read of neither."""
    state, proposal = broker.partition, broker.proposal
    newer = update.registration.partition_epoch
    outside = state.node not in update.registration.isr
    broker = broker._replace(
        unclean=broker.unclean and outside,
        lossy=broker.lossy and outside,
        late_proposal=broker.late_proposal and behind(broker.late_proposal, newer),
    )
    if broker.down:
        return broker
    return normalised(
        broker._replace(
            partition=state._replace(partition_epoch=state.partition_epoch - newer),
            unread=tuple(
                _at_partition_epoch(it, it.registration.partition_epoch - newer) for it in (*broker.unread, update)
            ),
            proposal=proposal and replace(proposal, partition_epoch=proposal.partition_epoch - newer),
            isr_exchange=broker.isr_exchange and _later(broker.isr_exchange, newer),
        )
    )


def without_exchange(broker: BrokerState) -> BrokerState:
    """The broker once the connection is lost: a request without an answer may still arrive."""
    exchange = broker.exchange
    unanswered = exchange is not None and exchange.answer is None
    return broker._replace(exchange=None, late=exchange if unanswered else broker.late)


def without_isr_exchange(broker: BrokerState) -> BrokerState:
    """The broker once nobody waits for the answer to its AlterPartition: without one, the request may still arrive."""
    exchange = broker.isr_exchange
    if exchange is None or exchange.answer is not None:
        return broker._replace(isr_exchange=None)
    return broker._replace(isr_exchange=None, late_proposal=exchange.sent)


def normalised(broker: BrokerState) -> BrokerState:
    """The same broker without the differences that decide nothing."""
    state = broker.partition
    exchange = broker.exchange
    if exchange is not None and exchange.leader != state.leader and not isinstance(exchange, SharedExchange):
        broker = without_exchange(broker)  # its fetcher is closed
    news = _news(broker)
    epochs = [*accumulate((it.changes_partition for it in news), initial=-sum(it.changes_partition for it in news))]
    broker = broker._replace(told=broker.told and bool(news) and not news[0].changes_partition)
    unread = tuple(_at_partition_epoch(it.update, epoch) for it, epoch in zip(news, epochs[1:], strict=True))
    if broker.isr_exchange is not None:
        broker = broker._replace(isr_exchange=_renumbered(broker.isr_exchange, state.partition_epoch, news, epochs))
    state = state._replace(partition_epoch=epochs[0])
    leadership, proposal = state.leadership, broker.proposal
    if leadership is None:
        follower = state._replace(replicas=(), isr=(), truncation_rounds=0)
        return broker._replace(partition=follower, active=(), unread=unread, proposal=None)
    return broker._replace(
        partition=without_times(state),
        unread=unread,
        proposal=proposal and replace(proposal, partition_epoch=state.partition_epoch),
    )


def without_times(partition: Partition) -> Partition:
    """The partition without what its leader knows of when a follower was caught up."""
    leadership = partition.leadership
    if leadership is None:
        return partition
    followers = tuple(Follower(it.id, it.log_end, it.broker_epoch) for it in leadership.followers)
    return partition._replace(leadership=leadership._replace(followers=followers, awaited=()))


class _News(NamedTuple):
    """An unread update that changes the partition, or else the active brokers."""

    update: MetadataUpdate
    changes_partition: bool


def _news(broker: BrokerState) -> list[_News]:
    """The unread updates of which it matters whether a broker reads or skips them.

    Only a leader uses the active brokers. A follower does not use what an update changes within its leader epoch, and
    does the same upon all updates of a later one. An update in which the broker has no replica deletes the one that it
    has by then; whoever skips it keeps that. The update of which an answer tells matters, too: it is read before
    the answer is received, or after it.
    """
    if not broker.unread:
        return []
    state, active = broker.partition, broker.active
    has_replica = state.role is not ReplicaRole.NONE or broker.records or (broker.disk and broker.disk.truncated)
    partition_epoch = state.partition_epoch
    news: list[_News] = []
    for update in broker.unread:
        registration = update.registration
        changes_partition = registration.partition_epoch > partition_epoch
        told = broker.told and not news and registration.partition_epoch == state.partition_epoch
        if changes_partition or told or (registration.leader == state.node and update.active != active):
            news.append(_News(update, changes_partition))
        partition_epoch, active = max(partition_epoch, registration.partition_epoch), update.active

    answered = answered_epoch(broker.isr_exchange)
    hosted = [state.node in it.update.registration.replicas for it in news]

    def matters(place: int, registration: PartitionRegistration) -> bool:
        if registration.leader == state.node or registration.partition_epoch == answered:
            return True
        if not hosted[place]:
            deletes = has_replica or any(hosted[:place])
            return bool(deletes) and all(hosted[place + 1 : place + 2])
        if (
            state.role is ReplicaRole.FOLLOWER
            and registration.leader_epoch == state.leader_epoch
            and all(hosted[:place])
        ):
            return registration.leader != state.leader
        end = hosted.index(False, place) if False in hosted[place:] else len(hosted)
        later = (it.update.registration.leader_epoch for it in news[place + 1 : end])
        return registration.leader_epoch not in later

    return [it for place, it in enumerate(news) if matters(place, it.update.registration)]


def answered_epoch(exchange: IsrExchange | None) -> int | None:
    """The partition epoch that an answer on its way has; None without one."""
    committed = exchange and exchange.answer and exchange.answer.committed
    return committed.partition_epoch if committed else None


def _later(exchange: IsrExchange, by: int) -> IsrExchange:
    """The exchange once the partition epoch has risen `by` so much."""
    answered = answered_epoch(exchange)
    exchange = exchange._replace(sent=behind(exchange.sent, by))
    return exchange if answered is None else _at_answered_epoch(exchange, answered - by)


def _renumbered(exchange: IsrExchange, partition_epoch: int, news: list[_News], epochs: list[int]) -> IsrExchange:
    """The exchange of a broker that was in `partition_epoch`, where these updates are left to read and the partition
    epochs are now these. All answers that are older than what the broker has read are alike."""
    answered = answered_epoch(exchange)
    if answered is None:
        return exchange
    if answered < partition_epoch:
        return _at_answered_epoch(exchange, epochs[0] - 1)
    upto = [it for it in news if it.changes_partition and it.update.registration.partition_epoch <= answered]
    return _at_answered_epoch(exchange, epochs[0] + len(upto))


def _at_answered_epoch(exchange: IsrExchange, partition_epoch: int) -> IsrExchange:
    answer = exchange.answer
    if answer is None or answer.committed is None:
        return exchange
    committed = replace(answer.committed, partition_epoch=partition_epoch)
    return exchange._replace(answer=answer._replace(committed=committed))


def behind(late: SentProposal, by: int) -> SentProposal:
    """The proposal once the partition epoch has risen `by` so much; all that are behind are alike."""
    partition_epoch = max(-1, late.proposal.partition_epoch - by)
    return late._replace(proposal=replace(late.proposal, partition_epoch=partition_epoch))


def _at_partition_epoch(update: MetadataUpdate, partition_epoch: int) -> MetadataUpdate:
    if update.registration.partition_epoch == partition_epoch:
        return update
    return update._replace(registration=replace(update.registration, partition_epoch=partition_epoch))
