"""The node agent on this machine: a process of its own making, clocks as arithmetic, rules as text."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from images.base.agent import netem, network, process, run_directory
from images.base.agent.clock import FROZEN, ClockSkew
from images.base.agent.node_archive import collect
from images.base.agent.run_directory import AgentError

ROOT = Path(__file__).parents[3]
SECOND = 1_000_000_000


class Agent:
    """The command `faultline-node`, with a place of its own for what it keeps."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def __call__(self, *arguments: str, request: object = None, status: int = 0) -> Any:
        done = subprocess.run(
            [sys.executable, "-m", "images.base.agent", *arguments],
            input=json.dumps(request).encode() if request is not None else b"",
            capture_output=True,
            cwd=ROOT,
            env={**os.environ, "FAULTLINE_RUN": str(self.directory / "run")},
            timeout=300,
            check=False,
        )
        assert done.returncode == status, done.stderr.decode()
        return json.loads(done.stdout) if status == 0 else done.stderr.decode()

    def start(self, *argv: str) -> dict[str, Any]:
        request = {"argv": argv, "log": str(self.directory / "log"), "environment": {"FRUIT": "quince"}}
        started: dict[str, Any] = self("start", request=request)
        return started


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    made = Agent(tmp_path)
    yield made
    made("kill")


def test_a_process_is_started_once_and_its_output_is_its_log(agent: Agent) -> None:
    first = agent.start("sh", "-c", "echo $FRUIT; exec sleep 60")
    again = agent.start("sleep", "60")
    assert first["started"]
    assert (again["started"], again["pid"], again["incarnation"]) == (False, first["pid"], 1)
    until_logged(agent, "quince")
    agent("kill")
    assert (agent.directory / "log").read_text() == "quince\n"


def test_a_kill_takes_the_whole_group_and_is_no_crash(agent: Agent) -> None:
    agent.start("sh", "-c", "sleep 60 & echo $!; wait")
    child = int(until_logged(agent))
    assert agent("kill") == {"killed": 1}
    assert agent("kill") == {"killed": 0}
    assert not Path(f"/proc/{child}").exists() or "zombie" in Path(f"/proc/{child}/status").read_text()
    (ended,) = agent("status")["exits"]
    assert (ended["expected"], ended["status"], ended["incarnation"]) == (True, -9, 1)


def test_a_process_that_ends_by_itself_crashed_and_its_last_words_are_kept(agent: Agent) -> None:
    agent.start("sh", "-c", "echo the disk is gone >&2; exit 3")
    ended = agent("wait", "1", "--limit", "120")["ended"]
    assert (ended["expected"], ended["status"], ended["error"]) == (False, 3, "the disk is gone")
    assert agent.start("sleep", "60")["incarnation"] == 2
    assert agent("wait", "2", "--limit", "0.2") == {"ended": None}


def test_a_stop_lets_the_process_finish_and_kills_it_when_it_does_not(agent: Agent) -> None:
    agent.start("sh", "-c", "trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.05; done")
    until_logged(agent)
    assert agent("stop", "--limit", "120") == {"stopped": 1, "killed": 0, "status": 0}
    agent.start("sh", "-c", "trap '' TERM; echo deaf; while :; do sleep 0.05; done")
    until_logged(agent, "deaf")
    assert agent("stop", "--limit", "0.3") == {"stopped": 0, "killed": 1}


@pytest.mark.parametrize(("status", "clean"), [(0, True), (1, False), (143, True)])
def test_a_stop_that_ends_in_an_error_is_a_crash_and_no_stop(agent: Agent, status: int, clean: bool) -> None:
    agent.start("sh", "-c", f"trap 'echo broken >&2; exit {status}' TERM; echo up; while :; do sleep 0.05; done")
    until_logged(agent, "up")
    assert agent("stop", "--limit", "120") == {"stopped": int(clean), "killed": 0, "status": status}
    ended = agent("wait", "1")["ended"]
    assert (ended["expected"], ended["error"]) == ((True, "") if clean else (False, "up\nbroken"))


def test_a_stop_and_a_kill_after_a_stop_that_took_too_long_are_expected(agent: Agent) -> None:
    agent.start("sleep", "60")
    assert agent("stop") == {"stopped": 1, "killed": 0, "status": -15}
    agent.start("sh", "-c", "trap '' TERM; echo deaf; while :; do sleep 0.05; done")
    until_logged(agent, "deaf")
    agent("stop", "--limit", "0.3")
    assert [(ended["expected"], ended["status"]) for ended in agent("status")["exits"]] == [(True, -15), (True, -9)]


def test_a_process_that_was_killed_before_its_signal_has_not_stopped(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent.start("sleep", "60")
    monkeypatch.setattr(run_directory, "RUN", agent.directory / "run")
    monkeypatch.setattr(process, "RUN", agent.directory / "run")
    running = process.current()
    assert running is not None
    process._kill(running)
    monkeypatch.setattr(process, "_expect_end", lambda asked: running)
    assert process.stop(60) == {"stopped": 0, "killed": 0, "status": -9}
    assert process.kill() == {"killed": 1}


def test_a_wipe_kills_and_leaves_an_empty_directory(agent: Agent, tmp_path: Path) -> None:
    data = tmp_path / "data"
    (data / "faultline-0").mkdir(parents=True)
    (data / "faultline-0" / "0.log").write_bytes(b"x" * 70)
    (data / "checkpoint").write_bytes(b"y" * 7)
    agent.start("sleep", "60")
    assert agent("wipe", str(data)) == {"killed": 1, "lost_bytes": 77, "lost_files": 2}
    assert list(data.iterdir()) == []
    assert agent("wipe", str(data)) == {"killed": 0, "lost_bytes": 0, "lost_files": 0}


def test_a_paused_process_is_frozen_until_it_is_resumed(agent: Agent) -> None:
    pid = agent.start("sleep", "60")["pid"]
    agent("pause")
    agent("pause")
    assert agent("status")["paused"]
    assert Path(f"/proc/{pid}/stat").read_text().split()[2] == "T"
    assert agent("resume")["frozen_seconds"] > 0
    assert not agent("status")["paused"]
    assert agent("resume") == {"frozen_seconds": 0.0, "missed": 0, "missed_bytes": 0}


def test_the_end_of_a_paused_process_says_how_long_it_was_paused(agent: Agent) -> None:
    for command in ("kill", "stop"):
        agent.start("sleep", "60")
        agent("pause")
        ended = agent(command)
        assert ended["frozen_seconds"] > 0
        assert ended["missed"] == 0
        assert agent("resume") == {"frozen_seconds": 0.0, "missed": 0, "missed_bytes": 0}


@pytest.fixture
def here(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> Agent:
    """Commands of `process` in this process are those of `agent`."""
    for module in (run_directory, process):
        monkeypatch.setattr(module, "RUN", agent.directory / "run")
    return agent


def never_held(running: process.Incarnation) -> None:
    os.killpg(running.pid, signal.SIGSTOP)
    until_in_state(running.pid, "T")
    raise AgentError("SIGSTOP does not hold the process")


@pytest.mark.parametrize("command", [process.pause, process.restart_waits])
def test_a_stop_that_does_not_hold_leaves_no_process_frozen(
    here: Agent, monkeypatch: pytest.MonkeyPatch, command: Callable[[], object]
) -> None:
    pid = here.start("sleep", "60")["pid"]
    monkeypatch.setattr(process, "_stop_group", never_held)
    with pytest.raises(AgentError, match="does not hold"):
        command()
    until_in_state(pid, "S")
    assert process.resume()["frozen_seconds"] == 0


def test_a_process_is_woken_though_its_sockets_cannot_be_read(here: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    pid = here.start("sleep", "60")["pid"]
    process.pause()

    def unreadable(leader: int) -> tuple[int, int]:
        raise ProcessLookupError(3, "No such process")

    monkeypatch.setattr(process, "_unread_sockets", unreadable)
    told = process.resume()
    assert (told["missed"], told["unknown_missed"]) == (0, 1)
    until_in_state(pid, "S")


def test_a_process_that_cannot_be_recorded_is_not_left_running(here: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(name: str, value: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(process, "keep", full)
    with pytest.raises(AgentError, match=r"cannot be started: .*No space left"):
        process.start({"argv": ["sleep", "120.25"], "log": str(here.directory / "log")})
    deadline_s = time.monotonic() + 30
    while any(b"sleep\x00120.25" in commandline for commandline in commandlines()):
        assert time.monotonic() < deadline_s, "it runs, and nobody knows"
        time.sleep(0.01)


def commandlines() -> Iterator[bytes]:
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            yield place.read_bytes()


def test_a_process_is_held_that_waits_for_a_child_frozen_between_vfork_and_exec(agent: Agent) -> None:
    # The child of clone(CLONE_VM | CLONE_VFORK) calls pause() instead of exec; its parent waits in the kernel for it.
    vfork = "\n".join(
        [
            "import ctypes",
            "libc, stack = ctypes.CDLL(None), ctypes.create_string_buffer(65536)",
            "top = ctypes.c_void_p(ctypes.addressof(stack) + 65536 - 64)",
            "libc.clone(ctypes.cast(libc.pause, ctypes.c_void_p), top, 0x100 | 0x4000 | 17, None)",
        ]
    )
    pid = agent.start(sys.executable, "-c", vfork)["pid"]
    until_in_state(pid, "D")
    assert agent("pause") == {"paused": 1}
    assert agent("status")["paused"]
    assert agent("resume")["frozen_seconds"] > 0
    assert not agent("status")["paused"]


def test_connections_that_wait_for_a_frozen_process_are_what_it_missed(agent: Agent) -> None:
    import socket

    listen = "import socket,time; s=socket.create_server(('127.0.0.1',0)); print(s.getsockname()[1],flush=True)"
    agent.start(sys.executable, "-c", f"{listen}; c,_=s.accept(); time.sleep(60)")
    port = int(until_logged(agent))
    with socket.create_connection(("127.0.0.1", port)) as accepted:
        agent("pause")
        accepted.sendall(b"unread")
        with socket.create_connection(("127.0.0.1", port)):
            told = agent("resume")
    assert (told["missed"], told["missed_bytes"]) == (2, 6)


def test_a_process_has_no_capability_and_can_gain_none(agent: Agent) -> None:
    pid = agent.start("sleep", "60")["pid"]
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    sets = ["CapInh", "CapPrm", "CapEff", "CapAmb", *(["CapBnd"] if os.geteuid() == 0 else [])]
    assert {name: int(status[name], 16) for name in sets} == dict.fromkeys(sets, 0)
    assert (int(status["NoNewPrivs"]), int(status["Seccomp"])) == (1, 2)


def test_a_command_that_cannot_be_started_is_one_line(agent: Agent) -> None:
    said = agent("start", request={"argv": ["/no/such/program"], "log": str(agent.directory / "log")}, status=1)
    assert "/no/such/program cannot be started" in said
    assert said.count("\n") == 1


def until_logged(agent: Agent, needle: str = "") -> str:
    """The log's last line, once there is one with `needle`."""
    deadline_s = time.monotonic() + 120
    while time.monotonic() < deadline_s:
        lines = (agent.directory / "log").read_text().splitlines() if (agent.directory / "log").exists() else []
        if lines and needle in lines[-1]:
            return lines[-1]
        time.sleep(0.01)
    raise AssertionError(f"{needle!r} was never logged")


def until_in_state(pid: int, state: str) -> None:
    deadline_s = time.monotonic() + 120
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != state:
        assert time.monotonic() < deadline_s, f"the process was never in state {state}"
        time.sleep(0.01)


# ---- clocks ----------------------------------------------------------------------------------------------------------


def shown(setting: str, start_ns: int, now_ns: int) -> float:
    """The clock that libfaketime shows at `now_ns` to a process started at `start_ns`, by its own formula."""
    offset, rate = setting.split()
    return start_ns + float(offset) * 1e9 + (now_ns - start_ns) * float(rate.removeprefix("x"))


changes = st.lists(st.tuples(st.integers(1, 10**10), st.floats(-5_000, 5_000), st.floats(0, 3)), min_size=1, max_size=5)


@given(changes, st.integers(0, 10**11))
def test_bending_moves_the_clock_by_the_jump_and_nothing_else(steps: list[tuple[int, float, float]], age: int) -> None:
    now_ns = 10**15
    start_ns = now_ns - age
    bend = ClockSkew(now_ns)
    for waited_ns, jump_ms, rate in steps:
        now_ns += waited_ns
        before = shown(bend.setting(start_ns), start_ns, now_ns)
        bend = bend.skewed(now_ns, jump_ms, rate)
        after = shown(bend.setting(start_ns), start_ns, now_ns)
        assert after - before == pytest.approx(jump_ms * 1e6, abs=5_000)
    freed = bend.steadied(now_ns)
    assert shown(freed.setting(start_ns), start_ns, now_ns) == pytest.approx(
        shown(bend.setting(start_ns), start_ns, now_ns), abs=5_000
    )
    assert freed.offset_at(now_ns + 7 * SECOND) == freed.offset_at(now_ns)


def test_the_next_process_goes_on_with_the_machines_clock() -> None:
    bend = ClockSkew(0).skewed(0, 0.0, 1.5)
    restarted_ns = 10 * SECOND
    seen = shown(bend.setting(restarted_ns), restarted_ns, 12 * SECOND)
    assert seen == pytest.approx(18 * SECOND, abs=5_000)


def test_a_frozen_clock_is_as_good_as_frozen() -> None:
    assert ClockSkew(0).skewed(0, 0.0, 0.0).rate == FROZEN
    assert ClockSkew(0).skewed(0, 0.0, 0.0).offset_at(10 * SECOND) == pytest.approx(-10 * SECOND, rel=FROZEN)


# ---- rules -----------------------------------------------------------------------------------------------------------


def test_one_transaction_replaces_all_rules() -> None:
    rules = network.ruleset([{"from": "192.0.2.7", "how": "drop"}], [{"from": "192.0.2.8", "loss": 0.25}])
    lines = rules.splitlines()
    assert lines[:3] == ["add table inet faultline", "delete table inet faultline", "add table inet faultline"]
    assert "add rule inet faultline input ip saddr 192.0.2.7 counter name held_192_0_2_7 drop" in lines
    assert any("numgen random mod 100000 < 25000 counter name lost_192_0_2_8 drop" in line for line in lines)
    assert network.ruleset([], []).splitlines() == lines[:2]


def test_a_reset_link_lets_resets_through_so_that_both_ends_learn_of_it() -> None:
    rules = network.ruleset([{"from": "192.0.2.7", "how": "reset"}], []).splitlines()
    passing = next(number for number, line in enumerate(rules) if "rst == rst accept" in line)
    rejecting = next(number for number, line in enumerate(rules) if "reject with tcp reset" in line)
    assert passing < rejecting


@pytest.mark.parametrize("wrong", ["fe80::1", "192.0.2.7; drop", "b2"])
def test_only_addresses_get_into_rules(wrong: str) -> None:
    with pytest.raises(ValueError):
        network.ruleset([{"from": wrong, "how": "drop"}], [])


def test_each_slow_link_has_a_queue_of_its_own() -> None:
    links = [
        {"to": "192.0.2.7", "delay_ms": 50, "jitter_ms": 20},
        {"to": "192.0.2.8", "delay_ms": 5, "jitter_ms": 0},
    ]
    told = [" ".join(command) for command in netem.commands("eth0", links)]
    assert told[0].startswith("qdisc add dev eth0 root handle 1: prio bands 16 priomap 0 0")
    assert "qdisc add dev eth0 parent 1:2 handle 20: netem limit 100000 delay 50ms 20ms" in told
    assert "qdisc add dev eth0 parent 1:3 handle 21: netem limit 100000 delay 5ms" in told
    assert "filter add dev eth0 parent 1: protocol ip prio 1 u32 match ip dst 192.0.2.8/32 flowid 1:3" in told


# ---- collecting ------------------------------------------------------------------------------------------------------


def test_a_nodes_files_are_collected_under_their_names(tmp_path: Path) -> None:
    (tmp_path / "data" / "t-0").mkdir(parents=True)
    (tmp_path / "data" / "t-0" / "00.log").write_bytes(b"records")
    (tmp_path / "data" / ".lossyfs").mkdir()
    (tmp_path / "data" / ".lossyfs" / "hidden").write_bytes(b"x")
    (tmp_path / "node.log").write_text("line\n")
    out = io.BytesIO()
    collect([f"data={tmp_path}/data", f"node.log={tmp_path}/node.log", f"trace.jsonl={tmp_path}/none"], out)
    out.seek(0)
    with tarfile.open(fileobj=out) as archive:
        assert archive.getnames() == ["data/t-0/00.log", "node.log"]
