"""One state for all those that differ only by the names of the machines, and its fingerprint.

Machines are put into the order of what can be said of them without names; machines that are equal in this are tried in
every order, and the least digest decides. A fingerprint has 128 bits, so two of a billion states have the same one with
a probability of 1e-21.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from itertools import chain, groupby, permutations, product

from harness.search.state_space.explored_model import ExploredModel, Numbers
from harness.search.state_space.interning import DIGEST_BYTES, Remembered, digest

Fingerprint = bytes
_Order = tuple[int, ...]
"""The places of the machines, in the order of their new names."""


class CanonicalStates:
    """The canonical states of a model; every state itself without symmetry."""

    def __init__(self, model: ExploredModel) -> None:
        self._tables = model.tables
        self._renaming = model.renaming
        self._model_names = model.names
        self._symmetry = model.symmetry
        self._identity: _Order = tuple(range(len(model.names)))
        self._nameless = Remembered(self._compute_nameless)
        self._places = Remembered(self._compute_places)
        self._renamed_machines = Remembered(self._compute_renamed_machine)
        self._renamed_shared = Remembered(self._compute_renamed_shared)
        self._names = {
            order: {place + 1: name + 1 for name, place in enumerate(order)} for order in permutations(self._identity)
        }

    def of(self, state: Numbers) -> tuple[Fingerprint, Numbers]:
        """The fingerprint of the canonical state of `state`, and that state."""
        if not self._symmetry:
            return self._fingerprint(state), state
        nameless = self._nameless
        kinds = [nameless[machine] + place for machine, place in zip(state, self._places[state[-2]], strict=False)]
        order = tuple(sorted(self._identity, key=kinds.__getitem__))
        if len(set(kinds)) == len(kinds):
            renamed = self._renamed(state, order)
            return self._fingerprint(renamed), renamed
        candidates = (self._renamed(state, it) for it in _orders_of_equals(order, kinds))
        return min((self._fingerprint(it), it) for it in candidates)

    def _fingerprint(self, state: Numbers) -> Fingerprint:
        machines, shared, histories = self._tables
        digests = [machines.digests[it] for it in state[:-2]]
        text = b"".join((*digests, shared.digests[state[-2]], histories.digests[state[-1]]))
        return blake2b(text, digest_size=DIGEST_BYTES).digest()

    def _renamed(self, state: Numbers, order: _Order) -> Numbers:
        if order == self._identity:
            return state
        machines = self._renamed_machines
        return (
            *[machines[state[place], order] for place in order],
            self._renamed_shared[state[-2], order],
            state[-1],
        )

    def _compute_nameless(self, machine: int) -> bytes:
        return digest(self._renaming.nameless_machine(self._tables.machines.values[machine]))

    def _compute_places(self, shared: int) -> list[bytes]:
        value = self._tables.shared.values[shared]
        return [digest(self._renaming.nameless_place(value, name)) for name in self._model_names]

    def _compute_renamed_machine(self, key: tuple[int, _Order]) -> int:
        machines = self._tables.machines
        return machines.number(self._renaming.machine(machines.values[key[0]], self._names[key[1]]))

    def _compute_renamed_shared(self, key: tuple[int, _Order]) -> int:
        shared = self._tables.shared
        return shared.number(self._renaming.shared(shared.values[key[0]], self._names[key[1]]))


def _orders_of_equals(order: _Order, kinds: list[bytes]) -> Iterator[_Order]:
    """Every order in which only machines of one kind change places."""
    groups = [tuple(group) for _, group in groupby(order, key=kinds.__getitem__)]
    for choice in product(*map(permutations, groups)):
        yield tuple(chain.from_iterable(choice))
