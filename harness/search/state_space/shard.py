"""One shard of a breadth-first search: the states whose fingerprints belong to one process.

A level is expanded in rounds of some states each. The states found in a round go to the shards that own them, and a
shard keeps those that no earlier level has. Of several steps that lead to a state, the one on a way with the fewest
avoided steps counts, and of these the one from the least fingerprint, and a level is always finished: so the result
does not depend on the number of shards.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from harness.search.state_space.canonical import CanonicalStates, Fingerprint
from harness.search.state_space.explored_model import Explored, Numbers
from harness.search.state_space.interning import Remembered

STATES_PER_ROUND = 5_000


class FoundState(NamedTuple):
    """A state that a step leads to."""

    fingerprint: Fingerprint
    parent: Fingerprint | None
    state: Numbers
    avoided: int = 0
    """The avoided steps on the way to it."""


class BrokenPromise(NamedTuple):
    """A promise broken by a state, or by a step from it if `by_step`."""

    avoided: int
    """The avoided steps of its schedule."""
    text: str
    fingerprint: Fingerprint
    by_step: bool


class Round(NamedTuple):
    """The end of a round: what goes to each shard, nothing to this one, and the states of this level that are left."""

    outgoing: tuple[bytes | None, ...]
    steps: int
    left: int


class FirstReach(NamedTuple):
    """The first state found in a situation: the nearest to the first state of all, and the least of those."""

    depth: int
    fingerprint: Fingerprint


class Level(NamedTuple):
    """The end of a level of one shard."""

    states: int
    broken: tuple[BrokenPromise, ...]


class SavedStates(NamedTuple):
    """The states of a level of one shard, for a checkpoint."""

    parents: tuple[tuple[Fingerprint, Fingerprint | None], ...]
    """Of each the fingerprint, and that of the state before it."""
    packed: bytes
    """The states with their values."""


class StateShard:
    """The states of shard `index` of `count`."""

    def __init__(self, explored: Explored, index: int, count: int) -> None:
        self._model = explored.model
        self._canonical = CanonicalStates(self._model)
        self._index, self._count = index, count
        self._situation = explored.situation
        self._avoided = explored.avoided
        self._reached: dict[str, FirstReach] = {}
        self._depth = 0
        self._tables = self._model.tables
        self._parents: dict[Fingerprint, Fingerprint | None] = {}
        self._frontier: list[FoundState] = []
        self._found: dict[Fingerprint, FoundState] = {}
        self._broken: list[BrokenPromise] = []
        self._sent: list[set[tuple[int, int]]] = [set() for _ in range(count)]
        self._translations: list[dict[tuple[int, int], int]] = [{} for _ in range(count)]
        fingerprint, state = self._canonical.of(self._model.initial())
        if self._owner(fingerprint) == index:
            self._found[fingerprint] = FoundState(fingerprint, None, state)

    def expand(self) -> Round:
        """Take the steps of the next states of this level."""
        expanded, self._frontier = self._frontier[:STATES_PER_ROUND], self._frontier[STATES_PER_ROUND:]
        outgoing: list[dict[Fingerprint, FoundState]] = [{} for _ in range(self._count)]
        outgoing[self._index] = self._found
        canonical = Remembered(self._canonical.of)  # steps from the states of a round often lead to the same state
        steps = 0
        for parent, _, state, avoided in expanded:
            for step in self._model.steps(state):
                steps += 1
                count = avoided if self._avoided is None else avoided + self._avoided(state, step)
                if step.broken is not None:
                    self._broken.append(BrokenPromise(count, step.broken, parent, by_step=True))
                    continue
                fingerprint, after = canonical[step.state]
                if fingerprint not in self._parents:
                    _keep_least(outgoing[self._owner(fingerprint)], FoundState(fingerprint, parent, after, count))
        packed = [
            None if shard == self._index else self._pack(shard, found.values()) for shard, found in enumerate(outgoing)
        ]
        return Round(tuple(packed), steps, len(self._frontier))

    def admit(self, sender: int, packed: bytes) -> None:
        """Take in what shard `sender` has found."""
        for found in self._unpack(sender, packed):
            if found.fingerprint not in self._parents:
                _keep_least(self._found, found)

    def end_level(self) -> Level:
        """End the level: the states found are the next one."""
        for found in self._found.values():
            self._parents[found.fingerprint] = found.parent
            if self._situation is not None:
                code, reach = self._situation(found.state), FirstReach(self._depth, found.fingerprint)
                self._reached[code] = min(reach, self._reached.get(code, reach))
            text = self._model.broken(found.state)
            if text is not None:
                self._broken.append(BrokenPromise(found.avoided, text, found.fingerprint, by_step=False))
        self._frontier = [*self._found.values()]
        self._found = {}
        self._depth += 1
        return Level(len(self._frontier), tuple(self._broken))

    def saved(self) -> SavedStates:
        """The states of the last level, of which no step has been taken yet."""
        tables = self._tables
        found = [
            (it.fingerprint, it.parent, it.avoided, [tables[table].values[number] for table, number in _keys(it.state)])
            for it in self._frontier
        ]
        parents = tuple((it.fingerprint, it.parent) for it in self._frontier)
        return SavedStates(parents, pickle.dumps(found, pickle.HIGHEST_PROTOCOL))

    def restore(
        self,
        depth: int,
        parents: Mapping[Fingerprint, Fingerprint | None],
        reached: Mapping[str, FirstReach],
        packed: Sequence[bytes],
    ) -> None:
        """Be as at the end of a level so deep: take of all saved states those of this shard. `parents` and `reached`
        are of the levels before."""
        self._depth = depth
        self._parents = {it: parent for it, parent in parents.items() if self._owner(it) == self._index}
        self._reached = dict(reached)
        self._found = {}
        for fingerprint, parent, avoided, values in (each for part in packed for each in pickle.loads(part)):
            if self._owner(fingerprint) == self._index:
                tables = (self._tables[table] for table, _ in _keys(values))
                state = tuple(table.number(value) for table, value in zip(tables, values, strict=True))
                self._found[fingerprint] = FoundState(fingerprint, parent, state, avoided)

    def reached(self) -> dict[str, FirstReach]:
        """By code, the situations that the states of this shard are in."""
        return self._reached

    def parent(self, fingerprint: Fingerprint) -> Fingerprint | None:
        """The state before this one on a shortest way to it; None for the first."""
        return self._parents[fingerprint]

    def _owner(self, fingerprint: Fingerprint) -> int:
        return owner(fingerprint, self._count)

    def _pack(self, shard: int, found: Iterable[FoundState]) -> bytes:
        """The states, and the values of numbers that the other shard has not seen."""
        found = tuple(found)
        sent = self._sent[shard]
        values = []
        for it in found:
            for key in _keys(it.state):
                if key not in sent:
                    sent.add(key)
                    values.append((key, self._tables[key[0]].values[key[1]]))
        return pickle.dumps((values, found), pickle.HIGHEST_PROTOCOL)

    def _unpack(self, sender: int, packed: bytes) -> Iterable[FoundState]:
        translation = self._translations[sender]
        values, found = pickle.loads(packed)
        for key, value in values:
            translation[key] = self._tables[key[0]].number(value)
        for it in found:
            yield it._replace(state=tuple([translation[key] for key in _keys(it.state)]))


def owner(fingerprint: Fingerprint, shards: int) -> int:
    """The shard that a state belongs to."""
    return int.from_bytes(fingerprint[:4], "big") % shards


def _keep_least(states: dict[Fingerprint, FoundState], found: FoundState) -> None:
    known = states.setdefault(found.fingerprint, found)
    if found.parent is None or known.parent is None:
        return
    if (found.avoided, found.parent) < (known.avoided, known.parent):
        states[found.fingerprint] = found


def _keys(state: Sequence[Any]) -> list[tuple[int, Any]]:
    """The table and the number of each part of a state: machines, what they share, history."""
    machines = len(state) - 2
    return [(max(0, place - machines + 1), number) for place, number in enumerate(state)]
