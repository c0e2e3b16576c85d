"""Slow links, by netem on the sending machine, for kernels that have it.

All packets that leave by a device pass a `prio` queue whose first band is the normal one; every address with a delay
has a band of its own with a netem queue. A new request replaces the whole tree, so packets queued in it are lost, and
TCP sends them again. A device has room for fifteen addresses.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Mapping, Sequence
from typing import Any

from images.base.agent.programs import run
from images.base.agent.run_directory import AgentError, keep, read

BANDS = 16
_DEVICES = "netem.json"


def apply(delays: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Replace all delays by these; returns the packets delayed so far by each removed queue. Raises AgentError."""
    previous: dict[str, dict[str, str]] = read(_DEVICES) or {}
    if not delays and not previous:
        return {}
    delayed = _delayed_packets(previous)
    for device in previous:
        _tc(["qdisc", "del", "dev", device, "root"])
    trees = _by_device(delays)
    for device, links in trees.items():
        for command in commands(device, links):
            _tc(command)
    keep(
        _DEVICES,
        {
            device: {f"{number + 20}:": str(link["to"]) for number, link in enumerate(links)}
            for device, links in trees.items()
        },
    )
    return delayed


def commands(device: str, links: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """The `tc` commands, each a list."""
    if len(links) >= BANDS:
        raise AgentError(f"{device}: {len(links)} slow links; at most {BANDS - 1} fit")
    lines = [["qdisc", "add", "dev", device, "root", "handle", "1:", "prio", "bands", str(BANDS), "priomap", *"0" * 16]]
    for number, link in enumerate(links):
        band = f"1:{number + 2:x}"
        netem = ["netem", "limit", "100000", "delay", f"{link['delay_ms']}ms"]
        if link.get("jitter_ms"):
            netem.append(f"{link['jitter_ms']}ms")
        lines.append(["qdisc", "add", "dev", device, "parent", band, "handle", f"{number + 20}:", *netem])
        match = ["match", "ip", "dst", f"{ipaddress.IPv4Address(link['to'])}/32"]
        lines.append(["filter", "add", "dev", device, "parent", "1:", "protocol", "ip", "prio", "1", "u32", *match])
        lines[-1] += ["flowid", band]
    return lines


def available() -> str:
    """Why netem is unavailable; empty if it is available. Tries it on the loopback device for an instant."""
    try:
        _tc(["qdisc", "replace", "dev", "lo", "root", "netem", "delay", "0ms"])
        _tc(["qdisc", "del", "dev", "lo", "root"])
    except AgentError as error:
        return str(error)
    return ""


def _by_device(delays: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    trees: dict[str, list[Mapping[str, Any]]] = {}
    for link in delays:
        routes = json.loads(run(["ip", "-j", "route", "get", str(ipaddress.IPv4Address(link["to"]))]))
        trees.setdefault(routes[0]["dev"], []).append(link)
    return trees


def _delayed_packets(devices: Mapping[str, Mapping[str, str]]) -> dict[str, int]:
    delayed: dict[str, int] = {}
    for device, addresses in devices.items():
        for queue in json.loads(_tc(["-s", "-j", "qdisc", "show", "dev", device]) or b"[]"):
            address = addresses.get(queue.get("handle", ""))
            if queue.get("kind") == "netem" and address is not None:
                delayed[address] = delayed.get(address, 0) + queue.get("packets", 0)
    return delayed


def _tc(arguments: Sequence[str]) -> bytes:
    return run(["tc", *arguments])
