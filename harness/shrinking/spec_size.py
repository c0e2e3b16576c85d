"""The size of a spec: of two specs that fail the same way, the smaller one is easier to understand.

Sizes are compared part by part, in the order of `SpecSize`: one fault less outweighs any number of clients. Every
accepted candidate is smaller than the one before, so shrinking ends and never goes in a circle.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, fields
from decimal import Decimal
from enum import StrEnum
from typing import Any, Final, NamedTuple

from harness.client_spec import ClientSpec
from harness.spec import Spec
from nemesis.faults.fault import Fault
from nemesis.faults.process import Kill

GROUPS: Final = ("brokers", "controllers", "all")
"""Targets that stand for the same nodes at any moment."""
FIELDS: Final = ("workload", "acks", "recency", "ready_limit_s", "recovery_limit_s")
"""Fields of a spec that count as settings."""
PLAIN: Final = Spec()
GENERATION: Final = "faultline.protocol"
"""The setting that chooses an older generation of the protocol: a flaw, not a setting of the world."""


class SpecSize(NamedTuple):
    """See the module's docstring."""

    faults: int
    operations: int
    rules_off: int
    conditions: int
    """That faults wait for."""
    symbolic_targets: int
    detail: int
    """Of all faults: fields that differ from their defaults, nodes beyond the first, and faults other than kills."""
    clients: int
    rate: float
    partitions: int
    nodes: int
    settings: int
    """Fields and settings that differ from their defaults."""
    time_limit_s: float
    digits: int
    """Decimal places of all times."""
    times_s: float
    """The sum of all times."""


def size_of(spec: Spec) -> SpecSize:
    """The size of a spec whose faults are a script."""
    times_s = [time_s for scheduled in spec.script for time_s in (scheduled.at_s, scheduled.then_after_s)]
    times_s += [scheduled.for_s for scheduled in spec.script if scheduled.for_s < math.inf]
    return SpecSize(
        faults=len(spec.script),
        operations=len(spec.operations),
        rules_off=len(spec.without),
        conditions=sum(scheduled.when is not None for scheduled in spec.script),
        symbolic_targets=sum(
            is_symbolic(target, spec) for scheduled in spec.script for target in scheduled.fault.targets()
        ),
        detail=sum(fault_detail(scheduled.fault) for scheduled in spec.script),
        clients=spec.producers + spec.consumers + spec.end_offset_readers,
        rate=spec.rate,
        partitions=spec.partitions,
        nodes=spec.brokers + spec.controllers + spec.replication_factor,
        settings=settings_off_default(spec),
        time_limit_s=spec.time_limit_s,
        digits=sum(decimal_places(time_s) for time_s in times_s),
        times_s=round(sum(times_s), 6),
    )


def fault_detail(fault: Fault) -> int:
    """How much a reader must take in about a fault beside its name. Of a choice, the variant declared first is the
    plainest."""
    detail = max(0, len(fault.targets()) - 1) + (not isinstance(fault, Kill))
    for name, default in plain_fields(fault).items():
        value = getattr(fault, name)
        detail += list(type(value)).index(value) if isinstance(value, StrEnum) else value != default
    return detail


def plain_fields(fault: Fault) -> Mapping[str, Any]:
    """The fields of a fault other than its targets that have a default, with that."""
    return {
        item.name: item.default
        for item in fields(fault)
        if item.default is not MISSING and item.name not in ("nodes", "against")
    }


def is_symbolic(target: str, spec: Spec) -> bool:
    """Whether a target is looked up when its fault is injected."""
    plain = target[:1] in ("b", "c") and target[1:].isdigit()
    return not plain and target not in GROUPS and target not in spec.script.bound_names


def client_defaults() -> Mapping[str, Any]:
    """The fields of `clients`, with their defaults."""
    return {item.name: getattr(ClientSpec(), item.name) for item in fields(ClientSpec)}


def settings_off_default(spec: Spec) -> int:
    """How many fields and settings differ from their defaults."""
    defaults = spec.deployed_system.defaults
    return (
        sum(defaults.get(name) != value for name, value in spec.settings.items())
        + sum(len(settings) for settings in spec.node_settings.values())
        + sum(getattr(spec.clients, name) != default for name, default in client_defaults().items())
        + sum(getattr(spec, name) != getattr(PLAIN, name) for name in FIELDS)
    )


def decimal_places(value: float) -> int:
    """Digits after the point, of a number with at most six."""
    exponent = Decimal(repr(round(value, 6))).normalize().as_tuple().exponent
    return max(0, -exponent) if isinstance(exponent, int) else 0
