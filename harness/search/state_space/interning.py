"""Numbers for values, and remembered results, so that a step of the whole cluster costs a few look-ups."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from hashlib import blake2b
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V", bound=Hashable)
R = TypeVar("R")

DIGEST_BYTES = 16


def digest(value: object) -> bytes:
    """128 bits of the text of a plain value: the same in every process."""
    return blake2b(repr(value).encode(), digest_size=DIGEST_BYTES).digest()


class Remembered(dict[K, R]):
    """The results of a pure function, each computed once."""

    def __init__(self, compute: Callable[[K], R]) -> None:
        super().__init__()
        self._compute = compute

    def __missing__(self, key: K) -> R:
        result = self[key] = self._compute(key)
        return result


class Interned(Generic[V]):
    """Values by number, in the order in which they come, and the digest of each."""

    def __init__(self) -> None:
        self.values: list[V] = []
        self.digests: Remembered[int, bytes] = Remembered(lambda number: digest(self.values[number]))
        self._numbers: dict[V, int] = {}

    def number(self, value: V) -> int:
        """The number of `value`."""
        number = self._numbers.get(value)
        if number is None:
            number = self._numbers[value] = len(self.values)
            self.values.append(value)
        return number
