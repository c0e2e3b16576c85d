"""An AlterPartition and its answer as messages of their own, as `AlterPartitionManager` sends and takes them.

A leader sends an ISR change when it proposes it, and again, with the same content, when the connection is lost before
the answer has come, for as long as it proposes that change. From then on a refusal is not certain. The answer counts
whenever it comes, unless the leader has proposed another change: then nobody waits for it. The back-off before a
request is sent again is left out, since a request arrives as late as the exploration likes, or never.

A request whose connection is lost may still arrive, one at a time for each leader, beside the one that is sent again.
Where there are two, the step in which a connection is lost chooses which of them may: they are of one partition epoch,
so that the controller takes one at most, or else the older one is outdated.
"""

from __future__ import annotations

from dataclasses import replace

from harness.search.exploration.cluster_values import BrokerState, IsrExchange, SentProposal
from harness.search.exploration.normal_form import behind, normalised, without_isr_exchange
from harness.search.exploration.replica_steps import ReplicaEvents, isr_answer_of, isr_resolved
from images.broker.controller.alter_partition import AlterPartitionAnswer
from images.broker.replication.alter_partition_manager import RETRIABLE
from images.broker.replication.partition import ProposeIsr


def sent(before: BrokerState, after: BrokerState) -> BrokerState:
    """The broker after a step, with the change that it has proposed in it on its way. Nobody waits for the answer to an
    earlier one any more."""
    proposal = after.proposal
    if proposal is None or (before.proposal is not None and _same(before.proposal, proposal)):
        return after
    request = behind(SentProposal(after.broker_epoch, proposal), 0)
    return normalised(without_isr_exchange(after)._replace(isr_exchange=IsrExchange(request)))


def _same(one: ProposeIsr, other: ProposeIsr) -> bool:
    return one == replace(other, partition_epoch=one.partition_epoch)


def answered(broker: BrokerState, answer: AlterPartitionAnswer) -> BrokerState:
    """The controller has answered the request, and the answer is on its way. An error that does not concern the change
    itself leaves the request to be sent again while the change is proposed."""
    exchange, outcome = broker.isr_exchange, isr_answer_of(answer)
    if exchange is None:
        return broker
    if outcome.error not in RETRIABLE:
        return broker._replace(isr_exchange=exchange._replace(answer=outcome))
    return broker if broker.proposal is not None else broker._replace(isr_exchange=None)


def exchanged(broker: BrokerState, events: ReplicaEvents) -> list[tuple[str, BrokerState]]:
    """The steps of a leader's exchange with the controller, by name: the answer is received; the connection is lost,
    and perhaps the request with it."""
    exchange = broker.isr_exchange
    if exchange is None:
        return []
    steps = [("lose_isr", _lost(broker, exchange))]
    if exchange.answer is None:
        if broker.late_proposal not in (None, exchange.sent):
            steps.append(("lose_isr_request", _lost(broker, exchange)._replace(late_proposal=broker.late_proposal)))
        return steps
    proposal = broker.proposal
    if proposal is None:  # the leader has read newer metadata since it has sent this
        proposal = replace(exchange.sent.proposal, partition_epoch=broker.partition.partition_epoch - 1)
    told = broker.told or exchange.answer.committed is not None
    received = isr_resolved(
        broker._replace(isr_exchange=None), proposal, exchange.answer, events, certain=exchange.certain, told=told
    )
    return [*steps, ("receive_isr", received)]


def _lost(broker: BrokerState, exchange: IsrExchange) -> BrokerState:
    again = None if broker.proposal is None else IsrExchange(exchange.sent, certain=False)
    return normalised(without_isr_exchange(broker)._replace(isr_exchange=again))
