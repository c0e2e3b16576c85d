"""The steps of a schedule of the exploration, as faults and operations of a script.

Nothing happens in the script but the steps of the schedule: brokers read metadata, fetch, and are let into the ISR when
a step says so, since their requests stop at gates (`message_gates`) otherwise. Every kind of step has one translation:

- a broker reads metadata: one request for its metadata log passes. Where it reads an older state than the newest, the
  request passes as soon as that state is committed, and the answer is held until the step;
- a follower fetches: one Fetch passes, or OffsetForLeaderEpoch where its protocol asks first. With requests in flight a
  request is on its way from the step in which it is sent to the one in which it arrives, even if its sender has ended
  by then; its answer is held;
- a producer appends at a broker: clients are cut off from all others, and a new producer appends with acks=1, since
  the followers may not acknowledge anything;
- a session ends: the heartbeats of the broker are dropped until it is fenced;
- an election: the replica that the schedule has elected becomes the preferred one, then the event happens;
- a reassignment: the replicas are placed anew, the one that is elected next as the preferred one; or that is cancelled.
  It completes by itself with an ISR change, and brokers create and delete replicas as they read metadata;
- a leader looks at its followers: half of `replica.lag.time.max.ms` is over then, which is once in a script;
- an AlterPartition in flight is held until its step;
- a broker crashes: a kill, or a power loss when its next incarnation has lost data. The process starts again when the
  new incarnation registers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from harness.search.exploration.cluster_values import BrokerState, ControllerState, MetadataUpdate
from harness.search.exploration.machine_steps import WITHOUT_SCRIPT
from harness.search.exploration.scope import Scope
from harness.search.scripted_schedules.message_gates import (
    DroppingGate,
    Fault,
    HoldingGate,
    Passage,
    ScriptLine,
    fault,
    overlapping,
)
from harness.search.scripted_schedules.replica_order import ReplicaOrder, first_of, may_be_placed_anew, preferring
from harness.search.scripted_schedules.step_times import BEGIN_S, StepTimes, session_within_a_session, step_times
from harness.search.state_space.shortest_schedules import WalkedStep

_FETCH: Final = "Fetch"
_HEALED_S: Final = 5.0
"""Of the workload, once all gates are open."""
_LAST_APPEND_S: Final = 2.0
"""From then to the last append: logs that end empty would leave some checks nothing to decide on."""
_BEFORE_END_S: Final = 0.2
_RESET_S: Final = 0.05
_PLACED_S: Final = 0.5
"""From the start to the placement of the replicas, and from the end of the schedule to that on all brokers."""
_ASKED_S: Final = 0.4
"""Of a request of an administrator that may be refused: within it, it is not repeated."""
_PLACED_BY_THEN: Final = "replicas that are reassigned have an order by then that elects another one"


class Untranslatable(Exception):
    """A step that the language of scripts has no words for; the message is one line."""


@dataclass(frozen=True, slots=True)
class ScriptedSchedule:
    """A schedule as a script."""

    lines: tuple[ScriptLine, ...]
    operations: tuple[Mapping[str, Any], ...]
    session_s: float
    end_s: float
    tick_s: float | None
    """The moment at which leaders look at their followers, if any step says so."""

    @property
    def time_limit_s(self) -> float:
        """Of the workload."""
        return self.end_s + _HEALED_S


def translated(scope: Scope, steps: Sequence[WalkedStep]) -> ScriptedSchedule:
    """The schedule as a script. Raises Untranslatable."""
    return _Translation(scope, steps).script()


@dataclass(slots=True)
class _Follower:
    """The requests of a follower that are on their way."""

    current: Passage | None = None
    late: Passage | None = None


@dataclass(slots=True)
class _Translation:
    scope: Scope
    steps: Sequence[WalkedStep]
    times: StepTimes = field(init=False)
    lines: list[ScriptLine] = field(default_factory=list)
    operations: list[Mapping[str, Any]] = field(default_factory=list)
    place: int = 0
    """Of the step, from 0 on."""
    order: ReplicaOrder = field(init=False)
    metadata: dict[int, DroppingGate] = field(init=False)
    fetches: dict[int, DroppingGate] = field(init=False)
    queries: dict[int, HoldingGate] = field(init=False)
    isr_changes: dict[int, HoldingGate] = field(init=False)
    followers: dict[int, _Follower] = field(init=False)

    def __post_init__(self) -> None:
        brokers = self.scope.brokers
        self.times = step_times(self.steps)
        self.order = ReplicaOrder(brokers[: self.scope.replicas])
        self.metadata = {it: DroppingGate(name(it), ["controllers"], _FETCH, BEGIN_S) for it in brokers}
        self.fetches = {it: DroppingGate(name(it), self._others(it), _FETCH, BEGIN_S) for it in brokers}
        self.queries = {it: HoldingGate(name(it), self._others(it), "OffsetForLeaderEpoch", BEGIN_S) for it in brokers}
        self.isr_changes = {it: HoldingGate(name(it), ["controllers"], "AlterPartition", BEGIN_S) for it in brokers}
        self.followers = {it: _Follower() for it in brokers}

    def script(self) -> ScriptedSchedule:
        """All of it."""
        if self.scope.fetchers_shared:
            raise Untranslatable("a script has one partition, and a fetcher of another leader is closed")
        waiting = session_within_a_session(self.steps)
        if waiting is not None:
            raise Untranslatable(f"{waiting.line}: another broker, which is down, must not be fenced meanwhile")
        translations: Mapping[str, Callable[[WalkedStep], None]] = {
            "read": self._read,
            "fetch": self._fetch,
            "send": self._send,
            "serve": self._serve,
            "late": self._late,
            "receive": self._receive,
            "lose": self._lose,
            "append": self._append,
            "elect": self._elect,
            "session_ends": self._session_ends,
            "alter_partition": self._alter_partition,
            "late_alter_partition": self._late_alter_partition,
            "crash": self._crash,
            "fence": self._prefer_elected,
            "register": self._register,
            "unfence": self._prefer_elected,
            "reassign": self._reassign,
            "cancel": self._cancel,
            "tick": self._tick,
        }
        self._begin()
        for place, step in enumerate(self.steps):
            self.place = place
            translate = translations.get(step.action.kind)
            if translate is None:
                raise Untranslatable(f"{self._step(step)}: {WITHOUT_SCRIPT[step.action.kind]}")
            translate(step)
            self.order.end_step(step)
            self._connections_lost(step)
        self._end()
        gates = [*self.metadata.values(), *self.fetches.values()]
        if any(map(overlapping, gates)):
            raise Untranslatable("two requests of a broker must pass at one moment")
        lines = [*self.lines, *self._gate_lines()]
        return ScriptedSchedule(
            tuple(sorted(lines, key=lambda it: (it.step, it.fault["at"]))),
            tuple(self.operations),
            self.times.session_s,
            self.times.end_s,
            self.times.tick_s,
        )

    def _gate_lines(self) -> Iterator[ScriptLine]:
        end_s = self.times.end_s
        protocol = self.scope.protocol
        for broker in self.scope.brokers:
            yield from self.metadata[broker].lines(end_s)
            yield from self.fetches[broker].lines(end_s)
            if protocol.queries_epoch_end:
                yield from self.queries[broker].lines(end_s)
            if self.scope.isr_changes_in_flight:
                yield from self.isr_changes[broker].lines(end_s)

    # --- the steps ----------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """The first broker leads, and clients are ready. The topic was created with replicas on all brokers: to move it
        to some would be a reassignment beside those of the schedule."""
        self._place(0, _PLACED_S, self.scope.brokers[: self.scope.replicas])
        self._add(0, {"at": 1.5, "for": 1.0, "fault": "elect-preferred"})

    def _end(self) -> None:
        """All brokers have a replica again, and one more record is appended."""
        end_s = self.times.end_s
        if self.scope.spare_brokers:
            self._place(len(self.steps) + 1, end_s + _PLACED_S, self.scope.brokers)
        self.operations.append({"do": "produce 1 to 0 by last", "at": round(end_s + _LAST_APPEND_S, 3)})

    def _read(self, step: WalkedStep) -> None:
        broker = step.before.brokers[step.action.broker - 1]
        update = broker.unread[step.action.other]
        gate = self.metadata[step.action.broker]
        published = self._published(update)
        if published == self.place - 1:
            gate.passages.append(Passage(self.place + 1, self._now))
            return
        at_s = self.times.end_of(published) - _BEFORE_END_S
        if any(max(it.at_s, it.answered_s or 0.0) >= at_s - _BEFORE_END_S for it in gate.passages):
            raise Untranslatable(
                f"{self._step(step)}: it reads one old state of the metadata after another, and only one request of a "
                "broker can be on its way"
            )
        gate.passages.append(Passage(self.place + 1, at_s, holds_answer=True, answered_s=self._now))

    def _published(self, update: MetadataUpdate) -> int:
        """The last step before this one after which the metadata is that of `update`; the one just before, where it
        still is."""
        for place in range(self.place - 1, -1, -1):
            if _same(self.steps[place].after.controller, update):
                return place
        raise Untranslatable(f"{self._step(self.steps[self.place])}: the metadata was so only within another step")

    def _fetch(self, step: WalkedStep) -> None:
        follower = step.action.broker
        if self._asks_epoch(step.before.brokers[follower - 1]):
            self.queries[follower].releases.append((self.place + 1, self._now))
        else:
            self.fetches[follower].passages.append(Passage(self.place + 1, self._now))

    def _send(self, step: WalkedStep) -> None:
        follower = step.action.broker
        if self._asks_epoch(step.before.brokers[follower - 1]):
            raise Untranslatable(f"{self._step(step)}: OffsetForLeaderEpoch in flight")
        passage = Passage(self.place + 1, self._now, holds_request=True, holds_answer=True)
        self.fetches[follower].passages.append(passage)
        self.followers[follower].current = passage

    def _serve(self, step: WalkedStep) -> None:
        current = self.followers[step.action.other].current
        assert current is not None
        current.arrives_s = self._now

    def _late(self, step: WalkedStep) -> None:
        late = self.followers[step.action.other].late
        if late is None:
            raise Untranslatable(f"{self._step(step)}: what is on a connection that is reset never arrives")
        late.arrives_s = self._now

    def _receive(self, step: WalkedStep) -> None:
        follower = self.followers[step.action.broker]
        assert follower.current is not None
        follower.current.answered_s = self._now
        follower.current = None

    def _lose(self, step: WalkedStep) -> None:
        """The connection is reset, and what is on it is gone."""
        node = name(step.action.broker)
        self._add(
            self.place + 1,
            fault(
                self._now,
                self._now + _RESET_S,
                "partition",
                shape="one-way",
                nodes=[node],
                against=self._others(step.action.broker),
                channel="fetch",
                flavour="reset",
            ),
        )
        follower, exchange = self.followers[step.action.broker], step.before.brokers[step.action.broker - 1].exchange
        if exchange is not None and exchange.answer is None:
            follower.late = None
        follower.current = None

    def _connections_lost(self, step: WalkedStep) -> None:
        """An unanswered request, of a connection that has ended with its broker or its leader, may arrive late."""
        for broker, before, after in zip(self.scope.brokers, step.before.brokers, step.after.brokers, strict=True):
            follower = self.followers[broker]
            if follower.current is not None and before.exchange is not None and after.exchange is None:
                if before.exchange.answer is None:
                    follower.late = follower.current
                follower.current = None

    def _append(self, step: WalkedStep) -> None:
        others = self._others(step.action.broker)
        end_s = self.times.end_of(self.place)
        if others:
            isolated = {"shape": "isolate", "nodes": others, "channel": "client", "flavour": "reset"}
            self._add(self.place + 1, fault(self._now, end_s - _BEFORE_END_S, "partition", **isolated))
        operation = f"produce 1 to 0 by producer-{self.place + 1}"
        self.operations.append({"do": operation, "at": round(self._now + _RESET_S, 3)})

    def _elect(self, step: WalkedStep) -> None:
        self._prefer(step, step.action.broker)
        self._add(self.place + 1, {"at": round(self._now + 0.5, 3), "for": 0.8, "fault": "elect-preferred"})

    def _session_ends(self, step: WalkedStep) -> None:
        self._prefer_elected(step)
        node, at_s = name(step.action.broker), self._now + 1.0
        silent = {"nodes": [node], "against": ["controllers"], "api": "BrokerHeartbeat", "effect": "drop", "count": 0}
        dropped = fault(at_s, at_s + self.times.session_s + 1.0, "message", **silent)
        self._add(self.place + 1, {**dropped, "until": {"fenced": node}})

    def _reassign(self, step: WalkedStep) -> None:
        """A refusal is left at that: with everything on the controller may refuse what it does in the schedule."""
        controller = step.after.controller
        replicas = preferring(first_of(controller.target, self.steps[self.place :]), controller.target)
        self._place(self.place + 1, self._now, replicas, asked_s=_ASKED_S)
        self.order.place(replicas, step.before.controller)

    def _cancel(self, step: WalkedStep) -> None:
        self._elects_by_itself(step)
        self._add(self.place + 1, fault(self._now, self._now + _ASKED_S, "cancel-placement"))

    def _tick(self, step: WalkedStep) -> None:
        """The setting says when (`tick_s`)."""
        if any(it.action.kind == "tick" for it in self.steps[: self.place]):
            raise Untranslatable(f"{self._step(step)}: {WITHOUT_SCRIPT['tick']}")

    def _alter_partition(self, step: WalkedStep) -> None:
        if step.after.brokers[step.action.broker - 1].isr_exchange is not None and step is not self.steps[-1]:
            raise Untranslatable(f"{self._step(step)}: {WITHOUT_SCRIPT['receive_isr']}")
        self._elects_by_itself(step)
        self.isr_changes[step.action.broker].releases.append((self.place + 1, self._now))

    def _late_alter_partition(self, step: WalkedStep) -> None:
        crashed = [it for it in self.steps[: self.place] if it.action == ("crash", step.action.broker, 0)]
        if self._loses_data(self.steps.index(crashed[-1])):
            raise Untranslatable(
                f"{self._step(step)}: a node that loses power takes along what it has sent and is held"
            )
        self._alter_partition(step)

    def _crash(self, step: WalkedStep) -> None:
        broker = step.action.broker
        registers = self._next("register", broker)
        end_s = self.times.starts[registers] if registers is not None else self.times.end_s
        if self._loses_data(self.place):
            self._add(self.place + 1, fault(self._now, end_s, "power-loss", nodes=[name(broker)], keep="nothing"))
        else:
            self._add(self.place + 1, fault(self._now, end_s, "kill", nodes=[name(broker)]))
        unfenced = self._next("unfence", broker)
        end_s = self.times.starts[unfenced] if unfenced is not None else self.times.end_s
        silent = {"nodes": [name(broker)], "against": ["controllers"], "api": "BrokerHeartbeat", "effect": "drop"}
        self._add(self.place + 1, fault(self._now, end_s, "message", **silent, count=0))

    def _register(self, step: WalkedStep) -> None:
        """The process starts as its crash ends (`_crash`)."""
        self._prefer_elected(step)

    def _loses_data(self, crash: int) -> bool:
        """Whether the incarnation after the crash at this place has lost its log."""
        broker = self.steps[crash].action.broker
        for place, step in enumerate(self.steps[crash:], crash):
            after = step.after.brokers[broker - 1]
            if step.action.kind == "register" and step.action.broker == broker:
                if after.lossy and after.records:
                    raise Untranslatable(f"step {place + 1}, {step.line}: a power loss that leaves a part of the log")
                return after.lossy
        return False

    # --- parts of them ------------------------------------------------------------------------------------------------

    @property
    def _now(self) -> float:
        return self.times.starts[self.place]

    def _step(self, step: WalkedStep) -> str:
        return f"step {self.place + 1}, {step.line}"

    def _add(self, number: int, line: Fault) -> None:
        self.lines.append(ScriptLine(number, line))

    def _others(self, broker: int) -> list[str]:
        return [name(it) for it in self.scope.brokers if it != broker]

    def _next(self, kind: str, broker: int) -> int | None:
        """The next step of a kind by a broker, before it crashes again."""
        for place in range(self.place + 1, len(self.steps)):
            action = self.steps[place].action
            if action.broker == broker and action.kind in (kind, "crash"):
                return place if action.kind == kind else None
        return None

    def _asks_epoch(self, broker: BrokerState) -> bool:
        return broker.partition.epoch_query is not None

    def _prefer_elected(self, step: WalkedStep) -> None:
        """Where the step elects another leader, that one is the preferred replica before it."""
        before, after = step.before.controller.partition, step.after.controller.partition
        if after.leader in self.scope.brokers and after.leader != before.leader:
            by_itself = before.reassigning and self.order.elects(step) == after.leader
            if not by_itself:
                self._prefer(step, after.leader)

    def _prefer(self, step: WalkedStep, broker: int) -> None:
        """Have a replica be the preferred one before the event of the step."""
        if broker == self.order.preferred:
            return
        controller = step.before.controller
        if not may_be_placed_anew(broker, controller):
            raise Untranslatable(f"{self._step(step)}: {_PLACED_BY_THEN}")
        self._place(self.place + 1, self._now, preferring(broker, controller.target))
        self.order.place(preferring(broker, controller.target), controller)

    def _elects_by_itself(self, step: WalkedStep) -> None:
        """Where the step elects another leader, the replicas are in the order for it: to place them anew would move the
        partition epoch."""
        before, after = step.before.controller.partition, step.after.controller.partition
        if after.leader in self.scope.brokers and after.leader not in (before.leader, self.order.elects(step)):
            raise Untranslatable(f"{self._step(step)}: {_PLACED_BY_THEN}")

    def _place(self, number: int, at_s: float, replicas: Sequence[int], asked_s: float | None = None) -> None:
        asked = {} if asked_s is None else {"for": asked_s}
        nodes = list(map(name, replicas))
        self._add(number, {"at": round(at_s, 3), **asked, "fault": "place-replicas", "nodes": nodes})


def name(broker: int) -> str:
    """The name of a broker in a script."""
    return f"b{broker}"


def _same(controller: ControllerState, update: MetadataUpdate) -> bool:
    known, read = controller.partition, update.registration
    return (known.replicas, known.isr, known.leader, known.leader_epoch) == (
        read.replicas,
        read.isr,
        read.leader,
        read.leader_epoch,
    )
