"""Requests about slow links that fail, on a machine whose `tc` and `nft` are played: what the next request finds."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from images.base.agent import __main__ as agent
from images.base.agent import clock, disk, netem, network, process, run_directory
from images.base.agent.run_directory import AgentError

SLOW = {"to": "192.0.2.7", "delay_ms": 50}
OTHER = {"to": "192.0.2.8", "delay_ms": 50}


@dataclass
class Kernel:
    """Queues of devices, by handle; all packets leave by eth0, but for those to 192.0.2.8, by eth1."""

    queues: dict[str, dict[str, str]] = field(default_factory=lambda: {"eth0": {}, "eth1": {}})
    refused: Callable[[Sequence[str]], bool] = lambda argv: False
    rules: list[str] = field(default_factory=list)

    def run(self, argv: Sequence[str], text: str = "") -> bytes:
        if self.refused(argv):
            raise AgentError(f"{argv[0]}: refused")
        match list(argv):
            case ["ip", *_, address]:
                return json.dumps([{"dev": "eth1" if address == "192.0.2.8" else "eth0"}]).encode()
            case ["nft", "-f", "-"]:
                self.rules.append(text)
            case ["tc", "-s", "-j", "qdisc", "show"]:
                return json.dumps([queue for device in self.queues for queue in self._shown(device)]).encode()
            case ["tc", "qdisc", "add", "dev", device, "root", "handle", handle, kind, *_]:
                if self.queues[device]:
                    raise AgentError("tc: Error: Exclusivity flag on, cannot modify.")
                self.queues[device][handle] = kind
            case ["tc", "qdisc", "add", "dev", device, "parent", _, "handle", handle, kind, *_]:
                self.queues[device][handle] = kind
            case ["tc", "qdisc", "del", "dev", device, "root"]:
                if not self.queues[device]:
                    raise AgentError("tc: Error: Cannot delete qdisc with handle of zero.")
                self.queues[device] = {}
        return b""

    def _shown(self, device: str) -> list[dict[str, Any]]:
        shown = [{"kind": kind, "handle": handle, "packets": 9} for handle, kind in self.queues[device].items()]
        return [{**queue, "dev": device, "root": queue["handle"] == "1:"} for queue in shown]


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kernel:
    played = Kernel()
    for module in (netem, network):
        monkeypatch.setattr(module, "run", lambda argv, text="": played.run(argv, text))
    monkeypatch.setattr(run_directory, "RUN", tmp_path / "run")
    monkeypatch.setattr(process, "RUN", tmp_path / "run")
    monkeypatch.setattr(network.shutil, "which", lambda program: program)
    return played


def test_packets_that_a_queue_has_delayed_are_counted_when_it_goes(kernel: Kernel) -> None:
    network.apply({"delay": [SLOW]})
    assert network.apply({"delay": [SLOW]})["counters"] == {"192.0.2.7": {"delayed": 9}}
    assert network.apply({})["counters"] == {"192.0.2.7": {"delayed": 18}}
    assert kernel.queues == {"eth0": {}, "eth1": {}}


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param([{**SLOW, "to": f"192.0.2.{100 + number}"} for number in range(16)], id="too many"),
        pytest.param([SLOW, {"to": "b2", "delay_ms": 1}], id="no address"),
    ],
)
def test_a_request_that_cannot_be_carried_out_changes_nothing(kernel: Kernel, wrong: list[dict[str, Any]]) -> None:
    network.apply({"delay": [SLOW]})
    before, rules = dict(kernel.queues["eth0"]), len(kernel.rules)
    with pytest.raises((AgentError, ValueError)):
        network.apply({"delay": wrong})
    assert (kernel.queues["eth0"], len(kernel.rules)) == (before, rules)
    network.apply({})
    assert kernel.queues["eth0"] == {}


@pytest.mark.parametrize("word", ["root", "parent", "eth1", "filter"])
def test_after_a_request_that_failed_halfway_the_next_is_carried_out(kernel: Kernel, word: str) -> None:
    network.apply({"delay": [SLOW]})
    kernel.refused = lambda argv: "add" in argv and word in argv
    with pytest.raises(AgentError, match="refused"):
        network.apply({"delay": [SLOW, OTHER]})
    kernel.refused = lambda argv: False
    network.apply({"delay": [SLOW, OTHER]})
    assert all("netem" in queues.values() for queues in kernel.queues.values())
    network.apply({})
    assert kernel.queues == {"eth0": {}, "eth1": {}}


def test_a_queue_that_was_there_before_stays(kernel: Kernel) -> None:
    kernel.queues["eth0"] = {"1:": "prio"}
    with pytest.raises(AgentError, match="Exclusivity"):
        network.apply({"delay": [SLOW]})
    network.apply({})
    assert kernel.queues["eth0"] == {"1:": "prio"}


def test_remove_tries_everything_and_tells_the_first_failure(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    network.apply({"delay": [SLOW]})
    kernel.refused = lambda argv: argv[0] == "nft"
    unmounted: list[bool] = []
    monkeypatch.setattr(disk, "unmount", lambda: unmounted.append(True))

    def cannot_be_killed() -> dict[str, Any]:
        raise AgentError("the process was killed and its end not recorded")

    monkeypatch.setattr(process, "kill", cannot_be_killed)
    monkeypatch.setattr(clock, "forget_killed", lambda: None)
    with pytest.raises(AgentError, match="its end not recorded"):
        agent.remove()
    assert (kernel.queues["eth0"], unmounted) == ({}, [True])
