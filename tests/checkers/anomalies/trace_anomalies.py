"""Anomalies in the protocol trace: logs, high watermarks and proposals of replicas, decisions and blocks of the
controllers, and the brokers that act on them."""

from __future__ import annotations

import json
from dataclasses import replace
from random import Random

import pyarrow as pa

from checkers.evidence import RunEvidence
from checkers.tables import REPLICA_ENDS, TRACE
from tests.checkers.anomalies.anomaly import Anomaly, Injection
from tests.checkers.anomalies.places import Row, rows_of, shuffled
from tests.checkers.anomalies.trace_edits import changed, edited, events_of, facts_of, inserted, with_facts, with_fields

_KEPT_BYTES = 1000
"""What the retention by size keeps of a log in anomalies of it."""


# ---- replicas --------------------------------------------------------------------------------------------------------


def append_other_bytes(evidence: RunEvidence, random: Random) -> Injection | None:
    """One replica appends a batch with another checksum than the others."""

    def edit(events: list[Row], place: int) -> tuple[list[Row], str, int] | None:
        event = events[place]
        same = ("topic", "partition", "offset", "leader_epoch")
        copies = [other for other in events if other["kind"] == "appended" and all(other[n] == event[n] for n in same)]
        if len({other["node"] for other in copies}) < 2:
            return None
        crc = facts_of(event)["crc"] ^ (1 << random.randrange(32))
        line = f"{event['node']} appends other bytes at offset {event['offset']}"
        return with_facts(events, place, crc=crc), line, event["offset"]

    return edited(evidence, random, ("appended",), edit)


def raise_high_watermark_above_log(evidence: RunEvidence, random: Random) -> Injection | None:
    """A follower takes a high watermark above the end of its own log."""

    def edit(events: list[Row], place: int) -> tuple[list[Row], str, int] | None:
        event = events[place]
        end = max(
            other["log_end"]
            for other in events[: place + 1]
            if all(other[name] == event[name] for name in ("node", "topic", "partition"))
        )
        raised = max(end, event["high_watermark"]) + random.randint(1, 5)
        return (
            with_fields(events, place, high_watermark=raised),
            f"{event['node']} takes the high watermark {raised}",
            -1,
        )

    return edited(evidence, random, ("follower_high_watermark",), edit)


def propose_a_follower_behind(evidence: RunEvidence, random: Random) -> Injection | None:
    """A leader proposes a follower for the ISR that it has seen below its high watermark or its epoch's start."""

    def edit(events: list[Row], place: int) -> tuple[list[Row], str, int] | None:
        event = events[place]
        positions, needed = facts_of(event)["positions"], max(event["high_watermark"], event["offset"])
        if not positions or needed < 1:
            return None
        member = random.choice(sorted(positions))
        behind = random.randrange(-1, needed)
        line = f"{event['node']} proposes b{member}, seen at {behind}, below {needed}"
        return with_facts(events, place, positions=positions | {member: behind}), line, behind

    return edited(evidence, random, ("isr_proposed",), edit)


def recover_a_shorter_log(evidence: RunEvidence, random: Random, *, clean: bool) -> Injection | None:
    """A broker restarts at a random moment, and one of its logs comes back without its last record."""

    def edit(events: list[Row], place: int) -> tuple[list[Row], str, int] | None:
        event = events[place]
        after = {"time_ns": event["time_ns"]}
        empty = {name: "" if name in ("topic", "detail") else -1 for name in TRACE.names} | {"members": []} | after
        broker = int(event["node"][1:])
        restart = [
            empty | {"node": event["node"], "kind": "node_started"},
            empty
            | {"node": "c1", "kind": "broker_registered", "broker": broker, "detail": json.dumps({"clean": clean})},
            event | {"kind": "log_recovered", "offset": 0, "log_end": event["log_end"] - 1, "detail": "{}"},
        ]
        line = f"the log of {event['node']} comes back at {event['log_end'] - 1} instead of {event['log_end']}"
        return [*events[: place + 1], *restart, *events[place + 1 :]], line, event["log_end"] - 1

    if not clean and _may_be_shorter(evidence):
        return None
    return edited(evidence, random, ("appended",), edit)


def _may_be_shorter(evidence: RunEvidence) -> bool:
    """Whether a fault lost data or records were deleted: a shorter log need not be a violation then."""
    lossy = any(json.loads(fault["evidence"] or "{}").get("lost_bytes") for fault in evidence.faults.to_pylist())
    return lossy or "log_start" in evidence.trace.column("kind").to_pylist()


def lose_the_end_of_a_log(evidence: RunEvidence, random: Random) -> Injection | None:
    """A replica's log on disk ends below the last record that the node traced."""
    if _may_be_shorter(evidence):
        return None
    ends: list[Row] = evidence.replica_ends.to_pylist()
    for end in shuffled([row for row in ends if row["log_end"] > 0 and not row["topic"].startswith("__")], random):
        cut = end["log_end"] - random.randint(1, min(3, end["log_end"]))
        changed = [row | {"log_end": cut} if row is end else row for row in ends]
        line = f"the disk of {end['node']} has its log up to {cut} instead of {end['log_end']}"
        table = pa.Table.from_pylist(changed, REPLICA_ENDS)
        return Injection(replace(evidence, replica_ends=table), line, end["topic"], end["partition"], cut)
    return None


def follow_a_log_start_ahead(evidence: RunEvidence, random: Random) -> Injection | None:
    """A follower starts its log where another replica has deleted, and neither it nor its leader has."""

    def edit(events: list[Row], place: int) -> tuple[list[Row], str, int] | None:
        event = events[place]
        start = random.randint(1, event["high_watermark"]) if event["high_watermark"] > 0 else 0
        leader, detail = f"b{event['leader']}", '{"before": 0, "reason": "%s"}'
        others = [node for node in ("b1", "b2", "b3") if node not in (event["node"], leader)]
        starts = [other for other in events if other["kind"] == "log_start" and other["topic"] == event["topic"]]
        if not start or event["leader"] < 0 or leader == event["node"] or starts:
            return None
        moved = event | {"kind": "log_start", "offset": start}
        decided = moved | {"node": others[0], "detail": detail % "retention_bytes"}
        followed = moved | {"detail": detail % "leader"}
        line = f"{event['node']} starts its log at {start}, where only {others[0]} has deleted"
        return [*events[: place + 1], decided, followed, *events[place + 1 :]], line, 0

    return edited(evidence, random, ("follower_high_watermark",), edit)


def delete_by_retention(evidence: RunEvidence, random: Random, reason: str) -> Injection | None:
    """A broker deletes for a retention that keeps what it deletes: for a week, or in a log of so many bytes."""

    def edit(events: list[Row], place: int) -> tuple[list[Row], str, int] | None:
        event = events[place]
        told = [
            row["offset"]
            for row in rows_of(evidence.history)
            if (row["kind"], row["outcome"], row["topic"], row["partition"])
            == ("append", "ok", event["topic"], event["partition"])
        ]
        starts = [other for other in events if other["kind"] == "log_start" and other["topic"] == event["topic"]]
        if not told or min(told) >= event["high_watermark"] or starts:
            return None
        start = random.randint(min(told) + 1, event["high_watermark"])
        facts = {"before": 0, "reason": reason, "kept_bytes": random.randrange(_KEPT_BYTES)}
        moved = event | {"kind": "log_start", "offset": start, "detail": json.dumps(facts)}
        offset = start if reason == "retention_bytes" else -1
        return inserted(events, place, moved), f"{event['node']} deletes below {start} for {reason}", offset

    kept = replace(evidence.settings, retention_ms=604_800_000, retention_bytes=_KEPT_BYTES)
    return edited(replace(evidence, settings=kept), random, ("follower_high_watermark",), edit)


# ---- controllers -----------------------------------------------------------------------------------------------------


def _decisions(events: list[Row], place: int) -> tuple[Row | None, Row]:
    """The decision before the one at `place` on the same partition, and this one."""
    event = events[place]
    before = [
        other
        for other in events[:place]
        if other["kind"] == "partition_changed"
        and (other["topic"], other["partition"]) == (event["topic"], event["partition"])
        and other["offset"] < event["offset"]
    ]
    return max(before, key=lambda other: int(other["offset"]), default=None), event


def stand_partition_epoch(evidence: RunEvidence, random: Random) -> Injection | None:
    """A change of a partition keeps its partition epoch, or lowers it."""

    def edit(events: list[Row], place: int) -> tuple[list[Row], str, int] | None:
        before, _ = _decisions(events, place)
        if before is None:
            return None
        epoch = max(0, before["partition_epoch"] - random.randint(0, 2))
        return with_fields(events, place, partition_epoch=epoch), f"the partition epoch changes to {epoch}", -1

    return edited(evidence, random, ("partition_changed",), edit)


def stand_leader_epoch(evidence: RunEvidence, random: Random) -> Injection | None:
    """The leader changes, and its leader epoch does not."""

    def edit(events: list[Row], place: int) -> tuple[list[Row], str, int] | None:
        before, event = _decisions(events, place)
        if before is None or before["leader"] == event["leader"]:
            return None
        epoch = before["leader_epoch"]
        return with_fields(events, place, leader_epoch=epoch), f"leader {event['leader']} has leader epoch {epoch}", -1

    return edited(evidence, random, ("partition_changed",), edit)


_NEW_REPLICA = 9


def join_isr_by_reassignment(evidence: RunEvidence, random: Random) -> Injection | None:
    """A change makes a broker a replica and a member of the ISR at once."""

    def edit(events: list[Row], place: int) -> tuple[list[Row], str, int] | None:
        before, event = _decisions(events, place)
        if before is None:
            return None
        replicas = facts_of(event)["replicas"]
        changed = with_fields(events, place, members=[*event["members"], _NEW_REPLICA])
        return (
            with_facts(changed, place, replicas=[*replicas, _NEW_REPLICA]),
            f"b{_NEW_REPLICA} joins replicas and ISR",
            -1,
        )

    return edited(evidence, random, ("partition_changed",), edit)


def _reassigned(events: list[Row], place: int, random: Random, isr: int) -> tuple[list[Row], str] | None:
    """A reassignment before the change at `place` adds a replica, and the change completes it with an ISR of so many
    of its members."""
    before, event = _decisions(events, place)
    if before is None or len(before["members"]) < 2:
        return None
    facts, old = facts_of(event), facts_of(before)
    gone = random.choice(old["replicas"])
    kept = [replica for replica in old["replicas"] if replica != gone]
    adding = {"replicas": [*kept, gone, _NEW_REPLICA], "adding": [_NEW_REPLICA], "removing": [gone]}
    grown = before | {
        "kind": "partition_changed",
        "time_ns": event["time_ns"],
        "offset": event["offset"],
        "partition_epoch": event["partition_epoch"],
        "detail": json.dumps(old | adding | {"reason": "reassignment"}),
    }
    members = [member for member in (*event["members"], _NEW_REPLICA) if member != gone][-isr:]
    completed = event | {
        "offset": event["offset"] + 1,
        "leader_epoch": event["leader_epoch"] + 1,
        "partition_epoch": event["partition_epoch"] + 1,
        "members": members,
        "detail": json.dumps(facts | {"replicas": [*kept, _NEW_REPLICA], "adding": [], "removing": []}),
    }
    line = f"b{_NEW_REPLICA} replaces b{gone} with the ISR {members}"
    return [*events[:place], grown, completed, *events[place + 1 :]], line


def complete_reassignment_early(evidence: RunEvidence, random: Random) -> Injection | None:
    """A reassignment completes although the replica that it adds is not in the ISR."""

    def edit(events: list[Row], place: int) -> tuple[list[Row], str, int] | None:
        result = _reassigned(events, place, random, isr=3)
        if result is None:
            return None
        changed, line = result
        members = [member for member in changed[place + 1]["members"] if member != _NEW_REPLICA]
        return with_fields(changed, place + 1, members=members), f"{line}, without b{_NEW_REPLICA}", -1

    return edited(evidence, random, ("partition_changed",), edit)


def shrink_isr_by_reassignment(evidence: RunEvidence, random: Random) -> Injection | None:
    """A reassignment completes with an ISR smaller than min.insync.replicas."""

    def edit(events: list[Row], place: int) -> tuple[list[Row], str, int] | None:
        result = _reassigned(events, place, random, isr=1)
        if result is None or facts_of(events[place])["min_isr"] < 2:
            return None
        return *result, -1

    return edited(evidence, random, ("partition_changed",), edit)


def act_on_another_decision(evidence: RunEvidence, random: Random) -> Injection | None:
    """A broker follows another leader than the one decided in the partition epoch that it names."""

    def edit(events: list[Row], place: int) -> tuple[list[Row], str, int] | None:
        event = events[place]
        decided = any(
            other["kind"] == "partition_changed"
            and all(other[name] == event[name] for name in ("topic", "partition", "partition_epoch"))
            for other in events
        )
        if not decided:
            return None
        other = random.choice([broker for broker in (1, 2, 3) if broker != event["leader"]])
        return with_fields(events, place, leader=other), f"{event['node']} follows b{other}, not b{event['leader']}", -1

    return edited(evidence, random, ("became_follower",), edit)


def apply_uncommitted_metadata(evidence: RunEvidence, random: Random) -> Injection | None:
    """A broker applies metadata that no majority of the controllers holds: it reads too far, or of a lost epoch."""

    def edit(events: list[Row], place: int) -> tuple[list[Row], str, int] | None:
        event = events[place]
        if random.random() < 0.5:
            return (
                with_fields(events, place, leader_epoch=event["leader_epoch"] + 1),
                "the metadata is of a later epoch",
                -1,
            )
        end = max(other["log_end"] for other in events if other["kind"] == "metadata_appended")
        return with_fields(events, place, log_end=end + 1), f"{event['node']} applies metadata up to {end + 1}", -1

    return edited(evidence, random, ("metadata_applied",), edit)


def allocate_producer_ids_twice(evidence: RunEvidence, random: Random) -> Injection | None:
    """The controllers give another broker a block of producer ids that overlaps one given away."""
    events = events_of(evidence)
    for place in shuffled([n for n, event in enumerate(events) if event["kind"] == "producer_ids_allocated"], random):
        event, block = events[place], facts_of(events[place])
        first = block["first"] + random.randrange(block["count"])
        again = event | {"broker": event["broker"] % 3 + 1, "detail": json.dumps(block | {"first": first})}
        return changed(evidence, inserted(events, place, again), f"a second block begins at {first}", event)
    return None


def assign_producer_id_twice(evidence: RunEvidence, random: Random) -> Injection | None:
    """A broker gives a second producer the id of a first."""
    events = events_of(evidence)
    for place in shuffled([n for n, event in enumerate(events) if event["kind"] == "producer_id_assigned"], random):
        event = events[place]
        line = f"{event['node']} gives the producer id {facts_of(event)['producer_id']} away again"
        return changed(evidence, inserted(events, random.randrange(place, len(events)), event), line, event)
    return None


def assign_unallocated_producer_id(evidence: RunEvidence, random: Random) -> Injection | None:
    """A broker gives a producer an id outside of its blocks."""
    events = events_of(evidence)
    for place in shuffled([n for n, event in enumerate(events) if event["kind"] == "producer_id_assigned"], random):
        event = events[place]
        blocks = [facts_of(other) for other in events if other["kind"] == "producer_ids_allocated"]
        outside = max(block["first"] + block["count"] for block in blocks) + random.randrange(1000)
        line = f"{event['node']} gives the producer id {outside} away"
        return changed(evidence, with_facts(events, place, producer_id=outside), line, event)
    return None


TRACE_ANOMALIES = (
    Anomaly("other-bytes-appended", "protocol", "appended-batches-differ", append_other_bytes),
    Anomaly("high-watermark-above-log", "protocol", "high-watermark-above-log-end", raise_high_watermark_above_log),
    Anomaly("follower-behind-proposed", "protocol", "isr-proposal-behind", propose_a_follower_behind),
    Anomaly(
        "log-shorter-after-restart",
        "protocol",
        "log-shortened",
        lambda evidence, random: recover_a_shorter_log(evidence, random, clean=False),
    ),
    Anomaly(
        "log-shorter-after-clean-shutdown",
        "protocol",
        "clean-shutdown-lost-records",
        lambda evidence, random: recover_a_shorter_log(evidence, random, clean=True),
    ),
    Anomaly("log-end-off-disk", "protocol", "log-end-not-on-disk", lose_the_end_of_a_log),
    Anomaly("log-start-ahead-of-leader", "protocol", "log-start-ahead", follow_a_log_start_ahead),
    *(
        Anomaly(name, "protocol", finding, lambda evidence, random, why=why: delete_by_retention(evidence, random, why))
        for name, finding, why in (
            ("young-records-deleted", "retention-early", "retention_ms"),
            ("log-below-retained-size", "retention-below-size", "retention_bytes"),
        )
    ),
    Anomaly("partition-epoch-kept", "protocol", "partition-epoch-stood", stand_partition_epoch),
    Anomaly("leader-epoch-kept", "protocol", "leader-epoch-stood", stand_leader_epoch),
    Anomaly("reassigned-into-isr", "protocol", "reassignment-joins-isr", join_isr_by_reassignment),
    Anomaly("reassignment-ends-early", "protocol", "reassignment-completed-early", complete_reassignment_early),
    Anomaly("reassignment-below-min-isr", "protocol", "reassignment-shrinks-isr", shrink_isr_by_reassignment),
    Anomaly("undecided-leader-followed", "protocol", "acted-on-undecided", act_on_another_decision),
    Anomaly("uncommitted-metadata-read", "raft", "uncommitted-metadata-applied", apply_uncommitted_metadata),
    Anomaly("producer-ids-allocated-again", "raft", "producer-ids-allocated-twice", allocate_producer_ids_twice),
    Anomaly("producer-id-assigned-again", "raft", "producer-id-assigned-twice", assign_producer_id_twice),
    Anomaly("producer-id-out-of-block", "raft", "producer-id-unallocated", assign_unallocated_producer_id),
)
