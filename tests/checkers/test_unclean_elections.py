"""Topics that permit unclean elections: what they excuse, and since when."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from checkers import loss, registry
from checkers.evidence import CheckSettings, EvidenceGap, EvidencePart, RunEvidence, permits_unclean_elections
from checkers.fault_model import OFFSETS_TOPIC, tolerances
from checkers.protocol import checker as protocol
from checkers.unclean_elections import first_unclean_elections
from checkers.verdict import Validity
from tests.checkers import small_evidence
from tests.checkers.protocol.test_protocol import COMMITTED, changed, leads
from tests.checkers.small_evidence import S
from tests.checkers.small_histories import append, poll
from workloads.columns import NEVER

T = ("t", 0)
BORN = changed(0, 1, 1, (1, 2, 3), reason="created") | {"offset": 1}
SHRUNK = changed(3, 1, 1, (1,), elr=(2,), reason="alter_partition") | {"offset": 2}
OUTSIDE = changed(5, 3, 2, (3,), reason="taken_over") | {"offset": 3}
TOLD = changed(5, 3, 2, (3,), unclean=True) | {"offset": 3}
FROM_THE_ELR = changed(5, 2, 2, (2,)) | {"offset": 3}
PERMITTED = CheckSettings(unclean_election=True)


def of_run(*events: dict[str, Any], settings: CheckSettings = PERMITTED, acknowledged_s: int = 6) -> RunEvidence:
    """A run in which the second of two records is lost."""
    history = small_evidence.history([append(7, 1, 2, 0), append(8, 1, acknowledged_s, 1)], [poll(0, 8, 9, 7)])
    recovery = {"recovered": True, "final_reads": True}
    return RunEvidence(history, trace=small_evidence.trace(*events), settings=settings, recovery=recovery)


@pytest.mark.parametrize(
    ("events", "first_ns"),
    [
        ([BORN], NEVER),
        ([BORN, SHRUNK, FROM_THE_ELR], NEVER),
        ([BORN, SHRUNK, TOLD], 5 * S),
        ([BORN, SHRUNK, OUTSIDE], 5 * S),
        ([OUTSIDE, BORN, SHRUNK], 5 * S),
        ([BORN, SHRUNK, leads(4, "b3", 2, 5), OUTSIDE], 4 * S),
    ],
    ids=["none", "clean", "told", "outside of ISR and ELR", "traced late", "led before it was traced"],
)
def test_the_first_unclean_election_is_told_or_outside_of_isr_and_elr(
    events: list[dict[str, Any]], first_ns: int
) -> None:
    assert first_unclean_elections(of_run(*events)) == {T: first_ns}


def test_a_setting_that_permits_unclean_elections_excuses_no_loss_without_one() -> None:
    assert loss.check(of_run(BORN, SHRUNK, FROM_THE_ELR)).validity is Validity.INVALID
    verdict = loss.check(of_run(BORN, SHRUNK, TOLD))
    assert (verdict.validity, verdict.figures["allowed"]) == (Validity.VALID, 1)


@pytest.mark.parametrize(
    ("strategy", "without", "enabled"),
    [
        ("manual", False, True),
        ("last-known-leader", False, True),
        ("balanced", False, False),
        ("proactive", True, True),
    ],
)
def test_a_setting_permits_unclean_elections_where_its_strategy_leaves_them_to_it(
    strategy: str, without: bool, enabled: bool
) -> None:
    for value, permitted in (("false", without), ("true", enabled)):
        config = {"unclean.leader.election.enable": value, "unclean.recovery.strategy": strategy}
        assert permits_unclean_elections(config, strategy) is permitted
        for before in (PERMITTED, CheckSettings()):
            assert before.as_configured(config).unclean_election is permitted


def test_a_run_permits_unclean_elections_if_its_topic_does_at_any_time() -> None:
    enabled = {"unclean.leader.election.enable": "true"}
    to_manual, to_enabled = ("unclean.recovery.strategy", "manual"), ("unclean.leader.election.enable", "true")
    assert permits_unclean_elections(enabled, "balanced", [to_manual])
    assert permits_unclean_elections({}, "manual", [to_enabled])
    assert not permits_unclean_elections({}, "balanced", [to_manual])
    assert not permits_unclean_elections({}, "balanced", [to_enabled])


def test_what_was_observed_before_the_first_unclean_election_is_not_excused() -> None:
    twice = small_evidence.history([append(7, 1, 2, 0), poll(0, 3, 4, 9), append(9, 1, 2, 1)])
    reads = registry.CHECKERS["reads"]
    for elected_s, validity in ((3, Validity.VALID), (5, Validity.INVALID)):
        run = of_run(BORN, SHRUNK | {"time_ns": 1}, TOLD | {"time_ns": elected_s * S})
        assert reads(replace(run, history=twice)).validity is validity


def test_decisions_without_times_of_their_own_tell_whether_one_took_place() -> None:
    decided = replace(PERMITTED, has_trace=False, has_decisions=True)
    assert first_unclean_elections(of_run(BORN, SHRUNK, OUTSIDE, settings=decided)) == {T: 0}
    assert first_unclean_elections(of_run(BORN, SHRUNK, FROM_THE_ELR, settings=decided)) == {T: NEVER}


def test_everything_is_excused_where_the_decisions_are_not_known() -> None:
    snapshot = changed(3, 1, 1, (1, 2), reason="snapshot")
    whole = of_run(BORN)
    killed, silent = replace(whole, recovery={}), replace(PERMITTED, has_trace=False)
    for run in (of_run(snapshot), of_run(BORN | {"topic": "other"}), killed, replace(whole, settings=silent)):
        tolerance = tolerances(run)[T]
        assert (tolerance.unclean, tolerance.unclean_since_ns) == (True, 0)
    assert not tolerances(whole)[T].unclean


def test_committed_offsets_are_excused_by_an_unclean_election_of_their_own_topic() -> None:
    of_offsets = {"topic": OFFSETS_TOPIC}
    other = [BORN, SHRUNK, TOLD]
    assert not tolerances(of_run(*other, BORN | of_offsets)).of_committed_offsets().unclean
    run = of_run(*other, *(event | of_offsets for event in (BORN, SHRUNK, TOLD)))
    tolerance = tolerances(run).of_committed_offsets()
    assert (tolerance.unclean, tolerance.unclean_since_ns) == (True, 5 * S)
    assert tolerances(of_run(*other)).of_committed_offsets().unclean, "nothing is known of that topic"


def test_without_its_trace_a_run_that_permits_unclean_elections_is_not_judged_by_what_it_lost() -> None:
    gap = EvidenceGap(EvidencePart.TRACE, "damaged")
    run = replace(of_run(), gaps=(gap,))
    (verdict,) = registry.check(run, {"loss": loss.check})
    assert (verdict.validity, verdict.findings[0].kind) == (Validity.UNKNOWN, "missing-evidence")


def test_a_fenced_broker_in_the_isr_is_a_violation_whatever_elections_are_permitted() -> None:
    fenced = small_evidence.event(4, "c1", "broker_fenced", broker=3, offset=2)
    events = [*COMMITTED, changed(3.5, 3, 2, (3,), unclean=True), fenced | {"offset": -1}]
    joined = changed(5, 1, 3, (1, 3), reason="alter_partition")
    verdict = protocol.check(of_run(*events, changed(4.5, 1, 3, (1,)), joined))
    assert "fenced-broker-joined-isr" in [finding.kind for finding in verdict.findings]
    assert verdict.validity is Validity.INVALID


# --- elections that an administrator asks for -------------------------------------------------------------------------

AWAY = [BORN, SHRUNK, changed(4, -1, 2, (), elr=(1, 2), reason="fenced") | {"offset": 3}]
ELECTED = changed(5, 3, 3, (3,), unclean=True, reason="unclean_election") | {"offset": 4}
FOUND_LATER = changed(9, 3, 3, (3,), unclean=True, reason="unclean_election", taken_over=True) | {"offset": 4}


def request(began_s: float, ended_s: float | None, outcome: str = "", *, in_doubt: bool = False) -> dict[str, Any]:
    return {
        "change": "elect-unclean",
        "topic": "t",
        "partition": 0,
        "began_ns": round(began_s * S),
        "ended_ns": None if ended_s is None else round(ended_s * S),
        "outcome": outcome,
        "in_doubt": in_doubt,
    }


DONE, LOST = request(4.5, 6), request(4.5, None, "UNANSWERED", in_doubt=True)
REFUSED = request(4.5, 6, "ELECTION_NOT_NEEDED")


def with_requests(run: RunEvidence, *requests: dict[str, Any]) -> RunEvidence:
    return replace(run, recovery={**run.recovery, "requests": list(requests)})


def asked_of(*events: dict[str, Any], requests: list[dict[str, Any]], **settings: Any) -> RunEvidence:
    """A run whose topic permits no unclean election by itself."""
    return with_requests(of_run(*events, settings=CheckSettings(topic="t", **settings)), *requests)


@pytest.mark.parametrize(
    ("events", "requests", "first"),
    [
        ([*AWAY, ELECTED], [DONE], {T: 5 * S}),
        ([*AWAY, ELECTED], [LOST], {T: 5 * S}),
        ([*AWAY, ELECTED], [REFUSED | {"in_doubt": True}], {T: 5 * S}),
        ([*AWAY, ELECTED], [request(5.5, 6)], {T: NEVER}),
        ([*AWAY, ELECTED], [request(4.1, 4.5)], {T: NEVER}),
        ([*AWAY, ELECTED], [REFUSED], {}),
        ([*AWAY, ELECTED], [], {}),
        ([*AWAY, ELECTED], [DONE | {"partition": 1}], {("t", 1): 4.5 * S}),
        ([*AWAY, ELECTED | {"time_ns": 9 * S}], [DONE], {T: NEVER}),
        ([*AWAY, FOUND_LATER], [DONE], {T: 9 * S}),
        ([BORN, SHRUNK, OUTSIDE], [LOST], {T: NEVER}),
        ([BORN, SHRUNK, TOLD], [LOST], {T: NEVER}),
        ([BORN], [LOST], {T: NEVER}),
        ([SHRUNK, ELECTED], [LOST], {T: 4.5 * S}),
    ],
    ids=[
        *("done", "answer lost", "in doubt", "asked later", "answered before", "refused", "nobody asked"),
        *("another partition", "made after the answer", "found committed", "for an unknown reason", "for another one"),
        *("not made", "decisions not known"),
    ],
)
def test_of_a_topic_that_permits_none_an_election_counts_that_was_asked_for(
    events: list[dict[str, Any]], requests: list[dict[str, Any]], first: dict[Any, Any]
) -> None:
    assert first_unclean_elections(asked_of(*events, requests=requests)) == first


def test_an_election_that_was_asked_for_excuses_a_loss_and_is_no_violation_where_nobody_led() -> None:
    def found(*events: dict[str, Any], requests: list[dict[str, Any]]) -> list[str]:
        evidence = asked_of(*events, requests=requests)
        lost = ["lost"] if loss.check(evidence).validity is Validity.INVALID else []
        kinds = {finding.kind for finding in protocol.check(evidence).findings}
        return [*lost, *sorted(kinds & {"unclean-election"})]

    assert found(*AWAY, ELECTED, requests=[DONE]) == []
    assert found(*AWAY, ELECTED, requests=[]) == ["lost", "unclean-election"]
    assert found(*AWAY, ELECTED, requests=[REFUSED]) == ["lost", "unclean-election"]
    assert found(BORN, SHRUNK, OUTSIDE, requests=[DONE]) == ["lost", "unclean-election"]
    assert found(BORN, SHRUNK, ELECTED, requests=[DONE]) == ["unclean-election"], "there was a leader"


def test_a_killed_run_is_excused_from_the_beginning_of_the_fault_that_asks() -> None:
    asks = small_evidence.fault("elect-unclean", ["b3"], 4, 8, {"elected": 1}) | {"detail": '{"partition": 0}'}
    killed = replace(asked_of(*AWAY, ELECTED, requests=[]), recovery={}, faults=small_evidence.faults(asks))
    assert first_unclean_elections(killed) == {T: 4 * S}
    assert not tolerances(killed)["t", 1].unclean


def test_decisions_without_reasons_or_times_tell_whether_one_that_was_asked_for_took_place() -> None:
    decided = {"has_trace": False, "has_decisions": True}
    outside = changed(5, 3, 3, (3,), reason="decided") | {"offset": 4}
    assert first_unclean_elections(asked_of(*AWAY, outside, requests=[DONE], **decided)) == {T: 4.5 * S}
    assert first_unclean_elections(asked_of(BORN, SHRUNK, FROM_THE_ELR, requests=[DONE], **decided)) == {T: NEVER}
    assert first_unclean_elections(asked_of(requests=[DONE], has_trace=False)) == {T: 4.5 * S}


def test_without_its_trace_a_run_in_which_one_was_asked_for_is_not_judged_by_what_it_lost() -> None:
    asks = small_evidence.faults(small_evidence.fault("elect-unclean", ["b3"], 4, 8, {"elected": 1}))
    run = asked_of(requests=[DONE])
    lacking = replace(run, faults=asks, gaps=(EvidenceGap(EvidencePart.TRACE, "damaged"),))
    (verdict,) = registry.check(lacking, {"loss": loss.check})
    assert (verdict.validity, verdict.findings[0].kind) == (Validity.UNKNOWN, "missing-evidence")
