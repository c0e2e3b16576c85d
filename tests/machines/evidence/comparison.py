"""Compares the evidence of a run with the samples of a monitor in each container. Pure.

A sample is compared where it lies within a time for which the evidence says something: within a fault, from when it
held until its healing began, what the fault does must show; outside all faults that may do it, it must not show. So
the comparison is as sharp as the sampling, and no sharper. A process that a pause let run for a command
(`awake_seconds`) may show either, and a change of the clock stops a process for an instant. Steps of scripted faults
and of administrators have no times of their own: during them nothing is expected and nothing is excluded, except for
the losses that they measured.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nemesis.faults.network_partition import DEFAULT_NODES, NetworkPartition, PartitionShape, links
from nemesis.ports import both_ways, one_way
from nemesis.registry import FAULTS
from nemesis.schedule import parse_script

CLOCK_SLACK_MS = 60.0
"""Two starts of processes under libfaketime, and two readings."""
WRITTEN_BYTES_PER_S = 200_000
"""The most that a node of these runs writes."""
_LATE_NS = 6_000_000_000
"""A node that a full disk ended may be started so late after the fault."""
_STOPPED = ("T", "D")
"""Of a process that was sent SIGSTOP: stopped, or waiting for its disk, and it stops before it returns."""
_DOWN = ("kill", "power-loss", "power-loss-all", "wipe-disk")


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample of one monitor; times since the run began."""

    began_ns: int
    ended_ns: int
    table: bool
    state: str
    bytes: int
    clock_ms: float | None


@dataclass(frozen=True, slots=True)
class Span:
    """A fault on a node: it held in [sure, healing), and may have shown in [first, last]."""

    first_ns: int
    sure_ns: int
    healing_ns: int
    last_ns: int

    def holds(self, sample: Sample) -> bool:
        """Whether the whole sample lies where the fault surely held."""
        return self.sure_ns <= sample.began_ns and sample.ended_ns <= self.healing_ns

    def touches(self, sample: Sample) -> bool:
        """Whether any of the sample lies where the fault may have shown."""
        return sample.ended_ns >= self.first_ns and sample.began_ns <= self.last_ns


@dataclass(slots=True)
class Comparison:
    """Counts by kind of evidence, and every disagreement, a line each."""

    compared: dict[str, int] = field(default_factory=dict)
    disagreements: list[str] = field(default_factory=list)

    def count(self, kind: str, agrees: bool, line: Callable[[], str]) -> None:
        """One comparison."""
        self.compared[kind] = self.compared.get(kind, 0) + 1
        if not agrees:
            self.disagreements.append(f"{kind}: {line()}")


def compare(faults: Sequence[Mapping[str, Any]], samples: Mapping[str, Sequence[Sample]]) -> Comparison:
    """`faults`: the rows of the run's table; `samples` by node."""
    result = Comparison()
    nodes = list(samples)
    kinds = ("table", "T", "", "blinks")
    spans: dict[str, dict[str, list[Span]]] = {kind: {node: [] for node in nodes} for kind in kinds}
    vague: list[Span] = []
    for row in faults:
        span = _span(row)
        if FAULTS[row["fault"]].in_steps:
            vague.append(span)
            continue
        for node, kind in _shown(row, nodes):
            own = _evidence(row).get("nodes", {}).get(node, {}).get("down_ns", span.sure_ns) if kind == "" else None
            spans[kind][node].append(span if own is None else Span(span.first_ns, own, span.healing_ns, span.last_ns))
        for node in row["nodes"]:
            if row["fault"] == "clock":
                spans["blinks"][node].append(Span(span.first_ns, span.first_ns, span.sure_ns, span.sure_ns))
                spans["blinks"][node].append(Span(span.healing_ns, span.healing_ns, span.last_ns, span.last_ns))
            elif _evidence(row).get("nodes", {}).get(node, {}).get("awake_seconds"):
                spans["blinks"][node].append(span)
    full = [(_span(row), row["nodes"]) for row in faults if row["fault"] == "disk-full"]
    for node, of_node in samples.items():
        for sample in of_node:
            ending = any(
                node in names and span.first_ns <= sample.ended_ns and sample.began_ns <= span.last_ns + _LATE_NS
                for span, names in full
            )
            unclear = any(span.touches(sample) for span in vague)
            _compare_sample(result, node, sample, spans, unclear, ending)
    for row in faults:
        _compare_losses(result, row, samples)
        if row["fault"] == "clock":
            _compare_clock(result, row, faults, samples)
    return result


def _compare_sample(
    result: Comparison,
    node: str,
    sample: Sample,
    spans: Mapping[str, Mapping[str, Sequence[Span]]],
    unclear: bool,
    ending: bool,
) -> None:
    when = f"{node} at {sample.began_ns / 1e9:.3f} s"
    cut, paused, down = (spans[kind][node] for kind in ("table", "T", ""))
    if any(span.holds(sample) for span in cut):
        result.count("nftables table there", sample.table, lambda: f"none on {when}")
    elif not unclear and not any(span.touches(sample) for span in cut):
        result.count("no nftables table", not sample.table, lambda: f"one on {when}")
    may_be_down = unclear or ending or any(span.touches(sample) for span in down)
    blinking = any(span.touches(sample) for span in spans["blinks"][node])
    may_be_paused = unclear or blinking or any(span.touches(sample) for span in paused)
    if any(span.holds(sample) for span in down):
        result.count("process ended", not sample.state, lambda: f"state {sample.state} on {when}")
    elif any(span.holds(sample) for span in paused) and not may_be_down and not blinking:
        result.count("process stopped", sample.state in _STOPPED, lambda: f"state {sample.state!r} on {when}")
    elif not may_be_down and not may_be_paused:
        agrees = sample.state != "" and sample.state != "T"
        result.count("process runs", agrees, lambda: f"state {sample.state!r} on {when}")


def _compare_losses(result: Comparison, row: Mapping[str, Any], samples: Mapping[str, Sequence[Sample]]) -> None:
    """The bytes of the data directory before and after: a node lost no more than measured, and a wiped one has none."""
    span, evidence = _span(row), _evidence(row)
    for node, numbers in evidence.get("nodes", {}).items():
        if "lost_bytes" not in numbers or evidence.get("overlapped"):
            continue
        before = [sample for sample in samples.get(node, ()) if sample.ended_ns < span.first_ns]
        down_ns = int(numbers["down_ns"])
        after = [
            sample
            for sample in samples.get(node, ())
            if down_ns <= sample.began_ns <= span.healing_ns and not sample.state
        ]
        if FAULTS[row["fault"]].in_steps:
            before = [sample for sample in samples.get(node, ()) if sample.ended_ns < down_ns and sample.state]
            after = [sample for sample in after[:1] if sample.began_ns < down_ns + 1_000_000_000]
        if not before or not after:
            continue
        written = WRITTEN_BYTES_PER_S * max(0.5, (down_ns - before[-1].began_ns) / 1e9)
        fell, lost = before[-1].bytes - after[0].bytes, numbers["lost_bytes"]
        where = f"{row['fault']} of {node}: {before[-1].bytes} → {after[0].bytes} bytes, {lost:.0f} lost"
        result.count("bytes lost", fell <= lost + written, lambda where=where: where)  # type: ignore[misc]
        if row["fault"] == "wipe-disk":
            agrees = after[0].bytes == 0 and abs(lost - before[-1].bytes) <= written
            result.count("disk empty", agrees, lambda where=where: where)  # type: ignore[misc]


def _compare_clock(
    result: Comparison,
    row: Mapping[str, Any],
    faults: Sequence[Mapping[str, Any]],
    samples: Mapping[str, Sequence[Sample]],
) -> None:
    """The largest offset that the monitor saw while the clock was bent, against the one measured."""
    span = _span(row)
    rate = float(json.loads(row["detail"])["rate"])
    for node in row["nodes"]:
        others = [
            other
            for other in faults
            if other is not row
            and (FAULTS[other["fault"]].in_steps or node in other["nodes"])
            and other["fault"] != "partition"
        ]
        spans = [_span(other) for other in others]
        if any(other.last_ns >= span.first_ns and other.first_ns <= span.last_ns for other in spans):
            continue
        readings = [sample for sample in samples.get(node, ()) if sample.clock_ms is not None]
        before = [sample for sample in readings if sample.ended_ns < span.first_ns]
        within = [sample for sample in readings if span.holds(sample)]
        measured = _evidence(row).get("nodes", {}).get(node, {}).get("offset_ms")
        if not before or not within or measured is None:
            continue
        start_ms = before[-1].clock_ms
        assert start_ms is not None
        seen = max(abs(sample.clock_ms - start_ms) for sample in within if sample.clock_ms is not None)
        unseen_s = max(span.last_ns - within[-1].began_ns, within[0].ended_ns - span.first_ns) / 1e9
        slack = CLOCK_SLACK_MS + abs(rate - 1) * unseen_s * 1000
        line = f"{node}: seen {seen:.0f} ms, measured {measured:.0f} ms, within {slack:.0f} ms"
        result.count("clock offset", abs(seen - measured) <= slack, lambda line=line: line)  # type: ignore[misc]


def _span(row: Mapping[str, Any]) -> Span:
    evidence = _evidence(row)
    ended_ns = int(row["ended_ns"])
    return Span(
        first_ns=int(row["started_ns"]) - round(evidence.get("injection_seconds", 0) * 1e9),
        sure_ns=int(row["started_ns"]),
        healing_ns=ended_ns - round(evidence.get("healing_seconds", 0) * 1e9),
        last_ns=ended_ns,
    )


def _evidence(row: Mapping[str, Any]) -> dict[str, Any]:
    evidence: dict[str, Any] = json.loads(row["evidence"] or "{}")
    return evidence


def _shown(row: Mapping[str, Any], nodes: Sequence[str]) -> Iterator[tuple[str, str]]:
    """(node, kind) of everything that the fault shows: the table at receivers, the state of processes."""
    if row["fault"] == "pause":
        yield from ((node, "T") for node in row["nodes"])
    elif row["fault"] in _DOWN:
        yield from ((node, "") for node in row["nodes"])
    elif row["fault"] == "partition":
        yield from ((node, "table") for node in _receivers_of_partition(row, nodes))
    elif row["fault"] == "packets":
        detail = json.loads(row["detail"])
        against = _resolved(detail, "against", nodes)
        degraded = (one_way if detail["one_way"] else both_ways)(row["nodes"], against)
        yield from ((node, "table") for node in dict.fromkeys(link.target for link in degraded))


def _resolved(detail: Mapping[str, Any], name: str, nodes: Sequence[str]) -> list[str]:
    groups = {
        "all": list(nodes),
        "brokers": [node for node in nodes if node.startswith("b")],
        "controllers": [node for node in nodes if node.startswith("c")],
    }
    names: list[str] = []
    for target in detail[name]:
        names += groups.get(target) or detail["resolved"].get(target) or [target]
    return list(dict.fromkeys(names))


def _receivers_of_partition(row: Mapping[str, Any], nodes: Sequence[str]) -> list[str]:
    detail = json.loads(row["detail"])
    values = {name: value for name, value in detail.items() if name != "resolved"}
    (scheduled,) = parse_script([{"at": 0, "for": 1, **values}])
    fault = scheduled.fault
    assert isinstance(fault, NetworkPartition)
    brokers = [node for node in nodes if node.startswith("b")]
    controllers = [node for node in nodes if node.startswith("c")]
    detail["nodes"] = list(fault.nodes or DEFAULT_NODES[fault.shape])
    around = (
        row["nodes"]
        if fault.shape in (PartitionShape.HALVES, PartitionShape.RING)
        else _resolved(detail, "nodes", nodes)
    )
    against = _resolved(detail, "against", nodes) if fault.against else list(nodes)
    cut = links(fault.shape, around, brokers, controllers, against)
    return list(dict.fromkeys(link.target for link in cut))
