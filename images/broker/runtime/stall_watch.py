"""The stalls of a real node: times in which its process did not run, for the trace.

A machine that is busy, a frozen container and a disk that is slow keep a process from doing what is due, through no
mistake of its own. A checker that holds a node to a time has to know of them. The simulation does not use this module:
its nodes run on time but for the faults that keep them from it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from images.trace import TraceEvent

_LOOK_S: Final = 0.1
_NOTABLE_MS: Final = 150
"""Every stall of this length is seen, however it falls between two looks."""


async def trace_stalls(trace: Callable[[TraceEvent], None], now_ns: Callable[[], int]) -> None:
    """Trace, until cancelled, each time for which the event loop has not run. `now_ns` is a clock that no fault
    changes. Raises what `trace` raises."""
    ran_ns = now_ns()
    while True:
        await asyncio.sleep(_LOOK_S)
        before_ns, ran_ns = ran_ns, now_ns()
        stalled_ms = -((before_ns - ran_ns) // 1_000_000)
        if stalled_ms >= _NOTABLE_MS:
            trace(TraceEvent("node_stalled", detail={"for_ms": stalled_ms}))
