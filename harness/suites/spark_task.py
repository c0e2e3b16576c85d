"""The Spark task of a suite: makes runs in the simulation, checks them, and leaves each in the store as it ends.

A run is made in a directory of its own below the suite's `work`; in the simulation most of what it records is held
in memory, since a run that is cut short is made again from the start. One that was not valid, or could not be carried
out, is written out, moved to the suite's `runs`, whole, and reported; of one that was valid, or of a broker known to be
wrong, only its rows in the tables stay. The file below `ended` comes last and makes the run count, so that whatever
kills a task kills only the run it is making.

A task returns nothing: the result of a run is in the tables. It raises only when the store cannot be written: no error
within a run stops a suite.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from traceback import format_exception
from typing import TYPE_CHECKING

from harness.suites.boxes import boxed_facts
from harness.suites.plan import PlannedRun, Suite

if TYPE_CHECKING:
    from harness.spec import Spec
    from results.run.directory import RunDirectory


def maker(directory: Path, plan: str, runs: Sequence[PlannedRun]) -> Callable[[Iterator[int]], None]:
    """For `foreachPartition` over numbers of `runs`: makes each of them, and leaves it in the suite's `directory`.

    `plan` is the suite, as the text of a JSON object.
    """

    def make_each(numbers: Iterator[int]) -> None:
        suite = Suite.from_json(json.loads(plan))
        for number in numbers:
            make(directory, runs[number], suite.spec(runs[number]))

    return make_each


def is_known_wrong(spec: Spec) -> bool:
    """Whether the spec is that of a mutant. A generation of the protocol that its world has drawn is a sound one."""
    given = "faultline.protocol" in spec.settings and "faultline.protocol" not in spec.drawn
    return bool(spec.without or spec.mistakes or given)


def make(directory: Path, planned: PlannedRun, spec: Spec) -> None:
    """Make one run and leave it in the store."""
    from results.atomic_files import put_text
    from results.errors import StoreError
    from results.pages.report import write_report
    from results.run.directory import RunDirectory
    from results.store.finished_runs import write_finished
    from results.store.tables import of_run

    work, kept = directory / "work" / planned.run, directory / "runs" / planned.run
    shutil.rmtree(work, ignore_errors=True)
    run_directory = RunDirectory.create(work, planned.run, planned.seed, in_memory=spec.environment == "sim")
    began_s = time.process_time()
    good = _is_valid(spec, run_directory)
    evidence = run_directory.seal()
    if planned.boxed:
        status, facts = run_directory.status(), boxed_facts(evidence, run_directory.verdicts(), began_s)
        run_directory.write_status(status.state, stage=status.stage, message=status.message, **facts)
    keep = not good and not (planned.boxed and is_known_wrong(spec))
    if keep:
        run_directory.write_all()
        shutil.rmtree(kept, ignore_errors=True)
        try:
            kept.parent.mkdir(parents=True, exist_ok=True)
            os.replace(run_directory.path, kept)
        except OSError as error:
            raise StoreError.of("keep the run in", kept, error) from error
        run_directory = RunDirectory.open(kept)
        try:
            write_report(run_directory, evidence)
        except StoreError:
            raise
        except Exception as error:  # the verdict stands without its page
            put_text(run_directory.path / "error.txt", "".join(format_exception(error)))
    rows = of_run(run_directory, evidence, cell=planned.result_cell, name=planned.run, keep_evidence=keep)
    write_finished(directory / "ended", planned.run, rows)
    shutil.rmtree(work, ignore_errors=True)


def _is_valid(spec: Spec, directory: RunDirectory) -> bool:
    """Carry a spec out: whether that could be done, and the run is valid."""
    from checkers.verdict import Validity
    from harness.runner.run import run
    from results.errors import StoreError

    try:
        outcome = run(spec, directory, report=False)
    except StoreError:
        raise
    except Exception as error:
        # An error of the harness, outside of the run itself, must not end the rest of the suite.
        directory.write_status("failed", message=f"{type(error).__name__}: {' '.join(str(error).split())}")
        return False
    return not outcome.failure and outcome.validity is Validity.VALID
