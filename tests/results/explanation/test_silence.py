"""Runs of a sound broker under faults: no event of theirs is a broken step, whichever check might ask for one. An
unclean election that the topic's strategy asks for is none, though an explanation names it. Runs with a comment had
steps once that accused what is right."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from checkers.evidence import RunEvidence
from checkers.fault_model import node_failures
from harness.runner.run import run_in_simulation
from harness.spec import parse
from results.explanation.client_steps import client_steps, member_steps, read_steps
from results.explanation.group_steps import group_steps
from results.explanation.image_steps import image_steps
from results.explanation.metadata_steps import metadata_steps
from results.explanation.replay import events_of
from results.explanation.standing.groups import group_standing_steps
from results.explanation.standing.nodes import node_steps, restart_steps
from results.explanation.standing.partitions import standing_steps
from results.explanation.steps import broken_steps
from results.explanation.stories import unexcused
from results.explanation.story import Step, StepKind
from results.run import evidence_loader


def drawn(seed: int, time_limit: int, workload: str = "append") -> dict[str, Any]:
    """A run in a drawn world."""
    return {"seed": seed, "time_limit": time_limit, "vary": True, "workload": workload}


RUNS: Final[tuple[dict[str, Any], ...]] = (
    drawn(201, 15),
    {"seed": 301, "time_limit": 15, "faults": "all"},
    drawn(204, 15, "groups"),
    {"seed": 302, "time_limit": 15, "faults": "all", "workload": "groups"},
    drawn(6010, 40),  # a log that begins where it was cut gives no epoch
    drawn(6003, 40, "groups"),  # a new controller begins sessions anew
    # Standalone consumers delete their groups, and commit the same offsets as each other.
    drawn(13900003, 40, "groups"),
    drawn(13900008, 40, "groups"),  # a replica is removed and added anew before its late leader commits with it
    drawn(13900070, 15, "groups"),
    # A member commits late, in an earlier generation, what it had read in that.
    drawn(13900004, 15, "groups"),
    # Brokers are killed when they have closed their logs, or have not opened them yet.
    drawn(13900002, 40, "groups"),
    drawn(13900047, 15),
    drawn(13900009, 40),  # a heartbeat arrives when its process has ended
    # A member of the ISR starts, and is not registered anew; a replica is removed while it is away, and added again.
    drawn(13900021, 40),
    drawn(13900049, 15),  # a snapshot replaces a record that was never committed
    drawn(13900084, 15),  # a broker is killed with a batch that the trace does not have
    # A power loss undoes a cut; a log starts above its checkpointed high watermark; fetches have no sessions.
    drawn(13900112, 40, "groups"),
    drawn(13900116, 40, "groups"),
    drawn(13900150, 40, "groups"),
    # Unclean recoveries give up records, and in the shorter run those of groups.
    drawn(13900052, 40, "groups"),
    drawn(13900052, 25, "groups"),
    # Coordinators forget the offsets of a deleted topic before their tombstones can be appended, and a broker reads of
    # a topic's creation, in which it leads, when that is deleted again.
    drawn(13900054, 40),
    drawn(13900055, 40),
)


def every_step(evidence: RunEvidence) -> Iterator[Step]:
    """All steps of a run, with the end of the run where its last event is."""
    trace, history = evidence.trace, evidence.history
    end_ns = trace.column("time_ns").to_pylist()[-1]
    yield from (*metadata_steps(trace), *image_steps(trace), *node_steps(trace, end_ns))
    yield from group_standing_steps(trace, end_ns)
    failures = node_failures(evidence.faults)
    yield from restart_steps(trace, failures)
    places = {(row["topic"], row["partition"]) for row in trace.select(["topic", "partition"]).to_pylist()}
    for topic, partition in sorted(place for place in places if place[0]):
        events = list(events_of(trace, topic, partition))
        yield from restart_steps(trace, failures, topic, partition)
        yield from (*unexcused(broken_steps(events), evidence, failures), *standing_steps(events, end_ns))
        if not topic.startswith("__"):
            yield from client_steps(events, history, evidence.replicas, topic, partition)
            yield from read_steps(events, history, topic, partition)
            yield from (*group_steps(trace, topic, partition), *member_steps(trace, history, topic, partition))


def _name(fields: dict[str, Any]) -> str:
    return f"{fields.get('workload', 'append')}-{fields['seed']}-{fields['time_limit']}s"


@pytest.mark.parametrize("fields", RUNS, ids=_name)
def test_a_sound_run_has_no_broken_step(fields: dict[str, Any], tmp_path: Path) -> None:
    outcome = run_in_simulation(parse(dict(fields)), tmp_path)
    assert outcome.directory is not None
    evidence = evidence_loader.load(outcome.directory)
    assert evidence.trace.num_rows > 0
    broken = [step for step in every_step(evidence) if not step.is_loss and step.kind is not StepKind.UNCLEAN_ELECTION]
    assert [step.text for step in broken] == []
