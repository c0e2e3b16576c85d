"""Entry point of a node of either role, for a process and for the simulation."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from images.broker.broker_node import BrokerNode
from images.broker.config import NodeConfig
from images.broker.controller_node import ControllerNode
from images.broker.ports import NodePorts
from images.broker.rules import WatchedRules
from images.trace import TraceEvent


async def run_node(config: NodeConfig, node_ports: NodePorts, stopping: asyncio.Event) -> None:
    """Run until `stopping` is set; a broker then hands over its leadership. Raises the fatal error of the node."""

    def rule_read(rule: str) -> None:
        node_ports.trace(TraceEvent("rule_read", detail={"rule": rule}))

    config = replace(config, rules=WatchedRules(config.rules, rule_read))
    if config.roles == ("broker",):
        await BrokerNode(config, node_ports).run(stopping)
    else:
        await ControllerNode(config, node_ports).run(stopping)
