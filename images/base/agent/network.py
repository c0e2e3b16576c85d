"""Cut and degraded links, by nftables on the receiving machine and netem on the sending one.

A request lists all cut, lossy and slow links, and replaces the previous request in one transaction:

    {"cut": [{"from": ADDRESS, "how": "drop"}], "degrade": [{"from": ADDRESS, "loss": 0.1}],
     "delay": [{"to": ADDRESS, "delay_ms": 50, "jitter_ms": 20}]}

`drop` drops every packet from the address, so that open connections hang. `reset` answers each with a TCP reset, so
that both ends learn that the connection is gone once they send. Resets themselves always pass, or two nodes that refuse
each other would never learn of it.

Counters are kept for each address and never restart; the caller computes differences. `held`: packets of a cut link,
`refused`: attempts to connect over it, `reset`: packets answered with a reset, `lost`: packets of a lossy link,
`delayed`: packets of a slow one.

Rules are in the table `inet faultline` only; without a cut or degraded link it is deleted.
"""

from __future__ import annotations

import ipaddress
import json
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

from images.base.agent import netem
from images.base.agent.programs import run
from images.base.agent.run_directory import AgentError, keep, locked, read

TABLE = "inet faultline"
_COUNTERS = "counters.json"
_LOSS_STEPS = 100_000

Counters = dict[str, dict[str, int]]
"""Address → name → packets."""


def apply(request: Mapping[str, Any]) -> dict[str, Any]:
    """Replace all network faults by `request`; returns `counters` up to then. Raises AgentError.

    A request that cannot be carried out changes nothing, and after one that fails halfway the next one is carried out.
    """
    with locked("network"):
        rules = ruleset(request.get("cut", ()), request.get("degrade", ()))
        slow = netem.planned(request.get("delay", ()))
        counters = _add_counters(_nft_counters())
        run(["nft", "-f", "-"], rules)
        keep(_COUNTERS, counters)
        for packets in netem.remove():
            for address, delayed in packets.items():
                address_counters = counters.setdefault(address, {})
                address_counters["delayed"] = address_counters.get("delayed", 0) + delayed
            keep(_COUNTERS, counters)
        netem.install(slow)
    return {"counters": counters}


def counters() -> dict[str, Any]:
    """The current counters."""
    with locked("network"):
        return {"counters": _add_counters(_nft_counters())}


def remove() -> None:
    """Remove every rule and every delay, each whether or not the other can be; without nft there is none. Raises
    AgentError."""
    try:
        if shutil.which("nft") is not None:
            apply({})
    finally:
        with locked("network"):
            for _ in netem.remove():
                pass


def ruleset(cut: Sequence[Mapping[str, Any]], degrade: Sequence[Mapping[str, Any]]) -> str:
    """The transaction for `nft -f`: drops the old table and creates the new one in one step."""
    lines = [f"add table {TABLE}", f"delete table {TABLE}"]
    if cut or degrade:
        lines += [
            f"add table {TABLE}",
            f"add chain {TABLE} input {{ type filter hook input priority -300; policy accept; }}",
        ]
    for link in cut:
        lines += _cut(str(ipaddress.IPv4Address(link["from"])), link["how"])
    for link in degrade:
        if link["loss"]:
            lines += _lossy(str(ipaddress.IPv4Address(link["from"])), link["loss"])
    return "".join(f"{line}\n" for line in lines)


def available() -> str:
    """Why nftables is unavailable; empty if it is available."""
    try:
        run(["nft", "list", "tables"], "")
    except AgentError as error:
        return str(error)
    return ""


def _cut(address: str, how: str) -> list[str]:
    if how not in ("drop", "reset"):
        raise AgentError(f"how: {how!r} is not drop or reset")
    counter_names = {name: f"{name}_{address.replace('.', '_')}" for name in ("held", "refused", "reset")}
    verdict = "reject with tcp reset" if how == "reset" else "drop"
    rule = f"add rule {TABLE} input ip saddr {address}"
    lines = [f"add counter {TABLE} {name}" for name in counter_names.values()]
    if how == "reset":
        lines.append(f"{rule} tcp flags & rst == rst accept")
    lines.append(f"{rule} tcp flags & (syn | ack) == syn counter name {counter_names['refused']} {verdict}")
    if how == "reset":
        lines.append(f"{rule} meta l4proto tcp counter name {counter_names['reset']} {verdict}")
    lines.append(f"{rule} counter name {counter_names['held']} drop")
    return lines


def _lossy(address: str, loss: float) -> list[str]:
    counter = f"lost_{address.replace('.', '_')}"
    share = round(loss * _LOSS_STEPS)
    return [
        f"add counter {TABLE} {counter}",
        f"add rule {TABLE} input ip saddr {address} numgen random mod {_LOSS_STEPS} < {share} "
        f"counter name {counter} drop",
    ]


def _nft_counters() -> Counters:
    """Counters of the current table, which begin at 0."""
    listing = json.loads(run(["nft", "-j", "list", "counters"], "") or b"{}")
    counters: Counters = {}
    for item in listing.get("nftables", ()):
        counter = item.get("counter", {})
        if counter.get("family") == "inet" and counter.get("table") == "faultline":
            name, _, address = counter["name"].partition("_")
            counters.setdefault(address.replace("_", "."), {})[name] = counter["packets"]
    return counters


def _add_counters(now: Counters) -> Counters:
    total: Counters = read(_COUNTERS) or {}
    for address, names in now.items():
        address_counters = total.setdefault(address, {})
        for name, packets in names.items():
            address_counters[name] = address_counters.get(name, 0) + packets
    return total
