"""Hosts on loopback that accept a connection and then fall silent: each is named in one line, within the limit."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import paramiko
import pytest

from harness.cluster.hosts import Host
from harness.environments.machines.machine import MachineError
from harness.environments.ssh import login
from harness.environments.ssh.known_hosts import KnownHosts
from tests.machines.sshd import KeyPair


@pytest.fixture
def short_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login, "LOGIN_LIMIT_S", 0.3)


@contextmanager
def host(serve: Callable[[socket.socket], object]) -> Iterator[int]:
    """The port of a host that accepts one connection and hands it to `serve`."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        accepted: list[socket.socket] = []

        def accept() -> None:
            accepted.append(listening.accept()[0])
            serve(accepted[0])

        server = threading.Thread(target=accept)
        server.start()
        try:
            yield listening.getsockname()[1]
        finally:
            server.join()
            accepted[0].close()


def refusal(refused: Host) -> str:
    with pytest.raises(MachineError) as raised:
        login.logged_in("b1", refused)
    assert "\n" not in str(raised.value)
    return str(raised.value)


@pytest.mark.usefixtures("short_limit")
@pytest.mark.parametrize("said", [b"", b"SSH-2.0-OpenSSH_9.2\r\n"], ids=["at once", "after its banner"])
def test_a_host_that_accepts_and_never_answers_is_named(tmp_path: Path, said: bytes) -> None:
    (tmp_path / "known_hosts").touch()
    with host(lambda connection: connection.sendall(said)) as port:
        silent = refusal(Host("127.0.0.1", port=port, known_hosts=str(tmp_path / "known_hosts")))
    assert silent.startswith(
        f"b1: 127.0.0.1 port {port} accepts connections and has not answered in SSH after 0.3 s; is its sshd hung"
    )


def test_a_service_that_closes_the_connection_does_not_speak_ssh(tmp_path: Path) -> None:
    (tmp_path / "known_hosts").touch()
    with host(lambda connection: connection.shutdown(socket.SHUT_RDWR)) as port:
        closed = refusal(Host("127.0.0.1", port=port, known_hosts=str(tmp_path / "known_hosts")))
    assert closed.startswith(f"b1: what answers at 127.0.0.1 port {port} does not speak SSH with us: ")


def test_a_host_that_never_answers_the_login_is_named_and_refuses_no_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = KeyPair.make(tmp_path / "client")
    theirs = paramiko.ECDSAKey.generate()
    test_over = threading.Event()

    class Hung(paramiko.ServerInterface):
        def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
            test_over.wait()
            return paramiko.common.AUTH_FAILED

        def get_allowed_auths(self, username: str) -> str:
            return "publickey"

    def serve(connection: socket.socket) -> None:
        transport = paramiko.Transport(connection)
        transport.add_server_key(theirs)
        transport.start_server(threading.Event(), Hung())

    check_host_key = login._check_host_key

    def limit_shortened_once_the_host_is_known(name: str, host: Host, known: KnownHosts, key: bytes) -> None:
        check_host_key(name, host, known, key)
        monkeypatch.setattr(login, "LOGIN_LIMIT_S", 0.3)

    monkeypatch.setattr(login, "_check_host_key", limit_shortened_once_the_host_is_known)
    known = tmp_path / "known_hosts"
    try:
        with host(serve) as port:
            known.write_text(f"[127.0.0.1]:{port} {theirs.get_name()} {theirs.get_base64()}\n")
            unanswered = refusal(Host("127.0.0.1", port=port, key=str(ours.path), known_hosts=str(known)))
    finally:
        test_over.set()
    assert unanswered == f"b1: 127.0.0.1 has not answered the login with {ours.path} after 0.3 s"
