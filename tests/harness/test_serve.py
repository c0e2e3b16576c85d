"""`faultline serve` on its port: loopback only, one host name, headers that keep other pages out, a clean end."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest

from harness.cli.main import main
from harness.cli.serve import HEADERS, StoreServer
from results.pages.browsing.routes import Router
from results.pages.browsing.store_browser import StoreBrowser
from tests.results.conftest import make_run


@pytest.fixture
def store(tmp_path: Path) -> Path:
    run = make_run(tmp_path / "store")
    run.seal()
    node = run.nodes_path / "b1"
    (node / "node.log").write_text("<script>alert(1)</script>\n")
    return tmp_path / "store"


@pytest.fixture
def server(store: Path) -> Iterator[StoreServer]:
    with StoreServer(Router(StoreBrowser(store, store / "none")), 0) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def ask(server: StoreServer, target: str, *, method: str = "GET", host: str | None = None) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=30)
    connection.putrequest(method, target, skip_host=True)
    connection.putheader("Host", f"127.0.0.1:{server.server_port}" if host is None else host)
    connection.endheaders()
    return connection.getresponse()


def run_name(store: Path) -> str:
    return next(path.name for path in store.glob("2*"))


def test_it_listens_on_loopback_alone(server: StoreServer) -> None:
    assert server.socket.getsockname()[0] == "127.0.0.1"


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:{port}",
        "127.0.0.1",
        "localhost:1",
        "127.0.0.1:{port}.evil.example",
        "",
        "[::1]:{port}",
    ],
)
def test_a_request_that_names_another_host_is_refused(server: StoreServer, host: str) -> None:
    answer = ask(server, "/", host=host.format(port=server.server_port))
    assert answer.status == 421
    assert b"<html" not in answer.read()


def test_a_request_that_names_no_host_or_two_is_refused(server: StoreServer) -> None:
    for head in ("", "Host: 127.0.0.1:{port}\r\nHost: evil.example\r\n"):
        with socket.create_connection(("127.0.0.1", server.server_port), timeout=30) as sock:
            sock.sendall(f"GET / HTTP/1.1\r\n{head.format(port=server.server_port)}\r\n".encode())
            assert sock.recv(100).startswith(b"HTTP/1.1 421 ")


def test_localhost_by_name_is_this_server(server: StoreServer) -> None:
    assert ask(server, "/", host=f"localhost:{server.server_port}").status == 200


@pytest.mark.parametrize("target", ["/", "/runs", "/nothing", "/assets/plotly.js", "/runs/RUN/text/b1"])
def test_every_answer_forbids_foreign_scripts_frames_and_guesses_of_its_type(
    server: StoreServer, store: Path, target: str
) -> None:
    answer = ask(server, target.replace("RUN", run_name(store)))
    for name, value in HEADERS.items():
        assert answer.headers[name] == value
    assert "script-src 'self';" in answer.headers["Content-Security-Policy"]
    assert answer.headers["Cache-Control"] == ("max-age=86400" if target.startswith("/assets") else "no-store")


def test_a_log_as_text_is_sent_as_text(server: StoreServer, store: Path) -> None:
    answer = ask(server, f"/runs/{run_name(store)}/text/b1")
    assert answer.headers["Content-Type"] == "text/plain; charset=utf-8"
    assert answer.read() == b"<script>alert(1)</script>\n"


def test_head_answers_without_the_page_and_nothing_else_is_done(server: StoreServer) -> None:
    answer = ask(server, "/runs", method="HEAD")
    assert (answer.status, answer.read()) == (200, b"")
    assert int(answer.headers["Content-Length"]) > 1000
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "TRACE", "CONNECT"):
        assert ask(server, "/runs", method=method).status == 501


def test_the_error_of_a_method_is_a_line_that_does_not_repeat_it(server: StoreServer) -> None:
    answer = ask(server, "/runs", method="EVIL" * 1000).read()
    assert (b"EVIL" in answer, answer.count(b"\n")) == (False, 1)


@pytest.mark.parametrize(
    "request_line",
    [
        b"GET http://evil.example/ HTTP/1.1",
        b"GET",
        b"\x00\xff",
        b"\x16\x03\x01",
        b"GET / HTTP/9.9",
        b"GET / FOO",
        b"GET /",
        b"PRI * HTTP/2.0",
        b"GET /" + b"a" * 70_000,
    ],
)
def test_what_is_no_proper_request_is_refused_and_others_are_still_answered(
    server: StoreServer, request_line: bytes
) -> None:
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=30) as sock:
        sock.sendall(request_line + f"\r\nHost: 127.0.0.1:{server.server_port}\r\n\r\n".encode())
        answer = sock.recv(4096)
    assert b"<html" not in answer
    assert answer.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 414 ", b"HTTP/1.1 505 "))
    assert ask(server, "/").status == 200


def test_nothing_that_was_asked_is_repeated_as_markup(server: StoreServer) -> None:
    answer = ask(server, "/runs?find=%3Cscript%3Ealert(1)%3C/script%3E")
    assert b"<script>alert" not in answer.read()


ODD_QUERIES = [
    "x=1",
    "find=a&x=1",
    "find=a&find=b",
    "from=1&from=2",
    "find",
    "=",
    "=1",
    "&",
    "find=a&",
    "find=a&&from=1",
    "?",
    "FIND=a",
    "find[]=a",
    "find=%FF",
    "find=%C3%28",
    "find=%ED%A0%80",
    "find=%00",
    "find=a%0Ab",
    "find=a%0D%0Ab",
    "find=%1B[31m",
    "find=%7F",
    "find=%E2%80%AE",
    "from=-1",
    "from=+1",
    "from=1.5",
    "from=1e9",
    "from=0x10",
    "from=%D9%A3",
    "from=%C2%B2",
    "from=" + "9" * 18,
    "from=" + "9" * 5000,
    "from=a",
    "from=1%00",
    "find=" + "a" * 5000,
    "&".join(f"a{n}=1" for n in range(50)),
]


@pytest.mark.parametrize("query", ODD_QUERIES, ids=range(len(ODD_QUERIES)))
def test_a_query_that_no_page_links_to_is_a_bad_request(store: Path, query: str) -> None:
    router = Router(StoreBrowser(store, store / "none"))
    for path in ("/", "/runs", f"/runs/{run_name(store)}/logs/b1"):
        answer = router.respond(f"{path}?{query}")
        assert (answer.status, answer.body) == (400, b"This address cannot be read.\n")


@pytest.mark.parametrize(
    "query", ["", "find=", "find=two+words", "find=%C3%A9%26", "find=a&from=0", "from=", "from=17"]
)
def test_a_query_that_a_page_links_to_is_answered(store: Path, query: str) -> None:
    router = Router(StoreBrowser(store, store / "none"))
    for path in ("/runs", f"/runs/{run_name(store)}/logs/b1"):
        assert router.respond(f"{path}?{query}").status == 200


def test_a_port_in_use_and_a_store_that_is_not_there_are_one_line_each(
    server: StoreServer, store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "--store", str(store), "--port", str(server.server_port)]) == 3
    output = capsys.readouterr().err
    assert output == f"faultline serve: port {server.server_port} is in use; --port 0 takes a free one\n"
    assert main(["serve", "--store", str(store / "none")]) == 64
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("port", ["65536", "-1", "http", "٣"])
def test_a_port_that_is_none_is_bad_usage(port: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", f"--port={port}"]) == 64
    assert capsys.readouterr().err == f"faultline serve: argument --port: {port!r} is not a port: 0 to 65535\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_it_cleanly(store: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-m", "harness", "serve", "--store", str(store), "--port", "0"]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as process:
        assert process.stdout is not None
        assert "Ctrl-C ends it" in process.stdout.readline()
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (0, "ended\n", "")
