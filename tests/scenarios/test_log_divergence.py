"""Diverged logs of a running cluster: made by elections while the other broker is down, then brought together.

Two brokers, A and B, hold one partition that may be led by whoever lives. A script is

    common   records that A writes in the first leader epoch and B replicates, before B is killed
    more     records that A writes then, in the same epoch
    terms    (broker, records): the other is down, this one is elected and writes

and the broker of the last term leads when the other one comes back and follows. The cases are those of Kafka Log
Divergence §3.3, KIP-101 and KIP-279, which tests/broker/replication plays with requests passed by hand.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from harness.cluster.systems import SYSTEMS, configured
from harness.environments.base import Deployment, Listener
from harness.environments.sim import Simulation
from images.trace import TraceEvent
from images.wire import batch as batches
from workloads.clients.native import AdminClient, Client, Producer

TOPIC = "t"
A, B = 0, 1
SETTLED_S = 6.0
"""Virtual time within which a killed broker is fenced and a high watermark is on disk."""
Record = tuple[int, bytes]
"""Leader epoch and value."""


@dataclass
class Result:
    """Steps of the follower after its return, and both logs at the end."""

    cuts: list[int] = field(default_factory=list)
    """The ends to which the follower truncated its log, each below the one before."""
    rounds: list[int] = field(default_factory=list)
    logs: dict[int, list[Record]] = field(default_factory=dict)
    first: dict[int, list[Record]] = field(default_factory=dict)
    """Both logs before the follower was back."""
    log_lines: list[str] = field(default_factory=list)

    def written(self, broker: int, *offsets: int) -> list[bytes]:
        return [self.logs[broker][offset][1] for offset in offsets]


def runs(log: Sequence[Record]) -> list[tuple[int, int]]:
    """(epoch, records) of a log, epochs numbered as in the cases: by their order in the run."""
    epoch_runs: list[tuple[int, int]] = []
    for epoch, _ in log:
        if epoch_runs and epoch_runs[-1][0] == epoch:
            epoch_runs[-1] = (epoch, epoch_runs[-1][1] + 1)
        else:
            epoch_runs.append((epoch, 1))
    return epoch_runs


class _Pair:
    """The two brokers of a deployment."""

    def __init__(self, deployment: Deployment, trace: list[tuple[str, TraceEvent]]) -> None:
        self._deployment = deployment
        self._trace = trace
        self._batches = 0
        self.names: tuple[str, ...] = ()

    async def create(self) -> None:
        client = Client(self._deployment.bootstrap(), "admin", self._deployment.stream("admin"))
        configs = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}
        await AdminClient(client).create_topic(TOPIC, 1, 2, configs, 30)
        self.names = tuple(await self._deployment.admin.replicas(TOPIC, 0))
        await client.close()
        await self.until(self.names[A], "became_leader", 0)

    async def until(self, name: str, kind: str, since: int) -> None:
        async with asyncio.timeout(60):
            while not any((node, event.kind) == (name, kind) for node, event in self._trace[since:]):  # noqa: ASYNC110
                await asyncio.sleep(0.001)

    async def write(self, count: int) -> None:
        """One batch of whoever leads."""
        if not count:
            return
        self._batches += 1
        name = f"writer-{self._batches}"
        client = Client(self._deployment.bootstrap(), name, self._deployment.stream(name))
        producer = Producer(client, TOPIC, acks=1, delivery_timeout_s=30.0)
        values = [b"%d.%d" % (self._batches, number) for number in range(count)]
        assert (await producer.append(0, values)).outcome == "ok"
        await producer.close()
        await client.close()

    async def kill(self, broker: int) -> None:
        if self._deployment.alive(self.names[broker]):
            await self._deployment.kill(self.names[broker])
            await asyncio.sleep(SETTLED_S)

    async def elect(self, broker: int) -> None:
        """Have `broker` elected while the other is down."""
        for each in (A, B):
            await self.kill(each)
        since = len(self._trace)
        await self._deployment.start(self.names[broker])
        await self.until(self.names[broker], "became_leader", since)

    async def logs(self) -> dict[int, list[Record]]:
        with TemporaryDirectory() as temporary:
            await self._deployment.collect(Path(temporary))
            return {
                broker: [
                    (header.leader_epoch, record.value or b"")
                    for header, batch in batches.iterate(
                        (Path(temporary) / name / "data" / f"{TOPIC}-0" / f"{0:020d}.log").read_bytes()
                    )
                    for record in batches.records(batch)
                ]
                for broker, name in enumerate(self.names)
            }


def played(
    common: int, more: int, terms: Sequence[tuple[int, int]], protocol: str = "truncate_on_fetch", *off: str
) -> Result:
    trace: list[tuple[str, TraceEvent]] = []
    result = Result()

    async def scenario(deployment: Deployment) -> None:
        await deployment.deploy()
        pair = _Pair(deployment, trace)
        await pair.create()
        await pair.write(common)
        await asyncio.sleep(SETTLED_S)
        await pair.kill(B)
        await pair.write(more)
        await asyncio.sleep(SETTLED_S)
        for broker, count in terms:
            await pair.elect(broker)
            await pair.write(count)
            await asyncio.sleep(SETTLED_S)
        follower = pair.names[B if terms[-1][0] == A else A]
        result.first = await pair.logs()
        since = len(trace)
        result.log_lines.clear()
        await deployment.start(follower)
        await pair.until(follower, "became_follower", since)
        await asyncio.sleep(SETTLED_S)
        events = [event for node, event in trace[since:] if node == follower and event.topic == TOPIC]
        result.cuts = [event.offset for event in events if event.kind == "truncated" and event.offset < event.log_end]
        result.rounds = [int(str(event.detail["exchanges"])) for event in events if event.kind == "converged"]
        result.logs = await pair.logs()

    simulation = Simulation()
    layout = configured(SYSTEMS["broker"], simulation.layout(2), {"faultline.protocol": protocol}, off)
    listener = Listener(
        lambda _, node, event: trace.append((node, event)), lambda node, line: result.log_lines.append(line)
    )
    simulation.execute(layout, scenario, seed=1, listener=listener)
    return result


def shape(log: Sequence[Record]) -> list[int]:
    """The numbers of records of a log's epochs, oldest first."""
    return [count for _, count in runs(log)]


# --- Kafka Log Divergence §3.3 ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", ["kip279", "kip320", "truncate_on_fetch"])
@pytest.mark.parametrize(
    ("script", "leader", "leader_log", "follower_log", "cuts"),
    [
        pytest.param((2, 2, [(A, 0)]), A, [4], [2], [], id="A"),
        pytest.param((2, 0, [(A, 2), (A, 0)]), A, [2, 2], [2], [], id="B"),
        pytest.param((2, 2, [(B, 0)]), B, [2], [4], [2], id="C"),
        pytest.param((2, 0, [(A, 1), (B, 0)]), B, [2], [2, 1], [2], id="D"),
        pytest.param((2, 0, [(A, 2), (B, 2), (B, 0)]), B, [2, 2], [2, 2], [2], id="E"),
        pytest.param((1, 1, [(B, 2), (A, 0)]), A, [2], [1, 2], [1], id="F"),
        pytest.param((0, 1, [(B, 2), (A, 0)]), A, [1], [2], [0], id="G"),
    ],
)
def test_the_divergence_cases_a_to_g_converge_in_a_running_cluster(
    script: tuple[int, int, list[tuple[int, int]]],
    leader: int,
    leader_log: list[int],
    follower_log: list[int],
    cuts: list[int],
    protocol: str,
) -> None:
    result = played(*script, protocol)
    follower = B if leader == A else A
    assert shape(result.first[leader]) == leader_log
    assert shape(result.first[follower]) == follower_log
    assert result.cuts == cuts
    assert result.logs[follower] == result.logs[leader] == result.first[leader]
    if cuts:
        assert result.rounds == [1]


def test_a_leader_without_a_record_of_its_epoch_never_converges_with_its_follower_without_the_rule() -> None:
    """Case F, with the follower's fork in two epochs, and the leader's epoch missing from its epoch cache."""
    script = (1, 1, [(B, 1), (B, 1), (A, 0)])
    assert played(*script).logs[B] == played(*script).logs[A]
    result = played(*script, "truncate_on_fetch", "enter_leader_epoch_start")
    assert shape(result.first[B]) == [1, 1, 1]
    assert result.logs[A] == result.first[A]
    assert result.logs[B] == result.first[B][:2] != result.logs[A]


# --- KIP-101 and KIP-279 ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", ["high_watermark", "kip101", "kip279", "kip320", "truncate_on_fetch"])
def test_kip_101_two_hard_failures_let_logs_of_a_running_cluster_diverge_exactly_with_high_watermarks(
    protocol: str,
) -> None:
    """KIP-101 scenario 2: A has m2, which B never had; B leads and writes m3."""
    result = played(1, 1, [(B, 1)], protocol)
    assert shape(result.first[A]) == [2]
    assert shape(result.first[B]) == [1, 1]
    assert result.logs[B] == result.first[B]
    assert (result.logs[A] == result.logs[B]) is (protocol != "high_watermark")
    assert len(result.logs[A]) == 2


@pytest.mark.parametrize("n", [15, 20, 25])
@pytest.mark.parametrize("protocol", ["kip101", "kip279", "kip320", "truncate_on_fetch"])
def test_kip_279_a_fast_fail_over_in_a_running_cluster(protocol: str, n: int) -> None:
    """KIP-279 scenario 1: A has written offsets 11 to 20 in epoch 1 and, back in epoch 3, 21 to 30; B 11 to n in epoch
    2. With kip101 the follower is stuck, diverges silently or is fine."""
    result = played(11, 10, [(B, n - 10), (A, 10)], protocol)
    assert shape(result.first[A]) == [21, 10]
    assert shape(result.first[B]) == [11, n - 10]
    assert result.logs[A] == result.first[A]
    if protocol != "kip101" or n == 25:
        assert result.logs[B] == result.logs[A]
        return
    assert result.logs[B][: n + 1] == result.first[B], "nothing was truncated"
    assert len(result.logs[B]) == (n + 1 if n == 15 else 31)
    stuck = any("does not follow" in line for line in result.log_lines)
    assert stuck is (n == 15)


@pytest.mark.parametrize("protocol", ["kip101", "kip279", "kip320", "truncate_on_fetch"])
def test_kip_279_three_unclean_fail_overs_in_a_running_cluster(protocol: str) -> None:
    """A and B lead by turns, each without the other: from KIP-279 on the logs agree, after two truncation rounds."""
    result = played(0, 1, [(B, 1), (A, 1), (B, 1)], protocol)
    assert shape(result.first[A]) == shape(result.first[B]) == [1, 1]
    assert result.logs[B] == result.first[B]
    assert (result.logs[A] == result.logs[B]) is (protocol != "kip101")
    if protocol != "kip101":
        assert result.rounds == [2]
