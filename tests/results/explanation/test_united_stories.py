"""Stories that are one: which cause, which findings and which records the united story tells."""

from __future__ import annotations

from pathlib import Path

from checkers.verdict import Verdict
from results.explanation.stories import explain
from results.explanation.story import Story
from results.pages.report import Subject, body
from results.run.status import Status
from tests.checkers import small_evidence
from tests.checkers.protocol.test_protocol_requests import BROKEN
from tests.results.explanation.test_stories import WITHOUT_THE_PROPOSED, Event, evidence_of, seen_by, stories


def commit(time_s: float, committed: int, at: int) -> Event:
    """A coordinator answers a commit for t-0 before its record, at `at`, is below the high watermark."""
    detail = {"group": "g", "member": "m", "generation": 1, "current": 1, "offsets": {"t-0": committed}}
    place = {"topic": "__consumer_offsets", "offset": at, "log_end": at + 1, "high_watermark": 2}
    return small_evidence.event(time_s, "b2", "offsets_committed", detail, leader=2, leader_epoch=0, **place)


def of_commits(*verdicts: Verdict) -> tuple[Story, ...]:
    return explain(verdicts, evidence_of([commit(1, 6, 2), commit(2, 12, 3)]))


def test_the_commit_of_the_offset_that_is_found_is_the_cause_and_no_other() -> None:
    (story,) = of_commits(seen_by("groups", "committed-offset-lost", 12, time_s=3))
    assert story.cause.startswith("b2 answered the commit of 12 for t-0")
    (other,) = of_commits(seen_by("groups", "committed-offset-lost", 0, time_s=3))
    assert other.cause.startswith("b2 answered the commit of 6 for t-0"), "of an offset that nobody committed"


def test_a_united_story_begins_with_the_earliest_finding_and_has_the_records_of_all() -> None:
    later, earlier = (seen_by("groups", "committed-offset-lost", offset, time_s=at) for offset, at in ((12, 4), (6, 3)))
    (story,) = of_commits(later, earlier)
    assert (story.cause.split(",")[0], story.offsets) == ("b2 answered the commit of 6 for t-0", (6, 12))
    assert [(item.time_ns, item.count) for item in story.consequences] == [(3_000_000_000, 2)]
    assert story.title == "commit-answered-above-high-watermark · t-0 · offset 6, 12"


def test_stories_of_one_time_are_in_the_order_of_their_first_findings() -> None:
    events = [one | {"partition": number} for number in (0, 1) for one in WITHOUT_THE_PROPOSED if one["topic"]]
    both = (seen_by("reads", "duplicate", 5, time_s=9), seen_by("reads", "duplicate", 5, time_s=8, partition=1))
    (story,) = explain(both, evidence_of(events))
    assert (story.place, story.elsewhere) == ("t-1", ("t-0",))


def test_findings_of_united_stories_are_in_the_order_of_time() -> None:
    verdicts = (
        seen_by("groups", "committed-offset-lost", 6, time_s=9),
        seen_by("coordinator", "commit-uncommitted", 12, time_s=5),
        seen_by("coordinator", "read-early", 12, time_s=0.5),
    )
    (story,) = of_commits(*verdicts)
    assert [item.time_ns for item in story.consequences] == [5_000_000_000, 9_000_000_000, 500_000_000]


def test_the_report_gives_no_times_before_the_cause() -> None:
    evidence = evidence_of(WITHOUT_THE_PROPOSED)
    verdict = seen_by("reads", "duplicate", 5, time_s=6.1)
    other = seen_by("logs", "log-mismatch", 5, time_s=8)
    subject = Subject(Path("run"), Status("finished"), "", None, (), (verdict, other), evidence)
    text = str(body(subject))
    assert "8.000000 s</span>" in text
    assert "6.100000 s</span>" not in text


def test_the_records_of_a_missing_beginning_are_one_story_with_what_cut_it_off() -> None:
    lost = tuple(seen_by("loss", "lost-append", offset, time_s=6) for offset in (0, 2, 4))
    found = stories(BROKEN["log-beginning-missing"], *lost)
    (story,) = found
    assert story.signature.finding == "log-beginning-missing"
    assert story.offsets == (0, 1, 2, 3, 4)
