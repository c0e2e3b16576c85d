"""Each kind of step by itself: a few events that show it, and the same events done right, which show none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from checkers.tables import trace_rows
from results.explanation.group_steps import group_steps
from results.explanation.metadata_steps import metadata_steps
from results.explanation.steps import broken_steps
from tests.checkers import small_evidence
from tests.results.explanation.test_stories import (
    BORN,
    Event,
    appended,
    decided,
    event,
    follows,
    leads,
    moved,
    proposed,
)


def kinds(events: Sequence[Event]) -> list[str]:
    return [str(step.kind) for step in broken_steps(trace_rows(small_evidence.trace(*events)))]


def changed(time_s: float, leader: int, epoch: int, partition_epoch: int, isr: Sequence[int], **detail: Any) -> Event:
    facts = {"elr": [], "replicas": [1, 2, 3], "min_isr": 2, "reason": "fenced", "unclean": False, **detail}
    place = {"leader": leader, "leader_epoch": epoch, "partition_epoch": partition_epoch, "offset": partition_epoch}
    return event(time_s, "c1", "partition_changed", facts, members=list(isr), **place)


def of_broker(time_s: float, kind: str, broker: int, **detail: Any) -> Event:
    return event(time_s, "c1", kind, detail, topic="", partition=-1, broker=broker, offset=int(time_s * 10))


def accepted(position: int, requested: int, last_epoch: int) -> Event:
    detail = {"replica": 2, "requested": requested, "last_epoch": last_epoch}
    return event(4, "b1", "fetch_accepted", detail, leader=1, leader_epoch=0, offset=position, log_end=5)


def diverging(epoch: int, end: int) -> Event:
    detail = {"replica": 2, "epoch": epoch, "fetched": [0, 7]}
    return event(4, "b1", "diverging", detail, leader=1, leader_epoch=0, offset=end)


def cut(to: int, answer: list[int], epochs: list[list[int]]) -> Event:
    detail = {"answer": answer, "epochs": epochs, "producers": {}}
    return event(5, "b1", "truncated", detail, leader=2, leader_epoch=1, offset=to, log_end=7, high_watermark=5)


BATCH = {"producer_id": 4, "sequence": 7, "crc": 99}
WITH_BATCH = [
    *BORN,
    *(event(4, node, "appended", BATCH, leader=1, leader_epoch=0, offset=5, log_end=6) for node in ("b1", "b2")),
]
LONGER = [*BORN, appended(4, "b1", 1, 0, 5, 7), follows(4.5, "b1", 2, 1, 1, 7)]


def opened(epochs: list[list[int]], producers: dict[str, int], end: int = 6, *, clean: bool = False) -> Event:
    detail = {"clean": clean, "cut_bytes": 0, "epochs": epochs, "producers": producers}
    return event(5, "b2", "log_recovered", detail, offset=0, log_end=end, high_watermark=5)


def acknowledged(offset: int, watermark: int, **detail: Any) -> Event:
    place = {"leader": 1, "leader_epoch": 0, "offset": offset, "log_end": offset + 1, "high_watermark": watermark}
    return event(6, "b1", "acknowledged", {"acks": 1, **detail}, **place)


def told(*members: int) -> list[Event]:
    """A deposed leader tells the latest offset."""
    later = [appended(3.5, "b2", 2, 1, 5, 6), event(4, "b2", "high_watermark", {"positions": {"2": 6}}, leader=2,
             leader_epoch=1, offset=5, high_watermark=6, members=[2])]  # fmt: skip
    place = {"leader": 1, "leader_epoch": 0, "partition_epoch": 0, "high_watermark": 5}
    return [*BORN, *later, event(5, "b1", "latest_told", members=list(members), **place)]


LOGS = {
    "fetch-of-other-epoch-accepted": ([*BORN, accepted(5, 3, 0)], [*BORN, accepted(5, 0, 0)]),
    "fetch-gave-wrong-epoch": (
        [*BORN, decided(4, 3, 1, 1, (1, 2, 3), "elected"), leads(4, "b3", 1, 1, 5, (1, 2, 3)),
         appended(4, "b3", 3, 1, 5, 6), appended(4.1, "b1", 1, 0, 5, 6),
         event(5, "b3", "fetch_accepted", {"replica": 1, "requested": 1, "last_epoch": 1},
               leader=3, leader_epoch=1, offset=6, log_end=6)],
        [*BORN, accepted(5, 0, 0)],
    ),
    "diverging-fetch-accepted": ([*BORN, accepted(6, 0, 0)], [*BORN, accepted(5, 0, 0)]),
    "wrong-divergence-answered": ([*BORN, diverging(0, 6)], [*BORN, diverging(0, 5)]),
    "truncated-to-wrong-offset": (
        [*LONGER, cut(6, [0, 5], [[0, 0]])], [*LONGER, cut(5, [0, 5], [[0, 0]])],
    ),
    "epoch-cache-contradicts-log": (
        [*LONGER, cut(5, [0, 5], [[0, 0], [1, 5]])], [*LONGER, cut(5, [0, 5], [[0, 0]])],
    ),
    "producer-state-contradicts-log": (
        [*WITH_BATCH, opened([[0, 0]], {"4": 6})], [*WITH_BATCH, opened([[0, 0]], {"4": 7})],
    ),
    "appended-out-of-place": ([*BORN, appended(4, "b1", 1, 0, 6, 7)], [*BORN, appended(4, "b1", 1, 0, 5, 6)]),
    "appended-records-not-of-leader": (
        [*BORN, appended(4, "b2", 1, 0, 5, 6)], [*BORN, appended(4, "b1", 1, 0, 5, 6), appended(4, "b2", 1, 0, 5, 6)],
    ),
    "sequence-gap-appended": tuple(
        [*WITH_BATCH, event(5, "b1", "appended", BATCH | {"sequence": number, "crc": 1}, leader=1, leader_epoch=0,
                            offset=6, log_end=7)]
        for number in (9, 8)
    ),
    "retry-acknowledged-without-batch": (
        [*WITH_BATCH, acknowledged(3, 5, retry=[4, 7])], [*WITH_BATCH, acknowledged(5, 5, retry=[4, 7])],
    ),
    "high-watermark-not-counted": ([*BORN, acknowledged(4, 6)], [*BORN, acknowledged(4, 5)]),
    "latest-offset-unconfirmed": (told(2), told(2, 3)),
    "uncommitted-records-deleted": tuple(
        [*BORN, event(4, "b1", "log_start", {"before": 0, "reason": "retention_ms"}, offset=to, high_watermark=5)]
        for to in (6, 5)
    ),
    "clean-log-came-back-shorter": (
        [*WITH_BATCH, opened([[0, 0]], {}, end=3, clean=True)],
        [*WITH_BATCH, opened([[0, 0]], {"4": 7}, clean=True)],
    ),
    "bytes-left-behind-log-end": tuple(
        [*WITH_BATCH, event(5, "b2", "log_recovered", {"epochs": [[0, 0]], "producers": {"4": 7}, **left}, offset=0,
                            log_end=6, high_watermark=5)]
        for left in ({"cut_bytes": 9, "cut_reason": "the last batch is short", "bytes_behind": 9}, {})
    ),
    "log-start-above-leaders": tuple(
        [*BORN, event(4, "b1", "log_start", {"before": 0, "reason": "delete_records"}, offset=3, high_watermark=5),
         event(5, "b2", "truncated", {"epochs": [], "producers": {}, "log_start": start}, leader=1, leader_epoch=0,
               offset=start, log_end=2, high_watermark=2)]
        for start in (5, 3)
    ),
    "unknown-position-counted": tuple(
        [*BORN, *(appended(4, node, 1, 0, 5, 6) for node in ("b1", "b2", "b3")),
         moved(5, "b1", 0, 5, 6, b1=6, b2=at, b3=6)]
        for at in (-1, 6)
    ),
}  # fmt: skip
DECISIONS = {
    "decided-with-old-epoch": ([*BORN, changed(4, 1, 0, 0, (1, 2))], [*BORN, changed(4, 1, 0, 1, (1, 2))]),
    "replica-removed-in-leader-epoch": tuple(
        [*BORN, changed(4, 1, epoch, 1, (1, 2), replicas=[1, 2])] for epoch in (0, 1)
    ),
    "leader-outside-isr": ([*BORN, changed(4, 1, 0, 1, (2, 3))], [*BORN, changed(4, 2, 1, 1, (2, 3))]),
    "isr-outside-replicas": tuple(
        [*BORN, changed(4, 1, 1, 1, (1, 2, 3), replicas=[1, 2, 3, 4][:count], reason="alter_partition"),
         changed(5, 1, 2, 2, isr, replicas=[1, 2, 4], reason="alter_partition")]
        for count, isr in ((4, (1, 2, 3)), (4, (1, 2)))
    ),
    "fenced-broker-elected": tuple(
        [of_broker(0.4, "broker_fenced", 2), *more, *BORN, changed(4, 2, 1, 1, (2, 3))]
        for more in ([], [of_broker(0.6, "broker_unfenced", 2)])
    ),
    "isr-join-unrequested": tuple(
        [*BORN, changed(4, 1, 0, 1, (1, 2)), changed(5, 1, 0, 2, (1, 2, 3), reason=reason)]
        for reason in ("reassignment", "alter_partition")
    ),
    "fenced-broker-joined-isr": tuple(
        [*BORN, changed(4, 1, 0, 1, (1, 2)), of_broker(4.2, "broker_fenced", 3), *more,
         changed(5, 1, 0, 2, (1, 2, 3), reason="alter_partition")]
        for more in ([], [of_broker(4.4, "broker_unfenced", 3)])
    ),
    "reassignment-completed-early": tuple(
        [*BORN, changed(4, 1, 0, 1, (1, 2, 3), replicas=[1, 2, 3, 4], adding=[4], removing=[3],
                 reason="reassignment"),
         changed(5, 1, 1, 2, isr, replicas=[1, 2, 4], reason="alter_partition")]
        for isr in ((1, 2), (1, 2, 4))
    ),
    "isr-change-of-deposed-leader": tuple(
        [*BORN, changed(4, 2, 1, 1, (2, 3)), proposed(5, "b2", epoch, (1, 2, 3), 5, 5, b1=5),
         changed(6, 2, 1, 2, (1, 2, 3), reason="alter_partition")]
        for epoch in (0, 1)
    ),
    "unclean-taken-for-clean": tuple(
        [*BORN, of_broker(4, "broker_registered", 2, clean=True, known=9, previous=previous)] for previous in (-1, 9)
    ),
    "fenced-broker-kept": tuple(
        [*BORN, changed(4, 1, 0, 1, isr), of_broker(4, "broker_fenced", 2), appended(5, "b1", 1, 0, 5, 6)]
        for isr in ((1, 2, 3), (1, 3))
    ),
    "decision-applied-wrongly": tuple(
        [*BORN, changed(4, 1, 0, 1, (1, 2)),
         event(5, "b1", "isr_committed", leader=1, leader_epoch=0, partition_epoch=1, members=isr)]
        for isr in ([1], [1, 2])
    ),
    "isr-proposed-during-change": tuple(
        [*BORN, proposed(4, "b1", 0, (1, 2), 0, 5), *more, proposed(5, "b1", 0, (1, 3), 0, 5)]
        for more in ([], [event(4.5, "b1", "isr_rejected", leader=1, leader_epoch=0, members=[1, 2])])
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", [*LOGS, *DECISIONS])
def test_a_step_is_told_of_the_events_that_break_a_promise_and_of_no_others(kind: str) -> None:
    wrong, right = (LOGS | DECISIONS)[kind]
    assert kind in kinds(wrong)
    assert kinds(right) == []


@pytest.mark.parametrize(
    ("words", "with_it", "without"),
    [
        (
            "b1 has proposed the ISR {b1} and counts on it before it is decided",
            [*BORN, appended(4, "b1", 1, 0, 5, 6), proposed(4.1, "b1", 0, [1], 5, 5), moved(4.2, "b1", 0, 5, 6, b1=6)],
            [*BORN, appended(4, "b1", 1, 0, 5, 6), moved(4.2, "b1", 0, 5, 6, b1=6)],
        ),
        (
            "acks=all, to a retry of a batch that it holds, while",
            [*WITH_BATCH, acknowledged(5, 5, acks=-1, retry=[4, 7])],
            [*WITH_BATCH, acknowledged(5, 5, acks=-1)],
        ),
        ("(its high watermark is 5)", [*BORN, accepted(6, 0, 0)], [*BORN, accepted(5, 0, 0)]),
    ],
    ids=["a proposed shrink", "a retry", "a fetch"],
)
def test_a_step_names_the_fact_that_makes_it_wrong(words: str, with_it: list[Event], without: list[Event]) -> None:
    assert words in " ".join(_texts(with_it))
    assert words not in " ".join(_texts(without))


def _texts(events: Sequence[Event]) -> list[str]:
    return [step.text for step in broken_steps(trace_rows(small_evidence.trace(*events)))]


def controller(time_s: float, node: str, kind: str, detail: dict[str, Any] | None = None, **fields: Any) -> Event:
    return event(time_s, node, kind, detail, topic="", partition=-1, **fields)


def elected(time_s: float, node: str, epoch: int, *voters: str) -> list[Event]:
    """`node` stands in an epoch, gets the votes of others, and leads."""
    number = 100 + int(node[1:])
    return [
        controller(time_s, node, "quorum_voted", leader_epoch=epoch, broker=number),
        controller(time_s, node, "quorum_candidate", leader_epoch=epoch),
        *(controller(time_s, voter, "quorum_voted", leader_epoch=epoch, broker=number) for voter in voters),
        controller(time_s, node, "quorum_leader", leader_epoch=epoch, leader=number),
    ]


def recorded(time_s: float, epoch: int, end: int, *nodes: str) -> list[Event]:
    return [
        controller(time_s, node, "metadata_appended", leader_epoch=epoch, offset=end - 1, log_end=end) for node in nodes
    ]


def committed(time_s: float, node: str, epoch: int, end: int, **positions: int) -> Event:
    held = {f"10{name[1:]}": position for name, position in positions.items()}
    place = {"leader_epoch": epoch, "offset": end - 1, "high_watermark": end}
    return controller(time_s, node, "metadata_committed", {"positions": held}, **place)


def back(end: int) -> Event:
    return controller(9, "c2", "quorum_recovered", {"epochs": [[1, 0]]}, leader_epoch=1, offset=0, log_end=end)


STARTED = [controller(0.1, node, "quorum_recovered", leader_epoch=0, log_end=0) for node in ("c1", "c2", "c3")]
LED = [*STARTED, *elected(1, "c1", 1, "c2"), *recorded(1.1, 1, 1, "c1", "c2")]
COUNTED = [*LED, committed(2, "c1", 1, 1, c2=1, c3=-1)]
FELL_BACK = controller(4, "c2", "metadata_truncated", leader_epoch=1, offset=0, log_end=1)
METADATA = {
    "vote-for-older-log": ([*LED, *elected(3, "c3", 2, "c2")], [*LED, *elected(3, "c2", 2, "c3")]),
    "controller-without-majority": ([*LED, *elected(3, "c2", 2)], [*LED, *elected(3, "c2", 2, "c3")]),
    "metadata-committed-without-majority": ([*LED, committed(2, "c1", 1, 1, c2=0, c3=-1)], COUNTED),
    "metadata-of-earlier-epoch-committed": (
        [*LED, *elected(3, "c2", 2, "c3"), *recorded(4, 1, 1, "c3"), committed(5, "c2", 2, 1, c3=1, c1=-1)],
        [*LED, *elected(3, "c2", 2, "c3"), *recorded(4, 1, 1, "c3"), *recorded(4, 2, 2, "c2", "c3"),
         committed(5, "c2", 2, 2, c3=2, c1=-1)],
    ),
    "metadata-position-not-held": ([*LED, *elected(3, "c1", 2, "c3"), *recorded(4, 2, 2, "c1"),
                                    committed(5, "c1", 2, 2, c3=-1, c2=2)], COUNTED),
    "committed-metadata-truncated": ([*COUNTED, FELL_BACK], [*LED, FELL_BACK]),
    "counted-metadata-lost": ([*COUNTED, back(0)], [*COUNTED, back(1)]),
}  # fmt: skip


@pytest.mark.parametrize("kind", METADATA)
def test_a_step_of_the_controllers_is_told_and_no_other(kind: str) -> None:
    wrong, right = (
        [str(step.kind) for step in metadata_steps(small_evidence.trace(*events))] for events in METADATA[kind]
    )
    assert kind in wrong
    assert right == []


def of_group(time_s: float, node: str, kind: str, end: int, watermark: int, **detail: Any) -> Event:
    place = {
        "topic": "__consumer_offsets",
        "partition": 3,
        "offset": end - 1,
        "log_end": end,
        "high_watermark": watermark,
    }
    return event(time_s, node, kind, {"group": "g", **detail}, **place)


def begun(time_s: float, node: str, generation: int) -> Event:
    begins = of_group(time_s, node, "generation_begun", 1, 1, generation=generation, members=["m"])
    return begins | {"leader_epoch": int(node[1:])}


def commit(time_s: float, offset: int, generation: int, current: int, end: int, watermark: int) -> Event:
    facts = {"member": "m", "generation": generation, "current": current, "offsets": {"t-0": offset}}
    return of_group(time_s, "b1", "offsets_committed", end, watermark, **facts)


def loaded(end: int, watermark: int, **groups: dict[str, int]) -> Event:
    place = {"topic": "__consumer_offsets", "partition": 3, "offset": 0, "log_end": end, "high_watermark": watermark}
    return event(8, "b2", "coordinator_loaded", groups, **place)


COMMITS = [begun(1, "b1", 1), commit(2, 5, 1, 1, 2, 2), commit(3, 9, 1, 1, 3, 3)]
LAST = {"t-0": 9}
HELD = [
    event(4, "b2", "appended", topic="__consumer_offsets", partition=3, offset=0, log_end=3, leader_epoch=-1, leader=1)
]
"""The log of the next coordinator has both commits."""
GROUPS = {
    "generation-number-reused": ([begun(1, "b1", 4), begun(2, "b2", 4)], [begun(1, "b1", 4), begun(2, "b2", 5)]),
    "commit-of-earlier-generation": ([*COMMITS, begun(4, "b1", 2), commit(5, 9, 1, 2, 4, 4)], COMMITS),
    "commit-answered-above-high-watermark": ([*COMMITS, commit(5, 12, 1, 1, 4, 3)], COMMITS),
    "coordinator-loaded-uncommitted": ([*COMMITS, loaded(3, 2, g=LAST)], [*COMMITS, loaded(3, 3, g=LAST)]),
    "coordinator-loaded-part": ([*COMMITS, *HELD, loaded(2, 3, g=LAST)], [*COMMITS, *HELD, loaded(3, 3, g=LAST)]),
    "commit-dropped-while-loading": ([*COMMITS, *HELD, loaded(3, 3)], [*COMMITS, *HELD, loaded(3, 3, g=LAST)]),
    "committed-offset-outdated": tuple(
        [*COMMITS, loaded(end, 3, g={"t-0": offset}), of_group(9, "b2", "offsets_told", 3, 3, offsets={"t-0": offset})]
        for end, offset in ((2, 5), (3, 9))
    ),
}


@pytest.mark.parametrize("kind", GROUPS)
def test_a_step_of_a_group_coordinator_is_told_and_no_other(kind: str) -> None:
    wrong, right = (
        [str(step.kind) for step in group_steps(small_evidence.trace(*events), "t", 0)] for events in GROUPS[kind]
    )
    assert kind in wrong
    assert right == []


def test_a_target_that_an_administrator_replaces_is_not_completed_early() -> None:
    first = changed(4, 1, 0, 1, (1, 2, 3), replicas=[1, 2, 3, 4], adding=[4], reason="reassignment")
    second = changed(5, 1, 1, 2, (1, 2, 3), replicas=[1, 2, 3, 5], adding=[5], reason="reassignment")
    assert kinds([*BORN, first, second]) == []


def test_an_outdated_offset_is_told_with_what_its_coordinator_had_loaded() -> None:
    told = of_group(9, "b2", "offsets_told", 3, 3, offsets={"t-0": 5})
    again = {**told, "leader_epoch": 7}
    steps = [
        list(group_steps(small_evidence.trace(*COMMITS, loaded(3, 3, g={"t-0": 5}), event), "t", 0))[-1]
        for event in (told, again)
    ]
    assert ["it had not loaded that log in its leader epoch 7, last in" in step.text for step in steps] == [False, True]


def test_metadata_that_went_with_the_name_of_its_file_is_told_with_it() -> None:
    begun = [{**row, "detail": '{"segment": true}'} if row["kind"] == "metadata_appended" else row for row in COUNTED]
    with_file, without = (list(metadata_steps(small_evidence.trace(*rows, back(0)))) for rows in (begun, COUNTED))
    assert ["another file (segment) at 0" in step.text for step in (*with_file, *without)] == [True, False]


@pytest.mark.parametrize("counted", [{"b1": 7}, {"b1": 7, "b2": 7, "b3": 7}])
def test_a_deposed_leader_is_held_to_the_isr_of_its_own_epoch(counted: dict[str, int]) -> None:
    deposed = [*BORN, decided(4, 2, 1, 1, (2, 3), "fenced")]
    written = [appended(4.1, node, 1, 0, 5, 7) for node in counted]
    steps = kinds([*deposed, *written, proposed(4.2, "b1", 0, (1,), 0, 5), moved(4.3, "b1", 0, 5, 7, **counted)])
    assert steps == ([] if len(counted) == 3 else ["high-watermark-without-isr-member"])


def test_a_batch_of_another_producer_epoch_is_no_retry() -> None:
    def taken(crc: int) -> list[Event]:
        return [*WITH_BATCH, acknowledged(5, 5, retry=[4, 7, crc], producer_epoch=1)]

    assert kinds(taken(98)) == ["retry-acknowledged-without-batch"]
    assert kinds(taken(99)) == []
