"""Reading a plan of many runs from YAML: where its file is found, and specs laid on top of each other.

Whatever is wrong with it is a SpecError of one line that begins with the field.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final, TypeGuard

from harness.spec import Spec, SpecError, parse

RUNS_MAX: Final = 1_000_000
"""Every run is planned, and told of, in memory."""


def read(named: str, shipped: Path) -> tuple[str, object]:
    """(plain name, YAML) of the file `named`, or of the one by that name among those `shipped`."""
    import yaml

    path = Path(named)
    if not path.exists() and (shipped / f"{named}.yaml").exists():
        path = shipped / f"{named}.yaml"
    try:
        return plain(path.stem), yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        those = ", ".join(sorted(item.stem for item in shipped.glob("*.yaml")))
        why = getattr(error, "strerror", None) or error
        raise SpecError(f"{named}: cannot be read: {why} (shipped: {those})") from None
    except yaml.YAMLError as error:
        raise SpecError(f"{named}: {' '.join(str(error).split())}") from None


def known(what: str, values: object, names: Collection[str]) -> Mapping[str, Any]:
    """`values`, a mapping with no fields but `names`; `what` says what it ought to be."""
    if not isinstance(values, Mapping):
        raise SpecError(what)
    for field in values:
        if field not in names:
            raise SpecError(f"{field}: unknown field; one of: {', '.join(names)}")
    return values


def mapping(field: str, value: object) -> Mapping[str, Any]:
    """`value` of the field, empty when it was left out."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise SpecError(f"{field}: {value!r} is not a mapping")
    return value


def layered(name: str, *layers: Mapping[str, Any]) -> Spec:
    """One spec of several, each on top of those before; their settings are merged."""
    merged: dict[str, Any] = {}
    settings: dict[str, str] = {}
    for layer in layers:
        merged |= layer
        settings |= {key: str(value) for key, value in mapping(f"{name}.settings", layer.get("settings")).items()}
    try:
        spec = parse({**merged, "settings": settings})
    except SpecError as error:
        raise SpecError(f"{name}: {error}") from None
    if spec.environment != "sim":
        raise SpecError(
            f"{name}: environment: suites and comparisons run in the simulation; "
            "add other runs with `faultline store add`"
        )
    return spec


def check_distinct(field: str, cells: Collection[str]) -> None:
    """Raises SpecError when two cells would have runs of the same name."""
    if len({plain(cell) for cell in cells}) < len(cells):
        raise SpecError(f"{field}: two of {', '.join(cells)} differ in signs only that a file's name cannot have")


def plain(name: str) -> str:
    """`name` with only what a file's name can have."""
    return re.sub(r"[^A-Za-z0-9._]+", "-", name).strip("-.") or "suite"


def how_many(wanted: object, cells: int, *, least: int) -> int:
    """The seeds asked for, if so many runs of each cell can be planned. Raises SpecError."""
    if not is_whole(wanted) or wanted < least:
        raise SpecError(f"seeds: {wanted!r} is not a number of at least {least}")
    if wanted * cells > RUNS_MAX:
        raise SpecError(f"seeds: {wanted} make {wanted * cells} runs, more than the {RUNS_MAX} of a suite")
    return wanted


def one_of(cells: Mapping[str, Spec], reference: object) -> str:
    """The reference, which is a cell's name. Raises SpecError."""
    if str(reference) not in cells:
        raise SpecError(f"reference: {reference!r} is not one of the cells: {', '.join(cells)}")
    return str(reference)


def is_whole(value: object) -> TypeGuard[int]:
    """Whether it is a whole number: to Python `true` is one, too."""
    return isinstance(value, int) and not isinstance(value, bool)
