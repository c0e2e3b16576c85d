"""Runs of a suite that have ended and are not yet in the tables: one file a run, there whole or not at all.

    STORE/suites/<suite>/suite.json      what the suite is to run, written before anything is run
                        /ended/<run>.arrow   what one ended run adds to each table of the store
                        /runs/<run>/     the directories of runs that were not valid
                        /work/           runs being made; worthless once nobody makes them
                        /summary.json, junit.xml   written at the end

Tasks leave one file a run, whoever runs the suite puts them into the tables, many runs a batch, and then removes them.
A suite may be killed at any moment: a run is done when it is in a complete batch or its file is here, and only then.
A run found in both is one whose file could not be removed any more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from results.atomic_files import put
from results.errors import StoreError
from results.store.layout import SCHEMAS, batch_path, plain
from results.store.tables import write_batch

_SUFFIX = ".arrow"


def suite_path(store: Path, suite: str) -> Path:
    """Where everything of a suite lies that is not in the tables."""
    return store / "suites" / plain("suite", suite)


def leave(directory: Path, run: str, tables: Mapping[str, pa.Table]) -> None:
    """Leave what `run` adds to the tables. StoreError when it cannot be written."""
    packed = pa.table({name: pa.array([_pack(tables[name])], pa.large_binary()) for name in SCHEMAS})
    target = directory / f"{plain('run', run)}{_SUFFIX}"
    put(target, lambda part: part.write_bytes(_pack(packed)), parents=True)


def waiting(directory: Path) -> list[str]:
    """The names of the runs whose files are there, in order."""
    return sorted(path.stem for path in directory.glob(f"[!.]*{_SUFFIX}"))


def take(directory: Path, run: str) -> dict[str, pa.Table]:
    """What `run` adds to the tables. StoreError when its file cannot be read."""
    path = directory / f"{run}{_SUFFIX}"
    try:
        packed = _unpack(path.read_bytes())
        return {name: _unpack(packed.column(name)[0].as_py()) for name in SCHEMAS}
    except OSError as error:
        raise StoreError.of("read", path, error) from error
    except (pa.ArrowException, KeyError) as error:
        raise StoreError(f"{path}: is damaged: {str(error).splitlines()[0]}") from None


def settle(store: Path, suite: str, runs: Sequence[str]) -> None:
    """Put `runs` into the tables as one batch, and remove their files. StoreError when that fails; nothing is lost."""
    directory = suite_path(store, suite) / "ended"
    there = done(store, suite)
    new = [run for run in runs if run not in there]
    if new:
        taken = [take(directory, run) for run in new]
        merged = {name: pa.concat_tables(tables[name] for tables in taken) for name in SCHEMAS}
        write_batch(store, suite, _next_batch(store, suite), merged)
    for run in runs:
        (directory / f"{run}{_SUFFIX}").unlink(missing_ok=True)


def done(store: Path, suite: str) -> set[str]:
    """The names of the runs that the suite's complete batches hold. StoreError when a file of `runs` is damaged."""
    found: set[str] = set()
    for path in _markers(store, suite):
        try:
            found.update(pq.read_table(path, columns=["run"], partitioning=None).column("run").to_pylist())
        except (OSError, pa.ArrowException) as error:
            raise StoreError(f"{path}: cannot be read: {str(error).splitlines()[0]}") from None
    return found


def _next_batch(store: Path, suite: str) -> str:
    numbers = [path.stem.removeprefix("batch-") for path in _markers(store, suite) if path.stem.startswith("batch-")]
    return f"batch-{max((int(number) for number in numbers if number.isdigit()), default=0) + 1:05d}"


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
