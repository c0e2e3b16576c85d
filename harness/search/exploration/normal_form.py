"""The normal form of a broker's state: one for all those that differ only in what decides nothing.

Only a leader makes use of the replicas, of the ISR and of the active brokers. Updates of the metadata that a broker has
no use for are as good as read. Partition epochs count back over those that are left: 0 for the newest, -1 for the one
before it, and so on.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from typing import NamedTuple

from harness.search.exploration.cluster_values import BrokerState, MetadataUpdate, SentProposal, SharedExchange
from images.broker.replication.partition import Follower, PartitionRegistration, ReplicaRole


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
        )
    )


def without_exchange(broker: BrokerState) -> BrokerState:
    """The broker once the connection is lost: a request without an answer may still arrive."""
    exchange = broker.exchange
    unanswered = exchange is not None and exchange.answer is None
    return broker._replace(exchange=None, late=exchange if unanswered else broker.late)


def normalised(broker: BrokerState) -> BrokerState:
    """The same broker without the differences that decide nothing."""
    state = broker.partition
    exchange = broker.exchange
    if exchange is not None and exchange.leader != state.leader and not isinstance(exchange, SharedExchange):
        broker = without_exchange(broker)  # its fetcher is closed
    news = _news(broker)
    epochs = [*accumulate((it.changes_partition for it in news), initial=-sum(it.changes_partition for it in news))]
    unread = tuple(_at_partition_epoch(it.update, epoch) for it, epoch in zip(news, epochs[1:], strict=True))
    state = state._replace(partition_epoch=epochs[0])
    leadership, proposal = state.leadership, broker.proposal
    if leadership is None:
        follower = state._replace(replicas=(), isr=(), truncation_rounds=0)
        return broker._replace(partition=follower, active=(), unread=unread, proposal=None)
    followers = tuple(Follower(it.id, it.log_end, it.broker_epoch) for it in leadership.followers)
    return broker._replace(
        partition=state._replace(leadership=leadership._replace(followers=followers, awaited=())),
        unread=unread,
        proposal=proposal and replace(proposal, partition_epoch=state.partition_epoch),
    )


class _News(NamedTuple):
    """An unread update that changes the partition, or else the active brokers."""

    update: MetadataUpdate
    changes_partition: bool


def _news(broker: BrokerState) -> list[_News]:
    """The unread updates of which it matters whether a broker reads or skips them.

    Only a leader uses the active brokers. A follower does not use what an update changes within its leader epoch, and
    does the same upon all updates of a later one. An update in which the broker has no replica deletes the one that it
    has by then; whoever skips it keeps that.
    """
    state, active = broker.partition, broker.active
    has_replica = state.role is not ReplicaRole.NONE or broker.records or (broker.disk and broker.disk.truncated)
    partition_epoch = state.partition_epoch
    news: list[_News] = []
    for update in broker.unread:
        registration = update.registration
        changes_partition = registration.partition_epoch > partition_epoch
        if changes_partition or (registration.leader == state.node and update.active != active):
            news.append(_News(update, changes_partition))
        partition_epoch, active = max(partition_epoch, registration.partition_epoch), update.active

    hosted = [state.node in it.update.registration.replicas for it in news]

    def matters(place: int, registration: PartitionRegistration) -> bool:
        if registration.leader == state.node:
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


def behind(late: SentProposal, by: int) -> SentProposal:
    """The proposal once the partition epoch has risen `by` so much; all that are behind are alike."""
    partition_epoch = max(-1, late.proposal.partition_epoch - by)
    return late._replace(proposal=replace(late.proposal, partition_epoch=partition_epoch))


def _at_partition_epoch(update: MetadataUpdate, partition_epoch: int) -> MetadataUpdate:
    if update.registration.partition_epoch == partition_epoch:
        return update
    return update._replace(registration=replace(update.registration, partition_epoch=partition_epoch))
