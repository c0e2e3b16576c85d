"""Cleaning takes what carries the mark and is nobody's any more, and nothing else."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Callable
from ipaddress import IPv4Network
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.cli.main import main
from harness.environments.cleanup import Cleaned, CleanupStatus, Leftover, LeftoverError, clean, in_docker
from harness.environments.docker.engine import OWNER_LABEL, RUN_LABEL, connect, explained, run_labels
from harness.environments.docker.environment import Containers
from harness.environments.machines.machine import MachineError
from harness.environments.process_identity import still_runs, this_process
from harness.exit_codes import NOT_CARRIED_OUT, VALID
from harness.node_images.building import Image, ImageState, build


def ended_process() -> str:
    """The owner that a process was which has ended."""
    ended = subprocess.run(
        [sys.executable, "-c", "from harness.environments.process_identity import this_process; print(this_process())"],
        capture_output=True,
        text=True,
        check=True,
    )
    return ended.stdout.strip()


def test_a_process_is_its_own_owner_until_it_ends() -> None:
    assert still_runs(this_process())
    ended = ended_process()
    assert not still_runs(ended)
    boot, pid, start = this_process().split("/")
    assert pid == str(os.getpid())
    assert not still_runs(f"{boot}/{pid}/{int(start) + 1}"), "a number that was used again"
    assert not still_runs(f"other-boot/{pid}/{start}")
    for nonsense in ("", "/", "a/b/c", f"{boot}/{pid}/"):
        assert not still_runs(nonsense)


def leftover(name: str, owner: str, remove: Callable[[], None]) -> Leftover:
    return Leftover("container", name, "r1", owner, remove)


def test_what_a_run_still_uses_is_spared_unless_everything_is_asked_for() -> None:
    removed: list[str] = []
    left = [
        leftover("live", this_process(), lambda: removed.append("live")),
        leftover("dead", ended_process(), lambda: removed.append("dead")),
        leftover("unowned", "", lambda: removed.append("unowned")),
    ]
    assert [cleaned.status for cleaned in clean(iter(left))] == [
        CleanupStatus.SPARED,
        CleanupStatus.REMOVED,
        CleanupStatus.REMOVED,
    ]
    assert removed == ["dead", "unowned"]
    assert [cleaned.status for cleaned in clean(iter(left), everything=True)] == [CleanupStatus.REMOVED] * 3


def test_one_that_cannot_be_removed_does_not_keep_the_others() -> None:
    def fails() -> None:
        raise LeftoverError("device or resource busy")

    told = list(clean(iter([leftover("stuck", "", fails), leftover("free", "", lambda: None)])))
    assert [cleaned.text() for cleaned in told] == [
        "failed container stuck of run r1: device or resource busy",
        "removed container free of run r1",
    ]


class Engine:
    """A Docker client with some containers and networks, of which it remembers what was asked and removed."""

    def __init__(self, error: Exception | None = None) -> None:
        self.asked: list[Any] = []
        self.removed: list[str] = []
        self.error = error
        labels = {RUN_LABEL: "r1", OWNER_LABEL: "gone/1/2"}
        self._containers = [self._item("faultline-r1-b1", {"Config": {"Labels": labels}})]
        self._networks = [self._item("faultline-r1", {"Labels": labels})]
        self.containers = SimpleNamespace(list=self._list(self._containers))
        self.networks = SimpleNamespace(list=self._list(self._networks))

    def _item(self, name: str, attrs: dict[str, Any]) -> Any:
        def remove(**options: bool) -> None:
            if self.error:
                raise self.error
            self.removed.append(name)

        return SimpleNamespace(name=name, attrs=attrs, remove=remove)

    def _list(self, items: list[Any]) -> Callable[..., list[Any]]:
        def listed(**options: Any) -> list[Any]:
            self.asked.append(options["filters"])
            return items

        return listed

    def close(self) -> None: ...


def test_containers_go_before_their_networks_and_only_the_label_counts() -> None:
    engine = Engine()
    cleaned = [each.text() for each in clean(in_docker(engine))]
    assert engine.removed == ["faultline-r1-b1", "faultline-r1"]
    assert engine.asked == [{"label": "faultline.run"}] * 2
    assert cleaned == ["removed container faultline-r1-b1 of run r1", "removed network faultline-r1 of run r1"]


def test_one_run_can_be_cleaned_alone() -> None:
    engine = Engine()
    list(in_docker(engine, "r1"))
    assert engine.asked == [{"label": "faultline.run=r1"}] * 2


def test_what_has_gone_meanwhile_is_gone_and_what_is_refused_is_told() -> None:
    from docker.errors import APIError, NotFound

    def fates(error: Exception) -> list[Cleaned]:
        return list(clean(in_docker(Engine(error))))

    assert {each.status for each in fates(NotFound("no such container"))} == {CleanupStatus.REMOVED}
    refused = fates(APIError("403", response=None, explanation="network r1 has active\nendpoints"))
    assert {each.status for each in refused} == {CleanupStatus.FAILED}
    assert refused[1].why == "network r1 has active endpoints"


def test_what_the_engine_does_not_list_is_told_and_the_rest_goes() -> None:
    engine = Engine()

    def unlisted(**_: object) -> list[Any]:
        raise RuntimeError("read timed out")

    engine.containers.list = unlisted
    assert [each.text() for each in clean(in_docker(engine))] == [
        "failed containers of the engine: read timed out",
        "removed network faultline-r1 of run r1",
    ]
    (container, _) = clean(in_docker(Engine(RuntimeError("connection\nreset"))))
    assert (container.status, container.why) == (CleanupStatus.FAILED, "connection reset")


def test_a_run_whose_network_the_engine_does_not_list_says_so_in_one_line() -> None:
    def unlisted(**_: object) -> list[Any]:
        raise RuntimeError("500 Server Error:\nthe store is gone")

    def busy(container: str, **_: object) -> None:
        raise RuntimeError("device or resource busy")

    listed = [{"Names": ["/r1-b1"], "Id": "1"}]
    api = SimpleNamespace(containers=lambda **_: listed, networks=unlisted, remove_container=busy)
    image = Image("faultline/broker", ImageState.READY, "tag")
    containers = Containers(SimpleNamespace(api=api), "r1", image, IPv4Network("10.192.0.0/24"))
    with pytest.raises(MachineError) as raised:
        containers.remove()
    assert str(raised.value) == (
        "left behind: r1-b1 (device or resource busy), the network of r1 (500 Server Error: the store is gone); "
        "remove it: faultline clean"
    )


def test_the_labels_of_a_run_name_this_process() -> None:
    assert run_labels("r7") == {"faultline.run": "r7", "faultline.owner": this_process()}


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (PermissionError(13, "denied"), "may not be opened by this user: run as root, or: usermod -aG docker"),
        (FileNotFoundError(2, "absent"), "no Docker engine answers: start it"),
        (ConnectionRefusedError(111, "refused"), "no Docker engine answers: start it"),
        (TimeoutError("timed out"), "did not answer within 30 s"),
        (ValueError("bad\nhost"), "the Docker engine cannot be used (bad host): see DOCKER_HOST"),
    ],
)
def test_why_the_engine_does_not_answer_is_one_line(error: Exception, said: str) -> None:
    wrapped = RuntimeError("Error while fetching server API version", ("Connection aborted.", error))
    for raised in (error, wrapped) if not isinstance(error, ValueError) else (error,):
        assert said in str(explained(raised))
        assert "\n" not in str(explained(raised))


def test_cleaning_without_an_engine_is_not_carried_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no.sock")
    assert main(["clean"]) == NOT_CARRIED_OUT
    assert capsys.readouterr().out.startswith("Docker passed over: no Docker engine answers: start it")


@pytest.mark.docker
def test_what_a_killed_run_left_in_the_engine_goes_and_what_is_not_ours_stays(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = f"faultline-test-{secrets.token_hex(4)}"
    client = connect()
    labels = {RUN_LABEL: run, OWNER_LABEL: ended_process()}
    image = build(client, ())[0].tag
    network = client.networks.create(run, internal=True, labels=labels)
    other = client.networks.create(f"{run}-other", internal=True)
    try:
        for name in ("running", "stopped"):
            container = client.containers.run(
                image, ["sleep", "60"], name=f"{run}-{name}", network=run, labels=labels, detach=True
            )
            if name == "stopped":
                container.kill()
        assert main(["clean", "--run", run]) == VALID
        lines = capsys.readouterr().out.splitlines()
        assert sorted(lines) == sorted(
            f"removed {what} of run {run}"
            for what in (f"container {run}-running", f"container {run}-stopped", f"network {run}")
        )
        assert main(["clean", "--run", run]) == VALID
        assert capsys.readouterr().out == "nothing was left behind\n"
        assert client.networks.list(ids=[network.id]) == []
        assert len(client.networks.list(ids=[other.id])) == 1
    finally:
        list(clean(in_docker(client, run), everything=True))
        other.remove()
        client.close()
