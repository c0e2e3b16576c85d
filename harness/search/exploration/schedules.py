"""The shortest way to a state, in words.

The search keeps fingerprints of canonical states. Here the way is walked again without renaming any broker, so that a
broker has one name from the first step to the last.
"""

from __future__ import annotations

from typing import NamedTuple

from harness.search.exploration.canonical import CanonicalStates, Fingerprint
from harness.search.exploration.cluster_model import Action, ClusterModel, ClusterStep, Numbers
from harness.search.exploration.cluster_values import BrokerState, ExploredCluster
from harness.search.exploration.scope import Scope
from images.broker.replication.partition import ReplicaRole


class WalkedStep(NamedTuple):
    """A step of a schedule, the cluster before and after it, and the step in words."""

    action: Action
    before: ExploredCluster
    after: ExploredCluster
    line: str


class Schedules:
    """The schedules of a scope along paths of fingerprints, each from that of the first state on."""

    def __init__(self, scope: Scope) -> None:
        self._model = ClusterModel(scope)
        self._canonical = CanonicalStates(self._model)
        self._ends: dict[tuple[Fingerprint, ...], tuple[Numbers, tuple[WalkedStep, ...]]] = {}
        """The state at the end of a path, and its steps."""

    def along(self, path: tuple[Fingerprint, ...]) -> tuple[str, ...]:
        """The steps along `path`, in words."""
        return tuple(step.line for step in self._end(path)[1])

    def to_broken_promise(self, path: tuple[Fingerprint, ...], *, by_step: bool) -> tuple[str, tuple[WalkedStep, ...]]:
        """The broken promise, and the steps along `path`. `by_step`: a step after it breaks the promise."""
        state, steps = self._end(path)
        if not by_step:
            return str(self._model.broken(state)), steps
        breaking = (it for it in self._model.steps(state) if it.broken is not None)
        step = min(breaking, key=lambda it: str(it.broken))
        return str(step.broken), (*steps, self._walked(state, step))

    def _end(self, path: tuple[Fingerprint, ...]) -> tuple[Numbers, tuple[WalkedStep, ...]]:
        if len(path) == 1:
            return self._model.initial(), ()
        end = self._ends.get(path)
        if end is None:
            state, steps = self._end(path[:-1])
            step = next(it for it in self._model.steps(state) if self._canonical.of(it.state)[0] == path[-1])
            end = self._ends[path] = step.state, (*steps, self._walked(state, step))
        return end

    def _walked(self, before: Numbers, step: ClusterStep) -> WalkedStep:
        cluster = self._model.cluster
        return WalkedStep(step.action, cluster(before), cluster(step.state), _line(self._model, before, step))


def _line(model: ClusterModel, before: Numbers, step: ClusterStep) -> str:
    """The step, and every broker that it changes, as it is then."""
    changed = [
        _broker(model.brokers.values[new])
        for old, new in zip(before[:-2], step.state[:-2], strict=True)
        if _broker(model.brokers.values[old]) != _broker(model.brokers.values[new])
    ]
    return f"{_words(model, before, step)}" + (": " + "; ".join(changed) if changed else "")


def _words(model: ClusterModel, before: Numbers, step: ClusterStep) -> str:
    action: Action = step.action
    known = model.controllers.values[step.state[-2]].partition
    elected = (
        f"broker {known.leader} leads in leader epoch {known.leader_epoch}, ISR {list(known.isr)}"
        if known.leader > 0
        else f"no broker leads in leader epoch {known.leader_epoch}, ELR {list(known.elr)}"
    )
    match action.kind:
        case "read":
            update = model.brokers.values[before[action.broker - 1]].unread[action.other].registration
            isr = list(update.isr)
            return f"broker {action.broker} reads the metadata of leader epoch {update.leader_epoch}, ISR {isr}"
        case "fetch":
            return f"broker {action.broker} fetches from broker {action.other}"
        case "send":
            return f"broker {action.broker} sends a request to broker {action.other}"
        case "serve":
            return f"broker {action.broker} answers the request of broker {action.other}"
        case "late":
            return f"a request of broker {action.other}, of a lost connection, reaches broker {action.broker}"
        case "receive":
            return f"broker {action.broker} receives the answer of broker {action.other}"
        case "lose":
            return f"broker {action.broker} loses its connection to broker {action.other}"
        case "append":
            return f"a producer appends a record at broker {action.broker}"
        case "lag":
            return f"broker {action.other} lags, and leader {action.broker} proposes an ISR without it"
        case "alter_partition":
            return f"the controller answers AlterPartition of broker {action.broker}, ISR {list(known.isr)}"
        case "late_alter_partition":
            return (
                f"an AlterPartition of broker {action.broker}, from before its crash, reaches the controller: {elected}"
            )
        case "crash":
            return f"broker {action.broker} crashes"
        case "fence":
            return f"the session of broker {action.broker}, which is down, ends: {elected}"
        case "register":
            broker = model.brokers.values[step.state[action.broker - 1]]
            return (
                f"broker {action.broker} registers in broker epoch {broker.broker_epoch}"
                f"{', has lost data' if broker.lossy else ''}: {elected}"
            )
        case "unfence":
            return f"the controller unfences broker {action.broker}: {elected}"
        case "session_ends":
            return f"the session of broker {action.broker} ends and begins again: {elected}"
        case _:
            return f"an administrator asks for broker {action.broker} as leader: {elected}"


def _broker(broker: BrokerState) -> str:
    state = broker.partition
    log = " ".join(str(record.epoch) for record in broker.records)
    if broker.down:
        return f"{state.node} is down, log [{log}]"
    role = {
        ReplicaRole.LEADER: f"leads in epoch {state.leader_epoch}",
        ReplicaRole.FOLLOWER: f"follows {state.leader} in epoch {state.leader_epoch}",
        ReplicaRole.NONE: "is idle",
    }[state.role]
    return f"{state.node} {role}, log [{log}], high watermark {state.high_watermark}"
