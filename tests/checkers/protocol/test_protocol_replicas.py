"""Promises about replicas while the run goes on: their logs, high watermarks and proposals, and the decisions they
follow."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from checkers.evidence import CheckSettings, EvidenceGap, EvidencePart, RunEvidence
from checkers.protocol.checker import check
from checkers.verdict import Validity, Verdict
from tests.checkers import small_evidence
from tests.checkers.small_evidence import S, event, fault
from tests.checkers.small_histories import append

Event = dict[str, Any]


def decided(
    time_s: float,
    partition_epoch: int,
    leader: int,
    epoch: int,
    isr: Sequence[int],
    replicas: Sequence[int] = (1, 2, 3),
    reason: str = "elected",
    **detail: Any,
) -> Event:
    facts = {"elr": [], "replicas": list(replicas), "adding": [], "min_isr": 2, "reason": reason} | detail
    decision = {"leader": leader, "leader_epoch": epoch, "partition_epoch": partition_epoch, "members": list(isr)}
    return event(time_s, "c1", "partition_changed", facts, offset=100 + partition_epoch, **decision)


def opened(time_s: float, node: str, end: int = 0) -> Event:
    return event(time_s, node, "log_recovered", offset=0, log_end=end)


def appended(time_s: float, node: str, offset: int, end: int, epoch: int = 1, crc: int = 7) -> Event:
    return event(time_s, node, "appended", {"crc": crc}, offset=offset, log_end=end, leader_epoch=epoch)


def synced(*events: Event) -> list[Event]:
    return [event | {"detail": json.dumps(json.loads(str(event["detail"])) | {"synced": True})} for event in events]


def leads(time_s: float, node: str, epoch: int, start: int, partition_epoch: int = -1) -> Event:
    fields = {"leader": int(node[1:]), "leader_epoch": epoch, "partition_epoch": partition_epoch}
    return event(time_s, node, "became_leader", offset=start, log_end=start, **fields)


def follows(time_s: float, node: str, leader: int, epoch: int, partition_epoch: int) -> Event:
    fields = {"leader": leader, "leader_epoch": epoch, "partition_epoch": partition_epoch}
    return event(time_s, node, "became_follower", log_end=0, **fields)


def follower_high_watermark(time_s: float, node: str, to: int) -> Event:
    return event(time_s, node, "follower_high_watermark", offset=0, high_watermark=to)


def proposed(time_s: float, node: str, positions: dict[str, int], high_watermark: int, start: int) -> Event:
    detail = {"reason": "expand", "positions": positions}
    return event(time_s, node, "isr_proposed", detail, offset=start, high_watermark=high_watermark, members=[1, 2, 3])


def log_start(time_s: float, node: str, to: int, reason: str, leader: int = 1) -> Event:
    return event(time_s, node, "log_start", {"before": 0, "reason": reason}, offset=to, leader=leader)


def started(time_s: float, node: str, previous_epoch: int = -1) -> Event:
    return event(time_s, node, "node_started", broker_epoch=previous_epoch)


def closed(time_s: float, node: str, epoch: int, end: int, on_disk: int) -> Event:
    detail = {"synced": on_disk == end}
    return event(time_s, node, "log_closed", detail, broker_epoch=epoch, offset=on_disk, log_end=end)


def registered(time_s: float, broker: int, clean: bool) -> Event:
    return event(time_s, "c1", "broker_registered", {"clean": clean}, broker=broker, broker_epoch=9)


NODES = ("b1", "b2", "b3")
BORN = [
    decided(1, 0, 1, 1, (1, 2, 3), reason="created"),
    *(opened(1, node) for node in NODES),
    leads(1, "b1", 1, 0, partition_epoch=0),
    *(follows(1, node, 1, 1, 0) for node in NODES[1:]),
]
COPIED = [*BORN, *(appended(2, node, 0, 5) for node in NODES)]
MOVED = event(3, "b1", "high_watermark", offset=0, high_watermark=5, members=[1, 2, 3], leader_epoch=1)
ADDED_LEADS = [
    *COPIED,
    decided(4, 1, -1, 2, (), reason="fenced", elr=[1, 2, 3]),
    decided(5, 2, 4, 3, (4,), (1, 2, 3, 4), "reassignment", adding=[4], unclean=True),
]
ADDING = [*COPIED, decided(4, 1, 1, 1, (1, 2, 3), (1, 2, 3, 4), "reassignment", adding=[4], removing=[3])]
RESTARTED = [*COPIED, started(4, "b2"), decided(4.5, 1, 1, 1, (1, 3), reason="registered")]
RETAINED = [*COPIED, MOVED, log_start(4, "b1", 4, "retention_bytes")]


def verdict(events: Sequence[Event], **evidence: Any) -> Verdict:
    settings = CheckSettings(retention_bytes=100)
    return check(RunEvidence(trace=small_evidence.trace(*events), **{"settings": settings} | evidence))


def kinds(events: Sequence[Event], **evidence: Any) -> list[str]:
    return sorted({finding.kind for finding in verdict(events, **evidence).findings})


def told_start(time_s: float, start: int, *, high_watermark: int) -> Event:
    """b3, whose log starts at 0, is told where that of its leader starts."""
    detail = {"leader_high_watermark": 5}
    place = {"offset": start, "log_end": 5, "high_watermark": high_watermark, "leader": 1, "leader_epoch": 1}
    return small_evidence.event(time_s, "b3", "leader_log_start", detail, **place)


KEPT = {
    "replicas append the same batches": COPIED,
    "a batch of a later epoch replaces another": [
        *COPIED,
        event(3, "b3", "truncated", offset=3, log_end=5),
        *(appended(4, node, 5, 6, epoch=2, crc=9) for node in ("b1", "b2")),
        appended(4, "b3", 3, 5),
        appended(5, "b3", 5, 6, epoch=2, crc=9),
    ][:6],
    "high watermarks within the logs": [*COPIED, MOVED, follower_high_watermark(4, "b2", 5)],
    "a follower joins at the high watermark and the epoch's start": [*COPIED, proposed(3, "b1", {"3": 5}, 5, 5)],
    "a follower takes over its leader's log start": [*RETAINED, log_start(5, "b2", 4, "leader")],
    "a node dies before it has written its log start down": [*RETAINED, opened(6, "b1", 5)],
    "a broker comes back whole after a clean shutdown": [*RESTARTED, registered(5, 2, True), opened(6, "b2", 5)],
    "a follower is killed while it may truncate": [
        *COPIED,
        follows(3, "b2", 3, 2, -1),
        started(4, "b2"),
        decided(4.5, 1, 1, 1, (1, 3), reason="registered"),
        registered(5, 2, False),
        opened(6, "b2", 3),
    ],
    "a removed replica begins anew": [
        *COPIED,
        decided(3, 1, 1, 2, (1, 3), (1, 3), "reassignment"),
        decided(4, 2, 1, 2, (1, 3), (1, 3, 2), "reassignment", adding=[2]),
        opened(5, "b2", 0),
    ],
    "a broker presents as clean the end of a life that synced its log": [
        *COPIED,
        closed(3, "b2", 8, 5, on_disk=5),
        started(4, "b2", 8),
    ],
    "a broker that could not sync its log presents no clean end": [
        *COPIED,
        closed(3, "b2", 8, 5, on_disk=3),
        started(4, "b2"),
    ],
    "a broker presents the end of a life after that which could not sync its log": [
        *COPIED,
        closed(3, "b2", 8, 5, on_disk=3),
        started(4, "b2"),
        closed(5, "b2", 9, 5, on_disk=5),
        started(6, "b2", 9),
    ],
    "a sync of a log fails that has no record which is not on disk": [
        *BORN,
        event(3, "b2", "log_closed", {"synced": False}, broker_epoch=8, offset=0, log_end=0),
        started(4, "b2", 8),
    ],
    "a reassignment grows, catches up and shrinks": [
        *ADDING,
        proposed(4.5, "b1", {"4": 5}, 5, 0) | {"members": [1, 2, 3, 4], "leader_epoch": 1, "partition_epoch": 1},
        decided(5, 2, 1, 2, (1, 2, 4), (1, 2, 4), "alter_partition"),
    ],
    "a reassignment is cancelled before its replica has joined": [
        *ADDING,
        decided(5, 2, 1, 2, (1, 2, 3), (1, 2, 3), "reassignment_cancelled"),
    ],
    "an earlier decision is traced late": [
        *COPIED,
        decided(3, 2, 2, 2, (2, 3)),
        decided(4, 1, 1, 1, (1, 2)),
        leads(5, "b2", 2, 5, partition_epoch=2),
    ],
    "a broker acts on a decision that is traced later": [
        *COPIED,
        follows(3, "b3", 2, 2, 1),
        decided(4, 1, 2, 2, (2, 3)),
    ],
}

BROKEN = {
    "appended-batches-differ": [*BORN, appended(2, "b1", 0, 5), appended(3, "b2", 0, 5, crc=8)],
    "high-watermark-above-log-end": [*COPIED, follower_high_watermark(3, "b2", 6)],
    "high-watermark-below-log-start": [*RETAINED, follower_high_watermark(5, "b1", 2)],
    "isr-proposal-behind": [*COPIED, proposed(3, "b1", {"3": 4}, 5, 0)],
    "log-start-ahead": [*RETAINED, log_start(4.5, "b1", 3, "leader"), log_start(5, "b3", 4, "leader", leader=2)],
    "log-start-not-followed": [*RETAINED, told_start(5, 3, high_watermark=3)],
    "not-on-disk": [
        *COPIED,
        event(5, "b2", "log_closed", {"synced": True, "at_risk": ["t-0/0.log"]}, broker_epoch=8, offset=5, log_end=5),
    ],
    "log-start-fell": [*RETAINED, appended(5, "b1", 5, 6), opened(6, "b1", 6)],
    "log-shortened": [*RESTARTED, registered(5, 2, False), opened(6, "b2", 4)],
    "clean-shutdown-lost-records": [*RESTARTED, registered(5, 2, True), opened(6, "b2", 4)],
    "clean-claim-unsynced": [*COPIED, closed(3, "b2", 8, 5, on_disk=3), started(4, "b2", 8)],
    "partition-epoch-stood": [*COPIED, decided(3, 0, 1, 1, (1, 2)) | {"offset": 200}],
    "leader-epoch-stood": [*COPIED, decided(3, 1, 2, 1, (2, 3))],
    "reassignment-joins-isr": [*COPIED, decided(4, 1, 1, 1, (1, 2, 3, 4), (1, 2, 3, 4), "reassignment", adding=[4])],
    "reassignment-completed-early": [*ADDING, decided(5, 2, 1, 2, (1, 2), (1, 2, 4), "fenced")],
    "reassignment-shrinks-isr": [
        *COPIED,
        decided(4, 1, 1, 1, (1, 2), (1, 2, 3, 4), "reassignment", adding=[4], removing=[2, 3]),
        decided(5, 2, 1, 2, (1,), (1, 4), "fenced"),
    ],
    "reassignment-drops-last-known": [
        *ADDING,
        decided(5, 2, -1, 2, (), (1, 2, 3, 4), "registered", adding=[4], removing=[3], last_known_elr=[1, 4]),
        decided(6, 3, -1, 3, (), (1, 2, 3), "reassignment_cancelled", last_known_elr=[1]),
    ],
    "acted-on-undecided": [*COPIED, decided(3, 1, 1, 2, (1, 2)), follows(4, "b3", 2, 2, 1)],
}

ACCOMPANIED = {"reassignment-shrinks-isr": {"reassignment-completed-early"}}
"""Other findings that the same events are."""


@pytest.mark.parametrize("events", KEPT.values(), ids=KEPT)
def test_every_promise_holds_in_a_correct_trace(events: list[Event]) -> None:
    assert kinds(events) == []


@pytest.mark.parametrize("kind", BROKEN)
def test_each_broken_promise_is_found(kind: str) -> None:
    assert verdict(BROKEN[kind]).validity is Validity.INVALID
    assert set(kinds(BROKEN[kind])) == {kind, *ACCOMPANIED.get(kind, ())}


def test_a_broker_that_goes_by_a_partition_epoch_of_nobody_is_found_once_the_run_has_ended() -> None:
    """Of a run that was killed the last decisions may be missing."""
    undecided = [*COPIED, follows(4, "b3", 1, 1, 1)]
    assert kinds(undecided, recovery=small_evidence.WHOLE) == ["acted-on-undecided"]
    assert kinds(undecided) == []


def test_replicas_are_not_exchanged_in_one_change() -> None:
    assert kinds([*COPIED, decided(4, 1, 1, 2, (1, 2), (1, 2, 4), "reassignment")]) == ["reassignment-completed-early"]


def test_a_batch_behind_another_record_is_another_batch() -> None:
    behind = [*BORN, appended(2, "b1", 0, 1, 1), appended(2, "b2", 0, 1, 2)]
    assert kinds([*behind, appended(3, "b1", 1, 2, 3), appended(3, "b2", 1, 2, 3)]) == ["appended-batches-differ"]


def test_a_batch_behind_a_record_that_a_leader_deleted_is_compared_without_it() -> None:
    behind = [*BORN, appended(2, "b1", 0, 1, 1), appended(2, "b2", 0, 1, 2), MOVED]
    after = [appended(3, "b1", 1, 2, 3), log_start(4, "b1", 1, "delete_records"), appended(5, "b2", 1, 2, 3)]
    assert "appended-batches-differ" in kinds([*behind, *after[:1], after[2]])
    assert "appended-batches-differ" not in kinds([*behind, *after])


def test_a_follower_is_held_to_its_leader_epoch_start_as_well() -> None:
    assert kinds([*COPIED, proposed(3, "b1", {"3": 4}, 0, 5)]) == ["isr-proposal-behind"]
    assert kinds([*COPIED, proposed(3, "b1", {"3": -1}, 0, 0)]) == ["isr-proposal-behind"]


def test_a_fault_that_goes_on_excuses_no_log_that_was_opened_after_its_last_loss() -> None:
    measured = {"down_ns": 0.5 * S, "lost_bytes": 10}
    again = [*COPIED, started(4, "b2"), opened(5, "b2", 3)]

    def lossy(**numbers: float) -> Any:
        return small_evidence.faults(fault("power-loss", ["b2"], 0.5, 1.5, {"nodes": {"b2": measured | numbers}}))

    assert kinds(again, faults=lossy()) == []
    assert kinds(again, faults=lossy(loss_ns=0.5 * S)) == ["log-shortened"]


SYNCED = [*RESTARTED, closed(4.2, "b2", 8, 5, on_disk=4), registered(5, 2, False), opened(6, "b2", 3)]


def test_no_power_loss_takes_what_was_synced() -> None:
    lost = small_evidence.faults(fault("power-loss", ["b2"], 3, 3.5, {"lost_bytes": 10, "unsynced_bytes": 10}))
    lying = small_evidence.faults(fault("fsync-lies", ["b2"], 0.5, 3.5, {"lost_bytes": 10}))
    wiped = small_evidence.faults(fault("wipe", ["b2"], 3, 3.5, {"lost_bytes": 10}))
    cut = event(4.3, "b2", "truncated", offset=3, log_end=5, high_watermark=0)
    again = appended(4.4, "b2", 3, 4)
    assert kinds(SYNCED, faults=lost) == ["synced-records-lost"]
    assert kinds([*SYNCED[:-1], opened(6, "b2", 4)], faults=lost) == []
    assert kinds([*SYNCED[:-2], cut, again, *SYNCED[-2:]], faults=lost) == []
    assert kinds([*SYNCED[:-2], cut, *synced(again), *SYNCED[-2:]], faults=lost) == ["synced-records-lost"]
    assert kinds(SYNCED, faults=wiped) == kinds(SYNCED, faults=lying) == []


@pytest.mark.parametrize("name", ["fsync-lies", "wipe"])
def test_a_disk_that_lies_or_is_emptied_later_excuses_nothing_before(name: str) -> None:
    later = fault(name, ["b2"], 20, 21, {})
    lost = fault("power-loss", ["b2"], 3, 3.5, {"lost_bytes": 10, "unsynced_bytes": 10})
    assert kinds(SYNCED, faults=small_evidence.faults(lost, later)) == ["synced-records-lost"]
    assert kinds(BROKEN["log-shortened"], faults=small_evidence.faults(later)) == ["log-shortened"]


def test_a_node_may_die_while_it_cuts_off_what_was_synced() -> None:
    lost = small_evidence.faults(fault("power-loss", ["b2"], 3, 3.5, {"lost_bytes": 10, "unsynced_bytes": 10}))
    assert kinds([*SYNCED[:-2], follows(4.5, "b2", 3, 2, 2), *SYNCED[-2:]], faults=lost) == []


def test_a_fault_that_loses_data_explains_a_shorter_log_and_no_clean_shutdown() -> None:
    lossy = small_evidence.faults(fault("power-loss", ["b2"], 3, 3.5, {"lost_bytes": 10}))
    lying = small_evidence.faults(fault("fsync-lies", ["b2"], 0.5, 3.5, {"lost_bytes": 10}))
    assert kinds(BROKEN["log-shortened"], faults=lossy) == []
    assert kinds(BROKEN["clean-shutdown-lost-records"], faults=lossy) == ["clean-shutdown-lost-records"]
    assert kinds(BROKEN["clean-shutdown-lost-records"], faults=lying) == []


@pytest.mark.parametrize(("deleted", "found"), [(3, ["log-shortened"]), (4, ["log-shortened"]), (5, [])])
def test_after_a_deletion_only_a_log_that_had_ended_no_higher_may_come_back_shorter(
    deleted: int, found: list[str]
) -> None:
    restarted = [started(4, "b2"), decided(4.5, 1, 1, 1, (1, 3), reason="registered"), registered(5, 2, False)]
    back = event(6, "b2", "log_recovered", offset=0, log_end=4)
    events = [*COPIED, MOVED, log_start(3.5, "b1", deleted, "retention_bytes"), *restarted, back]
    assert kinds(events) == found


@pytest.mark.parametrize(("deleted", "found"), [(4, ["log-end-not-on-disk"]), (5, [])])
def test_after_a_deletion_a_log_that_had_ended_above_it_reaches_as_far_on_its_disk(
    deleted: int, found: list[str]
) -> None:
    records, ends = small_evidence.logs(b1=[(1, value) for value in range(5)], b2=[(1, value) for value in range(4)])
    recorded = {"replicas": records, "replica_ends": ends, "history": small_evidence.history([append(0, 1, 5, 0)])}
    assert kinds([*COPIED, MOVED, log_start(3.5, "b1", deleted, "retention_bytes")], **recorded) == found


def test_a_clean_shutdown_covers_no_log_that_an_unclean_start_gave_up() -> None:
    lossy = small_evidence.faults(fault("wipe-disk", ["b2"], 3, 3.5, {"lost_bytes": 10}))
    given_up = [*RESTARTED, registered(5, 2, False)]
    stopped = [started(6, "b2"), registered(7, 2, True)]
    assert kinds([*given_up, *stopped, opened(8, "b2", 0)], faults=lossy) == []
    reopened = [*given_up, opened(5.5, "b2", 4), *stopped, opened(8, "b2", 0)]
    assert kinds(reopened, faults=lossy) == ["clean-shutdown-lost-records"]


def test_a_late_request_of_the_life_before_makes_no_clean_shutdown_of_an_unclean_start() -> None:
    """The disk is wiped while that request is under way: what it says of the disk is no longer so."""
    wiped = small_evidence.faults(fault("wipe-disk", ["b2"], 4.2, 4.5, {"lost_bytes": 10}))
    late = [*COPIED, started(4, "b2", 1), started(4.5, "b2"), registered(5, 2, True)]
    assert kinds([*late, opened(6, "b2", 0)], faults=wiped) == ["clean-shutdown-lost-records"]
    given_up = [*late, decided(5.2, 1, 1, 1, (1, 3), reason="registered"), registered(5.5, 2, False)]
    assert kinds([*given_up, opened(6, "b2", 0)], faults=wiped) == []
    stopped = [started(7, "b2", 2), registered(8, 2, True)]
    assert kinds([*given_up, *stopped, opened(9, "b2", 0)], faults=wiped) == []
    reopened = [*given_up, opened(6, "b2", 4), *stopped, opened(9, "b2", 0)]
    assert kinds(reopened, faults=wiped) == ["clean-shutdown-lost-records"]


def test_a_clean_shutdown_that_was_accepted_covers_the_life_that_hears_of_it() -> None:
    """A life before had asked, and stopped before it heard of its registration."""
    lossy = small_evidence.faults(fault("power-loss", ["b2"], 3, 3.5, {"lost_bytes": 10}))
    unheard = [*COPIED, started(4, "b2", 1), registered(4.5, 2, True), started(5, "b2", 1)]
    told = event(5.5, "b2", "registered", {"clean": True}, broker_epoch=9)
    assert kinds([*unheard, told, opened(6, "b2", 4)], faults=lossy) == ["clean-shutdown-lost-records"]
    assert kinds([*unheard, told | {"broker_epoch": 8}, opened(6, "b2", 4)], faults=lossy) == []


def test_a_log_reaches_on_its_disk_as_far_as_its_node_traced() -> None:
    records, ends = small_evidence.logs(b1=[(1, value) for value in range(5)], b2=[(1, value) for value in range(4)])
    appends = [append(0, 1, 3, 0)]
    recorded = {"replicas": records, "replica_ends": ends, "history": small_evidence.history(appends)}
    events = [*BORN, *(appended(2, node, 0, 5) for node in NODES)]
    assert kinds(events, **recorded) == ["log-end-not-on-disk"]
    lossy = small_evidence.faults(fault("power-loss", ["b2"], 2.5, 2.6, {"lost_bytes": 10}))
    assert kinds(events, **recorded, faults=lossy) == []
    gap = EvidenceGap(EvidencePart.REPLICAS, "replicas.parquet: 1 row is missing")
    assert kinds(events, **recorded, gaps=(gap,)) == []
    later = [*events[:-3], *(appended(4, node, 0, 5) for node in NODES)]
    assert kinds(later, **recorded) == []


def test_a_follower_that_took_over_a_high_watermark_truncates_for_no_leader_that_it_follows() -> None:
    records, ends = small_evidence.logs(b1=[(1, value) for value in range(5)], b2=[(1, value) for value in range(4)])
    recorded = {"replicas": records, "replica_ends": ends, "history": small_evidence.history([append(0, 1, 3, 0)])}
    follows_anew = [*BORN, appended(2, "b2", 0, 5), follows(2.2, "b2", 3, 2, 1)]
    assert kinds(follows_anew, **recorded) == []
    assert kinds([*follows_anew, follower_high_watermark(2.4, "b2", 3)], **recorded) == ["log-end-not-on-disk"]


def test_a_node_without_a_trace_is_accused_of_nothing() -> None:
    assert kinds([*RETAINED, follower_high_watermark(5, "b9", 6), log_start(6, "b9", 2, "leader", leader=8)]) == []


def test_a_finding_says_which_node_believed_what_and_when() -> None:
    finding = verdict(BROKEN["isr-proposal-behind"]).findings[0]
    assert finding.lines == (
        "b1 proposed the ISR {b1, b2, b3} at 3.000000 s in leader epoch -1, and had seen b3 at 4",
        "its high watermark was 5, and its leader epoch starts at 0",
    )
    assert finding.time_ns == 3 * S


def test_another_target_forgets_nobody_whom_the_one_before_was_to_add_also_with_unclean_elections() -> None:
    moving = {"replicas": (1, 2, 3, 4), "adding": [4]}
    resting_on_4 = decided(5, 2, 2, 2, (2,), **moving, reason="fenced", elr=[3, 4], last_known_elr=[])
    again = decided(6, 3, 2, 3, (2,), **moving, reason="reassignment", elr=[3], last_known_elr=[])
    events = [*COPIED, decided(4, 1, 1, 1, (1, 2, 3, 4), **moving), resting_on_4, again]
    for permitted in (False, True):
        assert "last-known-elr-forgotten" in kinds(events, settings=CheckSettings(unclean_election=permitted))


def test_a_replica_that_a_reassignment_adds_leads_at_once_only_where_unclean_elections_are_permitted() -> None:
    assert "reassignment-joins-isr" in kinds(ADDED_LEADS)
    assert "reassignment-joins-isr" not in kinds(ADDED_LEADS, settings=CheckSettings(unclean_election=True))


@pytest.mark.parametrize("reason", ["reassignment", "reassignment_cancelled"])
def test_a_cancellation_alone_gives_up_what_is_needed_where_unclean_elections_are_permitted(reason: str) -> None:
    *events, _ = BROKEN["reassignment-drops-last-known"]
    dropped = decided(6, 3, -1, 3, (), (1, 2, 3), reason, last_known_elr=[1])
    found = kinds([*events, dropped], settings=CheckSettings(unclean_election=True))
    assert ("reassignment-drops-last-known" in found) == (reason == "reassignment")


@pytest.mark.parametrize(("minimum", "kept"), [(1, True), (2, False)])
def test_a_recovery_that_heard_of_a_replica_may_complete_its_removal_once_the_isr_is_large_enough(
    minimum: int, kept: bool
) -> None:
    """Also where ISR and ELR were empty: that log is no greater than the one of the leader. Nobody else has that."""
    moving = {"removing": [3], "min_isr": minimum}
    left = decided(4, 1, -1, 2, (), (1, 2, 3), "registered", **moving, last_known_elr=[2, 3])
    told = {"unclean": True, "told": {"2": [1, 3], "3": [1, 3]}}
    recovered = decided(5, 2, 2, 3, (2,), (1, 2), "unclean_recovery", **told, min_isr=minimum)
    found = kinds([*COPIED, left, recovered])
    assert ("reassignment-drops-last-known" not in found) == kept


def test_no_cancellation_takes_a_member_of_the_elr_while_too_few_are_in_the_isr() -> None:
    moving = {"replicas": (1, 2, 3, 4), "adding": [4], "removing": [3]}
    joined = decided(5, 2, 1, 1, (1, 4), **moving)
    alone = decided(6, 3, 1, 1, (1,), **moving, reason="alter_partition", elr=[4])
    cancelled = decided(7, 4, 1, 2, (1,), (1, 2, 3), "reassignment_cancelled")
    assert "reassignment-shrinks-isr" in kinds([*ADDING, joined, alone, cancelled])
    unneeded = decided(6, 3, 1, 1, (1,), **moving, reason="alter_partition", elr=[2])
    assert "reassignment-shrinks-isr" not in kinds([*ADDING, joined, unneeded, cancelled])
    of_two = [
        decided(4, 1, 1, 1, (1, 2, 4), (1, 2, 4), "alter_partition", adding=[4], min_isr=3),
        decided(5, 2, 1, 2, (1, 2), (1, 2, 3), "reassignment", adding=[3], min_isr=3),
    ]
    assert "reassignment-shrinks-isr" not in kinds([*COPIED, *of_two]), "the minimum of 3 is 2 where 2 replicas stay"
    later = cancelled | {"partition_epoch": cancelled["partition_epoch"] + 1}
    assert "reassignment-shrinks-isr" not in kinds([*ADDING, joined, alone, later]), "4 may have left the ELR"
