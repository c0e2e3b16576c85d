"""Steps of what is left undone, taken over or forgotten: a few events with the mistake, and the same done right."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from checkers.evidence import RunEvidence
from checkers.fault_model import node_failures
from checkers.tables import trace_rows
from results.explanation.group_steps import group_steps
from results.explanation.image_steps import image_steps
from results.explanation.metadata_steps import metadata_steps
from results.explanation.standing.groups import group_standing_steps
from results.explanation.standing.nodes import node_steps, restart_steps
from results.explanation.standing.partitions import standing_steps
from results.explanation.steps import broken_steps
from results.explanation.stories import unexcused
from results.explanation.story import Step
from tests.checkers import small_evidence
from tests.results.explanation.test_decision_steps import ALIVE, registered, unfenced
from tests.results.explanation.test_steps import changed, of_broker
from tests.results.explanation.test_stories import BORN, CONTROLLERS, Event, appended, event, follows, leads, proposed

_END_NS = 60 * small_evidence.S


def of_partition(*events: Event) -> list[Step]:
    return list(broken_steps(trace_rows(small_evidence.trace(*events))))


def of_end(*events: Event) -> list[Step]:
    return list(standing_steps(trace_rows(small_evidence.trace(*events)), _END_NS))


def of_nodes(*events: Event) -> list[Step]:
    return list(node_steps(small_evidence.trace(*events), _END_NS))


def of_quorum(*events: Event) -> list[Step]:
    return list(metadata_steps(small_evidence.trace(*events)))


def of_images(*events: Event) -> list[Step]:
    return list(image_steps(small_evidence.trace(*events)))


def of_groups(*events: Event) -> list[Step]:
    return list(group_steps(small_evidence.trace(*events), "t", 0))


def of_groups_end(*events: Event) -> list[Step]:
    return list(group_standing_steps(small_evidence.trace(*events), _END_NS))


def takes_over(watermark: int) -> list[Event]:
    known = event(3.1, "b2", "follower_high_watermark", offset=0, high_watermark=3, leader=1, leader_epoch=0)
    return [*BORN, known, {**leads(5, "b2", 1, 1, 5, (1, 2, 3)), "detail": f'{{"high_watermark": {watermark}}}'}]


def opened(watermark: int) -> list[Event]:
    return [*BORN, event(5, "b2", "log_recovered", offset=0, log_end=5, high_watermark=watermark)]


def in_flight(*after: Event) -> list[Event]:
    return [*ALIVE, *BORN, proposed(4, "b1", 0, (1, 2), 0, 5), *after]


def fetches(partition: str) -> list[Event]:
    created = changed(0.9, 1, 0, 0, (1, 2, 3), replicas=[1, 2, 3], reason="created")
    sessions = [
        event(4.5, "b1", "fetch_session", {"replica": replica, "session": "s", "partitions": [partition]})
        for replica in (2, 3)
    ]
    return [*ALIVE, *BORN[1:], created, *sessions]


def sent(time_s: float) -> Event:
    place = {"leader": 1, "leader_epoch": 0, "partition_epoch": 0, "members": [1, 2]}
    return event(time_s, "b1", "alter_partition_sent", **place)


def refused_batch(sequence: int) -> Event:
    detail = {"producer_id": 4, "sequence": sequence, "error": "out_of_order_sequence_number", "last": 8}
    return event(5, "b1", "append_refused", detail, leader=1, leader_epoch=0, partition_epoch=0, log_end=7)


def batch(offset: int, sequence: int) -> Event:
    detail = {"producer_id": 4, "sequence": sequence, "crc": sequence}
    return event(4, "b1", "appended", detail, leader=1, leader_epoch=0, offset=offset, log_end=offset + 1)


def refused_registration(*, over: bool) -> Event:
    detail = {"incarnation": "new", "contact_ms": 1000, "session_timeout_ms": 3000, "over": over}
    return of_broker(5, "registration_refused", 2, **detail)


def kept_fenced(*, shutting_down: bool) -> Event:
    return {**of_broker(6, "broker_stays_fenced", 2, metadata_offset=60, shutting_down=shutting_down),
            "broker_epoch": 50}  # fmt: skip


NOT_CONTROLLER = event(4.5, "b1", "isr_rejected", {"error": "not_controller", "rolled_back": False}, leader=1,
                       leader_epoch=0, partition_epoch=0, members=[1, 2])  # fmt: skip
LEFT = [*ALIVE, *BORN, of_broker(4, "broker_shutting_down", 2), registered(5, 2, 50)]
IN_EPOCH = {"leader": 1, "leader_epoch": 0, "partition_epoch": 0}
DAMAGED = event(5, "b2", "records_refused", offset=-1, log_end=5, leader=1, leader_epoch=0)


def recovered(leader: int) -> Event:
    told = {str(replica): [0, 5 if replica < 3 else 3] for replica in (1, 2, 3)}
    return changed(6, leader, 1, 9, (leader,), reason="unclean_recovery", unclean=True, told=told)


SHORT = [row for row in BORN if (row["node"], row["kind"]) != ("b3", "appended")] + [appended(2, "b3", 1, 0, 0, 3)]


def vote(kind: str, candidate: list[int], *, voted: int = -1) -> list[Event]:
    detail = {"pre_vote": False, "candidate": candidate, "own": [2, 7], "voted": voted, "role": "unattached",
              "leader_answered": False}  # fmt: skip
    return [*CONTROLLERS, event(5, "c1", kind, detail, leader=-1, leader_epoch=3, broker=102)]


def comes_back(epoch: int, voted: int) -> list[Event]:
    detail = {"voted": voted, "epochs": []}
    cast = event(5, "c2", "quorum_voted", leader_epoch=3, broker=103)
    return [*CONTROLLERS, cast, event(6, "c2", "quorum_recovered", detail, leader_epoch=epoch, offset=0, log_end=4)]


def cuts(to: int) -> list[Event]:
    cut = event(4.1, "c1", "metadata_truncated", {"answer": [1, 4]}, leader_epoch=2, offset=to, log_end=6)
    return [*CONTROLLERS[:8], cut]


def loaded(node: str, elr: Sequence[int], end: int = 9) -> list[Event]:
    fields = {"leader": 1, "leader_epoch": 0, "partition_epoch": 1, "isr": [1, 2], "elr": list(elr), "min_isr": 2,
              "replicas": [3, 2, 1]}  # fmt: skip
    detail = {"partitions": {"t-0": fields}, "brokers": {}, "next_producer_id": 0}
    change = {**changed(4, 1, 0, 1, (1, 2), elr=[3], reason="fenced"), "offset": 9}
    return [change, event(5, node, "metadata_loaded", detail, topic="", partition=-1, log_end=end)]


def commit(time_s: float, place: str, held: dict[str, int], member: str = "m", node: str = "b1") -> Event:
    detail = {"group": "g", "member": member, "generation": 3, "current": 3, "offsets": {place: 5}, "held": held}
    epoch = 1 if node == "b1" else 0
    return of_log(time_s, node, "offsets_committed", detail, epoch)


def of_log(time_s: float, node: str, kind: str, detail: dict[str, Any], epoch: int = 1) -> Event:
    where = {
        "topic": "__consumer_offsets",
        "partition": 0,
        "leader": 1,
        "leader_epoch": epoch,
        "partition_epoch": epoch,
    }
    return event(time_s, node, kind, detail, **where, offset=7, log_end=8, high_watermark=8)


def group(time_s: float, state: str, *, storing: bool, **members: str) -> Event:
    detail = {"group": "g", "state": state, "generation": 3, "storing": storing, "members": members}
    return of_log(time_s, "b1", "group_changed", detail)


def storing(error: str) -> Event:
    return of_log(5, "b1", "group_storing", {"group": "g", "generation": 4, "error": error})


COORDINATOR = of_log(1, "b1", "became_leader", {})
WAITS = [COORDINATOR, group(5, "PreparingRebalance", storing=True, m="join"), storing("not_enough_replicas")]
LED = [
    event(1, "c1", "quorum_leader", leader=101, leader_epoch=1),
    event(2, "c1", "metadata_appended", leader_epoch=1, offset=0, log_end=9),
    event(3, "c1", "metadata_committed", {"positions": {}}, leader_epoch=1, offset=0, high_watermark=9),
]


def started(broker: int) -> Event:
    return event(4, f"b{broker}", "node_started", topic="", partition=-1)


def registers(broker: int) -> Event:
    return event(4.5, f"b{broker}", "registered", topic="", partition=-1, broker_epoch=50)


def applied(broker: int, end: int) -> Event:
    return event(5, f"b{broker}", "metadata_applied", topic="", partition=-1, offset=0, log_end=end)


def moved(first: int, asked: int = 3) -> Event:
    place = {"leader": 1, "leader_epoch": 0, "offset": asked, "log_end": 5, "high_watermark": 5}
    return event(5, "b1", "consumer_moved", {"first": first, "last_epoch": 0}, **place)


def told_assignment(*before: Event) -> list[Event]:
    told = {"group": "g", "generation": 3, "members": {"m": ""}}
    return [*before, of_log(5, "b1", "assignment_told", told)]


ASSIGNED = of_log(4, "b1", "group_assigned", {"group": "g", "generation": 3, "leader": "m", "members": {"m": ""}})


def shrinks(log_end: int) -> list[Event]:
    detail = {"reason": "shrink", "positions": {}, "lag_ms": {"3": 4000}, "lag_max_ms": 1000}
    place = {"leader": 1, "leader_epoch": 0, "partition_epoch": 0, "members": [1, 2], "log_end": log_end}
    return [*BORN, event(5, "b1", "isr_proposed", detail, offset=0, high_watermark=5, **place)]


Case = tuple[Any, Iterable[Event], str, Iterable[Event]]
CASES: dict[str, list[Case]] = {
    "high-watermark-set-at-takeover": [
        (of_partition, takes_over(5), "set its high watermark to 5, the end of its log, when it became leader in epoch "
         "1: it had known 3", takes_over(3)),
    ],
    "checkpoint-above-high-watermark": [
        (of_partition, opened(6), "no high watermark had ever been above 5", opened(5)),
    ],
    "proposal-never-decided": [
        (of_end, in_flight(), "b1 never sent it to one", in_flight(changed(5, 1, 0, 1, (1, 2)), event(
            5.1, "b1", "isr_committed", leader=1, leader_epoch=0, partition_epoch=1, members=[1, 2]))),
        (of_end, in_flight(sent(4), sent(5)), "sent it 2 times (AlterPartition), last at 5.000000 s, and has not",
         in_flight(sent(4), leads(6, "b1", 1, 1, 5, (1, 2)), changed(6, 1, 1, 1, (1, 2), elr=[3]))),
        (of_end, in_flight(sent(4), NOT_CONTROLLER), "since it was answered NOT_CONTROLLER at 4.500000 s: it gave",
         in_flight(sent(4), NOT_CONTROLLER, changed(5, 1, 0, 1, (1, 2)), event(
             5.1, "b1", "isr_committed", leader=1, leader_epoch=0, partition_epoch=2, members=[1, 2]))),
    ],
    "follower-stands-still": [
        (of_end, fetches("t-1"), "do not ask for this partition since 4.500000 s, only for t-1: so b1 does not know",
         fetches("t-0")),
        (of_end, fetches("t-1"), "only for t-1", [*fetches("t-1"), *(
            event(4.6, "b1", "fetch_accepted", {"replica": replica, "requested": 0, "last_epoch": -1}, leader=1,
                  leader_epoch=0, offset=5, log_end=5) for replica in (2, 3))]),
    ],
    "high-watermark-stands-still": [
        (of_end, [*ALIVE, *BORN, *(appended(4, node, 1, 0, 5, 6) for node in ("b1", "b2", "b3"))],
         "leaves its high watermark at 5", [*ALIVE, *BORN]),
    ],
    "batch-refused-wrongly": [
        (of_partition, [*BORN, batch(5, 7), batch(6, 8), refused_batch(7)], "holds that batch at 5, one of the",
         [*BORN, batch(5, 7), batch(6, 8), refused_batch(6)]),
    ],
    "registration-refused-after-session": [
        (of_partition, [*BORN, refused_registration(over=True)], "longer ago than the session timeout of 3000 ms",
         [*BORN, refused_registration(over=False)]),
    ],
    "broker-kept-fenced": [
        (of_partition, [*LEFT, kept_fenced(shutting_down=True)], "its earlier one, with broker epoch -1, shut down",
         [*LEFT, of_broker(5.5, "broker_shutting_down", 2), kept_fenced(shutting_down=True)]),
    ],
    "damaged-records-answered": [
        (of_partition, [*BORN, appended(4, "b1", 1, 0, 5, 7), DAMAGED], "bytes that are no sound batch",
         [*BORN, DAMAGED]),
    ],
    "answer-skips-records": [(of_partition, [*BORN, moved(4)], "with records from 4 on", [*BORN, moved(7, asked=6)])],
    "offset-refused-wrongly": [(of_partition, [*BORN, moved(-1)], "as out of range", [*BORN, moved(-1, asked=6)])],
    "fenced-broker-kept": [
        (of_partition, [*ALIVE, *BORN, of_broker(4, "broker_shutting_down", 2), applied(1, 9)], "let shut down b2",
         [*ALIVE, *BORN, of_broker(4, "broker_shutting_down", 2), changed(4, 1, 0, 1, (1, 3)), applied(1, 9)]),
    ],
    "isr-shrink-of-caught-up-member": [(of_partition, shrinks(5), "which it had counted at 5, the end", shrinks(6))],
    "assignment-not-of-generation": [
        (of_groups, told_assignment(), "whose leader had assigned nothing yet", told_assignment(ASSIGNED)),
    ],
    "recovered-shorter-log": [
        (of_partition, [*ALIVE, *SHORT, changed(5, -1, 1, 8, (), elr=[]), recovered(3)], "b1 5 of epoch 0, b2 5",
         []),
    ],
    "vote-refused-wrongly": [
        (of_quorum, vote("quorum_vote_refused", [2, 7]), "had neither voted for another nor a leader",
         vote("quorum_vote_refused", [1, 9])),
        (of_quorum, vote("quorum_vote_refused", [2, 7]), "", vote("quorum_vote_refused", [2, 7], voted=103)),
    ],
    "truncated-to-wrong-offset": [(of_quorum, cuts(3), "3, more than diverges: its leader", cuts(4))],
    "vote-forgotten": [
        (of_quorum, comes_back(2, -1), "had voted for c3 in epoch 3", comes_back(3, 103)),
    ],
    "loaded-metadata-differs": [
        (of_images, loaded("b2", []), "b2 loaded a snapshot of the metadata up to 9, and has in it t-0 with elr {}, "
         "and decided is {b3}", loaded("b2", [3])),
        (of_images, loaded("c2", []), "c2 took charge with", loaded("c2", [], end=8)),
    ],
    "offsets-forgotten": [
        (of_groups, [commit(1, "t-0", {"t-0": 5}), commit(2, "t-1", {"t-1": 5})], "forgot the committed offset 5 of "
         "t-0 with the commit of 5 for t-1 by m",
         [commit(1, "t-0", {"t-0": 5}), commit(2, "t-1", {"t-0": 5, "t-1": 5})]),
        (of_groups, [commit(1, "t-0", {"t-0": 5}), commit(2, "t-1", {"t-1": 5})], "",
         [commit(1, "t-0", {"t-0": 5}), commit(2, "t-1", {"t-1": 5}, node="b2")]),
    ],
    "commit-of-no-member": [
        (of_groups, [group(1, "Stable", storing=False, m=""), commit(2, "t-0", {}, member="n")], "by n, which is no",
         [group(1, "Stable", storing=False, m=""), commit(2, "t-0", {}, member="m")]),
    ],
    "group-write-never-ended": [
        (of_groups_end, WAITS, "its append was refused with NOT_ENOUGH_REPLICAS at 5.000000 s",
         [*WAITS, group(7, "Stable", storing=False, m="")]),
        (of_groups_end,
         [*WAITS[:2], storing("none"), group(30, "PreparingRebalance", storing=True, m="join", n="join")],
         "and is committed: its high watermark is 8", [*WAITS, follows(6, "b2", 2, 2, 2, 8), {
             **of_log(7, "b1", "became_follower", {}, 2), "leader": 2}]),
    ],
    "group-stands-still": [
        (of_groups_end, [COORDINATOR, group(5, "PreparingRebalance", storing=False, m="join")], "nothing is being",
         [COORDINATOR, group(5, "PreparingRebalance", storing=False, m="join", n="")]),
    ],
    "broker-never-registered": [
        (of_nodes, [*LED, started(2)], "b2 started at 4.000000 s and has not registered since: no controller has",
         [*LED, started(2), registers(2), applied(2, 9)]),
    ],
    "broker-never-unfenced": [
        (of_nodes, [*LED, started(2), registers(2), registered(4.5, 2, 50)], "no heartbeat of it has reached a",
         [*LED, started(2), registers(2), registered(4.5, 2, 50), unfenced(5, 2), applied(2, 9)]),
        (of_nodes, [*LED, started(2), registers(2), registered(4.5, 2, 50), kept_fenced(shutting_down=True)],
         "and it counts as shutting down", [*LED]),
    ],
    "metadata-not-read": [
        (of_nodes, [*LED, started(2), registers(2), applied(2, 7)], "up to 7 only, and the controllers have committed",
         [*LED, started(2), registers(2), applied(2, 9)]),
    ],
    "no-controller-elected": [
        (of_nodes, [*LED, event(4, "c1", "quorum_resigned", leader_epoch=1)], "no controller has led since 4.0", LED),
    ],
    "metadata-commit-stands-still": [
        (of_nodes, LED[:2], "has committed the metadata up to 0 only, and its log ends at 9", LED),
    ],
}  # fmt: skip


@pytest.mark.parametrize("faults", ["none", "a process ended", "a disk lost data"])
def test_only_a_fault_that_takes_data_excuses_a_log_that_comes_back_shorter(faults: str) -> None:
    shorter = event(5, "b2", "log_recovered", {"cut_bytes": 70, "cut_reason": "a batch is torn"}, offset=0, log_end=3,
                    high_watermark=3)  # fmt: skip
    evidence = {"none": [], "a process ended": [killed(0)], "a disk lost data": [killed(10)]}[faults]
    faults = small_evidence.faults(*evidence)
    found = unexcused(of_partition(*BORN, shorter), RunEvidence(faults=faults), node_failures(faults))
    (step,) = found
    assert str(step.kind) == ("log-came-back-shorter" if evidence == [killed(10)] else "log-lost-without-fault")
    assert "came back ending at 3 (it cut 70 bytes: a batch is torn)" in step.text
    assert step.is_loss is ("although no fault had taken anything from its disk" not in step.text)


def killed(lost_bytes: int) -> dict[str, Any]:
    measured = {"nodes": {"b2": {"killed": 1, "lost_bytes": lost_bytes}}}
    return small_evidence.fault("kill", ["b2"], 4, 4.5, measured)


@pytest.mark.parametrize("kind", CASES)
def test_a_step_is_told_of_the_events_that_show_it_and_of_no_others(kind: str) -> None:
    for look, with_it, words, without in CASES[kind]:
        found = [step for step in look(*with_it) if str(step.kind) == kind]
        assert found, [step.text for step in look(*with_it)]
        assert words in found[0].text
        assert [step.text for step in look(*without) if str(step.kind) == kind] == []


CLAIMED = ["b2 presents broker epoch 4", "b2 opened its log of t-0"]
CLOSED = event(2.9, "b2", "log_closed", {"synced": True}, offset=3, log_end=3)
UNSYNCED = event(2.9, "b2", "log_closed", {"synced": False}, offset=0, log_end=3)
OPENED_AGAIN = event(2.95, "b2", "log_recovered", {"clean": True}, offset=0, log_end=3)


@pytest.mark.parametrize(
    ("killed", "stopping", "expected"),
    [
        (1, [], CLAIMED),
        (1, [UNSYNCED], CLAIMED),
        (1, [CLOSED, OPENED_AGAIN], CLAIMED),
        (1, [CLOSED], []),
        (0, [], []),
    ],
    ids=["killed", "not synced", "opened since", "killed when it had closed its log", "not killed"],
)
def test_a_clean_shutdown_that_was_none_is_told(killed: int, stopping: list[Event], expected: list[str]) -> None:
    started = [{**event(time_s, "b2", "node_started"), "broker_epoch": epoch} for time_s, epoch in ((1, -1), (5, 4))]
    opened = [event(time_s, "b2", "log_recovered", {"clean": True}, offset=0, log_end=3) for time_s in (1.1, 5.1)]
    faults = small_evidence.faults(small_evidence.fault("kill", ["b2"], 3, 4, {"nodes": {"b2": {"killed": killed}}}))
    events = small_evidence.trace(started[0], opened[0], *stopping, started[1], opened[1])
    steps = restart_steps(events, node_failures(faults), "t", 0)
    assert [step.text[: len(text)] for step, text in zip(steps, expected, strict=True)] == expected


@pytest.mark.parametrize(("presented", "told"), [(7, []), (4, ["b2 presents broker epoch 4"])])
def test_what_an_earlier_process_left_open_does_not_concern_one_that_stops_before_it_opens_a_log(
    presented: int, told: list[str]
) -> None:
    lives = ((1, -1), (5, -1), (7, presented))
    started = [{**event(time_s, "b2", "node_started"), "broker_epoch": epoch} for time_s, epoch in lives]
    opened = event(1.1, "b2", "log_recovered", {"clean": True}, offset=0, log_end=3)
    stopped = {**event(5.5, "b2", "clean_shutdown"), "broker_epoch": 7}
    kills = [small_evidence.fault("kill", ["b2"], at, at + 0.5, {"nodes": {"b2": {"killed": 1}}}) for at in (3, 6)]
    events = small_evidence.trace(started[0], opened, started[1], stopped, started[2])
    steps = list(restart_steps(events, node_failures(small_evidence.faults(*kills))))
    assert [step.text[:26] for step in steps] == told
