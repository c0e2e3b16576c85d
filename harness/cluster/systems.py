"""The systems under test, by the name a spec gives them, and the configuration of a layout for one of them.

A system is a folder below `images` that has a module `system`; nothing but its name is known here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.resources import files
from importlib.resources.abc import Traversable
from types import MappingProxyType

from harness.cluster.layout import CONTROLLER_PORT, Layout
from images.system import Capability, System


def _registered(images: Traversable) -> dict[str, System]:
    """Every folder of `images` with a module `system`, in order of names."""
    names = sorted(path.name for path in images.iterdir() if path.joinpath("system.py").is_file())
    return {name: import_module(f"images.{name}.system").SYSTEM for name in names}


SYSTEMS: Mapping[str, System] = _registered(files("images"))


def system_named(name: str, version: str = "", features: Mapping[str, str] = MappingProxyType({})) -> System:
    """The system in a release: in its default one where nothing is asked for. Raises ValueError, in one line."""
    if name not in SYSTEMS:
        raise ValueError(f"system: {name!r} is not one of {', '.join(SYSTEMS)}")
    return SYSTEMS[name].release(version, features) if version or features else SYSTEMS[name]


def configured(
    system: System,
    layout: Layout,
    settings: Mapping[str, str],
    rules_off: Sequence[str],
    node_settings: Mapping[str, Mapping[str, str]] = MappingProxyType({}),
) -> Layout:
    """`layout` with every node's properties, those of `node_settings` on top of `settings`. Raises ValueError, in one
    line, for what cannot be configured."""
    voters = [(node.node_id, node.host, node.port) for node in layout.controllers]
    if not voters and Capability.COMBINED_ROLES in system.capabilities:
        voters = [(node.node_id, node.host, CONTROLLER_PORT) for node in layout.brokers]
    return layout.with_properties(
        {
            node.name: system.properties(
                node_id=node.node_id,
                role=str(node.role),
                host=node.host,
                port=node.port,
                voters=voters,
                settings={**settings, **node_settings.get(node.name, {})},
                rules_off=rules_off,
            )
            for node in layout.nodes
        },
        system,
    )
