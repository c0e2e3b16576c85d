"""The expectations of a suite with mutants or repeats, such as the shipped `torture`, and whether its runs meet them.

- A spec with all rules must not be `invalid` on any seed; an `unknown` counts as met only with its cause stated; each
  fault family that its faults are drawn from must have taken effect in some run.
- A mutant, one rule switched off, must be `invalid` in one of its runs.
- A repeat must end in the digest of the run that it repeats: the result of a seed depends neither on the process nor on
  how the process hashes strings.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final

from harness.suites.job import RunResult
from harness.suites.plan import Suite, repeated

if TYPE_CHECKING:
    from rich.table import Table

NO_CAUSE: Final = "without a stated cause"
_VALIDITIES: Final = ("valid", "invalid", "unknown", "failed")


@dataclass(slots=True)
class Tally:
    """All results of one cell."""

    cell: str
    mutant: bool = False
    expected_families: tuple[str, ...] = ()
    """The fault families of which each must take effect in some run."""
    runs: int = 0
    validities: Counter[str] = field(default_factory=Counter)
    causes: Counter[str] = field(default_factory=Counter)
    families: Counter[str] = field(default_factory=Counter)
    """Family → runs in which it took effect."""
    first_found: int | None = None
    """The lowest seed whose run was invalid."""
    found_by: tuple[str, ...] = ()
    """The causes of that run."""
    found_with: tuple[str, ...] = ()
    """The families that took effect in that run."""
    bad_seeds: list[int] = field(default_factory=list)
    """Seeds whose runs were not valid."""
    cpu_seconds: float = 0.0

    def add(self, result: RunResult) -> None:
        """Count one result."""
        self.runs += 1
        self.validities[result.validity] += 1
        self.families.update(result.families)
        self.cpu_seconds += result.cpu_seconds
        if result.validity != "valid":
            self.bad_seeds.append(result.seed)
            self.causes.update(result.causes or (NO_CAUSE,))
        if result.validity == "invalid" and (self.first_found is None or result.seed < self.first_found):
            self.first_found, self.found_by, self.found_with = result.seed, result.causes, result.families

    def to_json(self) -> dict[str, Any]:
        """The tally as one JSON object."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        return {**values, "met": self.met, "missing_families": list(self.missing_families)}

    @property
    def missing_families(self) -> tuple[str, ...]:
        """Expected families of which no fault took effect."""
        return tuple(family for family in self.expected_families if not self.families[family])

    @property
    def met(self) -> bool:
        """See the module's docstring."""
        if self.mutant:
            return self.first_found is not None
        return not (self.validities["invalid"] + self.validities["failed"] + self.causes[NO_CAUSE]) and not (
            self.missing_families
        )


@dataclass(frozen=True, slots=True)
class Expectations:
    """The tally of each cell, and the repeats."""

    tallies: tuple[Tally, ...]
    repeats: int
    """Runs that were made twice."""
    different: tuple[str, ...]
    """Those of them that did not end in the same digest, as `cell, seed N`."""

    @property
    def met(self) -> bool:
        """Whether every cell and every repeat is as expected."""
        return not self.different and all(tally.met for tally in self.tallies)

    def to_json(self) -> dict[str, Any]:
        """Everything, as JSON values."""
        return {
            "targets": [tally.to_json() for tally in self.tallies],
            "repeated": self.repeats,
            "different": list(self.different),
        }

    def sentence(self) -> str:
        """How the repeats ended; empty without any."""
        if not self.repeats:
            return ""
        same = self.repeats - len(self.different)
        text = (
            f"{same} of {self.repeats} repeats ended in the same digest in another process with another PYTHONHASHSEED"
        )
        return text + (f"; different: {'; '.join(self.different)}" if self.different else "")


def has_expectations(suite: Suite) -> bool:
    """Whether the suite expects more than runs that are valid."""
    return bool(suite.mutants or suite.repeats)


def expectations(suite: Suite, results: Sequence[RunResult]) -> Expectations:
    """The expectations of `suite`, with the results of its runs."""
    by_cell: dict[str, list[RunResult]] = {}
    for result in results:
        by_cell.setdefault(result.cell, []).append(result)
    tallies = []
    for cell, spec in {**(suite.cells if suite.seeds else {}), **suite.mutants}.items():
        mutant = cell in suite.mutants
        tally = Tally(cell, mutant, () if mutant else spec.families)
        for result in by_cell.get(cell, []):
            tally.add(result)
        tallies.append(tally)
    pairs = [
        (cell, first, second)
        for cell in suite.cells
        for first, second in _pairs(by_cell.get(cell, []), by_cell.get(repeated(cell), []))
    ]
    different = tuple(f"{cell}, seed {first.seed}" for cell, first, second in pairs if first.digest != second.digest)
    return Expectations(tuple(tallies), len(pairs), different)


def _pairs(firsts: Iterable[RunResult], seconds: Iterable[RunResult]) -> list[tuple[RunResult, RunResult]]:
    by_seed = {result.seed: result for result in firsts}
    return [(by_seed[second.seed], second) for second in seconds if second.seed in by_seed]


def table(tallies: Iterable[Tally]) -> Table:
    """One row for each cell."""
    from rich.table import Table

    rows = Table(box=None, pad_edge=False, header_style="dim")
    for heading in ("target", "seeds", *_VALIDITIES, "first found", "by", "CPU s/run", "families"):
        rows.add_column(heading, no_wrap=heading == "target", min_width=16 if heading == "by" else None)
    for tally in tallies:
        causes = tally.found_by if tally.first_found is not None else tuple(tally.causes)
        families = [f"{family} {count}" for family, count in tally.families.most_common()]
        if tally.mutant:
            families = list(tally.found_with)
        elif tally.missing_families:
            families.append(f"never: {', '.join(tally.missing_families)}")
        rows.add_row(
            tally.cell,
            str(tally.runs),
            *(str(tally.validities[validity]) for validity in _VALIDITIES),
            "" if tally.first_found is None else f"seed {tally.first_found}",
            ", ".join(dict.fromkeys(cause.partition(":")[0] for cause in causes)),
            f"{tally.cpu_seconds / max(1, tally.runs):.1f}",
            ", ".join(families),
        )
    return rows
