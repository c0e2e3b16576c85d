"""A running hash over every scheduling decision and every byte that left a node.

Two runs are the same run iff their digests are equal. The hash covers, in order:

    one byte below EVENT          the node whose callback ran (its index in the world)
    EVENT, true time (8 bytes)    something fell due: an arrival, a timer
    SENT, …                       bytes handed to the network, by direction of a connection
    DISK, …                       an operation on a disk

Names, object addresses, log lines and anything of the real world do not go in. Writers append to `buffer`
directly, since this is on every hot path; the world calls `fold` now and then.
"""

from __future__ import annotations

from hashlib import blake2b

EVENT = 0xF0
SENT = 0xF1
DISK = 0xF2
NODES_MAX = EVENT


class Digest:
    """The hash, and the bytes not folded into it yet."""

    __slots__ = ("_hash", "buffer")

    def __init__(self) -> None:
        self.buffer = bytearray()
        self._hash = blake2b(digest_size=16)

    def fold(self) -> None:
        """Take the buffered bytes into the hash."""
        self._hash.update(self.buffer)
        self.buffer.clear()

    def hexdigest(self) -> str:
        """The hash of everything so far, as 32 hexadecimal digits."""
        self.fold()
        return self._hash.hexdigest()
