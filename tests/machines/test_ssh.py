"""SSH against real hosts: who is let in and who is not, commands, files, and what stays behind."""

from __future__ import annotations

import asyncio
import io
import tarfile
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from zipfile import ZipFile

import pytest

from harness.cluster.hosts import Host
from harness.cluster.systems import SYSTEMS
from harness.environments.machines.machine import CommandFailed, MachineError
from harness.environments.ssh.connection import SESSIONS, SshConnection
from harness.environments.ssh.install import ROOT, Claim, claim_on, install, uninstall
from harness.environments.ssh.machine import SshMachine
from harness.node_images import recipes
from images.system import System
from tests.machines.sshd import KeyPair, Lab, lab

pytestmark = pytest.mark.docker

LOOK = "ls -A /opt /run /var/lib | grep -v motd"
"""The first login on a host writes its message of the day."""


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """One host, b1."""
    with lab(tmp_path_factory.mktemp("lab"), ["b1"]) as hosts:
        yield hosts


def refusal(host: Host) -> str:
    with pytest.raises(MachineError) as refused:
        SshConnection.open("b1", host)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def on(host: Host, use: Callable[[SshMachine], Awaitable[None]]) -> None:
    """Have `use` done with the host as a machine."""

    async def connected() -> None:
        async with machine(host) as reached:
            await use(reached)

    asyncio.run(connected())


@asynccontextmanager
async def machine(host: Host) -> AsyncIterator[SshMachine]:
    reached = await SshMachine.connect("b1", host)
    try:
        yield reached
    finally:
        await reached.close()


# ---- who is let in ---------------------------------------------------------------------------------------------------


def test_a_host_whose_key_is_not_known_is_refused_with_what_to_do(one: Lab, tmp_path: Path) -> None:
    empty = tmp_path / "known_hosts"
    empty.touch()
    host = replace(one.hosts["b1"], known_hosts=str(empty))
    said = refusal(host)
    assert said.startswith(f"b1: {host.address} shows the host key SHA256:")
    assert f"which is not in {empty}; if it is the host's own, add it: ssh-keyscan {host.address} >>{empty}" in said
    assert empty.read_text() == ""


def test_a_host_that_shows_another_key_than_is_known_is_refused(one: Lab, tmp_path: Path) -> None:
    host = one.hosts["b1"]
    known = tmp_path / "known_hosts"
    known.write_text(f"{host.address} {KeyPair.make(tmp_path / 'other').public}\n")
    said = refusal(replace(host, known_hosts=str(known)))
    assert f"but {known} has another: it is another host, or was set up anew; if so: ssh-keygen -R" in said


def test_nobody_gets_in_without_the_right_key(one: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = one.hosts["b1"]
    stranger, locked = KeyPair.make(tmp_path / "stranger"), KeyPair.make(tmp_path / "locked", "a passphrase")
    assert f"refused {stranger.path}; the public key must be in root's" in refusal(
        replace(host, key=str(stranger.path))
    )
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    assert f"key {locked.path} is protected by a passphrase; ssh-add" in refusal(replace(host, key=str(locked.path)))
    assert "cannot be read: No such file or directory" in refusal(replace(host, key=str(tmp_path / "absent")))
    assert "is not a private key that can be used" in refusal(replace(host, key=host.known_hosts))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert "was offered no key: there is none in the agent or ~/.ssh" in refusal(replace(host, key=""))


def test_the_usual_key_is_found_without_being_named(one: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = one.hosts["b1"]
    home = tmp_path / ".ssh"
    home.mkdir()
    (home / "id_ed25519").write_bytes(Path(host.key).read_bytes())
    (home / "known_hosts").write_bytes(Path(host.known_hosts).read_bytes())
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    SshConnection.open("b1", Host(host.address)).close()


def test_where_nothing_answers_and_what_is_no_host_is_told(one: Lab) -> None:
    host = one.hosts["b1"]
    assert refusal(replace(host, port=23)) == f"b1: no SSH at {host.address} port 23: Connection refused"
    assert refusal(replace(host, address="no-such-host.invalid")).startswith("b1: no SSH at no-such-host.invalid: ")
    assert refusal(replace(host, known_hosts="/absent")).startswith("b1: known_hosts /absent cannot be read: ")


def test_a_user_who_cannot_become_root_is_told_so(one: Lab) -> None:
    one.shell("b1", "id lab 2>/dev/null || useradd -m lab; cp -r /root/.ssh /home/lab; chown -R lab /home/lab/.ssh")
    said = refusal(replace(one.hosts["b1"], user="lab"))
    assert "lab cannot become root" in said
    assert said.endswith("allow it in sudoers with NOPASSWD")


def test_another_user_becomes_root_by_sudo(one: Lab) -> None:
    one.shell("b1", "id lab 2>/dev/null || useradd -m lab; cp -r /root/.ssh /home/lab; chown -R lab /home/lab/.ssh")
    # As sudo -n would: the base image has no sudo, and a test has no network to install it from.
    sudo = "#!/usr/bin/python3\nimport os, sys\nassert sys.argv[1:3] == ['-n', '--']\nos.setuid(0)\n"
    sudo += "os.execvp(sys.argv[3], sys.argv[3:])\n"
    one.shell("b1", "cp /usr/bin/python3 /usr/bin/rootly && chmod 4755 /usr/bin/rootly")
    one.containers["b1"].put_archive("/usr/bin", _tar("sudo", sudo.replace("python3", "rootly").encode(), 0o755))

    async def use(reached: SshMachine) -> None:
        assert await reached.run(["id", "-u"]) == b"0\n"
        await reached.put(b"mine", "/etc/of-root", mode=0o600)

    try:
        on(replace(one.hosts["b1"], user="lab"), use)
        assert one.shell("b1", "stat -c '%U %a' /etc/of-root; ls -A /tmp") == "root 600\n"
    finally:
        one.shell("b1", "rm /usr/bin/sudo /usr/bin/rootly")


def _tar(name: str, contents: bytes, mode: int) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        entry = tarfile.TarInfo(name)
        entry.size, entry.mode = len(contents), mode
        archive.addfile(entry, io.BytesIO(contents))
    return packed.getvalue()


# ---- commands and files ----------------------------------------------------------------------------------------------


def test_a_command_is_run_as_it_stands_and_gives_back_its_output(one: Lab) -> None:
    async def use(reached: SshMachine) -> None:
        assert reached.address == one.hosts["b1"].address
        assert await reached.run(["echo", "a  b", "$HOME", "'"]) == b"a  b $HOME '\n"
        large = bytes(range(256)) * 20_000
        assert await reached.run(["cat"], stdin=large) == large
        assert await reached.run(["sh", "-c", "exec >&- 2>&-; sleep 0.3"]) == b""

    on(one.hosts["b1"], use)


def test_a_command_that_fails_is_one_line_with_its_last_words(one: Lab) -> None:
    async def use(reached: SshMachine) -> None:
        with pytest.raises(CommandFailed, match=r"^b1: no way$") as failed:
            await reached.run(["sh", "-c", "echo first >&2; echo no way >&2; exit 3"])
        assert failed.value.status == 3
        with pytest.raises(CommandFailed, match=r"^b1: false ended with status 1$"):
            await reached.run(["false"])
        with pytest.raises(CommandFailed, match="was ended by a signal"):
            await reached.run(["sh", "-c", "kill -9 $$"])
        with pytest.raises(MachineError, match=r"^b1: sleep 5 has not ended after 0\.3 s$"):
            await reached.run(["sleep", "5"], timeout_s=0.3)

    on(one.hosts["b1"], use)


def test_more_commands_than_sessions_wait_for_each_other(one: Lab) -> None:
    async def use(reached: SshMachine) -> None:
        many = [reached.run(["sh", "-c", f"sleep 0.2; echo {number}"]) for number in range(SESSIONS + 4)]
        assert await asyncio.gather(*many) == [f"{number}\n".encode() for number in range(SESSIONS + 4)]

    on(one.hosts["b1"], use)


def test_a_session_that_the_server_refuses_is_opened_when_another_has_ended(one: Lab) -> None:
    connection = SshConnection.open("b1", one.hosts["b1"])
    connection._sessions = threading.Semaphore(2 * SESSIONS)
    commands = [["sh", "-c", f"sleep 0.5; echo {number}"] for number in range(2 * SESSIONS)]
    try:
        with ThreadPoolExecutor(len(commands)) as threads:
            ended = [threads.submit(connection.run, command, b"", 120.0) for command in commands]
        assert [run.result() for run in ended] == [f"{number}\n".encode() for number in range(2 * SESSIONS)]
    finally:
        connection.close()


def test_a_file_that_is_put_is_there_whole_and_can_be_fetched(one: Lab) -> None:
    contents = bytes(range(256)) * 10_000

    async def use(reached: SshMachine) -> None:
        await reached.put(contents, "/srv/deep/er/file", mode=0o750)
        await reached.put(b"again", "/srv/deep/file")
        await reached.put(b"and again", "/srv/deep/file")
        with tarfile.open(fileobj=io.BytesIO(await reached.fetch("/srv/deep"))) as archive:
            files = {item.name: item for item in archive if item.isfile()}
            assert set(files) == {"deep/er/file", "deep/file"}
            assert files["deep/er/file"].mode == 0o750
            for name, expected in (("deep/er/file", contents), ("deep/file", b"and again")):
                file = archive.extractfile(name)
                assert file is not None
                assert file.read() == expected
        with pytest.raises(CommandFailed, match=r"^b1: there is no /srv/nothing$"):
            await reached.fetch("/srv/nothing")
        with pytest.raises(MachineError, match="b1: "):
            await reached.put(b"", "/dev/null/file")

    on(one.hosts["b1"], use)
    assert one.shell("b1", "ls -A /tmp") == ""


def test_a_file_that_finds_no_room_leaves_nothing(one: Lab) -> None:
    async def use(reached: SshMachine) -> None:
        with pytest.raises(MachineError, match=r"b1: SFTP to .* failed: \d+ of 1048576 bytes could be written"):
            await reached.put(bytes(1 << 20), "/srv/large")

    one.shell("b1", "mount -t tmpfs -o size=64k tmpfs /tmp")
    try:
        on(one.hosts["b1"], use)
        assert one.shell("b1", "ls -A /tmp") == ""
    finally:
        one.shell("b1", "umount /tmp")


def test_a_connection_that_ends_takes_its_commands_with_it(one: Lab) -> None:
    async def use() -> None:
        reached = await SshMachine.connect("b1", one.hosts["b1"])
        waiting = asyncio.create_task(reached.run(["sleep", "20"], timeout_s=600))
        await asyncio.to_thread(one.shell, "b1", "until pgrep -x sleep; do sleep 0.1; done >/dev/null")
        await reached.close()
        with pytest.raises(MachineError, match="sleep 20 was cut off"):
            await waiting
        with pytest.raises(MachineError, match="is closed"):
            await reached.run(["true"])

    asyncio.run(use())


# ---- programs --------------------------------------------------------------------------------------------------------


def test_a_host_without_pip_or_network_gets_everything_a_node_needs_and_is_left_as_it_was(one: Lab) -> None:
    before = one.shell("b1", LOOK)

    async def use(reached: SshMachine) -> None:
        await install(reached, Claim.of_this_process("r1"), SYSTEMS["broker"])
        assert b'"lacks"' in await reached.run(["faultline-node", "describe"])
        imports = "import aiokafka, google_crc32c, kio, mfusepy, images.broker.node; print('all')"
        assert await reached.run(["env", f"PYTHONPATH={ROOT}", "python3", "-c", imports]) == b"all\n"
        await uninstall(reached)

    on(one.hosts["b1"], use)
    assert one.shell("b1", LOOK) == before


OPENJDK = """echo 'openjdk version "{}" 2026-04-21' >&2\n"""


@contextmanager
def java_on(hosts: Lab, script: str) -> Iterator[None]:
    """A program `java` on b1 for as long as the block lasts."""
    hosts.containers["b1"].put_archive("/usr/local/bin", _tar("java", f"#!/bin/sh\n{script}".encode(), 0o755))
    try:
        yield
    finally:
        hosts.shell("b1", "rm /usr/local/bin/java")


def refused_for(host: Host, system: System) -> str:
    """The one line with which a host is refused for a system; the host is free afterwards."""
    lines: list[str] = []

    async def use(reached: SshMachine) -> None:
        with pytest.raises(MachineError) as refused:
            await install(reached, Claim.of_this_process("r1"), system)
        lines.append(str(refused.value))
        assert await claim_on(reached) is None

    on(host, use)
    assert "\n" not in lines[0]
    return lines[0]


def test_a_host_that_cannot_run_kafka_is_told_what_it_lacks(one: Lab) -> None:
    host, kafka = one.hosts["b1"], SYSTEMS["kafka"]
    install_it = "on Debian: apt-get install openjdk-17-jre-headless"
    assert refused_for(host, kafka) == f"b1: no Java there; {install_it}"
    with java_on(one, OPENJDK.format("11.0.27")):
        assert refused_for(host, kafka) == f"b1: Java 11 is too old; kafka 4.1.1 needs 17 or later; {install_it}"
    with java_on(one, OPENJDK.format("1.7.0_80")):
        older = kafka.release("3.9.1", {})
        assert refused_for(host, older) == f"b1: Java 7 is too old; kafka 3.9.1 needs 8 or later; {install_it}"
    with java_on(one, "echo no room for a heap; exit 1"):
        assert refused_for(host, kafka) == f"b1: its Java does not start (no room for a heap); {install_it}"


def test_a_host_without_memory_for_a_node_is_refused(one: Lab) -> None:
    host, kafka = one.hosts["b1"], SYSTEMS["kafka"]
    one.containers["b1"].update(mem_limit=256 << 20, memswap_limit=256 << 20)
    try:
        needed = "a node of kafka takes about 450 MiB"
        assert refused_for(host, kafka) == f"b1: 256 MiB of memory are available there; {needed}"
    finally:
        one.containers["b1"].update(mem_limit=4 << 30, memswap_limit=4 << 30)


def test_kafka_without_its_archives_here_is_refused(one: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with java_on(one, OPENJDK.format("17.0.19")), monkeypatch.context() as without:
        without.setenv("XDG_CACHE_HOME", str(tmp_path))
        without.setenv("PATH", "")
        said = refused_for(one.hosts["b1"], SYSTEMS["kafka"])
    assert said.startswith("b1: org.apache.kafka:kafka_2.13:4.1.1, org.apache.kafka:kafka-tools:4.1.1, ")
    assert said.endswith("cannot be fetched: Maven is not installed (on Debian: apt-get install maven)")


def test_kafkas_archives_lie_where_its_launcher_looks(
    one: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ZipFile(tmp_path / "kafka-metadata-9.9.9.jar", "w") as jar:
        jar.writestr("common/metadata/TopicRecord.json", "{}")
    monkeypatch.setattr(recipes, "jars", lambda coordinates: tmp_path)
    home = "/srv/kafka"
    launcher = ["python3", "-m", "images.kafka", f"{home}/node.properties", f"{home}/data", f"{home}/schemas.json"]

    async def use(reached: SshMachine) -> None:
        await install(reached, Claim.of_this_process("r1"), SYSTEMS["kafka"].release("9.9.9", {}))
        await reached.put(b"", f"{home}/data/meta.properties")
        said = (await reached.run(["env", f"PYTHONPATH={ROOT}", *launcher])).decode()
        archive = f"{ROOT}/kafka/jars/kafka-metadata-9.9.9.jar"
        assert f" -Djava.io.tmpdir={home} -cp {archive} kafka.Kafka {home}/node.properties\n" in said
        await uninstall(reached)

    with java_on(one, OPENJDK.format("17.0.19") + 'echo "$@"'):
        on(one.hosts["b1"], use)


def test_a_host_carries_one_run_at_a_time(one: Lab) -> None:
    async def use(reached: SshMachine) -> None:
        assert await claim_on(reached) is None
        ours = Claim.of_this_process("r1")
        await install(reached, ours, SYSTEMS["broker"])
        try:
            assert await claim_on(reached) == ours
            with pytest.raises(MachineError, match=f"^b1: {reached.address} is in use by run r1 of "):
                await install(reached, Claim.of_this_process("r2"), SYSTEMS["broker"])
            assert await claim_on(reached) == ours
        finally:
            await uninstall(reached)
        assert await claim_on(reached) is None

    on(one.hosts["b1"], use)


def test_what_a_killed_run_left_is_told_with_what_removes_it(one: Lab) -> None:
    async def use(reached: SshMachine) -> None:
        left = Claim("r0", "another-boot/1/2", "someone@elsewhere", "yesterday")
        await install(reached, left, SYSTEMS["broker"])
        with pytest.raises(
            MachineError, match=r"run r0 of someone@elsewhere, yesterday, or was left .* faultline clean"
        ):
            await install(reached, Claim.of_this_process("r1"), SYSTEMS["broker"])
        await uninstall(reached)

    on(one.hosts["b1"], use)


def test_an_installation_that_fails_leaves_nothing(one: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    async def use(reached: SshMachine) -> None:
        async def full(contents: bytes, path: str, *, mode: int = 0o644) -> None:
            raise MachineError("b1: No space left on device")

        monkeypatch.setattr(reached, "put", full)
        with pytest.raises(MachineError, match="No space left"):
            await install(reached, Claim.of_this_process("r1"), SYSTEMS["broker"])
        assert await claim_on(reached) is None

    on(one.hosts["b1"], use)
