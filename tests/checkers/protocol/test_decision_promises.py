"""What the controllers make of a change is what follows from the state before it: leader, ISR, ELR and LastKnownELR."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from checkers.evidence import CheckSettings, RunEvidence
from checkers.protocol.checker import check
from tests.checkers import small_evidence

Event = dict[str, Any]


def broker(offset: int, kind: str, number: int, epoch: int, **detail: Any) -> Event:
    return small_evidence.event(
        offset, "c1", f"broker_{kind}", detail, broker=number, broker_epoch=epoch, offset=offset
    )


def decided(
    offset: int,
    leader: int,
    epochs: tuple[int, int],
    isr: Sequence[int],
    elr: Sequence[int] = (),
    last_known: Sequence[int] = (),
    *,
    reason: str,
    **facts: Any,
) -> Event:
    """A change of t-0, whose epochs are (leader epoch, partition epoch)."""
    known = {"elr": list(elr), "last_known_elr": list(last_known), "replicas": [1, 2, 3], "min_isr": 2}
    return small_evidence.event(
        offset,
        "c1",
        "partition_changed",
        {**known, "adding": [], "removing": [], "reason": reason} | facts,
        leader=leader,
        leader_epoch=epochs[0],
        partition_epoch=epochs[1],
        members=list(isr),
        offset=offset,
    )


def fenced(offset: int, number: int, epoch: int, change: Event) -> list[Event]:
    return [change, broker(offset, "fenced", number, epoch, reason="session_timeout")]


def unfenced(offset: int, number: int, epoch: int, *changes: Event) -> list[Event]:
    return [broker(offset, "unfenced", number, epoch), *changes]


TAKEN_OVER = {"reason": "taken_over", "taken_over": True}
THREE = [
    *(broker(number, "registered", number, number, clean=True) for number in (1, 2, 3)),
    *(broker(number + 3, "unfenced", number, number) for number in (1, 2, 3)),
    decided(7, 1, (0, 0), (1, 2, 3), reason="created"),
]
WITHOUT_3 = [*THREE, *fenced(8, 3, 3, decided(8, 1, (0, 1), (1, 2), reason="fenced"))]
WITHOUT_2 = [*WITHOUT_3, *fenced(9, 2, 2, decided(9, 1, (0, 2), (1,), (2,), reason="fenced"))]
LEADERLESS = [*WITHOUT_2, *fenced(10, 1, 1, decided(10, -1, (1, 3), (), (1, 2), (1,), reason="fenced"))]
UNCLEAN = [
    *LEADERLESS,
    decided(11, -1, (1, 4), (), (2,), (1,), reason="registered"),
    broker(11, "registered", 1, 11, clean=False),
]


def kinds(
    *events: Event, strategy: str = "last-known-leader", killed: bool = True, goes_on: bool = True, **settings: Any
) -> list[str]:
    """Found in a trace that goes on after these events: one that ends with a change may lack the rest of that."""
    after = [small_evidence.event(1e6, "b9", "node_started")] if goes_on else []
    evidence = RunEvidence(
        trace=small_evidence.trace(*events, *after),
        settings=CheckSettings(unclean_recovery=strategy, **settings),
        recovery={} if killed else {"seconds": 1.0},
    )
    return [finding.kind for finding in check(evidence).findings]


KEPT = {
    "whoever leaves an ISR that is large enough is in no ELR": WITHOUT_3,
    "whoever leaves a smaller one is": WITHOUT_2,
    "the leader that leaves an empty ISR is the last known": LEADERLESS,
    "a broker that registers after an unclean shutdown leaves the ELR": UNCLEAN,
    "a member of the ELR that comes back leads": [
        *UNCLEAN,
        *unfenced(12, 2, 2, decided(12, 2, (2, 5), (2,), (), (), reason="elected")),
    ],
    "an ISR that is large enough again clears the ELR": [
        *WITHOUT_2,
        *unfenced(10, 3, 3),
        decided(11, 1, (0, 3), (1, 3), reason="alter_partition"),
    ],
    "a preferred replica in the ISR leads upon a preferred election": [
        *THREE,
        *fenced(8, 1, 1, decided(8, 2, (1, 1), (2, 3), reason="fenced")),
        *unfenced(9, 1, 1),
        decided(10, 2, (1, 2), (1, 2, 3), reason="alter_partition"),
        decided(11, 1, (2, 3), (1, 2, 3), reason="preferred_election"),
    ],
    "a broker that shuts down hands its leaderships over before it goes": [
        *THREE,
        broker(8, "shutting_down", 1, 1),
        decided(8, 2, (1, 1), (2, 3), reason="controlled_shutdown"),
        broker(9, "fenced", 1, 1, reason="controlled_shutdown"),
    ],
    "a successor does not know why": [*THREE, decided(8, 2, (1, 1), (1, 2, 3), reason="taken_over", taken_over=True)],
}


@pytest.mark.parametrize("what", KEPT)
def test_what_follows_from_the_state_before_keeps_the_promises(what: str) -> None:
    assert kinds(*KEPT[what]) == []


BROKEN = {
    "leader-otherwise": [*THREE, *fenced(8, 1, 1, decided(8, 3, (1, 1), (2, 3), reason="fenced"))],
    "isr-otherwise": [*THREE, *fenced(8, 1, 1, decided(8, 2, (1, 1), (2,), reason="fenced"))],
    "elr-otherwise": [*WITHOUT_3, *fenced(9, 2, 2, decided(9, 1, (0, 2), (1,), (), reason="fenced"))],
    "last-known-elr-otherwise": [*WITHOUT_2, *fenced(10, 1, 1, decided(10, -1, (1, 3), (), (1, 2), reason="fenced"))],
    "leader-epoch-skipped": [*THREE, *fenced(8, 3, 3, decided(8, 1, (1, 1), (1, 2), reason="fenced"))],
    "let-go-while-leading": [
        *THREE,
        decided(8, 2, (1, 1), (2, 3), reason="controlled_shutdown"),
        broker(8, "fenced", 1, 1, reason="controlled_shutdown"),
    ],
    "idle-broker-kept": [*THREE, broker(8, "fenced", 3, 3, reason="session_timeout")],
    "left-without-leader": [*UNCLEAN, *unfenced(12, 2, 2)],
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_change_that_does_not_follow_is_a_violation(kind: str) -> None:
    assert kinds(*BROKEN[kind]) == [kind]


@pytest.mark.parametrize("killed", [True, False])
def test_no_decision_is_missing_but_in_the_trace_of_a_killed_run(killed: bool) -> None:
    skips = [*THREE, *fenced(8, 1, 1, decided(8, 2, (1, 2), (2, 3), reason="fenced"))]
    assert kinds(*skips, killed=killed) == ([] if killed else ["partition-epoch-skipped"])


def test_a_change_that_a_deposed_controller_traces_last_of_all_is_not_cut_if_others_follow_it() -> None:
    left = [broker(8, "shutting_down", 1, 1), decided(8, 2, (1, 1), (2, 3), reason="controlled_shutdown")]
    by_successor = [{**each, "detail": json.dumps({**json.loads(each["detail"]), **TAKEN_OVER})} for each in left]
    let_go = broker(9, "fenced", 1, 1, reason="controlled_shutdown")
    assert kinds(*THREE, *by_successor, let_go, *left, goes_on=False) == []
    assert kinds(*THREE, left[0], goes_on=False) == [], "the rest of the last change may be missing"


MOVING = [
    *(broker(number, "registered", number, number, clean=True) for number in (1, 2, 3, 4)),
    *(broker(number + 4, "unfenced", number, number) for number in (1, 2, 3, 4)),
    decided(9, 1, (0, 0), (1, 2, 3), reason="created"),
    decided(10, 1, (0, 1), (1, 2, 3), reason="reassignment", replicas=[1, 2, 4, 3], adding=[4], removing=[3]),
]
COMPLETE = decided(11, 1, (1, 2), (1, 2, 4), reason="alter_partition", replicas=[1, 2, 4])


@pytest.mark.parametrize(
    ("event", "right"),
    [
        (COMPLETE, True),
        (decided(11, 1, (1, 2), (1, 2, 3), reason="reassignment_cancelled"), True),
        (decided(11, 1, (1, 2), (1, 2), reason="reassignment_cancelled", replicas=[1, 2, 4]), False),
        (
            decided(
                11,
                1,
                (0, 2),
                (1, 2, 4, 3),
                reason="alter_partition",
                replicas=[1, 2, 4, 3],
                adding=[4],
                removing=[3],
            ),
            False,
        ),
        (decided(11, 1, (1, 2), (1, 2), reason="alter_partition", replicas=[1, 2]), False),
        (decided(11, 1, (0, 2), (1, 2), reason="configured", replicas=[1, 2, 4, 3], adding=[4]), False),
    ],
)
def test_a_reassignment_ends_with_its_target_or_where_it_began(event: Event, right: bool) -> None:
    assert ("replicas-otherwise" in kinds(*MOVING, event)) is not right


def test_a_reassignment_begins_with_the_replicas_before() -> None:
    lost = decided(10, 1, (1, 1), (1, 2), reason="reassignment", replicas=[1, 2, 4], adding=[4])
    assert "replicas-otherwise" in kinds(*MOVING[:-1], lost)
    assert kinds(*MOVING) == []


def test_the_last_known_leader_is_not_elected_while_a_member_of_the_elr_is_away() -> None:
    elected = decided(12, 1, (2, 5), (1,), reason="last_known_leader", unclean=True)
    assert "leader-otherwise" in kinds(*UNCLEAN, *unfenced(12, 1, 11, elected))


def test_a_fenced_broker_does_not_begin_in_the_isr_of_a_new_partition() -> None:
    created = decided(8, 1, (0, 0), (1, 2, 3), reason="created")
    assert "isr-otherwise" in kinds(*THREE[:-1], broker(7, "fenced", 3, 3, reason="session_timeout"), created)


def test_the_last_known_elr_of_a_recovery_keeps_all_who_left_the_elr() -> None:
    left = [*LEADERLESS[:-2], *fenced(10, 1, 1, decided(10, -1, (1, 3), (), (1, 2), reason="fenced"))]
    registered = broker(11, "registered", 1, 11, clean=False)
    told = [decided(11, -1, (1, 4), (), (2,), (1,), reason="registered"), registered]
    forgot = [decided(11, -1, (1, 4), (), (2,), (), reason="registered"), registered]
    assert kinds(*left, *told, strategy="balanced") == []
    assert "last-known-elr-otherwise" in kinds(*left, *forgot, strategy="balanced")


def test_an_unclean_election_is_one_of_the_first_replica_that_may_lead_where_it_is_allowed() -> None:
    empty = [*UNCLEAN, decided(12, -1, (1, 5), (), (), (1,), reason="registered")]
    empty.append(broker(12, "registered", 2, 12, clean=False))
    elected = unfenced(13, 3, 3, decided(13, 3, (2, 6), (3,), reason="elected", unclean=True))
    assert kinds(*empty, *elected, unclean_election=True) == []
    assert "leader-otherwise" in kinds(*empty, *elected)


ASKED_FOR = {"reason": "unclean_election", "unclean": True}
ONLY_3 = [*LEADERLESS, *unfenced(11, 3, 3)]
"""b3 is back, and in neither ISR nor ELR."""
OF_REQUESTS = {
    "the one that may": ([*ONLY_3, decided(12, 3, (2, 4), (3,), **ASKED_FOR)], ""),
    "nobody": ([*ONLY_3, decided(12, -1, (1, 4), (), (1, 2), (1,), **ASKED_FOR)], "leader-otherwise"),
    "a fenced one": ([*ONLY_3, decided(12, 2, (2, 4), (2,), **ASKED_FOR)], "leader-otherwise"),
    "one that shuts down": (
        [*ONLY_3, broker(12, "shutting_down", 3, 3), decided(13, 3, (2, 4), (3,), **ASKED_FOR)],
        "leader-otherwise",
    ),
    "not the member of the ELR that is back": (
        [*ONLY_3, broker(12, "unfenced", 2, 2), decided(13, 3, (2, 4), (3,), **ASKED_FOR)],
        "leader-otherwise",
    ),
    "another one than leads": (
        [*WITHOUT_2, *unfenced(11, 3, 3), decided(12, 3, (1, 3), (3,), **ASKED_FOR)],
        "leader-otherwise",
    ),
    "one beside whom others stay in the ELR": (
        [*ONLY_3, decided(12, 3, (2, 4), (3,), (1, 2), **ASKED_FOR)],
        "elr-otherwise",
    ),
}


@pytest.mark.parametrize("elected", OF_REQUESTS)
def test_an_election_that_was_asked_for_elects_whoever_would_be_where_any_may_lead(elected: str) -> None:
    events, kind = OF_REQUESTS[elected]
    of_changes = {"leader-otherwise", "isr-otherwise", "elr-otherwise", "last-known-elr-otherwise"}
    assert of_changes.intersection(kinds(*events)) == ({kind} if kind else set())


def test_changes_are_compared_in_the_order_of_the_metadata_log() -> None:
    late = [*WITHOUT_3[-2:], *WITHOUT_2[-2:]]
    assert kinds(*THREE, *late[2:], *late[:2]) == []


# --- the strategy of the topic ----------------------------------------------------------------------------------------


def configured(offset: int, strategy: str, enabled: str = "false") -> Event:
    config = {
        "min.insync.replicas": "2",
        "unclean.leader.election.enable": enabled,
        "unclean.recovery.strategy": strategy,
    }
    facts = {"name": "t", "id": "x", "config": config}
    return small_evidence.event(offset, "c1", "topic_configured", facts, topic="", partition=-1, offset=offset)


@pytest.mark.parametrize("strategy", ["last-known-leader", "manual"])
def test_where_a_topic_permits_unclean_elections_a_replica_that_is_back_leads(strategy: str) -> None:
    """b3 is back and in neither ISR nor ELR: it is elected where any replica may be, and waits elsewhere."""

    def must_lead(*events: Event, **settings: Any) -> bool:
        found = kinds(*events, *LEADERLESS, *unfenced(12, 3, 3), strategy=strategy, **settings)
        return "left-without-leader" in found

    assert must_lead(configured(0, strategy, "true"), unclean_election=True)
    assert not must_lead(configured(0, strategy))
    assert not must_lead(unclean_election=True), "it is not known of the topic"
    assert not must_lead(configured(0, "proactive", "true"), unclean_election=True), "a recovery is to elect one"


def test_where_a_topic_permits_unclean_elections_any_replica_leads_once_the_others_are_gone() -> None:
    only_3_out = [configured(0, "last-known-leader", "true"), *WITHOUT_2, *unfenced(10, 3, 3)]
    left = fenced(11, 1, 1, decided(11, -1, (1, 3), (), (1, 2), (1,), reason="fenced"))
    elected = fenced(11, 1, 1, decided(11, 3, (1, 3), (3,), reason="fenced", unclean=True))
    assert kinds(*only_3_out, *elected, unclean_election=True) == []
    assert kinds(*only_3_out, *left, unclean_election=True) == ["leader-otherwise", "left-without-leader"]


TO_BALANCED = configured(11, "balanced")
FORMER_2 = [
    *WITHOUT_2,
    decided(10, 1, (0, 3), (1,), reason="registered"),
    broker(10, "registered", 2, 10, clean=False),
]
"""1 leads alone, and by `last-known-leader` nobody knows that 2 was the last to leave the ELR."""


def test_the_strategy_is_that_of_the_topic_at_the_time() -> None:
    left_elr = decided(10, 1, (0, 3), (1,), (), (2,), reason="registered")
    events = [*WITHOUT_2, left_elr, broker(10, "registered", 2, 10, clean=False)]
    assert "last-known-elr-otherwise" in kinds(*events)
    assert kinds(configured(7, "balanced"), *events) == []
    assert "last-known-elr-otherwise" in kinds(configured(11, "balanced"), *events)
    assert "last-known-elr-otherwise" in kinds(configured(7, "last-known-leader"), *events, strategy="balanced")


@pytest.mark.parametrize("strategy", ["balanced", "manual"])
@pytest.mark.parametrize("before", ["last-known-leader", "proactive"])
def test_no_strategy_that_finds_every_record_begins_where_nobody_recorded_who_left_the_elr(
    before: str, strategy: str
) -> None:
    begins = configured(11, strategy)
    recorded = (2,) if before == "proactive" else ()
    former_2 = [*WITHOUT_2, decided(10, 1, (0, 3), (1,), (), recorded, reason="registered"), FORMER_2[-1]]
    assert kinds(*former_2, begins, strategy=before) == ["strategy-changed-early"]
    back = [*unfenced(12, 2, 10), decided(13, 1, (0, 4), (1, 2), reason="alter_partition")]
    assert kinds(*former_2, *back, configured(14, strategy), strategy=before) == []
    assert kinds(*WITHOUT_2, begins, strategy=before) == [], "2 is in the ELR"


def test_other_changes_of_the_strategy_need_no_replica() -> None:
    for strategy in ("proactive", "last-known-leader"):
        assert kinds(*FORMER_2, configured(11, strategy)) == []
    left_elr = decided(10, 1, (0, 3), (1,), (), (2,), reason="registered")
    former_2 = [configured(7, "manual"), *WITHOUT_2, left_elr, FORMER_2[-1]]
    assert kinds(*former_2, TO_BALANCED) == []


def test_the_minimum_that_counts_is_the_new_one() -> None:
    def begins(minimum: str) -> list[str]:
        config = {"min.insync.replicas": minimum, "unclean.recovery.strategy": "balanced"}
        return kinds(*FORMER_2, TO_BALANCED | {"detail": json.dumps({"name": "t", "id": "x", "config": config})})

    assert "strategy-changed-early" not in begins("1")
    assert "strategy-changed-early" in begins("2")
    assert "strategy-changed-early" in begins("4"), "no more than there are replicas"


def test_a_partition_that_a_change_of_the_strategy_should_change_and_does_not_is_found() -> None:
    assert kinds(*LEADERLESS, TO_BALANCED) == ["last-known-elr-otherwise"]
    assert kinds(configured(7, "manual"), *THREE, TO_BALANCED) == []


def test_a_member_of_the_elr_is_not_last_known_under_another_strategy_than_the_last_leader() -> None:
    assert kinds(*LEADERLESS, TO_BALANCED, decided(11, -1, (1, 4), (), (1, 2), (), reason="configured")) == []
    others = decided(11, -1, (1, 4), (), (1, 2), (3,), reason="configured")
    assert "last-known-elr-otherwise" in kinds(*LEADERLESS, TO_BALANCED, others)


def test_a_member_of_the_elr_is_last_known_once_the_strategy_is_the_last_leader() -> None:
    left = [
        configured(7, "balanced"),
        *WITHOUT_2,
        *fenced(10, 1, 1, decided(10, -1, (1, 3), (), (1, 2), reason="fenced")),
        decided(11, -1, (1, 4), (), (2,), (1,), reason="registered"),
        broker(11, "registered", 1, 11, clean=False),
        configured(12, "last-known-leader"),
    ]
    assert kinds(*left, decided(12, -1, (1, 5), (), (2,), (2,), reason="configured")) == []
    assert "last-known-elr-otherwise" in kinds(*left, decided(12, -1, (1, 5), (), (2,), (1, 2), reason="configured"))


@pytest.mark.parametrize(("earlier", "found"), [("manual", []), ("last-known-leader", ["partition-epoch-stood"])])
def test_a_new_minimum_may_come_with_the_election_that_a_new_strategy_brings(earlier: str, found: list[str]) -> None:
    """1 was last in the ELR, and is back. A random run replaced all of a topic's configuration: two settings in one."""
    leads_again = decided(13, 1, (2, 5), (1,), reason="last_known_leader", unclean=True)
    events = [
        configured(6, earlier),
        *THREE[:-1],
        decided(7, 1, (0, 0), (1, 2, 3), reason="created", min_isr=1),
        *fenced(8, 3, 3, decided(8, 1, (0, 1), (1, 2), reason="fenced", min_isr=1)),
        *fenced(9, 2, 2, decided(9, 1, (0, 2), (1,), reason="fenced", min_isr=1)),
        *fenced(10, 1, 1, decided(10, -1, (1, 3), (), (1,), reason="fenced", min_isr=1)),
        decided(11, -1, (1, 4), (), (), (1,), reason="registered", min_isr=1),
        broker(11, "registered", 1, 11, clean=False),
        *unfenced(12, 1, 11),
        configured(13, "last-known-leader"),
        leads_again,
    ]
    assert [kind for kind in kinds(*events, strategy=earlier) if kind == "partition-epoch-stood"] == found


RECOVERED = [
    *WITHOUT_2,
    configured(10, "balanced"),
    decided(11, 1, (0, 3), (1,), (), (2,), reason="registered"),
    broker(11, "registered", 2, 11, clean=False),
    *fenced(12, 1, 1, decided(12, -1, (1, 4), (), (1,), (2,), reason="fenced")),
    decided(13, -1, (1, 5), (), (), (1, 2), reason="registered"),
    broker(13, "registered", 1, 13, clean=False),
    *unfenced(14, 2, 11),
]


def recovered(*last_known: int, min_isr: int = 2, partition_epoch: int = 6) -> Event:
    told = {"told": {"1": [0, 5], "2": [0, 5]}, "unclean": True, "min_isr": min_isr}
    return decided(15, 2, (2, partition_epoch), (2,), (), last_known, reason="unclean_recovery", **told)


def test_a_recovery_is_one_by_the_strategy_that_the_topic_has_by_then() -> None:
    assert kinds(*RECOVERED, recovered(1)) == []
    events = [event for event in RECOVERED if event["kind"] != "topic_configured"]
    assert "unclean-election" in kinds(*events, recovered(1))


@pytest.mark.parametrize(("min_isr", "last_known"), [(2, (1,)), (1, ())])
def test_a_recovery_forgets_the_others_exactly_when_its_leader_is_enough_for_an_isr(
    min_isr: int, last_known: tuple[int, ...]
) -> None:
    events = list(RECOVERED)
    if min_isr == 1:
        events.append(decided(14, -1, (1, 6), (), (), (1, 2), reason="configured", min_isr=1))
    for forgotten in ((), (1,)):
        change = recovered(*forgotten, min_isr=min_isr, partition_epoch=7 if min_isr == 1 else 6)
        assert (kinds(*events, change) == []) is (forgotten == last_known)
