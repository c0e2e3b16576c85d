"""Calls of an event loop that reach the real world; each is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NoReturn

from harness.simulation.errors import RealWorldError


def _refused(name: str, instead: str = "") -> Callable[..., NoReturn]:
    def call(self: RefusingLoop, *args: object, **kwargs: object) -> NoReturn:
        raise self.refuse(f"loop.{name}", instead)

    call.__name__ = name
    call.__doc__ = "Raises RealWorldError: it is not simulated."
    return call


class RefusingLoop(asyncio.AbstractEventLoop):
    """An event loop that raises RealWorldError, naming the call, for whatever needs the operating system."""

    def refuse(self, call: str, instead: str = "") -> RealWorldError:
        """The error to raise for `call`."""
        return RealWorldError(call, instead)

    run_in_executor: Any = _refused("run_in_executor", "a task")
    set_default_executor: Any = _refused("set_default_executor")
    call_soon_threadsafe: Any = _refused("call_soon_threadsafe", "call_soon(): there are no other threads")
    add_reader: Any = _refused("add_reader", "a protocol")
    remove_reader: Any = _refused("remove_reader")
    add_writer: Any = _refused("add_writer", "a protocol")
    remove_writer: Any = _refused("remove_writer")
    add_signal_handler: Any = _refused("add_signal_handler")
    remove_signal_handler: Any = _refused("remove_signal_handler")
    sock_recv: Any = _refused("sock_recv", "a protocol")
    sock_recv_into: Any = _refused("sock_recv_into", "a protocol")
    sock_recvfrom: Any = _refused("sock_recvfrom", "a protocol")
    sock_recvfrom_into: Any = _refused("sock_recvfrom_into", "a protocol")
    sock_sendall: Any = _refused("sock_sendall", "a transport")
    sock_sendto: Any = _refused("sock_sendto", "a transport")
    sock_connect: Any = _refused("sock_connect", "create_connection()")
    sock_accept: Any = _refused("sock_accept", "create_server()")
    sock_sendfile: Any = _refused("sock_sendfile", "a transport")
    sendfile: Any = _refused("sendfile", "a transport")
    start_tls: Any = _refused("start_tls")
    connect_accepted_socket: Any = _refused("connect_accepted_socket", "create_server()")
    create_datagram_endpoint: Any = _refused("create_datagram_endpoint", "create_connection()")
    create_unix_connection: Any = _refused("create_unix_connection", "create_connection()")
    create_unix_server: Any = _refused("create_unix_server", "create_server()")
    connect_read_pipe: Any = _refused("connect_read_pipe")
    connect_write_pipe: Any = _refused("connect_write_pipe")
    subprocess_shell: Any = _refused("subprocess_shell")
    subprocess_exec: Any = _refused("subprocess_exec")
    getnameinfo: Any = _refused("getnameinfo")
    run_forever: Any = _refused("run_forever", "World.run()")
    run_until_complete: Any = _refused("run_until_complete", "World.run()")
    stop: Any = _refused("stop")
    close: Any = _refused("close")
    set_task_factory: Any = _refused("set_task_factory")
