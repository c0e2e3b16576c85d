"""A run directory: all files of a run, enough to check it again or reproduce it.

path                              contents                                                    written
--------------------------------  ----------------------------------------------------------  -----------------------
spec.yaml                         the complete spec, defaults and seed included               when the run starts
schedule.yaml                     the same spec with all its faults as a script               when they are drawn
settings.json                     CheckSettings: the promises made                            when the run starts
versions.json                     Python and the libraries that the digest depends on         when the run starts
status.json                       state, stage, seed, version, times, message                 at every change
history.jsonl → history.parquet   operations of clients (workloads/history.py)                as it happens → sealed
trace.jsonl → trace.parquet       protocol events of nodes (images/trace.py)                  as it happens → sealed
faults.jsonl → faults.parquet     injected faults, their times and effect                     as it happens → sealed
recovery.json                     the liveness phase after healing                            after healing
script.json                       what became of each scripted operation, if any              when the workload ends
nodes/<node>/data/, node.log      each node's files and log lines                             once all are collected
collected.json                    hashes of their replica logs                                once all are collected
manifest.json                     rows and hashes of all of it (results/run/manifest.py)      when sealed, last
replicas.parquet                  one row per record of a replica's log                       sealed
replica_ends.parquet              one row per replica                                         sealed
digest.txt, trail.txt             digest of the run; intermediate digests every so many steps  when the run ends
error.txt                         the traceback of what stopped the run, or drawing its page      when it fails
verdict.json                      the verdicts                                                when checked
stories.json                      what was violated, cause first (results/explanation)        when checked
lost.csv                          the records that are lost, if any, one per row              when checked
report.html                       the report                                                  when reported

During the run its tables are JSON lines, appended as things happen; the end of the run seals them as Parquet and
removes the lines. A run killed at any moment leaves a directory that still loads as far as it goes: `load` never fails
because something is missing, torn or damaged, and its evidence names what it lacks; `gaps` lists missing parts in
words. Small files are replaced atomically: they hold the old content or the new, never half of it. The trace is flushed
to the operating system in blocks, at the latest after one second of the run's time.

A run that is not wanted unless it fails, and is made again if it is killed, may hold its status, history, trace and the
nodes' files in memory (`results/run/held_tables.py`): its directory gets these, its tables and its manifest by
`write_all`, and is then the same.

Errors of the disk (full, read-only, no permission) are StoreErrors of one line naming the file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import csv

from checkers.evidence import CheckSettings, RunEvidence
from checkers.verdict import Verdict
from images.trace import TraceEvent
from results.atomic_files import put, put_json, put_text, read_json, read_text
from results.errors import BadName, StoreError
from results.run import evidence_loader, manifest, replica_logs
from results.run.held_tables import HeldTables
from results.run.json_encoding import trace_line, verdicts_from_json, verdicts_to_json
from results.run.json_lines import LineWriter
from results.run.node_files import write_files
from results.run.paths import new_run, remove_run
from results.run.status import Status
from results.version import digest_versions, version
from workloads.compact_json import compact
from workloads.history import Recorder

FORMAT: Final = 2
"""Of run directories. Those of format 1 have no manifest."""
_TRACE_FLUSH_NS = 1_000_000_000


class RunDirectory:
    """One run's directory, open for writing while it goes on and for reading ever after."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._held: HeldTables | None = None
        self._trace: LineWriter | None = None
        self._faults: LineWriter | None = None
        self.events_traced = 0
        """Events of the trace so far."""
        self._faults_begun: set[int] = set()
        self._trace_flushed_ns = 0
        self._status = Status("")
        self._sealed: RunEvidence | None = None

    # ---- making and finding one -----------------------------------------------------------------------------------

    @classmethod
    def create(cls, store: Path, spec_name: str, seed: int, *, in_memory: bool = False) -> Self:
        """A new, empty directory in the store, named after the start time, the spec and the seed; `in_memory`: status,
        history, trace and the nodes' files are held there."""
        run = cls(new_run(store, spec_name, seed))
        run._held = HeldTables() if in_memory else None
        run._status = Status("running", seed=seed, name=spec_name, version=version(), started=_now(), format=FORMAT)
        run._save_status(run._status)
        put_text(run.path / evidence_loader.FAULT_LINES, "")
        return run

    def discard(self) -> None:
        """Remove the directory of a run that was refused. Raises StoreError."""
        self.close()
        remove_run(self.path)

    @classmethod
    def open(cls, path: Path) -> Self:
        """An existing run directory. BadName when `path` is not one."""
        run = cls(path)
        if not path.is_dir():
            raise BadName(f"{path}: there is no such run directory")
        if not any((path / name).exists() for name in ("status.json", "spec.yaml")):
            raise BadName(f"{path}: not a run directory (neither status.json nor spec.yaml is in it)")
        run._status = run.status()
        return run

    @classmethod
    def restore(
        cls,
        path: Path,
        status: Status,
        spec: str,
        evidence: RunEvidence,
        verdicts: Sequence[Verdict],
        digest: str | None,
    ) -> Self:
        """Write a run from the store, sealed, into the empty directory `path`.

        The store has neither the nodes' files nor the digest's trail: checking and replaying work without them.
        """
        run = cls(path)
        if spec:
            run.write_spec(spec)
        run.write_settings(evidence.settings)
        run.write_recovery(evidence.recovery)
        run.write_digest(digest)
        run._status = replace(status, format=FORMAT)
        run._save_tables(evidence)
        manifest.write(run.path, run._identity, evidence)
        if verdicts:
            run.write_verdict(verdicts)
        run._save_status(run._status)
        return run

    @property
    def name(self) -> str:
        """The directory's own name, such as `20261121T001500-append-seed7`."""
        return self.path.resolve().name

    @property
    def history_path(self) -> Path:
        """The file of the run's Recorder."""
        return self.path / evidence_loader.HISTORY_LINES

    @property
    def nodes_path(self) -> Path:
        """Below which each node's files are once they were collected: `<node>/data/` and `<node>/node.log`."""
        return self.path / evidence_loader.NODES

    @property
    def report_path(self) -> Path:
        """The path of the report."""
        return self.path / "report.html"

    # ---- small files ----------------------------------------------------------------------------------------------

    def write_spec(self, text: str) -> None:
        """Keep the complete spec, as `replay` will read it."""
        put_text(self.spec_path, text)

    @property
    def spec_path(self) -> Path:
        """The file of the complete spec."""
        return self.path / "spec.yaml"

    def read_spec_text(self) -> str:
        """The spec as it was run. StoreError when the run died before it was written."""
        text = read_text(self.spec_path)
        if text is None:
            raise StoreError(f"{self.path}: spec.yaml is missing, so this run cannot be brought back")
        return text

    def write_settings(self, settings: CheckSettings) -> None:
        """Save the settings that the checkers need."""
        put_json(self.path / "settings.json", settings.to_json())

    @property
    def is_held(self) -> bool:
        """Whether it holds what it can in memory."""
        return self._held is not None

    def write_status(self, state: str, *, stage: str = "", message: str = "", **facts: Any) -> None:
        """Save the state of the run. Facts given earlier are kept."""
        old = self._status
        self._save_status(
            replace(old, state=state, stage=stage, updated=_now(), message=message, facts={**old.facts, **facts})
        )

    def status(self) -> Status:
        """The last saved status; state `unknown` when it cannot be read."""
        if self._held is not None:
            return self._status
        try:
            return Status.from_json(read_json(self.path / "status.json"))
        except StoreError:
            return Status("unknown")

    def write_recovery(self, recovery: Mapping[str, Any]) -> None:
        """Save the result of the liveness phase (`checkers.evidence.RunEvidence.recovery`)."""
        if self._trace is not None:
            self._trace.flush()
        put_json(self.path / "recovery.json", dict(recovery))

    def write_script(self, outcomes: Sequence[Mapping[str, Any]]) -> None:
        """Save what became of each scripted operation."""
        put_json(self.path / "script.json", {"operations": list(outcomes)})

    def script(self) -> list[dict[str, Any]]:
        """What became of each scripted operation; empty without a script, when the run ended before it did, and where
        `gaps` says that the file is damaged."""
        return self._script()[0]

    def _script(self) -> tuple[list[dict[str, Any]], str]:
        """The script, and what is wrong with its file."""
        try:
            outcomes = read_json(self.path / "script.json").get("operations", [])
        except StoreError:
            outcomes = None
        if isinstance(outcomes, list) and all(
            _has(outcome, "operation", "performed", "reason") for outcome in outcomes
        ):
            return outcomes, ""
        return [], "script.json is damaged: it is not known which scripted operations were performed"

    def write_digest(self, digest: str | None, trail: Sequence[tuple[int, int, str]] = ()) -> None:
        """Keep the digest of a deterministic run, and its trail of (step, time in ns, digest so far)."""
        if digest is not None:
            put_text(self.path / "trail.txt", "".join(f"{step} {time_ns} {part}\n" for step, time_ns, part in trail))
            put_text(self.path / "digest.txt", digest + "\n")

    def write_report(self, page: str) -> None:
        """Keep the report."""
        put_text(self.report_path, page)

    def write_versions(self) -> None:
        """Keep the versions that the digest of a run made here and now depends on."""
        put_json(self.path / "versions.json", digest_versions())

    def versions(self) -> dict[str, str]:
        """The versions that the digest depends on, by name; empty for a run recorded without them."""
        return {name: str(value) for name, value in read_json(self.path / "versions.json").items()}

    def digest(self) -> str | None:
        """The digest; None when the run had none or did not get that far."""
        text = read_text(self.path / "digest.txt")
        return text.strip() if text else None

    def trail(self) -> list[tuple[int, int, str]]:
        """The trail; empty when there is none."""
        rows = (line.split() for line in (read_text(self.path / "trail.txt") or "").splitlines())
        return [(int(row[0]), int(row[1]), row[2]) for row in rows if len(row) == 3]

    def write_verdict(self, verdicts: Sequence[Verdict]) -> None:
        """Keep the verdicts, and what they come to."""
        put_json(self.path / "verdict.json", verdicts_to_json(verdicts))

    def write_stories(self, stories: Mapping[str, Any]) -> None:
        """Keep the stories of what was violated (`results.explanation`), as JSON values."""
        put_json(self.path / "stories.json", dict(stories))

    def stories(self) -> list[dict[str, Any]]:
        """The stories, as JSON values; none when nothing was violated. StoreError when they are damaged."""
        stories = read_json(self.path / "stories.json").get("stories", [])
        if not isinstance(stories, list) or not all(_has(story, "signature", "signatures") for story in stories):
            raise StoreError(f"{self.path / 'stories.json'} is damaged; faultline check writes it anew")
        return stories

    def write_lost(self, lost: pa.Table) -> None:
        """The records lost (`checkers.tables.LOST`); without any there is no such file."""
        target = self.path / "lost.csv"
        if lost.num_rows:
            put(target, partial(csv.write_csv, lost))
        else:
            target.unlink(missing_ok=True)

    def verdicts(self) -> list[Verdict]:
        """The verdicts; empty when the run was never checked. StoreError when they are damaged."""
        values = read_json(self.path / "verdict.json")
        try:
            return verdicts_from_json(values)
        except (AttributeError, KeyError, TypeError, ValueError):
            raise StoreError(f"{self.path / 'verdict.json'} is damaged; faultline check writes it anew") from None

    # ---- what happens during the run ------------------------------------------------------------------------------

    def recorder(self, now_ns: Callable[[], int], on_acknowledged: Callable[[int], None]) -> Recorder:
        """The recorder of the run's history."""
        if self._held is None:
            return Recorder(self.history_path, now_ns, on_acknowledged)
        self._held.recorder = Recorder(None, now_ns, on_acknowledged)
        return self._held.recorder

    def append_trace(self, time_ns: int, node: str, event: TraceEvent) -> None:
        """Record a protocol event at once; called in the order in which the events are received."""
        self.events_traced += 1
        if self._held is not None:
            self._held.append_trace(time_ns, node, event)
            return
        if self._trace is None:
            self._trace = LineWriter(self.path / evidence_loader.TRACE_LINES)
        self._trace.write(trace_line(time_ns, node, self.events_traced - 1, event))
        if time_ns - self._trace_flushed_ns >= _TRACE_FLUSH_NS:
            self._trace_flushed_ns = time_ns
            self._trace.flush()

    def append_fault(
        self,
        number: int,
        *,
        fault: str,
        family: str,
        nodes: Sequence[str],
        started_ns: int,
        ended_ns: int | None = None,
        detail: Mapping[str, Any] | None = None,
        evidence: Mapping[str, Any] | None = None,
        bit: bool = False,
        note: str = "",
    ) -> None:
        """Record that fault `number` began and, called again with the same number, how it ended: the last call wins.

        The first row is written when the fault begins, so a run that dies during a fault still has it.
        """
        if self._faults is None:
            self._faults = LineWriter(self.path / evidence_loader.FAULT_LINES)
        self._faults_begun.add(number)
        row = {
            "number": number,
            "fault": fault,
            "family": family,
            "nodes": list(nodes),
            "started_ns": started_ns,
            "ended_ns": ended_ns,
            "detail": compact(dict(detail or {})),
            "evidence": compact(dict(evidence or {})),
            "bit": bit,
            "note": note,
        }
        self._faults.write_object(row)

    @property
    def faults_recorded(self) -> int:
        """Faults that have begun so far."""
        return len(self._faults_begun)

    @contextmanager
    def collecting(self, *, keep_part: bool = False) -> Iterator[Path]:
        """A directory to collect the nodes' files in; it becomes `nodes_path` once everything is there.

        A partial collection would look like replicas that lost data, so a run killed meanwhile has none at all. With
        `keep_part` a collection that fails is kept for people, and without its hashes it is no evidence.
        """
        part = self.path / ".nodes.part"
        try:
            part.mkdir(exist_ok=True)
            yield part
            put_json(self.path / evidence_loader.COLLECTED, replica_logs.fingerprints(part))
            os.replace(part, self.nodes_path)
        except OSError as error:
            raise StoreError.of("collect the nodes' files in", self.nodes_path, error) from error
        finally:
            if keep_part and part.exists():
                os.replace(part, self.nodes_path)

    def hold_files(self, files: Mapping[str, bytes]) -> None:
        """Hold the nodes' files, by their path below `nodes_path`, as collected."""
        assert self._held is not None
        self._held.files = files

    # ---- the end of the run ---------------------------------------------------------------------------------------

    def seal(self) -> RunEvidence:
        """Make Parquet of every table, read the collected replica logs, and return it all as evidence.

        The manifest comes last. Sealing what is sealed changes nothing, and gives the evidence as it was sealed. A
        table's lines are removed once its Parquet file is safely in place, unless they are damaged. Of a run that is
        held in memory nothing is written before `write_all`.
        """
        self.close()
        if self._sealed is not None:
            return self._sealed
        if (self.path / manifest.MANIFEST).exists():
            return self.load()
        evidence = evidence_loader.load(self.path, held=self._held)
        if self._held is None:
            self._write_tables(evidence)
        self._sealed = evidence
        return evidence

    def write_all(self) -> None:
        """Write what a run holds in memory, its tables, and then its manifest. Raises StoreError."""
        evidence, held = self.seal(), self._held
        if held is not None:
            self._held = None
            self._save_status(self._status)
            if held.files:
                with self.collecting() as nodes:
                    write_files(nodes, held.files)
        self._write_tables(evidence)

    def _write_tables(self, evidence: RunEvidence) -> None:
        self._save_tables(evidence)
        manifest.write(self.path, self._identity, evidence)

    @property
    def _identity(self) -> str:
        """Names the run in its manifest and its tables, wherever its directory is moved."""
        return f"{self._status.name} seed {self._status.seed} started {self._status.started}"

    def _save_tables(self, evidence: RunEvidence) -> None:
        damaged = {gap.part for gap in evidence.gaps}
        for name, part in manifest.TABLES.items():
            table, target = getattr(evidence, name), self.path / f"{name}.parquet"
            if not target.exists():
                metadata = {**table.schema.metadata, evidence_loader.RUN_KEY: self._identity.encode()}
                named = table.replace_schema_metadata(metadata)
                put(target, partial(pq.write_table, named, compression="zstd", write_page_checksum=True))
            if part not in damaged:
                (self.path / f"{name}.jsonl").unlink(missing_ok=True)

    def close(self) -> None:
        """Flush and release the files; what is not sealed stays as lines. Closing twice changes nothing."""
        for writer in (self._trace, self._faults):
            if writer is not None:
                writer.close()

    # ---- reading --------------------------------------------------------------------------------------------------

    def load(self) -> RunEvidence:
        """The evidence as far as it goes: sealed tables where there are, else what their lines still hold."""
        for writer in (self._trace, self._faults):
            if writer is not None:
                writer.flush()
        if self._held is not None and not (self.path / manifest.MANIFEST).exists():
            return evidence_loader.load(self.path, held=self._held)
        status = self.status()
        has_finished = status.state == "finished" and status.format >= FORMAT
        return evidence_loader.load(self.path, sealed=has_finished or status.state == "unknown")

    def gaps(self) -> tuple[str, ...]:
        """The missing or truncated parts, in words; empty for a run that ended normally."""
        damage = self._script()[1]
        gaps = (*self.status().gaps(), *([damage] if damage else []))
        return (*gaps, *self._unlike_the_manifest(("spec.yaml",)), *evidence_loader.gaps(self.path))

    def check_replayable(self) -> None:
        """StoreError when the spec or the digest is missing or not what was recorded: no replay would be a comparison
        with this run."""
        problems = self._unlike_the_manifest(("spec.yaml", "digest.txt", "trail.txt"))
        if problems:
            raise StoreError(f"{self.path}: {problems[0]}, so this run cannot be brought back")

    def _unlike_the_manifest(self, names: Sequence[str]) -> list[str]:
        try:
            sealed = manifest.read(self.path)
        except StoreError as error:
            return [str(error).removeprefix(f"{self.path}/")]
        return [line for name in names if (line := sealed.file_problem(self.path, name))] if sealed else []

    def _save_status(self, status: Status) -> None:
        self._status = status
        if self._held is not None:
            return
        put_json(self.path / "status.json", status.to_json())


def _has(value: object, *names: str) -> bool:
    return isinstance(value, dict) and value.keys() >= set(names)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
