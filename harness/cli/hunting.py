"""`faultline hunt`: guided search for protocol situations that no run has reached.

A hunt goes on in its corpus, a folder, night after night; each night is a suite in the store. Exit codes are those of
a suite (`harness.suites.report`): 1 when a run was invalid.
"""

from __future__ import annotations

import argparse
import secrets
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.cli.suites import add_master, on_spark, show_result
from harness.cli.usage import Commands, Usage, add_store, terminal
from results.number_format import counted, numeral

if TYPE_CHECKING:
    from rich.console import Console

    from harness.search.hunt.corpus import Corpus
    from harness.spec import Spec
    from harness.suites.job import RunResult
    from harness.suites.record import SuiteRecord

CORPORA = Path("results/corpora")


def add(commands: Commands) -> None:
    """The command."""
    parser = commands.add_parser("hunt", help="search for situations of the protocol that no run has reached")
    parser.add_argument(
        "spec",
        nargs="?",
        metavar="SPEC.yaml",
        help="the spec to search with; its world varies unless it says otherwise (default: all defaults)",
    )
    budget = parser.add_mutually_exclusive_group(required=True)
    budget.add_argument("--runs", type=int, metavar="N", help="make so many runs")
    budget.add_argument("--hours", type=float, metavar="H", help="begin no round after so many hours")
    parser.add_argument(
        "--corpus", type=Path, metavar="DIR", help=f"the folder to go on with (default: {CORPORA}/ and the spec's name)"
    )
    parser.add_argument("--seed", type=int, metavar="N", help="random seed of a new corpus (default: random)")
    parser.add_argument(
        "--round",
        type=int,
        metavar="N",
        help="runs of a round of a new corpus, which may be made at the same time (default: 32)",
    )
    add_master(parser)
    add_store(parser)
    parser.set_defaults(command=_hunt)


def _hunt(options: argparse.Namespace) -> int:
    from harness.cluster.run_limits import check_number
    from harness.search.hunt.folder import CorpusFolder
    from harness.search.hunt.hunt import Hunt, HuntSession, begin
    from harness.spec import SEEDS
    from harness.suites import report
    from harness.suites.job import summed_up
    from harness.suites.reading import plain
    from harness.suites.record import begin as begin_suite
    from harness.suites.report import LiveSuite
    from results.errors import StoreError
    from results.run.paths import store_path

    for option, value in (("--runs", options.runs), ("--hours", options.hours), ("--round", options.round)):
        if value is not None and not value > 0:
            raise Usage(f"faultline hunt: {option}: {value:g} is not more than 0")
    if options.seed is not None:
        try:
            check_number("seed", options.seed, "--seed")
        except ValueError as error:
            raise Usage(f"faultline hunt: {error}") from None
    base = _base(options.spec)
    name = plain(f"hunt-{base.name}")
    folder = CorpusFolder((options.corpus or CORPORA / plain(base.name)).absolute())
    console = terminal()
    try:
        with folder.locked():
            plan, corpus = begin(folder, base, options.seed, secrets.randbelow(SEEDS), options.round)
            end_s = time.monotonic() + 3600 * options.hours if options.hours else None
            session = HuntSession(
                plan,
                corpus,
                folder,
                store_path(options.store).absolute(),
                options.runs,
                goes_on=lambda: end_s is None or time.monotonic() < end_s,
            )

            def opened(store: Path) -> SuiteRecord:
                record = begin_suite(store, Hunt.night(name, session))
                session.suite = record.name
                return record

            def again(record: SuiteRecord) -> str:
                return f"go on with the corpus by the same command: {folder.path}"

            def display(console: Console, record: SuiteRecord) -> LiveSuite:
                return LiveSuite(console, record, lambda: _seen(corpus))

            def finish(record: SuiteRecord, runs: Sequence[RunResult], spark: Any) -> int:
                show_result(console, record, runs, summed_up(record, spark))
                for line in _summary(corpus):
                    console.print(line, soft_wrap=True, highlight=False)
                console.print(f"corpus: {folder.path}", soft_wrap=True, highlight=False)
                return report.exit_code(record.plan, runs)

            return on_spark(options, "hunt", opened, again, finish, display)
    except StoreError as error:
        raise Usage(f"faultline hunt: {error}") from None


def _base(path: str | None) -> Spec:
    """The spec to search with. Raises Usage."""
    from harness.search.hunt.hunt import check_base
    from harness.spec import load, parse
    from harness.yaml_document import SpecError, read_document

    try:
        if path is None:
            spec = parse({"vary": True})
        else:
            values = read_document(Path(path)).values
            varies = isinstance(values, dict) and "vary" in values
            spec = load(Path(path), vary=None if varies else True)
        check_base(spec)
    except SpecError as error:
        raise Usage(f"faultline hunt: {error}") from None
    return spec


def _seen(corpus: Corpus) -> str:
    """The situations so far, beside the runs; nothing before the first round has ended."""
    return f"; {len(corpus.situations):,} situations" if corpus.situations else ""


def _summary(corpus: Corpus) -> list[str]:
    """The hunt in all of its nights: what it has seen, and what found it."""
    lines = [
        f"hunt: {counted(len(corpus.situations), 'situation')} in {counted(corpus.runs, 'run')} of "
        f"{counted(corpus.rounds, 'round')}, {numeral(len(corpus.alone))} of them in one run only; "
        f"{counted(len(corpus.entries), 'run')} in the corpus"
    ]
    shares = sorted(corpus.shares().items(), key=lambda item: -item[1])
    lines.append("next:   " + ", ".join(f"{origin} {share:.0%}" for origin, share in shares))
    return lines
