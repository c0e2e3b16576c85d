"""The journal of shrinking: every run that was made, so that an interrupted session is resumed.

    STORE/shrinking/<name>/trials.jsonl     the subject, then a line for each candidate: what its run showed, or null
                          /incident.yaml    the smallest spec so far, as an incident

Shrinking is deterministic, so resuming is beginning anew with a predicate that remembers: the runs in the journal are
not made a second time. A line that was cut short when the process was killed is left aside. A journal is never begun
anew over another one, whose result would be lost.
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
from results.atomic_files import json_object, put_text, read_text
from results.errors import StoreError

TRIALS: Final = "trials.jsonl"


class CannotResumeShrinking(Exception):
    """No session to resume, or one of another subject or other sources, or one that would be lost; the message is one
    line for the user."""


def is_begun(directory: Path) -> bool:
    """Whether a session has left its journal there."""
    return (directory / TRIALS).exists()


def check_begun(directory: Path, *, resume: bool) -> None:
    """Raise CannotResumeShrinking where there is no journal to `resume`, or one that is to be begun over."""
    begun = is_begun(directory)
    if resume and not begun:
        raise CannotResumeShrinking(f"{directory}: there is nothing to resume")
    if begun and not resume:
        raise CannotResumeShrinking(f"{directory} has an earlier result: go on with --resume, or remove it")


class TrialJournal:
    """The journal in one directory. Raises StoreError when it cannot be written."""

    def __init__(self, directory: Path, subject: dict[str, Any], *, resume: bool) -> None:
        """`subject` decides which runs are made: a journal of another one is not resumed. Raises
        CannotResumeShrinking."""
        check_begun(directory, resume=resume)
        self.directory = directory
        self._path = directory / TRIALS
        self._known = self._read(subject) if resume else {}
        lines = [{"subject": subject}, *({"trial": key, "sighting": value} for key, value in self._known.items())]
        put_text(self._path, "".join(f"{json.dumps(line)}\n" for line in lines), parents=True)

    def _read(self, subject: dict[str, Any]) -> dict[str, Any]:
        lines = (read_text(self._path) or "").splitlines()
        entries = [entry for line in lines if (entry := json_object(line))]
        if not entries or entries[0].get("subject") != subject:
            raise CannotResumeShrinking(
                f"{self.directory} was begun with another run, or with other sources of Faultline; remove it"
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
