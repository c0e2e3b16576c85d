"""Every fault and every family there is, found in the modules of `nemesis.faults`.

The order is that of the numbers that families and faults declare.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from types import ModuleType

import nemesis.faults
from nemesis.faults.fault import Family, Fault


class DeclarationError(TypeError):
    """Two faults or two families with one number or one name."""


def declared_faults(package: ModuleType) -> tuple[type[Fault], ...]:
    """The faults that the modules of `package` define, in the order of their numbers. Raises DeclarationError."""
    faults = [fault for module in _modules(package) for fault in _defined_in(module)]
    faults.sort(key=lambda fault: (fault.family.number, fault.number))
    families = tuple(dict.fromkeys(fault.family for fault in faults))
    _check_unique("families", [(family.number,) for family in families])
    _check_unique("families", [(family.name,) for family in families])
    _check_unique("faults", [(fault.family.name, fault.number) for fault in faults])
    _check_unique("faults", [(fault.name,) for fault in faults])
    return tuple(faults)


def _modules(package: ModuleType) -> Iterator[ModuleType]:
    for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        yield import_module(info.name)


def _defined_in(module: ModuleType) -> list[type[Fault]]:
    """A class without a name of its own is the base of several faults."""
    return [
        value
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, Fault)
        and value.__module__ == module.__name__
        and "name" in vars(value)
        and value is not Fault
    ]


def _check_unique(kind: str, keys: Sequence[tuple[object, ...]]) -> None:
    for key in keys:
        if keys.count(key) > 1:
            raise DeclarationError(f"two {kind} are declared as {' '.join(map(str, key))}")


FAULTS: Mapping[str, type[Fault]] = {fault.name: fault for fault in declared_faults(nemesis.faults)}
"""Every fault by the name a schedule gives it."""

FAMILIES: Mapping[str, Family] = {fault.family.name: fault.family for fault in FAULTS.values()}
"""Every family by the name `--faults` gives it."""

FAIR_FAMILIES: tuple[str, ...] = tuple(family.name for family in FAMILIES.values() if family.fair)
"""The families of `--faults all`."""


def faults_of(family: Family) -> tuple[type[Fault], ...]:
    """The faults of a family, in the order of their numbers."""
    return tuple(fault for fault in FAULTS.values() if fault.family == family)
