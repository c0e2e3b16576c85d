"""The situations of a partition, as the trace tells them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from results.situations.replay import RunSituations, situations_of
from results.situations.situation import ProtocolSituation
from tests.checkers import small_evidence

Event = dict[str, Any]


def event(time_s: float, node: str, kind: str, detail: Mapping[str, Any] | None = None, **fields: Any) -> Event:
    return small_evidence.event(time_s, node, kind, detail, **fields)


def decided(
    time_s: float, leader: int, epoch: int, isr: Sequence[int], elr: Sequence[int] = (), **fields: Any
) -> Event:
    """The controllers' decision; the metadata log ends at its time in seconds, which is the partition epoch, too."""
    facts = {"elr": list(elr), "replicas": [1, 2, 3], "min_isr": 2} | fields
    number = round(time_s)
    at = {"leader": leader, "leader_epoch": epoch, "members": list(isr), "offset": number, "partition_epoch": number}
    return event(time_s, "c1", "partition_changed", facts, **at)


def leads(time_s: float, node: str, epoch: int, start: int, isr: Sequence[int] = (1, 2, 3)) -> Event:
    fields = {"offset": start, "log_end": start, "leader_epoch": epoch, "members": list(isr)}
    return event(time_s, node, "became_leader", partition_epoch=round(time_s), **fields)


def follows(time_s: float, node: str, epoch: int, end: int = 0) -> Event:
    return event(time_s, node, "became_follower", log_end=end, leader_epoch=epoch)


def appended(time_s: float, node: str, offset: int, end: int, epoch: int = 1) -> Event:
    return event(time_s, node, "appended", offset=offset, log_end=end, leader_epoch=epoch)


def moved(time_s: float, node: str, after: int, kind: str = "high_watermark") -> Event:
    return event(time_s, node, kind, high_watermark=after)


def knows(time_s: float, node: str, after: int) -> Event:
    return moved(time_s, node, after, "follower_high_watermark")


def codes(*events: Event) -> list[str]:
    """The situations in the order in which they begin."""
    return [situation.code for situation in situations_of(small_evidence.trace(*events)).situations]


def last(*events: Event) -> str:
    return codes(*events)[-1]


BORN = [decided(1, 1, 1, (1, 2, 3)), leads(2, "b1", 1, 0), follows(2, "b2", 1), follows(2, "b3", 1)]
COMMITTED = [
    *BORN,
    *(appended(3, node, 0, 5) for node in ("b1", "b2", "b3")),
    moved(3, "b1", 5),
    knows(3, "b2", 5),
    knows(3, "b3", 5),
]
ELECTED = [*COMMITTED, decided(4, 2, 2, (2, 3)), event(4, "c1", "broker_fenced", {}, broker=1)]
"""Broker 1 is fenced, and the log of each replica has five committed records."""


def test_a_record_is_appended_replicated_and_committed() -> None:
    events = [*BORN, appended(3, "b1", 0, 1), appended(4, "b2", 0, 1), appended(5, "b3", 0, 1), moved(6, "b1", 1)]
    assert codes(*events, knows(7, "b3", 1)) == [
        "E> nI--.=.c nI--.=.c nI--.=.c",
        "L> FI--i==c FI--i==c LI--.=nc",
        "L> FI--i=sc FI--i=sc LI--.>rc",
        "L> FI--i=sc FI--i>=c LI--.>rc",
        "L> FI--i>=c FI--i>=c LI--.>rc",
        "L> FI--i==b FI--i==b LI--.=rc",
        "L> FI--i==b FI--i==c LI--.=rc",
    ]


def test_a_deposed_leader_has_records_that_the_new_leader_lacks() -> None:
    deposed = [*ELECTED, appended(5, "b1", 5, 7), leads(6, "b2", 2, 5, (2, 3)), follows(6, "b3", 2, 5)]
    assert last(*deposed) == "L= FI--i==c LI--.=nc lox-o>lc"
    assert last(*deposed, appended(7, "b2", 5, 6, 2)) == "L= FI--i=sc LI--.>rc lox-o>dc"
    shorter = [*deposed, event(8, "b1", "truncated", {}, offset=5, log_end=7), follows(8, "b1", 2, 5)]
    assert last(*shorter) == "L= FI--i==c Fox-o==c LI--.=nc"


def test_a_new_leader_may_not_know_what_is_committed() -> None:
    late = [it for it in COMMITTED if it["kind"] != "follower_high_watermark"]
    assert last(*late, decided(4, 2, 2, (2, 3)), leads(5, "b2", 2, 5)) == "L= LI--.=bb fI--i==b lo--i==c"


def test_a_follower_is_short_of_the_epoch_start_until_the_leader_knows_what_is_committed() -> None:
    events = [*COMMITTED, appended(4, "b2", 5, 8), decided(4, 2, 2, (1, 2, 3)), leads(5, "b2", 2, 8)]
    assert last(*events) == "L> LI--.>bc fI--i=gc lI--i=gc"
    assert last(*events, moved(6, "b2", 8)) == "L> LI--.=nc fI--i<sb lI--i<sb"


def test_an_isr_change_is_in_flight_until_it_is_answered() -> None:
    proposed = [*COMMITTED, event(4, "b1", "isr_proposed", {}, members=[1, 2])]
    assert last(*proposed) == "L> FI---==c FI--i==c LI--p=rc"
    committed = [*proposed, decided(5, 1, 1, (1, 2))]
    assert last(*committed) == "L= FI--i==c Fo---==c LI--p=rc"
    answered = event(6, "b1", "isr_committed", partition_epoch=5, members=[1, 2])
    assert last(*committed, answered) == "L= FI--i==c Fo--o==c LI--.=rc"


def test_a_refused_change_may_still_be_committed_unless_it_is_rolled_back() -> None:
    out = [*COMMITTED, decided(4, 1, 1, (1, 2)), event(5, "b1", "isr_committed", partition_epoch=4, members=[1, 2])]
    proposed = [*out, event(6, "b1", "isr_proposed", {}, members=[1, 2, 3])]
    refused = {"error": "ineligible_replica"}
    assert last(*proposed) == "L= FI--i==c Fo--+==c LI--p=rc"
    assert last(*proposed, event(7, "b1", "isr_rejected", {**refused, "rolled_back": False})).split()[2] == "Fo--?==c"
    assert codes(*proposed, event(7, "b1", "isr_rejected", {"error": "fenced", "rolled_back": False}))[-1].endswith(
        "p=rc"
    )
    rolled_back = situations_of(
        small_evidence.trace(*proposed, event(7, "b1", "isr_rejected", {**refused, "rolled_back": True}))
    )
    assert rolled_back.situations[ProtocolSituation("L= FI--i==c Fo--o==c LI--.=rc")] == 2


def test_a_leader_reads_of_an_isr_that_was_changed_without_it() -> None:
    changed = [*COMMITTED, decided(4, 1, 1, (1, 2))]
    assert last(*changed) == "L= FI--i==c Fo--i==c LI--.=rc"
    assert last(*changed, event(5, "b1", "metadata_applied", log_end=4)) == "L= FI--i==c Fo--o==c LI--.=rc"
    assert last(*changed, event(5, "b1", "metadata_applied", log_end=3)) == last(*changed)


def test_a_replica_is_unclean_from_its_registration_until_it_is_in_the_isr_again() -> None:
    unclean = [
        *COMMITTED,
        event(4, "c1", "broker_registered", {"clean": False}, broker=3),
        decided(4, 1, 1, (1, 2)),
        event(4, "b3", "node_started"),
        event(4, "b3", "log_recovered", offset=0, log_end=2, high_watermark=2),
    ]
    assert last(*unclean) == "L= FI--i==c LI--.=rc noxui<sb"
    assert last(*unclean, decided(5, 1, 1, (1, 2, 3))) == "L> FI--i==c LI--.=rc nIx-i<sb"
    clean = [it | {"detail": it["detail"].replace("false", "true")} for it in unclean]
    assert last(*clean) == "L= FI--i==c LI--.=rc nox-i<sb"


def test_the_events_of_one_instant_are_one_step() -> None:
    events = [*BORN, appended(3, "b1", 0, 1), appended(3, "b2", 0, 1), appended(3, "b3", 0, 1), moved(3, "b1", 1)]
    assert codes(*events)[2:] == ["L> FI--i==b FI--i==b LI--.=rc"]
    (transition,) = [
        it for it in situations_of(small_evidence.trace(*events)).transitions if it.after.code.endswith("LI--.=rc")
    ]
    assert transition.event == "appended"
    assert transition.before is not None
    assert transition.before.code == "L> FI--i==c FI--i==c LI--.=nc"


def test_a_decision_that_a_deposed_controller_traces_late_is_left_out() -> None:
    assert last(*ELECTED) == last(*ELECTED, decided(2, 1, 1, (1, 2, 3)) | {"time_ns": 9 * small_evidence.S})


def test_a_partition_that_was_deleted_comes_into_no_situation_any_more() -> None:
    ended = event(5, "c1", "partition_deleted", offset=5)
    later = [event(6, "c1", "broker_fenced", {}, broker=2), appended(7, "b1", 5, 7)]
    assert codes(*ELECTED, ended, *later) == codes(*ELECTED)
    assert codes(*ELECTED, *later) != codes(*ELECTED)


LONG = [
    *ELECTED,
    appended(5, "b1", 5, 7),
    leads(6, "b2", 2, 5, (2, 3)),
    follows(7, "b3", 2, 5),
    appended(8, "b2", 5, 6, 2),
    appended(9, "b3", 5, 6, 2),
    moved(10, "b2", 6),
    event(11, "b2", "isr_proposed", {}, members=[1, 2, 3]),
]


def of(events: Sequence[Event]) -> RunSituations:
    return situations_of(small_evidence.trace(*events))


def test_situations_do_not_depend_on_the_names_of_brokers() -> None:
    names = {1: 3, 2: 1, 3: 2, -1: -1}

    def renamed(row: Event) -> Event:
        detail = json.loads(row["detail"]) if row["detail"] else {}
        if "replicas" in detail:
            detail["elr"] = [names[member] for member in detail["elr"]]
        node = f"b{names[int(row['node'][1:])]}" if row["node"].startswith("b") else row["node"]
        members = [names[member] for member in row["members"]]
        known = {name: names[row[name]] for name in ("leader", "broker")}
        return row | known | {"node": node, "members": members, "detail": json.dumps(detail)}

    assert of([renamed(row) for row in LONG]) == of(LONG)
    assert len(of(LONG).situations) == 11


def test_situations_do_not_depend_on_offsets_and_epochs() -> None:
    def shifted(row: Event) -> Event:
        """In logs that are longer by 40 records once the first were appended, and in leader epochs above 7."""
        moves = {"log_end": 40, "high_watermark": 40}
        if row["kind"] not in ("partition_changed", "appended") or row["offset"] > 0:
            moves["offset"] = 0 if row["kind"] == "partition_changed" else 40
        at = row | {name: row[name] + by for name, by in moves.items() if row[name] >= 0}
        return at | {"leader_epoch": row["leader_epoch"] + 7 if row["leader_epoch"] >= 0 else -1}

    assert BORN[1]["log_end"] == 0
    epochs_only = [row | {"leader_epoch": shifted(row)["leader_epoch"]} for row in BORN]
    assert of([*epochs_only, *map(shifted, LONG[len(BORN) :])]) == of(LONG)


def test_a_trace_without_decisions_has_no_situation() -> None:
    assert of([leads(2, "b1", 1, 0), appended(3, "b1", 0, 1)]) == RunSituations()
    assert situations_of(pa.Table.from_pylist([], small_evidence.trace().schema)) == RunSituations()


def test_an_event_without_its_partition_is_of_no_other() -> None:
    stray = appended(4, "b1", 0, 1) | {"topic": "", "partition": -1}
    assert of([*COMMITTED, stray]) == of(COMMITTED)


def test_a_situation_has_a_stable_id_and_a_sentence() -> None:
    situation = ProtocolSituation("L= FI--i==c LI--p>rc noxu+<sb")
    assert situation.id == "75d01bb42b2a"
    assert situation.sentence == (
        "the elected leader leads, the ISR is at min.insync.replicas: "
        "leader, in the ISR, with an ISR change in flight, has records that are not committed, records of its own "
        "epoch; follower, in the ISR, ends with the committed records, log like the leader's; replica without a role, "
        "out of the ISR, fenced, shut down uncleanly since it was in the ISR, proposed to join the ISR, lacks "
        "committed records, log shorter than the leader's, does not know all committed records"
    )
    assert "3 × replica without a role, in the ISR" in ProtocolSituation("E> nI--.=.c nI--.=.c nI--.=.c").sentence
