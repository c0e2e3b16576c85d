"""The version of Faultline."""

from __future__ import annotations

from functools import cache
from importlib import metadata


@cache
def version() -> str:
    """As it was installed; `from source` where it was not."""
    try:
        return metadata.version("faultline")
    except metadata.PackageNotFoundError:
        return "from source"
