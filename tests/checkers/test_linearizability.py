"""The checker of linearizability: histories that are valid, and one of each violation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from checkers.evidence import CheckSettings, RunEvidence
from checkers.linearizability import oracle
from checkers.linearizability.checker import check, check_partition
from checkers.verdict import Validity, Verdict
from checkers.violations import FaultModelExceeded, Tolerance
from tests.checkers.small_histories import Row, append, columns, end_offset, poll
from workloads.columns import FAIL, INFO, Columns
from workloads.synthetic_history import history, with_violation

VALID, INVALID, UNKNOWN = Validity.VALID, Validity.INVALID, Validity.UNKNOWN


def verdict_on(*rows: Row, **settings: object) -> Verdict:
    """The fast check's verdict, which the oracle shares."""
    verdict = check_partition(columns(rows), **settings)  # type: ignore[arg-type]
    recency = str(settings.get("recency", "default"))
    if settings.keys() <= {"recency"}:
        expected = oracle.linearizable(oracle.operations(columns(rows)), recency)
        assert verdict.validity is (VALID if expected else INVALID)
    return verdict


def kinds(verdict: Verdict) -> set[str]:
    return {finding.kind for finding in verdict.findings}


# the worked examples of the module's docstring


def test_operations_that_touch_at_one_instant_are_concurrent() -> None:
    assert verdict_on(append(1, 0, 5, 1), append(2, 5, 9, 0)).validity is VALID
    assert verdict_on(append(1, 0, 5, 1), append(2, 6, 9, 0)).validity is INVALID


def test_two_reads_of_one_end_are_unordered_among_themselves() -> None:
    assert verdict_on(end_offset(5, 6, 0), end_offset(0, 1, 0)).validity is VALID


def test_an_unknown_append_has_no_deadline() -> None:
    rows = (append(1, 0, 3, outcome=INFO), append(2, 5, 6, 0), poll(0, 8, 9, 2, 1))
    assert verdict_on(*rows).validity is VALID


def test_a_poll_is_a_deadline_for_everything_below_what_it_returned() -> None:
    rows = (append(1, 7, 8, 0), append(2, 0, 9, 1), poll(1, 3, 4, 2))
    assert kinds(verdict_on(*rows)) == {"real-time-order"}


def test_a_poll_may_return_an_old_prefix() -> None:
    rows = (append(1, 0, 1, 0), append(2, 2, 3, 1), poll(0, 4, 5, 1, 2), poll(0, 6, 7, 1), poll(2, 8, 9))
    assert verdict_on(*rows).validity is VALID


def test_an_empty_poll_asserts_the_end_only_when_recency_is_strict() -> None:
    rows = (append(1, 0, 1, 0), poll(0, 4, 5))
    assert verdict_on(*rows).validity is VALID
    assert verdict_on(*rows, recency="strict").validity is INVALID
    assert verdict_on(append(1, 0, 4, 0), poll(0, 4, 5), recency="strict").validity is VALID


# each kind of violation


def test_an_append_invoked_after_a_poll_that_returned_it_is_wrong() -> None:
    assert kinds(verdict_on(poll(0, 0, 1, 7), append(7, 2, 3, 0))) == {"real-time-order"}


def test_where_end_offsets_are_not_confirmed_an_old_one_may_be_told_late_and_a_future_one_never() -> None:
    stale = (append(1, 0, 1, 0), end_offset(2, 3, 1), end_offset(4, 5, 0))
    early = (append(1, 5, 6, 0), end_offset(0, 1, 1))
    for rows, validity in ((stale, VALID), (early, INVALID)):
        assert check_partition(columns(rows), ends_confirmed=False).validity is validity
        assert check_partition(columns(rows)).validity is INVALID


def test_an_end_offset_that_goes_back_in_time_is_wrong() -> None:
    rows = (append(1, 0, 1, 0), end_offset(2, 3, 1), end_offset(4, 5, 0))
    verdict = verdict_on(*rows)
    assert kinds(verdict) == {"real-time-order"}
    assert [finding.operations for finding in verdict.findings] == [(0, 2), (1, 2)]


def test_an_append_below_an_end_told_before_it_was_invoked_is_wrong() -> None:
    rows = (append(1, 0, 9, outcome=INFO), end_offset(0, 1, 1), append(2, 3, 4, 0))
    assert INVALID is verdict_on(*rows).validity


def test_a_failed_append_must_not_be_seen() -> None:
    verdict = verdict_on(append(7, 0, 1, outcome=FAIL), poll(0, 2, 3, 7))
    assert "failed-append-seen" in kinds(verdict)
    assert verdict.findings[0].operations == (1, 0)


def test_a_value_nobody_appended_must_not_be_seen() -> None:
    assert "phantom-value" in kinds(verdict_on(poll(0, 2, 3, 7)))


def test_one_value_at_two_offsets_is_wrong() -> None:
    rows = (append(7, 0, 1, 0), append(8, 0, 1, outcome=INFO), poll(0, 2, 3, 7, 7))
    assert "duplicate" in kinds(verdict_on(*rows))
    seen_twice = (append(7, 0, 1, outcome=INFO), append(8, 0, 1, outcome=INFO), poll(0, 2, 3, 7), poll(1, 2, 3, 7))
    assert "duplicate" in kinds(verdict_on(*seen_twice))


def test_two_values_at_one_offset_are_wrong() -> None:
    assert "conflicting-offset" in kinds(verdict_on(append(7, 0, 1, 0), append(8, 0, 1, 0)))
    both_seen = (append(7, 0, 1, outcome=INFO), append(8, 0, 1, outcome=INFO), poll(0, 2, 3, 7), poll(0, 2, 3, 8))
    assert "conflicting-offset" in kinds(verdict_on(*both_seen))


def test_a_poll_that_skips_an_offset_is_wrong() -> None:
    skipping = replace(poll(0, 2, 3, 7, 8), records=((0, 7), (2, 8)))
    rows = (append(7, 0, 1, 0), append(9, 0, 1, 1), append(8, 0, 1, 2), skipping)
    assert "poll-gap" in kinds(verdict_on(*rows))


def test_an_offset_nobody_can_have_taken_is_wrong() -> None:
    verdict = verdict_on(append(7, 0, 1, 0), append(8, 0, 1, 2))
    assert kinds(verdict) == {"unexplained-offset"}
    assert verdict.findings[0].offsets == (1,)


def test_an_offset_between_others_may_be_taken_by_an_append_nobody_saw() -> None:
    assert verdict_on(append(7, 0, 1, 0), append(8, 2, 3, 2), append(9, 2, outcome=INFO)).validity is VALID
    too_late = verdict_on(append(7, 0, 1, 0), append(8, 2, 3, 2), append(9, 4, outcome=INFO))
    assert kinds(too_late) == {"real-time-order"}


def test_of_the_appends_nobody_saw_the_earliest_stand_at_the_lowest_offsets() -> None:
    hidden = (append(1, 0, outcome=INFO), append(2, 5, outcome=INFO))
    assert verdict_on(*hidden, append(3, 0, 3, 1), append(4, 6, 7, 3)).validity is VALID
    assert verdict_on(*hidden, append(3, 0, 3, 2), append(4, 6, 7, 3)).validity is INVALID


def test_an_absurd_end_offset_is_wrong_and_costs_no_memory() -> None:
    verdict = check_partition(columns([append(1, 0, 1, 0), end_offset(2, 3, 10**15)]))
    assert kinds(verdict) == {"unexplained-offset"}


def test_a_negative_offset_is_impossible() -> None:
    assert "impossible-offset" in kinds(verdict_on(append(1, 0, 1, 0), end_offset(2, 3, -4)))


def test_a_reused_value_makes_the_history_undecidable() -> None:
    assert check_partition(columns([append(1, 0, 1, 0), append(1, 2, 3, 1)])).validity is UNKNOWN
    shuffled = [append(value, 0, 9, value) for value in (0, 2, 1)]
    assert check_partition(columns(shuffled)).validity is VALID
    far_apart = [append(value, 0, 9, offset) for offset, value in enumerate((10**17, 5, -(10**17)))]
    assert check_partition(columns(far_apart)).validity is VALID
    assert check_partition(columns([*far_apart, append(5, 0, 9, 3)])).validity is UNKNOWN


# what a finding says


def test_a_finding_names_both_operations_their_times_and_offsets() -> None:
    rows = (append(1, 5_000_000, 6_000_000, 0), append(2, 1_000_000, 2_000_000, 1))
    finding = verdict_on(*rows).findings[0]
    assert finding.operations == (1, 0)
    assert finding.offsets == (1, 0)
    assert finding.lines == (
        "#1 append of value 2 (0.001000 s to 0.002000 s) → offset 1",
        "#0 append of value 1 (0.005000 s to 0.006000 s) → offset 0",
        "offset 0 comes before what #1 returned, but was invoked at 0.005000 s, 0.003000 s after #1 had completed",
    )


def test_at_most_a_handful_of_findings_is_explained_and_all_are_counted() -> None:
    rows = [append(value, 100 - 2 * value, 101 - 2 * value, value) for value in range(30)]
    verdict = verdict_on(*rows)
    assert len(verdict.findings) == 3
    assert verdict.figures["invalid"] == 29


# what is allowed


def test_acknowledgements_that_do_not_bind_cannot_contradict_the_log() -> None:
    rows = (append(1, 0, 1, 0), append(2, 2, 3, 0), poll(0, 4, 5, 2))
    assert verdict_on(*rows, offsets_binding=False).validity is VALID
    two_reads = (*rows, poll(0, 6, 7, 1))
    assert kinds(verdict_on(*two_reads, offsets_binding=False)) == {"conflicting-offset"}


def test_an_append_that_was_acknowledged_and_promises_nothing_is_counted_as_such() -> None:
    rows = [append(0, 0, 1, 0), append(1, 2, outcome=INFO)]
    figures = [verdict_on(*rows, offsets_binding=binding).figures for binding in (True, False)]
    assert [(one["appends_promised"], one["appends_not_promised"]) for one in figures] == [(1, 1), (0, 2)]


def test_a_loss_beyond_the_fault_model_excuses_only_violations_that_it_may_have_caused() -> None:
    lost = (append(1, 0, 1, 0), append(2, 2, 3, 1), append(3, 20, 21, 1))
    beyond = Tolerance(exceeded=(FaultModelExceeded(offset=1, time_ns=10, lines=("both lost offset 1",)),))
    verdict = verdict_on(*lost, tolerance=beyond)
    assert verdict.validity is UNKNOWN
    assert verdict.findings[0].lines[0] == "both lost offset 1"
    too_high = Tolerance(exceeded=(FaultModelExceeded(offset=2, time_ns=10, lines=()),))
    assert verdict_on(*lost, tolerance=too_high).validity is INVALID
    too_late = Tolerance(exceeded=(FaultModelExceeded(offset=1, time_ns=30, lines=()),))
    assert verdict_on(*lost, tolerance=too_late).validity is INVALID
    inexcusable = (*lost[:1], append(2, 2, 3, outcome=FAIL), poll(0, 20, 21, 1, 2))
    assert verdict_on(*inexcusable, tolerance=beyond).validity is INVALID


@pytest.mark.parametrize(("lost_at", "validity"), [(6, UNKNOWN), (4, INVALID)])
@pytest.mark.parametrize(
    "rows",
    [
        [append(2, 5, 7, 1), append(3, 5, 8, 1)],
        [append(2, 5, 7, 1), append(3, 12, outcome=INFO), poll(1, 22, 23, 3)],
        [append(2, 5, 7, 1), poll(1, 20, 21, 2, 2)],
    ],
    ids=["acknowledged twice", "another is read", "duplicate"],
)
def test_a_loss_excuses_nothing_about_records_appended_after_it(
    rows: list[Row], lost_at: int, validity: Validity
) -> None:
    beyond = Tolerance(exceeded=(FaultModelExceeded(offset=1, time_ns=lost_at, lines=("lost",)),))
    assert verdict_on(append(1, 0, 1, 0), *rows, tolerance=beyond).validity is validity


def test_unclean_topics_may_lose_but_not_invent() -> None:
    unclean = Tolerance(unclean=True)
    verdict = verdict_on(append(1, 0, 1, 0), append(2, 2, 3, 0), tolerance=unclean)
    assert (verdict.validity, verdict.figures["allowed"]) == (VALID, 2)
    assert verdict_on(append(1, 0, 1, outcome=FAIL), poll(0, 2, 3, 1), tolerance=unclean).validity is INVALID


# at scale


@pytest.mark.parametrize("seed", [1, 2])
def test_a_generated_history_is_valid_and_one_exchanged_pair_of_offsets_is_found(seed: int) -> None:
    generated = history(300_000, seed)
    assert check_partition(generated).validity is VALID
    assert check_partition(with_violation(generated, seed)).validity is INVALID


def test_the_generator_is_linearizable_in_the_small_by_the_oracle_too() -> None:
    for seed in range(300):
        generated = history(9, seed)
        assert oracle.linearizable(oracle.operations(generated))
        assert check_partition(generated).validity is VALID


def test_the_same_seed_makes_the_same_history() -> None:
    one, other = history(5_000, 3), history(5_000, 3)
    assert all(np.array_equal(getattr(one, name), getattr(other, name)) for name in Columns.__slots__)
    assert not np.array_equal(one.invoked_ns, history(5_000, 4).invoked_ns)


def test_each_partition_is_checked_by_itself() -> None:
    good, bad = columns([append(1, 0, 1, 0)]), columns([append(1, 5, 6, 0), append(2, 1, 2, 1)])
    both = pa.concat_tables([good.to_table("t", 0), bad.to_table("t", 1)])
    verdict = check(RunEvidence(history=both, settings=CheckSettings()))
    assert verdict.validity is INVALID
    assert {(finding.topic, finding.partition) for finding in verdict.findings} == {("t", 1)}
    assert check(RunEvidence()).validity is UNKNOWN


@pytest.mark.parametrize(("completed", "validity"), [(20, UNKNOWN), (12, INVALID)])
def test_an_append_invoked_before_a_loss_and_placed_after_it_may_come_from_the_loss(
    completed: int, validity: Validity
) -> None:
    """Offset 0 is lost at 13. An append that had been sent before takes its place, and completes after the loss; one
    that completed before it cannot have."""
    lost = Tolerance(exceeded=(FaultModelExceeded(0, 13, ()),))
    verdict = verdict_on(append(1, 8, 9, 0), append(2, 12, 13, 1), append(3, 11, completed, 0), tolerance=lost)
    assert verdict.validity is validity


def test_an_offset_at_which_a_duplicate_was_read_is_no_hole() -> None:
    """One finding, the misplaced record: its offset needs no unseen append."""
    rows = (append(1, 0, 1, 0), append(2, 2, 3, 1), poll(0, 4, 5, 1, 2, 1), append(3, 6, 7, 3))
    verdict = verdict_on(*rows)
    assert verdict.validity is INVALID
    assert "unexplained-offset" not in kinds(verdict)
    assert len(verdict.findings) == 1
