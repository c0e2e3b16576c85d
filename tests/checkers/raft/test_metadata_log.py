"""Where a metadata log is to be cut after its leader's answer."""

from __future__ import annotations

import pytest

from checkers.raft.metadata_log import UNKNOWN, MetadataLog


@pytest.mark.parametrize(
    ("start", "epochs", "answer", "shared"),
    [
        (0, [1, 1, 2], (1, 4), 2),
        (0, [1, 1, 1, 2], (1, 2), 2),
        (0, [1, 1, 3], (2, 4), 2),
        (0, [1, 1, 2, 2], (2, 3), 3),
        (5, [1, 1, 3], (1, 6), 6),
        (5, [2, 2, 3], (1, 3), None),
        (0, [1, UNKNOWN, 3], (2, 4), None),
        (5, [], (1, 3), None),
    ],
    ids=[
        "its own end of the epoch is lower",
        "the leader's is lower",
        "it lacks the epoch of the answer",
        "they part within an epoch",
        "its log begins behind a snapshot",
        "they part within the snapshot",
        "a record is not known",
        "it has no record",
    ],
)
def test_a_log_is_shared_up_to_the_lower_end_of_the_last_epoch_that_both_may_have(
    start: int, epochs: list[int], answer: tuple[int, int], shared: int | None
) -> None:
    log = MetadataLog()
    log.start, log.epochs = start, epochs
    assert log.shared_up_to(*answer) == shared
