"""The checker of consumer groups: histories that are valid, and one of each violation."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from checkers.evidence import CheckSettings, RunEvidence
from checkers.fault_model import OFFSETS_TOPIC, Tolerances
from checkers.groups.checker import check
from checkers.verdict import Validity, Verdict
from checkers.violations import FaultModelExceeded, Tolerance
from tests.checkers import small_evidence
from workloads.history import SCHEMA

S = 1_000_000_000


class GroupHistory:
    """A history of one partition, told line by line; every operation takes one second unless said otherwise."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def add(
        self, at_s: float, process: int, kind: str, outcome: str = "ok", until_s: float | None = None, **values: Any
    ) -> None:
        completed = (
            None if outcome == "info" and until_s is None else (until_s if until_s is not None else at_s + 1) * S
        )
        row = dict.fromkeys(SCHEMA.names) | {
            "index": len(self.rows),
            "process": process,
            "kind": kind,
            "phase": "main",
            "topic": "t",
            "partition": 0,
            "invoked_ns": int(at_s * S),
            "completed_ns": completed and int(completed),
            "outcome": outcome,
        }
        self.rows.append(row | values)

    def append(self, at_s: float, *offsets: int) -> GroupHistory:
        for offset in offsets:
            self.add(at_s, 0, "append", value=100 + offset, offset=offset)
        return self

    def start(self, at_s: float, member: int, generation: int, offset: int, **values: Any) -> GroupHistory:
        self.add(at_s, member, "assign", value=generation, offset=offset, **values)
        return self

    def poll(self, at_s: float, member: int, first: int, end: int) -> GroupHistory:
        offsets = list(range(first, end))
        self.add(at_s, member, "poll", offset=first, offsets=offsets, values=[100 + offset for offset in offsets])
        return self

    def commit(
        self, at_s: float, member: int, generation: int, offset: int, outcome: str = "ok", **values: Any
    ) -> GroupHistory:
        self.add(at_s, member, "commit", outcome, value=generation, offset=offset, **values)
        return self

    def verdict(self, *faults: dict[str, Any], **settings: Any) -> Verdict:
        return check(
            RunEvidence(
                pa.Table.from_pylist(self.rows, SCHEMA),
                trace=small_evidence.trace(*settings.pop("events", ())),
                faults=small_evidence.faults(*faults),
                recovery={"final_reads": settings.pop("final_reads", True)},
                settings=CheckSettings(**{"groups": True} | settings),
            )
        )


def kinds(verdict: Verdict) -> list[str]:
    return [finding.kind for finding in verdict.findings]


def begun() -> GroupHistory:
    """Member 7 owns the partition in generation 1, was given records 0 to 4 and committed 5."""
    return GroupHistory().append(0, *range(8)).start(2, 7, 1, 0).poll(4, 7, 0, 5).commit(6, 7, 1, 5)


def test_a_group_that_hands_over_at_its_commit_is_valid() -> None:
    verdict = begun().start(8, 8, 2, 5).poll(10, 8, 5, 8).commit(12, 8, 2, 8).verdict()
    assert verdict.validity is Validity.VALID, verdict
    assert verdict.figures["commits_acknowledged"] == 2


def test_two_owners_in_one_generation_are_a_violation() -> None:
    assert kinds(begun().start(8, 8, 1, 5).poll(10, 8, 5, 8).verdict()) == ["owned-twice"]


def test_a_commit_beyond_the_records_read_is_a_violation() -> None:
    story = begun().commit(8, 7, 1, 6).poll(10, 7, 5, 8)
    assert kinds(story.verdict()) == ["commit-beyond-read"]


def test_a_late_commit_is_held_to_what_its_member_had_read_in_that_generation() -> None:
    """Member 7 starts at 3 in generation 2, and commits late the 5 that it had read in generation 1."""
    story = GroupHistory().append(0, *range(8)).start(2, 7, 1, 0).poll(4, 7, 0, 5).commit(6, 7, 1, 3).start(8, 7, 2, 3)
    refused = story.commit(10, 7, 1, 5, "fail").poll(12, 7, 3, 8)
    assert refused.verdict().validity is Validity.VALID
    assert kinds(refused.commit(14, 7, 1, 6, "fail").verdict()) == ["commit-beyond-read"]


def test_a_members_commit_of_the_generation_before_is_stale_once_it_has_started_in_the_next() -> None:
    overtaken = begun().commit(8, 7, 1, 5, until_s=14).start(9, 7, 2, 5).poll(11, 7, 5, 8)
    assert kinds(overtaken.verdict()) == []
    late = begun().start(9, 7, 2, 5).poll(11, 7, 5, 8).commit(12, 7, 1, 5)
    assert kinds(late.verdict()) == ["stale-commit"]


def test_a_fetch_from_beyond_the_members_position_skips_records() -> None:
    assert kinds(begun().poll(8, 7, 6, 8).append(10, 5).poll(12, 7, 5, 6).verdict()) == ["records-skipped"]


@pytest.mark.parametrize(
    ("asked_s", "partition", "found"),
    [
        (7, 0, []),
        (9.5, 0, ["commit-beyond-read"]),
        (12, 0, ["records-skipped", "commit-beyond-read"]),
        (7, 1, ["records-skipped", "commit-beyond-read", "not-delivered", "not-delivered"]),
    ],
)
def test_a_deletion_excuses_no_skip_before_it_was_asked_for(asked_s: float, partition: int, found: list[str]) -> None:
    """Member 7 has read the records below 5, commits 7 at 8 s, and goes on from 7 at 10 s."""
    request = small_evidence.fault("delete-records", ["b1"], asked_s, asked_s + 1, {"asked_below": 7})
    story = begun().commit(8, 7, 1, 7).poll(10, 7, 7, 8)
    assert kinds(story.verdict(request | {"detail": f'{{"partition": {partition}}}'})) == found


def test_a_member_may_go_back_to_a_divergence() -> None:
    assert begun().poll(8, 7, 3, 8).verdict().validity is Validity.VALID


def test_an_acknowledged_commit_of_an_older_generation_is_stale() -> None:
    story = begun().start(8, 8, 2, 5).poll(9, 8, 5, 8).commit(11, 7, 1, 5)
    assert kinds(story.verdict()) == ["stale-commit"]


def test_a_commit_in_flight_when_the_next_generation_began_is_not_stale() -> None:
    story = GroupHistory().append(0, 0, 1).start(1, 7, 1, 0).poll(2, 7, 0, 2)
    story.add(4, 7, "commit", until_s=9, value=1, offset=2)
    assert story.start(5, 8, 2, 2).verdict().validity is Validity.VALID


def test_commits_of_one_member_that_go_back_are_a_violation() -> None:
    story = begun().commit(8, 7, 1, 3).poll(10, 7, 5, 8)
    assert kinds(story.verdict()) == ["commit-went-back"]


def test_commits_of_one_member_may_go_back_with_a_log_that_an_unclean_election_cut() -> None:
    story = begun().commit(8, 7, 1, 3).poll(10, 7, 5, 8)
    led = [
        small_evidence.event(0, "c1", "partition_changed", {"reason": "created"}, leader=1, topic=topic, members=[1])
        for topic in ("t", OFFSETS_TOPIC)
    ]
    lost = small_evidence.event(7.5, "c1", "partition_changed", {"unclean": True}, leader=2, offset=9, members=[2])
    assert kinds(story.verdict(unclean_election=True, events=led)) == ["commit-went-back"]
    assert kinds(story.verdict(unclean_election=True, events=[*led, lost])) == []


def test_a_first_commit_below_the_start_of_its_member_is_a_violation() -> None:
    """The committed offset goes back from 5 to 3 by it."""
    verdict = begun().start(8, 8, 2, 5).commit(10, 8, 2, 3).start(12, 9, 3, 3).poll(14, 9, 3, 8).verdict()
    assert kinds(verdict) == ["commit-went-back"]


@pytest.mark.parametrize(("deleted_s", "found"), [(8, []), (None, ["commit-went-back"])])
def test_a_member_may_go_back_from_what_a_leader_has_deleted_to_another_ones_log(
    deleted_s: int | None, found: list[str]
) -> None:
    """It starts at 5, of which its leader says that it is deleted, and the next leader has not heard of that."""
    story = begun().start(8, 8, 2, 5)
    story.add(9, 8, "poll", "fail", offset=5, error="OFFSET_OUT_OF_RANGE")
    story.poll(10, 8, 0, 8).commit(12, 8, 2, 3)
    asked = (
        [] if deleted_s is None else [small_evidence.fault("delete-records", ["b1"], deleted_s, 9, {"asked_below": 7})]
    )
    assert kinds(story.verdict(*asked)) == found


def after_losing(offset: int, time_s: int, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault model of the next checks was exceeded at that time, from `offset` of partition 0 of `topic` on."""
    exceeded = Tolerances(Tolerance())
    exceeded[topic, 0] = Tolerance(exceeded=(FaultModelExceeded(offset, time_s * S, ("everything",)),))
    monkeypatch.setattr("checkers.groups.checker.tolerances", lambda evidence: exceeded)


@pytest.mark.parametrize(("lost_s", "validity"), [(11, Validity.UNKNOWN), (9, Validity.INVALID)])
@pytest.mark.parametrize("acknowledged", [True, False])
def test_a_loss_of_committed_offsets_excuses_nothing_that_was_committed_after_it(
    acknowledged: bool, lost_s: int, validity: Validity, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Offset 8 is committed at 10 s; member 9 starts at 5."""
    after_losing(0, lost_s, "__consumer_offsets", monkeypatch)
    story = begun().poll(8, 7, 5, 8).commit(10, 7, 1, 8, "ok" if acknowledged else "info")
    story = story if acknowledged else story.start(12, 8, 2, 8)
    assert story.start(14, 9, 3, 5).verdict().validity is validity


@pytest.mark.parametrize(("lost_s", "validity"), [(3, Validity.UNKNOWN), (1, Validity.INVALID)])
def test_a_loss_of_records_excuses_no_delivery_of_one_appended_after_it(
    lost_s: int, validity: Validity, monkeypatch: pytest.MonkeyPatch
) -> None:
    after_losing(0, lost_s, "t", monkeypatch)
    story = GroupHistory().append(2, 0).start(4, 7, 1, 0)
    assert story.verdict().validity is validity


@pytest.mark.parametrize("settings", [{}, {"unclean_election": True}])
def test_nothing_excuses_a_start_at_an_offset_that_nobody_committed(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    story = begun().poll(7, 7, 5, 8).start(9, 8, 2, 4)
    assert story.verdict(**settings).validity is Validity.INVALID
    after_losing(0, 8, "__consumer_offsets", monkeypatch)
    assert story.verdict(**settings).validity is Validity.INVALID


@pytest.mark.parametrize(
    ("topic", "lost", "validity"),
    [
        ("t", 3, Validity.UNKNOWN),
        ("t", 4, Validity.INVALID),
        ("__consumer_offsets", 4, Validity.UNKNOWN),
        ("another", 3, Validity.INVALID),
    ],
)
def test_a_member_goes_back_with_a_log_that_lost_more_than_is_promised(
    topic: str, lost: int, validity: Validity, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seed 7003074 of varied runs of 10 s with the workload groups: a broker without the end of its log was elected as
    the last known leader, which that strategy accepts, and a member that had committed 95 went on at 5."""
    after_losing(lost, 7, topic, monkeypatch)
    assert begun().commit(8, 7, 1, 3).poll(10, 7, 5, 8).verdict().validity is validity


def test_a_start_at_an_overwritten_commit_is_a_lost_offset() -> None:
    story = begun().poll(8, 7, 5, 8).commit(10, 7, 1, 8).start(12, 8, 2, 5)
    assert kinds(story.verdict()) == ["committed-offset-lost"]


def test_a_start_at_0_after_an_acknowledged_commit_is_a_lost_offset() -> None:
    assert kinds(begun().poll(7, 7, 5, 8).start(8, 8, 2, 0).verdict()) == ["committed-offset-lost"]


def test_a_start_at_an_offset_never_committed_is_a_violation() -> None:
    assert kinds(begun().poll(7, 7, 5, 8).start(9, 8, 2, 4).verdict()) == ["uncommitted-start"]


@pytest.mark.parametrize(
    ("told", "found"),
    [
        ({"leader_epoch": 3, "metadata": "a"}, []),
        ({"leader_epoch": 2, "metadata": "a"}, ["committed-otherwise"]),
        ({"leader_epoch": -1, "metadata": "a"}, ["committed-otherwise"]),
        ({"leader_epoch": 3, "metadata": ""}, ["committed-otherwise"]),
        ({}, []),  # a run of an earlier version
    ],
)
@pytest.mark.parametrize("lone", [False, True])
def test_a_start_is_told_the_epoch_and_the_text_of_a_commit(told: dict[str, Any], found: list[str], lone: bool) -> None:
    committed = {"leader_epoch": 3, "metadata": "a"}
    story = GroupHistory().append(0, *range(8)).start(1, 7, 1, 0, leader_epoch=-1, metadata="").poll(2, 7, 0, 5)
    if lone:
        story = story.commit(6, 6, -1, 5, **committed).start(8, 6, -1, 5, **told)
    else:
        story = story.commit(6, 7, 1, 5, **committed).start(8, 8, 2, 5, **told)
    assert kinds(story.poll(10, 8 - lone, 5, 8).verdict(confirmed_ends=False)) == found


def test_an_epoch_that_any_commit_of_the_offset_had_may_be_told() -> None:
    story = GroupHistory().append(0, *range(8)).start(1, 7, 1, 0).poll(2, 7, 0, 8)
    story = story.commit(4, 7, 1, 8, "info", leader_epoch=1).commit(6, 7, 1, 8, leader_epoch=2)
    assert kinds(story.start(8, 8, 2, 8, leader_epoch=1).verdict()) == []


def test_a_commit_of_unknown_outcome_may_arrive_after_a_later_one_of_its_generation() -> None:
    story = GroupHistory().append(0, *range(8)).start(2, 7, 1, 0).poll(4, 7, 0, 8)
    story = story.commit(6, 7, 1, 5, "info").commit(8, 7, 1, 8).start(10, 8, 2, 5)
    assert story.verdict().validity is Validity.VALID


def test_a_commit_of_unknown_outcome_cannot_arrive_after_one_of_a_later_generation() -> None:
    story = GroupHistory().append(0, *range(8)).start(1, 7, 1, 0).poll(2, 7, 0, 5).commit(4, 7, 1, 5, "info")
    story = story.start(6, 8, 2, 0).poll(8, 8, 0, 8).commit(10, 8, 2, 8).start(12, 9, 3, 5)
    assert kinds(story.verdict()) == ["committed-offset-lost"]


def late_commit() -> GroupHistory:
    """Member 7 of generation 1 has committed 5, nobody knows whether, and then 8."""
    story = GroupHistory().append(0, *range(8)).start(2, 7, 1, 0).poll(4, 7, 0, 8)
    return story.commit(6, 7, 1, 5, "info").commit(8, 7, 1, 8)


def test_a_late_commit_cannot_arrive_after_a_later_generation_started_elsewhere() -> None:
    """Generation 2 starts at 8, after the late commit or without it; nothing puts 5 into force again for generation
    3."""
    story = late_commit().start(10, 8, 2, 8)
    assert story.verdict().validity is Validity.VALID
    assert kinds(story.start(12, 9, 3, 5).verdict()) == ["committed-offset-lost"]


def test_a_start_at_another_offset_that_overlaps_overwrites_nothing() -> None:
    """Generation 3 may have fetched its start before generation 2 did, and 8 have been committed between them."""
    story = GroupHistory().append(0, *range(8)).start(2, 7, 1, 0).poll(4, 7, 0, 8).commit(6, 7, 1, 5, "info")
    story.add(10, 8, "assign", until_s=16, value=2, offset=8)
    story = story.start(10, 9, 3, 5).poll(11, 9, 5, 8).commit(13, 9, 3, 8)
    assert story.verdict().validity is Validity.VALID


def test_a_late_commit_may_be_repeated_by_a_later_generation() -> None:
    story = late_commit().start(10, 8, 2, 8).commit(12, 8, 2, 5, "info").start(14, 9, 3, 5)
    assert story.verdict().validity is Validity.VALID


def test_a_start_at_0_after_a_start_elsewhere_is_a_lost_offset() -> None:
    """The commit was never acknowledged, but the start shows that it was written."""
    story = GroupHistory().append(0, *range(8)).start(2, 7, 1, 0).poll(4, 7, 0, 8).commit(6, 7, 1, 5, "info")
    assert kinds(story.start(10, 8, 2, 5).start(12, 9, 3, 0).verdict()) == ["committed-offset-lost"]


def test_a_start_at_a_failed_commit_is_a_violation() -> None:
    story = (
        GroupHistory().append(0, 0, 1).start(1, 7, 1, 0).poll(2, 7, 0, 2).commit(4, 7, 1, 2, "fail").start(6, 8, 2, 2)
    )
    assert kinds(story.verdict()) == ["uncommitted-start"]


@pytest.mark.parametrize(
    ("settings", "validity"),
    [
        ({}, Validity.INVALID),
        ({"final_reads": False}, Validity.UNKNOWN),
        ({"acks": 1}, Validity.VALID),
        ({"unclean_election": True}, Validity.VALID),
    ],
)
def test_an_acknowledged_record_that_no_member_read_is_not_delivered(
    settings: dict[str, Any], validity: Validity
) -> None:
    assert begun().verdict(**settings).validity is validity


def test_a_group_without_assignments_is_unknown() -> None:
    assert GroupHistory().append(0, 1).verdict().validity is Validity.UNKNOWN


# --- static members ---------------------------------------------------------------------------------------------------

STATIC = {"instance": "i"}


def static() -> GroupHistory:
    """Member 7 of the instance i owns the partition in generation 1, was given records 0 to 4 and committed 5."""
    story = GroupHistory().append(0, *range(8)).start(2, 7, 1, 0, **STATIC).poll(4, 7, 0, 5)
    return story.commit(6, 7, 1, 5, **STATIC)


def returned() -> GroupHistory:
    """Member 8 takes the place of member 7 in generation 1."""
    return static().start(8, 8, 1, 5, **STATIC)


def test_a_static_member_that_returns_owns_the_partition_of_the_one_before_it() -> None:
    verdict = returned().poll(10, 8, 5, 8).commit(12, 8, 1, 8, **STATIC).verdict()
    assert verdict.validity is Validity.VALID, verdict


@pytest.mark.parametrize("other", [{}, {"instance": "j"}])
def test_an_instance_and_any_other_member_are_two_owners(other: dict[str, Any]) -> None:
    assert kinds(static().start(8, 8, 1, 5, **other).poll(10, 8, 5, 8).verdict()) == ["owned-twice"]


def test_a_commit_of_a_fenced_member_is_a_violation() -> None:
    verdict = returned().poll(10, 8, 5, 8).commit(12, 7, 1, 5, **STATIC).verdict()
    assert kinds(verdict) == ["fenced-commit"]
    assert verdict.findings[0].operations == (3 + 8, 4 + 8 + 1)


@pytest.mark.parametrize("outcome", ["fail", "info"])
def test_a_commit_of_a_fenced_member_may_be_asked_for(outcome: str) -> None:
    story = returned().poll(10, 8, 5, 8).commit(12, 7, 1, 5, outcome, **STATIC)
    assert story.verdict().validity is Validity.VALID


def test_a_commit_on_its_way_when_its_member_was_fenced_is_none_of_a_fenced_member() -> None:
    story = static()
    story.add(7, 7, "commit", until_s=12, value=1, offset=5, **STATIC)
    assert story.start(8, 8, 1, 5, **STATIC).poll(10, 8, 5, 8).verdict().validity is Validity.VALID


def test_a_commit_of_a_fenced_member_in_an_earlier_generation_is_stale() -> None:
    story = static().start(8, 8, 2, 5, **STATIC).poll(10, 8, 5, 8).commit(12, 7, 1, 5, **STATIC)
    assert kinds(story.verdict()) == ["stale-commit"]


@pytest.mark.parametrize(("instance", "found"), [("i", ["committed-offset-lost"]), ("j", [])])
def test_a_late_commit_cannot_arrive_after_the_next_member_of_its_instance_started_elsewhere(
    instance: str, found: list[str]
) -> None:
    """Nobody knows whether member 7 has committed 8; member 8 starts at 5 in the same generation, and then 9 at 8. A
    member of another instance owns the partition twice, and its start says nothing of that commit."""
    story = static().poll(7, 7, 5, 8).commit(8, 7, 1, 8, "info", **STATIC)
    story = story.start(10, 8, 1, 5, instance=instance).start(12, 9, 2, 8)
    assert [kind for kind in kinds(story.verdict()) if kind != "owned-twice"] == found


@pytest.mark.parametrize(("lost_s", "validity"), [(7, Validity.UNKNOWN), (1, Validity.INVALID)])
def test_a_loss_of_the_record_that_fences_excuses_a_commit_of_its_member(
    lost_s: int, validity: Validity, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the member had started at 2 s there was no such record."""
    after_losing(0, lost_s, "__consumer_offsets", monkeypatch)
    assert returned().poll(10, 8, 5, 8).commit(12, 7, 1, 5, **STATIC).verdict().validity is validity


# --- the client of a script -------------------------------------------------------------------------------------------

SCRIPT = 3
"""The process of a script's client, which commits in no generation, -1."""


def test_the_client_of_a_script_has_a_group_of_its_own() -> None:
    """Members start where members committed, it where it did; and it may be sent back and commit again."""
    story = begun().commit(7, SCRIPT, -1, 3).start(8, SCRIPT, -1, 3).start(8, 8, 2, 5).poll(10, 8, 5, 8)
    story = story.commit(12, SCRIPT, -1, 2).start(14, SCRIPT, -1, 2).start(16, 9, 3, 5)
    verdict = story.verdict()
    assert verdict.validity is Validity.VALID, verdict
    assert verdict.figures["starts"] == 3
    assert verdict.figures["lone_starts"] == 2


def test_a_record_that_only_a_script_read_is_not_delivered() -> None:
    assert kinds(begun().commit(7, SCRIPT, -1, 0).poll(8, SCRIPT, 5, 8).verdict()) == ["not-delivered"] * 3


@pytest.mark.parametrize(("told", "found"), [(0, ["committed-offset-lost"]), (4, ["uncommitted-start"]), (6, [])])
def test_a_script_resumes_at_its_latest_commit_with_any_workload(told: int, found: list[str]) -> None:
    story = GroupHistory().append(0, *range(8)).commit(2, SCRIPT, -1, 3).commit(4, SCRIPT, -1, 6)
    assert kinds(story.start(6, SCRIPT, -1, told).verdict(groups=False)) == found


def test_without_generations_only_real_time_orders_commits() -> None:
    story = GroupHistory().append(0, *range(8)).commit(2, SCRIPT, -1, 3, "info").commit(4, SCRIPT, -1, 6)
    story = story.start(6, SCRIPT, -1, 6).start(8, SCRIPT, -1, 3)
    assert story.verdict(groups=False).validity is Validity.VALID
    assert kinds(story.start(10, SCRIPT, -1, 0).verdict(groups=False)) == ["committed-offset-lost"]


@pytest.mark.parametrize(
    ("outcome", "told", "found"),
    [
        ("ok", 0, []),
        ("ok", 3, ["deleted-offset-returned"]),
        ("fail", 3, []),
        ("fail", 0, ["committed-offset-lost"]),
        ("info", 0, []),
        ("info", 3, []),
    ],
)
def test_a_client_that_deleted_its_group_starts_anew(outcome: str, told: int, found: list[str]) -> None:
    story = GroupHistory().append(0, *range(8)).commit(2, SCRIPT, -1, 3)
    story.add(4, SCRIPT, "forget", outcome, value=-1)
    assert kinds(story.start(8, SCRIPT, -1, told).verdict(groups=False)) == found


def test_an_offset_that_is_committed_after_a_deletion_stands() -> None:
    story = GroupHistory().append(0, *range(8)).commit(2, SCRIPT, -1, 3)
    story.add(4, SCRIPT, "forget", value=-1)
    story = story.commit(6, SCRIPT, -1, 2)
    assert story.start(8, SCRIPT, -1, 2).verdict(groups=False).validity is Validity.VALID
    assert kinds(story.start(10, SCRIPT, -1, 0).verdict(groups=False)) == ["committed-offset-lost"]


def test_clients_that_are_no_members_have_a_group_each() -> None:
    other = SCRIPT + 1
    story = begun().commit(7, SCRIPT, -1, 3).commit(7, other, -1, 2)
    story.add(9, SCRIPT, "forget", value=-1)
    story = story.start(11, SCRIPT, -1, 0).start(11, other, -1, 2).start(12, 8, 2, 5).poll(14, 8, 5, 8)
    verdict = story.verdict()
    assert verdict.validity is Validity.VALID, verdict
    figures = {name: verdict.figures[f"lone_{name}"] for name in ("starts", "commits_acknowledged", "deletions")}
    assert figures == {"starts": 2, "commits_acknowledged": 2, "deletions": 1}
    assert kinds(story.start(16, other, -1, 0).verdict()) == ["committed-offset-lost"]


@pytest.mark.parametrize(("told", "validity"), [(3, Validity.VALID), (4, Validity.INVALID)])
def test_a_script_may_resume_at_an_old_commit_where_no_coordinator_confirms_it(told: int, validity: Validity) -> None:
    story = GroupHistory().append(0, *range(8)).commit(2, SCRIPT, -1, 3).commit(4, SCRIPT, -1, 6)
    verdict = story.start(6, SCRIPT, -1, told).verdict(groups=False, confirmed_ends=False)
    assert verdict.validity is validity


def test_a_script_that_never_commits_breaks_no_promise() -> None:
    assert GroupHistory().append(0, 1).verdict(groups=False, script_commits=True).validity is Validity.VALID
