"""The runs of a round, drawn from the corpus as it is when the round begins.

Each candidate has a stream of its own, named for the hunt's random seed, the round and its place in it. So a round
depends on the corpus and on nothing else, however its runs are spread over processes. Of several specs that are drawn
for a place the most promising one is run; at some places the first one, so that what seems to promise little is still
tried.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Final, NamedTuple

from harness.search.hunt.corpus import FRESH, Candidate, Corpus
from harness.search.hunt.operators import OPERATORS, Parents, fresh, mutate
from harness.spec import SEEDS, Spec

DRAWS: Final = 8
"""Specs that are drawn for a place."""
_UNSCORED_SHARE: Final = 0.2
"""Of the places at which the first one is run."""


class _Draw(NamedTuple):
    origin: str
    spec: Spec
    parent: str = ""


def candidates(corpus: Corpus, base: Spec, seed: int, count: int) -> list[Candidate]:
    """The next round: `count` runs."""
    weights, shares = corpus.weights(), corpus.shares()

    def candidate(place: int) -> Candidate:
        random = Random(f"{seed}/{corpus.rounds}/{place}")
        draws = 1 if not corpus.runs or random.random() < _UNSCORED_SHARE else DRAWS
        drawn = [_draw(corpus, base, weights, shares, random) for _ in range(draws)]
        best = drawn[0] if draws == 1 else max(drawn, key=lambda each: corpus.promise(each.spec))
        name = f"{best.origin}-{corpus.runs + place:06}"
        return Candidate(name, best.origin, replace(best.spec, name=name).to_yaml(), best.parent)

    return [candidate(place) for place in range(count)]


def _draw(corpus: Corpus, base: Spec, weights: dict[str, float], shares: dict[str, float], random: Random) -> _Draw:
    (origin,) = random.choices(list(shares), list(shares.values()))
    if origin != FRESH:
        run, mate = random.choices(list(weights), list(weights.values()), k=2)
        parents = Parents(corpus.entries[run].candidate.spec, corpus.entries[mate].candidate.spec, base)
        child = mutate(OPERATORS[origin], parents, random)
        if child is not None:
            return _Draw(origin, child, run)
    return _Draw(FRESH, fresh(base, random.randrange(SEEDS)))
