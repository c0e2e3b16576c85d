"""Reads the clock of the system's process: runs beside it under the same library.

Each connection to its socket receives one JSON line: the wall clock as this process sees it, and the true one. The true
clock is read from the C library itself, by handle: the preloaded library precedes it only for names that are looked up
in the whole process. Run as a script; the supervisor ends it.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import sys
import time


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


def main(path: str) -> None:
    """Listen on the Unix socket `path` and serve for ever."""
    libc = ctypes.CDLL("libc.so.6")
    moment = _Timespec()
    if os.path.exists(path):
        os.unlink(path)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        while True:
            connection, _ = listener.accept()
            with connection:
                libc.clock_gettime(time.CLOCK_REALTIME, ctypes.byref(moment))
                shown_ns = time.time_ns()
                true_ns = moment.seconds * 1_000_000_000 + moment.nanoseconds
                line = json.dumps({"shown_ns": shown_ns, "true_ns": true_ns})
                try:
                    connection.sendall(line.encode() + b"\n")
                except OSError:
                    continue


if __name__ == "__main__":
    main(sys.argv[1])
