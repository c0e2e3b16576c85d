"""Ten flaws that are no switches: patches of the broker, and what the explanation says of the first run that fails.

    python -m tests.results.explanation.flaws --out docs/explained-flaws.json

They were written when the explanation was finished, by somebody who had not read `checkers/` but had read the steps
that the explanation knows, and fixed before any of them was run, together with spec and seeds: all fair faults for half
a minute, and the first invalid run of the seeds 1 to 20. Each is a change that a programmer may take for right.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from checkers.verdict import Validity
from harness.runner.run import run_in_simulation
from harness.spec import parse

ROOT: Final = Path(__file__).parents[3]
ROWS: Final = ROOT / "docs" / "explained-flaws.json"
SEEDS: Final = range(1, 21)
TIME_LIMIT_S: Final = 30
LINES: Final = 3
"""Lines of each story in which the cause must be named."""


@dataclass(frozen=True, slots=True)
class Edit:
    """One change of a source: a text that it has once becomes another."""

    path: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Flaw:
    """A patch."""

    name: str
    meaning: str
    edits: tuple[Edit, ...]


_LEADER: Final = "images/broker/replication/leader.py"
_FOLLOWER: Final = "images/broker/replication/follower.py"
_LOG: Final = "images/broker/log/log.py"
FLAWS: Final = (
    Flaw(
        "majority-commits",
        "The high watermark follows what most of the ISR has, as the commit index in Raft.",
        (
            Edit(
                _LEADER,
                "    candidate = min(positions, default=partition.high_watermark)\n",
                "    positions = positions or [partition.high_watermark]\n"
                "    candidate = sorted(positions)[(len(positions) - 1) // 2]\n",
            ),
        ),
    ),
    Flaw(
        "shrink-at-once",
        "A leader commits with the ISR that it proposes, before the controllers have decided it.",
        (
            Edit(
                _LEADER,
                "tuple(sorted({*partition.isr, *(leadership.proposed or ()), *leadership.unresolved_members}))",
                "leadership.proposed or partition.isr",
            ),
        ),
    ),
    Flaw(
        "position-only-grows",
        "A leader takes the position of a follower for one that never goes back.",
        (
            Edit(
                _LEADER,
                "                follower.id,\n                fetch.offset,\n",
                "                follower.id,\n                max(fetch.offset, follower.log_end or 0),\n",
            ),
        ),
    ),
    Flaw(
        "new-leader-commits-its-log",
        "A new leader takes all that it has for committed.",
        (
            Edit(
                "images/broker/replication/become_leader_or_follower.py",
                "        epochs=epochs,\n        leadership=LeaderState(",
                "        epochs=epochs,\n        high_watermark=updated.log_end,\n        leadership=LeaderState(",
            ),
        ),
    ),
    Flaw(
        "leader-epoch-not-bumped",
        "The controllers elect another leader in the same leader epoch.",
        (
            Edit(
                "images/broker/controller/partition_change.py",
                "before.leader_epoch + (election.leader != before.leader or removal)",
                "before.leader_epoch + removal",
            ),
        ),
    ),
    Flaw(
        "min-insync-acknowledges",
        "acks=all is answered once min.insync.replicas replicas have the records, and not all of the ISR.",
        (
            Edit(
                "images/broker/replication/replica.py",
                "            if self.state.high_watermark >= appended.end:\n",
                "            followers = self.state.leader_state.followers\n"
                "            held = 1 + sum((each.log_end or 0) >= appended.end for each in followers)\n"
                "            if held >= self.limits.min_insync_replicas:\n",
            ),
        ),
    ),
    Flaw(
        "recovery-drops-a-batch",
        "Recovery after an unclean shutdown cuts one batch too many.",
        (
            Edit(
                _LOG,
                "            log._recover(bases)\n        return log\n",
                "            log._recover(bases)\n"
                "            log.truncate(max(log.start, log.end - 1))\n"
                "        return log\n",
            ),
        ),
    ),
    Flaw(
        "watermark-survives-truncation",
        "A follower that cuts its log keeps a high watermark above its end.",
        (
            Edit(_FOLLOWER, "        high_watermark=min(partition.high_watermark, to),\n", ""),
            Edit(
                _FOLLOWER,
                "    high_watermark = min(partition.high_watermark, log_end)\n"
                "    return partition._replace("
                "epochs=epochs, log_start=log_start, log_end=log_end, high_watermark=high_watermark)\n",
                "    return partition._replace(epochs=epochs, log_start=log_start, log_end=log_end)\n",
            ),
        ),
    ),
    Flaw(
        "producers-survive-truncation",
        "A replica that cuts its log still knows the batches that it cut, and takes their retries for duplicates.",
        (
            Edit(
                _LOG,
                "            self.epochs = self.epochs.truncate_end(self.end)\n            self._rebuild_producers()\n",
                "            self.epochs = self.epochs.truncate_end(self.end)\n",
            ),
        ),
    ),
    Flaw(
        "vote-compares-epochs-alone",
        "A controller votes for a candidate whose log ends in the same epoch, and may be shorter.",
        (
            Edit(
                "images/broker/raft/state.py",
                "        up_to_date = request.end >= end or",
                "        up_to_date = request.end.epoch >= end.epoch or",
            ),
        ),
    ),
)


def patched(source: str, flaw: Flaw, path: str) -> str:
    """A source with the edits of a flaw. Raises ValueError when it does not have the text once."""
    for edit in flaw.edits:
        if edit.path == path:
            if source.count(edit.before) != 1:
                raise ValueError(f"{flaw.name}: {path} does not have this once:\n{edit.before}")
            source = source.replace(edit.before, edit.after)
    return source


def first_failure() -> dict[str, Any]:
    """The first invalid run of this process' broker: its seed, and its stories."""
    for seed in SEEDS:
        outcome = run_in_simulation(parse({"time_limit": TIME_LIMIT_S, "seed": seed}))
        if outcome.failure or outcome.validity is Validity.INVALID:
            stories = [list(story.lines()[:LINES]) for story in outcome.stories]
            return {"seed": seed, "failure": outcome.failure, "stories": stories}
    return {"seed": None, "failure": "", "stories": []}


def explained(flaw: Flaw) -> dict[str, Any]:
    """The first failure of the broker with a flaw, in a process whose `images` are a patched copy."""
    with TemporaryDirectory(prefix="faultline-flaw-") as directory:
        shutil.copytree(ROOT / "images", Path(directory) / "images")
        for path in dict.fromkeys(edit.path for edit in flaw.edits):
            target = Path(directory) / path
            target.write_text(patched(target.read_text(encoding="utf-8"), flaw, path), encoding="utf-8")
        command = [sys.executable, "-P", "-m", __spec__.name, "--here"]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join((directory, str(ROOT)))}
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
        return {"flaw": flaw.name, **json.loads(done.stdout)}


def passages() -> str:
    """What the explanation says of each flaw, in Markdown."""
    meanings = {flaw.name: flaw.meaning for flaw in FLAWS}
    rows = json.loads(ROWS.read_text(encoding="utf-8"))
    return "\n".join(line for row in rows for line in _passage(row, meanings[row["flaw"]]))


def _passage(row: dict[str, Any], meaning: str) -> Iterator[str]:
    if row["seed"] is None:
        yield f"{meaning.removesuffix('.')} (`{row['flaw']}`): {_found(row)}.\n"
        return
    yield f"{meaning.removesuffix('.')} (`{row['flaw']}`, {_found(row)}):\n"
    yield "```"
    yield "\n\n".join("\n".join(story) for story in row["stories"])
    yield "```\n"


def _found(row: dict[str, Any]) -> str:
    if row["seed"] is None:
        return f"no run of the seeds {SEEDS.start} to {SEEDS.stop - 1} is invalid"
    return f"seed {row['seed']}"


def main() -> int:
    """Explain the flaws, one after the other."""
    parser = argparse.ArgumentParser(description="Tells what the explanation says of ten flaws.")
    parser.add_argument("--out", type=Path, default=ROWS, help="the rows, as JSON (default: those of the docs)")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        print(json.dumps(first_failure()))
        return 0
    rows = []
    for flaw in FLAWS:
        rows.append(explained(flaw))
        print(f"{flaw.name}: {_found(rows[-1])}", file=sys.stderr, flush=True)
    options.out.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
