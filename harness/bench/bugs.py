"""Time to bug: the time until a broker that is known to be wrong is found.

Each flaw is searched for in disjoint ranges of seeds, one simulated run for each seed, until a run is invalid. The run
is short, busy, and has the one scripted fault (nemesis/faults/scripted/leader.py) that provokes the flaw; the full
protocol must be valid in every such run, which is tested with each seed that finds the flaw. CPU seconds include
checking and all else a run takes in one process.

The reference is TLC on the abstract TLA+ models of the same flaws, with three replicas, two records, two epochs
and two workers, on a machine of two cores.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

from checkers.verdict import Validity
from harness.runner.run import run_in_simulation
from harness.spec import Spec, parse

RANGES: Final = 20
SEEDS_A_RANGE: Final = 100

_SUCCESSION: Final = {"time_limit": 12, "faults": [{"at": 2, "for": 9, "fault": "quick-succession"}]}
_ZOMBIE: Final = {"time_limit": 20, "faults": [{"at": 2, "for": 17, "fault": "zombie-follower"}]}


@dataclass(frozen=True, slots=True)
class Flaw:
    """A broker that is wrong in one way, and the scripted fault that provokes it."""

    name: str
    faults: Mapping[str, Any]
    changes: Mapping[str, Any]
    tlc_seconds: float

    def spec(self, seed: int, *, flawed: bool = True) -> Spec:
        """One run that searches for it; without the flaw, the run in which the full protocol must be valid."""
        fields = {"seed": seed, "rate": 40, **self.faults}
        return parse({**fields, **self.changes} if flawed else fields)


def _generation(name: str) -> dict[str, Any]:
    return {"settings": {"faultline.protocol": name}}


FLAWS: Final = (
    Flaw("high_watermark", _SUCCESSION, _generation("high_watermark"), 2.5),
    Flaw("kip101", _ZOMBIE, _generation("kip101"), 6.8),
    Flaw("kip279, no fencing", _ZOMBIE, _generation("kip279"), 5.9),
    Flaw("without fence_fetch_epoch", _ZOMBIE, {"without": ["fence_fetch_epoch"]}, 13.5),
)


@dataclass(frozen=True, slots=True)
class BugSearch:
    """The search for a flaw, range by range."""

    flaw: Flaw
    seeds: tuple[int, ...]
    """Runs until it was found, of the ranges in which it was found."""
    seconds: tuple[float, ...]
    missed: int
    """Ranges in which it was not found."""

    @property
    def median_seconds(self) -> float:
        """CPU seconds to the first detection."""
        return median(self.seconds)


def searches(on_step: Callable[[str], None], ranges: int = RANGES) -> Iterator[BugSearch]:
    """Search for each flaw in as many ranges. Raises RuntimeError when the full protocol fails, or none is found."""
    for flaw in FLAWS:
        seeds, seconds, found = list[int](), list[float](), list[int]()
        for number in range(ranges):
            on_step(f"{flaw.name}: range {number + 1} of {ranges}")
            began = time.process_time()
            first = number * SEEDS_A_RANGE
            for seed in range(first, first + SEEDS_A_RANGE):
                if run_in_simulation(flaw.spec(seed)).validity is Validity.INVALID:
                    found.append(seed)
                    seeds.append(seed - first + 1)
                    seconds.append(time.process_time() - began)
                    break
        if not seeds:
            raise RuntimeError(f"{flaw.name} was not found in {ranges * SEEDS_A_RANGE} seeds")
        for seed in found:
            outcome = run_in_simulation(flaw.spec(seed, flawed=False))
            if outcome.validity is not Validity.VALID:
                raise RuntimeError(
                    f"the full protocol is {outcome.validity} with the faults for {flaw.name}, seed {seed}"
                )
        yield BugSearch(flaw, tuple(seeds), tuple(seconds), ranges - len(seeds))
