"""Quality of shrinking, with predicates that say at once what fails: what a user is finally shown."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest

from harness.shrinking.passes import PASSES, Reproducer, Sighting, fix_moments, one_stretch
from harness.shrinking.shrinker import NEIGHBOURS, Shrinker, ShrinkProgress, Shrunk
from harness.shrinking.spec_size import PLAIN, size_of
from harness.spec import Spec, parse
from nemesis.faults.disk import PowerLoss
from nemesis.faults.network_partition import NetworkPartition
from nemesis.faults.process import Kill, Pause

Fails = Callable[[Spec], bool]
FAULTS = [
    {"at": 1.234 + 2.5 * number, "for": 3.217, "fault": kind, "nodes": nodes, **more}
    for number, (kind, nodes, more) in enumerate(
        [
            ("kill", ["b1"], {}),
            ("pause", ["leader/0"], {}),
            ("power-loss", ["b2", "b3"], {"keep": "torn"}),
            ("partition", ["any"], {"flavour": "reset"}),
            ("kill", ["c1"], {}),
            ("packets", ["b3"], {"delay_ms": 30, "loss": 0.1}),
            ("clock", ["minority"], {"jump_ms": 500}),
            ("pause", ["b2"], {}),
        ]
    )
]
LARGE = parse(
    {"seed": 7, "faults": FAULTS, "partitions": 4, "rate": 160, "settings": {"retention.ms": 800}, "acks": "1"}
)
RESOLVED = {"leader/0": ["b2"], "any": ["b3"], "minority": ["b1"]}


def _shrunk(fails: Fails, start: Spec = LARGE, on_progress: Callable[[ShrinkProgress], None] | None = None) -> Shrunk:
    def predicate(spec: Spec) -> Sighting | None:
        return _seen(spec) if fails(spec) else None

    start_of = Reproducer(start, _seen(start))
    return Shrinker(start_of, predicate, on_progress=on_progress or (lambda progress: None)).shrink()


def _seen(spec: Spec) -> Sighting:
    """All faults took effect, and every symbolic target stood for its nodes in RESOLVED."""
    return Sighting(frozenset(range(len(spec.script))), dict.fromkeys(range(len(spec.script)), RESOLVED))


def _kinds(spec: Spec) -> list[str]:
    return [scheduled.fault.name for scheduled in spec.script]


def test_a_failure_without_a_cause_becomes_a_spec_with_nothing_in_it() -> None:
    smallest = _shrunk(lambda spec: True).smallest.spec
    assert (len(smallest.script), smallest.brokers, smallest.controllers, smallest.partitions) == (0, 1, 1, 1)
    assert (smallest.producers, smallest.consumers, smallest.end_offset_readers) == (0, 0, 0)
    assert (smallest.rate, smallest.time_limit_s, smallest.acks) == (1.0, 1.0, "all")
    assert smallest.settings == Spec().settings


def test_the_faults_that_matter_stay_and_no_other() -> None:
    def fails(spec: Spec) -> bool:
        return {"partition", "clock"} <= set(_kinds(spec))

    result = _shrunk(fails)
    assert result.complete
    assert _kinds(result.smallest.spec) == ["partition", "clock"]


@pytest.mark.parametrize("wanted", range(1, 6))
def test_dropping_faults_ends_with_a_spec_that_fails_without_none_of_them(wanted: int) -> None:
    """Any `wanted` faults fail together: delta debugging alone has no way to see which."""
    result = _shrunk(lambda spec: len(spec.script) >= wanted)
    assert len(result.smallest.spec.script) == wanted


def test_targets_become_the_nodes_that_they_stood_for() -> None:
    smallest = _shrunk(lambda spec: {"partition", "clock"} <= set(_kinds(spec))).smallest.spec
    assert [scheduled.fault.targets() for scheduled in smallest.script] == [("b3",), ("b1",)]


def test_a_target_stays_symbolic_where_its_node_would_not_fail() -> None:
    def fails(spec: Spec) -> bool:
        return any(scheduled.fault == Pause(("leader/0",)) for scheduled in spec.script)

    smallest = _shrunk(fails).smallest.spec
    assert [scheduled.fault for scheduled in smallest.script] == [Pause(("leader/0",))]


def test_a_power_loss_that_must_lose_something_keeps_nothing_of_one_node() -> None:
    def fails(spec: Spec) -> bool:
        return any(isinstance(each.fault, PowerLoss) and "b3" in each.fault.nodes for each in spec.script)

    (scheduled,) = _shrunk(fails).smallest.spec.script
    assert isinstance(scheduled.fault, PowerLoss)
    assert (scheduled.fault.nodes, str(scheduled.fault.keep)) == (("b3",), "nothing")


def test_a_power_loss_that_need_lose_nothing_becomes_a_kill() -> None:
    def fails(spec: Spec) -> bool:
        return any(isinstance(each.fault, PowerLoss | Kill) and "b3" in each.fault.nodes for each in spec.script)

    (scheduled,) = _shrunk(fails).smallest.spec.script
    assert scheduled.fault == Kill(("b3",))


def test_fields_of_a_fault_go_back_to_their_defaults() -> None:
    smallest = _shrunk(lambda spec: "partition" in _kinds(spec)).smallest.spec
    assert [scheduled.fault for scheduled in smallest.script] == [NetworkPartition(nodes=("b3",))]


def test_times_become_short_and_round_and_the_run_ends_soon_after() -> None:
    def fails(spec: Spec) -> bool:
        return any(isinstance(each.fault, Pause) and each.at_s >= 1.9 and each.for_s >= 0.7 for each in spec.script)

    smallest = _shrunk(fails).smallest.spec
    (scheduled,) = smallest.script
    assert (scheduled.at_s, scheduled.for_s) == (2.0, 1.0)
    assert smallest.time_limit_s == 3.0


def test_clients_cluster_and_settings_stay_only_as_far_as_they_matter() -> None:
    def fails(spec: Spec) -> bool:
        return spec.partitions >= 3 and spec.consumers >= 1 and spec.acks == "1" and spec.brokers >= 2

    smallest = _shrunk(fails).smallest.spec
    assert (smallest.partitions, smallest.consumers, smallest.producers, smallest.brokers) == (3, 1, 0, 2)
    assert (smallest.acks, smallest.replication_factor) == ("1", 1)
    assert "retention.ms" not in smallest.settings


def test_settings_of_a_drawn_world_go_back_to_their_defaults_at_once_and_the_generation_stays() -> None:
    steps: list[ShrinkProgress] = []
    settings = {"faultline.protocol": "kip101", "retention.ms": 800, "segment.bytes": 1024, "min.insync.replicas": 1}
    _shrunk(
        lambda spec: spec.settings.get("faultline.protocol") == "kip101",
        parse({"faults": FAULTS, "settings": settings}),
        steps.append,
    )
    (step,) = [step for step in steps if step.pass_name == "default_settings" and step.accepted]
    assert step.smallest.settings == {**Spec().settings, "faultline.protocol": "kip101"}


def test_scripted_operations_are_dropped_as_faults_are() -> None:
    operations = ["produce 10 to 0", "poll 0 until 5", "commit 0", "seek 0 to 3", "resume 0"]
    start = parse({"faults": "none", "clients": {"operations": operations}})

    def fails(spec: Spec) -> bool:
        return {"commit 0", "resume 0"} <= {each.to_mapping()["do"] for each in spec.operations}

    smallest = _shrunk(fails, start).smallest.spec
    assert [each.to_mapping()["do"] for each in smallest.operations] == ["commit 0", "resume 0"]


def test_a_step_that_others_wait_for_is_not_dropped_alone() -> None:
    faults = [
        {"at": "1s", "for": "1s", "fault": "kill", "nodes": ["b1"], "id": "cut"},
        {"after": "cut", "for": "1s", "fault": "pause", "nodes": ["b2"]},
    ]
    smallest = _shrunk(lambda spec: "pause" in _kinds(spec), parse({"faults": faults})).smallest.spec
    assert _kinds(smallest) == ["kill", "pause"]


@pytest.mark.parametrize(
    "fails",
    [
        lambda spec: len(spec.script) >= 3,
        lambda spec: spec.time_limit_s >= 13 and "kill" in _kinds(spec),
        lambda spec: (sum(each.at_s for each in spec.script) * 1000) % 7 < 4,
    ],
    ids=["count", "time", "erratic"],
)
def test_every_step_forward_is_smaller_and_no_spec_is_run_twice(fails: Fails) -> None:
    steps: list[ShrinkProgress] = []
    result = _shrunk(fails, on_progress=steps.append)
    accepted = [size_of(LARGE), *(size_of(step.candidate) for step in steps if step.accepted)]
    assert all(after < before for before, after in pairwise(accepted))
    assert len({step.candidate.to_yaml() for step in steps}) == len(steps) == result.runs
    again: list[ShrinkProgress] = []
    assert _shrunk(fails, on_progress=again.append) == result
    assert again == steps, "the same input leads to the same candidates in the same order"


def test_no_pass_finds_anything_smaller_in_a_complete_result() -> None:
    def fails(spec: Spec) -> bool:
        return {"partition", "clock"} <= set(_kinds(spec)) and spec.time_limit_s >= 4

    result = _shrunk(fails)
    for each in PASSES:
        candidates = each(result.smallest)
        candidate = next(candidates, None)
        while candidate is not None:
            assert not (fails(candidate) and size_of(candidate) < size_of(result.smallest.spec))
            try:
                candidate = candidates.send(None)
            except StopIteration:
                break


def test_a_smaller_spec_may_fail_with_a_neighbouring_seed() -> None:
    """With all its faults any seed fails; with fewer only every third one does."""
    result = _shrunk(lambda spec: len(spec.script) == len(FAULTS) or (spec.seed % 3 == 0 and bool(spec.script)))
    assert len(result.smallest.spec.script) == 1
    assert LARGE.seed < result.smallest.spec.seed < LARGE.seed + NEIGHBOURS


def test_a_shorter_run_may_fail_with_as_many_seeds_as_take_about_as_long() -> None:
    """A run costs its time limit and five seconds. One fault fails with every seventh seed only."""
    steps: list[ShrinkProgress] = []
    result = _shrunk(
        lambda spec: len(spec.script) >= 6 or (spec.seed % 7 == 4 and bool(spec.script)), on_progress=steps.append
    )
    without_faults = [step.candidate for step in steps if not step.candidate.script]
    assert without_faults[0].time_limit_s == 4.0
    assert [spec.seed for spec in without_faults[:8]] == list(range(7, 7 + 8)), "7 × 9 s < 65 s ≤ 8 × 9 s"
    assert without_faults[8].to_yaml() != replace(without_faults[0], seed=15).to_yaml()
    assert (len(result.smallest.spec.script), result.smallest.spec.seed) == (1, 11)
    assert max(len(step.candidate.script) for step in steps) <= 2, "eight became one, and one that lasts until it"


def test_a_stretch_of_faults_has_those_that_last_until_it_begins() -> None:
    """The clock runs wrong from the start and the kill comes late: only together, and not without others, they fail
    in a long run; in a short one they do alone."""
    lasting = {"at": 0.5, "for": 40.0, "fault": "clock", "nodes": ["b2"], "rate": 0.9}
    late = {"at": 25.25, "for": 2.0, "fault": "kill", "nodes": ["b1"]}
    start = parse({"seed": 7, "faults": [lasting, *FAULTS, late], "time_limit": 45})
    steps: list[ShrinkProgress] = []

    def fails(spec: Spec) -> bool:
        kinds = _kinds(spec)
        return {"clock", "kill"} <= set(kinds) and (spec.time_limit_s <= 10 or len(kinds) == len(start.script))

    result = _shrunk(fails, start, steps.append)
    assert _kinds(result.smallest.spec) == ["clock", "kill"]
    first = next(step for step in steps if step.accepted)
    assert first.pass_name == "one_stretch"
    assert [(each.at_s, each.for_s) for each in first.candidate.script] == [(0.0, 16.25), (1.0, 2.0)]


def test_eight_faults_that_follow_each_other_are_tried_wherever_they_are() -> None:
    early = [{"at": 3.0 + number, "for": 0.5, "fault": "kill", "nodes": ["b1"]} for number in range(2)]
    late = [{"at": 10.0 + number, "for": 0.5, "fault": "pause", "nodes": ["b2"]} for number in range(40)]
    start = parse({"seed": 7, "faults": [*early, *late], "time_limit": 60})
    steps: list[ShrinkProgress] = []

    def fails(spec: Spec) -> bool:
        """Two kills, in a long run only among many other faults."""
        return _kinds(spec).count("kill") == 2 and (spec.time_limit_s <= 20 or len(spec.script) > 40)

    assert _kinds(_shrunk(fails, start, steps.append).smallest.spec) == ["kill", "kill"]
    first = next(step for step in steps if step.accepted)
    assert (first.pass_name, len(first.candidate.script)) == ("one_stretch", 8)


@pytest.mark.parametrize("akin", [True, False])
def test_a_candidate_that_fails_of_the_same_cause_is_asked_with_more_seeds_for_the_finding(akin: bool) -> None:
    """A short run fails with the seed 20; with 9 it fails of the same cause, if that is told, with another finding."""

    def sighting_of(spec: Spec) -> Sighting | None:
        if spec.time_limit_s == 4 and spec.seed == 9 and akin:
            return Sighting(same_finding=False)
        return Sighting() if spec.time_limit_s == 4 and spec.seed == 20 else None

    start = replace(LARGE, seed=7, time_limit_s=60.0)
    steps: list[ShrinkProgress] = []
    shrinker = Shrinker(
        Reproducer(start, Sighting()),
        sighting_of,
        passes=(one_stretch,),
        exhausted=lambda runs: runs == 60,
        on_progress=steps.append,
    )
    smallest = shrinker.shrink().smallest.spec
    assert (len(smallest.script) == 0) is akin
    assert [step.candidate.seed for step in steps if step.accepted] == [20] * akin


def test_a_run_ends_at_its_finding_before_anything_else_is_tried() -> None:
    steps: list[ShrinkProgress] = []

    def sighting_of(spec: Spec) -> Sighting | None:
        """Only the pause fails; its run shows that 3.7 s after it begins."""
        begins_s = [scheduled.at_s for scheduled in spec.script if isinstance(scheduled.fault, Pause)]
        seen_s = begins_s[0] + 3.7 if begins_s else math.inf
        return Sighting(finding_s=seen_s) if seen_s <= spec.time_limit_s else None

    start = sighting_of(LARGE)
    assert start is not None
    smallest = Shrinker(Reproducer(LARGE, start), sighting_of, on_progress=steps.append).shrink().smallest.spec
    assert (steps[0].pass_name, steps[0].candidate.time_limit_s, steps[0].accepted) == ("ended_at_finding", 8.0, True)
    assert max(len(step.candidate.script) for step in steps) == 3, "those that begin before 8 s"
    assert (_kinds(smallest), smallest.time_limit_s) == (["pause"], 4.0)


def test_a_run_that_fails_only_later_than_its_finding_is_not_cut_short() -> None:
    steps: list[ShrinkProgress] = []
    shrinker = Shrinker(
        Reproducer(LARGE, Sighting(finding_s=5.5)),
        lambda spec: None,
        exhausted=lambda runs: runs == 2,
        on_progress=steps.append,
    )
    assert shrinker.shrink().smallest.spec == LARGE
    assert [step.pass_name for step in steps] == ["ended_at_finding", "one_stretch"], (
        "it is asked with its own seed alone"
    )


def test_a_spec_is_never_larger_than_itself_with_another_seed() -> None:
    assert size_of(replace(LARGE, seed=8)) == size_of(LARGE)


def test_a_condition_becomes_the_moment_at_which_it_held_and_its_target_the_node_it_happened_to() -> None:
    script = [
        {"at": 1, "for": 2, "fault": "pause", "nodes": ["b1"]},
        {"at": 2, "when": {"left_isr": "any"}, "then_after": 0.5, "for": 2, "fault": "kill", "nodes": ["trigger"]},
        {"at": 3, "when": {"elected": "b9"}, "for": 2, "fault": "kill", "nodes": ["b2"]},
    ]
    start = parse({"brokers": 9, "seed": 1, "faults": script, "time_limit": 20})
    seen = Sighting(frozenset({0, 1}), {1: {"trigger": ["b3"]}}, {1: 7.25})
    candidates = fix_moments(Reproducer(start, seen))
    first = next(candidates)
    assert first.script.faults[1].to_mapping() == {"at": 7.25, "for": 2.0, "fault": "kill", "nodes": ["b3"]}
    assert first.script.faults[2] == start.script.faults[2], "its moment never came"
    assert size_of(first) < size_of(start)
    with pytest.raises(StopIteration):
        candidates.send(Reproducer(first, seen))
    assert fix_moments in PASSES


def test_settings_of_nodes_fields_of_clients_and_rules_stay_only_where_they_matter() -> None:
    start = parse(
        {
            "faults": "none",
            "without": ["maximal_isr", "idempotent_dedupe"],
            "clients": {"batch": 7, "in_flight": 2},
            "node_settings": {node: {"replica.lag.time.max.ms": 900} for node in ("b1", "b2")},
        }
    )

    def fails(spec: Spec) -> bool:
        return "maximal_isr" in spec.without and "b1" in spec.node_settings and spec.clients.batch == 7

    smallest = _shrunk(fails, start).smallest.spec
    assert smallest.without == ("maximal_isr",)
    assert [*smallest.node_settings] == ["b1"]
    assert (smallest.clients.batch, smallest.clients.in_flight) == (7, PLAIN.clients.in_flight)
