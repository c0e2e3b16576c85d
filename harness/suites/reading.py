"""Reads a plan of many runs from YAML: finds its file, and layers specs on top of each other.

Every error is a SpecError of one line that begins with the field; `harness.yaml_document` adds file and line.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final, TypeGuard

from harness.spec import Spec, parse
from harness.yaml_document import SpecError, YamlDocument, read_document

RUNS_MAX: Final = 1_000_000
"""The plan and the results of all runs are held in memory."""
PLACES: Final = ("sim", "docker")
"""The environments of suites."""


def read(named: str, shipped: Path) -> tuple[str, YamlDocument]:
    """(plain name, YAML) of the file `named`, or of the one by that name among those `shipped`. Raises SpecError."""
    path = Path(named)
    if not path.exists():
        if not (shipped / f"{named}.yaml").exists():
            names = ", ".join(sorted(item.stem for item in shipped.glob("*.yaml")))
            raise SpecError(f"{named}: there is no such file, and none of that name is shipped; shipped are: {names}")
        path = shipped / f"{named}.yaml"
    return plain(path.stem), read_document(path)


def known(description: str, values: object, names: Collection[str]) -> Mapping[str, Any]:
    """`values`, a mapping with no fields but `names`; `description` says so. Raises SpecError."""
    if not isinstance(values, Mapping):
        raise SpecError(description)
    for field in values:
        if field not in names:
            raise SpecError(f"{field}: unknown field; one of: {', '.join(names)}")
    return values


def mapping(field: str, value: object) -> Mapping[str, Any]:
    """`value` of the field, empty when it was left out. Raises SpecError."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise SpecError(f"{field}: {value!r} is not a mapping")
    return value


def layered(layers: Mapping[str, Mapping[str, Any]]) -> Spec:
    """One spec of several layers, by the field of each, each on top of those before; their settings are merged.

    Raises SpecError that names the layer whose field is wrong.
    """
    merged: dict[str, Any] = {}
    settings: dict[str, str] = {}
    for field, layer in layers.items():
        merged |= layer
        layer_settings = mapping(f"{field}.settings", layer.get("settings"))
        settings |= {key: str(value) for key, value in layer_settings.items()}
    try:
        spec = parse({**merged, "settings": settings})
        if spec.environment not in PLACES:
            raise SpecError(
                f"environment: suites and comparisons run in {' or '.join(PLACES)}; add other runs with `faultline "
                "store add`"
            )
    except SpecError as error:
        raise SpecError(_in_layer(layers, str(error))) from None
    return spec


def _in_layer(layers: Mapping[str, Mapping[str, Any]], message: str) -> str:
    """`message` of a spec, with the field of the topmost layer before it that has the field it begins with."""
    name = re.split(r"[.:\[]", message, maxsplit=1)[0]
    holding = [field for field, layer in layers.items() if name in layer]
    if name == "settings":
        quoting = [field for field in holding if any(str(key) in message for key in layers[field]["settings"] or ())]
        holding = quoting or holding
    return f"{holding[-1]}.{message}" if holding else f"{list(layers)[-1]}: {message}"


def check_places(field: str, cells: Mapping[str, Spec]) -> None:
    """Raises SpecError when cells have different environments: their runs take turns in one, and their times would not
    compare."""
    places = {spec.environment for spec in cells.values()}
    if len(places) > 1:
        raise SpecError(f"{field}: cells have several environments: {', '.join(sorted(places))}; give all of them one")


def check_nodes(field: str, cells: Mapping[str, Spec]) -> None:
    """Raises SpecError when cells that share their faults have other nodes: faults name nodes."""
    for item in ("brokers", "controllers"):
        counts = {getattr(spec, item) for spec in cells.values()}
        if len(counts) > 1:
            numbers = ", ".join(str(count) for count in sorted(counts))
            raise SpecError(f"{field}: cells have {numbers} {item}, but share their faults; give all of them as many")


def check_room(field: str, cells: Mapping[str, Spec], reference: str) -> None:
    """Raises SpecError when a cell has no room for the faults of the reference, which it shares: they name partitions
    and moments."""
    faults = cells[reference]
    for cell, spec in cells.items():
        if spec.partitions < faults.partitions:
            raise SpecError(f"{field}.{cell}: fewer partitions than {reference}, whose faults it shares")
        if spec.time_limit_s < faults.time_limit_s:
            raise SpecError(f"{field}.{cell}: a shorter time limit than {reference}, whose faults it shares")


def check_distinct(field: str, cells: Collection[str]) -> None:
    """Raises SpecError when runs of two cells would have the same name."""
    if len({plain(cell) for cell in cells}) < len(cells):
        raise SpecError(f"{field}: two of {', '.join(cells)} differ only in signs that the name of a file cannot have")


def plain(name: str) -> str:
    """`name` with only what a file's name can have."""
    return re.sub(r"[^A-Za-z0-9._]+", "-", name).strip("-.") or "suite"


def count_of_seeds(field: str, seeds: object, cells: int, *, least: int) -> int:
    """The number of seeds, if so many runs of each cell can be planned. Raises SpecError."""
    if not is_whole(seeds) or seeds < least:
        raise SpecError(f"{field}: {seeds!r} is not a number of at least {least}")
    if seeds * cells > RUNS_MAX:
        raise SpecError(f"{field}: {seeds} make {seeds * cells} runs, more than the {RUNS_MAX} of a suite")
    return seeds


def one_of(cells: Mapping[str, Spec], reference: object) -> str:
    """The reference, which is a cell's name. Raises SpecError."""
    if str(reference) not in cells:
        raise SpecError(f"reference: {reference!r} is not one of the cells: {', '.join(cells)}")
    return str(reference)


def is_whole(value: object) -> TypeGuard[int]:
    """Whether it is a whole number; Python takes `true` for one, too."""
    return isinstance(value, int) and not isinstance(value, bool)
