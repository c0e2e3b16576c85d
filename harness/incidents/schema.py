"""The JSON Schema of specs and incidents, for editors: `faultline incident schema` prints it.

It is made from the dataclasses that the files are read into, so that a new field, fault or condition is in it by its
declaration; descriptions come from the docstrings. The schema refuses unknown names, values of a wrong type and values
that are none of the choices. What needs more than one field to be seen (a node that the cluster lacks, an id that no
step has, a fault after the time limit) is refused by Faultline alone.
"""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import StrEnum
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

from checkers.registry import CHECKERS
from checkers.verdict import Validity
from harness import client_spec
from harness import spec as spec_module
from harness.client_spec import COMPRESSIONS, ISOLATIONS, LIBRARIES, RANGES, RESETS, ClientSpec
from harness.cluster.hosts import Host
from harness.cluster.run_limits import LIMITS
from harness.cluster.systems import SYSTEMS
from harness.environments.mistakes import mistakes
from harness.environments.registry import ENVIRONMENTS
from harness.incidents.expectation import COMPARISON
from harness.incidents.incident import TRIES_MAX
from harness.spec import ACKS, Spec
from harness.worlds import DIMENSIONS
from nemesis.conditions import COMBINED, SINGLE, TriggerCondition
from nemesis.faults.fault import Fault
from nemesis.registry import FAMILIES
from nemesis.schedule import NAME_PATTERN, STEPS
from results.explanation.story import StepKind
from workloads.clients import consumer_rules
from workloads.operations import FORMS
from workloads.registry import WORKLOADS

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_DURATION: Final = {
    "description": "A number of seconds, or a text such as 300ms, 5s, 2m.",
    "anyOf": [
        {"type": "number", "minimum": 0},
        {"type": "string", "pattern": r"^\s*[0-9]{1,15}(\.[0-9]+)?\s*(ms|s|m)\s*$"},
    ],
}
_NAME: Final = {"type": "string", "pattern": f"^{NAME_PATTERN}$"}
_SETTING: Final = {"type": ["string", "number", "boolean"]}
_CHOICES: Final[Mapping[str, Sequence[str]]] = {
    "environment": tuple(ENVIRONMENTS),
    "system": tuple(SYSTEMS),
    "workload": tuple(WORKLOADS),
    "recency": ("default", "strict"),
    "library": LIBRARIES,
    "auto_offset_reset": RESETS,
    "compression": COMPRESSIONS,
    "isolation": ISOLATIONS,
}
_TIMES: Final = ("at", "then_after", "timeout")


def incident_schema() -> dict[str, Any]:
    """The whole schema: the fields of a spec, and those of an incident beside them."""
    spec = _spec_properties()
    variant = {**spec, "expect": _reference("expectation")}
    return {
        "$schema": DIALECT,
        "title": "Faultline: a spec or an incident",
        **_mapping({**variant, **_incident_properties()}),
        "$defs": {
            "duration": _DURATION,
            "condition": _condition(),
            "fault": _fault(),
            "operation": _operation(),
            "clients": _clients(),
            "settings": _settings(),
            "expectation": _expectation(),
            "variant": {"anyOf": [_mapping(variant), {"type": "null"}]},
        },
    }


def field_descriptions(docstring: str | None, indent: int) -> dict[str, str]:
    """The comment of each field in the YAML of a module's docstring, for fields that stand `indent` spaces deep.

    Comment lines that follow the one of a field belong to it.
    """
    pattern = re.compile(rf"^ {{{indent}}}(\w+):[^\n#]*# ([^\n]+(?:\n +# [^\n]+)*)$", re.MULTILINE)
    return {name: re.sub(r"\n +# ", " ", comment) for name, comment in pattern.findall(docstring or "")}


def spec_descriptions() -> dict[str, str]:
    """Field of a spec → a few words."""
    return field_descriptions(spec_module.__doc__, 4)


def client_descriptions() -> dict[str, str]:
    """Field of `clients` → a few words."""
    return field_descriptions(client_spec.__doc__, 6)


def first_sentence(of: object) -> str:
    """The first sentence of a docstring, on one line."""
    return re.split(r"(?<=\.) ", " ".join((inspect.getdoc(of) or "").split()))[0]


# ---- a spec ----------------------------------------------------------------------------------------------------------


def _spec_properties() -> dict[str, Any]:
    described, dimensions = spec_descriptions(), [dimension.name for dimension in DIMENSIONS]
    properties = _properties(Spec, leave_out=("clients", "operations", "families", "script"))
    properties |= {
        "acks": {"enum": [*ACKS, *(int(text) for text in ACKS if text != "all")]},
        "clients": _reference("clients"),
        "faults": _faults(),
        "settings": _reference("settings"),
        "node_settings": {"type": "object", "additionalProperties": _reference("settings")},
        "without": _list_of({"enum": _rules()}),
        "mistakes": _list_of({"enum": list(mistakes())}),
        "vary": {"anyOf": [{"type": "boolean"}, {"type": "array", "items": {"enum": dimensions}}]},
        "hosts": {"type": "object", "additionalProperties": _mapping(_properties(Host), required=("address",))},
    }
    for name, limits in LIMITS.items():
        plain = properties[name.removesuffix("_s")]
        if "type" in plain:
            plain["minimum"], plain["maximum"] = limits
    return {name: _described(value, described.get(name)) for name, value in properties.items()}


def _settings() -> dict[str, Any]:
    known = {name: _SETTING for system in SYSTEMS.values() for name in (*system.settings, *system.defaults)}
    return {"type": "object", "properties": dict(sorted(known.items())), "additionalProperties": _SETTING}


def _rules() -> list[str]:
    names = [rule.name for system in SYSTEMS.values() for rule in system.rules]
    return [*dict.fromkeys(names), *consumer_rules.NAMES]


def _clients() -> dict[str, Any]:
    described = client_descriptions()
    shorthands = {name: value for name, value in _spec_properties().items() if name in client_spec.SHORTHANDS}
    properties = {
        **shorthands,
        **_properties(ClientSpec),
        "validate_positions": {"type": "boolean", "default": True},
        "operations": {"type": "array", "items": _reference("operation")},
    }
    for name, limits in RANGES.items():
        properties[name]["minimum"], properties[name]["maximum"] = limits
    return _mapping({name: _described(value, described.get(name)) for name, value in properties.items()})


def _operation() -> dict[str, Any]:
    # JSON Schema takes the regular expressions of ECMAScript, which writes named groups in another way.
    forms = "|".join(re.sub(r"\(\?P<\w+>", "(", form) for form in FORMS)
    text = {"type": "string", "pattern": f"^({forms})$".replace(" ", r"\s+")}
    own = {"do": text, "id": _NAME, **_moment()}
    return {"anyOf": [text, _mapping(own, required=("do",))]}


# ---- faults and conditions -------------------------------------------------------------------------------------------


def _faults() -> dict[str, Any]:
    names = ["all", *FAMILIES]
    return {
        "anyOf": [
            {"type": "string", "pattern": r"^\s*none\s*$"},
            {**_separated(names, gaps=False), "description": "all, none, or families separated by commas"},
            {"type": "array", "items": {"enum": names}},
            {"type": "array", "items": _reference("fault")},
        ]
    }


def _fault() -> dict[str, Any]:
    branches = [
        {"if": {"properties": {"fault": {"const": name}}, "required": ["fault"]}, "then": _fault_of(kind)}
        for name, kind in STEPS.items()
    ]
    return {
        "type": "object",
        "required": ["fault"],
        "properties": {"fault": {"enum": list(STEPS)}},
        "allOf": branches,
    }


def _fault_of(kind: type[Fault]) -> dict[str, Any]:
    properties = {
        "fault": {"const": kind.name},
        "id": _NAME,
        "as": _NAME,
        **_moment(),
        "for": _reference("duration"),
        "until": {"anyOf": [_NAME, _reference("condition")]},
        **_properties(kind),
    }
    needed: list[dict[str, Any]] = [{"anyOf": [{"required": [name]} for name in ("at", "when", "after")]}]
    if not kind.ends_by_itself:
        needed.append({"anyOf": [{"required": [name]} for name in ("for", "until")]})
    own = _mapping(properties, required=[item.name for item in fields(kind) if _required(item)])
    return {"description": first_sentence(kind), **own, "allOf": needed}


def _moment() -> dict[str, Any]:
    times = {name: _reference("duration") for name in _TIMES}
    return {**times, "when": _reference("condition"), "after": _NAME}


def _condition() -> dict[str, Any]:
    single = {name: {"description": first_sentence(kind), **_condition_of(kind)} for name, kind in SINGLE.items()}
    combined = {
        name: {
            "description": first_sentence(kind),
            "type": "array",
            "minItems": 1,
            "items": _reference("condition"),
        }
        for name, kind in COMBINED.items()
    }
    return {**_mapping({**single, **combined}), "minProperties": 1, "maxProperties": 1}


def _condition_of(kind: type[TriggerCondition]) -> dict[str, Any]:
    properties = _properties(kind)
    own = _mapping(properties, required=[item.name for item in fields(kind) if _required(item)])
    first = fields(kind)[0]
    if short_form(kind):
        return {"anyOf": [properties[first.name], own]}
    return {**own, "minProperties": 1}


def short_form(kind: type[TriggerCondition]) -> bool:
    """Whether its first field alone makes the condition, as in `{elected: b2}`."""
    try:
        kind(**{fields(kind)[0].name: 0})
    except (TypeError, ValueError):
        return False
    return True


# ---- an incident -----------------------------------------------------------------------------------------------------


def _incident_properties() -> dict[str, Any]:
    text = {"type": "string"}
    return {
        "title": _described(text, "what happens, in a line"),
        "source": _described(text, "where the story comes from"),
        "story": _described(text, "what happened and why, in plain words"),
        "variants": {
            "description": "fields of a spec on top of the shared ones, by the name of the variant",
            "type": "object",
            "minProperties": 1,
            "additionalProperties": _reference("variant"),
        },
        "docker": {
            "description": "also told in Docker, in at most so many tries",
            **_mapping({"tries": {"type": "integer", "minimum": 0, "maximum": TRIES_MAX}}, required=("tries",)),
        },
    }


def _expectation() -> dict[str, Any]:
    checkers = "|".join(CHECKERS)
    number = {"type": "integer"}
    figures = {
        "type": "object",
        "propertyNames": {"pattern": rf"^(acknowledged_lost|({checkers})\..+)$"},
        "additionalProperties": {"type": "string", "pattern": f"^({COMPARISON})$"},
    }
    parts = _mapping(
        {
            "verdict": {"enum": [str(validity) for validity in Validity]},
            "check": {"enum": list(CHECKERS)},
            "finding": {"type": "string"},
            "cause": {
                "description": "a step of docs/explanations.md, or the finding itself",
                "anyOf": [{"enum": [str(kind) for kind in StepKind]}, {"type": "string"}],
            },
            "about": _mapping({"partition": number, "offset": number}),
            "figures": figures,
        }
    )
    return {**parts, "minProperties": 1}


# ---- parts -----------------------------------------------------------------------------------------------------------


def _properties(cls: type, leave_out: Iterable[str] = ()) -> dict[str, Any]:
    """The properties that `nemesis.fields.read` takes for a dataclass; a duration by its name without `_s`."""
    hints = get_type_hints(cls)
    properties = {}
    for item in fields(cls):
        if item.init and item.name not in leave_out:
            duration = item.name.endswith("_s")
            value = _reference("duration") if duration else _value(hints[item.name], item.name)
            properties[item.name.removesuffix("_s")] = _described(value, default=plain_default(item))
    return properties


def _value(kind: Any, name: str) -> dict[str, Any]:
    origin = get_origin(kind)
    if name in _CHOICES:
        return {"enum": list(_CHOICES[name])}
    if origin is Union or origin is types.UnionType:
        (kind,) = (choice for choice in get_args(kind) if choice is not type(None))
        return _value(kind, name)
    if origin is tuple:
        return _list_of(_value(get_args(kind)[0], name))
    if origin is not None or is_dataclass(kind):
        return {"type": "object"}
    if issubclass(kind, StrEnum):
        return {"enum": [str(choice) for choice in kind]}
    return {"type": {bool: "boolean", int: "integer", float: "number"}.get(kind, "string")}


def _list_of(items: Mapping[str, Any]) -> dict[str, Any]:
    text = _separated(items["enum"], gaps=True) if "enum" in items else {"type": "string"}
    return {"anyOf": [{"type": "array", "items": dict(items)}, text]}


def _separated(choices: Iterable[str], *, gaps: bool) -> dict[str, Any]:
    """Some of these in one text, with commas between them; with `gaps` there may be nothing between two commas."""
    one = rf"({'|'.join(choices)})\s*"
    each = f"({one})?" if gaps else one
    return {"type": "string", "pattern": rf"^\s*{each}(,\s*{each})*$"}


def _mapping(properties: Mapping[str, Any], required: Sequence[str] = ()) -> dict[str, Any]:
    needed = {"required": list(required)} if required else {}
    return {"type": "object", "properties": dict(properties), **needed, "additionalProperties": False}


def _reference(name: str) -> dict[str, Any]:
    return {"$ref": f"#/$defs/{name}"}


def _described(value: Mapping[str, Any], description: str | None = None, default: object = None) -> dict[str, Any]:
    words = {"description": description} if description else {}
    return {**words, **value, **({} if default is None else {"default": default})}


def _required(item: Field[Any]) -> bool:
    return item.default is MISSING and item.default_factory is MISSING


def plain_default(item: Field[Any]) -> Any:
    """The default of a field as a YAML value; None for a field that has none, or one that only the run knows."""
    if item.default is MISSING or item.default == "":
        return None
    return list(item.default) if isinstance(item.default, tuple) else item.default
