"""Promises about the configurations of topics, for `checkers.raft`, whose table has them.

A topic is configured upon requests alone, each of one key, and its configuration is decided as a whole. Each
configuration is the previous one, changed by one request:

- `set`, `append` or `subtract` changes the key that it names, and no other;
- `delete` gives the key its default again, and `replace` does so with every key but its own.

Defaults that count for all nodes are written into a topic when it is created: the topics that faults create have
nothing else in the beginning, and of other topics no key is deleted.

Example: `leader.replication.throttled.replicas` is `0:1,1:2`. After `subtract 0:1` it is `1:2`; where it is `0:1,1:2`
still, nothing has been decided, and where it is empty, no request explains that.

Blind spots: which of several requests that would explain a change it was made for; where nodes have settings of their
own, the value of a default that is given back: it is that of the controller which is active then.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from checkers.raft.dry_runs import DRY_RUN_OTHERWISE, AdminRecord, last_dry_run
from checkers.tables import TraceRow
from checkers.verdict import Finding
from workloads.columns import NEVER

_DONE: Final = ""


class Configurations:
    """Those that were decided on in a trace."""

    def __init__(self, events: Iterable[TraceRow]) -> None:
        self.of: dict[str, dict[int, TraceRow]] = {}
        """Id of a topic → the offset up to which the metadata has a configuration → that, as it was traced first."""
        for event in events:
            if event.kind == "topic_configured":
                self.of.setdefault(event.details()["id"], {}).setdefault(event.offset, event)

    @property
    def first_configurations(self) -> dict[str, dict[str, str]]:
        """Id of a topic → its first configuration."""
        return {topic: events[min(events)].details()["config"] for topic, events in self.of.items()}


def configuration_findings(
    events: Iterable[TraceRow],
    requests: Iterable[AdminRecord],
    dry_runs: Sequence[AdminRecord] = (),
    *,
    mixed_settings: bool = False,
) -> Iterator[Finding]:
    """Every change among these events that none of the administrator's `requests` explains, though perhaps one of its
    `dry_runs`."""
    asked = [request for request in requests if request["change"] == "configure"]
    configurations = Configurations(events)
    for topic, first in configurations.first_configurations.items():
        decided = [event for _, event in sorted(configurations.of[topic].items())]
        for before, after in pairwise(decided):
            has, had, name = after.details()["config"], before.details()["config"], after.details()["name"]

            def explains(request: AdminRecord, had: Any = had, has: Any = has, first: Any = first) -> bool:
                return may_become(had, has, request["wanted"], first, mixed_settings=mixed_settings)

            possible = [request for request in asked if request["topic"] == name and _may_be_for(after, request)]
            if has != had and not any(map(explains, possible)):
                did = f"{after.node} configured {name} {after.at}, up to {after.offset} of the metadata"
                changed = sorted(key for key in had.keys() | has.keys() if had.get(key) != has.get(key))
                lines = [f"{key} was {had.get(key)!r} and is {has.get(key)!r}" for key in changed]
                told = [f"the administrator had asked: {' '.join(each['wanted'])}" for each in possible[-2:]]
                of_topic = (each for each in dry_runs if each["change"] == "configure" and each["topic"] == name)
                dry_run = last_dry_run(filter(explains, of_topic), after.time_ns)
                kind, told = (DRY_RUN_OTHERWISE, [dry_run]) if dry_run else ("configured-otherwise", told)
                yield Finding(kind, (did, *lines, *told), time_ns=after.time_ns)


def _may_be_for(event: TraceRow, request: AdminRecord) -> bool:
    """Whether a configuration may have been decided upon a request."""
    if request["began_ns"] > event.time_ns:
        return False
    ended_ns = NEVER if request.get("ended_ns") is None else request["ended_ns"]
    in_time = ended_ns >= event.time_ns or bool(event.details().get("taken_over"))
    return bool(request["in_doubt"]) or (request["outcome"] == _DONE and in_time)


def may_become(
    before: Mapping[str, str],
    after: Mapping[str, str],
    wanted: Sequence[str],
    first: Mapping[str, str],
    *,
    mixed_settings: bool,
) -> bool:
    """Whether a configuration may become another one by a request for [key, value, operation], of a topic whose `first`
    one has the defaults; with `mixed_settings` it has those of one controller, and others may have others."""
    expected = _altered(before, wanted, first)
    key, operation = wanted[0], wanted[2] if len(wanted) > 2 else "set"
    if mixed_settings and operation in ("delete", "replace"):
        given_back = {key} if operation == "delete" else first.keys() - {key}
        expected |= {name: after[name] for name in given_back & first.keys() & after.keys()}
    return expected == after


def _altered(config: Mapping[str, str], wanted: Sequence[str], first: Mapping[str, str]) -> dict[str, str]:
    """This configuration after a request for [key, value, operation], of a topic that began with the `first` one."""
    key, text, operation = (*wanted, "set")[:3]
    value = text.lower() if text.lower() in ("true", "false") else text
    if operation == "replace":
        return {**first, key: value}
    if operation == "delete":
        kept = {name: each for name, each in config.items() if name != key}
        return kept | ({key: first[key]} if key in first else {})
    if operation == "set":
        return {**config, key: value}
    items, operands = ([each for each in text.split(",") if each] for text in (config.get(key, ""), value))
    if operation == "append":
        return {**config, key: ",".join([*items, *(each for each in operands if each not in items)])}
    return {**config, key: ",".join(each for each in items if each not in operands)}
