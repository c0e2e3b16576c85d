"""Flaws that are no switches: patches of the broker, and the explanation of the first run that fails of each.

    python -m tests.results.explanation.flaws                       # all rows of docs/explained-flaws.json anew
    python -m tests.results.explanation.flaws majority-for-isr      # those of these flaws

Each set was written when the explanation was finished, by somebody who had read neither `checkers/` nor
`results/explanation/` nor an earlier set of flaws. Each is a change that a programmer may take for right, with the
sentence that an explanation has to say to name it. Spec and seeds were fixed beforehand, too: all fair faults for a
minute, for half of one in the second and third sets, in drawn worlds from the fourth on, and the first invalid
run of the seeds 1 to 150.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from checkers.verdict import Validity
from harness.runner.run import run_in_simulation
from harness.spec import parse
from tests.results.explanation.flaw import HALF_A_MINUTE, Edit, Flaw
from tests.results.explanation.flaw_sets.eighth import EIGHTH
from tests.results.explanation.flaw_sets.fifth import FIFTH
from tests.results.explanation.flaw_sets.fourth import FOURTH
from tests.results.explanation.flaw_sets.ninth import NINTH
from tests.results.explanation.flaw_sets.seventh import SEVENTH
from tests.results.explanation.flaw_sets.sixth import SIXTH
from tests.results.explanation.flaw_sets.tenth import TENTH
from tests.results.explanation.flaw_sets.third import THIRD

ROOT: Final = Path(__file__).parents[3]
ROWS: Final = ROOT / "docs" / "explained-flaws.json"
SEEDS: Final = range(1, 151)
LINES: Final = 3
"""Lines of the first story in which the cause must be named."""

_DIVERGENCE: Final = "images/broker/log/divergence.py"
_LEADER: Final = "images/broker/replication/leader.py"
_REPLICA: Final = "images/broker/replication/replica.py"
_FETCHER: Final = "images/broker/replication/fetcher.py"
_LOG: Final = "images/broker/log/log.py"
_EPOCHS: Final = "images/broker/log/leader_epochs.py"
_CHANGE: Final = "images/broker/controller/partition_change.py"
_RAFT_FETCH: Final = "images/broker/raft/fetch.py"

FIRST: Final = (
    Flaw(
        "unknown-position-skipped",
        "A leader leaves a member of the ISR that it has no fetch of yet out of the minimum for its high watermark, "
        "instead of waiting for it.",
        "The leader moved its high watermark (or acknowledged) without the position of a member of the ISR, whose log "
        "ends below it.",
        (
            Edit(
                _LEADER,
                "        if follower is None or follower.log_end is None:\n"
                "            return PartitionStep(partition)\n"
                "        positions.append(follower.log_end)\n",
                "        if follower is None or follower.log_end is None:\n"
                "            continue\n"
                "        positions.append(follower.log_end)\n",
            ),
        ),
    ),
    Flaw(
        "position-of-the-answer",
        "A leader records its own log end as the position of a follower that fetches: the end of the records that it "
        "is about to send.",
        "The leader counted a follower at an offset that the follower had not fetched from yet, and moved the high "
        "watermark over records that the follower did not have.",
        (
            Edit(
                _LEADER,
                "                follower.id,\n                fetch.offset,\n",
                "                follower.id,\n                partition.log_end,\n",
            ),
        ),
    ),
    Flaw(
        "majority-for-isr",
        "The high watermark goes to the offset that a majority of the ISR has, as in Raft, not to the lowest.",
        "The leader moved its high watermark above the position of a member of the ISR.",
        (
            Edit(
                _LEADER,
                "    candidate = min(positions, default=partition.high_watermark)\n",
                "    candidate = sorted(positions or [partition.high_watermark])[max(0, len(positions) - 1) // 2]\n",
            ),
        ),
    ),
    Flaw(
        "produce-outlives-leadership",
        "A produce request that waits for the high watermark is acknowledged when the high watermark gets there, "
        "without a look whether this broker is still the leader in whose epoch it appended.",
        "A broker acknowledged a record that it had appended as the leader of an epoch that was over: it did not lead "
        "any more, or its log had another record there.",
        (
            Edit(
                _REPLICA,
                "            if self.state.role is not ReplicaRole.LEADER or "
                "self.state.leader_epoch != appended.leader_epoch:\n"
                "                return ErrorCode.not_leader_or_follower\n"
                "            if self.state.high_watermark >= appended.end:\n",
                "            if self.state.high_watermark >= appended.end:\n",
            ),
        ),
    ),
    Flaw(
        "retry-one-short",
        "The end of a duplicate is taken for exclusive: a retry waits for the high watermark to reach its batch, not "
        "to pass it.",
        "A leader acknowledged a record (a retry) at or above its high watermark.",
        (Edit(_REPLICA, "end = verdict.last_offset + 1\n", "end = verdict.last_offset\n"),),
    ),
    Flaw(
        "divergence-one-late",
        "A leader compares the end of the follower's last epoch with the follower's last offset, not with its end: one "
        "record too many is no divergence.",
        "A follower kept a record of an earlier epoch at an offset where its leader has another one: the leader "
        "answered its fetch without a divergence, though that epoch ends there in the leader's log.",
        (Edit(_DIVERGENCE, "or end.end < fetch_offset else None", "or end.end < fetch_offset - 1 else None"),),
    ),
    Flaw(
        "producer-zero-forgotten",
        "The producer table takes producer id 0, the first that is given, for none.",
        "A leader appended a batch of a producer a second time, though its log has it: it did not recognise the retry.",
        (Edit(_LOG, "        if header.producer_id >= 0:\n", "        if header.producer_id > 0:\n"),),
    ),
    Flaw(
        "shrink-before-commit",
        "While an ISR change is in flight, the high watermark waits for the proposed members alone: a member leaves "
        "when its removal is proposed, not when it is committed.",
        "The leader moved its high watermark with a quorum without a member of the committed ISR, whose removal was "
        "proposed only.",
        (
            Edit(
                _LEADER,
                "sorted({*partition.isr, *(leadership.proposed or ()), *leadership.unresolved_members})",
                "sorted({*(leadership.proposed or partition.isr), *leadership.unresolved_members})",
            ),
        ),
    ),
    Flaw(
        "elr-emptied-one-late",
        "The controller empties the ELR when the ISR has more than min.insync.replicas members, not as many.",
        "A broker stayed in the ELR (or was elected from it) while the ISR had min.insync.replicas members and "
        "committed records that the broker does not have.",
        (
            Edit(
                _CHANGE,
                "full = len(election.isr) >= self.topic.min_isr(partition)",
                "full = len(election.isr) > self.topic.min_isr(partition)",
            ),
        ),
    ),
    Flaw(
        "uncommitted-metadata-for-brokers",
        "A controller answers a broker's fetch of the metadata up to its log end, as a controller's, not up to the "
        "high watermark.",
        "A broker applied metadata that was not committed, and that another active controller then did not have.",
        (
            Edit(
                _RAFT_FETCH,
                "before = node.log.end if replica in node.state.progress else node.state.high_watermark\n",
                "before = node.log.end\n",
            ),
        ),
    ),
)

SECOND: Final = (
    Flaw(
        "latest-of-the-beginning",
        "A leader answers a read of the latest offset with the high watermark that it had when the read began, not "
        "when the ISR has confirmed it.",
        "The leader answered a read of the latest offset with the high watermark from when the read began, before it "
        "was known to cover all committed records (below the start of its epoch).",
        (
            Edit(
                _REPLICA,
                "        while self.state.leader_epoch == read.leader_epoch and self.state.leadership is not None:\n",
                "        latest = self.state.high_watermark\n"
                "        while self.state.leader_epoch == read.leader_epoch and self.state.leadership is not None:\n",
            ),
            Edit(
                _REPLICA,
                "self._trace.latest_told(self.state, read.read_index, confirmed)\n"
                "                return LatestOffset(NO_ERROR, self.state.high_watermark, read.read_index, confirmed)",
                "told = self.state._replace(high_watermark=latest)\n"
                "                self._trace.latest_told(told, read.read_index, confirmed)\n"
                "                return LatestOffset(NO_ERROR, latest, read.read_index, confirmed)",
            ),
        ),
        HALF_A_MINUTE,
    ),
    Flaw(
        "current-epoch-as-last-fetched",
        "A follower's fetch gives the leader epoch that it follows as the last fetched one, not that of its last "
        "record.",
        "The divergence between follower and leader went unnoticed (the fetch gave the current leader epoch as its "
        "last fetched one), so the follower kept records of an earlier epoch that the leader does not have, and "
        "appended behind them.",
        (
            Edit(
                _FETCHER,
                "            state.leader_epoch,\n            state.epochs.latest,\n",
                "            state.leader_epoch,\n"
                "            state.leader_epoch if state.log_end else state.epochs.latest,\n",
            ),
        ),
        HALF_A_MINUTE,
    ),
    Flaw(
        "epoch-survives-truncation",
        "A truncation leaves the epoch that begins exactly at the new end in the epoch cache.",
        "A follower's epoch cache kept the epoch that it had just truncated, so its fetches diverge again and again "
        "at the same offset, and it never catches up.",
        (
            Edit(
                _EPOCHS,
                "        keep = bisect_left(self.entries, offset, key=_start)\n        return self if keep ==",
                "        keep = bisect_right(self.entries, offset, key=_start)\n        return self if keep ==",
            ),
        ),
        HALF_A_MINUTE,
    ),
    Flaw(
        "followers-forget-producers",
        "Only a leader's appends update the producer table, not those of a follower.",
        "The new leader did not recognise a retry (or the next batch) of a batch that it had replicated as a follower, "
        "because it had no producer state of it.",
        (
            Edit(
                _LOG,
                "        self._on_batch(header)\n        if self.end - self.recovery_point",
                "        self._on_batch(header, produced=trusted)\n        if self.end - self.recovery_point",
            ),
            Edit(
                _LOG,
                "def _on_batch(self, header: Header) -> None:",
                "def _on_batch(self, header: Header, produced: bool = True) -> None:",
            ),
            Edit(
                _LOG,
                "        if header.producer_id >= 0:\n",
                "        if produced and header.producer_id >= 0:\n",
            ),
        ),
        HALF_A_MINUTE,
    ),
    Flaw(
        "elr-of-all-replicas",
        "While the ISR is too small, the controller puts every replica that is not in it into the ELR, not only those "
        "that were in the ISR or the ELR.",
        "The controller put into the ELR, and elected, a replica that was in neither the ISR nor the ELR before (one "
        "that was out of sync).",
        (
            Edit(
                _CHANGE,
                "candidates = _in_order(partition, {*partition.isr, *partition.elr})",
                "candidates = partition.replicas",
            ),
        ),
        HALF_A_MINUTE,
    ),
)
"""The flaws of a second writer that the first set does not have."""

SETS: Final = (TENTH, NINTH, EIGHTH, SEVENTH, SIXTH, FIFTH, FOURTH, THIRD, SECOND, FIRST)
FLAWS: Final = tuple(flaw for flaws in SETS for flaw in flaws)

NAMED: Final = frozenset(
    {
        "proposed-shrink-counts-at-once",
        "refused-registration-renews-session",
        "duplicate-acknowledged-one-offset-early",
        "unfetched-member-does-not-hold-watermark",
        "next-offsets-include-undelivered-records",
        "brokers-fetch-metadata-above-watermark",
        "coordinator-loads-up-to-stale-watermark",
        "cut-keeps-epoch-that-starts-there",
        "leader-never-lowers-a-followers-position",
        "brokers-read-what-the-active-controller-has-appended",
        "retry-is-acknowledged-without-waiting",
        "group-waits-for-ever-for-a-record-that-failed",
        "consumer-commits-records-fetched-ahead",
        "unfenced-broker-leads-only-where-it-is-in-the-isr",
        "coordinator-stops-at-its-high-watermark",
        "registration-keeps-the-shutting-down-mark",
        "shrink-counts-before-it-is-committed",
        "elr-takes-every-replica-outside-the-isr",
        "coordinator-loads-up-to-its-high-watermark",
        "retry-acknowledged-one-record-early",
        "brokers-read-the-active-controllers-whole-log",
        "new-leader-takes-its-whole-log-for-committed",
        "retry-answered-without-wait",
        "coordinator-loads-to-high-watermark",
        "returns-still-shutting-down",
        "high-watermark-skips-unknown",
        "unfence-elects-isr-only",
        "isr-change-sent-once",
        "retry-acked-at-once",
        "flush-below-recovery-point",
        "answers-counted-as-votes",
        "cut-to-own-end",
        "position-never-falls",
        "leads-checked-once",
        "shrink-at-once",
        "epoch-at-cut-stays",
        "producers-survive-cut",
        "unfenced-elr-waits",
        "brokers-read-to-log-end",
        "unknown-position-left-out",
        "shrink-readmits",
        "duplicate-acked-at-once",
        "wrong-last-fetched-epoch",
        "epoch-entry-kept-at-cut",
        "producers-not-rebuilt",
        "elr-emptied-early",
        "unfence-elects-from-isr-only",
        "reassignment-keeps-removed-in-isr",
        "unready-leader-serves-uncommitted",
        "coordinator-loads-below-hw",
        "rebalance-inherits-storing",
        "commit-error-dropped",
        "ack-wait-checks-leader-once",
        "latest-offset-read-too-early",
        "current-epoch-as-last-fetched",
        "position-of-the-answer",
        "majority-for-isr",
        "producer-zero-forgotten",
        "shrink-before-commit",
        "uncommitted-metadata-for-brokers",
    }
)
"""The flaws of which the first lines said the sentence when they were measured first, as read by a person."""
NAMED_SINCE: Final = frozenset(
    {
        "failed-generation-record-leaves-group-storing",
        "running-fetcher-not-given-new-partitions",
        "old-metadata-resolves-an-isr-change-in-flight",
        "isr-change-is-given-up-at-an-inactive-controller",
        "name-of-a-new-segment-is-never-synced",
        "consumer-commits-its-fetch-position",
        "recovery-leaves-the-torn-tail-in-the-file",
        "follower-begins-anew-at-the-leader-end",
        "last-fetched-epoch-of-request",
        "snapshot-without-fenced-brokers",
        "log-start-renamed-unsynced",
        "last-answer-decides",
        "whole-log-committed-at-takeover",
        "one-proposal-per-topic",
        "shutting-down-for-ever",
        "commit-replaces-offsets",
        "failed-generation-unreported",
        "load-to-high-watermark",
        "commits-what-it-fetched",
        "empty-group-drops-offsets",
        "shrink-effective-in-flight",
        "log-start-checkpoint-base",
        "metadata-leaves-isr-change-in-flight",
        "not-leader-taken-as-not-appended",
        "renumbered-though-maybe-appended",
        "refusal-renews-session",
        "metadata-without-isr-change-ignored",
        "isr-shrink-at-once",
        "no-divergence-check-below-hw",
        "duplicate-answered-at-once",
        "completed-reassignment-keeps-isr",
        "produce-outlives-leadership",
        "retry-one-short",
        "divergence-one-late",
        "elr-emptied-one-late",
        "latest-of-the-beginning",
        "followers-forget-producers",
        "elr-of-all-replicas",
        "epoch-survives-truncation",
        "unknown-position-skipped",
    }
)
"""Those of which they say it since the explanation was improved after that."""


def patched(source: str, flaw: Flaw, path: str) -> str:
    """A source with the edits of a flaw. Raises ValueError when it does not have the text once."""
    for edit in flaw.edits:
        if edit.path == path:
            if source.count(edit.before) != 1:
                raise ValueError(f"{flaw.name}: {path} does not have this once:\n{edit.before}")
            source = source.replace(edit.before, edit.after)
    return source


def first_failure(spec: dict[str, Any]) -> dict[str, Any]:
    """The first invalid run of this process' broker: its seed, and the first lines of its first story."""
    for seed in SEEDS:
        outcome = run_in_simulation(parse({**spec, "seed": seed}))
        if outcome.validity is Validity.INVALID:
            return {"seed": seed, "lines": list(outcome.stories[0].lines()[:LINES])}
    return {"seed": None, "lines": []}


def explained(flaw: Flaw) -> dict[str, Any]:
    """The first failure of the broker with a flaw, in a process whose `images` and `workloads` are patched copies."""
    with TemporaryDirectory(prefix="faultline-flaw-") as directory:
        for package in ("images", "workloads"):
            shutil.copytree(ROOT / package, Path(directory) / package)
        for path in dict.fromkeys(edit.path for edit in flaw.edits):
            target = Path(directory) / path
            target.write_text(patched(target.read_text(encoding="utf-8"), flaw, path), encoding="utf-8")
        command = [sys.executable, "-P", "-m", __spec__.name, "--here", json.dumps(dict(flaw.spec))]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join((directory, str(ROOT)))}
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
        return {"flaw": flaw.name, **json.loads(done.stdout)}


def passages() -> str:
    """The explanation of each flaw, in Markdown."""
    rows = {row["flaw"]: row for row in json.loads(ROWS.read_text(encoding="utf-8"))}
    lines: list[str] = []
    for number, flaws in zip(range(len(SETS), 0, -1), SETS, strict=True):
        lines.append(f"### Writer {number}\n")
        lines += (line for flaw in flaws for line in _passage(flaw, rows[flaw.name]))
    return "\n".join(lines)


def _passage(flaw: Flaw, row: dict[str, Any]) -> Iterator[str]:
    named = "Named" if flaw.name in NAMED else "Named since" if flaw.name in NAMED_SINCE else "Not named"
    yield f"{flaw.meaning} (`{flaw.name}`, {_found(row)})\n"
    yield f"{named}. The sentence: {flaw.cause}\n"
    yield "```"
    yield from row["lines"]
    yield "```\n"


def _found(row: dict[str, Any]) -> str:
    if row["seed"] is None:
        return f"no run of the seeds {SEEDS.start} to {SEEDS.stop - 1} is invalid"
    return f"seed {row['seed']}"


def main() -> int:
    """Explain the flaws, one after the other."""
    parser = argparse.ArgumentParser(description="Tells what the explanation says of the flaws.")
    parser.add_argument("flaws", nargs="*", metavar="FLAW", help="its row anew (default: all of them)")
    parser.add_argument("--out", type=Path, default=ROWS, help="the rows, as JSON (default: those of the docs)")
    parser.add_argument("--here", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        print(json.dumps(first_failure(options.here)))
        return 0
    rows = {row["flaw"]: row for row in json.loads(ROWS.read_text(encoding="utf-8"))} if options.flaws else {}
    for flaw in FLAWS:
        if not options.flaws or flaw.name in options.flaws:
            rows[flaw.name] = explained(flaw)
            print(f"{flaw.name}: {_found(rows[flaw.name])}", file=sys.stderr, flush=True)
    options.out.write_text(
        json.dumps([rows[flaw.name] for flaw in FLAWS], indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
