"""The end of a broker's process, and its next incarnation.

A broker that has crashed keeps its files and nothing else. Its requests may still arrive, and nobody waits for the
answers; connections to it are lost, and a request on one of them is lost with it. It registers anew once the controller
has fenced it, and reads metadata from its registration on.

A loss may cut the log at any offset, since nothing is synced before (Kafka's default `flush.messages`), and undo
truncations behind which nothing was appended. The high watermark is that of a checkpoint, which may be of any time.
"""

from __future__ import annotations

from harness.search.exploration.cluster_values import (
    BrokerState,
    LeaderAnswer,
    LogRecord,
    MetadataUpdate,
    ReplicaDisk,
    SentProposal,
)
from harness.search.exploration.memory_log import MemoryLog
from harness.search.exploration.normal_form import behind, normalised, without_exchange, without_isr_exchange
from harness.search.exploration.replica_steps import ReplicaEvents, receive, shipped_replica
from images.broker.replication.partition import Limits, Partition

_UNREAD = -1
"""The partition epoch of a replica that has read no metadata, where the oldest to read has 0."""


def crashed(broker: BrokerState) -> BrokerState:
    """The broker once its process is gone."""
    if broker.isr_exchange is not None:
        broker = without_isr_exchange(broker)._replace(proposal=None)
    sent = broker.proposal and behind(SentProposal(broker.broker_epoch, broker.proposal), 0)
    return BrokerState(
        Partition(broker.partition.node, partition_epoch=_UNREAD),
        broker.records,
        broker.broker_epoch,
        late=without_exchange(broker).late,
        down=True,
        unclean=broker.unclean,
        lossy=broker.lossy,
        late_proposal=sent or broker.late_proposal,
        disk=broker.disk,
    )


def disconnected(broker: BrokerState, leader: int, events: ReplicaEvents) -> BrokerState:
    """The broker once the process of `leader` is gone: requests to it are lost, answers sent before may arrive."""
    exchange = broker.exchange
    if broker.late is not None and broker.late.leader == leader:
        broker = broker._replace(late=None)
    if exchange is None or exchange.leader != leader or exchange.answer is not None:
        return broker
    return receive(broker._replace(exchange=None), exchange.request, LeaderAnswer(), events)


def without_disk(broker: BrokerState) -> BrokerState:
    """The broker where none can crash any more."""
    return broker._replace(disk=None)


def restarts(
    broker: BrokerState, update: MetadataUpdate, broker_epoch: int, limits: Limits, *, lossy: bool
) -> list[BrokerState]:
    """Every state in which the broker may come back: registered in `broker_epoch`, with `update` as the oldest metadata
    that it reads. With or without a loss; without one its log is as it was."""
    disk = broker.disk or ReplicaDisk()
    logs = logs_after_loss(broker.records, disk) if lossy else [broker.records]
    return [
        _opened(broker, log, high_watermark, update, limits)._replace(
            broker_epoch=broker_epoch,
            unclean=True,
            lossy=lossy or broker.lossy,
            disk=disk._replace(truncated=()) if lossy else disk,
        )
        for log in logs
        for high_watermark in range(min(disk.checkpoint, len(log)) + 1)
    ]


def logs_after_loss(log: tuple[LogRecord, ...], disk: ReplicaDisk) -> list[tuple[LogRecord, ...]]:
    """The logs that a loss may leave, other than the log itself."""
    left = {it[:end] for it in (log, *disk.truncated) for end in range(len(it) + 1)}
    return sorted(left - {log})


def _opened(
    broker: BrokerState, records: tuple[LogRecord, ...], high_watermark: int, update: MetadataUpdate, limits: Limits
) -> BrokerState:
    log = MemoryLog.recovered(records)
    replica = shipped_replica(broker.partition.node, log, high_watermark, limits, [])
    state = replica.state._replace(partition_epoch=update.registration.partition_epoch - 1)
    return normalised(broker._replace(partition=state, records=records, unread=(update,), down=False))
