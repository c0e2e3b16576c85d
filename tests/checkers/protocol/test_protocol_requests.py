"""Promises about requests between nodes, and about what a node checks before it appends: no request of an earlier epoch
or of an earlier life takes effect, whether or not that does harm."""

from __future__ import annotations

import pytest

from checkers.evidence import CheckSettings
from tests.checkers import small_evidence
from tests.checkers.protocol.test_protocol_replicas import (
    BORN,
    COPIED,
    MOVED,
    Event,
    appended,
    decided,
    follows,
    kinds,
    leads,
    log_start,
    opened,
)
from tests.checkers.small_evidence import event, fault


def of_broker(time_s: float, kind: str, broker: int, epoch: int, offset: int) -> Event:
    return event(time_s, "c1", kind, broker=broker, broker_epoch=epoch, offset=offset)


def applied(time_s: float, node: str, end: int) -> Event:
    return event(time_s, node, "metadata_applied", offset=0, log_end=end)


def fetched(time_s: float, replica: int, *, requested: int = 1, life: int = 12, epoch: int = 1) -> Event:
    detail = {"replica": replica, "requested": requested, "last_epoch": 1, "broker_epoch": life}
    return event(time_s, "b1", "fetch_accepted", detail, offset=5, log_end=5, leader_epoch=epoch)


def proposed(
    time_s: float, isr: tuple[int, ...], joining: int, life: int, partition_epoch: int = 1, **facts: object
) -> Event:
    detail = {"reason": "expand", "positions": {str(joining): 5}, "epochs": dict.fromkeys(map(str, isr), 11), **facts}
    detail["epochs"] |= {str(joining): life}
    state = {"leader": 1, "leader_epoch": 1, "partition_epoch": partition_epoch}
    return event(time_s, "b1", "isr_proposed", detail, offset=0, high_watermark=5, members=list(isr), **state)


def shrinks(time_s: float, reason: str, isr: tuple[int, ...]) -> Event:
    detail = {"reason": reason, "positions": {}, "epochs": dict.fromkeys(map(str, isr), 11), "fetch_of": -1}
    state = {"leader": 1, "leader_epoch": 1, "partition_epoch": 1}
    return event(time_s, "b1", "isr_proposed", detail, offset=0, high_watermark=5, members=list(isr), **state)


def sent(time_s: float, isr: tuple[int, ...], life: int) -> Event:
    state = {"leader": 1, "leader_epoch": 1, "partition_epoch": 1}
    return event(time_s, "b1", "alter_partition_sent", broker_epoch=life, members=list(isr), **state)


def too_small(time_s: float, partition_epoch: int) -> Event:
    state = {"leader": 1, "leader_epoch": 1, "partition_epoch": partition_epoch}
    return event(time_s, "b1", "isr_too_small", members=[1], **state)


def refused(
    error: str, sender: int = 1, leader_epoch: int = 1, partition_epoch: int = 1, life: int = 11, **facts: object
) -> Event:
    state = {"leader_epoch": leader_epoch, "partition_epoch": partition_epoch}
    proposal = {"broker": sender, "broker_epoch": life, "members": [1, 2], **state}
    return event(5, "c1", "alter_partition_refused", {"error": error, "known": [1, 1, 1], **facts}, **proposal)


def answered(kind: str, acks: int = -1, **detail: object) -> Event:
    leads = {"leader": 1} if kind == "acknowledged" else {}
    place = {"offset": 5, "log_end": 6, "high_watermark": 6, "leader_epoch": 1}
    return event(6, "b1", kind, {"acks": acks, **detail}, **place, **leads)


def deleted(time_s: float, below: int) -> Event:
    return event(time_s, "b1", "deletion_confirmed", offset=below, leader=1, leader_epoch=1, partition_epoch=0)


def led(time_s: float, epochs: list[list[int]], epoch: int, positions: dict[str, int] | None = None) -> Event:
    detail = {"epochs": epochs, "positions": positions or {}}
    return leads(time_s, "b1", epoch, 5) | {"detail": event(0, "b1", "", detail)["detail"]}


def led_in(time_s: float, partition_epoch: int, **detail: int) -> Event:
    """Broker 2 leads in leader epoch 2."""
    epochs = {"epochs": [[1, 0], [2, 5]]}
    return event(time_s, "b2", "became_leader", epochs | detail, offset=5, log_end=5, leader=2, leader_epoch=2) | {
        "partition_epoch": partition_epoch
    }


REGISTERED = [*COPIED, of_broker(3, "broker_registered", 3, 12, 113), applied(3.2, "b1", 113)]
"""Broker 3 is registered in broker epoch 12, and not unfenced yet; the leader knows it."""
UNFENCED = [*REGISTERED, of_broker(3.4, "broker_unfenced", 3, 12, 114), applied(3.6, "b1", 114)]
SHRUNK = [*UNFENCED, decided(3.8, 1, 1, 1, (1, 2), reason="fenced")]
ALONE = [*COPIED, decided(3, 1, 1, 1, (1,), reason="fenced")]
DELETED = [*COPIED, event(4, "b3", "resigned"), event(4, "b3", "replica_deleted")]
STRAY = event(5, "b3", "stray_found", offset=0)
RECOVERABLE = [*COPIED, decided(3, 1, -1, 2, (), last_known_elr=[2, 3])]
TOLD = {"2": [1, 5], "3": [1, 5]}
BACK = [
    of_broker(3.2 + place / 10, f"broker_{kind}", broker, 9 + broker, 92 + place)
    for place, (kind, broker) in enumerate((kind, broker) for kind in ("registered", "unfenced") for broker in (2, 3))
]
"""Brokers 2 and 3 are back before the recovery."""
BALANCED = CheckSettings(unclean_recovery="balanced", retention_bytes=100)
IN_PLACE = {"leader": 1, "partition_epoch": 1}


SECOND_TIME = {"leader": 1, "leader_epoch": 3, "partition_epoch": 3}
AT_ONE_PLACE = [
    appended(2.5, "b1", 5, 6) | {"leader": 1, "partition_epoch": 0},
    decided(2.6, 2, 2, 2, (1, 2, 3)),
    event(2.7, "b1", "truncated", offset=5, log_end=6, high_watermark=5, leader=2, leader_epoch=2, partition_epoch=2),
    decided(2.8, 3, 1, 3, (1, 2, 3)),
    leads(3, "b1", 3, 5, 3),
    appended(3.5, "b1", 5, 6, epoch=3) | SECOND_TIME,
]
"""b1 has appended a batch, has followed b2 and cut it off, and leads again and appends another one in its place."""


def began(first: int, checkpointed: int) -> Event:
    """b3 opens its log, whose first segment begins at `first`; its checkpoint names another one, or there is none."""
    return event(5, "b3", "log_recovered", {"first_segment": [first, checkpointed]}, offset=0, log_end=5)


def recovery(**detail: object) -> Event:
    return decided(4, 2, 2, 3, (2,), reason="unclean_recovery", **detail)


KEPT = {
    "a fetch of the life that is registered": [*UNFENCED, fetched(4, 3)],
    "a fetch of the life before, as long as the next one is fenced": [*REGISTERED, fetched(4, 3, life=4)],
    "a fetch of the life before, as long as the leader has not read of the next": [
        *REGISTERED,
        of_broker(3.4, "broker_unfenced", 3, 12, 114),
        fetched(4, 3, life=4),
    ],
    "fetches without a leader epoch, as of an old protocol": [*COPIED, *(fetched(4, n, requested=-1) for n in (2, 3))],
    "a member joins as proposed": [
        *SHRUNK,
        proposed(4, (1, 2, 3), 3, 12),
        sent(4.1, (1, 2, 3), 11),
        decided(4.5, 2, 1, 1, (1, 2, 3), reason="alter_partition"),
    ],
    "a follower is proposed upon its fetch": [*SHRUNK, proposed(4, (1, 2, 3), 3, 12, fetch_of=3)],
    "a member leaves, and a change is settled, upon no fetch": [
        *COPIED,
        shrinks(4, "shrink", (1, 2)),
        shrinks(5, "settle", (1, 2, 3)),
    ],
    "a proposal is refused for what is wrong with it": [
        *SHRUNK,
        refused("fenced_leader_epoch", 2, 0, 0),
        refused("invalid_request", 2),
        refused("invalid_update_version", 1, 1, 0),
        refused("ineligible_replica"),
        refused("not_controller", 1, 1, 2),
        refused("fenced_leader_epoch", 2, 0, 0, registered=11),
        refused("stale_broker_epoch", 2, 0, 0, life=7, registered=11),
        refused("stale_broker_epoch", 2, 0, 0, life=7, registered=-1),
    ],
    "a batch below the minimum without acks=all": [
        *ALONE,
        appended(4, "b1", 5, 6) | IN_PLACE,
        answered("acknowledged", 1),
    ],
    "a batch that was taken before the ISR shrank": [
        *COPIED,
        appended(2.5, "b1", 5, 6) | IN_PLACE | {"partition_epoch": 0},
        ALONE[-1],
        answered("append_unacknowledged", error="not_enough_replicas_after_append"),
    ],
    "a batch of a leadership that is over": [
        *COPIED,
        appended(2.5, "b1", 5, 6) | {"leader": 1, "partition_epoch": 0},
        answered("append_unacknowledged", error="not_leader_or_follower") | {"leader": 2, "leader_epoch": 2},
    ],
    "a batch of a leader that has left": [
        *COPIED,
        appended(2.5, "b1", 5, 6) | {"leader": 1, "partition_epoch": 0},
        answered("append_unacknowledged", error="not_leader_or_follower"),
    ],
    "a batch that waits for too long": [
        *COPIED,
        appended(2.5, "b1", 5, 6) | {"leader": 1, "partition_epoch": 0},
        answered("append_unacknowledged", error="request_timed_out") | {"leader": 1},
    ],
    "a batch of a leadership that is over, where one of the next stands": [
        *COPIED,
        *AT_ONE_PLACE,
        answered("append_unacknowledged", error="not_leader_or_follower") | SECOND_TIME,
        answered("acknowledged") | SECOND_TIME,
    ],
    "a batch of a leadership that is over, where one with acks=1 stands, taken below the minimum": [
        *COPIED,
        *AT_ONE_PLACE[:-1],
        decided(3.3, 4, 1, 3, (1,), reason="fenced"),
        AT_ONE_PLACE[-1] | {"partition_epoch": 4},
        answered("append_unacknowledged", error="not_leader_or_follower") | SECOND_TIME | {"partition_epoch": 4},
    ],
    "a retry of a batch of long ago": [
        *ALONE,
        event(4, "b1", "appended", {"producer_id": 1, "sequence": 0}, offset=5, log_end=6, leader_epoch=1, **IN_PLACE),
        answered("acknowledged", retry=[1, 0, 7]),
    ],
    "positions kept in the next leader epoch": [*COPIED, fetched(2.5, 2), led(4, [[1, 0], [2, 5]], 2, {"2": 5})],
    "a recovery that has heard of all, and keeps the others": [
        *RECOVERABLE,
        recovery(told={"2": [1, 5], "3": [1, 4]}, last_known_elr=[3]),
    ],
    "a recovery of a controller that was deposed, of which nobody knows whom it had heard": [
        *RECOVERABLE,
        recovery(last_known_elr=[3], unclean=True, taken_over=True),
    ],
    "a recovery by log ends of registered lives": [
        *RECOVERABLE,
        *BACK,
        recovery(told=TOLD, told_in={"2": [11, 2], "3": [12, 2]}, last_known_elr=[3]),
    ],
    "a recovery before a replica registers again": [
        *RECOVERABLE,
        *BACK,
        recovery(told=TOLD, told_in={"2": [11, 2], "3": [12, 2]}, last_known_elr=[3]),
        of_broker(5, "broker_registered", 3, 13, 140),
    ],
    "a leader with the minimum that was decided on": [
        *COPIED,
        decided(3, 2, 2, 2, (1, 2, 3), min_isr=3),
        led_in(4, 2, min_isr=3),
    ],
    "a leader with a minimum above the number of replicas": [
        *COPIED,
        decided(3, 2, 2, 2, (1, 2), (1, 2), min_isr=3),
        led_in(4, 2, min_isr=3),
    ],
    "a damaged batch of a leader": [*COPIED, event(4, "b2", "records_refused", offset=-1, log_end=5)],
    "a replica that begins anew after its deletion": [*DELETED, opened(5, "b3")],
    "a stray that was never deleted, and its deletion": [*COPIED, STRAY, event(5, "b3", "replica_deleted")],
    "a stray of a log begun after the deletion": [*DELETED, opened(4.5, "b3"), STRAY],
    "a log that begins where its checkpoint says": [*COPIED, began(5, 5)],
}

BROKEN = {
    "fetch-of-another-epoch": [*COPIED, fetched(4, 2, requested=0)],
    "fetch-of-an-earlier-life": [*UNFENCED, fetched(4, 3, life=4)],
    "isr-proposal-of-absent": [*REGISTERED, proposed(4, (1, 2, 3), 3, 12)],
    "isr-proposal-without-fetch": [*SHRUNK, proposed(4, (1, 2, 3), 3, 12, fetch_of=-1)],
    "isr-change-outdated": [
        *(each for each in SHRUNK if each["kind"] != "metadata_applied"),
        proposed(4, (1, 2, 3), 3, 12, partition_epoch=0),
        decided(4.5, 2, 1, 1, (1, 2, 3), reason="alter_partition"),
    ],
    "isr-change-of-an-earlier-life": [
        *SHRUNK,
        proposed(4, (1, 2, 3), 3, 12),
        of_broker(4.2, "broker_registered", 3, 15, 118),
        of_broker(4.3, "broker_unfenced", 3, 15, 119),
        decided(4.5, 2, 1, 1, (1, 2, 3), reason="alter_partition") | {"offset": 120},
    ],
    "isr-change-refused-otherwise": [*SHRUNK, refused("invalid_update_version", 1, 0, 0)],
    "minimum-outdated": [*COPIED, decided(3, 2, 2, 2, (1, 2, 3), min_isr=3), led_in(4, 2, min_isr=2)],
    "appended-below-minimum": [
        *ALONE,
        appended(4, "b1", 5, 6) | IN_PLACE,
        answered("append_unacknowledged", error="request_timed_out"),
    ],
    "unacknowledged-otherwise": [
        *COPIED,
        appended(2.5, "b1", 5, 6) | {"leader": 1, "partition_epoch": 0},
        answered("append_unacknowledged", error="not_leader_or_follower") | {"leader": 1},
    ],
    "refused-needlessly": [*ALONE, decided(3, 2, 1, 1, (1, 2, 3)), too_small(4, 2)],
    "logs-not-compared": [*COPIED, decided(3, 1, 1, 2, (1, 2)), appended(4, "b2", 5, 6) | IN_PLACE],
    "records-out-of-place": [*COPIED, event(4, "b2", "records_refused", offset=7, log_end=5)],
    "answer-unasked": [*COPIED, event(4, "b2", "answer_unasked", {"unasked": ["t-1"], "by": 1}, offset=5, log_end=5)],
    "leader-epoch-not-entered": [*COPIED, led(4, [[1, 0]], 2)],
    "position-of-another-leadership": [*COPIED, fetched(2.5, 2), led(4, [[1, 0], [3, 5]], 3, {"2": 5})],
    "recovery-early": [*RECOVERABLE, recovery(told={"2": [1, 5]}, last_known_elr=[3])],
    "recovery-outdated": [
        *RECOVERABLE,
        *BACK,
        recovery(told=TOLD, told_in={"2": [11, 2], "3": [5, 2]}, last_known_elr=[3]),
    ],
    "recovery-of-lesser-log": [
        *RECOVERABLE[:-1],
        appended(2.5, "b1", 5, 6) | {"leader": 1, "partition_epoch": 0},
        appended(2.6, "b3", 5, 6),
        RECOVERABLE[-1],
        *BACK,
        recovery(told={"2": [1, 5], "3": [1, 6]}, told_in={"2": [11, 2], "3": [12, 2]}, last_known_elr=[3]),
    ],
    "recovery-misinformed": [
        *RECOVERABLE,
        *BACK,
        recovery(told={"2": [1, 5], "3": [1, 4]}, told_in={"2": [11, 2], "3": [12, 2]}, last_known_elr=[3]),
    ],
    "last-known-elr-forgotten": [*RECOVERABLE, recovery(told={"2": [1, 5], "3": [1, 4]})],
    "partition-epoch-stood": [*COPIED, decided(3, 1, 1, 1, (1, 2), reason="fenced", min_isr=3)],
    "deleted-log-came-back": [*DELETED, opened(5, "b3", 5)],
    "log-beginning-missing": [*COPIED, began(5, -1)],
}


def found(events: list[Event]) -> set[str]:
    """The kinds that are found under balanced recovery, an unclean election of which is no violation."""
    return set(kinds(events, settings=BALANCED))


def test_a_leader_of_a_topic_that_was_made_anew_may_lead_by_the_one_before() -> None:
    """It has not read of the deletion, and partition epochs begin anew."""
    higher, led = decided(3, 2, 2, 2, (1, 2, 3), min_isr=3), led_in(4, 2, min_isr=3)
    anew = decided(3.5, 0, 1, 0, (1, 2, 3), reason="created") | {"offset": 130}
    lower = decided(3.6, 2, 2, 2, (1, 2, 3), min_isr=2) | {"offset": 131}
    assert "minimum-outdated" not in found([*COPIED, higher, anew, lower, led])
    assert "minimum-outdated" in found([*COPIED, lower, led])


@pytest.mark.parametrize("events", KEPT.values(), ids=KEPT)
def test_a_request_in_its_own_epoch_and_life_breaks_no_promise(events: list[Event]) -> None:
    assert found(events) == set()


@pytest.mark.parametrize(("start", "expected"), [(4, ["records-out-of-place"]), (5, [])])
def test_a_follower_may_refuse_the_batch_in_which_its_leaders_log_starts(start: int, expected: list[str]) -> None:
    begins = log_start(4, "b1", start, "retention_bytes")
    refuses = event(5, "b2", "records_refused", leader=1, offset=4, log_end=5)
    assert kinds([*COPIED, MOVED, begins, refuses]) == expected


@pytest.mark.parametrize("kind", BROKEN)
def test_each_broken_promise_is_found(kind: str) -> None:
    assert found(BROKEN[kind]) == {kind}


@pytest.mark.parametrize(("below", "wrongly"), [(-2, False), (-1, True), (0, True), (5, True), (6, False)])
def test_a_deletion_of_what_is_committed_is_not_out_of_range(below: int, wrongly: bool) -> None:
    refused = event(5, "b1", "deletion_refused", offset=below, high_watermark=5, leader=1, leader_epoch=1)
    assert kinds([*COPIED, refused]) == (["deletion-refused-wrongly"] if wrongly else [])


def test_a_deletion_is_answered_once_the_isr_has_made_it() -> None:
    settings = CheckSettings(retention_bytes=100)
    events = [*COPIED, MOVED, log_start(4, "b1", 4, "retention_bytes"), log_start(4.2, "b2", 4, "leader")]
    assert kinds([*events, deleted(5, 4)], settings=settings) == ["deletion-unconfirmed"]
    assert kinds([*events, log_start(4.5, "b3", 4, "leader"), deleted(5, 4)], settings=settings) == []


def test_who_was_in_the_elr_stays_known_while_the_isr_is_small() -> None:
    shrunk = [
        *COPIED,
        decided(3, 1, 1, 1, (1,), elr=[2, 3]),
        decided(4, 2, 1, 1, (1,), elr=[2], last_known_elr=[3], reason="registered"),
    ]
    changes = {
        "kept": decided(5, 3, -1, 2, (), elr=[1, 2], last_known_elr=[3]),
        "forgotten": decided(5, 3, -1, 2, (), elr=[1, 2], last_known_elr=[]),
        "large enough": decided(5, 3, 1, 1, (1, 2), last_known_elr=[]),
    }
    found_of = {name: found([*shrunk, change]) for name, change in changes.items()}
    assert found_of == {"kept": set(), "forgotten": {"last-known-elr-forgotten"}, "large enough": set()}


def test_a_replica_that_starts_again_after_it_has_told_of_its_log_may_end_lower() -> None:
    told = recovery(told=TOLD, told_in={"2": [11, 2], "3": [12, 2]}, last_known_elr=[3])
    again = [event(3.9, "b3", "node_started"), opened(3.95, "b3", 4)]
    lost = small_evidence.faults(fault("power-loss", ["b3"], 3.7, 3.8, {"lost_bytes": 10}))
    assert kinds([*RECOVERABLE, *BACK, *again, told], settings=BALANCED, faults=lost) == []


def test_a_fetch_that_is_no_more_held_to_its_leader_epoch_is_found() -> None:
    assert found([*COPIED, fetched(4, 2), fetched(5, 2, requested=-1)]) == {"fetch-of-another-epoch"}


def test_a_follower_that_is_proposed_upon_the_fetch_of_another_one_is_found() -> None:
    assert found([*SHRUNK, proposed(4, (1, 2, 3), 3, 12, fetch_of=2)]) == {"isr-proposal-without-fetch"}


@pytest.mark.parametrize("registered", [11, -1])
def test_a_proposal_of_an_earlier_life_that_is_refused_for_what_it_proposes_is_found(registered: int) -> None:
    late = refused("fenced_leader_epoch", 2, 0, 0, life=7, registered=registered)
    assert found([*SHRUNK, late]) == {"isr-change-refused-otherwise"}
    of_no_partition = refused("unknown_topic_or_partition", 2, 0, 0, life=7, registered=registered, known=None)
    assert found([*SHRUNK, of_no_partition]) == {"isr-change-refused-otherwise"}


def test_a_deleted_log_may_come_back_on_a_disk_that_lied() -> None:
    lying = small_evidence.faults(fault("fsync-lies", ["b3"], 0.5, 6, {"lost_bytes": 10}))
    for events in (BROKEN["deleted-log-came-back"], BROKEN["log-beginning-missing"], [*DELETED, STRAY]):
        assert kinds(events, settings=BALANCED, faults=lying) == []


def test_a_deleted_log_that_a_start_finds_as_a_stray_came_back_each_time() -> None:
    assert found([*DELETED, STRAY]) == {"deleted-log-came-back"}
    again = [event(6, "b3", "replica_deleted"), event(7, "b3", "stray_found", offset=2)]
    assert found([*COPIED, STRAY, *again]) == {"deleted-log-came-back"}


def test_a_topic_that_is_created_again_is_another_one_also_for_those_who_have_not_read_of_it() -> None:
    again = decided(3, 0, 1, 1, (1,), reason="created", taken_over=True) | {"offset": 300}
    batch = appended(4, "b1", 5, 6) | IN_PLACE | {"partition_epoch": 0}
    assert found([*ALONE, again, batch, answered("append_unacknowledged", error="request_timed_out")]) == set()
    late = decided(5, 0, 1, 1, (1, 2, 3), reason="created")
    assert found([*ALONE, late, decided(6, 1, 1, 1, (1, 2)) | {"offset": 310}]) == {"partition-epoch-stood"}


def test_a_broker_that_was_unfenced_is_so_also_where_that_is_traced_late() -> None:
    late = of_broker(6, "broker_unfenced", 3, 12, 114)
    assert found([*REGISTERED, applied(3.6, "b1", 114), proposed(4, (1, 2, 3), 3, 12), late]) == set()


def test_a_fetch_of_an_earlier_life_is_found_by_the_fetches_before_it() -> None:
    assert found([*COPIED, fetched(4, 2, life=9), fetched(5, 2, life=4)]) == {"fetch-of-an-earlier-life"}


def test_a_change_of_the_isr_that_an_earlier_life_of_the_leader_sent_is_found() -> None:
    registered = of_broker(1.5, "broker_registered", 1, 11, 90)
    asked = [*SHRUNK, registered, proposed(4, (1, 2, 3), 3, 12)]
    change = decided(4.5, 2, 1, 1, (1, 2, 3), reason="alter_partition") | {"offset": 120}
    assert found([*asked, sent(4.1, (1, 2, 3), 11), change]) == set()
    assert found([*asked, sent(4.1, (1, 2, 3), 8), change]) == {"isr-change-of-an-earlier-life"}


def test_the_positions_that_move_a_high_watermark_are_of_this_leadership() -> None:
    positions = event(0, "b1", "", {"positions": {"1": 5, "2": 5, "3": 5}})["detail"]
    moved = MOVED | {"detail": positions}
    assert found([*COPIED, fetched(2.5, 2), fetched(2.5, 3), moved]) == set()
    again = [fetched(2.5, 2, requested=-1, epoch=0), led(2.6, [[1, 0], [2, 5]], 2)]
    assert found([*COPIED, *again, moved | {"leader_epoch": 2}]) == {"position-of-another-leadership"}


def test_a_follower_that_fetched_in_another_leader_epoch_takes_records_out_of_place() -> None:
    batch = appended(4, "b2", 5, 6)
    batch["detail"] = event(0, "b2", "", {"crc": 7, "fetched_in": 0})["detail"]
    assert found([*BORN, *COPIED[len(BORN) :], follows(3, "b2", 1, 1, 0), batch]) == {"records-out-of-place"}


def test_a_log_end_of_another_leader_epoch_is_outdated_too_and_one_that_a_recovery_did_not_need_is_not() -> None:
    def outdated(strategy: str, **told_in: list[int]) -> bool:
        lives = {replica.removeprefix("b"): told for replica, told in told_in.items()}
        events = [*RECOVERABLE, *BACK, recovery(told=TOLD, told_in=lives, last_known_elr=[3])]
        return "recovery-outdated" in kinds(events, settings=CheckSettings(unclean_recovery=strategy))

    assert outdated("balanced", b2=[11, 2], b3=[12, 1])
    assert not outdated("proactive", b2=[11, 2], b3=[12, 1])
    assert outdated("proactive", b2=[11, 1], b3=[12, 2])
    assert not outdated("balanced", b1=[4, 1], b2=[11, 2], b3=[12, 2])


@pytest.mark.parametrize(
    ("of_b2", "of_b3", "lives", "lesser"),
    [
        ([1, 5], [1, 5], {"2": [11, 2], "3": [12, 2]}, False),
        ([1, 5], [1, 6], {"2": [11, 2], "3": [12, 2]}, True),
        ([1, 9], [2, 3], {"2": [11, 2], "3": [12, 2]}, True),
        ([1, 5], [1, 6], {"2": [11, 2], "3": [5, 2]}, False),
        ([1, 5], [1, 6], {"2": [11, 2], "3": [12, 1]}, False),
        ([1, 5], [-1, 6], {"2": [11, 2], "3": [12, 2]}, True),
        ([1, 5], [-1, 5], {"2": [11, 2], "3": [12, 2]}, False),
        ([-1, 6], [1, 5], {"2": [11, 2], "3": [12, 2]}, False),
    ],
)
def test_no_log_that_counts_in_a_recovery_is_greater_than_that_of_the_elected(
    of_b2: list[int], of_b3: list[int], lives: dict[str, list[int]], lesser: bool
) -> None:
    told = recovery(told={"2": of_b2, "3": of_b3}, told_in=lives, last_known_elr=[3])
    assert ("recovery-of-lesser-log" in found([*RECOVERABLE, *BACK, told])) == lesser


def test_the_log_of_a_fenced_broker_does_not_count_in_a_recovery() -> None:
    fenced = of_broker(3.9, "broker_fenced", 3, 12, 99)
    told = recovery(told={"2": [1, 5], "3": [1, 6]}, told_in={"2": [11, 2], "3": [12, 2]}, last_known_elr=[3])
    assert "recovery-of-lesser-log" in found([*RECOVERABLE, *BACK, told])
    assert "recovery-of-lesser-log" not in found([*RECOVERABLE, *BACK, fenced, told])


def test_a_session_goes_on_without_the_partitions_that_its_follower_forgets() -> None:
    def session(*partitions: str) -> Event:
        detail = {"replica": 2, "session": 7, "partitions": list(partitions), "forgotten": ["t-0"]}
        return event(5, "b1", "fetch_session", detail, topic="", partition=-1)

    assert found([*COPIED, session("t-1")]) == set()
    assert found([*COPIED, session("t-0", "t-1")]) == {"forgotten-partition-fetched"}
