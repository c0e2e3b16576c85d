"""`faultline doctor`, `clean` and `images`: prerequisites, leftovers of killed runs, and node images."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from harness.cli.usage import Commands, Usage, add_store, terminal
from harness.exit_codes import NOT_CARRIED_OUT, VALID

if TYPE_CHECKING:
    from harness.spec import Spec


def add(commands: Commands) -> None:
    """The commands about machines."""
    _add_doctor(commands.add_parser("doctor", help="check prerequisites on this machine and its hosts"))
    _add_clean(commands.add_parser("clean", help="remove containers, networks and processes of killed runs"))
    _add_images(commands.add_parser("images", help="build or prune the node images"))


def _add_doctor(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("spec", nargs="?", type=Path, metavar="SPEC.yaml", help="the spec to check for, with its hosts")
    add_store(parser)
    parser.set_defaults(command=_doctor)


def _add_clean(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("spec", nargs="?", type=Path, metavar="SPEC.yaml", help="clean the hosts of this spec, too")
    parser.add_argument("--run", default="", metavar="NAME", help="clean up only after this run")
    parser.add_argument("--all", action="store_true", help="also remove what belongs to runs that are still going")
    parser.set_defaults(command=_clean)


def _add_images(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    build = commands.add_parser("build", help="build the node images that are missing or out of date")
    build.add_argument(
        "--base",
        choices=("debootstrap", "registry"),
        help="source of Debian (default: the registry if the engine reaches one, else debootstrap)",
    )
    build.add_argument(
        "--mirror",
        default="",
        metavar="ADDRESS",
        help="mirror for debootstrap (default: the one of this machine's apt)",
    )
    build.add_argument("--system", default="broker", metavar="NAME", help="broker or kafka (default: broker)")
    build.add_argument("--version", default="", metavar="RELEASE", help="the release of the system, such as 4.1.1")
    build.set_defaults(command=_images, prune=False)
    prune = commands.add_parser("prune", help="remove node images that are out of date")
    prune.set_defaults(command=_images, prune=True)


def _doctor(options: argparse.Namespace) -> int:
    from harness.doctor.diagnosis import all_met, diagnose, show
    from harness.doctor.engine_and_hosts import diagnosis
    from harness.doctor.probes import ThisMachine
    from results.run.paths import store_path

    spec = None if options.spec is None else _load(options.spec, "doctor")
    prerequisites = diagnose(diagnosis(ThisMachine(), store_path(options.store), spec), spec)
    show(terminal(), prerequisites)
    return VALID if all_met(prerequisites) else NOT_CARRIED_OUT


def _clean(options: argparse.Namespace) -> int:
    from harness.environments.cleanup import sweep

    spec = None if options.spec is None else _load(options.spec, "clean")
    hosts = spec.hosts if spec is not None else {}
    all_gone = sweep(hosts, run=options.run, everything=options.all, report=lambda line: print(line, flush=True))
    return VALID if all_gone else NOT_CARRIED_OUT


def _images(options: argparse.Namespace) -> int:
    from harness.cluster.systems import SYSTEMS, system_named
    from harness.environments.docker.engine import connect
    from harness.errors import EnvironmentUnavailable
    from harness.node_images.building import Origin, build, prune

    console = terminal()
    try:
        system = None if options.prune else system_named(options.system, options.version)
    except ValueError as error:
        raise Usage(f"faultline images: {error}") from None

    def print_line(line: str) -> None:
        console.print(line, soft_wrap=True, highlight=False)

    try:
        client = connect(timeout_s=1800)
        if system is None:
            prune(client, tuple(SYSTEMS.values()), print_line)
            return VALID
        build(
            client,
            [system],
            origin=Origin(options.base) if options.base else None,
            mirror=options.mirror,
            report=print_line,
        )
    except EnvironmentUnavailable as error:
        print(f"faultline: {error}", file=sys.stderr)
        return NOT_CARRIED_OUT
    return VALID


def _load(path: Path, command: str) -> Spec:
    from harness.spec import load
    from harness.yaml_document import SpecError

    try:
        return load(path)
    except SpecError as error:
        raise Usage(f"faultline {command}: {error}") from None
