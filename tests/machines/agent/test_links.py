"""Which machine is told what about which link, and what is counted for it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from harness.cluster.layout import cluster_layout
from harness.cluster.systems import SYSTEMS, configured
from harness.environments.base import Listener
from harness.environments.machines.deployment import MachineDeployment
from harness.environments.machines.links import CounterBaseline, LinkFaults, receivers
from harness.environments.machines.machine import Machine
from harness.environments.machines.node_handle import NodeHandle
from harness.environments.machines.traces import merged
from images.system import Service
from images.trace import TraceEvent
from nemesis.handle import ActiveEffects, FaultHandle
from nemesis.ports import Link, LinkQuality

ADDRESSES = {"b1": "192.0.2.1", "b2": "192.0.2.2", "c1": "192.0.2.9"}
SERVICE = Service(argv=(), files={}, data="", log="", trace=None, stop_limit_s=1.0)
FORTH, BACK = Link("b1", "b2"), Link("b2", "b1")


def test_a_cut_link_is_cut_where_it_ends() -> None:
    links = LinkFaults(ADDRESSES, cut={FORTH: False, Link("c1", "b2"): True})
    assert links.request_for("b2")["cut"] == [
        {"from": "192.0.2.1", "how": "drop"},
        {"from": "192.0.2.9", "how": "reset"},
    ]
    assert links.request_for("b1")["cut"] == []
    assert receivers([FORTH, BACK, Link("c1", "b2")]) == ["b2", "b1"]


def test_losses_are_made_where_a_link_ends_and_delays_where_it_begins() -> None:
    links = LinkFaults(ADDRESSES, degraded={FORTH: LinkQuality(delay_ms=5, jitter_ms=1, loss=0.5)})
    assert links.request_for("b2") == {"cut": [], "degrade": [{"from": "192.0.2.1", "loss": 0.5}], "delay": []}
    assert links.request_for("b1")["delay"] == [{"to": "192.0.2.2", "delay_ms": 5, "jitter_ms": 1}]


def test_the_sender_of_a_slow_link_is_told_of_it_until_it_is_whole() -> None:
    links = LinkFaults(ADDRESSES)
    assert links.degrade([FORTH], LinkQuality(loss=0.5)) == ["b2"]
    assert links.degrade([FORTH], LinkQuality(delay_ms=5)) == ["b2", "b1"]
    assert links.degrade([FORTH], LinkQuality(loss=0.5)) == ["b2", "b1"]
    assert links.request_for("b1")["delay"] == []
    assert links.clear([FORTH]) == links.clear([FORTH]) == ["b2", "b1"]
    links.cleared([FORTH])
    assert links.clear([FORTH]) == ["b2"]


@dataclass
class Sender:
    """A machine whose agent keeps the latest request about links, and has delayed a packet more each time."""

    name: str
    address: str
    delays: list[Any] = field(default_factory=list)
    requests: int = 0

    async def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 30.0) -> bytes:
        assert list(argv) == ["faultline-node", "network"]
        self.delays = json.loads(stdin)["delay"]
        self.requests += 1
        return json.dumps({"counters": {"192.0.2.2": {"delayed": self.requests}}}).encode()


def test_a_delay_ends_with_its_fault_though_another_has_made_the_link_lossy() -> None:
    layout = configured(SYSTEMS["broker"], cluster_layout(2), {}, ())
    machines = {name: Sender(name, ADDRESSES[name]) for name in ("b1", "b2")}

    async def nothing() -> dict[str, Machine]:
        return {}

    async def scenario() -> None:
        listener = Listener(on_trace=lambda *_: None, on_log=lambda *_: None)
        deployment = MachineDeployment(layout, nothing, seed=1, listener=listener, facts={})
        for node in layout.brokers:
            deployment._handles[node.name] = NodeHandle(node, machines[node.name], SERVICE)  # type: ignore[arg-type]
        deployment._link_faults, deployment._baseline = LinkFaults(ADDRESSES), CounterBaseline(ADDRESSES)
        effects, sender = ActiveEffects(), machines["b1"]
        slow, lossy, alone = (FaultHandle(deployment, effects, Random(1)) for _ in range(3))
        await slow.degrade([FORTH], LinkQuality(delay_ms=50))
        await lossy.degrade([FORTH], LinkQuality(loss=0.5))
        assert sender.delays == []
        await slow.heal()
        await lossy.heal()
        assert sender.delays == []
        assert lossy.evidence["delayed"] == sender.requests - 1
        told = sender.requests
        await alone.degrade([FORTH], LinkQuality(loss=0.5))
        await alone.heal()
        assert (sender.requests, alone.evidence["delayed"]) == (told, 0)

    asyncio.run(scenario())


def test_evidence_is_what_was_counted_while_the_link_was_broken() -> None:
    ledger = CounterBaseline(ADDRESSES)
    ledger.open([FORTH], ["held"], {"b2": {"192.0.2.1": {"held": 10}}})
    ledger.open([FORTH], ["held"], {"b2": {"192.0.2.1": {"held": 15}}})
    after = {"b2": {"192.0.2.1": {"held": 22}}}
    assert ledger.close([FORTH, BACK], ["held"], after) == {"held": 12}
    assert ledger.close([FORTH], ["held"], after) == {"held": 0}


def test_packets_that_were_delayed_are_counted_by_the_sender() -> None:
    ledger = CounterBaseline(ADDRESSES)
    ledger.open([FORTH], ["delayed"], {"b1": {}})
    assert ledger.close([FORTH], ["delayed"], {"b1": {"192.0.2.2": {"delayed": 3}}}) == {"delayed": 3}


def test_what_was_counted_before_its_machine_was_read_is_no_evidence() -> None:
    ledger = CounterBaseline(ADDRESSES)
    ledger.open([FORTH], ["delayed"], {"b2": {}})
    ledger.open([FORTH], ["delayed"], {"b1": {"192.0.2.2": {"delayed": 40}}})
    assert ledger.close([FORTH], ["delayed"], {"b1": {"192.0.2.2": {"delayed": 43}}}) == {"delayed": 3}


def row(time_ns: int, kind: str) -> bytes:
    return json.dumps({"time_ns": time_ns} | TraceEvent(kind)._asdict(), default=dict).encode() + b"\n"


def test_traces_are_laid_beside_each_other_in_the_order_of_true_time() -> None:
    files = {"b1": row(1_000, "one") + row(1_030, "four"), "b2": row(2_010, "two") + row(2_020, "three") + b'{"time'}
    found = [(time_ns, node, event.kind) for time_ns, node, event in merged(files, {"b1": 1_000, "b2": 2_000})]
    assert found == [(0, "b1", "one"), (10, "b2", "two"), (20, "b2", "three"), (30, "b1", "four")]
