"""Slow links, by netem on the sending machine, for kernels that have it.

All packets that leave by a device pass a `prio` queue whose first band is the normal one; every address with a delay
has a band of its own with a netem queue. A new request replaces the whole tree, so packets queued in it are lost, and
TCP sends them again. A device has room for fifteen addresses. The devices with a tree are recorded before they get it.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from images.base.agent.programs import run
from images.base.agent.run_directory import AgentError, keep, read

BANDS = 16
_DEVICES = "netem.json"

SlowLinks = Mapping[str, Sequence[Mapping[str, Any]]]
"""Device → the slow links whose packets leave by it, as a request has them."""


def planned(delays: Sequence[Mapping[str, Any]]) -> SlowLinks:
    """The slow links of a request, which `install` has room for. Changes nothing. Raises AgentError."""
    links_of: dict[str, list[Mapping[str, Any]]] = {}
    for link in delays:
        routes = json.loads(run(["ip", "-j", "route", "get", str(ipaddress.IPv4Address(link["to"]))]))
        links_of.setdefault(routes[0]["dev"], []).append(link)
    for device, links in links_of.items():
        commands(device, links)
    return links_of


def remove() -> Iterator[dict[str, int]]:
    """Remove all delays; of each device the packets delayed so far, by address. Raises AgentError.

    A device is forgotten once it has no tree and its packets are counted, so what fails can be called again.
    """
    recorded: dict[str, dict[str, str]] = read(_DEVICES) or {}
    if not recorded:
        return
    queues: list[dict[str, Any]] = json.loads(_tc(["-s", "-j", "qdisc", "show"]) or b"[]")
    for device, addresses in list(recorded.items()):
        delayed: dict[str, int] = {}
        ours = [queue for queue in queues if queue.get("dev") == device]
        for queue in ours:
            address = addresses.get(queue.get("handle", ""))
            if queue.get("kind") == "netem" and address is not None:
                delayed[address] = delayed.get(address, 0) + queue.get("packets", 0)
        if any(queue.get("root") and queue.get("kind") == "prio" for queue in ours):
            _tc(["qdisc", "del", "dev", device, "root"])
        yield delayed
        del recorded[device]
        keep(_DEVICES, recorded)


def install(slow: SlowLinks) -> None:
    """Delay these links; there is no delay yet. Raises AgentError; then `remove` undoes what has been done."""
    recorded: dict[str, dict[str, str]] = {}
    for device, links in slow.items():
        root, *inside = commands(device, links)
        recorded[device] = {f"{number + 20}:": str(link["to"]) for number, link in enumerate(links)}
        keep(_DEVICES, recorded)
        try:
            _tc(root)
        except AgentError:
            del recorded[device]  # what queue it has is not ours to delete
            keep(_DEVICES, recorded)
            raise
        for command in inside:
            _tc(command)


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


def _tc(arguments: Sequence[str]) -> bytes:
    return run(["tc", *arguments])
