"""One state for all those that differ only by the names of the brokers, and its fingerprint.

Brokers are put into the order of what can be said of them without names; brokers that are equal in this are tried in
every order, and the least digest decides. A fingerprint has 128 bits, so two of a billion states have the same one with
a probability of 1e-21.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from itertools import chain, groupby, pairwise, permutations, product

from harness.search.exploration.cluster_model import ClusterModel, Numbers
from harness.search.exploration.interning import DIGEST_BYTES, Remembered, digest
from harness.search.exploration.symmetry import nameless_broker, nameless_place, renamed_broker, renamed_controller

Fingerprint = bytes
_Order = tuple[int, ...]
"""The places of the brokers, in the order of their new names."""


class CanonicalStates:
    """The canonical states of a model; every state itself without symmetry."""

    def __init__(self, model: ClusterModel) -> None:
        self._model = model
        self._symmetry = model.scope.symmetry
        self._identity: _Order = tuple(range(model.scope.replicas))
        self._nameless = Remembered(self._compute_nameless)
        self._places = Remembered(self._compute_places)
        self._renamed_brokers = Remembered(self._compute_renamed_broker)
        self._renamed_controllers = Remembered(self._compute_renamed_controller)
        self._names = {
            order: {place + 1: name + 1 for name, place in enumerate(order)} for order in permutations(self._identity)
        }

    def of(self, state: Numbers) -> tuple[Fingerprint, Numbers]:
        """The fingerprint of the canonical state of `state`, and that state."""
        if not self._symmetry:
            return self._fingerprint(state), state
        controller = state[-2]
        places = self._places[controller]
        nameless = self._nameless
        kinds = [(nameless[state[place]], places[place]) for place in self._identity]
        order = tuple(sorted(self._identity, key=kinds.__getitem__))
        if all(kinds[one] != kinds[other] for one, other in pairwise(order)):
            renamed = self._renamed(state, order)
            return self._fingerprint(renamed), renamed
        candidates = (self._renamed(state, it) for it in _orders_of_equals(order, kinds))
        return min((self._fingerprint(it), it) for it in candidates)

    def _fingerprint(self, state: Numbers) -> Fingerprint:
        model = self._model
        *brokers, controller, history = state
        digests = model.brokers.digests
        text = b"".join([digests[broker] for broker in brokers])
        text += model.controllers.digests[controller] + model.histories.digests[history]
        return blake2b(text, digest_size=DIGEST_BYTES).digest()

    def _renamed(self, state: Numbers, order: _Order) -> Numbers:
        if order == self._identity:
            return state
        brokers = self._renamed_brokers
        return (
            *[brokers[state[place], order] for place in order],
            self._renamed_controllers[state[-2], order],
            state[-1],
        )

    def _compute_nameless(self, broker: int) -> bytes:
        return digest(nameless_broker(self._model.brokers.values[broker]))

    def _compute_places(self, controller: int) -> list[bytes]:
        known = self._model.controllers.values[controller]
        return [digest(nameless_place(known, broker)) for broker in self._model.scope.brokers]

    def _compute_renamed_broker(self, key: tuple[int, _Order]) -> int:
        brokers = self._model.brokers
        return brokers.number(renamed_broker(brokers.values[key[0]], self._names[key[1]]))

    def _compute_renamed_controller(self, key: tuple[int, _Order]) -> int:
        controllers = self._model.controllers
        return controllers.number(renamed_controller(controllers.values[key[0]], self._names[key[1]]))


def _orders_of_equals(order: _Order, kinds: list[tuple[bytes, bytes]]) -> Iterator[_Order]:
    """Every order in which only brokers of one kind change places."""
    groups = [tuple(group) for _, group in groupby(order, key=kinds.__getitem__)]
    for choice in product(*map(permutations, groups)):
        yield tuple(chain.from_iterable(choice))
