"""A system without a trace is checked by what its controllers decided: leaders and epochs, and metadata logs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from checkers.evidence import CheckSettings, EvidenceGap, EvidencePart, RunEvidence
from checkers.protocol import checker as protocol
from checkers.raft import checker as raft
from checkers.registry import applicable_checkers, run_checker
from checkers.verdict import Validity
from tests.checkers import small_evidence

Event = dict[str, Any]
SETTINGS = CheckSettings(has_trace=False, has_decisions=True, comparable_clocks=False)


def decided(
    offset: int, leader: int, epoch: int, isr: Sequence[int], *, reason: str = "decided", **detail: Any
) -> Event:
    facts = {"elr": [], "last_known_elr": [], "replicas": [1, 2, 3], "adding": [], "min_isr": 2, "reason": reason}
    return small_evidence.event(
        offset,
        "c1",
        "partition_changed",
        facts | detail,
        leader=leader,
        leader_epoch=epoch,
        partition_epoch=offset,
        members=list(isr),
        offset=offset,
    )


BORN = decided(0, 1, 0, (1, 2, 3), reason="created")


def protocol_kinds(
    *events: Event, epochs: Sequence[int] = (0,), checkpoint: str = "", faults: Sequence[Event] = (), **settings: Any
) -> list[str]:
    replicas, ends = small_evidence.logs(b1=[(epoch, number) for number, epoch in enumerate(epochs)])
    ends = small_evidence.checkpointed(ends, b1=checkpoint)
    values = SETTINGS.to_json() | settings
    evidence = RunEvidence(
        trace=small_evidence.trace(*events),
        replicas=replicas,
        replica_ends=ends,
        faults=small_evidence.faults(*faults),
        settings=CheckSettings.from_json(values),
    )
    verdict = run_checker(protocol.NAME, protocol.check, evidence)
    *findings, note = verdict.findings
    assert note.kind == "decisions-alone"
    assert (verdict.validity is Validity.INVALID) is bool(findings)
    return [finding.kind for finding in findings]


@pytest.mark.parametrize(
    ("events", "kinds"),
    [
        ([decided(1, 1, 0, (1, 2)), decided(2, 2, 1, (2,))], []),
        ([decided(1, 2, 1, (2,)), decided(2, 1, 2, (1,))], ["unclean-election"]),
        ([decided(1, -1, 1, (), last_known_elr=[3]), decided(2, 3, 2, (3,), reason="last_known_leader")], []),
        ([decided(1, 2, 0, (2, 3))], ["leader-epoch-stood"]),
        ([decided(1, 1, 1, (1,), replicas=[1], elr=[])], []),
        ([decided(1, 1, 0, (1, 2, 4), replicas=[1, 2, 4])], ["leader-epoch-stood", "reassignment-joins-isr"]),
    ],
)
def test_decisions_are_held_to_the_promises_about_them(events: list[Event], kinds: list[str]) -> None:
    """The last but one takes two replicas of three away at once: Kafka does not promise a large ISR after it."""
    assert sorted(protocol_kinds(BORN, *events)) == kinds


ADDS_4 = decided(1, 1, 0, (1, 2, 3), replicas=[1, 2, 3, 4], adding=[4], reason="reassignment")


@pytest.mark.parametrize(
    ("facts", "kinds"),
    [
        ({"replicas": [1, 2, 3, 4]}, ["reassignment-completed-early"]),
        ({"replicas": [1, 2, 3, 5, 4], "adding": [5], "removing": [4]}, []),
    ],
)
def test_a_reassignment_is_completed_early_and_not_by_another_one_that_replaces_it(
    facts: dict[str, list[int]], kinds: list[str]
) -> None:
    """Kafka keeps the replicas that the first one was adding until the second one completes."""
    after = decided(2, 1, 0, (1, 2, 3), reason="reassignment", **facts)
    assert protocol_kinds(BORN, ADDS_4, after) == kinds


def session(time_s: float, kind: str, broker: int, offset: int) -> Event:
    return small_evidence.event(time_s, "c1", kind, broker=broker, offset=offset)


@pytest.mark.parametrize(
    ("kind", "change", "finding"),
    [
        ("broker_fenced", decided(2, 2, 1, (2, 3)), "fenced-broker-elected"),
        ("broker_registered", decided(2, 2, 1, (2, 3)), "fenced-broker-elected"),
        ("broker_fenced", decided(2, 1, 0, (1, 3, 2), reason="alter_partition"), "fenced-broker-joined-isr"),
    ],
)
def test_a_broker_without_a_session_is_neither_elected_nor_let_into_the_isr(
    kind: str, change: Event, finding: str
) -> None:
    born = decided(0.5, 1, 0, (1, 3), elr=[2])
    assert protocol_kinds(born, session(1, kind, 2, 7), change) == [finding]
    assert protocol_kinds(born, session(1, kind, 2, 7), session(1.5, "broker_unfenced", 2, 8), change) == []
    late = [session(1, "broker_unfenced", 2, 8), session(1.5, kind, 2, 7)]
    assert protocol_kinds(born, *late, change) == [], "a controller that was deposed traced it late"


def test_an_unclean_election_that_the_settings_permit_is_none() -> None:
    events = [BORN, decided(1, 2, 1, (2,)), decided(2, 1, 2, (1,))]
    assert protocol_kinds(*events, unclean_election=True) == []


def test_records_on_disk_are_of_epochs_that_were_decided() -> None:
    assert protocol_kinds(BORN, decided(1, 2, 1, (2, 3)), epochs=(0, 0, 1)) == []
    assert protocol_kinds(BORN, decided(1, 2, 1, (2, 3)), epochs=(0, 0, 2)) == ["epoch-undecided"]
    assert protocol_kinds(BORN, decided(1, -1, 1, (2, 3)), epochs=(0, 1)) == ["epoch-undecided"], "nobody led then"


def test_entries_of_an_epoch_checkpoint_are_of_epochs_that_were_decided() -> None:
    events, kept = (BORN, decided(1, 2, 1, (2, 3))), {"has_epoch_checkpoints": True}
    assert protocol_kinds(*events, checkpoint="[[0, 0], [1, 1]]", **kept) == []
    assert protocol_kinds(*events, checkpoint="[[0, 0], [2, 1]]", **kept) == ["epoch-undecided"]
    assert protocol_kinds(*events, checkpoint="[[0, 0], [2, 1]]") == []
    assert protocol_kinds(*events, checkpoint="damaged", **kept) == [], "checkers.logs reports it"
    both = protocol_kinds(*events, epochs=(0, 2), checkpoint="[[0, 0], [2, 1]]", **kept)
    assert both == ["epoch-undecided"], "one finding of a node and a leader epoch"


def test_leader_epochs_before_a_snapshot_are_not_known() -> None:
    kept, restored = {"has_epoch_checkpoints": True}, decided(5, 1, 4, (1, 2), reason="snapshot")
    told = [restored, decided(6, 2, 5, (2,))]
    checkpoint = "[[0, 0], [3, 1], [4, 2]]"
    assert protocol_kinds(*told, epochs=(0, 3, 4, 5), checkpoint=checkpoint, **kept) == []
    assert protocol_kinds(*told, epochs=(0, 3, 4, 6), checkpoint=checkpoint, **kept) == ["epoch-undecided"]
    assert protocol_kinds(*told, epochs=(0,), checkpoint="[[0, 0], [6, 1]]", **kept) == ["epoch-undecided"]
    nobody = decided(5, -1, 4, (1, 2), reason="snapshot")
    assert protocol_kinds(nobody, epochs=(3, 4)) == ["epoch-undecided"], "nobody led in the epoch of the snapshot"


def test_a_snapshot_may_have_a_fenced_broker_in_the_isr() -> None:
    """The last member stays in the ISR when it is fenced, without eligible leader replicas."""
    restored = decided(5, -1, 4, (1,), reason="snapshot")
    registered = [session(5, "broker_registered", broker, 5) for broker in (1, 2)]
    told = [restored, *registered, session(5, "broker_unfenced", 2, 5)]
    assert protocol_kinds(*told, epochs=()) == []
    assert protocol_kinds(*told, decided(6, 1, 5, (1,)), epochs=()) == ["fenced-broker-elected"]
    assert protocol_kinds(*told, session(6, "broker_unfenced", 1, 7), decided(8, 1, 5, (1,)), epochs=()) == []


def opened(time_s: float, end: int, node: str = "b1") -> Event:
    return small_evidence.event(time_s, node, "log_recovered", {"clean": True}, offset=0, log_end=end)


def cut(time_s: float, to: int) -> Event:
    return small_evidence.event(time_s, "b1", "truncated", offset=to)


@pytest.mark.parametrize(
    ("told", "kinds"),
    [
        ([opened(1, 0), opened(2, 5)], []),
        ([opened(1, 7), cut(2, 4), opened(3, 4), opened(4, 5)], []),
        ([opened(1, 7), opened(2, 6), cut(3, 2)], ["log-shortened"]),
        ([opened(1, 7), cut(2, 4), opened(3, 3)], ["log-shortened"]),
        ([opened(1, 0), opened(2, 6)], ["log-end-not-on-disk"]),
        ([opened(1, 9), cut(2, 6)], ["log-end-not-on-disk"]),
        ([opened(1, 9, "b2"), opened(2, 8, "b3")], []),
    ],
)
def test_logs_end_no_earlier_than_their_brokers_said(told: list[Event], kinds: list[str]) -> None:
    """On its disk the log of b1 has five records."""
    assert protocol_kinds(BORN, *told, epochs=[0] * 5) == kinds
    removed = decided(9, 2, 1, (2, 3), replicas=[2, 3])
    assert protocol_kinds(BORN, *told, removed, epochs=[0] * 5) == [], "its replica was removed at some time"
    lost = small_evidence.fault("power-loss", ["b1"], 1.5, 2.0, {"killed": 1, "unsynced_bytes": 9, "lost_bytes": 9})
    assert protocol_kinds(BORN, *told, epochs=[0] * 5, faults=[lost]) == []
    killed = small_evidence.fault("kill", ["b1"], 1.5, 2.0, {"killed": 1})
    assert protocol_kinds(BORN, *told, epochs=[0] * 5, faults=[killed]) == kinds


def appended(node: str, offset: int, end: int, epoch: int, crc: int = 7) -> Event:
    return small_evidence.event(
        1, node, "metadata_appended", {"crc": crc}, leader_epoch=epoch, offset=offset, log_end=end
    )


def raft_kinds(*events: Event) -> list[str]:
    evidence = RunEvidence(trace=small_evidence.trace(*events), settings=SETTINGS)
    verdict = run_checker(raft.NAME, raft.check, evidence)
    findings = [finding.kind for finding in verdict.findings if finding.kind != "decisions-alone"]
    assert (verdict.validity is Validity.INVALID) is bool(findings)
    return findings


def test_metadata_logs_are_compared_as_they_lie_on_disk() -> None:
    same = [appended(node, 0, 3, 1) for node in ("c1", "c2", "c3")]
    elected = small_evidence.event(1, "c1", "quorum_leader", leader_epoch=1)
    assert raft_kinds(*same, elected) == []
    assert raft_kinds(*same, elected, small_evidence.event(2, "c2", "quorum_leader", leader_epoch=1)) == [
        "two-controllers-one-epoch"
    ]
    assert raft_kinds(*same, appended("c1", 3, 4, 2), appended("c2", 3, 4, 2, crc=8)) == ["metadata-logs-differ"]
    broker = [small_evidence.event(2, "c1", "broker_registered", broker=1, broker_epoch=epoch) for epoch in (9, 9)]
    assert raft_kinds(*same, *broker) == ["broker-epoch-fell"]
    blocks = [
        small_evidence.event(2, "c1", "producer_ids_allocated", {"first": first, "count": 1000}, broker=1)
        for first in (0, 500)
    ]
    assert raft_kinds(*same, *blocks) == ["producer-ids-allocated-twice"]


def test_each_check_says_for_itself_whether_decisions_are_enough() -> None:
    assert {"protocol", "raft"} <= applicable_checkers(SETTINGS).keys()
    assert not {"visibility", "coordinator"} & applicable_checkers(SETTINGS).keys()
    gap = EvidenceGap(EvidencePart.TRACE, "the metadata logs that were read tell of no decision about t-0")
    for name, check in ((protocol.NAME, protocol.check), (raft.NAME, raft.check)):
        verdict = run_checker(name, check, RunEvidence(settings=SETTINGS, gaps=(gap,)))
        assert (verdict.validity, verdict.findings[0].kind) == (Validity.UNKNOWN, "missing-evidence")
        assert run_checker(name, check, RunEvidence(settings=SETTINGS)).validity is Validity.UNKNOWN
