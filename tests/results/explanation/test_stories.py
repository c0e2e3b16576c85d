"""Stories of small runs written out by hand: which findings are one story, and which step is its cause."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from checkers.evidence import CheckSettings, RunEvidence
from checkers.protocol.checker import check
from checkers.verdict import Finding, Validity, Verdict
from images.trace import KINDS
from results.explanation.signature import Signature
from results.explanation.stories import explain
from results.explanation.story import LINES_MAX, StepKind, Story
from tests.checkers import small_evidence

Event = dict[str, Any]


def event(time_s: float, node: str, kind: str, detail: dict[str, Any] | None = None, **fields: Any) -> Event:
    return small_evidence.event(time_s, node, kind, detail, **fields)


def decided(time_s: float, leader: int, epoch: int, partition_epoch: int, isr: Sequence[int], reason: str) -> Event:
    detail = {"elr": [], "replicas": [1, 2, 3], "min_isr": 2, "reason": reason, "unclean": False}
    place = {"leader": leader, "leader_epoch": epoch, "partition_epoch": partition_epoch, "offset": partition_epoch}
    return event(time_s, "c1", "partition_changed", detail, members=list(isr), **place)


def appended(time_s: float, node: str, leader: int, epoch: int, offset: int, end: int) -> Event:
    return event(time_s, node, "appended", leader=leader, leader_epoch=epoch, offset=offset, log_end=end)


def moved(time_s: float, node: str, epoch: int, before: int, after: int, **positions: int) -> Event:
    """A leader moves its high watermark, having counted these positions: `b2=5`."""
    held = {name[1:]: end for name, end in positions.items()}
    members = [int(replica) for replica in held]
    place = {"leader": int(node[1:]), "leader_epoch": epoch, "offset": before, "high_watermark": after}
    return event(time_s, node, "high_watermark", {"positions": held}, members=members, **place)


def leads(time_s: float, node: str, epoch: int, partition_epoch: int, start: int, isr: Sequence[int]) -> Event:
    place = {"leader": int(node[1:]), "leader_epoch": epoch, "partition_epoch": partition_epoch}
    return event(time_s, node, "became_leader", offset=start, log_end=start, members=list(isr), **place)


def follows(time_s: float, node: str, leader: int, epoch: int, partition_epoch: int, end: int) -> Event:
    place = {"leader": leader, "leader_epoch": epoch, "partition_epoch": partition_epoch}
    return event(time_s, node, "became_follower", log_end=end, **place)


def proposed(
    time_s: float, node: str, epoch: int, members: Sequence[int], start: int, watermark: int, **joins: int
) -> Event:
    positions = {name[1:]: end for name, end in joins.items()}
    detail = {"reason": "expand", "positions": positions}
    place = {"leader": int(node[1:]), "leader_epoch": epoch, "partition_epoch": 1}
    return event(
        time_s, node, "isr_proposed", detail, offset=start, high_watermark=watermark, members=list(members), **place
    )


BORN = [
    decided(1, 1, 0, 0, (1, 2, 3), "created"),
    leads(1.1, "b1", 0, 0, 0, (1, 2, 3)),
    follows(1.1, "b2", 1, 0, 0, 0),
    follows(1.1, "b3", 1, 0, 0, 0),
    *(appended(2, node, 1, 0, 0, 5) for node in ("b1", "b2", "b3")),
    moved(3, "b1", 0, 0, 5, b1=5, b2=5, b3=5),
]
WITHOUT_THE_PROPOSED = [
    *BORN,
    decided(4, 1, 0, 1, (1, 2), "alter_partition"),
    event(4.1, "b1", "isr_committed", leader=1, leader_epoch=0, partition_epoch=1, members=[1, 2]),
    proposed(5, "b1", 0, (1, 2, 3), 0, 5, b3=5),
    appended(6, "b1", 1, 0, 5, 6),
    appended(6.1, "b2", 1, 0, 5, 6),
    moved(6.2, "b1", 0, 5, 6, b1=6, b2=6),
    decided(7, 1, 0, 2, (1, 2, 3), "alter_partition"),
    event(8, "b1", "isr_committed", leader=1, leader_epoch=0, partition_epoch=2, members=[1, 2, 3]),
]
BEHIND_DIVERGING = [
    *BORN,
    appended(4, "b1", 1, 0, 5, 7),
    decided(5, 2, 1, 1, (2, 3), "fenced"),
    leads(5.1, "b2", 1, 1, 5, (2, 3)),
    follows(5.1, "b3", 2, 1, 1, 5),
    appended(6, "b2", 2, 1, 5, 8),
    appended(6, "b3", 2, 1, 5, 8),
    moved(6.2, "b2", 1, 5, 8, b2=8, b3=8),
    follows(7, "b1", 2, 1, 1, 7),
    appended(7.1, "b1", 2, 1, 7, 8),
    decided(8, 2, 1, 2, (1, 2, 3), "alter_partition"),
    event(9, "b2", "isr_committed", leader=2, leader_epoch=1, partition_epoch=2, members=[1, 2, 3]),
]


def evidence_of(events: Sequence[Event]) -> RunEvidence:
    return RunEvidence(trace=small_evidence.trace(*events), settings=CheckSettings())


def stories(events: Sequence[Event], *more: Verdict) -> tuple[Story, ...]:
    """The stories of what the checker of the protocol finds, and of other verdicts."""
    evidence = evidence_of(events)
    return explain([check(evidence), *more], evidence)


def without_power(events: Sequence[Event]) -> RunEvidence:
    """Evidence in which b3 has lost data to a power loss."""
    measured = {"nodes": {"b3": {"killed": 1, "lost_bytes": 10}}}
    cut = small_evidence.fault("power-loss", ["b3"], 3, 3.1, measured)
    return replace(evidence_of(events), faults=small_evidence.faults(cut))


def seen_by(checker: str, kind: str, *offsets: int, time_s: float = 20, partition: int = 0) -> Verdict:
    lines = (f"{kind} at {offsets}",)
    finding = Finding(kind, lines, "t", partition, offsets=offsets, time_ns=round(time_s * 1e9))
    return Verdict(checker, Validity.INVALID, (finding,))


def test_a_high_watermark_that_leaves_out_a_proposed_member_is_the_cause() -> None:
    (story,) = stories(WITHOUT_THE_PROPOSED)
    assert story.signature == Signature("protocol", "candidate-incomplete", "high-watermark-without-proposed-member")
    assert story.step is not None
    assert (story.step.time_ns, story.step.node, story.offsets) == (6_200_000_000, "b1", (5,))
    assert story.step.before == ((5_000_000_000, "b1 proposed the ISR {b1, b2, b3}"),)


def test_a_leader_that_counts_the_proposed_member_is_not_suspected() -> None:
    waits = [event for event in WITHOUT_THE_PROPOSED if event["time_ns"] < 6_200_000_000]
    kept = [*waits, appended(6.15, "b3", 1, 0, 5, 6), moved(6.2, "b1", 0, 5, 6, b1=6, b2=6, b3=6)]
    assert stories(kept) == ()
    (story,) = stories(kept, seen_by("loss", "lost-append", 5))
    assert story.step is None


def test_a_high_watermark_above_a_counted_position_is_the_cause() -> None:
    written = [appended(4, "b1", 1, 0, 5, 6), appended(4.1, "b2", 1, 0, 5, 6)]
    (story,) = stories([*BORN, *written, moved(4.2, "b1", 0, 5, 6, b1=6, b2=6, b3=5)])
    assert story.signature.cause == "high-watermark-above-counted-position"
    assert story.cause.endswith("it had counted b3 at 5 only")


def test_a_decided_member_that_is_left_out_comes_before_a_quorum_that_is_too_small() -> None:
    (story,) = stories([*BORN, appended(4, "b1", 1, 0, 5, 6), moved(4.2, "b1", 0, 5, 6, b1=6)])
    assert story.signature.cause == "high-watermark-without-isr-member"


def test_another_leader_in_the_same_leader_epoch_is_the_cause() -> None:
    (story,) = stories([*BORN, decided(4, 2, 0, 1, (2, 3), "fenced"), leads(4.1, "b2", 0, 1, 5, (2, 3))])
    assert story.signature.cause == "leader-changed-in-leader-epoch"
    assert story.cause == "c1 made b2 leader in leader epoch 0, in which b1 had led"


def test_beliefs_are_those_of_the_moment_of_the_cause() -> None:
    (story,) = stories(WITHOUT_THE_PROPOSED)
    assert story.step is not None
    leader, follower, left_out = story.step.beliefs
    assert (leader.role, leader.isr, leader.proposed, leader.high_watermark) == ("leader", (1, 2), (1, 2, 3), 6)
    assert dict(leader.positions) == {1: 6, 2: 6}
    assert (follower.leader, follower.log_end, left_out.log_end) == (1, 6, 5)
    assert "partition epoch 1, ISR {b1, b2}" in story.step.decided


def test_findings_of_all_checks_about_the_same_records_are_one_story_cause_first() -> None:
    end_of_run = (seen_by("logs", "log-mismatch", 5), seen_by("reads", "duplicate", 5, 8, time_s=4))
    (story,) = stories(BEHIND_DIVERGING, *end_of_run)
    assert story.signature.cause == "appended-behind-diverging-records"
    assert story.signature.check == "protocol"
    checks = [item.check for item in story.consequences]
    assert checks.index("protocol") < checks.index("logs")
    assert checks[-1] == "reads", "its time is that of an operation before the cause"
    title, cause, *rest = story.lines()
    assert "b1 appended offset 7 of its leader b2 behind a record of epoch 0 at 5" in cause
    assert "appended-behind-diverging-records" in title
    assert any("b1 followed b2 in epoch 1, its log ending at 7" in line for line in rest)
    assert len(story.lines()) <= LINES_MAX


def test_a_follower_that_cuts_what_diverges_is_not_suspected() -> None:
    cut = event(7.05, "b1", "truncated", leader=2, leader_epoch=1, offset=5, log_end=7, high_watermark=5)
    events = [one for one in BEHIND_DIVERGING if one["node"] != "b1" or one["time_ns"] <= 7_000_000_000]
    whole = [*events[:-1], cut, appended(7.1, "b1", 2, 1, 5, 8), *events[-1:]]
    whole.sort(key=lambda one: one["time_ns"])
    assert stories(whole) == ()
    (story,) = stories(whole, seen_by("loss", "lost-append", 6))
    assert story.step is None


def test_findings_about_other_records_are_stories_of_their_own() -> None:
    both = stories(WITHOUT_THE_PROPOSED, seen_by("reads", "phantom-value", 2), seen_by("groups", "commit-lost", 2))
    assert [str(story.signature) for story in both] == [
        "protocol/candidate-incomplete/high-watermark-without-proposed-member",
        "reads/phantom-value/phantom-value",
    ]
    assert [item.check for item in both[1].consequences] == ["reads", "groups"]


def test_the_same_cause_in_another_partition_is_the_same_story() -> None:
    elsewhere = [one | {"partition": 1} if one["topic"] else one for one in WITHOUT_THE_PROPOSED]
    (story,) = stories([*WITHOUT_THE_PROPOSED, *elsewhere])
    assert (story.place, story.elsewhere) == ("t-0", ("t-1",))
    assert [(item.finding, item.count) for item in story.consequences] == [("candidate-incomplete", 2)]


def test_an_acknowledgement_above_the_high_watermark_is_the_cause() -> None:
    place = {"leader": 1, "leader_epoch": 0, "offset": 5, "log_end": 6, "high_watermark": 5}
    early = event(3.5, "b1", "acknowledged", {"acks": -1}, **place)
    (story,) = stories([*BORN, appended(3.4, "b1", 1, 0, 5, 6), early], seen_by("loss", "lost-append", 5))
    assert story.signature == Signature("protocol", "acknowledged-uncommitted", "acknowledged-above-high-watermark")
    assert [item.finding for item in story.consequences] == ["acknowledged-uncommitted", "lost-append"]


def test_an_acknowledgement_without_records_concerns_the_record_at_its_offset() -> None:
    """As of a retry whose end was computed one too low."""
    early = event(3.5, "b1", "acknowledged", {"acks": -1}, leader_epoch=0, offset=5, log_end=5, high_watermark=5)
    (story,) = stories([*BORN, appended(3.4, "b1", 1, 0, 5, 6), early], seen_by("loss", "lost-append", 5))
    assert story.cause == "b1 acknowledged offset 5 with acks=all while its high watermark was 5"
    late = early | {"high_watermark": 6}
    events = [*BORN, *(appended(3.4, node, 1, 0, 5, 6) for node in ("b1", "b2", "b3"))]
    passed = moved(3.45, "b1", 0, 5, 6, b1=6, b2=6, b3=6)
    (story,) = stories([*events, passed, late], seen_by("loss", "lost-append", 5))
    assert story.step is None


def test_a_fetch_comes_before_the_decision_that_it_led_to_in_the_same_instant() -> None:
    stale = {"replica": 3, "requested": 4, "last_epoch": 0}
    joined = proposed(5, "b1", 0, (1, 2, 3), 0, 5, b3=4)
    accepted = event(5, "b1", "fetch_accepted", stale, leader=1, leader_epoch=0, offset=5, log_end=5)
    (story,) = stories([*BORN, joined, accepted], seen_by("loss", "lost-append", 4, time_s=6))
    assert story.cause.startswith("b1 took a fetch of b3 from 5, sent in leader epoch 4, for its position")


def test_an_acknowledgement_of_a_deposed_leader_is_the_cause() -> None:
    deposed = [one for one in BEHIND_DIVERGING if one["time_ns"] <= 7_000_000_000]
    cut = event(7.05, "b1", "truncated", leader=2, leader_epoch=1, offset=5, log_end=7, high_watermark=5)
    place = {"leader": 2, "leader_epoch": 1, "offset": 6, "log_end": 7, "high_watermark": 8}
    late = event(7.2, "b1", "acknowledged", {"acks": -1}, **place)
    (story,) = stories([*deposed, cut, appended(7.1, "b1", 2, 1, 5, 8), late], seen_by("loss", "lost-append", 6))
    assert story.signature.cause == "acknowledged-without-leadership"
    assert story.cause == (
        "b1 acknowledged offset 6 while it followed b2 in epoch 1: its log holds a record of epoch 1 there"
    )
    assert story.lines()[2] == "before  7.050000 s  b1 cut its log 7 → 5"


@pytest.mark.parametrize(("isr", "found"), [((1, 2), True), ((1,), False)])
def test_a_replica_that_stays_eligible_beside_a_full_isr_is_the_cause(isr: tuple[int, ...], found: bool) -> None:
    detail = {"elr": [3], "replicas": [1, 2, 3], "min_isr": 2, "reason": "fenced", "unclean": False}
    place = {"leader": 1, "leader_epoch": 0, "partition_epoch": 1, "offset": 1, "members": list(isr)}
    (story,) = stories([*BORN, event(4, "c1", "partition_changed", detail, **place)], seen_by("loss", "lost-append", 5))
    assert (story.signature.cause == "elr-beside-full-isr") is found
    if found:
        assert story.cause == (
            "c1 kept b3 in the ELR beside the ISR {b1, b2}, which commits without it: min.insync.replicas is 2"
        )


@pytest.mark.parametrize(("taken_over", "found"), [(False, True), (True, False)])
def test_a_replica_that_enters_the_elr_from_outside_is_the_cause(taken_over: bool, found: bool) -> None:
    """A new controller may have taken over several changes at once."""
    out = decided(3.5, 1, 0, 1, [1, 2], "alter_partition")
    place = {"leader": 1, "leader_epoch": 0, "partition_epoch": 2, "offset": 2, "members": [1]}
    detail = {"elr": [2, 3], "replicas": [1, 2, 3], "min_isr": 2, "reason": "fenced", "unclean": False}
    joined = event(4, "c1", "partition_changed", detail | ({"taken_over": True} if taken_over else {}), **place)
    back = event(3.2, "b3", "log_recovered", offset=0, log_end=3, high_watermark=3)
    (story,) = explain([seen_by("loss", "lost-append", 4, time_s=5)], without_power([*BORN, back, out, joined]))
    assert (story.signature.cause == "elr-join-from-outside") is found
    if found:
        assert story.cause == (
            "c1 put b3 into the ELR, which was neither in the ISR {b1, b2} nor in the ELR {}; its log lacks the "
            "committed offsets 3 to 4"
        )


BATCH = {"producer_id": 4, "sequence": 7, "crc": 99}


@pytest.mark.parametrize(("leader", "copy"), [(1, "at 5 already, replicated from b1"), (2, "at 5 already, as leader")])
def test_a_batch_that_is_appended_again_comes_with_the_origin_of_its_first_copy(leader: int, copy: str) -> None:
    first = event(4, "b2", "appended", BATCH, leader=leader, leader_epoch=0, offset=5, log_end=6)
    again = event(6, "b2", "appended", BATCH, leader=2, leader_epoch=1, offset=6, log_end=7)
    events = [*BORN, appended(3.9, "b1", 1, 0, 5, 6), first, leads(5, "b2", 1, 1, 6, [1, 2, 3]), again]
    (story,) = stories(events, seen_by("linearizability", "duplicate", 5, 6, time_s=7))
    assert story.signature.cause == "batch-appended-again"
    assert story.cause == f"b2 appended a batch at 6 that it holds {copy}: producer id 4, sequence 7"


@pytest.mark.parametrize(("watermark", "later"), [(7, ", although its high watermark was 7 by then"), (5, "")])
def test_a_latest_offset_below_the_start_of_the_epoch_is_told_with_the_high_watermark(
    watermark: int, later: str
) -> None:
    events = [*BORN, *(appended(4, node, 1, 0, 5, 6) for node in ("b1", "b2")), leads(5, "b2", 1, 1, 6, [1, 2, 3])]
    if watermark > 5:
        events += [appended(5.1, "b2", 2, 1, 6, 7), moved(5.2, "b2", 1, 5, 7, b2=7)]
    told = event(6, "b2", "latest_told", leader=2, leader_epoch=1, offset=5, high_watermark=5)
    (story,) = stories([*events, told], seen_by("linearizability", "end-offset-too-low", 5, time_s=7))
    assert f"b2 reported 5 as the latest offset, below the start 6 of its leader epoch 1{later}: what" in story.cause


CONTROLLERS = [
    event(1, "c1", "quorum_leader", leader=101, leader_epoch=1),
    event(1.1, "c2", "quorum_follower", leader=101, leader_epoch=1, log_end=0),
    event(1.1, "c3", "quorum_follower", leader=101, leader_epoch=1, log_end=0),
    *(event(1.2, node, "metadata_appended", leader_epoch=1, offset=0, log_end=4) for node in ("c1", "c2", "c3")),
    event(2, "c1", "metadata_appended", leader_epoch=1, offset=4, log_end=6),
    event(3, "c3", "quorum_leader", leader=103, leader_epoch=2),
    event(3, "c3", "metadata_appended", leader_epoch=2, offset=4, log_end=6),
    event(4, "c1", "quorum_follower", leader=103, leader_epoch=2, log_end=6),
    event(4.2, "c3", "metadata_appended", leader_epoch=2, offset=6, log_end=7),
    event(4.3, "c1", "metadata_appended", leader_epoch=2, offset=6, log_end=7),
]


def test_a_controller_that_appends_behind_another_metadata_record_is_the_cause() -> None:
    finding = Finding("metadata-logs-differ", ("the logs differ",), time_ns=4_300_000_000)
    differ = Verdict("raft", Validity.INVALID, (finding,))
    (story,) = stories(CONTROLLERS, differ)
    assert story.signature == Signature("raft", "metadata-logs-differ", "appended-behind-diverging-records")
    assert story.cause == (
        "c1 appended offset 6 of its leader c3 behind a record of epoch 1 at 4, where c3 holds one of epoch 2, and had "
        "cut nothing since it followed"
    )
    cut = event(4.1, "c1", "metadata_truncated", leader_epoch=2, offset=4, log_end=6)
    again = event(4.2, "c1", "metadata_appended", leader_epoch=2, offset=4, log_end=6)
    (story,) = stories([*CONTROLLERS[:-2], cut, again, *CONTROLLERS[-2:]], differ)
    assert story.step is None


def test_a_process_that_ended_comes_before_what_was_missing_then() -> None:
    crashed = Finding(
        "process-crashed", ("b3 ended by itself at 4.000 s", "ValueError", "File files.py"), time_ns=4_000_000_000
    )
    missing = Finding("not-recovered", ("not whole",))
    verdicts = [Verdict("liveness", Validity.INVALID, (missing,)), Verdict("processes", Validity.INVALID, (crashed,))]
    (story,) = explain(verdicts, evidence_of(BORN))
    assert story.cause == "b3 ended by itself at 4.000 s; ValueError; File files.py"
    assert [item.check for item in story.consequences] == ["processes", "liveness"]
    assert story.lacking == ()


def test_a_log_that_a_fault_shortened_is_a_cause_only_without_another() -> None:
    back = event(4, "b3", "log_recovered", offset=0, log_end=3, high_watermark=3)
    moves = moved(5, "b1", 0, 5, 6, b1=6, b2=6, b3=6)
    lost = seen_by("loss", "lost-append", 4, time_s=6)
    (story,) = explain([lost], without_power([*BORN, back]))
    assert story.signature.cause == "log-came-back-shorter"
    counted = [*BORN, back, *(appended(4.5, node, 1, 0, 5, 6) for node in ("b1", "b2")), moves]
    (story,) = explain([seen_by("loss", "lost-append", 4, 5, time_s=6)], without_power(counted))
    assert story.signature.cause == "position-ahead-of-log-counted"
    assert any("the trace has no fetch requests" in line for line in story.lines())


def test_a_log_that_a_removed_replica_left_behind_is_no_cause() -> None:
    removed = event(3.5, "b3", "resigned")
    back = event(4, "b3", "log_recovered", offset=0, log_end=0, high_watermark=0)
    (story,) = explain([seen_by("loss", "lost-append", 4)], evidence_of([*BORN, removed, back]))
    assert story.step is None


def test_what_a_group_committed_is_not_lost_with_a_log_of_the_topic() -> None:
    back = event(4, "b3", "log_recovered", offset=0, log_end=3, high_watermark=3)
    (story,) = explain([seen_by("groups", "committed-offset-lost", 4)], without_power([*BORN, back]))
    assert story.signature.cause == "committed-offset-lost"


def test_without_a_step_the_story_says_that_the_cause_is_not_known() -> None:
    (story,) = stories(BORN, seen_by("reads", "duplicate", 3))
    assert story.signature == Signature("reads", "duplicate", "duplicate")
    assert story.lacking == (
        "the cause inside the protocol: no event of the trace breaks it for these records before clients saw it",
    )
    evidence = replace(evidence_of(()), settings=CheckSettings(has_trace=False))
    (story,) = explain([seen_by("reads", "duplicate", 3)], evidence)
    assert "no protocol trace" in story.lines()[-1]


def test_without_a_step_every_finding_of_a_story_is_its_own_cause() -> None:
    (story,) = stories(BORN, seen_by("reads", "duplicate", 3), seen_by("logs", "log-mismatch", 3))
    assert story.signatures == (
        Signature("logs", "log-mismatch", "log-mismatch"),
        Signature("reads", "duplicate", "duplicate"),
    )
    (caused,) = stories(WITHOUT_THE_PROPOSED, seen_by("reads", "duplicate", 5))
    assert {signature.cause for signature in caused.signatures} == {"high-watermark-without-proposed-member"}
    assert Signature("reads", "duplicate", "high-watermark-without-proposed-member") in caused.signatures


def test_a_finding_with_the_name_of_a_step_is_not_taken_for_one() -> None:
    (story,) = stories(BORN, seen_by("protocol", "high-watermark-fell", 3), seen_by("reads", "duplicate", 3))
    assert story.step is None
    assert story.signature == Signature("protocol", "high-watermark-fell", "high-watermark-fell")
    assert Signature("reads", "duplicate", "duplicate") in story.signatures
    assert [Signature.parse(text) for text in story.to_json()["signatures"]] == list(story.signatures)


@pytest.mark.parametrize("validity", [Validity.VALID, Validity.UNKNOWN])
def test_notes_and_reasons_for_not_deciding_are_no_stories(validity: Validity) -> None:
    verdict = Verdict("loss", validity, (Finding("missing-evidence", ("history: torn",)),))
    assert stories(BORN, verdict) == ()


def test_the_faults_of_the_moment_are_named_and_no_others() -> None:
    faults = small_evidence.faults(
        small_evidence.fault("pause", ["b3"], 5, 8, {}), small_evidence.fault("kill", ["b2"], 1, 2, {})
    )
    evidence = replace(evidence_of(WITHOUT_THE_PROPOSED), faults=faults)
    (story,) = explain([check(evidence)], evidence)
    assert len(story.faults) == 1
    assert "pause" in story.faults[0]


def killed(node: str, since_s: float, until_s: float, number: int, name: str = "kill") -> dict[str, Any]:
    measured = {"nodes": {node: {"down_ns": round(since_s * 1e9), "killed": number}}}
    return small_evidence.fault(name, [node], since_s, until_s, measured, bit=bool(number))


def test_a_node_that_is_down_believes_nothing_and_the_fault_that_keeps_it_down_is_named() -> None:
    faults = small_evidence.faults(killed("b3", 5.5, 5.7, 1), killed("b3", 5.6, 9, 0, "power-loss"))
    evidence = replace(evidence_of(WITHOUT_THE_PROPOSED), faults=faults)
    (story,) = explain([check(evidence)], evidence)
    assert [str(belief) for belief in story.beliefs if belief.node == "b3"] == ["b3 is down (since 5.500 s)"]
    assert story.faults == ("power-loss b3 since 5.600 s",)


def test_every_kind_of_step_is_described_once() -> None:
    page = (Path(__file__).parents[3] / "docs" / "explanations.md").read_text(encoding="utf-8")
    _, _, after = page.partition("| step | meaning |")
    assert sorted(re.findall(r"^\| `([a-z-]+)` \|", after, re.MULTILINE)) == sorted(StepKind)


def test_every_step_and_event_that_the_page_of_decisions_names_exists_and_every_step_is_on_it() -> None:
    page = (Path(__file__).parents[3] / "docs" / "explanations-decisions.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1:-1] for line in page.splitlines() if line.startswith("| ") and "| facts |" not in line]
    events = {name for row in rows for name in re.findall(r"`([a-z_]+)`", row[1])}
    steps = {name for row in rows for name in re.findall(r"`([a-z-]+)`", row[3]) if "-" in name}
    assert events <= KINDS
    assert steps == set(StepKind)


def test_without_a_step_the_story_says_what_each_node_believed() -> None:
    (story,) = stories(BORN, seen_by("linearizability", "duplicate", 5, time_s=7))
    assert story.step is None
    assert [line for line in story.lines() if line.startswith("belief  b1 leads in epoch 0")]


@pytest.mark.parametrize(("shown", "times"), [(1, ""), (2, " ×2"), (3, " ×3 or more")])
def test_a_story_does_not_say_that_the_findings_which_a_check_shows_are_all(shown: int, times: str) -> None:
    verdict = seen_by("loss", "lost-append", 5, time_s=7)
    (story,) = stories(BORN, replace(verdict, findings=verdict.findings * shown))
    assert [line for line in story.lines() if f"loss: lost-append{times}: " in line]


def test_a_position_that_nothing_moved_is_told_of_the_client_and_leaves_nothing_unknown() -> None:
    (story,) = stories(BORN, seen_by("positions", "position-skipped", 3, time_s=7))
    assert story.cause == "the client itself: position-skipped at (3,)"
    assert story.lacking == ()
    (other,) = stories(BORN, seen_by("reads", "duplicate", 3, time_s=7))
    assert other.cause == "duplicate at (3,)"
    assert other.lacking != ()
