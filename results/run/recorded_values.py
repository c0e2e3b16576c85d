"""Validation of recorded evidence: the schema and the rules that every table, the settings and the recovery must keep.

A recorder breaks none of them, whatever the system under test does. So evidence that does is damaged, or of another
run, and proves nothing: `validated` gives the part an `EvidenceGap` and leaves its tables empty, so that no checker,
figure or page rests on them. A rule that a faulty system could break is not one of them: a record acknowledged without
an offset, or a log with one offset twice, is for a checker to find.

table          rules, besides its columns, their types and no null where the schema allows none
-------------  ---------------------------------------------------------------------------------------------------------
history        kinds, phases and outcomes are known; an index is not negative and occurs once; invocations follow each
               other in time in the order of the index; an operation completes after its invocation; only an append or a
               commit may have no completion, and then its outcome is `info`; an append has a value; only a poll that is
               ok returns records, as many values as offsets
trace          kinds are known; `seq` counts from 0 without gaps, and times follow it; `detail` is a JSON object
replica logs   a node has one log of a partition; it holds no records beyond its end
faults         ends follow starts; `detail` and `evidence` are JSON objects; losses are numbers
all            topic, partitions and nodes are those of the run, as far as its settings name them
settings       every setting that older runs have, too; each of its type, and one of the known values
recovery       booleans, numbers, lists, crashes and vanished machines are what they are called; times fit 64 bits

A run that was read to its end (`final_reads`) is complete. Then, in addition: history, replica logs and trace cover the
same partitions, the history has the final reads of each of them, every node of the cluster traced something, every
fault has ended, and the tables are no shorter than when the reads ended (`recorded`). A run that was killed is checked
as far as it went, so nothing of that applies to it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, fields, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from checkers.evidence import OLD_NAMES, CheckSettings, EvidenceGap, EvidencePart, RunEvidence
from checkers.tables import epoch_entries, with_added_columns
from images.trace import KINDS as TRACE_KINDS
from workloads.columns import named_partitions
from workloads.history import CHANGES, KINDS, NO_GENERATION, OUTCOMES, PHASES

_ALWAYS_RECORDED: Final = (
    "acks",
    "min_insync_replicas",
    "replication_factor",
    "unclean_election",
    "unclean_recovery",
    "recency",
    "time_limit_ns",
    "faults_asked",
    "has_trace",
    "comparable_clocks",
)
"""Settings of runs of every version; later ones have a default that says what older runs did."""
_LEAST: Final = {"min_insync_replicas": 1, "replication_factor": 1, "brokers": 1, "time_limit_ns": 0}
_VALUES: Final = {
    "unclean_recovery": ("manual", "balanced", "proactive", "last-known-leader"),
}
_RECOVERY_TYPES: Final[Mapping[str, type | tuple[type, ...]]] = {
    "ready": bool,
    "recovered": bool,
    "final_reads": bool,
    "seconds": (int, float),
    "limit_seconds": (int, float),
    "healing_seconds": (int, float),
    "final_appends_seconds": (int, float),
    "collecting_seconds": (int, float),
    "refused_appends": list,
    "unhealed": list,
    "waiting_for": list,
    "left_again": list,
    "crashes": list,
    "vanished": list,
    "recorded": dict,
    "requests": list,
}
_RECOVERY_ITEMS: Final[Mapping[str, tuple[str, Mapping[str, type]]]] = {
    "crashes": ("crash", {"node": str, "time_ns": int, "error": str}),
    "vanished": ("vanished machine", {"node": str, "time_ns": int}),
    "requests": (
        "administrator's request",
        {"change": str, "topic": str, "partition": int, "began_ns": int, "outcome": str, "in_doubt": bool},
    ),
}
_SECONDS_END: Final = (1 << 63) / 1e9
"""Times are nanoseconds of 64 bits."""


class Misrecorded(Exception):
    """A recorded value that no recorder writes; the message is one line."""


# ---- tables ----------------------------------------------------------------------------------------------------------


def conform(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The columns of `schema`, in its types; other columns are left out. Raises Misrecorded.

    A type of the same values passes: an integer of another width, a dictionary of strings. So does a table of an
    earlier version, without `checkers.tables.ADDED_COLUMNS`.
    """
    for key in (b"faultline.table", b"faultline.version"):
        expected, actual = schema.metadata[key], (table.schema.metadata or {}).get(key)
        if actual not in (None, expected):
            raise Misrecorded(f"{key.decode()} is {actual.decode(errors='replace')}, not {expected.decode()}")
    table, columns = with_added_columns(table, schema), []
    for field in schema:
        if table.schema.get_field_index(field.name) < 0:
            raise Misrecorded(f"column {field.name} is missing, or there twice")
        column = table.column(field.name)
        if not _alike(column.type, field.type):
            raise Misrecorded(f"column {field.name} is of type {column.type}, not {field.type}")
        if column.null_count and not field.nullable:
            raise Misrecorded(f"column {field.name} is null in {column.null_count} of {len(column)} rows")
        try:
            columns.append(column.cast(field.type))
        except pa.ArrowException as error:
            raise Misrecorded(f"column {field.name}: {str(error).splitlines()[0]}") from None
    return pa.table(columns, schema=schema)


def _alike(actual: pa.DataType, expected: pa.DataType) -> bool:
    if pa.types.is_dictionary(actual):
        actual = actual.value_type
    if pa.types.is_list(expected):
        is_list = pa.types.is_list(actual) or pa.types.is_large_list(actual)
        return is_list and _alike(actual.value_type, expected.value_type)
    if pa.types.is_string(expected):
        return pa.types.is_string(actual) or pa.types.is_large_string(actual)
    if pa.types.is_integer(expected):
        return pa.types.is_integer(actual)
    return bool(actual.equals(expected))


def validated(evidence: RunEvidence) -> RunEvidence:
    """`evidence` with a gap for each part that breaks a rule, its tables empty; a part that has a gap gets no other."""
    for part, (names, rule) in _RULES.items():
        try:
            rule(evidence)
        except Misrecorded as error:
            known = any(gap.part is part for gap in evidence.gaps)
            gaps = evidence.gaps if known else (*evidence.gaps, EvidenceGap(part, str(error)))
            empty: dict[str, Any] = {name: _emptied(getattr(evidence, name)) for name in names}
            evidence = replace(evidence, gaps=gaps, **empty)
    return replace(evidence, gaps=(*evidence.gaps, *_incomplete(evidence)))


def _emptied(value: Any) -> Any:
    return value.slice(0, 0) if isinstance(value, pa.Table) else {}


def _check_history(evidence: RunEvidence) -> None:
    rows = evidence.history
    for name, known in (("kind", KINDS), ("phase", PHASES), ("outcome", OUTCOMES)):
        _require_known(rows, name, known)
    index, invoked = _int64(rows, "index"), _int64(rows, "invoked_ns")
    order = np.argsort(index, kind="stable")
    _require(index >= 0, index, "index {} is negative")
    _require(np.diff(index[order]) > 0, index[order][1:], "operation {} is there twice")
    _require(np.diff(invoked[order]) >= 0, index[order][1:], "operation {} was invoked before the one before it")
    _require(invoked >= 0, index, "operation {} was invoked before the run began")
    complete = np.asarray(pc.is_valid(rows["completed_ns"]))
    completed = np.asarray(pc.fill_null(rows["completed_ns"], np.iinfo(np.int64).max))
    _require(completed >= invoked, index, "operation {} completed before it was invoked")
    of_change = np.asarray(pc.is_in(rows["kind"], value_set=pa.array(CHANGES)))
    _require(complete | of_change, index, "operation {} is a read without a completion, which is never recorded")
    undecided = np.asarray(pc.equal(rows["outcome"], "info"))
    _require(complete | undecided, index, "operation {} has an outcome, and no completion")
    appends = np.asarray(pc.equal(rows["kind"], "append"))
    _require(np.asarray(pc.is_valid(rows["value"])) | ~appends, index, "append {} has no value")
    lengths = [np.asarray(pc.fill_null(pc.list_value_length(rows[name]), 0)) for name in ("offsets", "values")]
    _require(lengths[0] == lengths[1], index, "operation {} has not as many values as offsets")
    answered = np.asarray(pc.and_(pc.equal(rows["kind"], "poll"), pc.equal(rows["outcome"], "ok")))
    _require((lengths[0] == 0) | answered, index, "operation {} returned records, and is no poll that is ok")
    if pc.list_flatten(rows["offsets"]).null_count:
        raise Misrecorded("a poll returned a record without an offset")
    for topic, partition in named_partitions(rows):
        _require_place(evidence.settings, topic, partition)


def _check_trace(evidence: RunEvidence) -> None:
    rows = evidence.trace
    _require_known(rows, "kind", TRACE_KINDS)
    seq, times = _int64(rows, "seq"), _int64(rows, "time_ns")
    order = np.argsort(seq, kind="stable")
    _require(seq[order] == np.arange(len(seq)), seq[order], "seq {} does not follow the one before it")
    _require(np.diff(times[order]) >= 0, seq[order][1:], "event {} is earlier than the one before it")
    _require_nodes(evidence.settings, rows["node"])
    if pc.list_flatten(rows["members"]).null_count:
        raise Misrecorded("a member of an ISR is null")
    for detail in pc.unique(rows["detail"]).to_pylist():
        _object(detail, "detail")
    for topic, partition in named_partitions(rows):
        if evidence.settings.is_side_topic(topic):
            _require_partition(topic, partition, 0)  # faults may add some
        elif topic and not topic.startswith("__"):
            _require_place(evidence.settings, topic, partition)


def _check_replicas(evidence: RunEvidence) -> None:
    ends = evidence.replica_ends.to_pylist()
    logs = {(row["node"], row["topic"], row["partition"]): row for row in ends}
    if len(logs) < len(ends):
        raise Misrecorded("a node has two logs of one partition")
    _require_nodes(evidence.settings, evidence.replica_ends["node"])
    for (node, topic, partition), row in logs.items():
        _require_place(evidence.settings, topic, partition)
        if not _is_epoch_checkpoint(row["epoch_checkpoint"]):
            raise Misrecorded(f"the epoch checkpoint of {topic}-{partition} on {node} is no list of epochs and offsets")
        if not 0 <= row["log_start"] <= row["log_end"] or not -1 <= row["high_watermark"] <= row["log_end"]:
            raise Misrecorded(f"the log of {topic}-{partition} on {node} ends before it starts, or below its own mark")
    bounds = evidence.replicas.group_by(["node", "topic", "partition"]).aggregate(
        [("offset", "min"), ("offset", "max")]
    )
    for row in bounds.to_pylist():
        log = logs.get((row["node"], row["topic"], row["partition"]))
        if log is None or row["offset_min"] < 0 or row["offset_max"] >= log["log_end"]:
            raise Misrecorded(f"{row['topic']}-{row['partition']} on {row['node']} has records outside of its log")


def _is_epoch_checkpoint(text: str) -> bool:
    try:
        return all(_is_count(number) for entry in epoch_entries(text) or () for number in entry)
    except (ValueError, TypeError, RecursionError):
        return False


def _check_faults(evidence: RunEvidence) -> None:
    for number, row in enumerate(evidence.faults.to_pylist()):
        name = f"fault {number} ({row['fault']})"
        if not row["fault"] or not row["family"] or None in row["nodes"]:
            raise Misrecorded(f"{name} has no name, no family or no node")
        if row["started_ns"] < 0 or (row["ended_ns"] is not None and row["ended_ns"] < row["started_ns"]):
            raise Misrecorded(f"{name} ended before it started")
        _object(row["detail"], f"detail of {name}")
        numbers = _object(row["evidence"], f"evidence of {name}")
        of_nodes = numbers.get("nodes") or {}
        if not isinstance(of_nodes, dict) or not all(isinstance(each, dict) for each in of_nodes.values()):
            raise Misrecorded(f"evidence of {name}: nodes is no object of objects")
        for measured in (numbers, *of_nodes.values()):
            for loss in ("killed", "lost_bytes", "asked_below"):
                if not _is_number(measured.get(loss, 0)):
                    raise Misrecorded(f"evidence of {name}: {loss} is {measured[loss]!r}, not a number")
    _require_nodes(evidence.settings, pc.list_flatten(evidence.faults["nodes"]))


def _check_recovery(evidence: RunEvidence) -> None:
    recovery = evidence.recovery
    for name, kind in _RECOVERY_TYPES.items():
        if name not in recovery:
            continue
        value: Any = recovery[name]
        if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
            raise Misrecorded(f"{name} is {_short(value)}, which is not its type")
        if isinstance(value, int | float) and not abs(value) < _SECONDS_END:
            raise Misrecorded(f"{name} is {_short(value)}, no time of a run")
    for name in ("refused_appends", "unhealed", "waiting_for", "left_again"):
        if not all(isinstance(text, str) for text in recovery.get(name, ())):
            raise Misrecorded(f"{name} is {_short(recovery[name])}, which is no list of texts")
    for name, (what, types) in _RECOVERY_ITEMS.items():
        for item in recovery.get(name, ()):
            if not isinstance(item, dict) or not all(
                isinstance(item.get(field), kind) for field, kind in types.items()
            ):
                raise Misrecorded(f"the {what} {_short(item)} lacks {', '.join(types)}")
            if not all(_is_number(item[field]) for field in ("time_ns", "began_ns") if field in types):
                raise Misrecorded(f"a time of the {what} {_short(item)} has more than 64 bits")
    for name, count in recovery.get("recorded", {}).items():
        if not _is_count(count):
            raise Misrecorded(f"recorded.{name} is {_short(count)}, which is no number of rows")
    if "recovered" in recovery and not {"seconds", "limit_seconds"} <= recovery.keys():
        raise Misrecorded("seconds or limit_seconds is missing")


def _check_settings(evidence: RunEvidence) -> None:
    of_groups = pc.is_in(evidence.history["kind"], value_set=pa.array(["assign", "commit"]))
    by_members = pc.and_(of_groups, pc.not_equal(evidence.history["value"], NO_GENERATION))
    if pc.any(by_members).as_py() and not evidence.settings.groups:
        raise Misrecorded("groups is false or missing, and the history has operations of a group")


_RULES: Final[Mapping[EvidencePart, tuple[tuple[str, ...], Callable[[RunEvidence], None]]]] = {
    EvidencePart.RECOVERY: (("recovery",), _check_recovery),
    EvidencePart.HISTORY: (("history",), _check_history),
    EvidencePart.TRACE: (("trace",), _check_trace),
    EvidencePart.REPLICAS: (("replicas", "replica_ends"), _check_replicas),
    EvidencePart.FAULTS: (("faults",), _check_faults),
    EvidencePart.SETTINGS: ((), _check_settings),
}
"""Part → what is emptied when it breaks a rule, and its rules."""


# ---- complete runs ---------------------------------------------------------------------------------------------------


def _incomplete(evidence: RunEvidence) -> Iterator[EvidenceGap]:
    """The gaps of a run that was read to its end, and whose tables therefore cover all of it."""
    damaged = {gap.part for gap in evidence.gaps}
    if EvidencePart.RECOVERY in damaged or evidence.recovery.get("final_reads") is not True:
        return
    recorded = evidence.recovery.get("recorded", {})
    for part, name in _TABLES.items():
        count, least = getattr(evidence, name).num_rows, recorded.get(name, 0)
        if part not in damaged and count < least:
            yield EvidenceGap(part, f"{count} rows are left of at least {least}")
    endless = pc.sum(pc.is_null(evidence.faults["ended_ns"])).as_py()
    if EvidencePart.FAULTS not in damaged and endless:
        yield EvidenceGap(EvidencePart.FAULTS, f"{endless} of {evidence.faults.num_rows} faults have no end")
    places = _every_place(evidence)
    if EvidencePart.HISTORY not in damaged:
        reads = (pc.field("phase") == "final") & (pc.field("kind") != "append")
        final = evidence.history.filter(_ok(evidence.history)).filter(reads)
        yield from _uncovered(EvidencePart.HISTORY, places, final, "the history has no final read of")
    if EvidencePart.REPLICAS not in damaged and evidence.replica_ends.num_rows:
        yield from _uncovered(EvidencePart.REPLICAS, places, evidence.replica_ends, "no replica has a log of")
    if EvidencePart.TRACE in damaged or EvidencePart.SETTINGS in damaged:
        return
    if evidence.settings.has_decisions:
        sentence = "the metadata logs that were read tell of no decision about"
        decided = evidence.trace.filter(pc.equal(evidence.trace["kind"], "partition_changed"))
        yield from _uncovered(EvidencePart.TRACE, places, decided, sentence)
    elif evidence.settings.has_trace:
        yield from _uncovered(EvidencePart.TRACE, places, evidence.trace, "no node traced an event of")
        silent = set(evidence.settings.nodes) - set(pc.unique(evidence.trace["node"]).to_pylist())
        if silent:
            yield EvidenceGap(EvidencePart.TRACE, f"there is no event of {', '.join(sorted(silent))}")


_TABLES: Final = {EvidencePart.HISTORY: "history", EvidencePart.TRACE: "trace", EvidencePart.FAULTS: "faults"}
"""Part → its table, also in the recovery's `recorded`."""


def _ok(history: pa.Table) -> pa.ChunkedArray:
    return pc.equal(history["outcome"], "ok")


def _every_place(evidence: RunEvidence) -> set[tuple[str, int]]:
    """The partitions of the run: those of the settings, else all that a table names."""
    settings = evidence.settings
    if settings.topic and settings.partitions:
        return {(settings.topic, number) for number in range(settings.partitions)}
    tables = (evidence.history, evidence.trace, evidence.replica_ends)
    places = {place for table in tables for place in named_partitions(table)}
    besides = {topic for topic, _ in places if topic.startswith("__") or settings.is_side_topic(topic)}
    return {(topic, number) for topic, number in places if topic and topic not in besides and number >= 0}


def _uncovered(
    part: EvidencePart, places: set[tuple[str, int]], table: pa.Table, sentence: str
) -> Iterator[EvidenceGap]:
    missing = sorted(places.difference(named_partitions(table)))
    if missing:
        yield EvidenceGap(part, f"{sentence} {', '.join(f'{topic}-{number}' for topic, number in missing[:4])}")


# ---- settings --------------------------------------------------------------------------------------------------------


def settings_of(values: Mapping[str, Any]) -> CheckSettings:
    """The settings in a JSON object of names and values. Raises Misrecorded."""
    current = {OLD_NAMES.get(name, name): value for name, value in values.items()}
    for name in _ALWAYS_RECORDED:
        if name not in current:
            raise Misrecorded(f"{name} is missing")
    for item in fields(CheckSettings):
        if item.name not in current or item.default is MISSING:
            continue
        value, kind = current[item.name], type(item.default)
        if kind is tuple:
            if not isinstance(value, list | tuple) or not all(isinstance(each, str) for each in value):
                raise Misrecorded(f"{item.name} is {_short(value)}, which is no list of texts")
            continue
        if type(value) is not kind:
            raise Misrecorded(f"{item.name} is {_short(value)}, which is no {kind.__name__}")
        if kind is int and not _LEAST.get(item.name, -1) <= value < 1 << 63:
            raise Misrecorded(f"{item.name} is {value}, which it cannot be")
        if value not in _VALUES.get(item.name, (value,)):
            raise Misrecorded(f"{item.name} is {_short(value)}, none of {', '.join(_VALUES[item.name])}")
    try:
        return CheckSettings.from_json(current)
    except ValueError as error:
        raise Misrecorded(str(error)) from None


# ---- values ----------------------------------------------------------------------------------------------------------


def _require(rule: Any, names: Any, sentence: str) -> None:
    """Raise Misrecorded with the first of `names` for which `rule` is false."""
    broken = np.flatnonzero(~np.asarray(rule, dtype=bool))
    if len(broken):
        more = f" (and {len(broken) - 1} more)" if len(broken) > 1 else ""
        raise Misrecorded(sentence.format(names[broken[0]]) + more)


def _require_known(rows: pa.Table, name: str, known: Any) -> None:
    unknown = set(pc.unique(rows[name]).to_pylist()) - set(known)
    if unknown:
        raise Misrecorded(f"{name} {_short(min(unknown))} is unknown")


def _require_place(settings: CheckSettings, topic: str, partition: int) -> None:
    if settings.topic and topic != settings.topic:
        raise Misrecorded(f"topic {_short(topic)} is not the run's, {settings.topic}")
    _require_partition(topic, partition, settings.partitions)


def _require_partition(topic: str, partition: int, partitions: int) -> None:
    """`partitions` are those of the topic, 0 where that is not known."""
    if partition < 0 or (partitions and partition >= partitions):
        raise Misrecorded(f"partition {partition} is none of the {partitions} of {topic}")


def _require_nodes(settings: CheckSettings, nodes: pa.ChunkedArray) -> None:
    names = set(pc.unique(nodes).to_pylist())
    strange = names - set(settings.nodes) if settings.nodes else names & {""}
    if strange:
        raise Misrecorded(f"node {_short(min(strange))} is not of the cluster")


def _int64(table: pa.Table, name: str) -> np.typing.NDArray[np.int64]:
    return np.asarray(table[name], dtype=np.int64)


def _object(text: str, name: str) -> dict[str, Any]:
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise Misrecorded(f"{name} is {_short(text)}, no JSON object")
    return value


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) and abs(value) < 1 << 63


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << 63


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:39] + "…"
