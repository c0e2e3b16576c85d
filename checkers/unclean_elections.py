"""Unclean elections: since when the records of a partition may be gone because its topic permits these.

`unclean.leader.election.enable=true`, under a strategy under which it counts, and proactive recovery excuse no loss by
themselves: as long as every leader came from the ISR or the ELR, the topic keeps all that other topics keep. So a
partition is judged like any other until its first unclean election; without one, to the end of the run.

An election is unclean if the controllers say so (`unclean` in the detail of `partition_changed`), or if the leader was
in neither ISR nor ELR by the decision before it, in the order of the metadata log: a controller that only finds the
election committed, and Apache Kafka's metadata log, do not say. It counts from its decision, or from the time at which
the leader began to lead, where that was traced first.

Everything is excused from the beginning where nothing is known of the decisions: without a trace or the decisions of
the controllers, for a partition of which they have none, or not the first one, and in a run that was killed, whose
trace ends before its history.

Blind spots: what is lost after the first unclean election and not by one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow.compute as pc

from checkers.evidence import RunEvidence
from workloads.columns import NEVER
from workloads.history import TopicPartition


def first_unclean_elections(evidence: RunEvidence) -> Mapping[TopicPartition, int]:
    """By partition, the time in ns of its first unclean election, NEVER where it had none. Absent are the partitions of
    which it is not known. Where the times of decisions cannot be compared with those of the history, 0 for any."""
    settings, trace = evidence.settings, evidence.trace
    if not evidence.recovery or not (settings.has_trace or settings.has_decisions):
        return {}
    changes = trace.filter(pc.equal(trace.column("kind"), "partition_changed")).sort_by(
        [("offset", "ascending"), ("seq", "ascending")]
    )
    decided: dict[TopicPartition, list[dict[str, Any]]] = {}
    for row in changes.to_pylist():
        decided.setdefault((row["topic"], row["partition"]), []).append(row | json.loads(row["detail"] or "{}"))
    leads_since_ns = _first_led(evidence) if settings.has_ordered_trace else {}
    first = {}
    for name, decisions in decided.items():
        if decisions[0].get("reason") != "created":
            continue
        elections = [
            min(election["time_ns"], leads_since_ns.get((*name, election["leader_epoch"]), NEVER))
            for election in _unclean(decisions)
        ]
        first[name] = min(elections, default=NEVER) if settings.has_ordered_trace or not elections else 0
    return first


def _unclean(decisions: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The unclean elections among the decisions on one partition."""
    candidates: set[int] = set()
    for decision in decisions:
        isr = set(decision["members"])
        # A reassignment may complete in the change that a leader has requested.
        requested = isr if decision.get("reason") == "alter_partition" else set[int]()
        is_created = decision.get("reason") == "created"
        outside = decision["leader"] >= 0 and not is_created and decision["leader"] not in candidates | requested
        if outside or decision.get("unclean") is True:
            yield decision
        candidates = isr | set(decision.get("elr") or ())


def _first_led(evidence: RunEvidence) -> Mapping[tuple[str, int, int], int]:
    """(topic, partition, leader epoch) → the time in ns at which a broker first traced that it leads in it."""
    led = evidence.trace.filter(pc.equal(evidence.trace.column("kind"), "became_leader"))
    times = led.group_by(["topic", "partition", "leader_epoch"]).aggregate([("time_ns", "min")])
    return {(row["topic"], row["partition"], row["leader_epoch"]): row["time_ns_min"] for row in times.to_pylist()}
