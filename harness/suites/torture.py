"""Torture: the full protocol over many seeds, and every mutant until it is found.

The full protocol must come out `valid` on every seed; an `unknown` counts only with its cause stated, and each fault
family must have bitten somewhere. A mutant, one rule switched off, must be found `invalid` within its seeds; the search
for it ends at the first.

Runs are dealt to as many processes as there are cores; each process makes one run at a time, in a temporary directory
that it deletes. The result of a seed does not depend on who ran it or what ran beside it: the first seeds of the full
protocol are run once more, in other processes that hash strings differently, and must end in the same digests.
"""

from __future__ import annotations

import json
import multiprocessing.pool
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from nemesis.registry import FAIR_FAMILIES

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

NO_CAUSE: Final = "without a stated cause"
DEFAULT_WORKLOAD: Final = "append"
FULL: Final = ""
"""The target that switches nothing off."""

_RUNS_PER_PROCESS: Final = 50
"""A process is replaced after so many runs: what killed nodes left unfinished is never freed, on purpose."""

MUTANTS: tuple[str, ...] = (
    "fence_fetch_epoch",
    "maximal_isr",
    "leso_gates_isr_join",
    "ack_after_high_watermark",
    "truncate_on_divergence",
    "broker_epoch_checked_in_alter_partition",
    "unclean_leaves_elr",
    "min_isr_gates_high_watermark",
    "idempotent_dedupe",
    "consumer_reads_below_high_watermark",
    "offset_commit_after_high_watermark",
    "generation_fences_commits",
    "log_start_never_above_high_watermark",
    "retention_stops_at_high_watermark",
    "vote_once_per_epoch",
    "vote_is_synced",
    "vote_needs_up_to_date_log",
    "metadata_needs_majority",
    "metadata_is_synced",
    "commit_only_own_epoch",
    "metadata_cut_on_divergence",
)
"""The rules whose absence random faults must find."""

WORKLOADS: Mapping[str, str] = {
    "offset_commit_after_high_watermark": "groups",
    "generation_fences_commits": "groups",
}
"""The workload that finds a mutant, where it is not the default one."""

SETTINGS: Mapping[str, Mapping[str, str]] = {
    "retention_stops_at_high_watermark": {"retention.ms": "800", "segment.bytes": "1024"},
}
"""The settings that a mutant needs to be found, where the default ones never let it act."""


@dataclass(frozen=True, slots=True)
class Job:
    """One run to make."""

    mutant: str
    seed: int
    workload: str = DEFAULT_WORKLOAD


@dataclass(frozen=True, slots=True)
class Result:
    """What one run said, small enough to be sent between processes."""

    mutant: str
    seed: int
    validity: str
    """valid, invalid, unknown; or failed when the run could not be carried out."""
    causes: tuple[str, ...]
    """`checker: kind` of every finding that was not valid, or why the run failed."""
    bitten: tuple[str, ...]
    digest: str
    seconds: float


@dataclass(slots=True)
class Tally:
    """All results of one target."""

    mutant: str
    runs: int = 0
    validities: Counter[str] = field(default_factory=Counter)
    causes: Counter[str] = field(default_factory=Counter)
    bitten: Counter[str] = field(default_factory=Counter)
    first_found: int | None = None
    """The least seed that came out invalid among those run."""
    found_by: tuple[str, ...] = ()
    found_with: tuple[str, ...] = ()
    """The families that bit in the run that found it."""
    bad_seeds: list[int] = field(default_factory=list)
    """Seeds that did not come out valid."""
    seconds: float = 0.0
    """Summed over all processes."""

    def add(self, result: Result) -> None:
        """Count one result."""
        self.runs += 1
        self.validities[result.validity] += 1
        self.bitten.update(result.bitten)
        self.seconds += result.seconds
        if result.validity != "valid":
            self.bad_seeds.append(result.seed)
            self.causes.update(result.causes or (NO_CAUSE,))
        if result.validity == "invalid" and (self.first_found is None or result.seed < self.first_found):
            self.first_found, self.found_by, self.found_with = result.seed, result.causes, result.bitten

    def to_json(self) -> dict[str, Any]:
        """The tally as one JSON object."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        return {**values, "passed": self.passed, "missing_families": list(self.missing_families)}

    @property
    def missing_families(self) -> tuple[str, ...]:
        """Fair families of which no fault ever bit."""
        return tuple(family for family in FAIR_FAMILIES if not self.bitten[family])

    @property
    def passed(self) -> bool:
        """A mutant was found; the full protocol was valid wherever it could be judged, and every family bit."""
        if self.mutant != FULL:
            return self.first_found is not None
        wrong = self.validities["invalid"] + self.validities["failed"] + self.causes[NO_CAUSE]
        return not wrong and not self.missing_families


def make(job: Job) -> Result:
    """One run in the simulation, of the torture's spec."""
    from checkers.verdict import Validity
    from harness.runner.run import run_in_simulation
    from harness.spec import Spec

    began = time.perf_counter()
    outcome = run_in_simulation(
        Spec(
            seed=job.seed,
            workload=job.workload,
            settings=SETTINGS.get(job.mutant, {}),
            without=(job.mutant,) if job.mutant else (),
        )
    )
    causes = [
        f"{verdict.checker}: {finding.kind}"
        for verdict in outcome.verdicts
        if verdict.validity is not Validity.VALID
        for finding in verdict.findings
    ]
    return Result(
        mutant=job.mutant,
        seed=job.seed,
        validity="failed" if outcome.failure else str(outcome.validity),
        causes=(outcome.failure,) if outcome.failure else tuple(dict.fromkeys(causes)),
        bitten=outcome.bitten,
        digest=outcome.digest or "",
        seconds=time.perf_counter() - began,
    )


def torture(
    console: Console,
    *,
    seeds: Sequence[int],
    mutants: Iterable[str] = MUTANTS,
    mutant_seeds: Sequence[int],
    jobs: int,
    repeats: int = 0,
    out: Path | None = None,
    workload: str = DEFAULT_WORKLOAD,
) -> int:
    """Run everything, print the table, and return 0 when every target passed, else 1.

    `repeats` is how many of the full protocol's seeds are run twice and compared; `workload` is what the full
    protocol's clients do, while each mutant has the one that finds it.
    """
    tallies = {target: Tally(target) for target in ((FULL,) if len(seeds) else ())} | {
        mutant: Tally(mutant) for mutant in mutants
    }
    began = time.perf_counter()
    digests: dict[int, str] = {}
    with _pool(jobs, hash_seed=1) as pool, console.status("") as status:
        for target, tally in tallies.items():
            does = workload if target == FULL else WORKLOADS.get(target, DEFAULT_WORKLOAD)
            for result in _results(pool, target, does, seeds if target == FULL else mutant_seeds, jobs):
                tally.add(result)
                if target == FULL:
                    digests[result.seed] = result.digest
                _tell(console, tally, result)
                status.update(f"{_name(target)}: {tally.runs} runs")
                if target != FULL and tally.first_found is not None:
                    break
    again = [seed for seed in seeds[:repeats] if digests[seed]]
    repeated: list[Result] = []
    if again:
        with _pool(jobs, hash_seed=2) as pool:
            repeated = pool.map(make, [Job(FULL, seed, workload) for seed in again], chunksize=1)
    different = [result.seed for result in repeated if result.digest != digests[result.seed]]
    console.print(table(tallies.values()))
    if again:
        console.print(
            f"{len(again) - len(different)} of {len(again)} seeds ended in the same digest in another process with "
            "another PYTHONHASHSEED" + (f"; not: {', '.join(map(str, different))}" if different else ""),
            highlight=False,
        )
    console.print(f"{time.perf_counter() - began:.0f} s on {jobs} processes", highlight=False)
    if out is not None:
        found = {
            "targets": [tally.to_json() for tally in tallies.values()],
            "repeated": len(again),
            "different": different,
        }
        out.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    return 0 if not different and all(tally.passed for tally in tallies.values()) else 1


def _pool(jobs: int, *, hash_seed: int) -> multiprocessing.pool.Pool:
    """New processes that hash strings by `hash_seed`: told by the environment, which they and their successors get."""
    os.environ["PYTHONHASHSEED"] = str(hash_seed)
    return multiprocessing.get_context("spawn").Pool(jobs, maxtasksperchild=_RUNS_PER_PROCESS)


def _name(target: str) -> str:
    return f"without {target}" if target else "full protocol"


def _results(
    pool: multiprocessing.pool.Pool, target: str, workload: str, seeds: Sequence[int], jobs: int
) -> Iterator[Result]:
    """Results in the order of the seeds. A mutant's are dealt in small lots, so that little is run past the first."""
    lot = len(seeds) if target == FULL else jobs * 2
    for start in range(0, len(seeds), max(1, lot)):
        yield from pool.imap(make, [Job(target, seed, workload) for seed in seeds[start : start + lot]])


def _tell(console: Console, tally: Tally, result: Result) -> None:
    """A line for everything noteworthy: what the full protocol did not pass, and each mutant's first find."""
    if result.validity == "valid" or (tally.mutant != FULL and result.validity == "unknown"):
        return
    console.print(
        f"{_name(tally.mutant)}, seed {result.seed}: {result.validity} ({'; '.join(result.causes)})",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )


def table(tallies: Iterable[Tally]) -> Table:
    """A line a target."""
    from rich.table import Table

    drawn = Table(box=None, pad_edge=False, header_style="dim")
    for heading in (
        "target",
        "seeds",
        "valid",
        "invalid",
        "unknown",
        "failed",
        "first found",
        "by",
        "s/run",
        "families",
    ):
        drawn.add_column(heading, no_wrap=heading == "target", min_width=16 if heading == "by" else None)
    for tally in tallies:
        causes = tally.found_by if tally.first_found is not None else tuple(tally.causes)
        families = [f"{family} {count}" for family, count in tally.bitten.most_common()]
        if tally.mutant:
            families = list(tally.found_with)
        elif tally.missing_families:
            families.append(f"never: {', '.join(tally.missing_families)}")
        drawn.add_row(
            _name(tally.mutant),
            str(tally.runs),
            *(str(tally.validities[validity]) for validity in ("valid", "invalid", "unknown", "failed")),
            "" if tally.first_found is None else f"seed {tally.first_found}",
            ", ".join(dict.fromkeys(cause.partition(":")[0] for cause in causes)),
            f"{tally.seconds / max(1, tally.runs):.1f}",
            ", ".join(families),
        )
    return drawn
