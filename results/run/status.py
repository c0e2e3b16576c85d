"""The status of a run: how far it is, and what the runner says of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class Status:
    """State of a run. `state`: running · finished · failed (could not be carried out) · interrupted."""

    state: str
    stage: str = ""
    seed: int = 0
    name: str = ""
    version: str = ""
    """Of Faultline."""
    started: str = ""
    """Wall-clock time, ISO 8601, UTC. The only wall-clock times of a run are in its status and its name."""
    updated: str = ""
    message: str = ""
    format: int = 1
    """Of the run directory."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Figures of the runner: CPU seconds, steps, versions of what was run."""

    def gaps(self) -> tuple[str, ...]:
        """In words, how the run did not end normally; empty when it did."""
        if self.state == "unknown":
            return ("status.json is missing or damaged",)
        if self.state == "running":
            at = f" (it was at: {self.stage})" if self.stage else ""
            return (f"the run did not end: it was killed, or is still in progress{at}",)
        if self.state != "finished":
            return (f"the run ended {self.state}: {self.message or 'no reason is recorded'}",)
        return ()

    def to_json(self) -> dict[str, Any]:
        """Everything, as JSON values."""
        return {name: getattr(self, name) for name in Status.__slots__}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """The inverse of `to_json`; values that are missing, or of another type, are left out: state `unknown`."""
        empty = cls("unknown")
        of_type = {
            item.name: values[item.name]
            for item in fields(cls)
            if item.name in values and isinstance(values[item.name], type(getattr(empty, item.name)))
        }
        return replace(empty, **of_type)
