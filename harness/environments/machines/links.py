"""Links between machines that are cut or degraded, and the request about them for each machine's agent. Pure.

A link that is cut, or that loses packets, is broken where it ends: the receiver drops what comes from the sender's
address. A slow link is slowed where it begins. A request holds all links of a machine, and what a machine does not
hear of goes on there: of a link that has been slow its sender hears everything until the link is whole again.

Agents count packets by the other's address and never reset a counter, so the evidence of a link is the difference
between two readings: `CounterBaseline` keeps the reading from when the link was broken.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from nemesis.ports import Link, LinkQuality

Counters = Mapping[str, Mapping[str, Mapping[str, int]]]
"""Machine → address of the other one → name → packets so far."""


@dataclass(slots=True)
class LinkFaults:
    """The links that are cut or degraded."""

    addresses: Mapping[str, str]
    """Node → IPv4 address."""
    cut: dict[Link, bool] = field(default_factory=dict)
    """Link → whether connections over it break (else they hang)."""
    degraded: dict[Link, LinkQuality] = field(default_factory=dict)
    slowed: set[Link] = field(default_factory=set)
    """Links that have been slow since they were last whole, whatever their quality is now: their senders may have a
    queue for them, and count what it delays."""

    def degrade(self, links: Iterable[Link], quality: LinkQuality) -> list[str]:
        """Give links this quality; the machines to be told."""
        links = list(links)
        self.degraded.update(dict.fromkeys(links, quality))
        if quality.delay_ms or quality.jitter_ms:
            self.slowed.update(links)
        return self._concerned(links)

    def clear(self, links: Iterable[Link]) -> list[str]:
        """Take their qualities from links; the machines to be told, and `cleared` once they have been."""
        links = list(links)
        for link in links:
            self.degraded.pop(link, None)
        return self._concerned(links)

    def cleared(self, links: Iterable[Link]) -> None:
        """No sender has a queue for these links any more, but for those that are degraded anew."""
        self.slowed.difference_update(link for link in links if link not in self.degraded)

    def _concerned(self, links: list[Link]) -> list[str]:
        senders = (link.source for link in links if link in self.slowed)
        return list(dict.fromkeys([*receivers(links), *senders]))

    def request_for(self, machine: str) -> dict[str, Any]:
        """The request for the agent of `machine`, as `faultline-node network` reads it."""
        return {
            "cut": [
                {"from": self.addresses[link.source], "how": "reset" if reset else "drop"}
                for link, reset in self.cut.items()
                if link.target == machine
            ],
            "degrade": [
                {"from": self.addresses[link.source], "loss": quality.loss}
                for link, quality in self.degraded.items()
                if link.target == machine and quality.loss
            ],
            "delay": [
                {
                    "to": self.addresses[link.target],
                    "delay_ms": quality.delay_ms,
                    "jitter_ms": quality.jitter_ms,
                }
                for link, quality in self.degraded.items()
                if link.source == machine and (quality.delay_ms or quality.jitter_ms)
            ],
        }


def receivers(links: Iterable[Link]) -> list[str]:
    """Where links end, without repetition."""
    return list(dict.fromkeys(link.target for link in links))


@dataclass(slots=True)
class CounterBaseline:
    """Readings of counters at the time links were broken."""

    addresses: Mapping[str, str]
    _before: dict[tuple[Link, str], int] = field(default_factory=dict)

    def open(self, links: Iterable[Link], names: Iterable[str], counters: Counters) -> None:
        """From now on these names are counted for these links, as far as the machine that counts was read; a link that
        is counted already goes on."""
        names = tuple(names)
        for link in links:
            for name in names:
                packets = self._read(link, name, counters)
                if packets is not None:
                    self._before.setdefault((link, name), packets)

    def close(self, links: Iterable[Link], names: Iterable[str], counters: Counters) -> dict[str, int]:
        """Packets counted since, summed over the links."""
        names = tuple(names)
        totals = dict.fromkeys(names, 0)
        for link in links:
            for name in names:
                before, packets = self._before.pop((link, name), None), self._read(link, name, counters)
                if before is not None and packets is not None:
                    totals[name] += packets - before
        return totals

    def _read(self, link: Link, name: str, counters: Counters) -> int | None:
        """None if the machine that counts was not read."""
        machine, other = (link.source, link.target) if name == "delayed" else (link.target, link.source)
        of_machine = counters.get(machine)
        return None if of_machine is None else of_machine.get(self.addresses[other], {}).get(name, 0)
