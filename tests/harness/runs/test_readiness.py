"""Readiness: the words for what is missing in a broker's metadata, and how long a probe asks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from harness.cluster.readiness import Expected, ReadinessProbe, missing_of_topic
from harness.simulation.world import World
from images.wire.connection import ConnectionLost

LIMIT_S = 60.0


@dataclass(frozen=True)
class _Partition:
    replica_nodes: tuple[int, ...] = (1, 2, 3)
    isr_nodes: tuple[int, ...] = (1, 2, 3)
    leader_id: int = 1
    partition_index: int = 0


@dataclass(frozen=True)
class _Topic:
    partitions: tuple[_Partition, ...]
    name: str = "t"
    error_code: int = 0


@pytest.mark.parametrize(
    ("partition", "missing"),
    [
        (_Partition(), []),
        (_Partition(leader_id=-1), ["no leader of t-0"]),
        (_Partition(isr_nodes=(3, 1)), ["t-0 with ISR {1, 3} of 3 replicas"]),
        (
            _Partition(replica_nodes=(1, 2, 3, 4)),
            ["t-0 with replicas {1, 2, 3, 4}, so that its reassignment is not complete"],
        ),
        (_Partition(replica_nodes=(1, 2), isr_nodes=(1, 2)), ["t-0 with ISR {1, 2} of 3 replicas"]),
    ],
    ids=["whole", "no leader", "out of sync", "reassigned still", "a replica less"],
)
def test_what_keeps_a_partition_from_being_whole_is_told(partition: _Partition, missing: list[str]) -> None:
    assert missing_of_topic([_Topic((partition,))], Expected("t", 1, 3)) == missing


def test_missing_partitions_and_topics_are_told() -> None:
    assert missing_of_topic([_Topic((_Partition(),))], Expected("t", 2, 3)) == ["1 of 2 partitions of t"]
    assert missing_of_topic([], Expected("t", 1, 3)) == ["no topic t"]


class _Brokers(ReadinessProbe):
    """A probe of brokers each of which answers when `answers` says so for its name and the time."""

    def __init__(self, names: str, answers: Callable[[str, float], bool]) -> None:
        super().__init__({name: (name, 9092) for name in names})
        self._answers = answers

    async def _ask(self, node: str) -> Any:
        now_s = asyncio.get_running_loop().time()
        if not self._answers(node, now_s):
            raise ConnectionLost("refused")
        return SimpleNamespace(brokers=[name for name in self._addresses if self._answers(name, now_s)], topics=())


def _asked(probe: ReadinessProbe, in_vain: Callable[[float], bool] = lambda now_s: False) -> tuple[list[str], float]:
    """The missing parts in the end, and for how many seconds of virtual time the probe asked."""

    async def ask() -> tuple[list[str], float]:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        return await probe.until_ready_or_stuck(LIMIT_S, lambda: in_vain(loop.time())), loop.time() - began_s

    with World(1) as world:
        return world.run(ask())


def test_brokers_that_start_slowly_one_after_another_are_waited_for() -> None:
    missing, seconds = _asked(_Brokers("abcd", lambda name, now_s: now_s >= 50 * (1 + "abcd".index(name))))
    assert missing == []
    assert 3 * LIMIT_S < seconds < 4 * LIMIT_S


def test_a_broker_that_stays_silent_is_waited_for_no_longer_than_the_limit() -> None:
    missing, seconds = _asked(_Brokers("ab", lambda name, now_s: name == "a" and now_s >= 30))
    assert missing == ["a sees 1 of 2 brokers unfenced", "b does not answer (refused)"]
    assert 30 + LIMIT_S <= seconds < 32 + LIMIT_S


def test_a_broker_that_comes_and_goes_is_not_waited_for_without_end() -> None:
    missing, seconds = _asked(_Brokers("ab", lambda name, now_s: name == "a" and now_s % 20 < 10))
    assert "b does not answer (refused)" in missing
    assert seconds < 2 * LIMIT_S


def test_a_probe_that_asks_in_vain_ends_at_once() -> None:
    missing, seconds = _asked(_Brokers("a", lambda name, now_s: False), in_vain=lambda now_s: now_s >= 5)
    assert missing == ["a does not answer (refused)"]
    assert seconds < 7
