"""What brokers answer for groups that they do not serve."""

from __future__ import annotations

from typing import Any

import pytest

from checkers.evidence import RunEvidence
from checkers.fault_model import OFFSETS_TOPIC
from checkers.protocol.checker import check
from tests.checkers.small_evidence import event, trace

Row = dict[str, Any]

PLACE: Row = {"offset": 0, "log_end": 0, "leader": 1, "leader_epoch": 1}
LEADS = (event(0, "b1", "became_leader", **PLACE),)
SERVES = (*LEADS, event(0.1, "b1", "coordinator_loaded", {}, high_watermark=0, **PLACE))


@pytest.mark.parametrize(
    ("before", "api", "error", "kept"),
    [
        ((), "join", "not_coordinator", True),
        ((), "heartbeat", "not_coordinator", True),
        ((), "heartbeat", "none", False),
        ((), "commit", "coordinator_load_in_progress", False),
        (LEADS, "commit", "coordinator_load_in_progress", True),
        (LEADS, "commit", "not_coordinator", False),
        (LEADS, "heartbeat", "none", True),
        (LEADS, "heartbeat", "coordinator_load_in_progress", False),
        (SERVES, "join", "not_coordinator", False),
        (SERVES, "fetch", "coordinator_load_in_progress", False),
    ],
)
def test_a_broker_answers_for_the_groups_that_it_serves_and_for_no_others(
    before: tuple[Row, ...], api: str, error: str, kept: bool
) -> None:
    unserved = event(2, "b1", "group_unserved", {"group": "g", "api": api, "error": error})
    rows = [row | {"topic": OFFSETS_TOPIC} for row in (*before, unserved)]
    found = check(RunEvidence(trace=trace(*rows))).findings
    assert [finding.kind for finding in found] == ([] if kept else ["wrong-coordinator"])


@pytest.mark.parametrize(
    ("beside", "error", "kept"),
    [
        (LEADS, "coordinator_load_in_progress", True),
        (LEADS, "none", False),
        (SERVES, "none", True),
        ((), "none", True),
    ],
)
def test_a_list_of_groups_may_lack_those_that_are_being_loaded_and_says_so(
    beside: tuple[Row, ...], error: str, kept: bool
) -> None:
    listed = event(2, "b1", "groups_listed", {"group": "", "asked": [], "told": {}, "error": error}, **PLACE)
    rows = [
        *(row | {"topic": OFFSETS_TOPIC} for row in SERVES),
        *(row | {"topic": OFFSETS_TOPIC, "partition": 1} for row in beside),
        listed | {"topic": OFFSETS_TOPIC},
    ]
    found = check(RunEvidence(trace=trace(*rows))).findings
    assert [finding.kind for finding in found] == ([] if kept else ["groups-listed-otherwise"])
