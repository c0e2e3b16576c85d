"""What the members of a group may read and commit, and in which order."""

from __future__ import annotations

from typing import Any

import pytest

from checkers.fault_model import OFFSETS_TOPIC
from checkers.verdict import Validity
from tests.checkers import small_evidence
from tests.checkers.groups.group_history import GroupHistory, after_losing, begun, kinds


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


@pytest.mark.parametrize(("has_read", "found"), [(False, []), (True, ["commit-went-back"])])
def test_a_member_that_is_sent_elsewhere_may_commit_where_it_was_until_it_reads_again(
    has_read: bool, found: list[str]
) -> None:
    asked = small_evidence.fault("delete-records", ["b1"], 7, 9, {"asked_below": 8})
    story = begun()
    story.add(8, 7, "poll", "fail", offset=5, error="OFFSET_OUT_OF_RANGE")
    if has_read:
        story.poll(9, 7, 5, 8)
    story.commit(10, 7, 1, 5).poll(11, 7, 0, 8).commit(12, 7, 1, 3)
    assert kinds(story.verdict(asked)) == found


def test_a_member_that_was_sent_elsewhere_before_it_started_knows_where_to_go_on() -> None:
    asked = small_evidence.fault("delete-records", ["b1"], 7, 9, {"asked_below": 8})
    story = begun()
    story.add(8, 7, "poll", "fail", offset=5, error="OFFSET_OUT_OF_RANGE")
    story.start(10, 7, 2, 5).commit(12, 7, 2, 3).poll(14, 7, 3, 8)
    assert kinds(story.verdict(asked)) == ["commit-went-back"]


@pytest.mark.parametrize(("lost_s", "validity"), [(3, Validity.UNKNOWN), (1, Validity.INVALID)])
def test_a_loss_of_records_excuses_no_delivery_of_one_appended_after_it(
    lost_s: int, validity: Validity, monkeypatch: pytest.MonkeyPatch
) -> None:
    after_losing(0, lost_s, "t", monkeypatch)
    story = GroupHistory().append(2, 0).start(4, 7, 1, 0)
    assert story.verdict().validity is validity


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


def test_no_member_has_to_read_the_records_that_are_appended_when_the_group_has_read_to_the_end() -> None:
    story = begun().poll(8, 7, 5, 8)
    story.add(10, 0, "append", value=108, offset=8, phase="final")
    assert story.verdict().validity is Validity.VALID


def test_a_group_without_assignments_is_unknown() -> None:
    assert GroupHistory().append(0, 1).verdict().validity is Validity.UNKNOWN


def test_a_record_acknowledged_without_an_offset_may_be_any_that_was_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    story = GroupHistory().append(0, *range(5)).start(2, 7, 1, 0).poll(4, 7, 0, 5)
    story.add(6, 0, "append", value=150)
    verdict = story.verdict()
    assert kinds(verdict) == ["not-delivered"]
    assert verdict.findings[0].offsets == ()
    after_losing(5, 9, "t", monkeypatch)
    assert kinds(story.verdict()) == ["fault-model-exceeded"]


@pytest.mark.parametrize(("deleted_below", "found"), [(5, ["not-delivered"]), (6, [])])
def test_a_record_acknowledged_without_an_offset_is_deleted_where_it_may_stand(
    deleted_below: int, found: list[str]
) -> None:
    """It was appended when the records below 5 had been read."""
    story = GroupHistory().append(0, *range(5)).start(2, 7, 1, 0).poll(4, 7, 0, 5)
    story.add(6, 0, "append", value=150)
    request = small_evidence.fault("delete-records", ["b1"], 8, 9, {"asked_below": deleted_below})
    assert kinds(story.verdict(request, has_trace=False)) == found
