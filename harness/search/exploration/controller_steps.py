"""One event of the controller, carried out by the shipped `Controller`.

The order of the replicas, by which the controller prefers leaders, is no part of the states: every event that may elect
a leader is explored with each replica first, as if an administrator had reordered them. While a reassignment is under
way its target comes before the other replicas, as the controller has it. An event gives the partition as it changed, in
up to two updates of the metadata, or the brokers alone in one.

A broker epoch counts the incarnations of its broker: those of different brokers are never compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

from harness.search.exploration.cluster_values import (
    TOPIC,
    TOPIC_ID,
    ControllerState,
    MetadataUpdate,
    RegisteredBroker,
)
from images.broker.controller.alter_partition import AlterPartition, AlterPartitionAnswer
from images.broker.controller.controller import Controller, ControllerResult, ControllerSettings
from images.broker.controller.metadata_change import Session
from images.broker.controller.placement import TopicDefaults
from images.broker.controller.requests import Heartbeat, Registration
from images.broker.controller.unclean_recovery import ReplicaLogEnd
from images.broker.frozen_map import FrozenMap
from images.broker.metadata.image import (
    ChangeBroker,
    ClusterImage,
    PartitionImage,
    Record,
    RegisterBroker,
    TopicConfigRecord,
    TopicRecord,
)
from images.broker.replication.partition import PartitionRegistration
from images.broker.rules import Rules

_OFFSET: Final = 1_000
"""The end of the metadata log at every event: above all broker epochs."""
_SETTINGS: Final = ControllerSettings(session_timeout_ms=1, topics=TopicDefaults(), producer_id_block_size=1)
_NOW_MS: Final = 1
_INCARNATION: Final = "new"


class ControllerStep(NamedTuple):
    """The controller after an event, and the updates that brokers will read."""

    controller: ControllerState
    updates: tuple[MetadataUpdate, ...] = ()


class ControllerSteps:
    """The events of a controller with these rules, for a topic with this configuration."""

    def __init__(self, rules: Rules, config: FrozenMap[str, str]) -> None:
        self._rules = rules
        self._config = config

    def session_ends(self, controller: ControllerState, broker: int, first: int) -> ControllerStep | None:
        """The session of `broker` ends, and its next heartbeat unfences it. None if that changes nothing, or if it has
        no session."""
        shipped = self._shipped(controller, first, expired=(broker,))
        if broker not in shipped.sessions:
            return None
        fenced = shipped.tick(_NOW_MS)
        epoch = shipped.image.brokers[broker].epoch
        back = fenced.state.heartbeat(Heartbeat(broker, epoch, _OFFSET), _NOW_MS)
        return _step(controller, (fenced, back))

    def fence(self, controller: ControllerState, broker: int, first: int) -> ControllerStep | None:
        """The session of `broker` ends. None if it has none."""
        return _step(controller, (self._shipped(controller, first, expired=(broker,)).tick(_NOW_MS),))

    def register(self, controller: ControllerState, broker: int, first: int) -> ControllerStep | None:
        """A new incarnation of `broker` registers after a crash. None if it is refused."""
        shipped = self._shipped(controller, first)
        return _step(controller, (shipped.register(Registration(broker, _INCARNATION, "", 0), _NOW_MS),))

    def unfence(self, controller: ControllerState, broker: int, first: int) -> ControllerStep | None:
        """The first heartbeat of an incarnation that has read its own registration. None if it is not fenced."""
        shipped = self._shipped(controller, first)
        heartbeat = Heartbeat(broker, shipped.image.brokers[broker].epoch, _OFFSET)
        return _step(controller, (shipped.heartbeat(heartbeat, _NOW_MS),))

    def elect(self, controller: ControllerState, leader: int) -> ControllerStep | None:
        """An administrator has `leader` elected as the preferred replica. None if that changes nothing."""
        return _step(controller, (self._shipped(controller, leader).elect(((TOPIC, 0),), unclean=False),))

    def recovering(self, controller: ControllerState) -> tuple[int, ...]:
        """The replicas whose log ends an unclean recovery needs; none if there is none."""
        recoveries = self._shipped(controller, min(controller.partition.replicas)).recoveries()
        return recoveries[0].replicas if recoveries else ()

    def recover(
        self, controller: ControllerState, log_ends: Mapping[int, ReplicaLogEnd], first: int
    ) -> ControllerStep | None:
        """The controller elects a leader by the log ends of replicas. None if these do not suffice."""
        return _step(controller, (self._shipped(controller, first).recover(TOPIC, 0, log_ends, overdue=False),))

    def reassign(self, controller: ControllerState, target: tuple[int, ...], first: int) -> ControllerStep | None:
        """An administrator moves the partition to `target`, which ends a reassignment under way. None if that is
        refused, or changes nothing but the order of the replicas."""
        return self._reassigned(controller, tuple(sorted(target, key=lambda it: it != first)), first)

    def cancel(self, controller: ControllerState, first: int) -> ControllerStep | None:
        """An administrator cancels the reassignment. None if none is under way, or if that is refused."""
        return self._reassigned(controller, None, first)

    def _reassigned(
        self, controller: ControllerState, target: tuple[int, ...] | None, first: int
    ) -> ControllerStep | None:
        step = _step(controller, (self._shipped(controller, first).reassign(((TOPIC, 0, target),)),))
        return None if step is None or step.controller == controller else step

    def alter_partition(
        self, controller: ControllerState, request: AlterPartition, first: int
    ) -> tuple[ControllerStep, AlterPartitionAnswer]:
        """A leader's proposal reaches the controller. With `first` as the preferred replica, since it may complete a
        reassignment that takes the leader off."""
        result = self._shipped(controller, first).alter_partition(request)
        step = _step(controller, (result,)) or ControllerStep(controller)
        newest = step.controller.partition
        results = tuple(replace(it, partition=it.partition and newest) for it in result.answer.results)
        return step, replace(result.answer, results=results)

    def _shipped(self, controller: ControllerState, first: int, expired: Iterable[int] = ()) -> Controller:
        """The shipped controller in this state, with `first` as the preferred replica if it may be."""
        known = controller.partition
        order = tuple(sorted(known.replicas, key=lambda it: (it in known.removing, it != first)))
        records: list[Record] = [TopicRecord(TOPIC, TOPIC_ID), TopicConfigRecord(TOPIC, self._config)]
        for it in controller.brokers:
            records.append(RegisterBroker(it.id, str(it.epoch), "", 0, it.epoch))
            records.append(ChangeBroker(it.id, it.epoch, it.fenced, it.shutting_down))
        records.append(_in_order(known, order.index))
        image = replace(ClusterImage().apply_all(records, 0), offset=_OFFSET)
        sessions = {
            it.id: Session(it.epoch, 0 if it.id in expired else _NOW_MS) for it in controller.brokers if not it.fenced
        }
        return Controller(_SETTINGS, self._rules, image, FrozenMap(sessions))


def created(brokers: Iterable[int], replicas: tuple[int, ...]) -> ControllerState:
    """A new partition, with all brokers registered and all replicas in the ISR, the first of which leads."""
    partition = PartitionImage(TOPIC, TOPIC_ID, 0, replicas, replicas, (), (), replicas[0], 0, 0)
    return ControllerState(tuple(RegisteredBroker(it, 0) for it in brokers), partition)


def update_of(controller: ControllerState, partition: PartitionImage) -> MetadataUpdate:
    """What brokers read of `partition`."""
    registration = PartitionRegistration(
        partition.replicas, partition.isr, partition.leader, partition.leader_epoch, partition.partition_epoch
    )
    return MetadataUpdate(registration, controller.active)


def _step(before: ControllerState, results: tuple[ControllerResult[Any], ...]) -> ControllerStep | None:
    """The controller after these results, which brokers read one by one; None if nothing changed."""
    image = results[-1].state.image
    epochs = {it.id: it.epoch for it in before.brokers}
    brokers = tuple(
        RegisteredBroker(it.id, min(it.epoch, epochs[it.id] + 1), it.fenced, it.shutting_down)
        for _, it in sorted(image.brokers.items())
    )
    changes = [_sorted(it) for result in results for it in result.records if isinstance(it, PartitionImage)]
    if not changes and brokers == before.brokers:
        return None
    newest = replace(changes[-1], partition_epoch=0) if changes else before.partition
    controller = ControllerState(brokers, newest)
    epochs_before = (before.partition.partition_epoch, *(it.partition_epoch for it in changes))
    changed = [
        replace(it, partition_epoch=it.partition_epoch - epoch_before)
        for it, epoch_before in zip(changes, epochs_before, strict=False)
    ]
    return ControllerStep(controller, tuple(update_of(controller, it) for it in changed or [newest]))


def _sorted(partition: PartitionImage) -> PartitionImage:
    """The partition without the order of its replicas."""
    return _in_order(partition, lambda replica: replica)


def _in_order(partition: PartitionImage, place: Callable[[int], int]) -> PartitionImage:
    """The partition with its members in this order."""
    return replace(
        partition,
        replicas=tuple(sorted(partition.replicas, key=place)),
        isr=tuple(sorted(partition.isr, key=place)),
        elr=tuple(sorted(partition.elr, key=place)),
        last_known_elr=tuple(sorted(partition.last_known_elr, key=place)),
        adding=tuple(sorted(partition.adding, key=place)),
        removing=tuple(sorted(partition.removing, key=place)),
    )
