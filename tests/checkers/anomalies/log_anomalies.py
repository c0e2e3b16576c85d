"""Anomalies of the replicas' logs: leader epochs that fall, ends that are torn."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random

import pyarrow as pa

from checkers.evidence import RunEvidence
from checkers.tables import REPLICA_ENDS, REPLICAS
from tests.checkers.anomalies.anomaly import Anomaly, Injection
from tests.checkers.anomalies.places import Row, overlapping, rows_of


def _record_of_overlapping_append(evidence: RunEvidence, records: list[Row], random: Random) -> Iterator[Row]:
    """Records whose appends others overlap, in a random order, one log each."""
    stored: dict[int, list[Row]] = {}
    for record in records:
        stored.setdefault(record["value"], []).append(record)
    rows = rows_of(evidence.history)
    for append in overlapping(rows, random, lambda row: row["kind"] == "append" and row["value"] in stored):
        yield random.choice(stored[append["value"]])


def lower_leader_epoch(evidence: RunEvidence, random: Random) -> Injection | None:
    """The record before a random one has a higher leader epoch, in every log that holds it."""
    records: list[Row] = evidence.replicas.to_pylist()
    for record in _record_of_overlapping_append(evidence, records, random):
        place = (record["topic"], record["partition"], record["offset"] - 1)
        before = [each for each in records if (each["topic"], each["partition"], each["offset"]) == place]
        if not before:
            continue
        raised = {id(each) for each in before}
        epoch = record["leader_epoch"] + random.randint(1, 3)
        changed = [each | {"leader_epoch": epoch} if id(each) in raised else each for each in records]
        line = f"offset {record['offset'] - 1} has leader epoch {epoch}, the next {record['leader_epoch']}"
        return Injection(
            replace(evidence, replicas=pa.Table.from_pylist(changed, REPLICAS)),
            line,
            record["topic"],
            record["partition"],
            record["offset"],
        )
    return None


def _damage(evidence: RunEvidence, random: Random, damage: str) -> Injection | None:
    """The log of one replica ends early, before a record whose append others overlap."""
    if not evidence.recovery.get("recovered"):
        return None
    records: list[Row] = evidence.replicas.to_pylist()
    for record in _record_of_overlapping_append(evidence, records, random):
        place = (record["node"], record["topic"], record["partition"])
        offset = record["batch_base"]
        kept = [
            each
            for each in records
            if (each["node"], each["topic"], each["partition"]) != place or each["offset"] < offset
        ]
        ends = [
            end | {"log_end": offset, "unread_bytes": random.randint(1, 5_000), "damage": damage}
            if (end["node"], end["topic"], end["partition"]) == place and end["log_start"] <= offset
            else end
            for end in evidence.replica_ends.to_pylist()
        ]
        changed = replace(
            evidence,
            replicas=pa.Table.from_pylist(kept, REPLICAS),
            replica_ends=pa.Table.from_pylist(ends, REPLICA_ENDS),
        )
        if not changed.replica_ends.equals(evidence.replica_ends):
            line = f"the log of {record['node']} is {damage} at offset {offset}"
            return Injection(changed, line, record["topic"], record["partition"], offset)
    return None


def tear_log(evidence: RunEvidence, random: Random) -> Injection | None:
    """The last batch of a log is cut, though the cluster has recovered."""
    return _damage(evidence, random, "torn")


def damage_log(evidence: RunEvidence, random: Random) -> Injection | None:
    """A batch in the middle of a log is damaged."""
    return _damage(evidence, random, "corrupt")


LOG_ANOMALIES = (
    Anomaly("leader-epoch-lowered", "logs", "leader-epoch-fell", lower_leader_epoch),
    Anomaly("log-torn", "logs", "torn-log", tear_log),
    Anomaly("log-damaged", "logs", "corrupt-log", damage_log),
)
