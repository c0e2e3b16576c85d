"""The fault `late-log-end`: an unclean recovery that counts what a replica told in an earlier life is found."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any, Final

import pytest

from checkers.verdict import Validity
from harness.environments.mistakes import Mistake
from harness.runner.run import run_in_simulation
from harness.spec import parse
from nemesis.cluster_shape import ClusterShape
from nemesis.drawing import Draws, RunProfile
from nemesis.faults.late_log_end import LateLogEnd
from nemesis.ports import KeepUnsynced
from tests.simulation.applied_mistake import apply_mistake

RULE = "recovery_counts_current_lives_only"
GREATEST = "recovery_elects_greatest_log"


@pytest.mark.parametrize(("keep", "lost"), [({}, False), ({"keep": "nothing"}, True)])
def test_a_log_end_of_an_earlier_life_is_counted_exactly_without_the_rule(keep: dict[str, Any], lost: bool) -> None:
    fault = {"at": "2s", "for": "20s", "fault": "late-log-end", "victim": "b1", **keep}
    document = {"seed": 1, "time_limit": "12s", "settings": {"unclean.recovery.strategy": "balanced"}}
    kept, broken = (
        run_in_simulation(parse({**document, "faults": [fault], "without": without})) for without in ([], [RULE])
    )
    assert kept.validity is Validity.VALID, kept.verdicts
    assert [injection.took_effect for injection in kept.injections] == [True]
    kinds = {finding.kind for verdict in broken.verdicts for finding in verdict.findings}
    assert "recovery-outdated" in kinds
    assert ("lost-append" in kinds) is lost


def test_the_longer_log_is_elected_by_nothing_but_its_length() -> None:
    fault = {"at": "2s", "for": "20s", "fault": "late-log-end", "victim": "b1"}
    document = {"time_limit": "12s", "settings": {"unclean.recovery.strategy": "balanced"}, "faults": [fault]}
    specs = [parse({**document, "seed": seed}) for seed in range(6)]
    assert [run_in_simulation(spec).validity for spec in specs] == [Validity.VALID] * len(specs)
    broken = [run_in_simulation(replace(spec, without=(GREATEST,))) for spec in specs]
    kinds = [{finding.kind for verdict in run.verdicts for finding in verdict.findings} for run in broken]
    assert sum("recovery-of-lesser-log" in found for found in kinds) >= len(specs) / 3


FENCED_COUNT: Final = Mistake(
    "fenced_count",
    "An unclean recovery counts, and elects, a broker that has gone since it told its log end.",
    "images.broker.controller.metadata_change:MetadataChange.recover",
    replace="if self.image.is_active(replica) else None",
    by="if replica in self.image.brokers else None",
)


def test_who_has_gone_since_it_told_its_log_end_is_not_elected(monkeypatch: pytest.MonkeyPatch) -> None:
    fault = {"at": "2s", "for": "20s", "fault": "late-log-end", "victim": "b1", "away": True}
    document = {"seed": 1, "time_limit": "12s", "settings": {"unclean.recovery.strategy": "balanced"}}
    spec = parse({**document, "faults": [fault]})
    kept = run_in_simulation(spec)
    assert kept.validity is Validity.VALID, kept.verdicts

    apply_mistake(monkeypatch, FENCED_COUNT)
    kinds = {finding.kind for verdict in run_in_simulation(spec).verdicts for finding in verdict.findings}
    assert "fenced-broker-elected" in kinds


def test_every_broker_is_killed_only_where_a_recovery_compares_logs_and_victims_alone_lose_power() -> None:
    def drawn(*victims: str, **shape: Any) -> set[tuple[str, ...] | None]:
        cluster = ClusterShape(("b1", "b2", "b3"), ("c1",), partitions=1, unclean_recovery=True, **shape)
        profile = RunProfile(victims, leader_bias=0.5, held_share=0.5, keeps=tuple(KeepUnsynced))
        faults = [LateLogEnd.draw(Draws(Random(seed), cluster, profile)) for seed in range(20)]
        return {fault and fault.at_risk(cluster) for fault in faults}

    assert drawn("b2") == {None}
    assert drawn("b2", recovery_compares_logs=True, replication_factor=1) == {None}
    assert drawn("b2", recovery_compares_logs=True) == {(), ("b2",)}
    assert drawn(recovery_compares_logs=True) == {()}
