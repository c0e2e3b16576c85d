"""Each promise of the controllers' quorum, kept and broken, as the trace tells it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from checkers.evidence import CheckSettings, RunEvidence
from checkers.raft.checker import check
from checkers.verdict import Validity, Verdict
from tests.checkers import small_evidence

Event = dict[str, Any]


def started(
    time_s: float, node: str, epoch: int = 0, end: int = 0, voted: int = -1, epochs: Sequence[Any] = ()
) -> Event:
    detail = {"voted": voted, "epochs": [list(entry) for entry in epochs]}
    return small_evidence.event(time_s, node, "quorum_recovered", detail, leader_epoch=epoch, offset=0, log_end=end)


def voted(time_s: float, node: str, epoch: int, candidate: int) -> Event:
    return small_evidence.event(time_s, node, "quorum_voted", leader_epoch=epoch, broker=candidate)


def voted_by_ends(candidate: tuple[int, int], own: tuple[int, int]) -> Event:
    """c2 votes for c3, these being the last epochs and the ends of their logs."""
    ends = {"candidate": list(candidate), "own": list(own)}
    return small_evidence.event(6, "c2", "quorum_voted", ends, leader_epoch=9, broker=103)


def leads(time_s: float, node: str, epoch: int) -> Event:
    return small_evidence.event(time_s, node, "quorum_leader", leader_epoch=epoch)


def appended(time_s: float, node: str, offset: int, end: int, epoch: int, crc: int = 7) -> Event:
    return small_evidence.event(
        time_s, node, "metadata_appended", {"crc": crc}, leader_epoch=epoch, offset=offset, log_end=end
    )


def committed(time_s: float, node: str, epoch: int, before: int, after: int) -> Event:
    return small_evidence.event(
        time_s, node, "metadata_committed", leader_epoch=epoch, offset=before, high_watermark=after
    )


def cut(time_s: float, node: str, to: int, end: int, known: int = 0, **detail: list[int]) -> Event:
    return small_evidence.event(
        time_s, node, "metadata_truncated", detail, offset=to, log_end=end, high_watermark=known
    )


def registered(time_s: float, node: str, broker: int, epoch: int) -> Event:
    return small_evidence.event(time_s, node, "broker_registered", {"clean": True}, broker=broker, broker_epoch=epoch)


def follows(time_s: float, node: str, epoch: int) -> Event:
    return small_evidence.event(time_s, node, "quorum_follower", leader_epoch=epoch)


def counted(time_s: float, epoch: int, after: int, **positions: int) -> Event:
    """c1 commits, and counts the others so."""
    detail = {"positions": {name.replace("c", "10"): position for name, position in positions.items()}}
    return small_evidence.event(
        time_s, "c1", "metadata_committed", detail, leader_epoch=epoch, offset=0, high_watermark=after
    )


def heard(time_s: float, epoch: int, **positions: int) -> Event:
    """c1 hears of where the others are, and commits nothing by that."""
    return counted(time_s, epoch, 0, **positions) | {"kind": "voter_positions", "high_watermark": -1}


def heartbeat(kind: str, given: int) -> Event:
    return small_evidence.event(4, "c1", kind, {"heartbeat_epoch": given}, broker=1, broker_epoch=5)


def again(silent_ms: int) -> Event:
    session = {"clean": False, "silent_ms": silent_ms, "session_timeout_ms": 2000}
    return small_evidence.event(3, "c1", "broker_registered", session, broker=1, broker_epoch=9)


def applied(time_s: float, node: str, end: int, epoch: int) -> Event:
    return small_evidence.event(time_s, node, "metadata_applied", leader_epoch=epoch, offset=0, log_end=end)


def taken_for_committed(time_s: float, node: str, kind: str, end: int) -> Event:
    detail: Event = {"partitions": {}, "brokers": {}, "log_start": 0}
    return small_evidence.event(time_s, node, kind, detail, topic="", leader_epoch=1, log_end=end)


def allocated(time_s: float, broker: int, first: int, count: int = 1000) -> Event:
    detail = {"first": first, "count": count}
    return small_evidence.event(time_s, "c1", "producer_ids_allocated", detail, topic="", partition=-1, broker=broker)


def assigned(time_s: float, node: str, producer_id: int) -> Event:
    detail = {"producer_id": producer_id}
    return small_evidence.event(time_s, node, "producer_id_assigned", detail, topic="", partition=-1)


BORN = [started(0, node) for node in ("c1", "c2", "c3")]
ELECTED = [*BORN, voted(1, "c1", 1, 101), voted(1, "c2", 1, 101), leads(1.1, "c1", 1), appended(1.1, "c1", 0, 1, 1)]
COPIED = [*ELECTED, appended(1.2, "c2", 0, 1, 1)]
COMMITTED = [*COPIED, committed(1.3, "c1", 1, 0, 1)]
UNCOMMITTED = [*COMMITTED, appended(2, "c1", 1, 3, 1, crc=8)]
TWO_RECORDS = [*UNCOMMITTED, appended(3, "c2", 1, 3, 1, crc=8)]
RESTORED = small_evidence.event(5, "c2", "metadata_restored", leader_epoch=2, offset=9)


def verdict(*events: Event, faults: Sequence[Any] = (), comparable_clocks: bool = True) -> Verdict:
    settings = CheckSettings(comparable_clocks=comparable_clocks)
    return check(
        RunEvidence(trace=small_evidence.trace(*events), faults=small_evidence.faults(*faults), settings=settings)
    )


def kinds(*events: Event, **given: Any) -> list[str]:
    return sorted({finding.kind for finding in verdict(*events, **given).findings})


KEPT = {
    "nothing but an election": ELECTED,
    "a record is committed by a majority": COMMITTED,
    "an uncommitted tail is cut by the successor": [
        *UNCOMMITTED,
        voted(3, "c2", 2, 102),
        voted(3, "c3", 2, 102),
        leads(3, "c2", 2),
        appended(3, "c2", 1, 2, 2),
        cut(4, "c1", 1, 3, known=1),
        appended(4, "c1", 1, 2, 2),
        committed(5, "c2", 2, 1, 2),
    ],
    "a controller comes back as it was": [
        *UNCOMMITTED,
        started(3, "c1", epoch=1, end=3, voted=101, epochs=[(1, 0)]),
        started(3, "c2", epoch=1, end=1, voted=101, epochs=[(1, 0)]),
    ],
    "a batch that was written and not told of is there after a restart": [
        *COMMITTED,
        started(3, "c3", epoch=1, end=1, epochs=[(1, 0)]),
        *(voted(4, node, 2, 103) for node in ("c3", "c2")),
        leads(4, "c3", 2),
    ],
    "a controller is elected late, when a later epoch has committed": [
        *COMMITTED,
        *(voted(2, node, 2, 103) for node in ("c3", "c2")),
        *(voted(3, node, 3, 101) for node in ("c1", "c2")),
        leads(3, "c1", 3),
        *(appended(3, node, 1, 2, 3) for node in ("c1", "c2")),
        committed(3, "c1", 3, 1, 2),
        appended(3, "c3", 0, 1, 1),
        leads(4, "c3", 2),
    ],
    "it need not hold a record of an earlier epoch that only the later one has committed": [
        *UNCOMMITTED,
        *(voted(2, node, 2, 103) for node in ("c3", "c2")),
        *(voted(3, node, 3, 101) for node in ("c1", "c2")),
        leads(3, "c1", 3),
        appended(3, "c2", 1, 3, 1, crc=8),
        *(appended(3, node, 3, 4, 3) for node in ("c1", "c2")),
        committed(3, "c1", 3, 1, 4),
        appended(3, "c3", 0, 1, 1),
        leads(4, "c3", 2),
    ],
    "a vote for a log as up to date as the own": [*COMMITTED, voted_by_ends((1, 1), (1, 1))],
    "a vote for a longer log": [*COMMITTED, voted_by_ends((1, 2), (1, 1))],
    "a vote for a shorter log with a later record": [*TWO_RECORDS, voted_by_ends((2, 1), (1, 3))],
    "a vote for a log as long as the own once the own was cut": [
        *TWO_RECORDS,
        cut(4, "c2", 1, 3, known=1),
        voted_by_ends((1, 1), (1, 1)),
    ],
    "a vote for a log as long as the own once the own was restarted": [
        *TWO_RECORDS,
        cut(4, "c2", 1, 3, known=1),
        started(5, "c2", epoch=1, voted=101, end=1, epochs=[(1, 0)]),
        voted_by_ends((1, 1), (1, 1)),
    ],
    "a vote for an empty log by one with an empty log": [*BORN, voted_by_ends((0, 0), (0, 0))],
    "a vote of a controller whose log is a snapshot": [*COMMITTED, RESTORED, voted_by_ends((2, 9), (2, 9))],
    "a vote of a controller whose whole log was trimmed": [
        *TWO_RECORDS,
        small_evidence.event(4, "c2", "metadata_trimmed", offset=3),
        voted_by_ends((1, 3), (1, 3)),
    ],
    "a vote in a later epoch": [*COMMITTED, voted(3, "c2", 2, 103)],
    "a broker applies committed metadata, and late metadata below a snapshot": [
        *COMMITTED,
        applied(2, "b1", 1, 1),
        *(small_evidence.event(3, node, "metadata_trimmed", offset=1) for node in ("c1", "c2")),
        applied(4, "b2", 1, 1),
    ],
    "a snapshot is written, and loaded, once what stands in it is committed": [
        *UNCOMMITTED,
        taken_for_committed(3, "c1", "metadata_snapshot", 1),
        taken_for_committed(3, "b1", "metadata_loaded", 1),
    ],
    "each producer id is given away once": [
        *COMMITTED,
        allocated(2, 1, 0),
        allocated(2, 2, 1000),
        *(assigned(3, node, producer_id) for node, producer_id in (("b1", 0), ("b2", 1000), ("b1", 1))),
    ],
    "positions of those who have followed": [*COPIED, follows(1.2, "c2", 1), counted(1.3, 1, 1, c2=1, c3=-1)],
    "a broker registers when its session is over": [*COMMITTED, registered(2, "c1", 1, 1), again(2000)],
    "heartbeats of the life that is registered": [
        *COMMITTED,
        registered(2, "c1", 1, 5),
        *(
            heartbeat(kind, 5)
            for kind in ("session_begun", "broker_stays_fenced", "broker_unfenced", "broker_shutting_down")
        ),
    ],
    "broker epochs rise": [*COMMITTED, registered(2, "c1", 1, 1), registered(3, "c1", 1, 5), registered(3, "c1", 2, 6)],
}

BROKEN = {
    "log-end-misjudged": [
        *TWO_RECORDS,
        small_evidence.event(4, "c2", "metadata_trimmed", offset=3),
        voted_by_ends((1, 3), (0, 3)),
    ],
    "two-controllers-one-epoch": [*COMMITTED, leads(2, "c2", 1)],
    "elected-without-majority": [*BORN, voted(1, "c1", 1, 101), voted(1, "c2", 2, 101), leads(1.1, "c1", 1)],
    "follows-another-leader": [*ELECTED, follows(2, "c2", 1) | {"leader": 103}],
    "decision-uncommitted": [*COMMITTED, registered(2, "c1", 1, 1) | {"offset": 2}],
    "voted-twice": [*ELECTED, voted(2, "c2", 1, 103)],
    "vote-for-older-log": [*TWO_RECORDS, voted_by_ends((1, 2), (1, 3))],
    "vote-forgotten": [*ELECTED, started(2, "c2", epoch=1, voted=-1)],
    "controller-incomplete": [*COMMITTED, leads(2, "c3", 2)],
    "commit-without-majority": [*ELECTED, committed(2, "c1", 1, 0, 1)],
    "commit-of-earlier-epoch": [*COMMITTED, leads(3, "c1", 2), committed(4, "c1", 2, 0, 1)],
    "metadata-logs-differ": [*ELECTED, appended(2, "c2", 0, 1, 1, crc=8)],
    "committed-metadata-cut": [*COMMITTED, cut(2, "c2", 0, 1, known=1)],
    "metadata-cut-in-part": [*COMMITTED, appended(2, "c2", 1, 3, 2), cut(4, "c2", 3, 3, answer=[1, 4])],
    "metadata-not-on-disk": [
        *BORN,
        small_evidence.event(2, "c2", "quorum_follower", {"at_risk": ["quorum-state"]}, leader_epoch=1),
    ],
    "metadata-left-behind": [
        *BORN,
        small_evidence.event(2, "c2", "quorum_recovered", {"voted": -1, "bytes_behind": 7}, leader_epoch=0, log_end=0),
    ],
    "metadata-snapshot-damaged": [
        *BORN,
        small_evidence.event(
            2, "c2", "quorum_recovered", {"voted": -1, "snapshots_damaged": ["a"]}, leader_epoch=0, log_end=0
        ),
    ],
    "trimmed-before-snapshot": [
        *COMMITTED,
        small_evidence.event(
            2, "c2", "quorum_recovered", {"voted": 101, "snapshots": []}, leader_epoch=1, offset=1, log_end=1
        ),
    ],
    "metadata-lost": [*COMMITTED, started(2, "c2", epoch=1, voted=101, end=0)],
    "uncommitted-metadata-applied": [*UNCOMMITTED, applied(3, "b1", 3, 1)],
    "uncommitted-metadata-loaded": [*UNCOMMITTED, taken_for_committed(3, "c1", "metadata_snapshot", 3)],
    "snapshot-of-another-epoch": [
        *COMMITTED,
        taken_for_committed(3, "c1", "metadata_snapshot", 1) | {"leader_epoch": 2},
    ],
    "producer-ids-allocated-twice": [*COMMITTED, allocated(2, 1, 0), allocated(3, 2, 999)],
    "producer-id-assigned-twice": [*COMMITTED, allocated(2, 1, 0), assigned(3, "b1", 4), assigned(3, "b1", 4)],
    "producer-id-unallocated": [*COMMITTED, allocated(2, 1, 0), assigned(3, "b2", 4)],
    "position-of-another-epoch": [*COPIED, counted(1.3, 1, 1, c2=1, c3=-1)],
    "position-of-another-log": [*COPIED, follows(1.2, "c2", 1), counted(1.3, 1, 1, c2=2, c3=-1)],
    "registered-in-session": [*COMMITTED, registered(2, "c1", 1, 1), again(1999)],
    "heartbeat-of-an-earlier-life": [*COMMITTED, registered(2, "c1", 1, 5), heartbeat("broker_unfenced", 1)],
    "broker-epoch-fell": [*COMMITTED, registered(2, "c1", 1, 5), registered(3, "c1", 2, 5)],
}


def test_a_vote_that_is_refused_by_a_misread_log_is_found() -> None:
    refused = voted_by_ends((1, 2), (1, 9)) | {"kind": "quorum_vote_refused"}
    assert kinds(*TWO_RECORDS, refused) == ["log-end-misjudged"]
    assert kinds(*TWO_RECORDS, refused | {"kind": "quorum_prevote_granted"}) == ["log-end-misjudged"]
    assert kinds(*TWO_RECORDS, voted_by_ends((1, 2), (1, 3)) | {"kind": "quorum_vote_refused"}) == []


@pytest.mark.parametrize("events", KEPT.values(), ids=KEPT)
def test_every_promise_holds_in_a_correct_trace(events: list[Event]) -> None:
    verdict_of_trace = verdict(*events)
    assert (verdict_of_trace.validity, verdict_of_trace.findings) == (Validity.VALID, ())


def test_findings_about_votes_name_controllers_by_their_nodes() -> None:
    own = voted(0.5, "c3", 1, 103)
    (twice,) = verdict(*BORN, own, *ELECTED[3:], voted(2, "c2", 1, 103)).findings
    assert [line.split(" in ")[0] for line in twice.lines] == ["c2 voted for c3", "it had voted for c1"]
    (forgotten,) = verdict(*BROKEN["vote-forgotten"]).findings
    assert forgotten.lines[0].endswith("in controller epoch 1, without a vote")


@pytest.mark.parametrize("kind", BROKEN)
def test_each_broken_promise_is_found(kind: str) -> None:
    assert verdict(*BROKEN[kind]).validity is Validity.INVALID
    assert kinds(*BROKEN[kind]) == [kind]


@pytest.mark.parametrize(
    "events",
    [
        [*TWO_RECORDS, appended(4, "c2", 3, 4, 2), voted_by_ends((1, 9), (2, 4))],
        [*TWO_RECORDS, voted_by_ends((1, 2), (0, 0))],
        [*COMMITTED, RESTORED, voted_by_ends((2, 8), (2, 9))],
        [*COMMITTED, RESTORED, voted_by_ends((1, 12), (2, 9))],
    ],
    ids=["an older epoch, though longer", "a voter that misreads its log", "behind a snapshot", "its epoch"],
)
def test_a_log_is_older_by_its_last_epoch_and_then_by_its_end(events: list[Event]) -> None:
    assert kinds(*events) == ["vote-for-older-log"]


@pytest.mark.parametrize("told", [True, False])
def test_a_majority_is_one_of_all_controllers_also_of_those_that_start_later(told: bool) -> None:
    votes = [*BORN[:2], voted(1, "c1", 1, 101), voted(1, "c2", 1, 101), leads(1.1, "c1", 1)]
    for count, found in ((3, []), (4, ["elected-without-majority"])):
        later = [started(9, node) for node in ("c3", "c4")[: count - 2]]
        trace = small_evidence.trace(*votes, *([] if told else later))
        settings = CheckSettings(controllers=count if told else 0)
        findings = check(RunEvidence(trace=trace, settings=settings)).findings
        assert [finding.kind for finding in findings] == found


@pytest.mark.parametrize("end", [1, 2])
def test_a_position_is_checked_before_anything_is_committed_by_it(end: int) -> None:
    follows_it = [*COPIED, follows(1.2, "c2", 1)]
    assert kinds(*follows_it, heard(1.3, 1, c2=end, c3=-1)) == ["position-of-another-log"] * (end > 1)


def test_a_voter_whose_records_are_of_another_epoch_is_not_counted() -> None:
    longer = [*COMMITTED, follows(1.4, "c2", 1), appended(2, "c1", 1, 3, 1, crc=8)]
    same, other = appended(3, "c2", 1, 2, 1, crc=8), appended(3, "c2", 1, 2, 0, crc=9)
    counts = counted(4, 1, 1, c2=2, c3=-1)
    assert "position-of-another-log" not in kinds(*longer, same, counts)
    assert "position-of-another-log" in kinds(*longer, other, counts)
    assert "position-of-another-log" not in kinds(*longer, other, follows(3.5, "c2", 2), counts)


def test_a_committed_metadata_record_never_changes() -> None:
    events = [
        *COMMITTED,
        *(cut(2, node, 0, 1) for node in ("c1", "c2")),
        *(appended(3, node, 0, 1, 2) for node in ("c2", "c3")),
        committed(4, "c2", 2, 0, 1),
    ]
    assert "committed-metadata-differs" in kinds(*events)


def test_a_record_of_an_older_epoch_is_not_committed_by_itself() -> None:
    events = [*UNCOMMITTED, appended(3, "c3", 0, 1, 1), appended(3, "c3", 1, 3, 1, crc=8), leads(4, "c3", 2)]
    assert kinds(*events, committed(5, "c3", 2, 1, 3)) == ["commit-of-earlier-epoch"]


@pytest.mark.parametrize(
    ("start", "end", "epoch", "found"),
    [(2, 2, 3, []), (2, 2, 1, ["metadata-lost"]), (1, 2, 3, ["metadata-lost"]), (0, 0, 3, ["metadata-lost"])],
    ids=["a snapshot that parts from it", "its own snapshot", "a snapshot and a record", "nothing"],
)
def test_a_log_gives_way_at_a_restart_to_a_snapshot_that_parts_from_it(
    start: int, end: int, epoch: int, found: list[str]
) -> None:
    """Its records from there on were never committed."""
    opened = started(3, "c3", epoch=3, end=end, epochs=[(epoch, start)]) | {"offset": start}
    tail = [*BORN, appended(1, "c3", 0, 1, 1), appended(1, "c3", 1, 4, 1)]
    assert kinds(*tail, opened) == found


def test_records_below_those_committed_must_be_the_same_as_well() -> None:
    """A batch of the same offset and epoch after a record of another epoch: the logs part below it."""
    events = [*BORN, appended(1, "c1", 0, 1, 1), appended(2, "c1", 1, 2, 3), appended(2, "c2", 0, 1, 2)]
    assert kinds(*events, appended(3, "c2", 1, 2, 3)) == ["metadata-logs-differ"]


def test_a_violation_on_a_disk_that_lies_about_fsync_is_unknown() -> None:
    lies = small_evidence.fault("fsync-lies", ["c2"], 0, 5, {"lies": 3})
    assert verdict(*BROKEN["metadata-lost"], faults=[lies]).validity is Validity.UNKNOWN
    assert verdict(*COMMITTED, faults=[lies]).validity is Validity.VALID


@pytest.mark.parametrize(("started_s", "validity"), [(11, Validity.UNKNOWN), (50, Validity.INVALID)])
def test_a_disk_that_lies_later_excuses_no_violation(started_s: float, validity: Validity) -> None:
    """It may have begun to lie a little earlier than on the last of its nodes."""
    votes = [event | {"time_ns": event["time_ns"] + 6 * small_evidence.S} for event in BROKEN["voted-twice"]]
    lies = small_evidence.fault("fsync-lies", ["c1", "c2", "c3"], started_s, 60, {"lies": 3})
    assert verdict(*votes, faults=[lies]).validity is validity


def test_the_verdict_is_unknown_without_comparable_clocks_or_any_controller() -> None:
    assert verdict(*COMMITTED, comparable_clocks=False).validity is Validity.UNKNOWN
    assert verdict().validity is Validity.UNKNOWN
