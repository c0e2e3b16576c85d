"""Memory that the C library keeps for a node after Python has freed it.

A batch passes through several short-lived copies of its size: the frame, its records, what the CRC is computed of, the
answers to the followers. By default glibc returns such memory to the system again and again, and each new copy then
costs a page fault for every 4 KiB: a fifth of the processor time of batches of 400 KB. With these limits it keeps what
one node needs for the batches in flight. Other C libraries do as they do.
"""

from __future__ import annotations

import ctypes

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_MAPPED_FROM_BYTES = 16 << 20
"""Larger blocks, which only frames beyond any usual batch need, are mapped and returned one by one."""
_KEPT_BYTES = 64 << 20
"""The free memory at the end of the heap above which it is returned to the system."""


def keep_freed_memory() -> None:
    """Have the C library of this process keep up to 64 MiB of freed memory."""
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return
    mallopt(_M_MMAP_THRESHOLD, _MAPPED_FROM_BYTES)
    mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
