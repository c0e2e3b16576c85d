"""The promises of docs/quorum.md that every state of the controllers must keep.

Each function returns the broken promise in words, None if it is kept. Those about one event of one controller are in
`voter_steps`: one vote in an epoch, and for no older log; no position from a fetch of another epoch; and a high
watermark that never falls within a leadership.
"""

from __future__ import annotations

from harness.search.quorum_exploration.quorum_values import QuorumHistory, Records, VoterState
from images.broker.raft.values import RaftRole


def committed_after(history: QuorumHistory, leader: VoterState) -> QuorumHistory | str:
    """The history once `leader` has its high watermark. No two records are ever committed at one offset."""
    state = leader.quorum
    below = leader.records[: state.high_watermark]
    if below == history.committed[: len(below)]:
        return history
    if below[: len(history.committed)] == history.committed:
        return history._replace(committed=below, commit_epoch=state.epoch)
    offset = next(at for at, (one, other) in enumerate(zip(below, history.committed, strict=False)) if one != other)
    return (
        f"leader {state.node_id} commits a record of epoch {below[offset].epoch} at offset {offset}, where one of "
        f"epoch {history.committed[offset].epoch} was committed (State Machine Safety)"
    )


def broken_by_voter(voter: VoterState, history: QuorumHistory) -> str | None:
    """The promises about one controller and the committed records.

    A leader of an epoch before that of the last commit may lack what was committed then, and will commit nothing.
    """
    state, committed = voter.quorum, history.committed
    if voter.records[: state.high_watermark] != committed[: state.high_watermark]:
        return (
            f"controller {state.node_id} has {log_words(voter.records)} and high watermark {state.high_watermark}; "
            f"committed: {log_words(committed)} (State Machine Safety)"
        )
    leads = state.role is RaftRole.LEADER and state.epoch >= history.commit_epoch
    if leads and not has_committed(voter, history):
        return (
            f"controller {state.node_id} leads in epoch {state.epoch} with {log_words(voter.records)}; committed: "
            f"{log_words(committed)} (Leader Completeness)"
        )
    return None


def has_committed(voter: VoterState, history: QuorumHistory) -> bool:
    """Whether the controller has every committed record."""
    return voter.records[: len(history.committed)] == history.committed


def too_few(history: QuorumHistory, holders: int, controllers: int) -> str:
    """A committed record is on no majority."""
    return f"{holders} of {controllers} controllers have the committed {log_words(history.committed)}"


def broken_by_pair(one: VoterState, other: VoterState) -> str | None:
    """Election Safety, and Log Matching: logs that share a record share all records before it."""
    first, second = one.quorum, other.quorum
    if first.epoch == second.epoch and _elected(one) and _elected(other):
        return f"controllers {first.node_id} and {second.node_id} both lead in epoch {first.epoch} (Election Safety)"
    shared = [at for at, (a, b) in enumerate(zip(one.records, other.records, strict=False)) if a.epoch == b.epoch]
    end = shared[-1] + 1 if shared else 0
    if one.records[:end] != other.records[:end]:
        return (
            f"the logs of controllers {first.node_id} and {second.node_id} share the epoch at offset {end - 1}, but "
            f"differ up to there: {log_words(one.records)} and {log_words(other.records)} (Log Matching)"
        )
    return None


def _elected(voter: VoterState) -> bool:
    """Whether the controller was elected in its epoch."""
    return voter.quorum.role in (RaftRole.LEADER, RaftRole.RESIGNED)


def log_text(records: Records) -> str:
    """A log by the epochs of its records; a number tells changes from the first record of a leader."""
    return "[" + " ".join(f"{it.epoch}" + (f"#{it.number}" if it.number else "") for it in records) + "]"


def log_words(records: Records) -> str:
    """The same in a sentence."""
    return f"records of epochs {log_text(records)}" if records else "no record"
