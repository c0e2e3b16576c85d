"""An immutable mapping: it compares and hashes by its content, and iterates in key order.

The decision machines have their tables in it. Iteration in key order makes equal states behave equally; the order of
a dict depends on its history.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Generic, TypeVar, overload

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")


class FrozenMap(Mapping[K, V], Generic[K, V]):
    """An immutable mapping with sortable, hashable keys. A change copies the table, sharing keys and values."""

    __slots__ = ("_hash", "_items")

    def __init__(self, items: Mapping[K, V] | Iterable[tuple[K, V]] = ()) -> None:
        given: dict[Any, V] = dict(items)
        self._items: dict[K, V] = {key: given[key] for key in sorted(given)}
        self._hash: int | None = None

    def set(self, key: K, value: V) -> FrozenMap[K, V]:
        """This mapping with `key` holding `value`."""
        if key not in self._items:
            return FrozenMap({**self._items, key: value})
        return self._with({**self._items, key: value})

    def remove(self, key: K) -> FrozenMap[K, V]:
        """This mapping without `key`; itself when `key` is not there."""
        if key not in self._items:
            return self
        return self._with({name: value for name, value in self._items.items() if name != key})

    @staticmethod
    def _with(items: dict[K, V]) -> FrozenMap[K, V]:
        """The mapping of `items`, which are in key order and not shared."""
        mapping: FrozenMap[K, V] = FrozenMap.__new__(FrozenMap)
        mapping._items = items
        mapping._hash = None
        return mapping

    @overload
    def get(self, key: K, /) -> V | None: ...

    @overload
    def get(self, key: K, /, default: V | T) -> V | T: ...

    def get(self, key: K, default: Any = None) -> Any:
        """The value of `key`, else `default`. `Mapping` has it, too, at the price of an exception for a missing key."""
        return self._items.get(key, default)

    def __getitem__(self, key: K) -> V:
        return self._items[key]

    def __iter__(self) -> Iterator[K]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, FrozenMap):
            return self._items == other._items
        return Mapping.__eq__(self, other)

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(tuple(self._items.items()))
        return self._hash

    def __reduce__(self) -> tuple[type[FrozenMap[K, V]], tuple[dict[K, V]]]:
        return FrozenMap, (self._items,)  # without the hash, which differs from process to process

    def __repr__(self) -> str:
        return f"FrozenMap({self._items!r})"
