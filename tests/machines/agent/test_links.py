"""Which machine is told what about which link, and what is counted for it."""

from __future__ import annotations

import json

from harness.environments.machines.links import CounterBaseline, LinkFaults, both_ends, receivers
from harness.environments.machines.traces import merged
from images.trace import TraceEvent
from nemesis.ports import Link, LinkQuality

ADDRESSES = {"b1": "192.0.2.1", "b2": "192.0.2.2", "c1": "192.0.2.9"}
FORTH, BACK = Link("b1", "b2"), Link("b2", "b1")


def test_a_cut_link_is_cut_where_it_ends() -> None:
    links = LinkFaults(ADDRESSES, cut={FORTH: False, Link("c1", "b2"): True})
    assert links.request_for("b2")["cut"] == [
        {"from": "192.0.2.1", "how": "drop"},
        {"from": "192.0.2.9", "how": "reset"},
    ]
    assert links.request_for("b1")["cut"] == []
    assert receivers([FORTH, BACK, Link("c1", "b2")]) == ["b2", "b1"]


def test_losses_are_made_where_a_link_ends_and_delays_where_it_begins() -> None:
    links = LinkFaults(ADDRESSES, degraded={FORTH: LinkQuality(delay_ms=5, jitter_ms=1, loss=0.5)})
    assert links.request_for("b2") == {"cut": [], "degrade": [{"from": "192.0.2.1", "loss": 0.5}], "delay": []}
    assert links.request_for("b1")["delay"] == [{"to": "192.0.2.2", "delay_ms": 5, "jitter_ms": 1}]
    assert both_ends([FORTH]) == ["b2", "b1"]


def test_evidence_is_what_was_counted_while_the_link_was_broken() -> None:
    ledger = CounterBaseline(ADDRESSES)
    ledger.open([FORTH], ["held"], {"b2": {"192.0.2.1": {"held": 10}}})
    ledger.open([FORTH], ["held"], {"b2": {"192.0.2.1": {"held": 15}}})
    after = {"b2": {"192.0.2.1": {"held": 22}}}
    assert ledger.close([FORTH, BACK], ["held"], after) == {"held": 12}
    assert ledger.close([FORTH], ["held"], after) == {"held": 0}


def test_packets_that_were_delayed_are_counted_by_the_sender() -> None:
    ledger = CounterBaseline(ADDRESSES)
    ledger.open([FORTH], ["delayed"], {})
    assert ledger.close([FORTH], ["delayed"], {"b1": {"192.0.2.2": {"delayed": 3}}}) == {"delayed": 3}


def row(time_ns: int, kind: str) -> bytes:
    return json.dumps({"time_ns": time_ns} | TraceEvent(kind)._asdict(), default=dict).encode() + b"\n"


def test_traces_are_laid_beside_each_other_in_the_order_of_true_time() -> None:
    files = {"b1": row(1_000, "one") + row(1_030, "four"), "b2": row(2_010, "two") + row(2_020, "three") + b'{"time'}
    found = [(time_ns, node, event.kind) for time_ns, node, event in merged(files, {"b1": 1_000, "b2": 2_000})]
    assert found == [(0, "b1", "one"), (10, "b2", "two"), (20, "b2", "three"), (30, "b1", "four")]
