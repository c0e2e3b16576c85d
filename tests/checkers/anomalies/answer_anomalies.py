"""Anomalies in the protocol trace: answers of leaders and group coordinators."""

from __future__ import annotations

import json
from random import Random

from checkers.evidence import RunEvidence
from tests.checkers.anomalies.anomaly import Anomaly, Injection
from tests.checkers.anomalies.places import Row
from tests.checkers.anomalies.trace_edits import edited, facts_of, with_facts, with_fields


def answer_unconfirmed(evidence: RunEvidence, random: Random, kind: str) -> Injection | None:
    """A leader answers a read that a member of its ISR has not confirmed."""

    def edit(events: list[Row], place: int) -> tuple[list[Row], str, int] | None:
        event = events[place]
        confirmed = event["members"] if kind == "latest_told" else facts_of(event)["confirmed"]
        same = ("topic", "partition", "partition_epoch", "leader_epoch")
        members = next(
            (
                other["members"]
                for other in events
                if other["kind"] == "partition_changed" and all(other[name] == event[name] for name in same)
            ),
            (),
        )
        silent = [member for member in members if member in confirmed and member != event["leader"]]
        if not silent:
            return None
        member = random.choice(silent)
        fewer = [other for other in confirmed if other != member]
        changed = {"members": fewer} if kind == "latest_told" else {"detail": json.dumps({"confirmed": fewer})}
        line = f"{event['node']} answers without having heard of b{member} ({kind})"
        return with_fields(events, place, **changed), line, event["high_watermark"]

    return edited(evidence, random, (kind,), edit)


def serve_uncommitted(evidence: RunEvidence, random: Random) -> Injection | None:
    """A coordinator has loaded records above its high watermark when it begins to serve."""

    def edit(events: list[Row], place: int) -> tuple[list[Row], str, int] | None:
        event = events[place]
        end = event["high_watermark"] + random.randint(1, 5)
        return (
            with_fields(events, place, log_end=end),
            f"{event['node']} has loaded up to {end}",
            event["high_watermark"],
        )

    return edited(evidence, random, ("coordinator_loaded",), edit)


def tell_generation_early(evidence: RunEvidence, random: Random) -> Injection | None:
    """Members get the number of a generation whose record is not committed yet."""

    def edit(events: list[Row], place: int) -> tuple[list[Row], str, int] | None:
        event, facts = events[place], facts_of(events[place])
        stored = [
            other
            for other in events[:place]
            if other["kind"] == "group_storing"
            and other["node"] == event["node"]
            and all(facts_of(other)[name] == facts[name] for name in ("group", "generation"))
        ]
        line = f"{event['node']} begins generation {facts['generation']} before it is committed"
        return with_fields(events, place, high_watermark=stored[-1]["offset"]), line, stored[-1]["offset"]

    return edited(evidence, random, ("generation_begun",), edit)


def tell_assignment_early(evidence: RunEvidence, random: Random) -> Injection | None:
    """A member gets its partitions before the record with them is committed."""

    def edit(events: list[Row], place: int) -> tuple[list[Row], str, int] | None:
        event, facts = events[place], facts_of(events[place])
        (member,) = facts["members"]
        assigned = False
        for other in events[:place]:
            if other["node"] != event["node"] or facts_of(other).get("generation") != facts["generation"]:
                continue
            assigned = assigned or (other["kind"] == "group_assigned" and member in facts_of(other)["members"])
            if assigned and other["kind"] == "group_storing" and other["leader_epoch"] == event["leader_epoch"]:
                line = f"{event['node']} gives {member} its partitions before they are committed"
                return with_fields(events, place, high_watermark=other["offset"]), line, other["offset"]
        return None

    return edited(evidence, random, ("assignment_told",), edit)


def take_a_stale_commit(evidence: RunEvidence, random: Random) -> Injection | None:
    """A coordinator takes a member's commit of the generation before."""

    def edit(events: list[Row], place: int) -> tuple[list[Row], str, int] | None:
        event, facts = events[place], facts_of(events[place])
        if facts["generation"] < 0:
            return None
        line = f"{event['node']} takes a commit of generation {facts['generation'] - 1}"
        return with_facts(events, place, generation=facts["generation"] - 1), line, event["offset"]

    return edited(evidence, random, ("offsets_committed",), edit)


ANSWER_ANOMALIES = (
    Anomaly(
        "latest-told-unconfirmed",
        "protocol",
        "latest-unconfirmed",
        lambda evidence, random: answer_unconfirmed(evidence, random, "latest_told"),
    ),
    Anomaly(
        "offsets-told-unconfirmed",
        "protocol",
        "offsets-unconfirmed",
        lambda evidence, random: answer_unconfirmed(evidence, random, "offsets_told"),
    ),
    Anomaly("uncommitted-served", "protocol", "coordinator-serves-uncommitted", serve_uncommitted),
    Anomaly("generation-before-its-record", "protocol", "generation-told-early", tell_generation_early),
    Anomaly("commit-of-the-generation-before", "protocol", "commit-not-fenced", take_a_stale_commit),
    Anomaly("assignment-before-its-record", "protocol", "assignment-told-early", tell_assignment_early),
)
