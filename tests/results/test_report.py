"""The report of a run: complete, self-contained, and honest about what is missing."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import plotly.graph_objects
import pytest

from checkers.evidence import CheckSettings, RunEvidence
from checkers.verdict import Finding, Validity, Verdict
from images.trace import TraceEvent
from results.figures import operations, partitions
from results.figures.canvas import POINTS_MAX, extremes, to_json
from results.pages.report import PARTITIONS_MAX, write_report
from results.run.directory import RunDirectory
from tests.checkers import small_evidence
from workloads.history import Recorder

Verdicts = Callable[[bool], Sequence[Verdict]]
HOSTILE = "</script><img src=x onerror=alert(1)>"


class Page(HTMLParser):
    """The page as a browser sees it: elements with their attributes, and the text outside scripts and styles."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self._inside = ""
        self.feed(path.read_text(encoding="utf-8"))
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._inside = tag

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside not in ("script", "style"):
            self.words.append(data)


@pytest.fixture
def reported(made_run: RunDirectory, made_verdicts: Verdicts) -> RunDirectory:
    made_run.write_verdict(made_verdicts(False))
    write_report(made_run, made_run.seal())
    return made_run


def test_a_report_says_the_verdict_the_findings_and_how_to_bring_the_run_back(reported: RunDirectory) -> None:
    page = Page(reported.report_path)
    assert "invalid append, seed 7" in page.text
    assert "1 of 4 checks found a promise broken: acknowledged-loss. Undecided: liveness." in page.text
    assert "append of 412 to append-0 by process 1 was acknowledged at offset 206" in page.text
    assert f"faultline replay {reported.path}" in page.text
    assert "min.insync.replicas: 2" in page.text
    assert re.search(r"time limit \d+ s ", page.text), "a limit stands with its unit"
    assert reported.digest() in page.text


def test_a_seed_stands_as_it_is_to_be_given_again(tmp_path: Path) -> None:
    page = Page(write_report(RunDirectory.create(tmp_path, "append", 2404589740)))
    assert "seed 2404589740 " in page.text.partition("This run has not been checked.")[2]


def test_a_report_says_that_figures_of_availability_are_of_the_main_phase(reported: RunDirectory) -> None:
    text = Page(reported.report_path).text.split("Recovery and availability", 1)[1]
    assert "Of the main phase: final appends do not count." in text


def test_failed_checks_come_before_undecided_ones_before_those_that_passed(reported: RunDirectory) -> None:
    text = Page(reported.report_path).text.split("Checks", 1)[1]
    places = [text.index(name) for name in ("acknowledged-loss", "liveness", "linearizability", "availability")]
    assert places == sorted(places)


def test_many_findings_are_all_there_the_first_ones_open(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, "append", 7)
    findings = tuple(Finding("lost-append", (f"value {number} is lost",)) for number in range(9))
    run.write_verdict([Verdict("loss", Validity.INVALID, findings), Verdict("faults", Validity.VALID, findings[:1])])
    text = Page(write_report(run)).text
    assert "value 4 is lost 4 more findings lost-append value 5 is lost" in text
    assert "valid faults 1 note lost-append value 0 is lost" in text


def test_every_fault_stands_with_its_evidence_and_whether_it_bit(reported: RunDirectory) -> None:
    text = Page(reported.report_path).text
    assert "Isolate b1 5.00 – 12.50 yes held 214 refused 9 b1 led append-0 when it began" in text
    assert "ClockJump b2 28.00 – 36.00 no the clock was already back" in text
    assert "Slow b1, b2, b3 47.00 – 60.00 no" in text


def test_a_report_asks_the_network_for_nothing_and_holds_plotly_once(reported: RunDirectory) -> None:
    page = Page(reported.report_path)
    for tag, attributes in page.elements:
        for name in ("src", "href", "srcset", "action", "data"):
            assert (attributes.get(name) or "data:").startswith("data:"), (tag, attributes)
    source = reported.report_path.read_text(encoding="utf-8")
    assert source.count("* plotly.js v") == 1
    assert "default-src 'none'" in source
    assert not re.search(r"@import|url\(", source.split("</style>")[0])


def test_nothing_that_a_run_says_becomes_markup(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, "append", 7)
    run.write_spec(f"name: '{HOSTILE}'\nnote: \"{HOSTILE}\"\n")
    run.write_status("failed", message=HOSTILE, noted=HOSTILE)
    for kind in ("partition_changed", "appended"):
        run.append_trace(5, HOSTILE, TraceEvent(kind, HOSTILE, 0, leader=1, members=(1,), log_end=1))
    run.append_fault(
        0, fault=HOSTILE, family=HOSTILE, nodes=[HOSTILE], started_ns=1, evidence={HOSTILE: HOSTILE}, note=HOSTILE
    )
    run.write_recovery({HOSTILE: HOSTILE, "waiting_for": [HOSTILE]})
    finding = Finding(HOSTILE, (HOSTILE,), HOSTILE, 0)
    run.write_verdict([Verdict(HOSTILE, Validity.INVALID, (finding,), {HOSTILE: 1})])
    page = Page(write_report(run))
    assert "img" not in {tag for tag, _ in page.elements}
    assert HOSTILE in page.text


def test_a_run_that_was_cut_short_is_reported_with_its_gaps(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, "append", 7)
    text = Page(write_report(run)).text
    assert "not checked append, seed 7 This run has not been checked." in text
    assert "the run did not end: it was killed, or is still in progress" in text
    assert "no replica logs were collected" in text
    assert "faultline replay" not in text


def test_every_figure_is_one_that_plotly_takes(made_run: RunDirectory) -> None:
    evidence = made_run.load()
    drawn = [operations.draw(evidence), *(figure for _, figure in partitions.draw(evidence))]
    assert len(drawn) == 3
    for figure in drawn:
        plotly.graph_objects.Figure(json.loads(to_json(figure)))


def test_no_point_of_a_runs_figures_is_an_address_to_open(made_run: RunDirectory) -> None:
    """The page's script follows the `customdata` of a point that is clicked."""
    evidence = made_run.load()
    drawn = [operations.draw(evidence), *(figure for _, figure in partitions.draw(evidence))]
    assert not [trace for figure in drawn for trace in figure["data"] if "customdata" in trace]
    assert any("held" in text or "b1" in text for trace in drawn[0]["data"] for text in trace.get("hovertext", ()))


def test_a_run_without_appends_or_with_many_partitions_is_drawn(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, "append", 7)
    recorder = Recorder(run.history_path, lambda: 0)
    recorder.complete(recorder.invoke(0, "end_offset", "t", 0), "fail", error="timeout")
    recorder.close()
    for partition in range(PARTITIONS_MAX + 2):
        run.append_trace(0, "c1", TraceEvent("partition_changed", "t", partition, leader=-1))
    text = Page(write_report(run)).text
    assert "end_offset 0 1 0" in text
    assert f"Not drawn: t-{PARTITIONS_MAX}, t-{PARTITIONS_MAX + 1}." in text


def test_rates_count_every_append_once(made_run: RunDirectory) -> None:
    figure = operations.draw(made_run.load())
    rates = [trace for trace in figure["data"] if trace.get("yaxis") == "y2"]
    appends = sum(sum(trace["y"]) * trace["width"] for trace in rates)
    assert appends == pytest.approx(1200)


def test_a_partition_shows_who_led_when(made_run: RunDirectory) -> None:
    (_, figure), _ = partitions.draw(made_run.load())
    leads = {trace["y"][0]: trace["x"] for trace in figure["data"] if "leads" in "".join(trace.get("text", []))}
    assert leads["b1"] == [0.4, 7.1, None]
    assert leads["b2"] == [7.1, 13.4, None, 13.4, 18.2, None]
    assert leads["b3"][:2] == [18.2, 23.9]


def test_the_minimum_of_in_sync_replicas_is_the_one_in_force() -> None:
    def changed(time_s: float, minimum: int) -> dict[str, object]:
        return small_evidence.event(time_s, "c1", "partition_changed", {"min_isr": minimum}, members=[1], leader=1)

    evidence = RunEvidence(
        trace=small_evidence.trace(changed(1, 2), changed(2, 2), changed(5, 1)),
        settings=CheckSettings(min_insync_replicas=2),
    )
    ((_, figure),) = partitions.draw(evidence)
    (least,) = [trace for trace in figure["data"] if "min.insync.replicas" in trace["hovertemplate"]]
    assert (least["x"], least["y"]) == ([0.0, 5.0, 5.0], [2, 1, 1])
    assert figure["layout"]["yaxis2"]["tickvals"] == [0, 1, 2]


def test_thinning_keeps_the_ends_and_the_extremes() -> None:
    values = np.zeros(100_000)
    values[[31_337, 77_777]] = (9.0, -9.0)
    kept = extremes(values)
    assert len(kept) <= POINTS_MAX
    assert {0, 31_337, 77_777, 99_999} <= set(kept.tolist())
    assert list(kept) == sorted(kept)
