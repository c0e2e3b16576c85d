"""Host keys that are known: OpenSSH's `known_hosts` files, read and never written.

A line names hosts and a key: plain names, `[name]:port` for a port that is not 22, patterns with `*` and `?`, `!`
before a pattern to except it, or one hashed name (`|1|salt|hash`). `@revoked` before a line takes its key back,
whatever another line says. Lines about certificate authorities and lines that make no sense say nothing about a host's
own key and are passed over.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Self

from harness.cluster.hosts import SSH_PORT

_HASHED = re.compile(r"\|1\|([^|]+)\|([^|]+)")


class HostKeyStatus(StrEnum):
    """Status of a host's key according to known_hosts."""

    KNOWN = "known"
    UNKNOWN = "unknown"
    """No key of this host is known."""
    OTHER = "other"
    """Keys of this host are known, and this is none of them."""
    REVOKED = "revoked"


@dataclass(frozen=True, slots=True)
class _Line:
    names: tuple[str, ...]
    kind: str
    key: bytes
    revoked: bool

    def is_about(self, name: str) -> bool:
        matched = False
        for pattern in self.names:
            excepted = pattern.startswith("!")
            if _matches(pattern.removeprefix("!"), name):
                if excepted:
                    return False
                matched = True
        return matched


@dataclass(frozen=True, slots=True)
class KnownHosts:
    """The lines of some known_hosts files."""

    lines: tuple[_Line, ...]

    @classmethod
    def parse(cls, text: str) -> Self:
        """From the text of a file."""
        return cls(tuple(line for line in map(_line, text.splitlines()) if line is not None))

    @classmethod
    def read(cls, paths: Iterable[Path]) -> Self:
        """From files, one after the other. Raises OSError."""
        return cls.parse("\n".join(path.read_text(encoding="utf-8", errors="replace") for path in paths))

    def kinds(self, address: str, port: int) -> Sequence[str]:
        """The types of the keys known for a host (`ssh-ed25519` …), in the order of the lines: ask it for one of these,
        since it may have others that are not known."""
        name = entry_name(address, port)
        return tuple(dict.fromkeys(line.kind for line in self.lines if line.is_about(name) and not line.revoked))

    def status_of(self, address: str, port: int, key: bytes) -> HostKeyStatus:
        """The status of `key`, the public key as it goes over the wire, shown by that host."""
        name = entry_name(address, port)
        about = [line for line in self.lines if line.is_about(name)]
        if any(line.revoked and line.key == key for line in about):
            return HostKeyStatus.REVOKED
        known = [line.key for line in about if not line.revoked]
        if key in known:
            return HostKeyStatus.KNOWN
        return HostKeyStatus.OTHER if known else HostKeyStatus.UNKNOWN


def entry_name(address: str, port: int) -> str:
    """How a known_hosts file names a host."""
    return address.lower() if port == SSH_PORT else f"[{address.lower()}]:{port}"


def fingerprint(key: bytes) -> str:
    """As ssh-keygen shows it: `SHA256:…`."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(key).digest()).decode().rstrip("=")


def _line(text: str) -> _Line | None:
    words = text.split()
    marker = words.pop(0) if words and words[0].startswith("@") else ""
    if len(words) < 3 or words[0].startswith("#") or marker not in ("", "@revoked"):
        return None
    try:
        key = base64.b64decode(words[2], validate=True)
    except binascii.Error:
        return None
    return _Line(tuple(words[0].split(",")), words[1], key, bool(marker))


def _matches(pattern: str, name: str) -> bool:
    if hashed := _HASHED.fullmatch(pattern):
        try:
            salt, digest = base64.b64decode(hashed[1]), base64.b64decode(hashed[2])
        except binascii.Error:
            return False
        return hmac.compare_digest(hmac.new(salt, name.encode(), hashlib.sha1).digest(), digest)
    # Not fnmatch: brackets are themselves here, as in [name]:port.
    expression = "".join({"*": ".*", "?": "."}.get(letter, re.escape(letter)) for letter in pattern.lower())
    return re.fullmatch(expression, name) is not None
