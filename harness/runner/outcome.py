"""The outcome of a run, and its progress."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from checkers.verdict import Validity, Verdict, worst
from harness.exit_codes import EXIT_CODES, NOT_CARRIED_OUT
from harness.spec import Spec
from nemesis.nemesis import Injection
from results.explanation.signature import Signature, shown_signatures
from results.explanation.story import Story, stories_to_json
from results.run.deviations import fault_deviations, operation_deviations


@dataclass(frozen=True, slots=True)
class Progress:
    """The state of a run at one moment, for a display."""

    stage: str
    time_s: float
    """True time since the run began."""
    operations: Mapping[tuple[str, str], int]
    """Ended operations by kind and outcome."""
    open_appends: int
    faults: tuple[str, ...]
    """The active faults, in a few words each."""


class ProgressListener(Protocol):
    """Called often during a run; must return quickly and must not raise."""

    def __call__(self, progress: Progress, /) -> None: ...


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a run."""

    spec: Spec
    verdicts: tuple[Verdict, ...] = ()
    stories: tuple[Story, ...] = ()
    """The explanation of what was violated, cause first."""
    digest: str | None = None
    trail: tuple[tuple[int, int, str], ...] = ()
    injections: tuple[Injection, ...] = ()
    recovery: Mapping[str, Any] = field(default_factory=dict)
    operations: Mapping[tuple[str, str], int] = field(default_factory=dict)
    scripted: tuple[Mapping[str, Any], ...] = ()
    """What became of each scripted operation."""
    directory: Path | None = None
    report: Path | None = None
    failure: str = ""
    """Why the run could not be carried out, in one line; empty when it was."""
    refused: bool = False
    """Whether it failed before anything was deployed: its directory holds nothing worth keeping."""
    unreported: str = ""
    """Why the report could not be written, in one line; the verdicts stand without it."""
    cpu_seconds: float = 0.0
    """CPU time of the run itself, without checking and reporting."""
    time_s: float = 0.0
    """How long the run took in its own time."""

    @property
    def validity(self) -> Validity:
        """The worst of the verdicts."""
        return worst(verdict.validity for verdict in self.verdicts)

    @property
    def signatures(self) -> tuple[Signature, ...]:
        """All that the run shows: those of its stories, then its other findings."""
        return shown_signatures(self.verdicts, (each for story in self.stories for each in story.signatures))

    @property
    def again(self) -> str:
        """The command that repeats this run: exactly, where it has a digest, else with the same faults."""
        words = ("replay", f"{self.directory}") if self.digest else ("run", f"{self.directory}/spec.yaml")
        return shlex.join(("faultline", *words))

    @property
    def exit_code(self) -> int:
        """0 valid, 1 invalid, 2 unknown, 3 not carried out."""
        if self.failure:
            return NOT_CARRIED_OUT
        return EXIT_CODES[self.validity]

    def to_json(self) -> dict[str, Any]:
        """The outcome as one JSON object, for scripts."""
        from results.headline import headline
        from results.run.json_encoding import verdicts_to_json

        operations: dict[str, dict[str, int]] = {}
        for (kind, end), count in self.operations.items():
            operations.setdefault(kind, {})[end] = count
        faults: dict[str, dict[str, int]] = {}
        for injection in self.injections:
            family = faults.setdefault(injection.family, {"injected": 0, "took_effect": 0})
            family["injected"] += injection.injected
            family["took_effect"] += injection.took_effect
        return {
            "run": str(self.directory),
            "seed": self.spec.seed,
            "failure": self.failure or None,
            **(verdicts_to_json(self.verdicts) if not self.failure else {}),
            **stories_to_json(self.stories),
            "headline": None if self.failure else headline(self.verdicts, self.spec.check_settings()),
            "operations": operations,
            "faults": faults,
            "deviations": list(self.deviations),
            "recovery": dict(self.recovery),
            "digest": self.digest,
            "time_seconds": self.time_s,
            "cpu_seconds": round(self.cpu_seconds, 3),
            "report": str(self.report) if self.report else None,
            "replay": self.again,
            "exit_code": self.exit_code,
        }

    @property
    def deviations(self) -> tuple[str, ...]:
        """Where the run did not follow the script of its faults and clients, a line each."""
        injections = sorted(self.injections, key=lambda injection: injection.number)
        return (
            *(line for each in injections for line in fault_deviations(each.fault, each.detail)),
            *operation_deviations(self.scripted),
        )

    @property
    def effective_families(self) -> tuple[str, ...]:
        """The fault families of which at least one fault took effect."""
        return tuple(dict.fromkeys(injection.family for injection in self.injections if injection.took_effect))
