"""Reads a scope from YAML (docs/exploration.md). Every error is a SpecError of one line with file, line and field."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

from harness.search.exploration.scope import Scope
from harness.suites.reading import is_whole, known, read
from harness.yaml_document import SpecError
from images.broker.controller.unclean_recovery import STRATEGY, Strategy
from images.broker.rules import NAMES
from images.broker.truncation_protocol import TruncationProtocol

V = TypeVar("V")

SHIPPED: Final = Path(__file__).parents[1] / "scopes"
_BOUNDS: Final = {
    "replicas": (1, 5),
    "records": (1, 10),
    "leader_epochs": (1, 10),
    "min.insync.replicas": (1, 5),
    "restarts": (0, 5),
    "losses": (0, 5),
    "reassignments": (0, 5),
    "fencings": (0, 5),
}
"""The numbers of a scope, with the least and the largest of each: no machine could explore more."""
_BROKERS_MAX: Final = 5
_IN_FLIGHT: Final = {"at once": False, "in flight": True}
_ALTER_PARTITION: Final = {"at once": (False, False), "in flight": (True, False), "answers in flight": (True, True)}
"""Whether requests and whether answers are in flight."""
_SHARED: Final = {"own": False, "shared": True}
_STRATEGIES: Final = {it.value: it for it in (Strategy.MANUAL, Strategy.BALANCED)}
_FIELDS: Final = (
    *_BOUNDS,
    "brokers",
    "protocol",
    "without",
    "alter_partition",
    "fetch",
    "fetchers",
    STRATEGY,
    "symmetry",
)


def load(named: str, protocol: str | None = None, without: tuple[str, ...] = ()) -> tuple[str, Scope]:
    """The name of a scope and the scope, in the file `named` or shipped by that name; a `protocol` instead of its own,
    and further rules that are off. Raises SpecError."""
    name, document = read(named, SHIPPED)
    try:
        fields = dict(known("a scope is a mapping with replicas, records and leader_epochs", document.values, _FIELDS))
        scope = _scope(fields)
    except SpecError as error:
        raise SpecError(document.located(str(error))) from None
    given = {
        **fields,
        "protocol": scope.protocol if protocol is None else protocol,
        "without": [*scope.without, *without],
    }
    return name, _scope(given)


def _scope(fields: Mapping[str, Any]) -> Scope:
    default = Scope()
    numbers = {
        field: number_of(fields, field, getattr(default, _attribute(field)), bounds)
        for field, bounds in _BOUNDS.items()
    }
    protocol = fields.get("protocol", default.protocol)
    if protocol not in list(TruncationProtocol):
        raise SpecError(f"protocol: {protocol!r} is not one of {', '.join(TruncationProtocol)}")
    without = rules_of(fields)
    symmetry = truth_of(fields, "symmetry", default.symmetry)
    if numbers["losses"] > numbers["restarts"]:
        raise SpecError(f"losses: {numbers['losses']} is more than restarts, {numbers['restarts']}")
    brokers = number_of(fields, "brokers", numbers["replicas"], (numbers["replicas"], _BROKERS_MAX))
    if numbers["reassignments"] and brokers == numbers["replicas"]:
        raise SpecError("reassignments: every broker has a replica; brokers has to be more than replicas")
    limits: dict[str, Any] = {_attribute(field): number for field, number in numbers.items()}
    requests_in_flight, answers_in_flight = _one_of(_ALTER_PARTITION, fields, "alter_partition")
    scope = Scope(
        **limits,
        spare_brokers=brokers - numbers["replicas"],
        protocol=TruncationProtocol(protocol),
        without=without,
        isr_changes_in_flight=requests_in_flight,
        isr_answers_in_flight=answers_in_flight,
        fetches_in_flight=_one_of(_IN_FLIGHT, fields, "fetch"),
        fetchers_shared=_one_of(_SHARED, fields, "fetchers"),
        unclean_recovery=_one_of(_STRATEGIES, fields, STRATEGY),
        symmetry=symmetry,
        as_in_a_run=default.as_in_a_run,
    )
    if scope.fetchers_shared and not scope.fetches_in_flight:
        raise SpecError("fetchers: shared makes a difference only with fetch: in flight")
    if scope.losses and not scope.losses_at_a_time:
        raise SpecError("losses: with replicas or min.insync.replicas 1 a record may be on one broker only")
    return scope


def _attribute(field: str) -> str:
    return "min_insync_replicas" if field == "min.insync.replicas" else field


def _one_of(values: Mapping[str, V], fields: Mapping[str, Any], field: str) -> V:
    """What the value of a field stands for, the first one where it is left out. Raises SpecError."""
    value = fields.get(field, next(iter(values)))
    if value not in list(values):  # a list or a mapping has no hash
        raise SpecError(f"{field}: {value!r} is not one of {', '.join(values)}")
    return values[value]


def number_of(fields: Mapping[str, Any], field: str, default: int, bounds: tuple[int, int]) -> int:
    """A number of a scope, within these bounds. Raises SpecError."""
    number, (least, largest) = fields.get(field, default), bounds
    if not is_whole(number) or not least <= number <= largest:
        raise SpecError(f"{field}: {number!r} is not a number from {least} to {largest}")
    return number


def rules_of(fields: Mapping[str, Any]) -> tuple[str, ...]:
    """The rules that are off in a scope. Raises SpecError."""
    without = fields.get("without") or []
    if not isinstance(without, list):
        raise SpecError(f"without: {without!r} is not a list of rules")
    for rule in without:
        if rule not in NAMES:
            raise SpecError(f"without: {rule!r} is not a rule; `faultline rules` lists them")
    return tuple(dict.fromkeys(without))


def truth_of(fields: Mapping[str, Any], field: str, default: bool) -> bool:
    """A field of a scope that is true or false. Raises SpecError."""
    value = fields.get(field, default)
    if not isinstance(value, bool):
        raise SpecError(f"{field}: {value!r} is not true or false")
    return value
