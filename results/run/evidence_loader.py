"""Loading the evidence of a run directory, sealed or still as lines, and listing what it lacks.

Reading never fails because something is missing, torn or damaged: `load` reads as far as the files go. Each table of a
sealed run must be what the manifest says (`results.run.manifest`), and the values of every table are validated
(`results.run.recorded_values`); a part that is not sound is left empty, and its `EvidenceGap` says why. `gaps` lists in
words what is missing of a run that was cut short.

A sealed table (Parquet) takes precedence over its lines, which are removed once it is in place.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from checkers.evidence import CheckSettings, EvidenceGap, EvidencePart, RunEvidence
from checkers.tables import FAULTS, REPLICA_ENDS, REPLICAS, TRACE
from nemesis import old_names
from results.atomic_files import read_json
from results.errors import StoreError
from results.run import manifest as manifests
from results.run import replica_logs
from results.run.held_tables import HeldTables
from results.run.json_lines import fill, read_lines, read_objects
from results.run.manifest import MANIFEST, TABLES, Manifest
from results.run.node_files import FileTree, HeldTree
from results.run.recorded_values import Misrecorded, conform, settings_of, validated
from workloads.history import SCHEMA as HISTORY
from workloads.history import read_jsonl

HISTORY_LINES: Final = "history.jsonl"
TRACE_LINES: Final = "trace.jsonl"
FAULT_LINES: Final = "faults.jsonl"
COLLECTED: Final = "collected.json"
"""Names a hash of the replica logs of each node (`replica_logs.fingerprints`) once all of them were collected."""
NODES: Final = "nodes"
"""Below it, each node's files."""
RUN_KEY: Final = b"faultline.run"
"""Names the run in the metadata of its Parquet files."""
_SCHEMAS: Final = {
    "history": HISTORY,
    "trace": TRACE,
    "faults": FAULTS,
    "replicas": REPLICAS,
    "replica_ends": REPLICA_ENDS,
}
_LINES: Final = ("history", "trace", "faults")
"""The tables that are written as lines."""


def load(run: Path, *, sealed: bool = False, held: HeldTables | None = None) -> RunEvidence:
    """The evidence in the directory `run`; `sealed`: a run of its state and format must have a manifest. History,
    trace and the nodes' files are in `held` where they are not in the directory."""
    return _Loading(run, sealed, held).evidence()


@dataclass
class _Loading:
    """Reads one run directory, and notes what is wrong with it."""

    run: Path
    must_be_sealed: bool
    held: HeldTables | None = None
    gaps: list[EvidenceGap] = field(default_factory=list)
    manifest: Manifest | None = None

    def evidence(self) -> RunEvidence:
        """Everything that is sound."""
        self._read_manifest()
        settings = self._settings()
        recovery = self._object("recovery.json", EvidencePart.RECOVERY)
        history, trace, faults = (
            self._table("history", self._history_lines if self.held is None else self._held("history")),
            self._table("trace", self._trace_lines if self.held is None else self._held("trace")),
            self._table("faults", self._fault_lines),
        )
        replicas, ends = self._replica_logs(trace, settings.script_topics + settings.side_topics)
        return validated(
            RunEvidence(
                history=history,
                replicas=replicas,
                replica_ends=ends,
                trace=trace,
                faults=with_current_names(faults),
                settings=settings,
                recovery=recovery,
                gaps=tuple(dict.fromkeys(self.gaps)),
            )
        )

    def _read_manifest(self) -> None:
        try:
            self.manifest = manifests.read(self.run)
        except StoreError as error:
            self._unverified(str(error).removeprefix(f"{self.run}/"))
            return
        if self.manifest is not None:
            self.gaps += self.manifest.gaps
        elif self.must_be_sealed:
            self._unverified(f"{MANIFEST} is missing, so nothing can be verified")

    def _unverified(self, reason: str) -> None:
        self.gaps += [EvidenceGap(part, reason) for part in EvidencePart if part is not EvidencePart.LOSSES]

    def _lack(self, part: EvidencePart, reason: str) -> None:
        self.gaps.append(EvidenceGap(part, reason))

    def _object(self, name: str, part: EvidencePart) -> Mapping[str, Any]:
        """The object in a JSON file; an empty one when it is missing or damaged."""
        problem = self.manifest.file_problem(self.run, name) if self.manifest is not None else ""
        if problem:
            self._lack(part, problem)
            return {}
        try:
            value = json.loads((self.run / name).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, RecursionError) as error:
            self._lack(part, f"{name} cannot be read: {_first_line(error)}")
            return {}
        if not isinstance(value, dict):
            self._lack(part, f"{name} holds no JSON object")
            return {}
        return value

    def _settings(self) -> CheckSettings:
        known = len(self.gaps)
        values = self._object("settings.json", EvidencePart.SETTINGS)
        if len(self.gaps) > known:
            return CheckSettings()
        try:
            return settings_of(values)
        except Misrecorded as error:
            exists = (self.run / "settings.json").exists()
            self._lack(EvidencePart.SETTINGS, f"settings.json: {error}" if exists else "settings.json is missing")
            return CheckSettings()

    def _table(self, name: str, otherwise: Callable[[], pa.Table]) -> pa.Table:
        """The sound rows of a table, in their order; none when it is damaged."""
        path, schema = self.run / f"{name}.parquet", _SCHEMAS[name]
        try:
            if not path.exists():
                if self.manifest is not None:
                    raise Misrecorded(f"{path.name} is missing")
                table = conform(otherwise(), schema)
            else:
                table = self._sealed(path, schema)
        except (Misrecorded, StoreError) as error:
            self._lack(TABLES[name], str(error))
            return schema.empty_table()
        table = manifests.in_order(name, table)
        problem = self.manifest.table_problem(name, table) if self.manifest is not None else ""
        if problem:
            self._lack(TABLES[name], problem)
            return schema.empty_table()
        return table

    def _sealed(self, path: Path, schema: pa.Schema) -> pa.Table:
        try:
            with path.open("rb") as file:  # Arrow opens no path that is not UTF-8
                table = pq.ParquetFile(file, page_checksum_verification=True).read()
        except (OSError, ValueError, pa.ArrowException) as error:
            raise Misrecorded(f"{path.name} cannot be read: {_first_line(error)}") from None
        owner = (table.schema.metadata or {}).get(RUN_KEY)
        if self.manifest is not None and owner not in (None, self.manifest.run.encode()):
            raise Misrecorded(f"{path.name} is of another run: {owner.decode(errors='replace')}")
        try:
            return conform(table, schema)
        except Misrecorded as error:
            raise Misrecorded(f"{path.name}: {error}") from None

    def _replica_logs(self, trace: pa.Table, left_out: Collection[str]) -> tuple[pa.Table, pa.Table]:
        if self.manifest is None and not (self.run / "replica_ends.parquet").exists():
            try:
                logs = replica_logs.read_nodes(self._nodes(), trace, left_out)
            except (Misrecorded, StoreError) as error:
                self._lack(EvidencePart.REPLICAS, str(error))
                return REPLICAS.empty_table(), REPLICA_ENDS.empty_table()
            return logs.records, logs.ends
        replicas, ends = (self._table(name, _SCHEMAS[name].empty_table) for name in ("replicas", "replica_ends"))
        return replicas, ends

    def _nodes(self) -> FileTree:
        """The files of the nodes. Raises Misrecorded unless these, as far as there are any, are those collected."""
        if self.held is not None:
            return HeldTree.of(self.held.files)
        nodes = self.run / NODES
        if not nodes.is_dir():
            return nodes
        if not (self.run / COLLECTED).exists():
            raise Misrecorded(f"{COLLECTED} is missing, so it is not known whether the files of the nodes are whole")
        collected, actual = read_json(self.run / COLLECTED), replica_logs.fingerprints(nodes)
        others = [node for node in sorted({*collected, *actual}) if collected.get(node) != actual.get(node)]
        if others:
            raise Misrecorded(f"the replica logs of {', '.join(others)} are not those that were collected")
        return nodes

    def _held(self, name: Literal["history", "trace"]) -> Callable[[], pa.Table]:
        """Makes a table of what is held in memory."""
        assert self.held is not None
        table_of = {"history": self.held.history, "trace": self.held.trace}[name]

        def table() -> pa.Table:
            try:
                return table_of()
            except (ValueError, TypeError, OverflowError, RecursionError, pa.ArrowException) as error:
                raise Misrecorded(f"{name}: {_first_line(error)}") from None

        return table

    def _trace_lines(self) -> pa.Table:
        salvaged = read_lines(self.run / TRACE_LINES, TRACE)
        if salvaged.damage:
            self._lack(EvidencePart.TRACE, salvaged.damage)
        return salvaged.table

    def _history_lines(self) -> pa.Table:
        path = self.run / HISTORY_LINES
        try:
            return read_jsonl(path)
        except FileNotFoundError:
            return HISTORY.empty_table()
        except (OSError, ValueError, TypeError, OverflowError, RecursionError, pa.ArrowException) as error:
            raise Misrecorded(f"{path.name}: {_first_line(error)}") from None

    def _fault_lines(self) -> pa.Table:
        rows, damage = read_objects(self.run / FAULT_LINES)
        latest = {row["number"]: row for row in rows if isinstance(row.get("number"), int)}
        if damage or not all(isinstance(row.get("number"), int) for row in rows):
            raise Misrecorded(damage or "faults.jsonl has a fault without a number")
        nullable = pa.schema([field.with_nullable(True) for field in FAULTS])
        values = [{name: row.get(name) for name in FAULTS.names} for row in latest.values()]
        try:
            return fill(pa.Table.from_pylist(values, nullable), FAULTS)
        except (pa.ArrowException, TypeError, OverflowError) as error:
            raise Misrecorded(f"faults.jsonl: {_first_line(error)}") from None


def with_current_names(faults: pa.Table) -> pa.Table:
    """The table FAULTS of a run that may be older than today's names of faults and families."""
    for column, old_to_new in (("fault", old_names.FAULTS), ("family", old_names.FAMILIES)):
        names = [old_to_new.get(name, name) for name in faults.column(column).to_pylist()]
        field = faults.schema.field(column)
        faults = faults.set_column(faults.schema.get_field_index(column), field, pa.array(names, field.type))
    return faults


def gaps(run: Path) -> Iterator[str]:
    """The missing or truncated parts of the evidence in the directory `run`, in words."""
    for name in _LINES:
        if (run / f"{name}.parquet").exists():
            continue
        path = run / f"{name}.jsonl"
        if path.exists():
            lost = read_lines(path, _SCHEMAS[name]).lost_bytes
            if lost:
                yield f"{path.name} ends in a torn line, left out ({lost} bytes)"
        elif name != "faults":
            yield f"no {name} was recorded"
    if not (run / NODES).is_dir() and not (run / "replica_ends.parquet").exists():
        yield "no replica logs were collected"


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
