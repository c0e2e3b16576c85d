"""The version of Faultline, and the versions of all that a simulated run depends on."""

from __future__ import annotations

import platform
from functools import cache
from importlib import metadata

_SIMULATED_WITH = ("aiokafka", "google-crc32c", "kio")
"""Distributions whose code decides the bytes that nodes and clients send."""


@cache
def version() -> str:
    """As it was installed; `from source` where it was not."""
    try:
        return metadata.version("faultline")
    except metadata.PackageNotFoundError:
        return "from source"


def digest_versions() -> dict[str, str]:
    """Name → version of Python and of the libraries that the digest of a simulated run depends on."""
    versions = {"Python": platform.python_version(), "faultline": version()}
    for name in _SIMULATED_WITH:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "from source"
    return versions
