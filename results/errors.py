"""The errors of stores and run directories."""

from __future__ import annotations

from pathlib import Path


class StoreError(Exception):
    """Something of a store or of a run directory cannot be written or read; the message is one line for the user."""

    @classmethod
    def of(cls, doing: str, path: Path | str, error: OSError) -> StoreError:
        """The line for an error of the operating system: what was being done, to which file, and why it failed."""
        return cls(f"cannot {doing} {path}: {error.strerror or error}")


class BadName(StoreError):
    """A name that the user gave fits no suite, no run and no run directory, or several; the message is one line."""
