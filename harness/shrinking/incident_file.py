"""The smallest spec as an incident file: the fields that differ from their defaults, and what a run must show.

Where the spec has a flaw that can be taken away, the incident has two variants: `flawed`, which must fail the same way,
and `repaired`, which must be valid.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import yaml

from checkers.verdict import Validity
from harness.incidents.expectation import Expectation
from harness.shrinking.reproduction import without_flaw
from harness.spec import Spec

_MERGED: Final = ("settings", "clients", "node_settings")
_ALWAYS: Final = ("seed", "time_limit", "faults")
_HOLDS: Final = Expectation(verdict=Validity.VALID)


class _IncidentDumper(yaml.SafeDumper):
    """Writes a text of several lines as a block, line by line."""


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_IncidentDumper.add_representer(str, _represent_text)


def shrunk_incident(spec: Spec, expect: Expectation, *, title: str, story: str, repaired_holds: bool) -> str:
    """The text of the incident. `repaired_holds`: whether the run without the flaw is valid."""
    fields = fields_off_default(spec)
    repaired = without_flaw(spec) if repaired_holds else None
    values: dict[str, Any] = {"title": title, "story": story}
    if repaired is None:
        values |= {**fields, "expect": expect.to_mapping()}
    else:
        shared = fields_off_default(repaired)
        values |= shared | {
            "variants": {
                "flawed": {**_on_top_of(shared, fields), "expect": expect.to_mapping()},
                "repaired": {"expect": _HOLDS.to_mapping()},
            }
        }
    return yaml.dump(values, Dumper=_IncidentDumper, sort_keys=False, allow_unicode=True, width=120)


def fields_off_default(spec: Spec) -> dict[str, Any]:
    """The fields of a spec that differ from their defaults, as YAML values, without its name; seed, time limit and
    faults always."""
    values = _values(spec)
    plain = _values(Spec(system=spec.system, workload=spec.workload, brokers=spec.brokers))
    plain |= {"workload": "append", "brokers": 3, "system": "broker", "settings": dict(spec.deployed_system.defaults)}
    off = {name: value for name, value in values.items() if name in _ALWAYS or value != plain.get(name)}
    for name in ("settings", "clients"):
        if name in off:
            off[name] = {key: value for key, value in off[name].items() if value != plain[name].get(key)}
    return off


def _values(spec: Spec) -> dict[str, Any]:
    values: dict[str, Any] = yaml.safe_load(replace(spec, environment="sim", hosts={}).to_yaml())
    del values["name"], values["environment"]
    return values


def _on_top_of(shared: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that `shared` has not, or not like this; of merged ones only the entries that differ."""
    differing = {name: value for name, value in fields.items() if shared.get(name) != value}
    for name in _MERGED:
        if name in differing:
            entries = shared.get(name, {})
            differing[name] = {key: value for key, value in differing[name].items() if entries.get(key) != value}
    return differing
