"""What a run of an incident must show.

    expect: {verdict: invalid, check: linearizability, finding: lost-append, about: {partition: 0, offset: 10}}
    expect: {verdict: valid, figures: {acknowledged_lost: ">= 1"}}

Every part that is given must be met: the verdict of the run; a finding of that kind, of that checker, about that
partition and offset, all in one; and figures, each compared with a number. A figure is `checker.figure`, or
`acknowledged_lost`: all acknowledged records that were lost, whether a promise was broken by it or not.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from checkers.registry import CHECKERS
from checkers.verdict import Finding, Validity, Verdict, worst
from nemesis.fields import FieldError, read

_COMPARISONS: Final[Mapping[str, Callable[[float, float], bool]]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    ">": operator.gt,
    "<": operator.lt,
}
ACKNOWLEDGED_LOST: Final = "acknowledged_lost"
_LOST: Final = ("loss.lost", "loss.acknowledged_lost_allowed")
COMPARISON: Final = r"(>=|<=|==|>|<)\s*(-?\d+(?:\.\d+)?)"
"""Of a figure with a number."""


@dataclass(frozen=True, slots=True)
class FindingPlace:
    """Where a finding must be."""

    partition: int | None = None
    offset: int | None = None

    def matches(self, finding: Finding) -> bool:
        """Whether a finding is there."""
        return self.partition in (None, finding.partition) and (self.offset is None or self.offset in finding.offsets)


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """See the module's docstring. Raises ValueError naming the field that is wrong."""

    verdict: Validity | None = None
    check: str = ""
    finding: str = ""
    about: FindingPlace = field(default_factory=FindingPlace)
    figures: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        names = list(CHECKERS)
        if self.check and self.check not in names:
            raise ValueError(f"check: {self.check!r} is not one of {', '.join(names)}")
        for name, text in self.figures.items():
            if not re.fullmatch(COMPARISON, text):
                raise ValueError(f'figures.{name}: {text!r} is not a comparison such as ">= 1"')
            if name != ACKNOWLEDGED_LOST and (name.partition(".")[0] not in names or "." not in name):
                raise ValueError(f"figures.{name}: is neither {ACKNOWLEDGED_LOST} nor a checker's, such as loss.lost")

    def unmet(self, verdicts: Sequence[Verdict]) -> tuple[str, ...]:
        """The parts that the verdicts of a run do not meet, a line each."""
        return tuple(self._unmet(verdicts))

    def _unmet(self, verdicts: Sequence[Verdict]) -> Iterator[str]:
        answer = worst(verdict.validity for verdict in verdicts)
        if self.verdict is not None and answer is not self.verdict:
            yield f"the verdict is {answer}, not {self.verdict}"
        if self.check or self.finding or self.about != FindingPlace():
            candidates = [verdict for verdict in verdicts if self.check in ("", verdict.checker)]
            findings = [finding for verdict in candidates for finding in verdict.findings]
            if not any(self.finding in ("", finding.kind) and self.about.matches(finding) for finding in findings):
                yield f"no finding {self._wanted()}; there are: {_listed(candidates)}"
        for name, text in self.figures.items():
            value = _figure(name, verdicts)
            match = re.fullmatch(COMPARISON, text)
            assert match is not None
            if value is None or not _COMPARISONS[match[1]](value, float(match[2])):
                yield f"{name} is {'not there' if value is None else f'{value:g}'}, not {text}"

    def _wanted(self) -> str:
        parts = [self.finding, f"of {self.check}" if self.check else ""]
        parts += [f"about {name} {value}" for name, value in self._about().items()]
        return " ".join(part for part in parts if part)

    def _about(self) -> dict[str, int]:
        about = {"partition": self.about.partition, "offset": self.about.offset}
        return {name: value for name, value in about.items() if value is not None}

    def to_mapping(self) -> dict[str, Any]:
        """As YAML values."""
        values: dict[str, Any] = {"verdict": str(self.verdict)} if self.verdict is not None else {}
        for name in ("check", "finding"):
            if getattr(self, name):
                values[name] = getattr(self, name)
        if self._about():
            values["about"] = self._about()
        if self.figures:
            values["figures"] = dict(self.figures)
        return values

    def describe(self) -> str:
        """A few words for people."""
        figures = [f"{name} {text}" for name, text in self.figures.items()]
        wanted = self._wanted()
        return ", ".join(part for part in (str(self.verdict or ""), wanted, *figures) if part) or "anything"


def parse_expectation(value: object, where: str) -> Expectation:
    """The expectation that a mapping stands for. Raises FieldError."""
    if not isinstance(value, Mapping):
        raise FieldError(f"{where}: {value!r} is not a mapping such as {{verdict: valid}}")
    values = dict(value)
    about = read(FindingPlace, values.pop("about", {}), f"{where}.about")
    return replace(read(Expectation, values, where), about=about)


def _figure(name: str, verdicts: Sequence[Verdict]) -> float | None:
    if name == ACKNOWLEDGED_LOST:
        parts = [_figure(part, verdicts) for part in _LOST]
        return sum(part for part in parts if part is not None) if any(part is not None for part in parts) else None
    checker, _, figure = name.partition(".")
    return next((verdict.figures.get(figure) for verdict in verdicts if verdict.checker == checker), None)


def _listed(verdicts: Sequence[Verdict]) -> str:
    kinds = dict.fromkeys(
        f"{finding.kind} of {verdict.checker}" for verdict in verdicts for finding in verdict.findings
    )
    return ", ".join(kinds) or "none"
