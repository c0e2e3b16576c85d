"""What a run of an incident must show.

    expect: {verdict: invalid, check: linearizability, finding: lost-append, about: {partition: 0, offset: 10}}
    expect: {verdict: invalid, check: loss, finding: lost-append, cause: high-watermark-without-proposed-member}
    expect: {verdict: valid, figures: {acknowledged_lost: ">= 1"}}

Every part that is given must be met: the verdict of the run; a finding of that kind, of that checker, with that cause,
about that partition and offset, all in one; and figures, each compared with a number. Check, finding and cause are a
signature (`results.explanation.signature`): the finding belongs to the story of that cause, whatever other findings of
its kind have as theirs. A figure is
`checker.figure`, or `acknowledged_lost`: all records that were lost, acknowledged or read, whether a promise was broken
by it or not.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from checkers import loss
from checkers.registry import CHECKERS
from checkers.verdict import Finding, Validity, Verdict, worst
from nemesis.fields import FieldError, read
from results.explanation.signature import Signature, failure_signature
from results.explanation.story import StepKind, Story

_COMPARISONS: Final[Mapping[str, Callable[[float, float], bool]]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    ">": operator.gt,
    "<": operator.lt,
}
ACKNOWLEDGED_LOST: Final = "acknowledged_lost"
PASSED_UNREAD: Final = "positions.passed_unread"
"""Records that consumers skipped: with the former what a valid run may have cost."""
_LOST: Final = tuple(f"{loss.NAME}.{figure}" for figure in loss.LOST_FIGURES)
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
    cause: str = ""
    about: FindingPlace = field(default_factory=FindingPlace)
    figures: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        names = list(CHECKERS)
        if self.check and self.check not in names:
            raise ValueError(f"check: {self.check!r} is not one of {', '.join(names)}")
        if self.cause and self.cause not in {*StepKind, self.finding}:
            raise ValueError(f"cause: {self.cause!r} is neither the finding nor one of {', '.join(StepKind)}")
        for name, text in self.figures.items():
            if not re.fullmatch(COMPARISON, text):
                raise ValueError(f'figures.{name}: {text!r} is not a comparison such as ">= 1"')
            if name != ACKNOWLEDGED_LOST and (name.partition(".")[0] not in names or "." not in name):
                raise ValueError(f"figures.{name}: is neither {ACKNOWLEDGED_LOST} nor a checker's, such as loss.lost")

    @classmethod
    def of(cls, verdict: Validity, signature: Signature) -> Expectation:
        """A run with this verdict that shows this signature."""
        return cls(verdict=verdict, check=signature.check, finding=signature.finding, cause=signature.cause)

    @property
    def signature(self) -> Signature:
        """The signature that is asked for; an empty part stands for any."""
        return Signature(self.check, self.finding, self.cause)

    def narrowed(self, verdicts: Sequence[Verdict], signatures: Sequence[Signature]) -> Expectation:
        """This expectation with the verdict of a run and, unless it is valid, with the first signature that the verdict
        rests on and that is asked for; without a place, which another run of the same failure need not have."""
        signature = failure_signature(verdicts, filter(self.signature.covers, signatures)) or self.signature
        answer = worst(verdict.validity for verdict in verdicts)
        return replace(Expectation.of(answer, signature), figures=self.figures)

    def unmet(
        self, verdicts: Sequence[Verdict], signatures: Sequence[Signature], stories: Sequence[Story]
    ) -> tuple[str, ...]:
        """The parts that a run with these verdicts, signatures and stories does not meet, a line each."""
        return tuple(self._unmet(verdicts, signatures, stories))

    def _unmet(
        self, verdicts: Sequence[Verdict], signatures: Sequence[Signature], stories: Sequence[Story]
    ) -> Iterator[str]:
        answer = worst(verdict.validity for verdict in verdicts)
        if self.verdict is not None and answer is not self.verdict:
            yield f"the verdict is {answer}, not {self.verdict}"
        asks_for_a_finding = self.signature != Signature() or self.about != FindingPlace()
        shown = _with_signatures(verdicts, signatures, stories) if asks_for_a_finding else ()
        if asks_for_a_finding and not any(
            self.about.matches(finding) and any(map(self.signature.covers, of_finding)) for finding, of_finding in shown
        ):
            yield f"no finding {self._wanted()}; there are: {self._listed(signatures)}"
        for name, text in self.figures.items():
            value = figure_of(name, verdicts)
            match = re.fullmatch(COMPARISON, text)
            assert match is not None
            if value is None:
                yield f"{name} is not there: {_there_is(name, verdicts)}"
            elif not _COMPARISONS[match[1]](value, float(match[2])):
                yield f"{name} is {value:g}, not {text}"

    def _wanted(self) -> str:
        parts = [
            self.finding,
            f"of {self.check}" if self.check else "",
            f"caused by {self.cause}" if self.cause else "",
        ]
        parts += [f"about {name} {value}" for name, value in self._about().items()]
        return " ".join(part for part in parts if part)

    def _listed(self, signatures: Sequence[Signature]) -> str:
        candidates = [each for each in signatures if self.check in ("", each.check)]
        caused = ", caused by {0.cause}" if self.cause else ""
        return (
            ", ".join(dict.fromkeys(("{0.finding} of {0.check}" + caused).format(each) for each in candidates))
            or "none"
        )

    def _about(self) -> dict[str, int]:
        about = {"partition": self.about.partition, "offset": self.about.offset}
        return {name: value for name, value in about.items() if value is not None}

    def figures_in(self, verdicts: Sequence[Verdict]) -> str:
        """Its figures with the values that a run with these verdicts has, for people; empty without any."""
        values = {name: figure_of(name, verdicts) for name in self.figures}
        return ", ".join(f"{name} {value:g}" for name, value in values.items() if value is not None)

    def to_mapping(self) -> dict[str, Any]:
        """As YAML values."""
        values: dict[str, Any] = {"verdict": str(self.verdict)} if self.verdict is not None else {}
        for name in ("check", "finding", "cause"):
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
        if wanted and not self.finding:
            wanted = f"a finding {wanted}"
        return ", ".join(part for part in (str(self.verdict or ""), wanted, *figures) if part) or "anything"


def parse_expectation(value: object, where: str) -> Expectation:
    """The expectation that a mapping stands for. Raises FieldError."""
    if not isinstance(value, Mapping):
        raise FieldError(f"{where}: {value!r} is not a mapping such as {{verdict: valid}}")
    values = dict(value)
    about = read(FindingPlace, values.pop("about", {}), f"{where}.about")
    expectation = replace(read(Expectation, values, where), about=about)
    if expectation == Expectation():
        raise FieldError(f"{where}: {value!r} asks for nothing, which every run shows; such as {{verdict: valid}}")
    return expectation


def _with_signatures(
    verdicts: Sequence[Verdict], signatures: Sequence[Signature], stories: Sequence[Story]
) -> Iterator[tuple[Finding, Sequence[Signature]]]:
    """Every finding with the signatures that it is shown with: of the stories that tell it, else of all its kind."""
    for verdict in verdicts:
        for finding in verdict.findings:
            own = [each for story in stories for each in story.signatures_of(verdict.checker, finding)]
            of_kind = [each for each in signatures if (each.check, each.finding) == (verdict.checker, finding.kind)]
            yield finding, own or of_kind


def figure_of(name: str, verdicts: Sequence[Verdict]) -> float | None:
    """A figure as an expectation names it; None where no verdict has it."""
    if name == ACKNOWLEDGED_LOST:
        parts = [figure_of(part, verdicts) for part in _LOST]
        return sum(part for part in parts if part is not None) if any(part is not None for part in parts) else None
    checker, _, figure = name.partition(".")
    return next((verdict.figures.get(figure) for verdict in verdicts if verdict.checker == checker), None)


def _there_is(name: str, verdicts: Sequence[Verdict]) -> str:
    """The figures that could be meant by the name of one that no verdict has."""
    checker = loss.NAME if name == ACKNOWLEDGED_LOST else name.partition(".")[0]
    figures = [verdict.figures for verdict in verdicts if verdict.checker == checker]
    return f"{checker} has {', '.join(figures[0]) or 'none'}" if figures else f"{checker} did not check this run"
