"""Time to bug: how soon a broker known to be wrong is found out.

Each flaw is looked for in disjoint ranges of seeds, one simulated run a seed, until a checker calls a run invalid. The
run is short, busy, and tells the one story (nemesis/faults/scripted/leader.py) that drives at the flaw; the full
protocol must come out of every such run unharmed, which is tried on as many seeds. CPU seconds include checking and all
else a run takes in one process.

What is compared with: TLC on the abstract TLA+ models of the same flaws, with three replicas, two records, two epochs
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
    """A broker that is wrong in one way, and the story that drives at it."""

    name: str
    story: Mapping[str, Any]
    changes: Mapping[str, Any]
    tlc_seconds: float

    def spec(self, seed: int, *, flawed: bool = True) -> Spec:
        """One run that looks for it; without the flaw, the run that the full protocol must withstand."""
        fields = {"seed": seed, "rate": 40, **self.story}
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
    """How a flaw was found, range by range."""

    flaw: Flaw
    seeds: tuple[int, ...]
    """Runs until it was found; of ranges in which it was."""
    seconds: tuple[float, ...]
    missed: int
    """Ranges in which it was not found."""
    unharmed: int
    """Runs of the full protocol with the same stories, all valid."""

    @property
    def median_seconds(self) -> float:
        """CPU seconds to the first detection."""
        return median(self.seconds)


def searches(tell: Callable[[str], None], ranges: int = RANGES) -> Iterator[BugSearch]:
    """Look for each flaw in as many ranges. Raises RuntimeError when the full protocol fails, or none is found."""
    for flaw in FLAWS:
        seeds, seconds = [], []
        for number in range(ranges):
            tell(f"{flaw.name}: range {number + 1} of {ranges}")
            began = time.process_time()
            first = number * SEEDS_A_RANGE
            for seed in range(first, first + SEEDS_A_RANGE):
                if run_in_simulation(flaw.spec(seed)).validity is Validity.INVALID:
                    seeds.append(seed - first + 1)
                    seconds.append(time.process_time() - began)
                    break
        if not seeds:
            raise RuntimeError(f"{flaw.name} was not found in {ranges * SEEDS_A_RANGE} seeds")
        for seed in range(0, ranges * SEEDS_A_RANGE, SEEDS_A_RANGE):
            outcome = run_in_simulation(flaw.spec(seed, flawed=False))
            if outcome.validity is not Validity.VALID:
                raise RuntimeError(
                    f"the full protocol is {outcome.validity} with the story for {flaw.name}, seed {seed}"
                )
        yield BugSearch(flaw, tuple(seeds), tuple(seconds), ranges - len(seeds), ranges)
