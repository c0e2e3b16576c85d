"""The states of a cluster within a scope, and the steps between them.

A state is a tuple of numbers: one for the state of each broker, one for the controller's, one for the history. An event
of the shipped machines is carried out once for every distinct state of the machine, however many states of the cluster
it is part of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import combinations
from typing import NamedTuple

from harness.search.exploration import controller_steps, promises, promises_of_runs, replica_steps, restart_steps
from harness.search.exploration.cluster_values import (
    BrokerState,
    ClusterHistory,
    ControllerState,
    ExploredCluster,
    FollowerRequest,
    LeaderAnswer,
    MetadataUpdate,
    ReplicaDisk,
)
from harness.search.exploration.controller_steps import ControllerStep, ControllerSteps
from harness.search.exploration.scope import Scope
from harness.search.exploration.symmetry import RENAMING
from harness.search.state_space.explored_model import Numbers, ValueTables
from harness.search.state_space.interning import Interned, Remembered
from images.broker.controller.alter_partition import AlterPartition, AlterPartitionAnswer
from images.broker.replication.partition import NO_EPOCH, NO_LEADER, Partition, ReplicaRole


class Action(NamedTuple):
    """A step in short: its kind, the broker that takes it, and another number, such as a second broker."""

    kind: str
    broker: int
    other: int = 0


class ClusterStep(NamedTuple):
    """A step, the state after it, and the promise that it breaks."""

    action: Action
    state: Numbers
    broken: str | None = None


class _Move(NamedTuple):
    """A broker after a step of its own, and the promise that it breaks."""

    action: Action
    broker: int
    broken: str | None


class _Decision(NamedTuple):
    """The controller after a step, and the updates that all brokers will read."""

    action: Action
    controller: int
    updates: Numbers


class ClusterModel:
    """The cluster of a scope."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.brokers: Interned[BrokerState] = Interned()
        self.controllers: Interned[ControllerState] = Interned()
        self.histories: Interned[ClusterHistory] = Interned()
        self.tables = ValueTables(self.brokers, self.controllers, self.histories)
        self.names = scope.brokers
        self.symmetry = scope.symmetry
        self.renaming = RENAMING
        self._limits = scope.limits
        self._controller_steps = ControllerSteps(scope.rules, scope.topic_config)
        self._updates: Interned[MetadataUpdate] = Interned()
        self._requests: Interned[FollowerRequest] = Interned()
        self._answers: Interned[LeaderAnswer] = Interned()
        self._isr_answers: Interned[AlterPartitionAnswer] = Interned()
        self._moves = Remembered(self._compute_moves)
        self._decisions = Remembered(self._compute_decisions)
        self._alter_requests: Interned[AlterPartition] = Interned()
        self._proposals = Remembered(self._compute_proposal)
        self._proposed = Remembered(self._compute_proposed)
        self._isr_answered = Remembered(self._compute_isr_answered)
        self._published = Remembered(self._compute_published)
        self._request = Remembered(self._compute_request)
        self._served = Remembered(self._compute_served)
        self._in_flight = Remembered(self._compute_in_flight)
        self._answered = Remembered(self._compute_answered)
        self._received = Remembered(self._compute_received)
        self._appended = Remembered(self._compute_appended)
        self._down: Remembered[int, bool] = Remembered(lambda number: self.brokers.values[number].down)
        self._late_proposals = Remembered(self._compute_late_proposal)
        self._has_metadata: Remembered[int, bool] = Remembered(
            lambda number: self.brokers.values[number].partition.leader_epoch != NO_EPOCH
        )
        self._sessions = Remembered(self._compute_sessions)
        self._registered = Remembered(self._compute_registered)
        self._restarted = Remembered(self._compute_restarted)
        self._crashed = Remembered(self._compute_crashed)
        self._committed = Remembered(self._compute_committed)
        self._has_committed = Remembered(self._compute_has_committed)
        self._broken_broker = Remembered(self._compute_broken_broker)
        self._broken_pair = Remembered(self._compute_broken_pair)

    def initial(self) -> Numbers:
        """The partition is created, and no broker has read of it yet; as in a run, all have."""
        controller = controller_steps.created(self.scope.brokers, self.scope.brokers[0])
        update = controller_steps.update_of(controller, controller.partition)
        disk = ReplicaDisk() if self.scope.restarts else None
        brokers: Iterable[BrokerState] = (
            BrokerState(Partition(node, partition_epoch=-1), unread=(update,), disk=disk) for node in self.scope.brokers
        )
        if self.scope.as_in_a_run:
            brokers = (replica_steps.read_update(broker, 0, self._limits) for broker in brokers)
        return (
            *map(self.brokers.number, brokers),
            self.controllers.number(controller),
            self.histories.number(ClusterHistory()),
        )

    def steps(self, state: Numbers) -> Iterator[ClusterStep]:
        """Every step from `state` that changes it."""
        steps = self._single_steps(state)
        if not self.scope.isr_changes_in_flight:
            steps = (step for step in map(self._settled, steps) if step.state != state)
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
        for place, broker in enumerate(brokers):
            for move in self._moves[broker]:
                if move.action.kind != "send" or not self._down[brokers[move.action.other - 1]]:
                    yield self._moved(state, move.action, {place: move.broker}, broken=move.broken)
            if self.scope.fetches_in_flight:
                yield from self._serves(state, place)
            elif (fetch := self._request[broker]) is not None and not self._down[brokers[fetch[0]]]:
                leader, request = fetch
                leader_after, answer, broken = self._served[brokers[leader], request]
                follower_after = self._received[broker, request, answer]
                if (leader_after, follower_after) != (brokers[leader], broker):
                    changes = {leader: leader_after, place: follower_after}
                    yield self._moved(state, Action("fetch", place + 1, leader + 1), changes, broken=broken)
            if (proposal := self._proposals[broker]) is not None:
                yield self._alter_partition(state, place, proposal)
        for decision in self._decisions[controller]:
            if decision.action.kind != "session_ends" or not self._down[brokers[decision.action.broker - 1]]:
                yield self._decided(state, decision)
        yield from self._appends(state)
        if self.scope.restarts:
            yield from self._crashes_and_restarts(state)

    def broken(self, state: Numbers) -> str | None:
        """The promise that does not hold in `state`."""
        if self.scope.as_in_a_run:
            return None
        *brokers, controller, history = state
        for broker in brokers:
            if (broken := self._broken_broker[broker, controller, history]) is not None:
                return broken
        if not any(self._has_committed[broker, history] for broker in brokers):
            return promises.lost(self.histories.values[history])
        for pair in combinations(brokers, 2):
            if (broken := self._broken_pair[pair]) is not None:
                return broken
        return None

    def _moved(
        self,
        state: Numbers,
        action: Action,
        changes: dict[int, int],
        controller: int | None = None,
        broken: str | None = None,
    ) -> ClusterStep:
        """The state with these brokers changed, and with what their leaders have committed."""
        after = list(state)
        history = state[-1]
        for place, broker in changes.items():
            after[place] = broker
            history, mismatch = self._committed[history, broker]
            broken = broken or mismatch
        after[-1] = history
        if controller is not None:
            after[-2] = controller
        return ClusterStep(action, tuple(after), broken)

    def _decided(self, state: Numbers, decision: _Decision) -> ClusterStep:
        """The controller decides, and every broker will read of it."""
        published = {place: self._publish(broker, decision.updates) for place, broker in enumerate(state[:-2])}
        return self._moved(state, decision.action, published, decision.controller)

    def _crashes_and_restarts(self, state: Numbers) -> Iterator[ClusterStep]:
        """Crashes, sessions of brokers that are down or back, new incarnations, and AlterPartitions of earlier ones."""
        *brokers, controller, _ = state
        history = self.histories.values[state[-1]]
        for place, broker in enumerate(brokers):
            down = self._down[broker]
            if down:
                yield from self._registers(state, place)
            elif self._has_metadata[broker] and history.crashes < self.scope.restarts:
                yield self._crashes(state, place)
            if down or self._has_metadata[broker]:
                for decision in self._sessions[controller, place, down]:
                    yield self._decided(state, decision)
            if (late := self._late_proposals[broker]) is not None:
                request, arrived = late
                controller_after, updates, _ = self._proposed[request, controller]
                decision = _Decision(Action("late_alter_partition", place + 1), controller_after, updates)
                yield self._decided((*state[:place], arrived, *state[place + 1 :]), decision)

    def _crashes(self, state: Numbers, place: int) -> ClusterStep:
        history = self.histories.values[state[-1]]
        after = history._replace(crashes=history.crashes + 1)
        last = after.crashes == self.scope.restarts
        changes = {other: self._crashed[broker, place + 1, last] for other, broker in enumerate(state[:-2])}
        return self._moved((*state[:-1], self.histories.number(after)), Action("crash", place + 1), changes)

    def _registers(self, state: Numbers, place: int) -> Iterator[ClusterStep]:
        """The new incarnation of a broker registers, and opens its log. As the fault model promises, fewer than
        min.insync.replicas brokers have lost data and not been in the ISR since."""
        *brokers, controller, number = state
        history = self.histories.values[number]
        others_lossy = sum(self.brokers.values[it].lossy for at, it in enumerate(brokers) if at != place)
        loses = history.losses < self.scope.losses and others_lossy < self.scope.losses_at_a_time
        last = history.crashes == self.scope.restarts
        for decision in self._registered[controller, place]:
            registered = self._decided(state, decision).state
            for lossy in (False, True) if loses else (False,):
                after = self.histories.number(history._replace(losses=history.losses + lossy))
                for broker in self._restarted[brokers[place], decision, lossy, last]:
                    yield ClusterStep(
                        decision.action, (*registered[:place], broker, *registered[place + 1 : -1], after)
                    )

    def _alter_partition(self, state: Numbers, place: int, proposal: int) -> ClusterStep:
        """The proposal of a leader reaches the controller, and the answer reaches the leader."""
        *brokers, controller, _ = state
        controller_after, updates, answer = self._proposed[proposal, controller]
        changes = {other: self._publish(broker, updates) for other, broker in enumerate(brokers)} if updates else {}
        leader, broken = self._isr_answered[changes.get(place, brokers[place]), answer]
        changes[place] = leader
        return self._moved(state, Action("alter_partition", place + 1), changes, controller_after, broken)

    def _serves(self, state: Numbers, place: int) -> Iterator[ClusterStep]:
        """The requests of a follower that may reach a leader now, one of a lost connection included."""
        for late, leader, request in self._in_flight[state[place]]:
            leader_after, answer, broken = self._served[state[leader], request]
            changes = {leader: leader_after, place: self._answered[state[place], late, answer]}
            yield self._moved(state, Action("late" if late else "serve", leader + 1, place + 1), changes, broken=broken)

    def _settled(self, step: ClusterStep) -> ClusterStep:
        """The step, with every AlterPartition that it sends answered at once."""
        for place in range(self.scope.replicas):
            if (proposal := self._proposals[step.state[place]]) is not None:
                answered = self._alter_partition(step.state, place, proposal)
                step = ClusterStep(step.action, answered.state, step.broken or answered.broken)
        return step

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
                after = self._appended[state[place], number]
                if after != state[place]:
                    yield self._moved((*state[:-1], appended), Action("append", place + 1), {place: after})

    def _publish(self, broker: int, updates: Iterable[int]) -> int:
        for update in updates:
            broker = self._published[broker, update]
        return broker

    # --- remembered steps of one machine ------------------------------------------------------------------------------

    def _compute_moves(self, number: int) -> list[_Move]:
        """What a broker does by itself: it reads metadata, and as a leader sees a member of the ISR lag."""
        broker = self.brokers.values[number]
        state = broker.partition
        after = [
            (Action("read", state.node, position), replica_steps.read_update(broker, position, self._limits))
            for position in range(len(broker.unread))
        ]
        if state.leadership is not None:
            after += [
                (Action("lag", state.node, member), replica_steps.lag(broker, member, self._limits))
                for member in state.isr
                if member != state.node
            ]
        if self.scope.fetches_in_flight:
            after += [
                (Action(kind, state.node, (broker.exchange.leader if broker.exchange else state.leader)), it)
                for kind, it in replica_steps.exchanged(broker, self._limits)
            ]
        moves = (_Move(action, self.brokers.number(it), promises.broken_by_step(broker, it)) for action, it in after)
        return [move for move in moves if move.broker != number]

    def _compute_decisions(self, number: int) -> list[_Decision]:
        """What the controller does unasked: it fences a broker, and elects a preferred leader."""
        controller = self.controllers.values[number]
        decisions: dict[ControllerStep, Action] = {}
        for broker in self.scope.brokers:
            for first in self.scope.brokers:
                ended = self._controller_steps.session_ends(controller, broker, first)
                if ended is not None:
                    decisions.setdefault(ended, Action("session_ends", broker))
            elected = self._controller_steps.elect(controller, broker)
            if elected is not None:
                decisions.setdefault(elected, Action("elect", broker))
        return self._within_scope(decisions)

    def _compute_sessions(self, key: tuple[int, int, bool]) -> list[_Decision]:
        """The session of a broker that is down ends, or that of a new incarnation begins."""
        number, place, down = key
        controller, broker, steps = self.controllers.values[number], place + 1, self._controller_steps
        (fenced,) = (it.fenced for it in controller.brokers if it.id == broker)
        if fenced == down:
            return []
        kind, event = ("fence", steps.fence) if down else ("unfence", steps.unfence)
        return self._elections(Action(kind, broker), lambda first: event(controller, broker, first))

    def _compute_registered(self, key: tuple[int, int]) -> list[_Decision]:
        controller, broker = self.controllers.values[key[0]], key[1] + 1
        register = self._controller_steps.register
        return self._elections(Action("register", broker), lambda first: register(controller, broker, first))

    def _elections(self, action: Action, event: Callable[[int], ControllerStep | None]) -> list[_Decision]:
        """The decisions of the controller upon an event, with each replica as the preferred one."""
        steps = (step for first in self.scope.brokers if (step := event(first)) is not None)
        return self._within_scope(dict.fromkeys(steps, action))

    def _within_scope(self, steps: Mapping[ControllerStep, Action]) -> list[_Decision]:
        return [
            _Decision(action, self.controllers.number(step.controller), self._numbers_of(step.updates))
            for step, action in steps.items()
            if step.controller.partition.leader_epoch < self.scope.leader_epochs
        ]

    def _compute_restarted(self, key: tuple[int, _Decision, bool, bool]) -> Numbers:
        """A broker in every state in which it may come back; none can crash any more after the `last`."""
        number, decision, lossy, last = key
        broker = self.brokers.values[number]
        node = broker.partition.node
        (epoch,) = (it.epoch for it in self.controllers.values[decision.controller].brokers if it.id == node)
        (update,) = (self._updates.values[it] for it in decision.updates)
        broker = replica_steps.publish(broker, update)
        states = restart_steps.restarts(broker, update, epoch, self._limits, lossy=lossy)
        return tuple(self.brokers.number(restart_steps.without_disk(it) if last else it) for it in states)

    def _compute_crashed(self, key: tuple[int, int, bool]) -> int:
        """A broker once the process of `node`, its own or another's, is gone, the `last` to crash."""
        number, node, last = key
        broker = self.brokers.values[number]
        if broker.partition.node == node:
            return self.brokers.number(restart_steps.crashed(broker))
        after = restart_steps.disconnected(broker, node, self._limits)
        return self.brokers.number(restart_steps.without_disk(after) if last and not after.down else after)

    def _compute_late_proposal(self, number: int) -> tuple[int, int] | None:
        """The AlterPartition of an earlier incarnation that may reach the controller, and its broker after that."""
        broker = self.brokers.values[number]
        request = replica_steps.late_alter_partition_of(broker)
        if request is None:
            return None
        return self._alter_requests.number(request), self.brokers.number(broker._replace(late_proposal=None))

    def _compute_proposal(self, number: int) -> int | None:
        request = replica_steps.alter_partition_of(self.brokers.values[number])
        return None if request is None else self._alter_requests.number(request)

    def _compute_proposed(self, key: tuple[int, int]) -> tuple[int, Numbers, int]:
        request, controller = self._alter_requests.values[key[0]], self.controllers.values[key[1]]
        step, answer = self._controller_steps.alter_partition(controller, request)
        return (
            self.controllers.number(step.controller),
            self._numbers_of(step.updates),
            self._isr_answers.number(answer),
        )

    def _compute_isr_answered(self, key: tuple[int, int]) -> tuple[int, str | None]:
        leader, answer = self.brokers.values[key[0]], self._isr_answers.values[key[1]]
        after = replica_steps.isr_answered(leader, answer, self._limits, certain=True)
        return self.brokers.number(after), promises.broken_by_step(leader, after)

    def _compute_published(self, key: tuple[int, int]) -> int:
        broker, update = self.brokers.values[key[0]], self._updates.values[key[1]]
        return self.brokers.number(replica_steps.publish(broker, update))

    def _compute_request(self, number: int) -> tuple[int, int] | None:
        """The place of a follower's leader, and the follower's request."""
        broker = self.brokers.values[number]
        state = broker.partition
        if state.role is not ReplicaRole.FOLLOWER or state.leader == NO_LEADER:
            return None
        return state.leader - 1, self._requests.number(replica_steps.request_of(broker, self._limits))

    def _compute_served(self, key: tuple[int, int]) -> tuple[int, int, str | None]:
        leader, request = self.brokers.values[key[0]], self._requests.values[key[1]]
        after, answer = replica_steps.serve(leader, request, self._limits)
        return self.brokers.number(after), self._answers.number(answer), promises.broken_by_step(leader, after)

    def _compute_in_flight(self, number: int) -> list[tuple[bool, int, int]]:
        """Whether it is late, the place of its leader, and the request: of each request that may arrive."""
        broker = self.brokers.values[number]
        return [
            (late, exchange.leader - 1, self._requests.number(exchange.request))
            for late, exchange in ((False, broker.exchange), (True, broker.late))
            if exchange is not None and exchange.answer is None
        ]

    def _compute_answered(self, key: tuple[int, bool, int]) -> int:
        follower, late, answer = key
        return self.brokers.number(
            replica_steps.answered(self.brokers.values[follower], self._answers.values[answer], late=late)
        )

    def _compute_received(self, key: tuple[int, int, int]) -> int:
        follower, request, answer = (
            self.brokers.values[key[0]],
            self._requests.values[key[1]],
            self._answers.values[key[2]],
        )
        return self.brokers.number(replica_steps.receive(follower, request, answer, self._limits))

    def _compute_appended(self, key: tuple[int, int]) -> int:
        return self.brokers.number(replica_steps.append(self.brokers.values[key[0]], key[1], self._limits))

    def _compute_committed(self, key: tuple[int, int]) -> tuple[int, str | None]:
        history, broker = self.histories.values[key[0]], self.brokers.values[key[1]]
        if broker.partition.role is not ReplicaRole.LEADER:
            return key[0], None
        after = promises.committed_after(history, broker)
        return (key[0], after) if isinstance(after, str) else (self.histories.number(after), None)

    def _compute_has_committed(self, key: tuple[int, int]) -> bool:
        return promises.has_committed(self.brokers.values[key[0]], self.histories.values[key[1]])

    def _compute_broken_broker(self, key: tuple[int, int, int]) -> str | None:
        broker, controller, history = key
        return promises.broken_by_broker(
            self.brokers.values[broker],
            self.controllers.values[controller],
            self.histories.values[history],
            self._limits,
        )

    def _compute_broken_pair(self, key: tuple[int, ...]) -> str | None:
        one, other = key
        return promises.broken_by_pair(self.brokers.values[one], self.brokers.values[other])

    def _numbers_of(self, updates: Iterable[MetadataUpdate]) -> Numbers:
        return tuple(map(self._updates.number, updates))


def _unused_number(leader: Partition, logs: Iterable[tuple[tuple[int, int], ...]]) -> int:
    """The least number that tells the leader's next record from every other of its epoch at its offset."""
    offset, epoch = leader.log_end, leader.leader_epoch
    used = {log[offset][1] for log in logs if len(log) > offset and log[offset][0] == epoch}
    return next(number for number in range(len(used) + 1) if number not in used)
