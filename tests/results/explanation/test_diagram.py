"""The report of a run with a story: its section, its space-time diagram, and the marks in every figure."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import plotly.graph_objects as go
import pytest

from checkers.protocol.checker import check
from checkers.verdict import Verdict
from results.explanation.replay import events_of
from results.explanation.stories import explain
from results.explanation.story import Story
from results.figures import operations, partitions, spacetime
from results.figures.findings import marked
from results.pages.report import Subject, body
from results.run.status import Status
from tests.checkers import small_evidence
from tests.results.explanation.test_stories import BEHIND_DIVERGING, WITHOUT_THE_PROPOSED, evidence_of, follows, killed

FAULTS = small_evidence.faults(small_evidence.fault("pause", ["b3"], 5.5, 6.5, {}))
EVIDENCE = replace(evidence_of(WITHOUT_THE_PROPOSED), faults=FAULTS)


@pytest.fixture
def verdict() -> Verdict:
    return check(EVIDENCE)


@pytest.fixture
def story(verdict: Verdict) -> Story:
    (story,) = explain([verdict], EVIDENCE)
    return story


def test_a_message_goes_from_the_node_that_had_it_to_the_one_that_took_it_up() -> None:
    events = list(events_of(evidence_of(WITHOUT_THE_PROPOSED).trace, "t", 0))
    sent = {(one.kind, one.sender, one.receiver): one for one in spacetime.messages(events)}
    proposal = sent["AlterPartition", "b1", "c1"]
    assert (proposal.sent_ns, proposal.received_ns) == (5_000_000_000, 7_000_000_000)
    assert sent["decision", "c1", "b1"].received_ns == 8_000_000_000
    assert sent["records", "b1", "b2"].received_ns == 6_100_000_000
    assert ("records", "b1", "b3") in sent, "its first records, not the one that it lacks"
    assert not any(sender == receiver for _, sender, receiver in sent)


def test_records_begin_no_earlier_than_what_their_follower_did_before() -> None:
    events = list(events_of(evidence_of(BEHIND_DIVERGING).trace, "t", 0))
    late = next(one for one in spacetime.messages(events) if one.receiver == "b3" and one.received_ns == 6_000_000_000)
    assert late.sent_ns == 6_000_000_000
    assert late.sender == "b2"


def test_the_diagram_is_one_that_plotly_takes_and_shows_the_cause(story: Story) -> None:
    figure = spacetime.draw(EVIDENCE, story)
    assert figure is not None
    go.Figure(figure)
    cause = next(trace for trace in figure["data"] if trace.get("name") == "cause, findings")
    assert (cause["x"][0], cause["y"][0]) == (6.2, "b1")
    first_s, last_s = figure["layout"]["xaxis"]["range"]
    assert first_s < 5 < 7 < last_s, "from the proposal to the first finding"
    assert [shape["type"] for shape in figure["layout"]["shapes"]] == ["rect", "line", "line"]
    assert {"records", "AlterPartition", "decision"} <= {trace.get("name") for trace in figure["data"]}


def test_the_lane_of_a_node_ends_where_it_goes_down(verdict: Verdict, story: Story) -> None:
    faults = small_evidence.faults(killed("b3", 5.5, 5.7, 1), killed("b3", 5.6, 9, 0, "power-loss"))
    evidence = replace(EVIDENCE, faults=faults)
    figure = spacetime.draw(evidence, story)
    assert figure is not None
    (lane,) = [trace for trace in figure["data"] if trace.get("y") == ["b3", "b3", None]]
    assert lane["x"][1] == 5.5
    ends = next(trace for trace in figure["data"] if trace.get("name") == "b3 log end")
    assert [(x, y) for x, y in zip(ends["x"], ends["y"], strict=True) if x >= 5.5][:2] == [(5.5, 5), (5.5, None)]
    assert len([shape for shape in figure["layout"]["shapes"] if shape["type"] == "rect"]) == 2
    subject = Subject(Path("run"), Status("finished"), "", None, (), (verdict,), evidence)
    assert "kept b3 down" in str(body(subject))


def test_a_broker_without_a_leader_follows_nobody() -> None:
    alone = [*WITHOUT_THE_PROPOSED, follows(6.1, "b3", -1, 3, 1, 5)]
    evidence = evidence_of(sorted(alone, key=lambda event: int(event["time_ns"])))
    (story,) = explain([check(evidence)], evidence)
    assert "b3 has no leader in epoch 3, HW ?, log end 5" in [str(belief) for belief in story.beliefs]
    figure = spacetime.draw(evidence, story)
    assert figure is not None
    words = {text for trace in figure["data"] for text in trace.get("text", ())}
    assert "b3 has no leader in leader epoch 3" in words
    assert [text for text in words if "b-1" in text] == []


def test_a_story_without_a_partition_has_no_diagram(story: Story) -> None:
    assert spacetime.draw(EVIDENCE, replace(story, topic="", partition=-1)) is None


def test_findings_are_marked_on_every_figure_of_their_partition(story: Story) -> None:
    ((name, figure),) = partitions.draw(EVIDENCE)
    for drawn in (marked(figure, [story], name), marked(operations.draw(EVIDENCE), [story])):
        go.Figure(drawn)
        times = [note["x"] for note in drawn["layout"]["annotations"]]
        assert times == [6.2, 7.0]
    assert "annotations" not in figure["layout"], "the figure itself stays as it was"
    assert marked(figure, [story], "t-1")["layout"]["annotations"] == []


def test_a_report_tells_the_story_before_the_checks(verdict: Verdict, tmp_path: Path) -> None:
    subject = Subject(tmp_path, Status("finished"), "", None, (), (verdict,), EVIDENCE)
    text = str(body(subject))
    assert text.index("high-watermark-without-proposed-member") < text.index("<h2>Checks</h2>")
    assert "without b3, which it had proposed" in text
    assert text.count("A red line is a cause, a dotted one what a check saw later.") == 1, "there are no operations"
    valid = str(body(replace(subject, verdicts=())))
    assert "stories" not in valid
    assert "A red line" not in valid
