"""Where a leader of the controllers' quorum takes the logs of the others to reach, for `checkers.raft`, whose table has
the promises.

A leader commits what a majority holds, by these positions. A wrong one does harm only if it commits by it at once, so
they are checked whenever they change.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from checkers.raft.metadata_log import MetadataLog, differ
from checkers.tables import TraceRow


def misplaced_voters(
    event: TraceRow,
    logs: Mapping[str, MetadataLog],
    followed: Collection[tuple[str, int]],
    following: Mapping[str, int],
) -> Iterator[tuple[str, str, str]]:
    """The kind of violation, what the leader did, and why it is wrong, of each position in an event of a leader.

    A position counts in the epoch in which its voter has fetched from this leader, up to where their `logs` are the
    same; before, its log may have been another one. `followed` has the epochs in which controllers have followed a
    leader, `following` the last one of each.
    """
    positions = event.details().get("positions")
    others = sorted((node for node in logs if node != event.node), key=lambda node: (len(node), node))
    if not isinstance(positions, dict) or len(positions) != len(others):
        return
    own, voters = logs[event.node], sorted(positions, key=int)  # in the order of the controllers' names
    for voter, node in zip(voters, others, strict=True):
        position, held = positions[voter], logs[node]
        counted = f"{event.node}, with a log up to {own.end}, counted {node} at {position} in controller epoch "
        counted += f"{event.leader_epoch} {event.at}"
        if position >= 0 and (node, event.leader_epoch) not in followed:
            yield "position-of-another-epoch", counted, f"{node} had not followed it in that epoch yet"
        elif following.get(node) == event.leader_epoch and (
            position > min(own.end, held.end) or differ(own.at(position - 1), held.at(position - 1))
        ):
            yield "position-of-another-log", counted, f"the log of {node}, up to {held.end}, was another one there"
