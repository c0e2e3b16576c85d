"""Unclean elections: since when the records of a partition may be gone because one is permitted.

Two things permit it: the configuration of the topic, or an administrator's request.

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

Whatever the topic is configured to, an administrator may ask for the unclean election of a leader (`elect-unclean`
among the `requests` of the run's recovery). Of a topic that permits none by itself an election counts only if it was
made upon such a request: the controllers give it that reason, and it comes between the request and its answer `done`,
or at any time after one that is in doubt. So any other election from outside ISR and ELR excuses nothing. Where nothing
is known of the decisions, a partition is excused from the first request on that may have been carried out; in a run
that was killed from the beginning of the fault that makes such requests.

Blind spots: what is lost after the first unclean election and not by one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow.compute as pc

from checkers.decided_metadata import decisions_of_partitions
from checkers.evidence import CheckSettings, RunEvidence
from workloads.columns import NEVER
from workloads.history import TopicPartition

ELECT_UNCLEAN: Final = "elect-unclean"
"""The change that an administrator asks for, and the fault in which one does."""
UNCLEAN_ELECTION: Final = "unclean_election"
"""Reason of a `partition_changed` that is made upon such a request."""
UNCLEAN_RECOVERY: Final = "unclean_recovery"
"""Reason of one by the log ends of replicas."""
_DONE: Final = ""


@dataclass(frozen=True, slots=True)
class ElectionRequests:
    """The unclean elections of one partition that administrators asked for, without those that were refused."""

    times_ns: tuple[tuple[int, int], ...] = ()
    """When each may have been made: from its beginning to its answer, NEVER where that is in doubt."""

    @property
    def first_ns(self) -> int:
        """When the first of them began; NEVER without any."""
        return min((began_ns for began_ns, _ in self.times_ns), default=NEVER)

    def asked_for(self, time_ns: int, *, late: bool) -> bool:
        """Whether an election that was traced at this time, maybe `late`, was made upon one of them."""
        return any(began_ns <= time_ns and (late or time_ns <= until_ns) for began_ns, until_ns in self.times_ns)

    def permit(self, decision: Mapping[str, Any], time_ns: int, settings: CheckSettings) -> bool:
        """Whether a decision with this detail, made at this time, is an election upon one of them. Without a trace
        decisions have no reason, and without an ordered one their times cannot be compared."""
        if settings.has_trace and decision.get("reason") != UNCLEAN_ELECTION:
            return False
        ordered = settings.has_ordered_trace
        late = not ordered or bool(decision.get("taken_over"))
        return self.asked_for(time_ns if ordered else NEVER, late=late)


def election_requests(evidence: RunEvidence) -> dict[TopicPartition, ElectionRequests]:
    """By partition, the unclean elections that administrators asked for and were not refused."""
    found: dict[TopicPartition, list[tuple[int, int]]] = {}
    for request in evidence.recovery.get("requests") or ():
        is_doubtful = request["in_doubt"] or request["ended_ns"] is None
        if request["change"] == ELECT_UNCLEAN and (is_doubtful or request["outcome"] == _DONE):
            until_ns = NEVER if is_doubtful else request["ended_ns"]
            found.setdefault((request["topic"], request["partition"]), []).append((request["began_ns"], until_ns))
    if not evidence.recovery:
        for row in evidence.faults.filter(pc.equal(evidence.faults["fault"], ELECT_UNCLEAN)).to_pylist():
            name = evidence.settings.topic, int(json.loads(row["detail"] or "{}").get("partition", 0))
            found.setdefault(name, []).append((row["started_ns"], NEVER))
    return {name: ElectionRequests(tuple(times_ns)) for name, times_ns in found.items()}


def first_unclean_elections(evidence: RunEvidence) -> Mapping[TopicPartition, int]:
    """By partition, the time in ns of its first unclean election, NEVER where it had none. Absent are the partitions of
    which it is not known, and of topics that permit none those for which none was asked. Where the times of decisions
    cannot be compared with those of the history, 0 for any, or the time of the first request."""
    settings = evidence.settings
    is_known = bool(evidence.recovery) and (settings.has_trace or settings.has_decisions)
    permitted, requests = settings.unclean_election, {} if settings.unclean_election else election_requests(evidence)
    if not (permitted or requests):
        return {}
    leads_since_ns = _first_led(evidence) if settings.has_ordered_trace else {}
    first = {name: asked.first_ns for name, asked in requests.items()}
    decided = decisions_of_partitions(evidence.trace, ("partition_changed",)) if is_known else {}
    for name, decisions in decided.items():
        if decisions[0].get("reason") != "created" or not (permitted or name in requests):
            continue
        elections = [
            min(election["time_ns"], leads_since_ns.get((*name, election["leader_epoch"]), NEVER))
            for election in _unclean(decisions)
            if permitted or requests[name].permit(election, election["time_ns"], settings)
        ]
        if settings.has_ordered_trace or not elections:
            first[name] = min(elections, default=NEVER)
        elif permitted:
            first[name] = 0
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
