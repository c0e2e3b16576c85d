"""`faultline serve`: browse the store on this machine, with any browser.

It listens on 127.0.0.1 and nowhere else, answers GET and HEAD and nothing else, and changes nothing. Two things keep
other web pages in the same browser from reading along: a request must name this server as its host (a name that was
made to point here after the fact, DNS rebinding, is refused), and no answer may be framed, or read from elsewhere. The
pages come from `results.pages.browsing`; they run no script but the server's own.

Exit codes: 0 when it was ended by Ctrl-C or SIGTERM · 3 when it cannot listen.
"""

from __future__ import annotations

import errno
import os
import shutil
import sys
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import BinaryIO

from harness.cli.usage import Usage
from results.pages.browsing.routes import TEXT, Response, Router
from results.pages.browsing.store_browser import StoreBrowser
from results.pages.page import SERVED_POLICY

ADDRESS = "127.0.0.1"
STOPPED, CANNOT_LISTEN = 0, 3
IDLE_S = 30
"""Time limit of an idle connection."""
HEADERS = {
    "Content-Security-Policy": SERVED_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class StoreServer(ThreadingHTTPServer):
    """The server on its port; port 0 takes a free one. Raises OSError when it cannot listen."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, site: Router, port: int) -> None:
        self.site = site
        super().__init__((ADDRESS, port), _Handler)
        self.hosts = frozenset(f"{name}:{self.server_port}" for name in (ADDRESS, "localhost"))
        """The accepted values of the Host header."""

    @property
    def url(self) -> str:
        """The address of the overview."""
        return f"http://{ADDRESS}:{self.server_port}/"

    def handle_error(self, request: object, client_address: object) -> None:
        """Print errors, but not that of a browser that closes the connection in the middle of an answer."""
        error = sys.exception()
        if not isinstance(error, ConnectionError | TimeoutError):
            print(f"faultline serve: {type(error).__name__}: {error}", file=sys.stderr)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "faultline"
    sys_version = ""
    timeout = IDLE_S
    server: StoreServer

    def do_GET(self) -> None:
        if self.request_version == "HTTP/0.9":  # whose answers have no headers
            self.send_error(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED)
        else:
            self._send(self._answer(), with_body=True)

    def do_HEAD(self) -> None:
        self._send(self._answer(), with_body=False)

    def _answer(self) -> Response:
        if self.headers.get_all("Host", []) not in [[host] for host in self.server.hosts]:
            return Response(421, TEXT, f"This is {self.server.url} and answers to no other name.\n".encode())
        if not self.path.startswith("/"):
            return Response(400, TEXT, b"An address begins with a slash.\n")
        return self.server.site.respond(self.path)

    def _send(self, answer: Response, *, with_body: bool) -> None:
        try:
            file: BinaryIO | None = open(answer.body, "rb") if isinstance(answer.body, Path) else None
        except OSError:
            answer, file = Response(404, TEXT, b"The file is not there any more.\n"), None
        try:
            self._head(answer, os.fstat(file.fileno()).st_size if file else len(bytes(answer.body)))
            if with_body and file is not None:
                shutil.copyfileobj(file, self.wfile)
            elif with_body:
                self.wfile.write(bytes(answer.body))
        finally:
            if file is not None:
                file.close()

    def _head(self, answer: Response, length: int) -> None:
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(length))
        self.send_header("Cache-Control", "max-age=86400" if answer.keep else "no-store")
        for name, value in HEADERS.items():
            self.send_header(name, value)
        self.end_headers()

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """In place of a page that repeats what was sent: a status and one line, also to a request that cannot be read,
        whose version is not known; and the connection ends."""
        self.close_connection = True
        self.request_version = self.protocol_version
        self._send(Response(code, TEXT, f"{self.responses[code][1]}.\n".encode()), with_body=True)

    def log_message(self, format: str, *arguments: object) -> None:
        """The terminal stays quiet."""


def serve(store: Path, comparisons: Path, port: int) -> int:
    """Serve until interrupted. Raises Usage without a store."""
    if not store.is_dir():
        raise Usage(f"faultline serve: {store}: there is no such directory; faultline run makes one")
    try:
        server = StoreServer(Router(StoreBrowser(store, comparisons)), port)
    except OSError as error:
        reason = (
            "is in use; --port 0 takes a free one"
            if error.errno == errno.EADDRINUSE
            else f"cannot be used: {error.strerror}"
        )
        print(f"faultline serve: port {port} {reason}", file=sys.stderr)
        return CANNOT_LISTEN
    with server:
        try:
            print(f"{store} is on {server.url} (Ctrl-C ends it)", flush=True)
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            print("ended", flush=True)
    return STOPPED
