"""The shortest way to a broken promise, in words.

The search keeps fingerprints of canonical states. Here the way is walked again without renaming any broker, so that a
broker has one name from the first step to the last.
"""

from __future__ import annotations

from collections.abc import Sequence

from harness.search.exploration.canonical import CanonicalStates, Fingerprint
from harness.search.exploration.cluster_model import Action, ClusterModel, ClusterStep, Numbers
from harness.search.exploration.cluster_values import BrokerState
from harness.search.exploration.scope import Scope
from images.broker.replication.partition import ReplicaRole


def schedule_of(scope: Scope, path: Sequence[Fingerprint], broken_by_step: str | None) -> tuple[str, tuple[str, ...]]:
    """The broken promise, and the steps along `path`. `broken_by_step`: the promise that a step after it breaks."""
    model = ClusterModel(scope)
    canonical = CanonicalStates(model)
    state = model.initial()
    lines = []
    for fingerprint in path[1:]:
        step = next(it for it in model.steps(state) if canonical.of(it.state)[0] == fingerprint)
        lines.append(_line(model, state, step))
        state = step.state
    promise = model.broken(state)
    if broken_by_step is not None:
        step = min((it for it in model.steps(state) if it.broken is not None), key=lambda it: str(it.broken))
        lines.append(_line(model, state, step))
        promise = step.broken
    return str(promise), tuple(lines)


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
        case "session_ends":
            return f"the session of broker {action.broker} ends and begins again: {elected}"
        case _:
            return f"an administrator asks for broker {action.broker} as leader: {elected}"


def _broker(broker: BrokerState) -> str:
    state = broker.partition
    log = " ".join(str(record.epoch) for record in broker.records)
    role = {
        ReplicaRole.LEADER: f"leads in epoch {state.leader_epoch}",
        ReplicaRole.FOLLOWER: f"follows {state.leader} in epoch {state.leader_epoch}",
        ReplicaRole.NONE: "is idle",
    }[state.role]
    return f"{state.node} {role}, log [{log}], high watermark {state.high_watermark}"
