"""The drawn world of a spec: every dimension that it varies gets a value from its seed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, Final

from harness import worlds
from harness.client_spec import ClientSpec
from harness.spec import Spec
from harness.worlds import DIMENSIONS, Dimension, WorldValue

_CLIENTS: Final = "clients."
_CLIENT_FIELDS: Final[Mapping[str, str]] = {
    f"{_CLIENTS}{item.name.removesuffix('_s')}": item.name for item in fields(ClientSpec)
}
"""Dimension → field of ClientSpec."""


def with_drawn_world(spec: Spec) -> Spec:
    """The spec with its world drawn, and a record of that in `drawn`; itself when it varies nothing. Its system's own
    settings alone are drawn. The values that it has of what it varies, as one drawn before does, are replaced."""
    if not spec.vary:
        return spec
    return with_world(spec, worlds.draw(spec.seed, drawn_dimensions(spec), given_world(spec)))


def drawn_dimensions(spec: Spec) -> list[str]:
    """The dimensions that are drawn for a spec: those that it varies and that mean anything in it."""
    known = {dimension.name for dimension in DIMENSIONS if _means_anything(spec, dimension)}
    return [name for name in spec.vary if name in known]


def with_world(spec: Spec, drawn: Mapping[str, WorldValue]) -> Spec:
    """The spec with these values for its drawn dimensions, and a record of them in `drawn`."""
    changes: dict[str, Any] = {}
    clients: dict[str, Any] = {}
    settings = dict(spec.settings)
    for dimension in DIMENSIONS:
        value = drawn.get(dimension.name)
        if value is None:
            continue
        if dimension.is_setting:
            if value == dimension.default:
                settings.pop(dimension.name, None)
            else:
                settings[dimension.name] = str(value)
        elif dimension.name in _CLIENT_FIELDS:
            clients[_CLIENT_FIELDS[dimension.name]] = value
        else:
            changes[dimension.name] = value
    return replace(
        spec,
        **changes,
        clients=replace(spec.clients, **clients),
        settings=settings,
        vary=(),
        drawn={**spec.drawn, **{name: worlds.recorded(value) for name, value in drawn.items()}},
    )


def given_world(spec: Spec) -> dict[str, Any]:
    """The value of every dimension that is not to be drawn, and the workload."""
    given: dict[str, Any] = {"workload": spec.workload}
    for dimension in DIMENSIONS:
        name = dimension.name
        if name in spec.vary:
            continue
        if dimension.is_setting:
            value = spec.settings.get(name, spec.settings.get(dimension.broker_name, str(dimension.default)))
            given[name] = int(value) if isinstance(dimension.default, int) else value
        elif name in _CLIENT_FIELDS:
            given[name] = getattr(spec.clients, _CLIENT_FIELDS[name])
        else:
            given[name] = getattr(spec, name)
    return given


def _means_anything(spec: Spec, dimension: Dimension) -> bool:
    """Whether it is a setting that the system has, or something that the spec leaves to be drawn."""
    if not dimension.is_setting:
        return bool(spec.families) or not dimension.of_faults
    try:
        spec.deployed_system.check_settings({dimension.name: str(dimension.values[-1])})
    except ValueError:
        return False
    return True
