"""A monitor inside a container: what the kernel and the node's own clock and disk show, ten times a second.

Run as a script in the container, by the standard library alone; it knows nothing of faults. Each line of its output is
a sample: the time before and after it (CLOCK_BOOTTIME, in ns), whether nftables has the table `inet faultline`, the
state of the system's process (`R`, `S`, `T` … as in /proc, empty without one), the offset of the clock that such a
process sees (None without an answer), and the bytes of all files below the data directory. It ends when the file given
as its second argument exists.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import sys
import time

PERIOD_S = 0.1
SYSTEM = [b"-m", b"images.broker"]

_NETLINK_NETFILTER = 12
_GET_TABLE = (10 << 8) | 1
_REQUEST_DUMP = 0x1 | 0x300
_DONE = 3
_NAME = 1


def has_table(name: bytes = b"faultline") -> bool:
    """Asks the kernel for the names of all tables."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_NETFILTER) as kernel:
        kernel.settimeout(2.0)
        kernel.sendto(struct.pack("=IHHIIBBH", 20, _GET_TABLE, _REQUEST_DUMP, 1, 0, 0, 0, 0), (0, 0))
        found = False
        while True:
            answer = kernel.recv(1 << 16)
            place = 0
            while place < len(answer):
                length, kind = struct.unpack_from("=IH", answer, place)
                if kind == _DONE:
                    return found
                at = place + 20
                while at < place + length:
                    size, attribute = struct.unpack_from("=HH", answer, at)
                    value = answer[at + 4 : at + size].rstrip(b"\0")
                    found = found or (attribute & 0x3FFF == _NAME and value == name)
                    at += (size + 3) & ~3
                place += (length + 3) & ~3


def process_state() -> str:
    """The state of the system's process; empty when there is none, or only what a killed one left."""
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/cmdline", "rb") as file:
                if file.read().split(b"\0")[1:3] != SYSTEM:
                    continue
            with open(f"/proc/{entry}/stat") as file:
                state = file.read().rsplit(")", 1)[1].split()[0]
        except OSError:
            continue
        if state not in "ZX":
            return state
    return ""


def clock_offset_ms(path: str = "/run/faultline/clock-reader.socket") -> float | None:
    """The clock of a process under the same library as the system's, against the true one."""
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(0.5)
            connection.connect(path)
            reading = json.loads(connection.makefile("rb").readline())
    except (OSError, ValueError):
        return None
    return float(reading["shown_ns"] - reading["true_ns"]) / 1e6


def data_bytes(directory: str) -> int:
    """The sizes of all files below the data directory."""
    total = 0
    for parent, _, names in os.walk(directory):
        for name in names:
            try:
                total += os.lstat(os.path.join(parent, name)).st_size
            except OSError:
                continue
    return total


def main(data: str, stop: str) -> None:
    """Print a sample a line until `stop` exists."""
    print(json.dumps({"monitor": os.getpid()}), flush=True)
    while not os.path.exists(stop):
        began_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        sample = {"table": has_table(), "state": process_state(), "bytes": data_bytes(data)}
        sample["clock_ms"] = clock_offset_ms()
        ended_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        print(json.dumps({"began_ns": began_ns, "ended_ns": ended_ns, **sample}), flush=True)
        time.sleep(PERIOD_S)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
