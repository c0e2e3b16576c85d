"""Promises about what a replica knows of its own log: its epoch cache and its producers follow from the records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.checkers import small_evidence
from tests.checkers.protocol.test_protocol_replicas import BORN, Event, decided, kinds
from tests.checkers.small_evidence import event, fault

LONG_MS = 86_400_000


def produced(
    time_s: float,
    sequence: int,
    at: int,
    *,
    node: str = "b1",
    count: int = 1,
    producer: int = 1,
    epoch: int = 0,
    **facts: int,
) -> Event:
    """A batch that `node` appends as a replica whose leader is b1."""
    detail = {"producer_id": producer, "sequence": sequence, "crc": 7 + at, "producer_epoch": epoch, **facts}
    place = {"offset": at, "log_end": at + count, "leader": 1, "leader_epoch": 1, "partition_epoch": 0}
    return event(time_s, node, "appended", detail, **place)


def told(time_s: float, kind: str, end: int, *, epochs: Sequence[tuple[int, int]] = ((1, 0),), **facts: Any) -> Event:
    """b1 tells of its log, which ends at `end` now; `producers` by id."""
    producers = {str(producer): last for producer, last in facts.pop("producers", {1: end - 1}).items()}
    detail = {"epochs": epochs, "producers": producers, "producer_expiration_ms": LONG_MS, **facts}
    fields = {
        "log_recovered": {"offset": 0, "log_end": end},
        "truncated": {"offset": end, "log_end": 6},
        "became_leader": {"offset": end, "log_end": end, "leader": 1, "leader_epoch": 2, "partition_epoch": 0},
        "log_start_written": {"offset": 4, "log_end": end, "leader": 1, "leader_epoch": 1, "partition_epoch": 0},
    }
    return event(time_s, "b1", kind, detail, **fields[kind])


def retried(sequence: int, at: int, epoch: int = 0) -> Event:
    detail = {"acks": -1, "retry": [1, sequence, 7], "producer_epoch": epoch}
    return event(5, "b1", "acknowledged", detail, offset=at, log_end=at + 1, high_watermark=at + 1, leader_epoch=1)


def refused(sequence: int, epoch: int = 0, error: str = "out_of_order_sequence_number", *, producer: int = 1) -> Event:
    detail = {"producer_id": producer, "sequence": sequence, "error": error, "last": 0, "producer_epoch": epoch}
    return event(5, "b1", "append_refused", detail, log_end=6, leader=1, leader_epoch=1)


def started_at(offset: int) -> Event:
    return event(4, "b1", "log_start", {"before": 0, "reason": "retention_bytes"}, offset=offset, leader=1)


SIX = [*BORN, *(produced(2, sequence, sequence) for sequence in range(6))]
"""b1 leads, and its log has six batches of producer 1, with one record each."""
STAMPED = [*BORN, *(produced(2, number, number, timestamp=100 + number) for number in range(6))]
"""The same, with the times of the records."""
BEYOND = [*SIX, started_at(4)]
"""The six, of which the first four have been deleted."""

WRITTEN = {"epochs": ((1, 3),), "base": 3, "producers_before": {"1": 2}}
"""What b1 tells of its log once its new start is on disk: its first segment begins at 3."""
KNOWN_BATCHES = [[at, at + 1] for at in range(1, 6)]

FORKED = [*BORN, *(produced(2, at, at) | {"leader_epoch": epoch} for at, epoch in enumerate((1, 1, 3, 3)))]
"""… two batches of leader epoch 1, and two of epoch 3."""


def cut(end: int, *answer: int, epochs: Sequence[tuple[int, int]]) -> Event:
    """b1 cuts its log, which ended at 4, as its leader's answer has it: a leader epoch, and where that ends."""
    return told(4, "truncated", end, epochs=epochs, answer=answer) | {"log_end": 4}


KEPT = {
    "a log is cut to the end of its last epoch below the one that its leader names": [
        *FORKED,
        cut(2, 2, 3, epochs=((1, 0),)),
    ],
    "a log is cut to where the epoch that its leader names ends there": [
        *FORKED,
        cut(3, 3, 3, epochs=((1, 0), (3, 2))),
    ],
    "a log is cut to where it ends itself": [*FORKED, cut(2, 1, 9, epochs=((1, 0),))],
    "a log that has no such epoch is cut to where that ends": [*FORKED, cut(1, 0, 1, epochs=((1, 0),))],
    "a batch is cut as a whole": [*FORKED, cut(1, 1, 2, epochs=((1, 0),))],
    "what is told of a log is that of its records": [*SIX, told(4, "log_recovered", 6)],
    "a leader enters its own epoch": [*SIX, told(4, "became_leader", 6, epochs=((1, 0), (2, 6)))],
    "a cut takes batches away": [*SIX, told(4, "truncated", 2), produced(5, 2, 2), told(6, "log_recovered", 3)],
    "a log may know more of deleted batches": [
        *BEYOND,
        told(5, "truncated", 6, epochs=((1, 3),), producers={1: 5, 2: 3}),
    ],
    "the records of an unclean restart are not all known": [
        *SIX,
        told(4, "log_recovered", 9, epochs=((7, 0),), producers={5: 9}),
        retried(0, 0),
        refused(6),
    ],
    "a log whose records are all deleted knows the epoch of the last one": [
        *SIX,
        started_at(6),
        told(5, "log_recovered", 6, epochs=((1, 5),)) | {"offset": 6},
        told(6, "became_leader", 6, epochs=((1, 5), (2, 6))),
    ],
    "a log whose start moves": [
        *BEYOND,
        told(5, "log_start_written", 6, **WRITTEN),
        told(6, "log_recovered", 6, epochs=((1, 3),)) | {"offset": 4},
    ],
    "a leader without records has entered its epoch, and keeps that of the last one": [
        *SIX,
        started_at(6),
        told(5, "log_start_written", 6, **WRITTEN | {"epochs": ((1, 5), (2, 6))}) | {"offset": 6},
    ],
    "a log that was killed while it was cut below its start has begun anew": [
        *BEYOND,
        told(5, "log_recovered", 2, epochs=(), base=2, producers={}, producers_before={}) | {"offset": 2},
        told(6, "became_leader", 2, epochs=((2, 2),), producers={}),
    ],
    "a log that was killed while it began anew behind its end has done so": [
        *BEYOND,
        told(5, "log_start_written", 6, **WRITTEN),
        told(6, "log_recovered", 9, epochs=((1, 8),), base=9, producers={}, producers_before={}) | {"offset": 9},
        told(7, "became_leader", 9, epochs=((1, 8), (2, 9)), producers={}),
    ],
    "the first copy of a batch that came a second time is the known one": [
        *SIX,
        produced(5, 5, 6) | {"leader": 2},
        told(6, "log_recovered", 7, producers={1: 5}, batches={"1": KNOWN_BATCHES}),
    ],
    "the last five batches of a producer are known": [
        *SIX,
        told(4, "log_recovered", 6, batches={"1": KNOWN_BATCHES}),
    ],
    "batches of an earlier producer epoch are not known": [
        *SIX,
        produced(3, 0, 6, epoch=1),
        told(4, "log_recovered", 7, producers={1: 0}, batches={"1": [[6, 7]]}),
    ],
    "a log that begins anew": [*SIX, told(4, "truncated", 6, epochs=(), producers={}, log_start=6)],
    "a batch of several records": [*SIX, produced(3, 6, 6, count=5), produced(4, 11, 11)],
    "sequence numbers begin anew behind the greatest": [
        *BORN,
        produced(2, 2**31 - 2, 0, count=3),
        produced(3, 1, 3),
        told(4, "log_recovered", 4, producers={1: 1}),
    ],
    "a new producer epoch begins at 0": [*SIX, produced(3, 0, 6, epoch=1)],
    "a producer of whom the log has nothing": [*SIX, produced(3, 40, 6, producer=2)],
    "a retry of a batch older than five": [*SIX, refused(0)],
    "a retry in the next producer epoch": [
        *SIX,
        produced(3, 0, 6, epoch=1),
        refused(5, error="invalid_producer_epoch"),
    ],
    "a producer may have left the log, whose batches were deleted": [*BEYOND, refused(3, producer=2)],
    "a gap": [*SIX, refused(7)],
    "a batch that is refused for its epoch": [
        *SIX,
        produced(3, 0, 6, epoch=1),
        refused(6, error="invalid_producer_epoch"),
    ],
    "a retry of a batch in the log": [*SIX, retried(0, 0), retried(5, 5)],
    "a retry of a batch that was deleted meanwhile": [*BEYOND, retried(9, 2)],
    "a follower appends what its leader has": [*SIX, *(produced(3, 4, at, node="b2") for at in (0, 1))],
}
BROKEN = {
    "truncation-incomplete": [*FORKED, cut(3, 2, 3, epochs=((1, 0), (3, 2)))],
    "epoch-cache-wrong": [*SIX, told(4, "truncated", 2, epochs=((1, 0), (2, 3)))],
    "producer-state-wrong": [*SIX, told(4, "truncated", 2, producers={1: 5})],
    "segment-time-wrong": [
        *BORN,
        produced(2, 0, 0, timestamp=100),
        told(4, "log_recovered", 1, producers={1: 0}, last_segment=[0, 99]),
    ],
    "batch-appended-twice": [*SIX, produced(3, 1, 6)],
    "batch-out-of-sequence": [*SIX, produced(3, 7, 6)],
    "retry-without-batch": [*SIX, told(4, "truncated", 4), retried(5, 5)],
    "batch-refused-wrongly": [*SIX, refused(1)],
    "isr-answer-outdated": [
        *BORN,
        decided(2, 1, 1, 1, (1, 2)),
        produced(3, 0, 0) | {"partition_epoch": 1},
        event(4, "b1", "isr_committed", members=[1, 2], leader=1, leader_epoch=1, partition_epoch=1),
    ],
}


def found(events: Sequence[Event], **evidence: Any) -> list[str]:
    """The promises of this page that are broken: the log of b1 alone is told in full."""
    return [kind for kind in kinds(events, **evidence) if kind in BROKEN]


@pytest.mark.parametrize("events", KEPT.values(), ids=KEPT)
def test_what_follows_from_the_log_breaks_no_promise(events: list[Event]) -> None:
    assert found(events) == []


@pytest.mark.parametrize("kind", BROKEN)
def test_each_broken_promise_is_found(kind: str) -> None:
    assert found(BROKEN[kind]) == [kind]


@pytest.mark.parametrize(
    "told_of_it",
    [
        told(4, "log_recovered", 6, epochs=()),
        told(4, "log_recovered", 6, epochs=((0, 0),)),
        told(4, "became_leader", 6, epochs=((1, 1), (2, 6))),
        told(4, "became_leader", 6, epochs=((1, 0), (2, 5))),
    ],
)
def test_an_epoch_cache_that_is_not_of_the_records_is_found(told_of_it: Event) -> None:
    assert found([*SIX, told_of_it]) == ["epoch-cache-wrong"]


@pytest.mark.parametrize("producers", [{}, {1: 4}, {1: 5, 2: 0}])
def test_producers_that_are_not_those_of_the_log_are_found(producers: dict[int, int]) -> None:
    assert found([*SIX, told(4, "log_recovered", 6, producers=producers)]) == ["producer-state-wrong"]


@pytest.mark.parametrize(
    "facts",
    [
        {"epochs": ((1, 4),)},
        {"epochs": ()},
        {"producers_before": {}},
        {"producers_before": {"1": 3}},
        {"base": 4},
    ],
)
def test_what_a_log_knows_of_deleted_batches_is_of_them(facts: dict[str, Any]) -> None:
    wrong = "epoch-cache-wrong" if "epochs" in facts else "producer-state-wrong"
    assert found([*BEYOND, told(5, "log_start_written", 6, **WRITTEN | facts)]) == [wrong]


def test_the_producers_of_deleted_batches_come_back_with_the_log() -> None:
    for producers, wrong in (({"1": 2}, []), ({}, ["producer-state-wrong"]), ({"1": 5}, ["producer-state-wrong"])):
        facts = {"epochs": ((1, 3),), "base": 3, "producers_before": producers}
        assert found([*BEYOND, told(5, "log_recovered", 6, **facts) | {"offset": 4}]) == wrong


def test_a_restart_does_not_forget_the_producers_of_deleted_batches() -> None:
    of_two = [*BORN, produced(2, 0, 0, producer=2), *(produced(2, at, at + 1) for at in range(5)), started_at(4)]
    kept = told(5, "log_start_written", 6, **WRITTEN | {"producers_before": {"1": 1, "2": 0}}, producers={1: 4, 2: 0})
    reopened = told(6, "log_recovered", 6, epochs=((1, 3),), producers={1: 4}) | {"offset": 4}
    assert found([*of_two, kept]) == []
    assert found([*of_two, kept, reopened]) == ["producer-state-wrong"]


def test_a_log_without_records_knows_its_producers_after_a_restart_unless_it_lost_data() -> None:
    emptied = [*SIX, started_at(6)]
    kept, forgotten = (
        told(7, "log_recovered", 6, epochs=((1, 5),), producers=producers) | {"offset": 6} for producers in ({1: 5}, {})
    )
    assert found([*emptied, kept]) == []
    assert found([*emptied, forgotten]) == ["producer-state-wrong"]
    assert found([*emptied, kept, produced(8, 5, 6)]) == ["batch-appended-twice"]
    lossy = small_evidence.faults(fault("power-loss", ["b1"], 6, 6.5, {"lost_bytes": 10}))
    assert found([*emptied, forgotten, produced(8, 5, 6)], faults=lossy) == [], "it may have ended below its start"


def test_the_producer_of_a_deleted_batch_is_known() -> None:
    of_two = [*BORN, produced(2, 0, 0, producer=2), produced(2, 0, 1, producer=1), started_at(1)]
    for producers, wrong in (({1: 0, 2: 0}, []), ({1: 0}, ["producer-state-wrong"])):
        assert found([*of_two, told(5, "truncated", 2, epochs=((1, 0),), producers=producers)]) == wrong


def test_a_retry_of_a_deleted_batch_is_one() -> None:
    assert found([*BEYOND, produced(5, 3, 6)]) == ["batch-appended-twice"]
    assert found([*BEYOND, refused(3)]) == ["batch-refused-wrongly"]
    anew = told(5, "truncated", 7, epochs=(), producers={}, log_start=7)
    assert found([*BEYOND, anew, produced(6, 3, 7)]) == [], "by a log that has begun anew"


@pytest.mark.parametrize("batches", [KNOWN_BATCHES[1:], [[0, 1], *KNOWN_BATCHES], [*KNOWN_BATCHES[:-1], [5, 7]]])
def test_other_batches_of_a_producer_than_its_last_five_are_found(batches: list[list[int]]) -> None:
    assert found([*SIX, told(4, "log_recovered", 6, batches={"1": batches})]) == ["producer-state-wrong"]


@pytest.mark.parametrize(
    ("largest_ms", "kinds"), [(105, []), (-1, ["segment-time-wrong"]), (104, ["segment-time-wrong"])]
)
def test_a_segment_has_the_largest_timestamp_of_its_batches(largest_ms: int, kinds: list[str]) -> None:
    assert found([*STAMPED, told(4, "log_recovered", 6, last_segment=[3, largest_ms])]) == kinds
    assert found([*SIX, told(4, "log_recovered", 6, last_segment=[3, largest_ms])]) == [], "nobody knows their times"


def test_a_cut_takes_timestamps_away() -> None:
    for largest_ms, wrong in ((103, []), (105, ["segment-time-wrong"])):
        assert found([*STAMPED, told(4, "truncated", 4, last_segment=[3, largest_ms])]) == wrong


@pytest.mark.parametrize(("time_ms", "kinds"), [(105, []), (100, ["producer-state-wrong"])])
def test_a_producer_expires_by_its_newest_batch(time_ms: int, kinds: list[str]) -> None:
    opened = told(4, "log_recovered", 6, producer_times={"1": time_ms})
    assert found([*STAMPED, opened]) == kinds
    assert found([*SIX, opened]) == [], "of batches whose timestamps are not known"


@pytest.mark.parametrize("kept", [{"epochs": ((1, 6),), "producers": {}}, {"epochs": (), "producers": {1: 5}}])
def test_a_log_that_begins_anew_knows_nothing(kept: dict[str, Any]) -> None:
    wrong = "epoch-cache-wrong" if kept["epochs"] else "producer-state-wrong"
    assert found([*SIX, told(4, "truncated", 6, log_start=6, **kept)]) == [wrong]


def test_a_batch_of_an_earlier_producer_epoch_is_out_of_sequence() -> None:
    assert found([*SIX, produced(3, 0, 6, epoch=1), produced(4, 6, 7)]) == ["batch-out-of-sequence"]
    assert found([*SIX, produced(3, 1, 6, epoch=1)]) == ["batch-out-of-sequence"]


def test_a_retry_stands_where_it_is_acknowledged_with_its_numbers() -> None:
    for at, epoch in ((4, 0), (5, 1)):
        assert found([*SIX, retried(5, at, epoch)]) == ["retry-without-batch"]


def test_the_batch_that_follows_is_not_refused() -> None:
    assert found([*SIX, refused(6)]) == ["batch-refused-wrongly"]
    assert found([*SIX, refused(0, epoch=1)]) == ["batch-refused-wrongly"]
    assert found([*SIX, refused(6, error="invalid_producer_epoch")]) == ["batch-refused-wrongly"]


def test_a_batch_is_refused_for_its_producer_epoch_if_that_is_an_earlier_one() -> None:
    next_epoch = [*SIX, produced(3, 0, 6, epoch=1)]
    assert found([*next_epoch, refused(5)]) == ["batch-refused-wrongly"], "of the one before"
    assert found([*next_epoch, refused(9, epoch=1, error="invalid_producer_epoch")]) == ["batch-refused-wrongly"]


def test_a_producer_of_whom_a_log_has_nothing_begins_with_any_batch() -> None:
    assert found([*SIX, refused(40, producer=2)]) == ["batch-refused-wrongly"]
    all_cut = told(4, "truncated", 0, epochs=(), producers={})
    assert found([*SIX, all_cut, refused(6)]) == ["batch-refused-wrongly"]


def expired(time_s: float, end: int, *producers: int) -> Event:
    """The state of these producers expires on b1, whose log ends at `end`."""
    detail = {"producers": {str(producer): 0 for producer in producers}, "now_ms": 1_000 * time_s}
    return event(time_s, "b1", "producers_expired", detail, log_end=end)


FORGOTTEN = [*SIX, expired(4, 6, 1)]


@pytest.mark.parametrize(
    "events",
    [
        [produced(5, 1, 6)],
        [produced(5, 9, 6), produced(6, 10, 7)],
        [produced(5, 1, 6, epoch=1)],
        [told(5, "became_leader", 6, epochs=((1, 0), (2, 6)), producers={})],
        [told(5, "log_recovered", 6, producers={})],
        [told(5, "log_recovered", 6), produced(6, 6, 6)],
        [produced(5, 5, 6), told(6, "log_recovered", 7, producers={1: 5}, batches={"1": [[6, 7]]})],
        [produced(5, 5, 6), told(6, "log_recovered", 7, producers={1: 5}, batches={"1": KNOWN_BATCHES})],
        [produced(5, 2, 6), told(6, "log_recovered", 7, producers={1: 5}, batches={"1": KNOWN_BATCHES})],
        [produced(5, 9, 6), told(6, "truncated", 6, producers={}), produced(7, 3, 6)],
        [told(5, "truncated", 4, producers={1: 3}), produced(6, 4, 4)],
    ],
    ids=[
        "a retry is appended again",
        "a batch of any sequence follows, and then that behind it",
        "a producer epoch begins with any sequence",
        "its state is gone",
        "a restart may not bring it back",
        "a restart may bring it back",
        "only what came since is known",
        "or all, and the first copy counts",
        "or all, as if it had not come again",
        "a cut may leave the state as it was when it expired",
        "a cut to before that brings it back",
    ],
)
def test_a_producer_that_has_expired_is_forgotten(events: list[Event]) -> None:
    assert found([*FORGOTTEN, *events]) == []


@pytest.mark.parametrize(
    ("events", "kind"),
    [
        ([refused(9)], "batch-refused-wrongly"),
        ([refused(1)], "batch-refused-wrongly"),
        ([produced(5, 9, 6), produced(6, 11, 7)], "batch-out-of-sequence"),
        ([produced(5, 1, 6), produced(6, 1, 7)], "batch-appended-twice"),
        ([told(5, "became_leader", 6, epochs=((1, 0), (2, 6)))], "producer-state-wrong"),
        ([told(5, "log_recovered", 6), produced(6, 3, 6)], "batch-appended-twice"),
        ([told(5, "log_recovered", 6, batches={"1": [[5, 6]]})], "producer-state-wrong"),
        ([told(5, "truncated", 4, producers={})], "producer-state-wrong"),
        ([produced(5, 9, 6), told(6, "log_recovered", 7, producers={})], "producer-state-wrong"),
    ],
    ids=[
        "a batch is refused",
        "a retry is refused",
        "a gap behind the first batch since",
        "a retry of a batch since",
        "its state is known still",
        "a state that has come back counts",
        "a part of it comes back",
        "a cut to before that does not bring it back",
        "what came since is not known",
    ],
)
def test_of_a_producer_that_has_expired_what_came_since_counts(events: list[Event], kind: str) -> None:
    assert found([*FORGOTTEN, *events]) == [kind]


def test_another_producer_than_the_one_that_has_expired_is_known() -> None:
    of_two = [*SIX, produced(3, 0, 6, producer=2), expired(4, 7, 2)]
    assert found([*of_two, produced(5, 1, 7)]) == ["batch-appended-twice"]
    assert found([*of_two, produced(5, 7, 7)]) == ["batch-out-of-sequence"]


def test_a_snapshot_has_a_producer_that_has_expired_or_has_it_not() -> None:
    for producers, wrong in (({"1": 2}, []), ({"1": 1}, ["producer-state-wrong"])):
        written = told(5, "log_start_written", 6, **WRITTEN | {"producers_before": producers}, producers={})
        assert found([*SIX, expired(3, 6, 1), started_at(4), written]) == wrong
    early = [*SIX[: len(BORN) + 3], expired(2.5, 3, 1), produced(3, 9, 3), started_at(4)]
    for producers in ({}, {"1": 2}):
        facts = WRITTEN | {"producers_before": producers}
        assert found([*early, told(5, "log_start_written", 4, **facts, producers={1: 9})]) == []


def test_a_disk_that_lied_may_have_an_older_state_of_both() -> None:
    lying = small_evidence.faults(fault("fsync-lies", ["b1"], 0.5, 6, {"lost_bytes": 10}))
    for kind in ("epoch-cache-wrong", "producer-state-wrong"):
        assert found(BROKEN[kind], faults=lying) == []
    opened = [*SIX, told(4, "log_recovered", 6)]
    for batch in (refused(6), refused(40, producer=2), retried(9, 3), produced(5, 9, 6), produced(5, 5, 6)):
        assert found([*opened, batch], faults=lying) == []
        assert len(found([*opened, batch])) == 1, "of a disk that has not lied"


def test_a_loss_of_data_may_undo_a_cut() -> None:
    again = [*SIX, told(4, "truncated", 2), produced(5, 2, 2, count=3) | {"leader_epoch": 3}]
    back = told(7, "log_recovered", 4, batches={"1": [[0, 1], [1, 2], [2, 3], [3, 4]]})
    lossy = small_evidence.faults(fault("power-loss", ["b1"], 6, 6.5, {"lost_bytes": 10}))
    assert found([*again, back], faults=lossy) == []
    assert set(found([*again, back])) == {"epoch-cache-wrong", "producer-state-wrong"}
    cut_later = [*again, told(5.5, "truncated", 2), produced(5.7, 2, 2) | {"leader_epoch": 3}]
    kept = told(7, "log_recovered", 2, epochs=((2, 0),))
    assert found([*cut_later, kept], faults=lossy) == ["epoch-cache-wrong"]


@pytest.mark.parametrize(("told_epochs", "kinds"), [(((3, 4),), []), (((3, 5),), ["epoch-cache-wrong"])])
def test_the_epoch_of_a_last_record_that_is_deleted_and_not_known_may_be_any(
    told_epochs: Sequence[tuple[int, int]], kinds: list[str]
) -> None:
    again = [*SIX, told(4, "truncated", 2), produced(5, 2, 2, count=3) | {"leader_epoch": 3}]
    back = told(7, "log_recovered", 5, epochs=told_epochs) | {"offset": 5}
    lossy = small_evidence.faults(fault("power-loss", ["b1"], 6, 6.5, {"lost_bytes": 10}))
    assert found([*again, started_at(5), back], faults=lossy) == kinds
