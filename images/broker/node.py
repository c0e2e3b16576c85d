"""Entry point of a node of either role, for a process and for the simulation."""

from __future__ import annotations

import asyncio

from images.broker.broker_node import BrokerNode
from images.broker.config import NodeConfig
from images.broker.controller_node import ControllerNode
from images.broker.ports import NodePorts


async def run_node(config: NodeConfig, node_ports: NodePorts, stopping: asyncio.Event) -> None:
    """Run until `stopping` is set; a broker then hands over its leadership. Raises the fatal error of the node."""
    if config.roles == ("broker",):
        await BrokerNode(config, node_ports).run(stopping)
    else:
        await ControllerNode(config, node_ports).run(stopping)
