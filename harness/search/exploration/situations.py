"""The situation of a state (docs/situations.md): the abstraction of runs, made from the facts of an exploration."""

from __future__ import annotations

from harness.search.exploration.cluster_model import ClusterModel
from harness.search.exploration.cluster_values import BrokerState
from harness.search.state_space.explored_model import Numbers
from harness.search.state_space.interning import Remembered
from images.broker.replication.partition import ReplicaRole
from results.situations.facts import UNKNOWN, LogEpochs, PartitionFacts, ReplicaFacts
from results.situations.situation import code_of


class StateSituations:
    """The situations of a model's states."""

    def __init__(self, model: ClusterModel) -> None:
        self._model = model
        self._replicas: Remembered[int, ReplicaFacts] = Remembered(
            lambda number: _replica(model.brokers.values[number])
        )
        self._unclean: Remembered[int, bool] = Remembered(lambda number: model.brokers.values[number].unclean)
        self._decisions = Remembered(self._decision)

    def code(self, state: Numbers) -> str:
        """The code of the situation of `state`."""
        *brokers, controller, history = state
        partition, fenced = self._decisions[controller]
        for broker, number in enumerate(brokers, 1):
            partition.replicas[broker] = self._replicas[number]
        partition.unclean = {broker for broker, number in enumerate(brokers, 1) if self._unclean[number]}
        committed = self._model.histories.values[history].committed
        partition.committed = len(committed)
        partition.committed_epoch = committed[-1].epoch if committed else UNKNOWN
        return code_of(partition, fenced)

    def _decision(self, number: int) -> tuple[PartitionFacts, frozenset[int]]:
        """What the controller has decided, and the brokers that it has fenced."""
        controller = self._model.controllers.values[number]
        known = controller.partition
        decision = PartitionFacts(
            members=known.replicas,
            leader=known.leader,
            leader_epoch=known.leader_epoch,
            isr=frozenset(known.isr),
            elr=frozenset(known.elr),
            adding=frozenset(known.adding),
            min_isr=min(self._model.scope.min_insync_replicas, len(known.replicas)),
        )
        return decision, frozenset(it.id for it in controller.brokers if it.fenced)


def _replica(broker: BrokerState) -> ReplicaFacts:
    state, leadership = broker.partition, broker.partition.leadership
    facts = ReplicaFacts(
        leads=None if state.role is ReplicaRole.NONE else state.role is ReplicaRole.LEADER,
        leader_epoch=state.leader_epoch,
        log=LogEpochs.of(record.epoch for record in broker.records),
        high_watermark=state.high_watermark,
    )
    if leadership is not None:
        facts.epoch_start = leadership.start
        facts.isr = frozenset(state.isr)
        facts.proposed = None if leadership.proposed is None else frozenset(leadership.proposed)
        facts.unresolved = frozenset(leadership.unresolved_members)
    return facts
