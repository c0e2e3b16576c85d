"""The fast linearizability check and the general oracle say the same."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from checkers.linearizability import oracle
from checkers.linearizability.checker import check_partition
from checkers.linearizability.placement import place
from checkers.verdict import Validity, Verdict
from tests.checkers.small_histories import Row, columns, correct, mutated

BYTES = 8_000
EXAMPLES = 116
HISTORIES = 20_000


class Bytes:
    """Decisions read off bytes; 0 for ever once they have run out, so that fewer bytes mean a simpler history."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def __call__(self, choices: int) -> int:
        self.at += 1
        return self.data[self.at - 1] % choices if self.at <= len(self.data) else 0


def answers(rows: list[Row], recency: str) -> tuple[bool, Verdict]:
    """The answers of the oracle and of the fast check."""
    history = columns(rows)
    return oracle.linearizable(oracle.operations(history), recency), check_partition(history, recency=recency)


def contradict(expected: bool, verdict: Verdict) -> bool:
    return (
        verdict.validity is not (Validity.VALID if expected else Validity.INVALID) or bool(verdict.findings) is expected
    )


def smallest(rows: list[Row], recency: str) -> list[Row]:
    """Rows of which none can be left out without making the two agree."""
    for at in range(len(rows)):
        fewer = [*rows[:at], *rows[at + 1 :]]
        if contradict(*answers(fewer, recency)):
            return smallest(fewer, recency)
    return rows


def agrees(rows: list[Row], recency: str) -> bool:
    """Both checkers' common answer; fails with a smallest history on which they differ."""
    expected, verdict = answers(rows, recency)
    if contradict(expected, verdict):
        rows = smallest(rows, recency)
        pytest.fail(f"oracle, fast check: {answers(rows, recency)}, recency {recency}, of {rows}")
    return expected


def test_the_fast_check_agrees_with_the_oracle_on_twenty_thousand_histories() -> None:
    seen: Counter[bool] = Counter()
    distinct: set[int] = set()
    unknown = 0

    # Shrinking is done history by history in `agrees`: among thousands in one example it would take minutes.
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.binary(min_size=BYTES, max_size=BYTES))
    def compare(data: bytes) -> None:
        nonlocal unknown
        decide = Bytes(data)
        while decide.at < len(data):
            rows = correct(decide, 2 + decide(6))
            recency = "strict" if decide(4) == 0 else "default"
            for _ in range((0, 1, 2, 3, 4, 4)[decide(6)]):
                rows = mutated(rows, decide)
            seen[agrees(rows, recency)] += 1
            distinct.add(hash((tuple(rows), recency)))
            unknown += any(row.kind == 0 and row.outcome == 2 for row in rows)

    compare()
    total = seen.total()
    shares = (
        f"{total} histories, {len(distinct)} distinct: {seen[True]} valid, {seen[False]} invalid, {unknown} unknown"
    )
    print(shares)
    assert len(distinct) >= HISTORIES, shares
    assert 0.25 < seen[True] / total < 0.75, shares
    assert unknown > total / 4, shares


def test_the_order_of_rows_does_not_change_the_verdict() -> None:
    data = np.random.default_rng(5).bytes(4_000)
    decide = Bytes(data)
    while decide.at < len(data):
        rows = mutated(correct(decide, 4), decide)
        answers = {check_partition(columns(list(order))).validity for order in itertools.permutations(rows)}
        assert len(answers) == 1, rows


def test_a_history_table_and_its_columns_get_the_same_verdict() -> None:
    data = np.random.default_rng(6).bytes(6_000)
    decide = Bytes(data)
    while decide.at < len(data):
        history = columns(mutated(correct(decide, 6), decide))
        assert place(history).end == place(type(history).from_table(history.to_table())).end
        assert check_partition(history).validity is check_partition(history.to_table()).validity
