"""The states of a cluster within a scope, and the steps between them.

A state is a tuple of numbers: one for the state of each broker, one for the controller's, one for the history. A step
is that of one machine (`machine_steps`), and what it means for the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations
from typing import Final, NamedTuple

from harness.search.exploration import controller_steps, promises, promises_of_runs, replica_steps
from harness.search.exploration.cluster_values import BrokerState, ClusterHistory, ExploredCluster, ReplicaDisk
from harness.search.exploration.machine_steps import Action, ControllerDecision, MachineSteps
from harness.search.exploration.normal_form import normalised
from harness.search.exploration.scope import Scope
from harness.search.exploration.symmetry import RENAMING
from harness.search.state_space.explored_model import Numbers, ValueTables
from images.broker.controller.unclean_recovery import Strategy
from images.broker.replication.partition import Partition, ReplicaRole

_OF_FENCINGS: Final = ("expire", "resume")
_OF_SESSIONS: Final = ("session_ends", *_OF_FENCINGS)


class ClusterStep(NamedTuple):
    """A step, the state after it, and the promise that it breaks."""

    action: Action
    state: Numbers
    broken: str | None = None


class ClusterModel:
    """The cluster of a scope."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.machines = MachineSteps(scope)
        self.brokers, self.controllers = self.machines.brokers, self.machines.controllers
        self.histories = self.machines.histories
        self.tables = ValueTables(self.brokers, self.controllers, self.histories)
        self.names = scope.brokers
        self.symmetry = scope.symmetry
        self.renaming = RENAMING

    def initial(self) -> Numbers:
        """The partition is created, and no broker has read of it yet; as in a run, all have."""
        controller = controller_steps.created(self.scope.brokers, self.scope.brokers[: self.scope.replicas])
        update = controller_steps.update_of(controller, controller.partition)
        disk = ReplicaDisk() if self.scope.restarts else None
        brokers: Iterable[BrokerState] = (
            normalised(BrokerState(Partition(node, partition_epoch=-1), unread=(update,), disk=disk))
            for node in self.scope.brokers
        )
        if self.scope.as_in_a_run:
            events = replica_steps.ReplicaEvents(self.scope.limits)
            brokers = (replica_steps.read_update(it, 0, events) if it.unread else it for it in brokers)
        return (
            *map(self.brokers.number, brokers),
            self.controllers.number(controller),
            self.histories.number(ClusterHistory()),
        )

    def steps(self, state: Numbers) -> Iterator[ClusterStep]:
        """Every step from `state` that changes it."""
        steps = self._single_steps(state)
        if not self.scope.isr_changes_in_flight:
            steps = (settled for step in steps for settled in self._settled(step) if settled.state != state)
        if self.scope.as_in_a_run:
            steps = (step._replace(broken=self._seen_in_run(state, step.state)) for step in steps)
        return steps

    def cluster(self, state: Numbers) -> ExploredCluster:
        """The values that the numbers of a state stand for."""
        *brokers, controller, history = state
        values = tuple([self.brokers.values[broker] for broker in brokers])
        return ExploredCluster(values, self.controllers.values[controller], self.histories.values[history])

    def _seen_in_run(self, before: Numbers, after: Numbers) -> str | None:
        seen = promises_of_runs.seen_broken(self.cluster(before), self.cluster(after))
        return None if seen is None else seen.promise

    def _single_steps(self, state: Numbers) -> Iterator[ClusterStep]:
        *brokers, controller, _ = state
        machines, down = self.machines, self.machines.down
        for place, broker in enumerate(brokers):
            for move in machines.moves[broker]:
                if move.action.kind != "send" or not down[brokers[move.action.other - 1]]:
                    yield self._moved(state, move.action, {place: move.broker}, broken=move.broken)
            if self.scope.fetches_in_flight:
                yield from self._serves(state, place)
            elif (fetch := machines.request[broker]) is not None and not down[brokers[fetch[0]]]:
                leader, request = fetch
                leader_after, answer, broken = machines.served[brokers[leader], request]
                follower_after = machines.received[broker, request, answer]
                if (leader_after, follower_after) != (brokers[leader], broker):
                    changes = {leader: leader_after, place: follower_after}
                    yield self._moved(state, Action("fetch", place + 1, leader + 1), changes, broken=broken)
            if (proposal := machines.proposals[broker]) is not None:
                yield from self._alter_partition(state, place, proposal)
        for decision in machines.decisions[controller]:
            kind, place = decision.action.kind, decision.action.broker - 1
            if kind not in _OF_SESSIONS or not down[brokers[place]]:
                yield from self._fenced(state, decision) if kind in _OF_FENCINGS else [self._decided(state, decision)]
        yield from self._appends(state)
        if self.scope.reassignments:
            yield from self._reassignments(state)
        if self.scope.restarts:
            yield from self._crashes_and_restarts(state)
        if self.scope.unclean_recovery is not Strategy.MANUAL:
            yield from self._recovers(state)
        if self.scope.restarts or self.scope.isr_answers_in_flight:
            yield from self._late_alter_partitions(state)

    def _fenced(self, state: Numbers, decision: ControllerDecision) -> Iterator[ClusterStep]:
        """The session of a broker that is up ends, within the bound, or begins again; that of a new incarnation once it
        has read of its registration."""
        history = self.histories.values[state[-1]]
        if decision.action.kind == "resume":
            if not self.scope.restarts:  # else it is a step of `_crashes_and_restarts`
                yield self._decided(state, decision)
        elif history.fencings < self.scope.fencings:
            after = self.histories.number(history._replace(fencings=history.fencings + 1))
            yield self._decided((*state[:-1], after), decision)

    def broken(self, state: Numbers) -> str | None:
        """The promise that does not hold in `state`."""
        if self.scope.as_in_a_run:
            return None
        *brokers, controller, history = state
        for broker in brokers:
            if (broken := self.machines.broken_broker[broker, controller, history]) is not None:
                return broken
        if not any(self.machines.has_committed[broker, history] for broker in brokers):
            return promises.lost(self.histories.values[history])
        for pair in combinations(brokers, 2):
            if (broken := self.machines.broken_pair[pair]) is not None:
                return broken
        return None

    def _moved(
        self,
        state: Numbers,
        action: Action,
        changes: dict[int, int],
        broken: str | None = None,
    ) -> ClusterStep:
        """The state with these brokers changed, and with what their leaders have committed."""
        after = list(state)
        history, committed = state[-1], self.machines.committed
        for place, broker in changes.items():
            after[place] = broker
            history, mismatch = committed[history, broker]
            broken = broken or mismatch
        after[-1] = history
        return ClusterStep(action, tuple(after), broken)

    def _decided(self, state: Numbers, decision: ControllerDecision) -> ClusterStep:
        """The controller decides, and every broker will read of it. Until one does, no leader commits anything."""
        published = [self._publish(broker, decision.updates) for broker in state[:-2]]
        return ClusterStep(decision.action, (*published, decision.controller, state[-1]))

    def _reassignments(self, state: Numbers) -> Iterator[ClusterStep]:
        """An administrator starts a reassignment, or cancels the one under way."""
        *_, controller, number = state
        history = self.histories.values[number]
        started = self.histories.number(history._replace(reassignments=history.reassignments + 1))
        for decision in self.machines.reassigned[controller]:
            if decision.action.kind == "cancel":
                yield self._decided(state, decision)
            elif history.reassignments < self.scope.reassignments:
                yield self._decided((*state[:-1], started), decision)

    def _crashes_and_restarts(self, state: Numbers) -> Iterator[ClusterStep]:
        """Crashes, sessions of brokers that are down or back, and new incarnations."""
        *brokers, controller, _ = state
        history = self.histories.values[state[-1]]
        for place, broker in enumerate(brokers):
            down = self.machines.down[broker]
            if down:
                yield from self._registers(state, place)
            elif self.machines.has_metadata[broker] and history.crashes < self.scope.restarts:
                yield self._crashes(state, place)
            if down or self.machines.has_metadata[broker]:
                for decision in self.machines.sessions[controller, place, down]:
                    yield self._decided(state, decision)

    def _recovers(self, state: Numbers) -> Iterator[ClusterStep]:
        """The controller elects a leader by the log ends that brokers tell which are up: all of one moment."""
        *brokers, controller, _ = state
        machines = self.machines
        told = tuple(
            (replica, machines.log_end[brokers[replica - 1]])
            for replica in machines.recovering[controller]
            if not machines.down[brokers[replica - 1]]
        )
        if told:
            for decision in machines.recovered[controller, told]:
                yield self._decided(state, decision)

    def _late_alter_partitions(self, state: Numbers) -> Iterator[ClusterStep]:
        """AlterPartitions of earlier incarnations, and of lost connections, reach the controller."""
        *brokers, controller, _ = state
        for place, broker in enumerate(brokers):
            if (late := self.machines.late_proposals[broker]) is not None:
                request, arrived = late
                for controller_after, updates, _ in self.machines.proposed[request, controller]:
                    decision = ControllerDecision(Action("late_alter_partition", place + 1), controller_after, updates)
                    yield self._decided((*state[:place], arrived, *state[place + 1 :]), decision)

    def _crashes(self, state: Numbers, place: int) -> ClusterStep:
        history = self.histories.values[state[-1]]
        after = history._replace(crashes=history.crashes + 1)
        last = after.crashes == self.scope.restarts
        changes = {other: self.machines.crashed[broker, place + 1, last] for other, broker in enumerate(state[:-2])}
        return self._moved((*state[:-1], self.histories.number(after)), Action("crash", place + 1), changes)

    def _registers(self, state: Numbers, place: int) -> Iterator[ClusterStep]:
        """The new incarnation of a broker registers, and opens its log. As the fault model promises, fewer than
        min.insync.replicas brokers have lost data and not been in the ISR since."""
        *brokers, controller, number = state
        history = self.histories.values[number]
        others_lossy = sum(self.brokers.values[it].lossy for at, it in enumerate(brokers) if at != place)
        loses = history.losses < self.scope.losses and others_lossy < self.scope.losses_at_a_time
        last = history.crashes == self.scope.restarts
        for decision in self.machines.registered[controller, place]:
            registered = self._decided(state, decision).state
            for lossy in (False, True) if loses else (False,):
                after = self.histories.number(history._replace(losses=history.losses + lossy))
                for broker in self.machines.restarted[brokers[place], decision, lossy, last]:
                    yield ClusterStep(
                        decision.action, (*registered[:place], broker, *registered[place + 1 : -1], after)
                    )

    def _alter_partition(self, state: Numbers, place: int, proposal: int) -> Iterator[ClusterStep]:
        """The proposal of a leader reaches the controller, and the answer reaches the leader or is on its way to it."""
        for controller_after, updates, answer in self.machines.proposed[proposal, state[-2]]:
            brokers = [self._publish(broker, updates) for broker in state[:-2]]
            leader, broken = self.machines.isr_answered[brokers[place], answer]
            decided = (*brokers, controller_after, state[-1])
            yield self._moved(decided, Action("alter_partition", place + 1), {place: leader}, broken)

    def _serves(self, state: Numbers, place: int) -> Iterator[ClusterStep]:
        """The requests of a follower that may reach a leader now, one of a lost connection included."""
        for late, leader, request in self.machines.in_flight[state[place]]:
            leader_after, answer, broken = self.machines.served[state[leader], request]
            changes = {leader: leader_after, place: self.machines.answered[state[place], late, answer]}
            yield self._moved(state, Action("late" if late else "serve", leader + 1, place + 1), changes, broken=broken)

    def _settled(self, step: ClusterStep, begin: int = 0) -> Sequence[ClusterStep]:
        """The step, with every AlterPartition that it sends answered at once, those of the brokers from the place
        `begin` on; none where an answer leaves the scope."""
        proposals = self.machines.proposals
        for place in range(begin, len(step.state) - 2):
            if (proposal := proposals[step.state[place]]) is not None:
                return [
                    settled
                    for answered in self._alter_partition(step.state, place, proposal)
                    for settled in self._settled(
                        ClusterStep(step.action, answered.state, step.broken or answered.broken), place + 1
                    )
                ]
        return (step,)

    def _appends(self, state: Numbers) -> Iterator[ClusterStep]:
        history = self.histories.values[state[-1]]
        if history.appended == self.scope.records:
            return
        appended = self.histories.number(history._replace(appended=history.appended + 1))
        brokers = [self.brokers.values[broker] for broker in state[:-2]]
        for place, broker in enumerate(brokers):
            if broker.partition.role is ReplicaRole.LEADER:
                logs = [log for it in brokers for log in (it.records, *(it.disk.truncated if it.disk else ()))]
                number = _unused_number(broker.partition, [*logs, history.committed])
                after, broken = self.machines.appended[state[place], number]
                if after != state[place]:
                    action = Action("append", place + 1)
                    yield self._moved((*state[:-1], appended), action, {place: after}, broken=broken)

    def _publish(self, broker: int, updates: Iterable[int]) -> int:
        for update in updates:
            broker = self.machines.published[broker, update]
        return broker


def _unused_number(leader: Partition, logs: Iterable[tuple[tuple[int, int], ...]]) -> int:
    """The least number that tells the leader's next record from every other of its epoch at its offset."""
    offset, epoch = leader.log_end, leader.leader_epoch
    used = {log[offset][1] for log in logs if len(log) > offset and log[offset][0] == epoch}
    return next(number for number in range(len(used) + 1) if number not in used)
