"""Entry point of a node of either role, for a process and for the simulation."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from images.broker.broker_node import BrokerNode, Superseded
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
        await _run_broker(config, node_ports, stopping)
    else:
        await ControllerNode(config, node_ports).run(stopping)


async def _run_broker(config: NodeConfig, node_ports: NodePorts, stopping: asyncio.Event) -> None:
    """Run a broker. After a later registration of its node id it starts over, like a process that was killed.

    The later registration may be a request of an earlier process that arrived late. If it is of a process that lives,
    that one's session refuses this one for as long as it lasts.
    """
    while True:
        try:
            return await BrokerNode(config, node_ports).run(stopping)
        except Superseded as registration:
            node_ports.log(f"starts over: {registration}")
