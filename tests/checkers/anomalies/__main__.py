"""The command; the package's docstring has examples.

Exit code 1 when an anomaly was not found, had too few runs with a place for it, or an unmodified run was `invalid`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console

from tests.checkers.anomalies.campaign import inject_all, search_false_alarms
from tests.checkers.anomalies.catalogue import ANOMALIES


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.checkers.anomalies", description=__doc__)
    parser.add_argument("--runs", type=int, default=50, help="runs in which each anomaly is injected")
    parser.add_argument("--only", nargs="*", help="names of the anomalies, all unless given")
    parser.add_argument("--unmodified", type=int, default=0, help="check so many unmodified runs instead")
    parser.add_argument("--first", type=int, default=0, help="number of the first unmodified run")
    parser.add_argument("--keep", type=Path, help="directory of runs; those in it are not played again")
    options = parser.parse_args()
    console = Console(width=160)
    if options.unmodified:
        return 0 if search_false_alarms(options.unmodified, options.first, options.keep, console) else 1
    known = tuple(anomaly.name for anomaly in ANOMALIES)
    alien = sorted(set(options.only or ()) - set(known))
    if alien:
        parser.error(f"{alien[0]!r} is not one of {', '.join(known)}")
    return 0 if inject_all(tuple(options.only or known), options.runs, options.keep, console) else 1


if __name__ == "__main__":
    sys.exit(main())
