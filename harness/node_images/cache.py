"""What was fetched for images is kept: `~/.cache/faultline` (XDG_CACHE_HOME), a directory for each set of files."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path


def place_of(kind: str, wanted: Sequence[str]) -> Path:
    """The directory for what is wanted, whether it is there or not."""
    key = hashlib.sha256("\n".join(wanted).encode()).hexdigest()[:16]
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "faultline" / f"{kind}-{key}"


def keep(fetched: Path, place: Path) -> None:
    """Put a directory, once it is whole, in its place, where another process may have been quicker. Raises OSError."""
    try:
        fetched.rename(place)
    except OSError:
        if not place.is_dir():
            raise
