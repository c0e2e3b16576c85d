"""Facts of a stored spec for figures: the planned rate, the environment, the drawn world, a digest without the seed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b

import yaml

from results.run.stored_yaml import parse
from results.run_figures import PLANNED

_SEED = re.compile(r"(?m)^seed:.*$")
_NAME = re.compile(r"(?m)^name:.*$")


@dataclass(frozen=True, slots=True)
class SpecFacts:
    """Facts of one spec."""

    rate: float | None
    """Appends per second of all producers together; None when unknown."""
    simulated: bool
    digest: str
    """The same for specs that differ in name and seed alone."""
    drawn: Mapping[str, str]
    """Dimension of the world → the value that was drawn."""

    def planned(self, figures: Mapping[str, float]) -> dict[str, float]:
        """The figure `planned` of a run with these figures: rate × time, or its appends where one of them is unknown.

        Without producers there is none: what a script appends is no load, of which shares would say anything."""
        if self.rate == 0:
            return {}
        return {PLANNED.name: (self.rate or 0.0) * figures.get("main_s", 0.0) or figures.get("appends", 0.0)}


def spec_facts(spec: str) -> SpecFacts:
    """The facts of a spec, given as YAML."""
    return _facts(_SEED.sub("", spec))


@lru_cache(maxsize=4096)
def _facts(spec: str) -> SpecFacts:
    """Of a spec without its seed, so that all seeds of a cell share one entry of the cache."""
    digest = blake2b(_NAME.sub("", spec).encode(errors="replace"), digest_size=8).hexdigest()
    try:
        values = parse(spec)
        drawn = {str(name): str(value) for name, value in (values.get("drawn") or {}).items()}
        rate = float(values["rate"]) if values.get("producers", 1) else 0.0
        return SpecFacts(rate, values.get("environment", "sim") == "sim", digest, drawn)
    except (AttributeError, yaml.YAMLError, KeyError, OverflowError, TypeError, ValueError):
        return SpecFacts(None, True, digest, {})
