"""The rows of the tables of docs/specs.md, from the declarations of fields, faults and conditions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, fields
from enum import StrEnum

from harness.client_spec import SHORTHANDS, ClientSpec
from harness.incidents.schema import client_descriptions, first_sentence, plain_default, short_form, spec_descriptions
from harness.runner.observation import POLL_S
from harness.spec import Spec
from harness.worlds import DIMENSIONS, recorded
from nemesis.conditions import COMBINED, SINGLE, Members, TriggerCondition
from nemesis.schedule import STEPS

Rows = list[tuple[str, ...]]
_AT_ONCE = ("restarted", "injected", "healed", "acknowledged")
"""Conditions on what the harness does itself: known at once in every environment."""
_ABSENT = ("operations", "families", "script")
"""Fields of Spec that are written as parts of other fields."""
_FILLED_IN = ("seed", "recovery_limit_s", "replication_factor", "drawn")
"""Fields whose default stands for a value that is drawn or worked out."""
_OF_NONE = {"keep": "no power loss", "stopping_ms": "no clean stop", "victim": "no process ends"}
"""Fields of faults → the meaning of None, where it is not any value."""


def spec_fields() -> Rows:
    """Field of a spec, default, meaning."""
    described = spec_descriptions()
    rows = _described({item.name: item for item in fields(Spec) if item.name not in _ABSENT}, described)
    return [*rows, ("`faults`", "`all`", _words(described["faults"]))]


def client_fields() -> Rows:
    """Field of `clients`, default, meaning."""
    described = client_descriptions()
    shorthands = {item.name: item for item in fields(Spec) if item.name in SHORTHANDS}
    own = {item.name: item for item in fields(ClientSpec)}
    return [
        *_described({**shorthands, **own}, described),
        ("`validate_positions`", "`true`", _words(described["validate_positions"])),
        ("`operations`", "`[]`", _words(described["operations"])),
    ]


def _without_value(item: Field[object]) -> str:
    return _OF_NONE.get(item.name, "any") if item.default is None else "needed"


def fault_fields() -> Rows:
    """Fault, its own fields with their defaults, whether it ends by itself."""
    return [
        (
            f"`{name}`",
            ", ".join(f"`{item.name}` {_default(item) or _without_value(item)}" for item in fields(kind)),
            "yes" if kind.ends_by_itself else "",
        )
        for name, kind in STEPS.items()
    ]


def worlds() -> Rows:
    """Dimension of the world, its default, the other values that are drawn."""
    return [
        (
            f"`{dimension.name}`" + (f" ({dimension.workload})" if dimension.workload else ""),
            *(
                ", ".join(f"`{recorded(value)}`" for value in part)
                for part in (dimension.values[:1], dimension.values[1:])
            ),
        )
        for dimension in DIMENSIONS
    ]


def conditions() -> Rows:
    """Condition, fields, when it holds, how it is seen outside of the simulation."""
    single = [
        (f"`{name}`", ", ".join(_condition_fields(kind)), first_sentence(kind), _seen(kind))
        for name, kind in SINGLE.items()
    ]
    return [
        *single,
        *((f"`{name}`", "a list of conditions", first_sentence(kind), "") for name, kind in COMBINED.items()),
    ]


def _condition_fields(kind: type[TriggerCondition]) -> list[str]:
    first = fields(kind)[0]
    alone = [f"**`{first.name}`**"] if short_form(kind) else [f"`{first.name}`"]
    return [*alone, *(f"`{item.name}`" for item in fields(kind)[1:])]


def _seen(kind: type[TriggerCondition]) -> str:
    if kind.name in _AT_ONCE:
        return "at once"
    examples: dict[str, object] = {"node": "b1", "events": ("appended",)}
    values = {item.name: examples.get(item.name, 0) for item in fields(kind) if item.default is MISSING}
    if issubclass(kind, Members):
        values["below"] = 1
    if kind(**values).rests_on_trace():
        return "not seen"
    polled = f"polled every {POLL_S:g} s"
    of_a_node = "node" in {item.name for item in fields(kind)} and kind(**{**values, "node": "b1"}).rests_on_trace()
    return f"{polled}; not seen with `node`" if of_a_node else polled


def _described(items: Mapping[str, Field[object]], words: Mapping[str, str]) -> Rows:
    names = {name: name.removesuffix("_s") for name in items}
    return [(f"`{names[name]}`", _default(item), _words(words[names[name]])) for name, item in items.items()]


def _default(item: Field[object]) -> str:
    value = plain_default(item)
    if value is None or item.name in _FILLED_IN:
        return ""
    if item.name.endswith("_s"):
        return f"`{value:g}s`"
    if isinstance(value, list):
        return f"`[{', '.join(value)}]`"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{value}`" if isinstance(value, str | StrEnum) else f"`{value:g}`" if value < 1e6 else f"`{value}`"


def _words(text: str) -> str:
    return (
        text.replace(" (harness/client_spec.py)", ", [below](#clients)")
        .replace(" (nemesis/schedule.py)", ", [below](#faults)")
        .replace(" (harness/cluster/hosts.py)", "")
        .replace(" (harness/worlds.py)", ", [below](#worlds)")
        .replace(" (workloads/operations.py)", "")
    )
