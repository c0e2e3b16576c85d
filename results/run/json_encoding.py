"""JSON encoding of trace events and verdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from checkers.verdict import Finding, Validity, Verdict, checker_name, worst
from images.trace import TraceEvent
from workloads.compact_json import compact, quoted


def trace_line(time_ns: int, node: str, seq: int, event: TraceEvent) -> str:
    """One event as an object; fields that do not apply are left out, which reading fills in again."""
    line = f'{{"time_ns":{time_ns},"seq":{seq},"node":{quoted(node)},"kind":{quoted(event.kind)}'
    if event.topic:
        line += f',"topic":{quoted(event.topic)}'
    if event.partition != -1:
        line += f',"partition":{event.partition}'
    if event.leader != -1:
        line += f',"leader":{event.leader}'
    if event.leader_epoch != -1:
        line += f',"leader_epoch":{event.leader_epoch}'
    if event.partition_epoch != -1:
        line += f',"partition_epoch":{event.partition_epoch}'
    if event.broker != -1:
        line += f',"broker":{event.broker}'
    if event.broker_epoch != -1:
        line += f',"broker_epoch":{event.broker_epoch}'
    if event.offset != -1:
        line += f',"offset":{event.offset}'
    if event.log_end != -1:
        line += f',"log_end":{event.log_end}'
    if event.high_watermark != -1:
        line += f',"high_watermark":{event.high_watermark}'
    if event.members:
        line += f',"members":{compact(event.members)}'
    if event.detail:
        line += f',"detail":{quoted(compact(event.detail))}'
    return line + "}"


def verdicts_to_json(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """`{"validity": the worst, "checks": [{"checker", "validity", "findings", "figures", "rests_on"}]}`."""
    return {
        "validity": worst(verdict.validity for verdict in verdicts).value,
        "checks": [verdict_to_json(verdict) for verdict in verdicts],
    }


def verdict_to_json(verdict: Verdict) -> dict[str, Any]:
    """One of the `checks`."""
    return {
        "checker": verdict.checker,
        "validity": verdict.validity.value,
        "findings": [_finding_to_json(finding) for finding in verdict.findings],
        "figures": dict(verdict.figures),
        "rests_on": list(verdict.rests_on),
    }


def verdicts_from_json(value: Mapping[str, Any]) -> list[Verdict]:
    """The inverse of `verdicts_to_json`; none when nothing was checked."""
    return [
        Verdict(
            checker=checker_name(check["checker"]),
            validity=Validity(check["validity"]),
            findings=tuple(_finding_from_json(finding) for finding in check["findings"]),
            figures=check["figures"],
            rests_on=tuple(check.get("rests_on", ())),
        )
        for check in value.get("checks", [])
    ]


def _finding_to_json(finding: Finding) -> dict[str, Any]:
    return {
        "kind": finding.kind,
        "lines": list(finding.lines),
        "topic": finding.topic,
        "partition": finding.partition,
        "operations": list(finding.operations),
        "offsets": list(finding.offsets),
        "time_ns": finding.time_ns,
    }


def _finding_from_json(value: Mapping[str, Any]) -> Finding:
    return Finding(
        kind=value["kind"],
        lines=tuple(value["lines"]),
        topic=value["topic"],
        partition=value["partition"],
        operations=tuple(value["operations"]),
        offsets=tuple(value["offsets"]),
        time_ns=value["time_ns"],
    )
