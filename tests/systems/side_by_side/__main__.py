"""The same ten specs on the prototype and on Apache Kafka, one run after the other: the table of docs/kafka.md.

    python -m tests.systems.side_by_side --out docs/side-by-side.jsonl
    python -m tests.systems.side_by_side --out docs/side-by-side.jsonl --spec leader-killed

Each run is a `faultline run` in a process of its own, first on the prototype, then on Kafka. Every run adds a line to
the file; nothing is ever removed, and a run that has a line is not made again: interrupted, it goes on where it was. A
run that could not be carried out has a line, too, and is made again by the next call; one for which no node was started
has none, and ends the call. Both images must be there (`faultline images build`, and the same with `--system kafka`).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.systems.campaign import add_row, read_rows
from tests.systems.side_by_side import runs


def main(arguments: Sequence[str]) -> None:
    """See the module's docstring."""
    pairs = runs.load()
    parser = argparse.ArgumentParser(prog="side_by_side")
    parser.add_argument("--spec", action="append", choices=list(pairs), help="only this one; may be repeated")
    parser.add_argument("--store", type=Path, default=Path("results/runs"))
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(arguments)
    chosen = {name: pair for name, pair in pairs.items() if options.spec is None or name in options.spec}
    for name, system in list(runs.still_to_be_made(chosen, read_rows(options.out))):
        try:
            row = runs.make(name, system, chosen[name].by_system[system], options.store)
        except runs.RunRefused as error:
            parser.exit(1, f"{parser.prog}: {error}\n")
        add_row(options.out, row)
        print(name, system, row["verdict"], row["failure"] or "", f"{row['seconds']} s", row["run"], flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
