"""Controllers under other names. A state and the state with its controllers renamed have the same future, renamed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from harness.search.quorum_exploration.quorum_values import (
    FetchAnswer,
    LeaderNews,
    Network,
    QuorumMessage,
    SendFetch,
    VoterState,
)
from harness.search.state_space.explored_model import Names, Renaming
from images.broker.frozen_map import FrozenMap
from images.broker.raft.values import NO_NODE, ElectionState, SendEndQuorumEpoch, SendVote, VoteResponse


def in_order(messages: set[QuorumMessage]) -> Network:
    """Messages in flight, in the order of their texts."""
    return tuple(sorted(messages, key=repr))


def _renamed_voter(voter: VoterState, names: Names) -> VoterState:
    """The controller, and those that it knows, under new names."""
    state, given = voter.quorum, voter.given
    return voter._replace(
        quorum=replace(
            state,
            node_id=names[state.node_id],
            leader=_name(state.leader, names),
            voted_for=_name(state.voted_for, names),
            votes=FrozenMap({names[it]: granted for it, granted in state.votes.items()}),
            progress=FrozenMap({names[it]: progress for it, progress in state.progress.items()}),
        ),
        stored=_election_state(voter.stored, names),
        older_votes=tuple(sorted(_election_state(it, names) for it in voter.older_votes)),
        given=given and given._replace(candidate=names[given.candidate]),
    )


def _renamed_network(network: Network, names: Names) -> Network:
    """The messages between controllers under new names."""
    return in_order({_message(message, names) for message in network})


def _nameless_voter(voter: VoterState) -> tuple[object, ...]:
    """What is the same of the controller in every renaming."""
    state = voter.quorum
    knows = (state.leader == NO_NODE, state.leader == state.node_id, state.voted_for == NO_NODE)
    votes, offsets = sorted(state.votes.values()), sorted(it.offset for it in state.progress.values())
    own_vote = state.voted_for == state.node_id
    place = (str(state.role), state.epoch, state.high_watermark, state.leader_answered, state.epoch_start_offset)
    return place, knows, own_vote, votes, offsets, voter.records, voter.older_logs, voter.given is None


def _nameless_place(network: Network, voter: int) -> tuple[object, ...]:
    """The messages of a controller, and those for it, without names."""
    return tuple(
        sorted(
            (type(it.request).__name__, it.sender == voter, it.request.to == voter, it.answer is None, it.awaited)
            for it in network
        )
    )


def _name(node: int, names: Names) -> int:
    return node if node == NO_NODE else names[node]


def _election_state(state: ElectionState, names: Names) -> ElectionState:
    return state._replace(leader=_name(state.leader, names), voted_for=_name(state.voted_for, names))


def _message(message: QuorumMessage, names: Names) -> QuorumMessage:
    request: Any = message.request._replace(to=names[message.request.to])
    if isinstance(request, SendVote):
        request = request._replace(request=request.request._replace(candidate=names[request.request.candidate]))
    elif isinstance(request, SendEndQuorumEpoch):
        request = request._replace(preferred=tuple(sorted(names[it] for it in request.preferred)))
    elif isinstance(request, SendFetch):
        request = request._replace(fetch=request.fetch._replace(replica=names[request.fetch.replica]))
    answer = message.answer
    if isinstance(answer, VoteResponse | LeaderNews | FetchAnswer):
        answer = answer._replace(leader=_name(answer.leader, names))
    return message._replace(sender=names[message.sender], request=request, answer=answer)


RENAMING = Renaming(_renamed_voter, _renamed_network, _nameless_voter, _nameless_place)
"""A state of the controllers under other names."""
