"""A log that begins anew where its leader's starts, and is killed in the middle of that."""

from __future__ import annotations

import pytest

from tests.simulation.applied_mistake import replace_in
from tests.torture.mistakes.mistake import Fault, Patch, PlayedMistake


def _segments_first(patch: Patch) -> None:
    """The segments go before the new start is written down, so that a kill in between leaves an older one, or none."""
    begin_anew = "images.broker.log.log:Log.truncate_fully_and_start_at"
    replace_in(patch, begin_anew, "is_upwards = offset >= self.end", "is_upwards = False")


KILLED_WHILE_IT_BEGINS_ANEW: list[Fault] = [
    {
        "when": {"high_watermark": {"at_least": 10, "node": "b1"}},
        "until": {"elected": "b2"},
        "fault": "partition",
        "shape": "leader-only",
        "nodes": ["b3"],
        "id": "cut",
    },
    {"when": {"log_start_moved": {"node": "b2"}}, "for": "14s", "fault": "kill", "nodes": ["b1"]},
    {"when": {"elected": "b2"}, "then_after": 0, "until": {"injected": "wipe"}, "fault": "kill", "nodes": ["b3"]},
    {"after": "cut", "when": {"fenced": "b3"}, "for": "1s", "fault": "wipe-disk", "nodes": ["b2"], "id": "wipe"},
]
"""b3 misses that ten records are committed; they are deleted. b2 leads, and b3 begins anew where its log ends, and is
killed. Then b2 loses its disk: the only loss. Both tell a recovery where their logs end."""
WORLD = {
    "brokers": 3,
    "time_limit": "16s",
    "recovery_limit": "30s",
    "clients": {
        "producers": 0,
        "consumers": 0,
        "end_offset_readers": 0,
        "operations": [
            {"do": "produce 10 to 0", "id": "ten"},
            {"do": "poll 0 until 10"},
            {"do": "produce 5 to 0 by second", "when": {"healed": "wipe"}},
        ],
    },
    "settings": {
        "broker.session.timeout.ms": "1000",
        "replica.lag.time.max.ms": "60000",
        "unclean.recovery.strategy": "balanced",
        "retention.ms": "1500",
        "log.retention.check.interval.ms": "300",
        "replica.high.watermark.checkpoint.interval.ms": "60000",
    },
}

MISTAKES = [
    PlayedMistake("candidate-incomplete", _segments_first, KILLED_WHILE_IT_BEGINS_ANEW, WORLD | {"seed": seed})
    for seed in (1, 5)
]


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: f"seed {mistake.world['seed']}")
def test_a_log_that_is_killed_while_it_begins_anew_ends_no_lower(mistake: PlayedMistake, monkeypatch: Patch) -> None:
    mistake.check_found(monkeypatch)
