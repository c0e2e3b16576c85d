"""`faultline mutants`: how soon each search finds each broker that is known to be wrong, and which box sees it.

Nights spend a budget of processor time and go on with a record, a JSON file; each is a suite in the store. The command
ends with 0 when the budget is spent, whatever was found of the mutants: the record is a measurement, not a verdict. It
ends with 1 when a run of the full protocol is invalid, whose directory is kept.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from harness.cli.suites import add_master, on_spark
from harness.cli.usage import Commands, Usage, add_store, failed, terminal
from harness.exit_codes import INVALID, VALID

if TYPE_CHECKING:
    from types import TracebackType

    from rich.console import Console

    from harness.search.mutants.campaign import CampaignNight
    from harness.search.mutants.mutant import Mutant
    from harness.search.mutants.record import CampaignRecord
    from harness.suites.job import RunResult
    from harness.suites.record import SuiteRecord

RECORD: Final = Path("results/mutants.json")


def add(commands: Commands) -> None:
    """The command."""
    parser = commands.add_parser("mutants", help="measure how soon each search finds each broker known to be wrong")
    parser.add_argument(
        "--budget", type=float, required=True, metavar="CPU_HOURS", help="least processor time to spend, in hours"
    )
    parser.add_argument(
        "--mutant", action="append", metavar="NAME", help="only this mutant; may be repeated (default: all)"
    )
    parser.add_argument(
        "--record", type=Path, default=RECORD, metavar="FILE", help="the record to go on with (default: %(default)s)"
    )
    add_master(parser)
    add_store(parser)
    parser.set_defaults(command=_mutants)


def _mutants(options: argparse.Namespace) -> int:
    from harness.search.mutants.record import CampaignRecord
    from results.errors import StoreError

    if not (isfinite(options.budget) and options.budget > 0):
        raise Usage(f"faultline mutants: --budget: {options.budget:g} is not a number of hours above 0")
    mutants = _chosen(options.mutant)
    with ExitStack() as kept:
        try:
            campaign = kept.enter_context(CampaignRecord.locked(options.record.absolute()))
        except StoreError as error:
            raise Usage(f"faultline mutants: --record: {error}") from None
        try:
            return _spend_night(options, campaign, mutants)
        except StoreError as error:
            return failed("mutants", error)


def _spend_night(options: argparse.Namespace, campaign: CampaignRecord, mutants: Sequence[Mutant]) -> int:
    from harness.search.mutants.campaign import CampaignNight, MutantCampaign
    from harness.search.mutants.explorations import explore_missing
    from harness.suites import report
    from harness.suites.job import summed_up
    from harness.suites.record import begin
    from results.run.paths import store_path

    store = store_path(options.store).absolute()
    console = terminal()
    night = CampaignNight(tuple(mutants), campaign, store, 3600 * options.budget)
    progress = CampaignProgress(terminal(stderr=True), night)

    def opened(store: Path) -> SuiteRecord:
        record = begin(store, MutantCampaign.of(night))
        night.suite, night.commit = record.name, record.facts["commit"] or record.facts["version"]
        return record

    def again(record: SuiteRecord) -> str:
        return f"go on with the record by the same command: {campaign.path}"

    def finish(record: SuiteRecord, runs: Sequence[RunResult], spark: Any) -> int:
        if runs:
            list(report.save(record, runs, summed_up(record, spark), None, None))
        _show(console, campaign, mutants)
        accused = night.full.invalid_runs()
        if accused:
            console.print(f"the full protocol is invalid in {len(accused)} runs: {', '.join(accused)}")
        return INVALID if accused else VALID

    code = on_spark(
        options,
        "mutants",
        opened,
        again,
        finish,
        lambda *_: progress,
        lambda spark: explore_missing(spark, night, progress.explored),
    )
    night.take_in()  # of an interrupted round as much as has ended
    return code


def _chosen(names: Sequence[str] | None) -> list[Mutant]:
    from harness.search.mutants.mutant import all_mutants

    every = all_mutants()
    for name in names or ():
        if name not in every:
            raise Usage(f"faultline mutants: --mutant: {name!r} is not one of {', '.join(every)}")
    return [mutant for name, mutant in every.items() if names is None or name in names]


class CampaignProgress:
    """Shows how much of the budget is spent, and the first find of each search; called for each run that has ended."""

    def __init__(self, console: Console, night: CampaignNight) -> None:
        from harness.suites.progress_bar import ProgressBar

        self._night = night
        self._runs: Counter[str] = Counter()
        self._found: set[str] = set()
        self._bar = ProgressBar(console, "mutants", night.budget_s, self._words())

    def __enter__(self) -> Self:
        self._bar.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._bar.__exit__(kind, error, at)

    def __call__(self, run: RunResult) -> None:
        """Count a run."""
        self._runs[run.cell] += 1
        if run.validity == "invalid" and run.cell not in self._found:
            self._found.add(run.cell)
            self._bar.found(f"{run.cell}: {run.run}", run.causes)
        self._show(self._words())

    def explored(self, left: int) -> None:
        """Say how many explorations are left."""
        self._show(f"{self._spent()}; {left} explorations to go")

    def _show(self, words: str) -> None:
        self._bar.update(self._night.spent_s, self._night.budget_s, words)

    def _spent(self) -> str:
        return f"{self._night.spent_s / 3600:.2f} of {self._night.budget_s / 3600:g} CPU hours"

    def _words(self) -> str:
        runs = f"{self._runs.total()} runs of {len(self._runs)} searches, {len(self._found)} with a find"
        return f"{self._spent()} taken in; {runs}"


def _show(console: Console, campaign: CampaignRecord, mutants: Sequence[Mutant]) -> None:
    from rich.table import Table

    from harness.search.mutants.summary import figures, find_words, promise

    rows = Table(box=None, pad_edge=False, header_style="dim")
    every = figures(campaign, mutants)
    for heading in ("mutant", *every[0].searches, "explore", "first finding"):
        rows.add_column(heading, overflow="fold")
    for each in every:
        rows.add_row(
            each.mutant.name, *(find_words(it) for it in each.searches.values()), each.explored, each.first_check
        )
    console.print(rows)
    for line in promise(every):
        console.print(line, soft_wrap=True, highlight=False)
    console.print(f"record: {campaign.path}", soft_wrap=True, highlight=False)
