"""The systems under test, by the name a spec gives them, and how a layout of one is configured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.cluster.layout import Layout
from images.broker.system import SYSTEM as BROKER
from images.broker.system import TORTURE_DEFAULTS, Capability, System

SYSTEMS: Mapping[str, System] = {BROKER.name: BROKER}
DEFAULTS: Mapping[str, Mapping[str, str]] = {BROKER.name: TORTURE_DEFAULTS}
"""The settings a system is run with unless the spec says otherwise."""

__all__ = ["DEFAULTS", "SYSTEMS", "Capability", "System", "configured"]


def configured(system: System, layout: Layout, settings: Mapping[str, str], rules_off: Sequence[str]) -> Layout:
    """`layout` with every node's properties. Raises ValueError, in one line, for what cannot be configured."""
    voters = [(node.node_id, node.host, node.port) for node in layout.controllers]
    return layout.with_properties(
        {
            node.name: system.properties(
                node_id=node.node_id,
                role=str(node.role),
                host=node.host,
                port=node.port,
                voters=voters,
                settings=settings,
                rules_off=rules_off,
            )
            for node in layout.nodes
        },
        system.name,
    )
