"""The operations of groups in a history, and violations of promises about them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from workloads.columns import NEVER
from workloads.history import NO_GENERATION

FORGET: Final = "forget"
"""Kind of operation that deletes a group: of each of its partitions nothing is committed any more."""
NOTHING_COMMITTED: Final = 0
"""The offset at which one starts where nothing is committed."""


@dataclass(frozen=True, slots=True)
class GroupOperation:
    """One operation of the history, as far as groups go."""

    index: int
    process: int
    kind: str
    invoked_ns: int
    completed_ns: int
    """NEVER when it never completed."""
    outcome: str
    generation: int
    offset: int
    end: int
    """Poll: where the records returned end; -1 without any."""
    instance: str = ""
    """The instance id of its member; empty where that is not static."""
    epoch: int | None = None
    """Commit, start: the leader epoch with the offset; None where the history does not have it."""
    metadata: str | None = None
    """… and the text."""
    error: str = ""
    """Why it failed; empty where it did not, or nothing says it."""

    @property
    def ok(self) -> bool:
        return self.outcome == "ok"

    def may_have_told(self, start: GroupOperation) -> bool:
        """Whether a start at the offset of this commit may have been told its leader epoch and its text."""
        facts = ((self.epoch, start.epoch), (self.metadata, start.metadata))
        return all(None in fact or fact[0] == fact[1] for fact in facts)

    @property
    def owner(self) -> int | str:
        """The owner of a partition by it: an instance, whose members replace one another, or a member alone."""
        return self.instance or self.process

    def __str__(self) -> str:
        until = f"{self.completed_ns / 1e9:.6f} s" if self.completed_ns != NEVER else "never"
        instance = f" ({self.instance})" if self.instance else ""
        return (
            f"#{self.index} {self.kind} {self.offset} by process {self.process}{instance} in generation "
            f"{self.generation} "
            f"({self.invoked_ns / 1e9:.6f} to {until}) → {self.outcome}"
        )


@dataclass(frozen=True, slots=True)
class GroupViolation:
    """A broken promise about one partition of a group."""

    kind: str
    offset: int
    """NEVER where it is not known, of a record at any."""
    time_ns: int
    """Time at which it was seen; NEVER for the end of the run."""
    operations: tuple[GroupOperation, ...]
    reason: str
    since_ns: int = -1
    """Time since which the record or the commit that it is about existed; -1 for always."""


def operations_of(table: pa.Table) -> list[GroupOperation]:
    """The rows of a history."""

    def row(values: dict[str, Any]) -> GroupOperation:
        def number(name: str, missing: int) -> int:
            value = values[name]
            return missing if value is None else int(value)

        offsets = values["offsets"]
        return GroupOperation(
            index=values["index"],
            process=values["process"],
            kind=values["kind"],
            invoked_ns=values["invoked_ns"],
            completed_ns=number("completed_ns", NEVER),
            outcome=values["outcome"],
            generation=number("value", NO_GENERATION),
            offset=NOTHING_COMMITTED if values["kind"] == FORGET else number("offset", -1),
            end=offsets[-1] + 1 if offsets else -1,
            instance=values["instance"] or "",
            epoch=values["leader_epoch"],
            metadata=values["metadata"],
            error=values["error"] or "",
        )

    return [row(values) for values in table.to_pylist()]
