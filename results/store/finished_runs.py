"""Finished runs of a suite that are not yet in the tables: one file per run, complete or absent.

    STORE/suites/<suite>/suite.json      the plan of the suite, written before the first run
                        /ended/<run>.arrow   the rows of one finished run for each table of the store
                        /runs/<run>/     the directories of runs that were not valid
                        /work/           runs in progress; worthless once their process is gone
                        /summary.json, junit.xml   written at the end

Tasks write one file per run. The process that runs the suite moves these files into the tables, many runs per batch,
and then removes them. A suite may be killed at any moment: a run is done when a complete batch holds it or its file is
here, and only then. A run found in both places is one whose file could not be removed before the process died.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from results.atomic_files import put
from results.errors import StoreError
from results.store.schema import BATCH_OF_MANY, SCHEMAS, batch_path, plain
from results.store.tables import write_batch

_SUFFIX = ".arrow"


def suite_path(store: Path, suite: str) -> Path:
    """The directory of a suite's files other than the tables."""
    return store / "suites" / plain("suite", suite)


def write_finished(directory: Path, run: str, tables: Mapping[str, pa.Table]) -> None:
    """Write the rows of `run` for each table. StoreError when that fails."""
    packed = pa.table({name: pa.array([_pack(tables[name])], pa.large_binary()) for name in SCHEMAS})
    target = directory / f"{plain('run', run)}{_SUFFIX}"
    put(target, lambda part: part.write_bytes(_pack(packed)), parents=True)


def finished_names(directory: Path) -> list[str]:
    """The names of the finished runs, sorted."""
    return sorted(path.stem for path in directory.glob(f"[!.]*{_SUFFIX}"))


def read_finished(directory: Path, run: str) -> dict[str, pa.Table]:
    """The rows of `run` for each table. StoreError when its file cannot be read."""
    path = directory / f"{run}{_SUFFIX}"
    try:
        packed = _unpack(path.read_bytes())
        return {name: _unpack(packed.column(name)[0].as_py()) for name in SCHEMAS}
    except OSError as error:
        raise StoreError.of("read", path, error) from error
    except (pa.ArrowException, KeyError) as error:
        raise StoreError(f"{path}: is damaged: {str(error).splitlines()[0]}") from None


def move_to_tables(store: Path, suite: str, runs: Sequence[str]) -> None:
    """Move `runs` into the tables as one batch. StoreError when that fails; no run is lost."""
    directory = suite_path(store, suite) / "ended"
    stored = names_in_tables(store, suite)
    new = [run for run in runs if run not in stored]
    if new:
        finished = [read_finished(directory, run) for run in new]
        merged = {name: pa.concat_tables(tables[name] for tables in finished) for name in SCHEMAS}
        write_batch(store, suite, _next_batch(store, suite), merged)
    for run in runs:
        (directory / f"{run}{_SUFFIX}").unlink(missing_ok=True)


def names_in_tables(store: Path, suite: str) -> set[str]:
    """The names of the runs in the suite's complete batches. StoreError when a file of `runs` is damaged."""
    names: set[str] = set()
    for path in _markers(store, suite):
        try:
            names.update(pq.read_table(path, columns=["run"], partitioning=None).column("run").to_pylist())
        except (OSError, pa.ArrowException) as error:
            raise StoreError(f"{path}: cannot be read: {str(error).splitlines()[0]}") from None
    return names


def _next_batch(store: Path, suite: str) -> str:
    markers = (path.stem for path in _markers(store, suite) if path.stem.startswith(BATCH_OF_MANY))
    numbers = [stem.removeprefix(BATCH_OF_MANY) for stem in markers]
    return f"{BATCH_OF_MANY}{max((int(number) for number in numbers if number.isdigit()), default=0) + 1:05d}"


def _markers(store: Path, suite: str) -> list[Path]:
    path = batch_path(store, "runs", suite, "any").parent
    return sorted(path.glob("[!.]*.parquet"))


def _pack(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return bytes(sink.getvalue())


def _unpack(data: bytes) -> pa.Table:
    with pa.ipc.open_stream(data) as stream:
        return stream.read_all()
