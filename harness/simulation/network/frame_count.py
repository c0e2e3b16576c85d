"""How many messages a stream has: frames of Kafka's protocol, a length of four bytes and as many bytes."""

from __future__ import annotations

from typing import Final

_LENGTH: Final = 4


class FrameCount:
    """Counts the frames of a stream, whose writes may end anywhere."""

    __slots__ = ("_head", "_missing", "whole")

    def __init__(self) -> None:
        self.whole = 0
        """Frames that have ended."""
        self._head = b""
        """Of a frame whose length is not whole."""
        self._missing = 0
        """Bytes of the last frame that are to come after its length."""

    @property
    def ends_whole(self) -> bool:
        """Whether the stream ends where a frame does."""
        return not self._missing and not self._head

    def add(self, data: bytes) -> None:
        """What comes next in the stream."""
        size = len(data)
        if not self._missing and not self._head and size - _LENGTH == int.from_bytes(data[:_LENGTH]) > 0:
            self.whole += 1  # by far the usual case: a write is a frame
            return
        at = 0
        while at < size:
            if not self._missing:
                head = self._head + data[at : at + _LENGTH - len(self._head)]
                at += len(head) - len(self._head)
                self._head = head
                if len(head) < _LENGTH:
                    return
                self._head, self._missing = b"", int.from_bytes(head)
            taken = min(self._missing, size - at)
            at += taken
            self._missing -= taken
            self.whole += not self._missing
