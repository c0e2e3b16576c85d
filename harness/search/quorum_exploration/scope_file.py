"""Reads a scope of controllers from YAML (docs/exploration.md). Every error is a SpecError of one line with file, line
and field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from harness.search.exploration.scope_file import SHIPPED, number_of, rules_of, truth_of
from harness.search.quorum_exploration.quorum_values import RequestKind
from harness.search.quorum_exploration.scope import QuorumScope
from harness.suites.reading import known, read
from harness.yaml_document import SpecError

_BOUNDS: Final = {
    "controllers": (1, 5),
    "epochs": (1, 10),
    "records": (0, 10),
    "messages": (0, 10),
    "restarts": (0, 5),
    "losses": (0, 5),
}
"""The numbers of a scope, with the least and the largest of each: no machine could explore more."""
_FIELDS: Final = (*_BOUNDS, "in_flight", "without", "symmetry")


def load(named: str, without: tuple[str, ...] = ()) -> tuple[str, QuorumScope] | None:
    """The name of a scope and the scope, in the file `named` or shipped by that name, with further rules that are off;
    None for a scope without the field `controllers`, which is one of replicas. Raises SpecError."""
    name, document = read(named, SHIPPED)
    if not isinstance(document.values, Mapping) or "controllers" not in document.values:
        return None
    try:
        fields = dict(known("a scope is a mapping", document.values, _FIELDS))
        scope = _scope(fields)
    except SpecError as error:
        raise SpecError(document.located(str(error))) from None
    return name, _scope({**fields, "without": [*scope.without, *without]})


def _scope(fields: Mapping[str, Any]) -> QuorumScope:
    default = QuorumScope()
    numbers = {field: number_of(fields, field, getattr(default, field), bounds) for field, bounds in _BOUNDS.items()}
    if numbers["losses"] > numbers["restarts"]:
        raise SpecError(f"losses: {numbers['losses']} is more than restarts, {numbers['restarts']}")
    return QuorumScope(
        **numbers,
        in_flight=_in_flight(fields.get("in_flight", list(default.in_flight))),
        without=rules_of(fields),
        symmetry=truth_of(fields, "symmetry", default.symmetry),
    )


def _in_flight(kinds: object) -> tuple[RequestKind, ...]:
    if not isinstance(kinds, list):
        raise SpecError(f"in_flight: {kinds!r} is not a list of requests: {', '.join(RequestKind)}")
    for kind in kinds:
        if kind not in list(RequestKind):
            raise SpecError(f"in_flight: {kind!r} is not one of {', '.join(RequestKind)}")
    return tuple(kind for kind in RequestKind if kind in kinds)
