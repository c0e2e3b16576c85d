"""Events that look like a broken step and are none, each beside almost the same ones that are: a fault, an
administrator or an awkward client explains the first, and nothing explains the second."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pyarrow as pa
import pytest

from checkers.tables import trace_rows
from results.explanation.client_steps import member_steps, read_steps
from results.explanation.group_steps import group_steps
from results.explanation.metadata_steps import metadata_steps
from results.explanation.steps import broken_steps
from results.explanation.story import Step
from tests.checkers import small_evidence
from tests.checkers.small_histories import end_offset
from tests.results.explanation.test_decision_steps import ALIVE, of_broker, refused_registration, registered
from tests.results.explanation.test_steps import (
    COMMITS,
    COUNTED,
    HELD,
    WITH_BATCH,
    changed,
    commit,
    controller,
    elected,
    loaded,
    of_group,
    recorded,
)
from tests.results.explanation.test_stories import (
    BORN,
    Event,
    appended,
    event,
    follows,
    leads,
    moved,
    proposed,
)
from workloads.history import SCHEMA

Look = Callable[[Sequence[Event]], Iterable[Step]]


def of_logs(events: Sequence[Event]) -> Iterable[Step]:
    return broken_steps(trace_rows(small_evidence.trace(*events)))


def of_controllers(events: Sequence[Event]) -> Iterable[Step]:
    return metadata_steps(small_evidence.trace(*events))


def of_offsets(events: Sequence[Event]) -> Iterable[Step]:
    return group_steps(small_evidence.trace(*events), "t", 0)


def of_reads(events: Sequence[Event]) -> Iterable[Step]:
    """A read of the latest offset, from 6 s to 7 s, that is answered with 3."""
    answer = small_evidence.history([end_offset(6, 7, 3)])
    return read_steps(list(trace_rows(small_evidence.trace(*events))), answer, "t", 0)


def accepted(registered_in: int) -> list[Event]:
    """The controllers accept 3 into the ISR, proposed in its broker epoch 3, before its process started anew."""
    asked = proposed(5, "b1", 0, (1, 2, 3), 0, 5, b3=5)
    detail = json.loads(asked["detail"]) | {"epochs": {"1": 1, "2": 2, "3": 3}}
    again = [event(5.5, "b3", "node_started", topic="", partition=-1), registered(5.6, 3, registered_in)]
    return [*ALIVE, *BORN, changed(4, 1, 0, 1, (1, 2)), asked | {"detail": json.dumps(detail)}, *again,
            changed(6, 1, 0, 2, (1, 2, 3), reason="alter_partition")]  # fmt: skip


def opened(time_s: float, end: int, producers: dict[str, int]) -> Event:
    detail = {"clean": False, "cut_bytes": 0, "epochs": [[0, 0]], "producers": producers}
    return event(time_s, "b2", "log_recovered", detail, offset=0, log_end=end, high_watermark=5)


def removed_and_added(replicas: list[int]) -> list[Event]:
    """2 is away, and comes back without its log; these were the replicas meanwhile."""
    away = changed(4, 1, 1, 1, (1, 3), replicas=replicas, adding=[], reason="reassignment")
    return [*BORN, away, changed(4.5, 1, 1, 2, (1, 3), adding=[2], reason="reassignment"), opened(5, 0, {})]


def counted_late(replicas: list[int]) -> list[Event]:
    """3 has lost its log, and has been counted before; these were the replicas meanwhile. A leader that does not know
    of that yet commits by it."""
    away = changed(4.2, 1, 1, 1, (1, 2), replicas=replicas, reason="reassignment")
    added = changed(4.4, 1, 1, 2, (1, 2), adding=[3], reason="reassignment")
    commits = moved(5, "b1", 0, 5, 6, b1=6, b2=6, b3=6) | {"partition_epoch": 0}
    held = [appended(4, node, 1, 0, 5, 6) for node in ("b1", "b2", "b3")]
    return [*BORN, *held, away, added, {**opened(4.5, 0, {}), "node": "b3"}, commits]


def came_back_shorter(read_s: float) -> list[Event]:
    """3 has lost its log in a restart, of which its leader reads then, and has been counted before."""
    started = event(4.4, "b3", "node_started")
    back = of_broker(4.45, "broker_registered", 3, incarnation="new") | {"offset": 9}
    read = event(read_s, "b1", "metadata_applied", offset=0, log_end=9)
    lost = [started, back, {**opened(4.5, 0, {}), "node": "b3"}]
    commits = moved(5, "b1", 0, 5, 6, b1=6, b2=6, b3=6)
    unread = event(4, "b1", "metadata_applied", offset=0, log_end=8)
    held = [appended(4, node, 1, 0, 5, 6) for node in ("b1", "b2", "b3")]
    return sorted([*BORN, *held, unread, *lost, read, commits], key=lambda each: each["time_ns"])


def restored(written: int) -> list[Event]:
    """A controller has a record of the epoch `written` where the others committed one of epoch 2, and takes a snapshot
    in place of its log."""
    leader = [*elected(3, "c3", 2, "c1"), *recorded(4, 2, 2, "c3", "c1")]
    counted = controller(5, "c3", "metadata_committed", {"positions": {"101": 2, "102": -1}}, leader_epoch=2, offset=1,
                         high_watermark=2)  # fmt: skip
    snapshot = controller(6, "c2", "metadata_restored", leader_epoch=1, offset=1)
    return [*COUNTED, *recorded(2.5, 1, 1, "c3"), *leader, *recorded(4.1, written, 2, "c2"), counted, snapshot]


def storing(time_s: float, end: int, *changes: tuple[str | None, int | None]) -> Event:
    place = {"topic": "__consumer_offsets", "partition": 3, "offset": end - 1, "log_end": end, "high_watermark": end}
    detail = {"changes": [["g", *change] for change in changes]}
    return event(time_s, "b1", "offsets_storing", detail, **place)


DELETED = storing(5, 4, ("t-0", None), (None, None))
LOG = event(6, "b2", "appended", topic="__consumer_offsets", partition=3, offset=3, log_end=4, leader_epoch=-1,
            leader=1)  # fmt: skip
"""The log of the next coordinator has the deletion, too."""


def deleted_topic(time_s: float, *reads: str) -> list[Event]:
    """The topic is deleted, and these brokers read of that."""
    rows = [event(time_s, "c1", "partition_deleted", topic="t#2", partition=0, offset=9)]
    return rows + [event(time_s + 0.1, node, "metadata_applied", offset=8, log_end=9, topic="") for node in reads]


def forgot(*before: Event) -> list[Event]:
    """A coordinator has no offset of t-0 any more when another one is committed."""
    facts = {"member": "n", "generation": -1, "current": 0, "offsets": {"t-1": 7}, "held": {"t-1": 7}}
    other = of_group(9, "b2", "offsets_committed", 5, 5, **facts)
    return sorted([*COMMITS, *before, *HELD, LOG, other], key=lambda each: each["time_ns"])


STORED = storing(2.5, 3, ("t-0", 9))
"""The last of the commits is appended."""


def told(**offsets: int) -> Event:
    return of_group(9, "b2", "offsets_told", 4, 4, offsets={f"t-{name[1:]}": end for name, end in offsets.items()})


def recovery(*, unclean: bool, end: int = 3) -> list[Event]:
    """b3, which has lost the records from `end` on, is elected while nobody else runs."""
    lost = {**opened(3.5, end, {}), "node": "b3"}
    chosen = changed(5, 3, 1, 2, (3,), reason="unclean_recovery" if unclean else "elected", unclean=unclean)
    return [*BORN, lost, changed(4, -1, 0, 1, ()), chosen, leads(5.1, "b3", 1, 2, end, (3,))]


def recovered(*, unclean: bool) -> list[Event]:
    """The same, of the log of groups."""
    return [{**row, "topic": "__consumer_offsets", "partition": 3} for row in recovery(unclean=unclean, end=1)]


def deposed(epoch: int) -> list[Event]:
    """… and a leader of this epoch still commits what it has."""
    return [*recovery(unclean=True), appended(5.2, "b1", 1, 0, 5, 6), moved(5.3, "b1", epoch, 5, 6, b1=6),
            changed(5.4, -1, 1, 3, ()), changed(5.5, 3, 2, 4, (3,), reason="unclean_recovery", unclean=True),
            leads(5.6, "b3", 2, 4, 3, (3,))]  # fmt: skip


CASES: dict[str, tuple[str, Look, Sequence[Event], Sequence[Event]]] = {
    "a member that is not registered anew yet": ("isr-join-of-earlier-life", of_logs, accepted(3), accepted(9)),
    "a late heartbeat of a process that has ended": (
        "session-of-ended-process-renewed",
        of_logs,
        [*BORN, *(refused_registration(4 + number, contact_ms) for number, contact_ms in enumerate((1, 2, 2)))],
        [*BORN, *(refused_registration(4 + number, contact_ms) for number, contact_ms in enumerate((1, 2, 3)))],
    ),
    "a replica that was removed after it was counted": (
        "stale-position-counted",
        of_logs,
        counted_late([1, 2]),
        counted_late([1, 2, 3]),
    ),
    "a replica that a restart took records from, before its leader read that it is back": (
        "stale-position-counted",
        of_logs,
        came_back_shorter(5.5),
        came_back_shorter(4.6),
    ),
    "a log of a replica that had been removed": (
        "log-came-back-shorter",
        of_logs,
        removed_and_added([1, 3]),
        removed_and_added([1, 2, 3]),
    ),
    "a batch that was written as its process was killed": (
        "producer-state-contradicts-log",
        of_logs,
        [*WITH_BATCH, opened(5, 7, {"4": 8}), opened(6, 7, {"4": 8})],
        [*WITH_BATCH, opened(5, 6, {"4": 8}), opened(6, 6, {"4": 8})],
    ),
    "a cut of records that nobody knows, as a power loss brought them back": (
        "committed-records-truncated",
        of_logs,
        *(
            [*BORN, *came_back, follows(6, "b2", 3, 1, 1, 5),
             event(7, "b2", "truncated", {}, leader=3, leader_epoch=1, offset=3, log_end=5, high_watermark=3)]
            for came_back in ([opened(4, 3, {}), opened(5, 5, {})], [])
        ),
    ),
    "the epoch cache of records that a power loss brought back": (
        "epoch-cache-contradicts-log",
        of_logs,
        *(
            [*BORN, appended(4, "b2", 1, 0, 0, 5), *cut, appended(6, "b2", 1, 1, 3, 5), opened(7, 5, {})]
            for cut in ([event(5, "b2", "truncated", {}, leader=1, leader_epoch=1, offset=3, log_end=5)], [])
        ),
    ),
    "a high watermark that lies at the log start": (
        "high-watermark-not-counted",
        of_logs,
        *(
            [*BORN, {**opened(4, 5, {}), "offset": start, "high_watermark": 0}, leads(5, "b2", 1, 1, 5, (2,)),
             appended(5.5, "b2", 2, 1, 5, 6), moved(6, "b2", 1, 5, 6, b2=6)]
            for start in (5, 0)
        ),
    ),
    "a record that was never committed": ("committed-metadata-truncated", of_controllers, restored(1), restored(2)),
    "an offset that was deleted, then loaded": (
        "commit-dropped-while-loading",
        of_offsets,
        [*COMMITS, DELETED, *HELD, LOG, loaded(4, 4)],
        [*COMMITS, *HELD, LOG, loaded(4, 4)],
    ),
    "an offset that was deleted": (
        "committed-offset-outdated",
        of_offsets,
        [*COMMITS, DELETED, *HELD, LOG, told(t1=7)],
        [*COMMITS, DELETED, *HELD, told(t1=7)],
    ),
    "an earlier offset that was committed anew after that": (
        "committed-offset-outdated",
        of_offsets,
        [*COMMITS, DELETED, storing(5.5, 5, ("t-0", 5)), *HELD, LOG, {**LOG, "offset": 4, "log_end": 5}, told(t0=5)],
        [*COMMITS, DELETED, *HELD, LOG, told(t0=5)],
    ),
    "commits that were answered in another order than that of the log": (
        "committed-offset-outdated",
        of_offsets,
        *([COMMITS[0], commit(2, 9, 1, 1, 3, 3), commit(3, 5, 1, 1, 2, 3), *HELD, told(t0=end)] for end in (9, 5)),
    ),
    "an offset of a group that was deleted, and another commit": (
        "offsets-forgotten",
        of_offsets,
        forgot(DELETED),
        forgot(),
    ),
    "an offset of a deleted topic, whose tombstone has to wait": (
        "offsets-forgotten",
        of_offsets,
        forgot(STORED, *deleted_topic(5, "b1", "b2")),
        forgot(STORED, *deleted_topic(5, "b1")),
    ),
    "an offset of a topic that is deleted before its commit is answered": (
        "offsets-forgotten",
        of_offsets,
        forgot(STORED, *deleted_topic(2.7, "b1", "b2")),
        forgot(*deleted_topic(2.2, "b1", "b2"), STORED),
    ),
    "an offset of a deleted topic, told once its tombstone is in the log": (
        "committed-offset-outdated",
        of_offsets,
        *([*COMMITS, STORED, *deleted_topic(4.5, "b1", "b2"), *tombstone, *HELD, LOG, told(t1=7)]
          for tombstone in ([storing(5, 4, ("t-0", None))], [])),
    ),
    "a generation of a group that was deleted": (
        "generation-number-reused",
        of_offsets,
        [*COMMITS, DELETED, {**of_group(6, "b2", "generation_begun", 5, 5, generation=1), "leader_epoch": 2}],
        [*COMMITS, {**of_group(6, "b2", "generation_begun", 5, 5, generation=1), "leader_epoch": 2}],
    ),
    "offsets that an unclean election gave up": (
        "offsets-forgotten",
        of_offsets,
        *(
            [*COMMITS, *recovered(unclean=unclean), of_group(9, "b3", "offsets_committed", 2, 2, member="n",
                                                             generation=-1, current=0, offsets={"t-1": 7},
                                                             held={"t-1": 7}) | {"leader_epoch": 1}]
            for unclean in (True, False)
        ),
    ),
    "records that an unclean election gave up": (
        "led-without-committed-records",
        of_logs,
        recovery(unclean=True),
        recovery(unclean=False),
    ),
    "records that a leader before that still commits": (
        "led-without-committed-records",
        of_logs,
        deposed(0),
        [*recovery(unclean=True), *(appended(5.2, node, 3, 1, 3, 5) for node in ("b3", "b2")),
         moved(5.3, "b3", 1, 3, 5, b3=5), changed(5.5, 1, 2, 3, (1,)), leads(5.6, "b1", 2, 3, 3, (1,))],
    ),
    "a leader that reads of its topic when that is deleted": (
        "led-without-committed-records",
        of_logs,
        *(
            [*BORN, {**opened(3.5, 0, {}), "node": "b1"}, *moved_on, event(5, "c1", "partition_deleted", offset=9),
             leads(6, "b1", 0, 0, 0, (1, 2, 3))]
            for moved_on in ([changed(4, 2, 1, 1, (2, 3))], [])
        ),
    ),
    "a read after an unclean election": (
        "latest-offset-outdated",
        of_reads,
        recovery(unclean=True),
        recovery(unclean=False),
    ),
    "a leader whose log was cut below its high watermark": (
        "high-watermark-fell",
        of_logs,
        [*BORN, opened(4, 3, {}), leads(5, "b2", 1, 1, 3, (2,)), moved(6, "b2", 1, 3, 3, b2=3)],
        [*BORN, opened(4, 5, {}), leads(5, "b2", 1, 1, 5, (2,)), moved(6, "b2", 1, 3, 3, b2=3)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_is_explained_is_no_broken_step(case: str) -> None:
    kind, look, innocent, guilty = CASES[case]
    assert kind in [str(step.kind) for step in look(guilty)]
    assert kind not in [str(step.kind) for step in look(innocent)]


def operation(index: int, kind: str, generation: int, offset: int, *given: int, **more: Any) -> dict[str, Any]:
    """An operation of member 7 that takes a second from its index on."""
    times = {"invoked_ns": index * 10**9, "completed_ns": (index + 1) * 10**9}
    row = {"index": index, "process": 7, "kind": kind, "phase": "main", "topic": "t", "partition": 0, **times}
    return row | {"outcome": "ok", "value": generation, "offset": offset, "offsets": list(given), "values": list(given),
                  **more}  # fmt: skip


def answered(time_s: float, offset: int, generation: int) -> Event:
    facts = {"group": "g", "member": "m", "generation": generation, "current": generation, "held": {}}
    return event(time_s, "b1", "offsets_committed", facts | {"offsets": {"t-0": offset}})


def told_a_member(*rows: dict[str, Any], answers: Sequence[Event]) -> list[str]:
    starts = [event(time_s, "b1", "offsets_told", {"group": "g", "offsets": {"t-0": 5}}) for time_s in (0.5, 2.5)]
    trace = small_evidence.trace(*starts, *answers)
    return [str(step.kind) for step in member_steps(trace, pa.Table.from_pylist(list(rows), SCHEMA), "t", 0)]


@pytest.mark.parametrize(("generation", "expected"), [(1, []), (2, ["committed-beyond-delivered"])])
def test_a_late_commit_is_of_what_polls_had_given_in_its_generation(generation: int, expected: list[str]) -> None:
    rows = [
        operation(0, "assign", 1, 5),
        operation(1, "poll", 1, 5, 5, 6, 7),
        operation(2, "assign", 2, 5),
        operation(3, "commit", generation, 8),
    ]
    assert told_a_member(*rows, answers=[answered(3.5, 8, generation)]) == expected


@pytest.mark.parametrize(("process", "expected"), [(8, []), (7, ["commit-failed-though-accepted"])])
def test_an_answer_to_another_client_proves_nothing_of_a_commit_that_failed(process: int, expected: list[str]) -> None:
    failed = operation(3, "commit", -1, 5, outcome="fail", error="connection")
    other = operation(3, "commit", -1, 5, process=process)
    rows = [operation(0, "assign", -1, 5), operation(2, "assign", -1, 5), failed, *([other] if process != 7 else [])]
    assert told_a_member(*rows, answers=[answered(3.5, 5, -1)]) == expected
