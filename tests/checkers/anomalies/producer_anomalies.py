"""Anomalies of idempotent producers: order, sequence numbers, producer ids."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random

import pyarrow as pa

from checkers.deletions import deletable_below
from checkers.evidence import RunEvidence
from checkers.tables import REPLICAS
from tests.checkers.anomalies.anomaly import Anomaly, Injection
from tests.checkers.anomalies.places import Row, history_of, overlapping, rows_of


def _acknowledged(row: Row) -> bool:
    return row["kind"] == "append" and row["outcome"] == "ok" and row["offset"] is not None


def reorder_pipelined_appends(evidence: RunEvidence, random: Random) -> Injection | None:
    """Exchange two appends of one producer that were in flight together, in the history and in every log."""
    rows = rows_of(evidence.history)
    for one in overlapping(rows, random, _acknowledged):
        for other in rows:
            together = other["process"] == one["process"] and other["invoked_ns"] < one["completed_ns"]
            same = (other["topic"], other["partition"]) == (one["topic"], one["partition"])
            if _acknowledged(other) and same and together and other["index"] > one["index"]:
                return _exchanged(evidence, rows, one, other)
    return None


def _exchanged(evidence: RunEvidence, rows: list[Row], one: Row, other: Row) -> Injection:
    new_value = {one["value"]: other["value"], other["value"]: one["value"]}
    offsets = {one["offset"]: other["offset"], other["offset"]: one["offset"]}
    history = []
    for row in rows:
        if row["kind"] == "append" and row["value"] in new_value:
            row = row | {"offset": offsets[row["offset"]]}
        if row["values"]:
            row = row | {"values": [new_value.get(value, value) for value in row["values"]]}
        history.append(row)
    records = [
        record | {"value": new_value.get(record["value"], record["value"])} for record in evidence.replicas.to_pylist()
    ]
    line = f"#{one['index']} and #{other['index']} exchange offsets {one['offset']} and {other['offset']}"
    changed = replace(evidence, history=history_of(history), replicas=pa.Table.from_pylist(records, REPLICAS))
    return Injection(changed, line, one["topic"], one["partition"], one["offset"], other["index"])


def _successive(evidence: RunEvidence, random: Random) -> Iterator[tuple[list[Row], Row, Row]]:
    """(all records, a record of a producer, the one before it) in one log, where no deletion excuses a gap; of
    appends that others overlap, in a random order."""
    records: list[Row] = evidence.replicas.to_pylist()
    deleted = deletable_below(evidence)
    before: dict[tuple[str, str, int, int], Row] = {}
    pairs: dict[int, list[tuple[Row, Row]]] = {}
    for record in records:
        key = (record["node"], record["topic"], record["partition"], record["producer_id"])
        last = before.get(key)
        below = deleted.get((record["topic"], record["partition"]), 0)
        if last is not None and last["offset"] >= below and record["value"] is not None:
            pairs.setdefault(record["value"], []).append((record, last))
        before[key] = record
    rows = rows_of(evidence.history)
    for append in overlapping(rows, random, lambda row: row["kind"] == "append" and row["value"] in pairs):
        yield (records, *random.choice(pairs[append["value"]]))


def _same_producer(record: Row, other: Row, *, all_nodes: bool) -> bool:
    names = ("topic", "partition", "producer_id", *(() if all_nodes else ("node",)))
    return all(record[name] == other[name] for name in names)


def _with_records(evidence: RunEvidence, records: list[Row], line: str, record: Row) -> Injection:
    changed = replace(evidence, replicas=pa.Table.from_pylist(records, REPLICAS))
    return Injection(changed, line, record["topic"], record["partition"], record["offset"])


def skip_sequence_numbers(evidence: RunEvidence, random: Random) -> Injection | None:
    """From one record on, a producer's sequence numbers are higher, in one log or in all."""
    for records, record, _ in _successive(evidence, random):
        by, everywhere = random.randint(1, 5), random.random() < 0.5
        changed = [
            other | {"sequence": other["sequence"] + by}
            if _same_producer(record, other, all_nodes=everywhere)
            and other["producer_epoch"] == record["producer_epoch"]
            and other["offset"] >= record["offset"]
            else other
            for other in records
        ]
        return _with_records(evidence, changed, f"sequences from offset {record['offset']} on are {by} higher", record)
    return None


def repeat_sequence_number(evidence: RunEvidence, random: Random) -> Injection | None:
    """A record has the sequence number of the one before it: a retry was appended as a batch of its own."""
    for records, record, last in _successive(evidence, random):
        if last["producer_epoch"] != record["producer_epoch"]:
            continue
        changed = [other | {"sequence": last["sequence"]} if other is record else other for other in records]
        line = f"offset {record['offset']} repeats sequence {last['sequence']} of {last['offset']} on {record['node']}"
        return _with_records(evidence, changed, line, record)
    return None


def lower_producer_epoch(evidence: RunEvidence, random: Random) -> Injection | None:
    """Everything of a producer before one record has a higher producer epoch."""
    for records, record, _ in _successive(evidence, random):
        changed = [
            other | {"producer_epoch": record["producer_epoch"] + 1}
            if _same_producer(record, other, all_nodes=True) and other["offset"] < record["offset"]
            else other
            for other in records
        ]
        line = f"the producer epoch falls at offset {record['offset']}"
        return _with_records(evidence, changed, line, record)
    return None


def give_producer_id_twice(evidence: RunEvidence, random: Random) -> Injection | None:
    """Records of one producer, from a random one on, have the producer id of another."""
    owners = {row["value"]: row["process"] for row in rows_of(evidence.history) if row["kind"] == "append"}
    for records, record, _ in _successive(evidence, random):
        others = [
            other
            for other in records
            if (other["topic"], other["partition"]) == (record["topic"], record["partition"])
            and owners.get(other["value"]) not in (None, owners[record["value"]])
        ]
        if not others:
            continue
        of = random.choice(others)
        changed = [
            other | {"producer_id": of["producer_id"]}
            if _same_producer(record, other, all_nodes=True) and other["offset"] >= record["offset"]
            else other
            for other in records
        ]
        line = f"producer id {of['producer_id']} writes offset {record['offset']}, too"
        injection = _with_records(evidence, changed, line, record)
        return replace(injection, offset=-1)
    return None


def lose_append_without_offset(evidence: RunEvidence, random: Random) -> Injection | None:
    """An append is acknowledged without an offset, and another record stands in its place everywhere."""
    rows, deleted = rows_of(evidence.history), deletable_below(evidence)
    instead = 1 + max((row["value"] for row in rows if row["kind"] == "append"), default=0)
    for append in overlapping(rows, random, _acknowledged):
        if evidence.settings.acks != -1 or (append["topic"], append["partition"]) in deleted:
            continue
        value = append["value"]
        history = [
            row | {"offset": None}
            if row is append
            else row | {"values": [instead if other == value else other for other in row["values"] or ()] or None}
            for row in rows
        ]
        unknown = append | {"index": rows[-1]["index"] + 1, "value": instead, "outcome": "info", "offset": None}
        records = [
            record | {"value": instead if record["value"] == value else record["value"]}
            for record in evidence.replicas.to_pylist()
        ]
        replicas = pa.Table.from_pylist(records, REPLICAS)
        changed = replace(evidence, history=history_of([*history, unknown]), replicas=replicas)
        line = f"#{append['index']} is acknowledged without an offset, and its value {value} is nowhere"
        return Injection(changed, line, append["topic"], append["partition"], operation=append["index"])
    return None


PRODUCER_ANOMALIES = (
    Anomaly("pipelined-appends-reordered", "producers", "producer-order", reorder_pipelined_appends),
    Anomaly("sequence-numbers-skipped", "producers", "sequence-gap", skip_sequence_numbers),
    Anomaly("sequence-number-repeated", "producers", "sequence-gap", repeat_sequence_number),
    Anomaly("producer-epoch-lowered", "producers", "producer-epoch-fell", lower_producer_epoch),
    Anomaly("producer-id-given-twice", "producers", "producer-id-twice", give_producer_id_twice),
    Anomaly("append-without-offset-lost", "loss", "lost-append", lose_append_without_offset),
)
