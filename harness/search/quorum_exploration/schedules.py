"""The steps of a schedule in words."""

from __future__ import annotations

from harness.search.quorum_exploration.promises import log_text
from harness.search.quorum_exploration.quorum_model import QuorumModel, QuorumStep
from harness.search.quorum_exploration.quorum_values import ExploredQuorum, QuorumMessage, RequestKind, VoterState
from harness.search.state_space.explored_model import Numbers
from images.broker.raft.values import NO_NODE, RaftRole, VoteResponse


def line(model: QuorumModel, before: Numbers, step: QuorumStep) -> str:
    """The step, every controller that it changes, as it is then, and the messages that are in flight because of it."""
    was, now = model.cluster(before), model.cluster(step.state)
    changed = [_voter(new) for old, new in zip(was.voters, now.voters, strict=True) if _voter(old) != _voter(new)]
    sent = [_message(it) for it in now.network if it not in was.network and it.awaited]
    in_flight = [f"in flight: {', '.join(sent)}"] if sent else []
    return f"{_words(was, step)}" + (": " + "; ".join(changed + in_flight) if changed or sent else "")


def _words(before: ExploredQuorum, step: QuorumStep) -> str:
    kind, node, message = step.action
    voter = before.voters[node - 1].quorum
    match kind:
        case "timeout":
            if voter.role is RaftRole.LEADER:
                return f"leader {node} checks its quorum"
            timeout = "fetch" if voter.role is RaftRole.FOLLOWER else "election"
            return f"the {timeout} timeout of controller {node} is over"
        case "resign":
            return f"leader {node} is asked to resign"
        case "append":
            return f"leader {node} appends a change"
        case "fetch":
            return f"controller {node} fetches from controller {voter.leader}"
        case "restart":
            return f"controller {node} restarts"
        case "power_loss":
            return f"controller {node} restarts after a power loss"
        case "answer":
            assert message is not None
            return f"{_message(message)} reaches controller {node}"
        case _:
            assert message is not None
            return f"controller {node} receives {_message(message)}"


def _message(message: QuorumMessage) -> str:
    request = {
        RequestKind.PRE_VOTE: "the pre-vote request of controller {}",
        RequestKind.VOTE: "the vote request of controller {}",
        RequestKind.BEGIN: "BeginQuorumEpoch of controller {}",
        RequestKind.END: "EndQuorumEpoch of controller {}",
        RequestKind.FETCH: "the fetch of controller {}",
    }[message.kind].format(message.sender)
    if message.answer is None:
        late = "" if message.awaited else ", of a lost connection,"
        return f"{request} to {message.request.to}{late}"
    granted = isinstance(message.answer, VoteResponse) and (", a yes" if message.answer.granted else ", a no")
    return f"the answer of {message.request.to} to {request}{granted or ''}"


def _voter(voter: VoterState) -> str:
    state = voter.quorum
    role = {
        RaftRole.UNATTACHED: "knows no leader",
        RaftRole.PROSPECTIVE: "asks for pre-votes",
        RaftRole.CANDIDATE: "is a candidate",
        RaftRole.FOLLOWER: f"follows {state.leader}",
        RaftRole.LEADER: "leads",
        RaftRole.RESIGNED: "has resigned",
    }[state.role]
    voted = state.role is RaftRole.UNATTACHED and state.voted_for != NO_NODE
    return (
        f"{state.node_id} {role} in epoch {state.epoch}{f', voted for {state.voted_for}' if voted else ''}, log "
        f"{log_text(voter.records)}, high watermark {state.high_watermark}"
    )
