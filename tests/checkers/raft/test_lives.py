"""One life of a broker's process after the other: clean shutdowns that are claimed, and brokers that leave."""

from __future__ import annotations

from typing import Any

import pytest

from checkers.raft.lives import broker_epoch_findings, life_findings
from tests.checkers import small_evidence

Event = dict[str, Any]


def kinds(*events: Event, liar: str = "", since_s: float = 0) -> list[str]:
    lied_since = {liar: round(since_s * small_evidence.S)}
    return [finding.kind for finding in life_findings(small_evidence.trace(*events), lied_since)]


def stopped(time_s: float, epoch: int) -> Event:
    return small_evidence.event(time_s, "b1", "clean_shutdown", broker_epoch=epoch)


def started(time_s: float, claim: int = -1) -> Event:
    return small_evidence.event(time_s, "b1", "node_started", broker_epoch=claim)


def decided(offset: int, kind: str, epoch: int = 1, **detail: Any) -> Event:
    return small_evidence.event(
        offset, "c1", f"broker_{kind}", detail, broker=1, broker_epoch=epoch, offset=offset
    )  # fmt: skip


def test_a_registration_has_a_higher_broker_epoch_than_any_before() -> None:
    def fell(*events: Event) -> list[str]:
        return [finding.kind for finding in broker_epoch_findings(small_evidence.trace(*events))]

    first, second = decided(6, "registered", 5), decided(8, "registered", 7)
    assert fell(first, second, decided(9, "registered", 7)) == ["broker-epoch-fell"]
    assert fell(first, second, decided(9, "registered", 6)) == ["broker-epoch-fell"]
    assert fell(first, second, decided(8, "registered", 7) | {"broker": 2}) == ["broker-epoch-fell"]
    # Its controller was deposed, and traces it when its successor has done so, or has registered another one since.
    assert fell(first, first) == fell(first, second, first) == []


def test_a_clean_shutdown_is_claimed_by_the_next_life_alone() -> None:
    first = [stopped(1, 5), started(2, 5)]
    assert kinds(*first, started(3)) == []
    assert kinds(*first, started(3, 5)) == ["clean-claim-repeated"]
    assert kinds(*first, started(3, 5), started(4, 5)) == ["clean-claim-repeated"] * 2


def test_a_life_that_left_the_mark_as_it_was_lets_the_next_one_claim_it() -> None:
    assert kinds(stopped(1, 5), started(2, 5), stopped(3, 5), started(4, 5)) == []


def test_a_life_that_ended_before_it_was_traced_has_claimed_nothing() -> None:
    assert kinds(stopped(1, 5), started(2), started(3, 5)) == []


def test_a_disk_that_lied_may_bring_the_mark_back() -> None:
    again = [stopped(1, 5), started(2, 5), started(3, 5)]
    assert kinds(*again, liar="b1") == []
    assert kinds(*again, liar="b2") == ["clean-claim-repeated"]
    assert kinds(*again, liar="b1", since_s=60) == ["clean-claim-repeated"], "its disk lied only afterwards"


def test_a_clean_shutdown_counts_until_a_process_hears_that_it_is_registered() -> None:
    """The next one is registered as unclean otherwise, and leaves the ELR with all that it holds."""
    first = decided(2, "registered", 7, clean=True, previous=5, known=5, incarnation="first")
    other = decided(3, "registered", 9, clean=False, previous=5, known=7, incarnation="other")
    stop, start = stopped(1, 5), started(1.5, 5)
    assert kinds(stop, start, first, stopped(2.5, 5), started(2.7, 5), other) == ["clean-shutdown-forgotten"]
    assert kinds(stop, start, first, stopped(2.5, 5), started(2.7, 5), other, liar="b1") == []
    late = kinds(stop, start, first, stopped(2.5, 5), started(2.7, 5), other, liar="b1", since_s=60)
    assert late == ["clean-shutdown-forgotten"]
    heard = small_evidence.event(2.1, "b1", "registered", broker_epoch=7)
    assert kinds(stop, start, first, heard, other) == []

    def second(**detail: Any) -> Event:
        told = {"clean": False, "previous": 5, "known": 7, "incarnation": "other"} | detail
        return decided(3, "registered", 9, **told)

    assert kinds(stop, start, first, second(previous=-1)) == []  # it was killed
    assert kinds(stop, start, first, second(incarnation="first")) == []  # what arrives late is no other process
    for late in ({"previous": 3}, {"previous": -1}, {"taken_over": True}):
        of_an_earlier_life = decided(
            2, "registered", 7, **{"incarnation": "earlier", "known": 5, "clean": False} | late
        )
        assert kinds(stop, of_an_earlier_life, start, second()) == []


BORN = [decided(2, "registered"), decided(3, "unfenced")]
LEFT = [*BORN, decided(4, "shutting_down"), decided(5, "fenced", reason="controlled_shutdown")]


def test_a_broker_that_shuts_down_comes_back_by_its_next_registration() -> None:
    assert kinds(*LEFT, decided(6, "registered", 6), decided(7, "unfenced", 6)) == []
    for before in (LEFT, LEFT[:3]):
        assert kinds(*before, decided(7, "unfenced")) == ["unfenced-shutting-down"]


@pytest.mark.parametrize(
    ("detail", "right"),
    [
        ({}, True),
        ({"handover": "let_go"}, True),
        ({"handover": "timed_out"}, True),
        ({"handover": "asked"}, False),
        ({"handover": "unasked"}, False),
    ],
)
def test_a_broker_leaves_once_it_is_let_go(detail: dict[str, str], right: bool) -> None:
    left = small_evidence.event(1, "b1", "clean_shutdown", detail, broker_epoch=5)
    assert kinds(left) == ([] if right else ["left-without-handover"])


def test_a_heartbeat_of_the_registered_life_is_not_refused() -> None:
    def refused(node: str, gave: int, known: int) -> Event:
        return small_evidence.event(9, node, "heartbeat_refused", {"known": known}, broker=1, broker_epoch=gave)

    again, taken_over = decided(6, "registered", 6), decided(6, "registered", 6, taken_over=True) | {"node": "c2"}
    first, second = (
        small_evidence.event(at_s, node, "quorum_leader", leader_epoch=epoch)
        for at_s, node, epoch in ((1, "c1", 1), (5, "c2", 2))
    )
    assert kinds(first, *BORN, refused("c1", 0, 1)) == []
    assert kinds(first, *BORN, refused("c1", 1, 1)) == ["current-heartbeat-refused"]
    assert kinds(first, *BORN, again, refused("c1", 1, 6)) == []
    assert kinds(first, *BORN, again, refused("c1", 6, 1)) == ["current-heartbeat-refused"]
    deposed = [first, *BORN, second, taken_over]
    assert kinds(*deposed, refused("c1", 6, 1)) == [], "it has not read of it"
    assert kinds(*deposed, refused("c2", 6, 1)) == ["current-heartbeat-refused"]
    assert kinds(*BORN, again, refused("c1", 6, 1)) == [], "who leads is not known"


def test_a_silent_broker_comes_back_by_its_heartbeat() -> None:
    silent = decided(4, "fenced", reason="session_timeout")
    assert kinds(*BORN, silent, decided(5, "unfenced")) == []
    assert kinds(*BORN, silent | {"detail": '{"taken_over": true}'}, decided(5, "unfenced")) == []


def test_a_broker_is_told_of_its_registration_once_that_is_committed() -> None:
    told = [small_evidence.event(2 + epoch, "b1", "registered", broker_epoch=epoch) for epoch in (1, 6)]
    assert kinds(*BORN, *told) == ["registered-undecided"]
    assert kinds(*BORN, *told, decided(9, "registered", 6)) == []  # a successor traces it late
    assert kinds(*told) == []  # the trace has no controllers
