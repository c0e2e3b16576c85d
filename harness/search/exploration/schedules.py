"""The steps of a schedule in words."""

from __future__ import annotations

from harness.search.exploration.cluster_model import ClusterModel, ClusterStep
from harness.search.exploration.cluster_values import BrokerState
from harness.search.exploration.machine_steps import Action, lagging_in
from harness.search.state_space.explored_model import Numbers
from images.broker.replication.partition import ReplicaRole


def line(model: ClusterModel, before: Numbers, step: ClusterStep) -> str:
    """The step, and every broker that it changes, as it is then."""
    changed = [
        _broker(model.brokers.values[new])
        for old, new in zip(before[:-2], step.state[:-2], strict=True)
        if _broker(model.brokers.values[old]) != _broker(model.brokers.values[new])
    ]
    words = _words(model, before, step) + _completed(model, before, step)
    return words + (": " + "; ".join(changed) if changed else "")


def _completed(model: ClusterModel, before: Numbers, step: ClusterStep) -> str:
    """That the step completes a reassignment; empty if it does not."""
    was, known = (model.controllers.values[state[-2]].partition for state in (before, step.state))
    completes = was.reassigning and not known.reassigning and step.action.kind != "cancel"
    return f", and the reassignment to brokers {list(known.replicas)} is complete" if completes else ""


def _words(model: ClusterModel, before: Numbers, step: ClusterStep) -> str:
    action: Action = step.action
    after = model.controllers.values[step.state[-2]]
    known = after.partition
    elected = (
        f"broker {known.leader} leads in leader epoch {known.leader_epoch}, ISR {list(known.isr)}"
        if known.leader > 0
        else f"no broker leads in leader epoch {known.leader_epoch}, ELR {list(known.elr)}"
    )
    match action.kind:
        case "read":
            update = model.brokers.values[before[action.broker - 1]].unread[action.other].registration
            isr = list(update.isr)
            read = f"broker {action.broker} reads the metadata of leader epoch {update.leader_epoch}, ISR {isr}"
            return read if action.broker in update.replicas else f"{read}, and deletes its replica"
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
        case "tick":
            return f"leader {action.broker} looks at its followers"
        case "append":
            return f"a producer appends a record at broker {action.broker}"
        case "lag":
            *some, last = map(str, lagging_in(action))
            if some:
                several = f"{', '.join(some)} and {last}"
                return f"brokers {several} lag, and leader {action.broker} proposes an ISR without them"
            return f"broker {last} lags, and leader {action.broker} proposes an ISR without it"
        case "alter_partition":
            return f"the controller answers AlterPartition of broker {action.broker}, ISR {list(known.isr)}"
        case "receive_isr":
            exchange = model.brokers.values[before[action.broker - 1]].isr_exchange
            assert exchange is not None
            assert exchange.answer is not None
            committed = exchange.answer.committed
            tells = f"ISR {list(committed.isr)}" if committed else exchange.answer.error.name.upper()
            doubt = "" if committed or exchange.certain else ", which is not certain"
            return f"broker {action.broker} receives the answer to its AlterPartition, {tells}{doubt}"
        case "lose_isr":
            exchange = model.brokers.values[before[action.broker - 1]].isr_exchange
            what = "an AlterPartition" if exchange and exchange.answer is None else "the answer to its AlterPartition"
            return f"broker {action.broker} loses its connection to the controller, with {what} on it"
        case "lose_isr_request":
            return f"broker {action.broker} loses its AlterPartition with its connection to the controller"
        case "late_alter_partition":
            since = "for which nobody waits" if model.scope.isr_answers_in_flight else "from before its crash"
            return f"an AlterPartition of broker {action.broker}, {since}, reaches the controller: {elected}"
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
        case "reassign":
            return f"an administrator moves the partition to brokers {list(after.target)}: {elected}"
        case "cancel":
            target = list(model.controllers.values[before[-2]].target)
            return f"an administrator cancels the reassignment to brokers {target}: {elected}"
        case "recover":
            return f"the controller elects the greatest of the logs: {elected}"
        case "expire":
            return f"the session of broker {action.broker} ends: {elected}"
        case "resume":
            return f"the session of broker {action.broker} begins again: {elected}"
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
