"""`faultline incident list | show | run | new | schema`: field incidents as files.

`run` ends with 0 exactly when every variant shows what is expected of it; with 1 when a run shows something else, and
with 3 when one could not be carried out.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from harness.cli.usage import Commands, Usage, add_store, check_output, terminal
from harness.exit_codes import INTERRUPTED, INVALID, NOT_CARRIED_OUT, VALID

if TYPE_CHECKING:
    from harness.incidents.incident import Incident
    from harness.incidents.telling import Telling


def add(commands: Commands) -> None:
    """The command and its subcommands."""
    parser = commands.add_parser("incident", help="field incidents as files: list, show, run, new, schema")
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    listing = actions.add_parser("list", help="list the shipped incidents")
    listing.set_defaults(command=_list)
    showing = actions.add_parser("show", help="show an incident: its story, its variants and its file")
    showing.add_argument("incident", metavar="NAME|FILE.yaml", help="a shipped incident, or a file")
    showing.set_defaults(command=_show)
    running = actions.add_parser("run", help="run the variants of an incident, and compare with what is expected")
    running.add_argument("incidents", nargs="*", metavar="NAME|FILE.yaml", help="shipped incidents, or files")
    running.add_argument("--all", action="store_true", help="all shipped incidents")
    running.add_argument("--variant", metavar="NAME", help="only this variant")
    running.add_argument(
        "--environment", metavar="NAME", help="sim or docker (default: sim; for incidents of Kafka alone docker)"
    )
    running.add_argument(
        "--system", metavar="NAME", help="system under test: broker or kafka; variants that it cannot run are left out"
    )
    running.add_argument("--version", metavar="X.Y.Z", help="another release of the system")
    running.add_argument(
        "--tries",
        type=int,
        metavar="N",
        help="make N tries of each variant, and count them",
    )
    running.add_argument("--json", action="store_true", help="print one JSON summary and nothing else")
    running.add_argument(
        "--record",
        type=Path,
        metavar="FILE.json",
        help="write the CPU seconds of each incident (in Docker: its tries) to this file",
    )
    running.add_argument(
        "--outcomes", type=Path, metavar="FILE.json", help="add the outcome of every try, by release, to a file"
    )
    add_store(running)
    running.set_defaults(command=_run)
    making = actions.add_parser("new", help="make an incident out of a recorded run")
    making.add_argument("--from", dest="directory", type=Path, required=True, metavar="RUN_DIR", help="the run")
    making.add_argument("--out", type=Path, metavar="FILE.yaml", help="the file to write (default: standard output)")
    making.set_defaults(command=_new)
    schema = actions.add_parser("schema", help="print the JSON Schema of specs and incidents, for editors")
    schema.set_defaults(command=_schema)


def _list(options: argparse.Namespace) -> int:
    from rich.table import Table

    from harness.incidents.incident import kafka_library, library, load_incident

    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in ("incident", "what", "source", "variants"):
        table.add_column(heading, no_wrap=heading == "incident")
    for name in (*library(), *kafka_library()):
        incident = load_incident(name)
        table.add_row(name, incident.title, incident.source, "\n".join(f"· {each.name}" for each in incident.variants))
    terminal().print(table)
    return VALID


def _show(options: argparse.Namespace) -> int:
    from harness.incidents.incident import path_of

    incident = _load(options.incident)
    console = terminal()
    path = path_of(options.incident)
    console.print(incident.title, style="bold", highlight=False)
    lines = [
        *([f"source: {incident.source}"] if incident.source else []),
        incident.story.strip(),
        *(f"  {variant.name}: {variant.expect.describe()}" for variant in incident.variants),
        f"file: {path}",
    ]
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True)
    print(path.read_text(encoding="utf-8"), end="")
    return VALID


def _run(options: argparse.Namespace) -> int:
    from harness.cli.display import LiveProgress
    from harness.cluster.systems import SYSTEMS
    from harness.incidents.incident import TRIES_MAX, library
    from harness.incidents.measurements import read_measurements, record_measurements
    from harness.incidents.telling import tell
    from harness.incidents.tried import read_outcomes, record_outcomes
    from results.errors import StoreError
    from results.run.paths import store_path

    if bool(options.incidents) == options.all:
        raise Usage("faultline incident run: name incidents, or give --all")
    if options.environment not in (None, "sim", "docker"):
        raise Usage(f"faultline incident run: --environment: {options.environment!r} is not one of sim, docker")
    if options.system not in (None, *SYSTEMS):
        raise Usage(f"faultline incident run: --system: {options.system!r} is not one of {', '.join(SYSTEMS)}")
    if options.record and (options.system or options.version):
        raise Usage("faultline incident run: --record measures incidents as they are; with --system take --outcomes")
    if options.tries is not None and not 1 <= options.tries <= TRIES_MAX:
        raise Usage(f"faultline incident run: --tries: {options.tries} is not between 1 and {TRIES_MAX}")
    if options.record and options.tries:
        raise Usage("faultline incident run: --record measures what an incident takes; with --tries take --outcomes")
    for option in ("record", "outcomes"):
        check_output("incident run", f"--{option}", getattr(options, option))
    given = {name: getattr(options, name) for name in ("environment", "system", "version")}
    changes = {name: value for name, value in given.items() if value is not None}
    incidents = [_load(name, changes) for name in (library() if options.all else options.incidents)]
    if options.environment == "docker" and options.all:
        incidents = [incident for incident in incidents if incident.docker_tries]
    tellings: list[Telling] = []
    try:
        for path, read in ((options.record, read_measurements), (options.outcomes, read_outcomes)):
            if path is not None:  # before any run is made for a file that takes none
                read(path)
        store = store_path(options.store)
        for incident in incidents:
            if not options.json:
                _print_left_out(incident)
            for variant in incident.variants:
                if options.variant in (None, variant.name):
                    with LiveProgress(terminal(stderr=True), variant.spec) as on_progress:
                        told = tell(incident, variant, store, tries=options.tries, on_progress=on_progress)
                    tellings.append(told)
                    if options.outcomes:  # at once: one that an interrupt follows counts, too
                        record_outcomes(options.outcomes, [told])
                    if not options.json:
                        _print(told)
    except StoreError as error:
        print(f"faultline: {error}", file=sys.stderr)
        return NOT_CARRIED_OUT
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    if not tellings:
        if options.variant is None:
            raise Usage("faultline incident run: no variant is possible there")
        names = ", ".join(repr(variant.name) for incident in incidents for variant in incident.variants)
        raise Usage(f"faultline incident run: no variant is called {options.variant!r}; there are: {names}")
    if options.record:
        record_measurements(options.record, tellings)
    met = sum(telling.met for telling in tellings)
    if options.json:
        print(json.dumps({"met": met == len(tellings), "variants": [_to_json(telling) for telling in tellings]}))
    else:
        terminal().print(f"{met} of {len(tellings)} variants are as expected")
    if any(telling.outcome.failure for telling in tellings):
        return NOT_CARRIED_OUT
    return VALID if met == len(tellings) else INVALID


def _print_left_out(incident: Incident) -> None:
    for variant, reason in incident.left_out.items():
        line = f"– {incident.name}, {variant}: left out: {reason}"
        terminal().print(line, style="dim", soft_wrap=True, highlight=False)


def _print(telling: Telling) -> None:
    console = terminal()
    mark, style = ("✓", "green") if telling.met else ("✗", "red")
    as_expected = sum(result.met for result in telling.results)
    tries = f", {as_expected} of {telling.tries} tries as expected" if telling.tries > 1 else ""
    expect = telling.variant.expect
    wanted = expect.describe() if telling.met else f"expected {expect.describe()}"
    line = f"{mark} {telling.incident.name}, {telling.variant.name}: {wanted}"
    console.print(f"{line} ({telling.seconds:.1f} s{tries})", style=style, soft_wrap=True, highlight=False)
    for reason in telling.unmet:
        console.print(f"    {reason}", soft_wrap=True, highlight=False)
    if figures := expect.figures_in(telling.outcome.verdicts):
        console.print(f"    {figures}", soft_wrap=True, highlight=False)
    for line in telling.outcome.deviations:
        console.print(f"    note: {line}", soft_wrap=True, highlight=False)
    console.print(f"    {telling.outcome.report or telling.outcome.directory}", soft_wrap=True, highlight=False)


def _to_json(telling: Telling) -> dict[str, object]:
    return {
        "incident": telling.incident.name,
        "variant": telling.variant.name,
        "met": telling.met,
        "unmet": list(telling.unmet),
        "tries": telling.tries,
        "seconds": round(telling.seconds, 2),
        "run": str(telling.outcome.directory),
    }


def _new(options: argparse.Namespace) -> int:
    from harness.incidents.recording import incident_of
    from harness.yaml_document import SpecError
    from results.atomic_files import put_text
    from results.errors import StoreError
    from results.run.directory import RunDirectory

    try:
        text = incident_of(RunDirectory.open(options.directory))
    except (SpecError, StoreError) as error:
        raise Usage(f"faultline incident new: {error}") from None
    if options.out is None:
        print(text, end="")
        return VALID
    try:
        put_text(options.out, text)
    except StoreError as error:
        raise Usage(f"faultline incident new: {error}") from None
    return VALID


def _schema(options: argparse.Namespace) -> int:
    from harness.incidents.schema import incident_schema

    print(json.dumps(incident_schema(), indent=1, ensure_ascii=False))
    return VALID


def _load(named: str, changes: Mapping[str, str] = MappingProxyType({})) -> Incident:
    from harness.incidents.incident import load_incident
    from harness.yaml_document import SpecError

    try:
        return load_incident(named, changes)
    except SpecError as error:
        raise Usage(f"faultline incident: {error}") from None
