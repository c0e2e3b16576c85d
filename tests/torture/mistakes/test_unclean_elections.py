"""Unclean elections that an operator asks for: what a running cluster loses by them is excused, from then on, and each
mistake with them is found."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from checkers import registry
from checkers.fault_model import tolerances
from checkers.unclean_elections import UNCLEAN_ELECTION
from checkers.verdict import Validity
from harness.runner.run import run_in_simulation
from harness.spec import parse
from images.broker.controller import metadata_change
from images.broker.controller.channel import ControllerChannel, says_not_controller
from images.broker.controller.metadata_change import MetadataChange
from images.broker.controller.requests import PartitionResult
from images.wire.connection import ConnectionLost
from results.run import evidence_loader
from tests.simulation.applied_mistake import replace_in
from tests.torture.mistakes.mistake import Fault, Patch, PlayedMistake
from workloads.columns import NEVER

MANUAL = {"settings": {"unclean.recovery.strategy": "manual"}, "time_limit": "22s", "recovery_limit": "10s"}
STOPS: Fault = {"at": "2s", "for": "14s", "fault": "elect-unclean", "staged": True, "again_ms": 500}
"""A follower is left behind, and the others stop."""
ASKS: Fault = {"at": "4s", "for": "14s", "fault": "elect-unclean", "again_ms": 300}
BEHIND: Fault = {"at": "2s", "for": "5s", "fault": "kill", "nodes": ["b3"]}
POWER_FAILS = [BEHIND, {"at": "6s", "for": "9s", "fault": "power-loss", "nodes": ["b1", "b2"], "keep": "prefix"}, ASKS]
"""b3 is back when those lose their power that are in the ISR."""
ASKS_AFTER_ALL = [*POWER_FAILS[:-1], ASKS | {"for": "18s", "again_ms": 5_000}]
"""The second request comes when all replicas are in sync again."""
ALL_AWAY = [BEHIND | {"for": "11s"}, *POWER_FAILS[1:]]
"""All replicas are away, and a broker without one passes the first requests on."""
FOUR_BROKERS = {**MANUAL, "brokers": 4}
SILENT = [BEHIND, {"at": "6s", "for": "9s", "fault": "pause", "nodes": ["b1", "b2"]}, ASKS]
"""They are only silent for a while; a request that they got is in doubt."""
TWO_PARTITIONS = {**MANUAL, "partitions": 2}
UNHEARD: Fault = {
    "at": "2s",
    "for": "18s",
    "fault": "message",
    "api": "ElectLeaders",
    "part": "response",
    "effect": "drop",
    "nodes": ["brokers"],
    "against": ["controllers"],
    "count": 1,
}


@pytest.mark.parametrize("faults", [[STOPS], POWER_FAILS, SILENT], ids=["stop", "power fails", "fall silent"])
def test_what_an_unclean_election_loses_is_excused_from_there_where_it_was_asked_for(
    faults: list[Fault], tmp_path: Path
) -> None:
    outcome = run_in_simulation(parse({"seed": 1, "partitions": 1, **MANUAL, "faults": faults}), tmp_path)
    assert outcome.validity is Validity.VALID, outcome.verdicts
    assert outcome.directory is not None
    evidence = evidence_loader.load(outcome.directory)
    name = (evidence.settings.topic, 0)
    decided = [row for row in evidence.trace.to_pylist() if UNCLEAN_ELECTION in row["detail"]]
    (elected_ns,) = {row["time_ns"] for row in decided if row["kind"] == "partition_changed"}
    assert (tolerances(evidence)[name].unclean, tolerances(evidence)[name].unclean_since_ns) == (True, elected_ns)
    assert {verdict.checker: verdict for verdict in outcome.verdicts}["loss"].figures["allowed"] > 0
    unasked = replace(evidence, recovery={**evidence.recovery, "requests": []})
    assert tolerances(unasked)[name].unclean_since_ns in (0, NEVER)
    found = {finding.kind for verdict in registry.check(unasked) for finding in verdict.findings}
    assert "unclean-election" in found
    assert outcome.injections[-1].evidence["elected"] == 1.0


# ---- mistakes --------------------------------------------------------------------------------------------------------

_ELECT = "images.broker.controller.metadata_change:MetadataChange.elect"
_CHOSEN = "images.broker.controller.partition_change:PartitionChangeBuilder._elect"
_ALLOWED = ".allow_unclean_election()"


def _whoever_is_first(patch: Patch) -> None:
    """The first replica is elected, fenced or not."""
    replace_in(patch, _CHOSEN, "if self._unclean_election and any_replica != NO_LEADER:", "if self._unclean_election:")
    replace_in(
        patch,
        _CHOSEN,
        "any_replica = next(filter(eligible, partition.replicas), NO_LEADER)",
        "any_replica = partition.replicas[0]",
    )


def _beside_a_leader(patch: Patch) -> None:
    """Whether there is a leader is not looked at, and it may be another one."""
    replace_in(patch, _ELECT, "partition.leader != NO_LEADER if unclean else", "not unclean and")
    replace_in(patch, _ELECT, _ALLOWED, ".set_isr(()).allow_unclean_election()")


def _elr_kept(patch: Patch) -> None:
    """Those stay in the ELR who are not asked: they are elected once they are back."""
    eligible = "images.broker.controller.partition_change:PartitionChangeBuilder._eligible_replicas"
    replace_in(patch, eligible, "if election.unclean:", "if self._recovered_leader != NO_LEADER:")


def _as_the_topic_permits(patch: Patch) -> None:
    """What the topic permits counts for a request, too."""
    replace_in(patch, _ELECT, _ALLOWED, "")


def _while_the_elr_is_away(patch: Patch) -> None:
    """A partition that has an ELR is left to that."""
    replace_in(patch, _ELECT, "partition.leader != NO_LEADER if", "partition.leader != NO_LEADER or partition.elr if")


def _done_where_there_is_a_leader(patch: Patch) -> None:
    """An election that is not needed is answered as done."""
    right = MetadataChange.elect

    def elect(self: MetadataChange, name: str, index: int, unclean: bool) -> PartitionResult:
        result = right(self, name, index, unclean)
        return PartitionResult(name, index) if result.error.name == "election_not_needed" else result

    patch.setattr(MetadataChange, "elect", elect)


def _done_without_a_leader(patch: Patch) -> None:
    """An election that elects nobody is answered as done."""
    replace_in(
        patch, _ELECT, "PartitionResult(name, index) if elected else", "PartitionResult(name, index) if True else"
    )


def _every_partition(patch: Patch) -> None:
    """A request for one partition is carried out for all of the topic."""
    right = MetadataChange.elect

    def elect(self: MetadataChange, name: str, index: int, unclean: bool) -> PartitionResult:
        results = {each: right(self, name, each, unclean) for each in range(len(self.image.topics[name].partitions))}
        return results[index]

    patch.setattr(MetadataChange, "elect", elect)


def _asks_once_more(patch: Patch) -> None:
    """A broker passes a request on once more whose answer it has not heard."""

    async def forward(channel: ControllerChannel, request: Any) -> Any:
        while True:
            with suppress(ConnectionLost):
                answer = await channel.call(request)
                if not says_not_controller(answer):
                    return answer
            await asyncio.sleep(0.01)

    patch.setattr(ControllerChannel, "forward", forward)


def _for_another_reason(patch: Patch) -> None:
    """It is traced as an election of the controllers' own."""
    patch.setattr(metadata_change.unclean_recovery, "UNCLEAN_ELECTION", "elected")


MISTAKES = (
    PlayedMistake("fenced-broker-elected", _whoever_is_first, [STOPS], MANUAL),
    PlayedMistake("leader-otherwise", _whoever_is_first, POWER_FAILS, MANUAL),
    PlayedMistake("leader-otherwise", _beside_a_leader, ASKS_AFTER_ALL, MANUAL),
    PlayedMistake("elr-otherwise", _elr_kept, [STOPS], MANUAL),
    PlayedMistake("election-refused", _as_the_topic_permits, [STOPS], MANUAL),
    PlayedMistake("election-refused", _while_the_elr_is_away, [STOPS], MANUAL),
    PlayedMistake("answered-undone", _done_where_there_is_a_leader, [STOPS], MANUAL),
    PlayedMistake("answered-undone", _done_without_a_leader, ALL_AWAY, FOUR_BROKERS),
    PlayedMistake("change-unasked", _every_partition, SILENT, TWO_PARTITIONS),
    PlayedMistake("change-unasked", _asks_once_more, [UNHEARD, STOPS], MANUAL),
    PlayedMistake("unclean-election", _for_another_reason, [STOPS], MANUAL),
)


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_a_mistake_with_unclean_elections_is_found(mistake: PlayedMistake, monkeypatch: Patch) -> None:
    mistake.check_found(monkeypatch)
