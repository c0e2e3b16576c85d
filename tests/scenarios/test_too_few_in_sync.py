"""With fewer than min.insync.replicas in sync a producer is refused, certainly and at once."""

from __future__ import annotations

import pytest

from checkers.verdict import Validity
from harness.runner.run import run_in_simulation
from harness.spec import parse


@pytest.mark.parametrize("off", [(), ("min_isr_gates_append",)])
def test_6_5_2_an_append_below_the_minimum_fails_for_certain_exactly_with_the_rule(off: tuple[str, ...]) -> None:
    """Nothing is lost without it, since the high watermark stands still: only the trace shows it. But producers are
    left to wait, and not to know."""
    outcome = run_in_simulation(
        parse(
            {
                "seed": 1,
                "partitions": 1,
                "time_limit": "20s",
                "without": list(off),
                "faults": [{"at": "4s", "for": "8s", "fault": "kill", "nodes": ["b1", "b2"]}],
            }
        )
    )
    found = {
        finding.kind for each in outcome.verdicts if each.validity is Validity.INVALID for finding in each.findings
    }
    assert found == ({"appended-below-minimum"} if off else set())
    failed, unknown = (outcome.operations["append", how] for how in ("fail", "info"))
    if off:
        assert failed == 0
        assert unknown > 0
    else:
        assert failed > unknown
