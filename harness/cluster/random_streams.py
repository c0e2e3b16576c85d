"""Streams of randomness by name: the same seed and name give the same numbers in every environment."""

from __future__ import annotations

from hashlib import blake2b
from random import Random


def named_stream(seed: int, name: str) -> Random:
    """A fresh generator, the same for the same seed and name, independent of all others."""
    return Random(int.from_bytes(blake2b(f"{seed}/{name}".encode(), digest_size=16).digest()))


def run_stream(seed: int, name: str) -> Random:
    """A stream of a run's own, apart from those of the environment: of its schedule, its nemesis and its clients."""
    return named_stream(seed, f"run/{name}")
