"""The journal of shrinking: every run that was made, so that an interrupted session is resumed.

    STORE/shrinking/<name>/trials.jsonl     the subject, then a line for each candidate: what its run showed, or null
                          /incident.yaml    the smallest spec so far, as an incident

Shrinking is deterministic, so resuming is beginning anew with a predicate that remembers: the runs in the journal are
not made a second time. A line that was cut short when the process was killed is left aside.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

from harness.shrinking.passes import Sighting
from harness.shrinking.shrinker import Predicate
from harness.spec import Spec
from results.atomic_files import json_object
from results.errors import StoreError

TRIALS: Final = "trials.jsonl"


class CannotResumeShrinking(Exception):
    """No session to resume, or one of another subject or other sources; the message is one line for the user."""


class TrialJournal:
    """The journal in one directory. Raises StoreError when it cannot be written."""

    def __init__(self, directory: Path, subject: dict[str, Any], *, resume: bool) -> None:
        """`subject` decides which runs are made: a journal of another one is not resumed. Without `resume` the journal
        begins anew. Raises CannotResumeShrinking."""
        self.directory = directory
        self._path = directory / TRIALS
        self._known = self._read(subject) if resume else {}
        try:
            directory.mkdir(parents=True, exist_ok=True)
            lines = [{"subject": subject}, *({"trial": key, "sighting": value} for key, value in self._known.items())]
            self._path.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
        except OSError as error:
            raise StoreError.of("write", self._path, error) from error

    def _read(self, subject: dict[str, Any]) -> dict[str, Any]:
        try:
            lines = self._path.read_text(encoding="utf-8").splitlines()
        except OSError:
            raise CannotResumeShrinking(f"{self.directory}: there is nothing to resume") from None
        entries = [entry for line in lines if (entry := json_object(line))]
        if not entries or entries[0].get("subject") != subject:
            raise CannotResumeShrinking(
                f"{self.directory} was begun with another run, or with other sources of Faultline; begin anew"
            )
        return {entry["trial"]: entry["sighting"] for entry in entries[1:] if "trial" in entry}

    @property
    def remembered(self) -> int:
        """How many trials the journal holds."""
        return len(self._known)

    def remembering(self, predicate: Predicate, on_run: Callable[[], None] = lambda: None) -> Predicate:
        """The predicate, asked only about what is not in the journal; `on_run` is called before each run."""

        def remember(spec: Spec) -> Sighting | None:
            key = blake2b(spec.to_yaml().encode(), digest_size=16).hexdigest()
            if key not in self._known:
                on_run()
                sighting = predicate(spec)
                self._known[key] = None if sighting is None else _to_json(sighting)
                self._append({"trial": key, "sighting": self._known[key]})
            return _from_json(self._known[key])

        return remember

    def _append(self, entry: dict[str, Any]) -> None:
        try:
            with self._path.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps(entry) + "\n")
        except OSError as error:
            raise StoreError.of("write", self._path, error) from error


def _to_json(sighting: Sighting) -> dict[str, Any]:
    return {
        "effective": sorted(sighting.effective),
        "resolved": {
            str(number): {target: list(nodes) for target, nodes in targets.items()}
            for number, targets in sighting.resolved.items()
        },
        "struck_s": {str(number): at_s for number, at_s in sighting.struck_s.items()},
        "finding_s": sighting.finding_s,
        "digest": sighting.digest,
        "lines": list(sighting.lines),
        "same_finding": sighting.same_finding,
    }


def _from_json(values: dict[str, Any] | None) -> Sighting | None:
    if values is None:
        return None
    return Sighting(
        effective=frozenset(values["effective"]),
        resolved={int(number): targets for number, targets in values["resolved"].items()},
        struck_s={int(number): at_s for number, at_s in values["struck_s"].items()},
        finding_s=values["finding_s"],
        digest=values["digest"],
        lines=tuple(values["lines"]),
        same_finding=values["same_finding"],
    )
