"""Truncation protocols in whole clusters: the first try of KIP-320, mixed clusters, and the upgrade in two steps."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from checkers.verdict import Validity
from harness.cluster.readiness import Expected, ReadinessProbe
from harness.cluster.systems import SYSTEMS, configured
from harness.environments.base import Deployment, Listener
from harness.environments.sim import SimDeployment, Simulation
from harness.runner.run import run_in_simulation
from harness.spec import parse
from images.trace import TraceEvent
from workloads.clients.native import AdminClient, Client, Producer

TOPIC = "t"
RECORDS = 5


@pytest.mark.parametrize(("protocol", "validity"), [("kip320_first_try", Validity.INVALID), ("kip320", Validity.VALID)])
def test_checking_the_epoch_of_the_first_fetch_only_loses_records(protocol: str, validity: Validity) -> None:
    """A zombie follower fetched in the leader epoch before it became one."""
    faults = [{"at": 2, "for": 17, "fault": "zombie-follower"}]
    spec = {"seed": 0, "rate": 40, "time_limit": 20, "faults": faults, "settings": {"faultline.protocol": protocol}}
    outcome = run_in_simulation(parse(spec))
    assert outcome.validity is validity, outcome.verdicts


def test_a_cluster_of_mixed_protocols_replicates_through_elections() -> None:
    outcome = run_in_simulation(
        parse(
            {
                "seed": 1,
                "time_limit": "20s",
                "faults": [{"at": f"{3 + 5 * turn}s", "for": "3s", "fault": "kill"} for turn in range(3)],
                "node_settings": {
                    "b1": {"faultline.protocol": "kip279"},
                    "b2": {"faultline.protocol": "kip320"},
                },
            }
        )
    )
    assert outcome.validity is Validity.VALID, outcome.verdicts


# --- the upgrade ------------------------------------------------------------------------------------------------------

UPGRADED = {"faultline.protocol": "kip279", "faultline.release": "kip279"}
OLD = {"faultline.protocol": "kip101", "faultline.release": "kip101"}
NEW_RELEASE = {"faultline.protocol": "kip101", "faultline.release": "kip279"}
SETTINGS = {"replica.high.watermark.checkpoint.interval.ms": "3600000"}
"""A killed broker comes back with an old high watermark."""


class NotReady(Exception):
    """The cluster does not become ready in the middle of an upgrade."""


def upgraded(*steps: dict[str, str], old: dict[str, str] = OLD) -> list[tuple[str, TraceEvent]]:
    """The trace of a rolling upgrade from `old`: in each step every broker is killed and has these settings next.

    Raises NotReady when a replica does not come back into the ISR.
    """
    trace: list[tuple[str, TraceEvent]] = []
    simulation = Simulation()
    plain = simulation.layout(3, 3)

    async def scenario(deployment: Deployment) -> None:
        assert isinstance(deployment, SimDeployment)
        await deployment.deploy()
        client = Client(deployment.bootstrap(), "test", deployment.stream("test"))
        await AdminClient(client).create_topic(TOPIC, 1, 3, {}, 30)
        addresses = {node.name: (node.host, node.port) for node in plain.brokers}
        probe = ReadinessProbe(addresses, Expected(TOPIC, 1, 3))
        producer = Producer(client, TOPIC)

        async def append() -> None:
            if await probe.until_ready(asyncio.get_running_loop().time() + 60):
                raise NotReady
            for _ in range(RECORDS):
                assert (await producer.append(0, [b"x"])).outcome == "ok"

        await append()
        for settings in steps:
            properties = configured(SYSTEMS["broker"], plain, {**SETTINGS, **settings}, ()).properties
            leader = (await deployment.leaders())[TOPIC, 0]
            for broker in sorted(deployment.brokers, key=lambda name: name == leader):
                await deployment.kill(broker)
                deployment.configure(broker, properties[broker])
                await deployment.start(broker)
                await append()
        probe.close()
        await producer.close()
        await client.close()

    layout = configured(SYSTEMS["broker"], plain, {**SETTINGS, **old}, ())
    listener = Listener(lambda _, node, event: trace.append((node, event)), lambda *_: None)
    simulation.execute(layout, scenario, seed=1, listener=listener)
    return trace


def removed(trace: Sequence[tuple[str, TraceEvent]]) -> int:
    """Records that followers truncated although every one was acknowledged."""
    cuts = [event for _, event in trace if event.kind == "truncated" and event.topic == TOPIC]
    return sum(event.log_end - event.offset for event in cuts)


def test_kip_279_the_upgrade_in_two_steps_truncates_nothing_and_in_one_step_to_the_high_watermark() -> None:
    """The first broker to be upgraded queries leaders that do not know its version yet. Truncated to an old high
    watermark it would lose acknowledged records if its leader failed now."""
    assert removed(upgraded(NEW_RELEASE, UPGRADED)) == 0
    assert removed(upgraded(UPGRADED)) >= RECORDS


def test_kip_320_the_upgrade_in_two_steps_never_stops_replication_and_in_one_step_stops_it() -> None:
    """A `kip320` follower repeats its epoch query, since it does not truncate without an answer. A leader of the
    release before has none, so that the replica upgraded first stays out of the ISR."""
    steps = [{"faultline.protocol": protocol, "faultline.release": "kip320"} for protocol in ("kip279", "kip320")]
    old = {"faultline.protocol": "kip279", "faultline.release": "kip279"}
    assert removed(upgraded(*steps, old=old)) == 0
    with pytest.raises(NotReady):
        upgraded(steps[-1], old=old)
