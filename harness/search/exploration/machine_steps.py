"""The steps of one machine, a broker or the controller, and the promises about it, by the numbers of states.

An event of the shipped machines is carried out once for every distinct state of the machine, however many states of the
cluster it is part of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations
from typing import Final, NamedTuple

from harness.search.exploration import isr_exchanges, promises, replica_steps, restart_steps
from harness.search.exploration.cluster_values import (
    BrokerState,
    ClusterHistory,
    ControllerState,
    FollowerRequest,
    LeaderAnswer,
    MetadataUpdate,
)
from harness.search.exploration.controller_steps import ControllerStep, ControllerSteps
from harness.search.exploration.normal_form import publish
from harness.search.exploration.scope import Scope
from harness.search.state_space.interning import Interned, Remembered
from images.broker.controller.alter_partition import AlterPartition, AlterPartitionAnswer
from images.broker.controller.unclean_recovery import ReplicaLogEnd
from images.broker.replication.partition import ReplicaRole
from images.wire.field_values import NO_EPOCH, NO_LEADER

CONTROLLER: Final = 0
"""In place of a broker in a step of an administrator or the controller that concerns none alone."""
WITHOUT_SCRIPT: Final[Mapping[str, str]] = {
    "lag": "no fault has some replicas lag alone",
    "tick": "a script has leaders look at their followers once",
    "receive_isr": "a script has no answer to an ISR change that is on its way",
    "lose_isr": "no fault takes the connection of ISR changes alone",
    "lose_isr_request": "no fault takes the connection of ISR changes alone",
    "expire": "a script has no broker that is up and stays fenced",
    "resume": "a script has no broker that is up and stays fenced",
    "recover": "a script does not say when the controller compares logs",
}
"""The kinds of steps that no script has (`harness/search/scripted_schedules`), or only once, and the reason."""


class Action(NamedTuple):
    """A step in short: its kind, the broker that takes it, and another number, such as a second broker."""

    kind: str
    broker: int
    other: int = 0


def lag_of(leader: int, lagging: Sequence[int]) -> Action:
    """The step in which a leader finds that these followers lag: the number has a digit for each."""
    return Action("lag", leader, int("".join(map(str, lagging))))


def lagging_in(action: Action) -> tuple[int, ...]:
    """The inverse of `lag_of`."""
    return tuple(map(int, str(action.other)))


class Move(NamedTuple):
    """A broker after a step of its own, and the promise that it breaks."""

    action: Action
    broker: int
    broken: str | None


class ControllerDecision(NamedTuple):
    """The controller after a step, and the updates that all brokers will read."""

    action: Action
    controller: int
    updates: tuple[int, ...]


class MachineSteps:
    """The steps of the machines of a scope."""

    def __init__(self, scope: Scope) -> None:
        self.brokers: Interned[BrokerState] = Interned()
        self.controllers: Interned[ControllerState] = Interned()
        self.histories: Interned[ClusterHistory] = Interned()
        self.controller_steps = ControllerSteps(scope.rules, scope.topic_config)
        self._scope, self._limits = scope, scope.limits
        self._events = replica_steps.ReplicaEvents(self._limits)
        steps = self.controller_steps
        self._sessions: list[tuple[str, Callable[[ControllerState, int, int], ControllerStep | None]]] = [
            ("session_ends", steps.session_ends)
        ]
        if scope.fencings:
            self._sessions += [("expire", steps.fence), ("resume", steps.unfence)]
        self._updates: Interned[MetadataUpdate] = Interned()
        self._requests: Interned[FollowerRequest] = Interned()
        self._answers: Interned[LeaderAnswer] = Interned()
        self._alter_requests: Interned[AlterPartition] = Interned()
        self._isr_answers: Interned[AlterPartitionAnswer] = Interned()
        self._log_ends: Interned[ReplicaLogEnd] = Interned()
        # of a broker
        self.moves = Remembered(self._compute_moves)
        self.published = Remembered(self._compute_published)
        self.request = Remembered(self._compute_request)
        self.served = Remembered(self._compute_served)
        self.received = Remembered(self._compute_received)
        self.in_flight = Remembered(self._compute_in_flight)
        self.answered = Remembered(self._compute_answered)
        self.appended = Remembered(self._compute_appended)
        self.proposals = Remembered(self._compute_proposal)
        self.late_proposals = Remembered(self._compute_late_proposal)
        self.isr_answered = Remembered(self._compute_isr_answered)
        self.crashed = Remembered(self._compute_crashed)
        self.restarted = Remembered(self._compute_restarted)
        self.log_end = Remembered(self._compute_log_end)
        self.down: Remembered[int, bool] = Remembered(lambda number: self.brokers.values[number].down)
        self.has_metadata = Remembered(self._compute_has_metadata)
        # of the controller
        self.decisions = Remembered(self._compute_decisions)
        self.sessions = Remembered(self._compute_sessions)
        self.registered = Remembered(self._compute_registered)
        self.reassigned = Remembered(self._compute_reassigned)
        self.proposed = Remembered(self._compute_proposed)
        self.recovering = Remembered(self._compute_recovering)
        self.recovered = Remembered(self._compute_recovered)
        # promises
        self.committed = Remembered(self._compute_committed)
        self.has_committed = Remembered(self._compute_has_committed)
        self.broken_broker = Remembered(self._compute_broken_broker)
        self.broken_pair = Remembered(self._compute_broken_pair)

    def _compute_moves(self, number: int) -> list[Move]:
        """What a broker does by itself: it reads metadata, and as a leader looks at its followers, of which any members
        of the ISR may lag."""
        broker = self.brokers.values[number]
        state = broker.partition
        after = [
            (Action("read", state.node, position), replica_steps.read_update(broker, position, self._events))
            for position in range(len(broker.unread))
        ]
        if state.leadership is not None:
            after.append((Action("tick", state.node), replica_steps.tick(broker, self._events)))
            others = sorted(member for member in state.isr if member != state.node)
            after += [
                (lag_of(state.node, lagging), replica_steps.tick(broker, self._events, lagging))
                for count in range(1, len(others) + 1)
                for lagging in combinations(others, count)
            ]
        if self._scope.isr_answers_in_flight:
            after = [(action, isr_exchanges.sent(broker, it)) for action, it in after]
            after += [(Action(kind, state.node), it) for kind, it in isr_exchanges.exchanged(broker, self._events)]
        if self._scope.fetches_in_flight:
            after += [
                (Action(kind, state.node, (broker.exchange.leader if broker.exchange else state.leader)), it)
                for kind, it in replica_steps.exchanged(broker, self._events, shared=self._scope.fetchers_shared)
            ]
        moves = (Move(action, self.brokers.number(it), promises.broken_by_step(broker, it)) for action, it in after)
        return [move for move in moves if move.broker != number]

    def _compute_decisions(self, number: int) -> list[ControllerDecision]:
        """What the controller does unasked: it fences a broker that is up, and unfences it in the same step or in one
        of its own; it elects a preferred leader."""
        controller = self.controllers.values[number]
        decisions: dict[ControllerStep, Action] = {}
        for broker in self._scope.brokers:
            for first in controller.partition.replicas:
                for kind, session in self._sessions:
                    changed = session(controller, broker, first)
                    if changed is not None:
                        decisions.setdefault(changed, Action(kind, broker))
            elected = self.controller_steps.elect(controller, broker) if broker in controller.target else None
            if elected is not None:
                decisions.setdefault(elected, Action("elect", broker))
        return self._within_scope(decisions)

    def _compute_reassigned(self, number: int) -> list[ControllerDecision]:
        """The reassignments that an administrator may start, and the cancelling of one."""
        controller, steps = self.controllers.values[number], self.controller_steps
        decisions: dict[ControllerStep, Action] = {}
        for first in self._scope.brokers:
            cancelled = steps.cancel(controller, first)
            if cancelled is not None:
                decisions.setdefault(cancelled, Action("cancel", CONTROLLER))
        for target in combinations(self._scope.brokers, self._scope.replicas):
            for first in self._scope.brokers:
                reassigned = steps.reassign(controller, target, first)
                if reassigned is not None:
                    decisions.setdefault(reassigned, Action("reassign", CONTROLLER))
        return self._within_scope(decisions)

    def _compute_sessions(self, key: tuple[int, int, bool]) -> list[ControllerDecision]:
        """The session of a broker that is down ends, or that of a new incarnation begins."""
        number, place, down = key
        controller, broker, steps = self.controllers.values[number], place + 1, self.controller_steps
        (fenced,) = (it.fenced for it in controller.brokers if it.id == broker)
        if fenced == down:
            return []
        kind, event = ("fence", steps.fence) if down else ("unfence", steps.unfence)
        return self._elections(controller, Action(kind, broker), lambda first: event(controller, broker, first))

    def _compute_log_end(self, number: int) -> int:
        """The end of its log, as a broker that is up tells it."""
        return self._log_ends.number(replica_steps.log_end_of(self.brokers.values[number], self._events))

    def _compute_recovering(self, number: int) -> tuple[int, ...]:
        return self.controller_steps.recovering(self.controllers.values[number])

    def _compute_recovered(self, key: tuple[int, tuple[tuple[int, int], ...]]) -> list[ControllerDecision]:
        """The election by these log ends of replicas, if they suffice."""
        number, told = key
        controller, recover = self.controllers.values[number], self.controller_steps.recover
        log_ends = {replica: self._log_ends.values[end] for replica, end in told}
        return self._elections(
            controller, Action("recover", CONTROLLER), lambda first: recover(controller, log_ends, first)
        )

    def _compute_registered(self, key: tuple[int, int]) -> list[ControllerDecision]:
        controller, broker = self.controllers.values[key[0]], key[1] + 1
        register = self.controller_steps.register
        return self._elections(
            controller, Action("register", broker), lambda first: register(controller, broker, first)
        )

    def _elections(
        self, controller: ControllerState, action: Action, event: Callable[[int], ControllerStep | None]
    ) -> list[ControllerDecision]:
        """The decisions of the controller upon an event, with each replica as the preferred one."""
        steps = (step for first in controller.partition.replicas if (step := event(first)) is not None)
        return self._within_scope(dict.fromkeys(steps, action))

    def _within_scope(self, steps: Mapping[ControllerStep, Action]) -> list[ControllerDecision]:
        return [
            ControllerDecision(action, self.controllers.number(step.controller), self._numbers_of(step.updates))
            for step, action in steps.items()
            if self._is_within_scope(step)
        ]

    def _is_within_scope(self, step: ControllerStep) -> bool:
        return step.controller.partition.leader_epoch < self._scope.leader_epochs

    def _compute_restarted(self, key: tuple[int, ControllerDecision, bool, bool]) -> tuple[int, ...]:
        """A broker in every state in which it may come back; none can crash any more after the `last`."""
        number, decision, lossy, last = key
        broker = self.brokers.values[number]
        node = broker.partition.node
        (epoch,) = (it.epoch for it in self.controllers.values[decision.controller].brokers if it.id == node)
        (update,) = (self._updates.values[it] for it in decision.updates)
        broker = publish(broker, update)
        states = restart_steps.restarts(broker, update, epoch, self._limits, lossy=lossy)
        return tuple(self.brokers.number(restart_steps.without_disk(it) if last else it) for it in states)

    def _compute_crashed(self, key: tuple[int, int, bool]) -> int:
        """A broker once the process of `node`, its own or another's, is gone, the `last` to crash."""
        number, node, last = key
        broker = self.brokers.values[number]
        if broker.partition.node == node:
            return self.brokers.number(restart_steps.crashed(broker))
        after = restart_steps.disconnected(broker, node, self._events)
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

    def _compute_proposed(self, key: tuple[int, int]) -> list[tuple[int, tuple[int, ...], int]]:
        """The controller, the updates and the answer to a leader. Several of them where the change completes a
        reassignment that takes the leader off."""
        request, controller = self._alter_requests.values[key[0]], self.controllers.values[key[1]]
        preferred = controller.target if controller.partition.reassigning else (request.id,)
        alter_partition = self.controller_steps.alter_partition
        answered = dict.fromkeys(alter_partition(controller, request, first) for first in preferred)
        return [
            (self.controllers.number(step.controller), self._numbers_of(step.updates), self._isr_answers.number(answer))
            for step, answer in answered
            if self._is_within_scope(step)
        ]

    def _compute_isr_answered(self, key: tuple[int, int]) -> tuple[int, str | None]:
        leader, answer = self.brokers.values[key[0]], self._isr_answers.values[key[1]]
        if self._scope.isr_answers_in_flight:
            return self.brokers.number(isr_exchanges.answered(leader, answer)), None
        after = replica_steps.isr_answered(leader, answer, self._events, certain=True)
        return self.brokers.number(after), promises.broken_by_step(leader, after)

    def _compute_has_metadata(self, number: int) -> bool:
        """Whether a broker has read metadata, or there is none that concerns it."""
        broker = self.brokers.values[number]
        return broker.partition.leader_epoch != NO_EPOCH or not broker.unread

    def _compute_published(self, key: tuple[int, int]) -> int:
        broker, update = self.brokers.values[key[0]], self._updates.values[key[1]]
        return self.brokers.number(publish(broker, update))

    def _compute_request(self, number: int) -> tuple[int, int] | None:
        """The place of a follower's leader, and the follower's request."""
        broker = self.brokers.values[number]
        state = broker.partition
        if state.role is not ReplicaRole.FOLLOWER or state.leader == NO_LEADER:
            return None
        return state.leader - 1, self._requests.number(replica_steps.request_of(broker, self._events))

    def _compute_served(self, key: tuple[int, int]) -> tuple[int, int, str | None]:
        leader, request = self.brokers.values[key[0]], self._requests.values[key[1]]
        after, answer = replica_steps.serve(leader, request, self._events)
        if self._scope.isr_answers_in_flight:
            after = isr_exchanges.sent(leader, after)
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
        return self.brokers.number(replica_steps.receive(follower, request, answer, self._events))

    def _compute_appended(self, key: tuple[int, int]) -> tuple[int, str | None]:
        leader = self.brokers.values[key[0]]
        after = replica_steps.append(leader, key[1], self._events)
        return self.brokers.number(after), promises.broken_by_step(leader, after)

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

    def _numbers_of(self, updates: Iterable[MetadataUpdate]) -> tuple[int, ...]:
        return tuple(map(self._updates.number, updates))
