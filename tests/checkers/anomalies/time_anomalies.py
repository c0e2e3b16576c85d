"""Anomalies of queries by time: answers that come too early, too late, or say that there is nothing."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Final

from checkers.deletions import deletable_below
from checkers.evidence import RunEvidence
from tests.checkers.anomalies.anomaly import Anomaly, Injection
from tests.checkers.anomalies.places import Row, history_of, rows_of, shuffled

_CLEARLY_NS: Final = 50_000_000
_NS_PER_MS: Final = 1_000_000


def _answers(rows: list[Row], random: Random) -> list[Row]:
    """The queries by time that named a record, in a random order."""
    named = [row for row in rows if row["kind"] == "time_offset" and row["outcome"] == "ok" and row["offset"] >= 0]
    return list(shuffled(named, random))


def _acknowledged(rows: list[Row], answer: Row) -> dict[int, Row]:
    """Offset → the append acknowledged there, of the partition of an answer."""
    place = (answer["topic"], answer["partition"])
    appends = [row for row in rows if row["kind"] == "append" and (row["topic"], row["partition"]) == place]
    return {row["offset"]: row for row in appends if row["outcome"] == "ok" and row["offset"] is not None}


def _injected(evidence: RunEvidence, rows: list[Row], answer: Row, told: int, shown: int) -> Injection:
    history = history_of([row | {"offset": told} if row is answer else row for row in rows])
    line = f"#{answer['index']} is answered {told} instead of {answer['offset']}"
    changed = replace(evidence, history=history)
    return Injection(changed, line, answer["topic"], answer["partition"], shown, answer["index"])


def told_late(evidence: RunEvidence, random: Random) -> Injection | None:
    """The answer is the offset behind the first record that is not older."""
    rows, deleted = rows_of(evidence.history), deletable_below(evidence)
    for answer in _answers(rows, random):
        first = _acknowledged(rows, answer).get(answer["offset"])
        below = deleted.get((answer["topic"], answer["partition"]), 0)
        asked_ns = answer["value"] * _NS_PER_MS
        if first is not None and first["offset"] >= below and first["invoked_ns"] > asked_ns + _CLEARLY_NS:
            return _injected(evidence, rows, answer, answer["offset"] + 1, answer["offset"])
    return None


def told_early(evidence: RunEvidence, random: Random) -> Injection | None:
    """The answer is the offset of a record that was acknowledged before the time asked for."""
    rows = rows_of(evidence.history)
    for answer in _answers(rows, random):
        asked_ns = answer["value"] * _NS_PER_MS
        older = [
            offset
            for offset, append in _acknowledged(rows, answer).items()
            if append["completed_ns"] < asked_ns - _CLEARLY_NS
        ]
        if older:
            told = random.choice(older)
            return _injected(evidence, rows, answer, told, told)
    return None


def told_nothing(evidence: RunEvidence, random: Random) -> Injection | None:
    """The answer is that there is none, by a leader that had answered polls with such a record."""
    rows, deleted = rows_of(evidence.history), deletable_below(evidence)
    for answer in _answers(rows, random):
        place, asked_ns = (answer["topic"], answer["partition"]), answer["value"] * _NS_PER_MS
        appends = _acknowledged(rows, answer)
        told_before = {
            offset
            for row in rows
            if row["kind"] == "poll" and (row["topic"], row["partition"]) == place and row["offsets"]
            if row["completed_ns"] < answer["invoked_ns"] and row["leader_epoch"] == answer["leader_epoch"]
            for offset in row["offsets"]
        }
        if any(
            offset in appends
            and offset >= deleted.get(place, 0)
            and appends[offset]["invoked_ns"] > asked_ns + _CLEARLY_NS
            for offset in told_before
        ):
            return _injected(evidence, rows, answer, -1, -1)
    return None


TIME_ANOMALIES = (
    Anomaly("time-told-late", "time_offsets", "time-offset-late", told_late),
    Anomaly("time-told-early", "time_offsets", "time-offset-early", told_early),
    Anomaly("time-told-nothing", "time_offsets", "time-offset-missing", told_nothing),
)
