"""An incident: a spec with a story, in variants, each with its expectation.

    title: A leader that stands alone acknowledges what nobody else has
    source: KAFKA-1211
    story: |
      In plain words: what happened, and why.
    seed: 1                         # the fields of a spec, which all variants share
    clients: {producers: 0, operations: [produce 10 to 0]}
    faults:
      - {at: 2s, for: 5s, fault: partition, nodes: [leader/0], as: old-leader}
    variants:
      as it was:
        settings: {min.insync.replicas: 1}
        expect: {verdict: invalid, check: loss}
      two replicas:                 # on top of the shared fields; settings and clients are merged
        expect: {verdict: valid}
    docker: {tries: 5}              # also told in Docker; without it in simulation alone

`faultline run` refuses such a file, since it would run the shared fields alone and compare nothing.

The library is told in simulation; incidents in `kafka/` are about Apache Kafka alone, in Docker. Another system may be
asked for, or another release: variants that it cannot be are left out, for the reason for which a spec is refused.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from harness.incidents.expectation import Expectation, parse_expectation
from harness.spec import INCIDENT_FIELDS, PROSE, Spec, parse
from harness.yaml_document import SpecError, YamlDocument, read_document
from nemesis.fields import FieldError

LIBRARY: Final = Path(__file__).parent / "library"
KAFKA: Final = Path(__file__).parent / "kafka"
TRIES_MAX: Final = 100
_MERGED: Final = ("settings", "clients", "node_settings")


@dataclass(frozen=True, slots=True)
class Variant:
    """One way in which an incident is told."""

    name: str
    spec: Spec
    expect: Expectation


@dataclass(frozen=True, slots=True)
class Incident:
    """See the module's docstring."""

    name: str
    title: str
    source: str
    story: str
    variants: tuple[Variant, ...]
    docker_tries: int = 0
    """How many seeds a variant may take in Docker to be as expected; 0 where it is told in simulation alone."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Variant → why the system that was asked for cannot be it."""


def library() -> tuple[str, ...]:
    """The names of the shipped incidents that are told in simulation."""
    return tuple(sorted(path.stem for path in LIBRARY.glob("*.yaml")))


def kafka_library() -> tuple[str, ...]:
    """The names of the shipped incidents of Apache Kafka alone."""
    return tuple(sorted(path.stem for path in KAFKA.glob("*.yaml")))


def path_of(named: str) -> Path:
    """The file `named`, or that of the shipped incident of that name. Raises SpecError."""
    for path in (Path(named), LIBRARY / f"{named}.yaml", KAFKA / f"{named}.yaml"):
        if path.exists():
            return path
    shipped = (*library(), *kafka_library())
    near = [name for name in shipped if named in name][:5] or difflib.get_close_matches(named, shipped)
    meant = f"did you mean {' or '.join(near)}?" if near else "faultline incident list has all"
    raise SpecError(f"{named}: there is no such file, and no shipped incident of that name; {meant}")


def load_incident(named: str, changes: Mapping[str, Any] = MappingProxyType({})) -> Incident:
    """The incident in the file `named`, or the shipped one of that name, with fields of all its specs changed: the
    environment, or the system and its version. Raises SpecError."""
    path = path_of(named)
    return read_incident(read_document(path), path.stem, changes)


def read_incident(document: YamlDocument, name: str, changes: Mapping[str, Any] = MappingProxyType({})) -> Incident:
    """The incident that a document holds, with fields changed. Raises SpecError with file and line."""
    try:
        return _incident(document.values, name, changes)
    except (FieldError, SpecError) as error:
        raise SpecError(document.located(str(error))) from None


def _incident(values: object, name: str, changes: Mapping[str, Any]) -> Incident:
    if not isinstance(values, Mapping):
        raise FieldError(f"an incident is a mapping of names to values, not {values!r}")
    shared = {field: value for field, value in values.items() if field not in (*PROSE, *INCIDENT_FIELDS)}
    if not {"variants", "expect"} & set(values):
        raise FieldError("expect: missing, such as {verdict: valid}; without it this is a spec, for faultline run")
    variants = values.get("variants", {"as told": {}})
    if not isinstance(variants, Mapping) or not variants:
        raise FieldError(f"variants: {variants!r} is not a mapping of names to fields of a spec")
    docker = values.get("docker", {"tries": 0})
    tries = docker.get("tries") if isinstance(docker, Mapping) and set(docker) <= {"tries"} else None
    if not isinstance(tries, int) or not 0 <= tries <= TRIES_MAX:
        raise FieldError(f"docker: {docker!r} is not {{tries: N}} with at most {TRIES_MAX}")
    told, left_out = [], {}
    for each, fields in variants.items():
        try:
            told.append(_variant(str(each), shared, fields, values.get("expect"), changes))
        except SpecError as error:
            if "system" not in changes and "version" not in changes:
                raise
            left_out[str(each)] = str(error).removeprefix(f"variants.{each}.")
    return Incident(
        name=name,
        title=_text(values, "title"),
        source=_text(values, "source"),
        story=_text(values, "story"),
        variants=tuple(told),
        docker_tries=tries,
        left_out=left_out,
    )


def _variant(
    name: str, shared: Mapping[str, Any], fields: object, expect: object, changes: Mapping[str, Any]
) -> Variant:
    where = f"variants.{name}"
    if fields is None:
        fields = {}
    if not isinstance(fields, Mapping):
        raise FieldError(f"{where}: {fields!r} is not a mapping of names to values")
    own = dict(fields)
    wanted, place = (own.pop("expect"), f"{where}.expect") if "expect" in own else (expect, "expect")
    if wanted is None:
        raise FieldError(f"{where}.expect: missing; the incident has none for all variants either")
    merged = {**shared, **own}
    for each in _MERGED:
        if isinstance(shared.get(each), Mapping) and isinstance(own.get(each), Mapping):
            merged[each] = _on_top(shared[each], own[each])
    try:
        spec = parse({"name": plain(name), **merged, **changes})
    except SpecError as error:
        blamed = str(error).partition(":")[0].partition(".")[0].partition("[")[0]
        raise SpecError(f"{where}.{error}" if blamed in own else str(error)) from None
    return Variant(name, spec, parse_expectation(wanted, place))


def _on_top(shared: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Both, the own values winning; so are the settings of one node."""
    mappings = {name: value for name, value in own.items() if isinstance(value, Mapping)}
    merged = {
        name: _on_top(shared[name], value) for name, value in mappings.items() if isinstance(shared.get(name), Mapping)
    }
    return {**shared, **own, **merged}


def plain(name: str) -> str:
    """A name as it can stand in a path."""
    return "-".join("".join(letter if letter.isalnum() else " " for letter in name.lower()).split()) or "variant"


def _text(values: Mapping[str, Any], field: str) -> str:
    value = values.get(field, "")
    if not isinstance(value, str):
        raise FieldError(f"{field}: {value!r} is not a text")
    return value
