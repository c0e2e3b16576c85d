"""The runs of a round, drawn from the corpus as it is when the round begins.

Each candidate has a stream of its own, named for the hunt's random seed, the round and its place in it. So a round
depends on the corpus and on nothing else, however its runs are spread over processes. Of several fresh specs that are
drawn for a place the most promising one is run; at some places the first one, so that what seems to promise little is
still tried.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Final

from harness.search.hunt.corpus import FRESH, Candidate, Corpus
from harness.search.hunt.operators import OPERATORS, Parents, fresh, mutate
from harness.spec import SEEDS, Spec

FRESH_DRAWS: Final = 8
"""Fresh specs that are drawn for a place."""
_UNSCORED_SHARE: Final = 0.2
"""Of the places of fresh specs at which the first one is run."""


def candidates(corpus: Corpus, base: Spec, seed: int, count: int) -> list[Candidate]:
    """The next round: `count` runs."""
    weights, shares = corpus.weights(), corpus.shares()

    def candidate(place: int) -> Candidate:
        random = Random(f"{seed}/{corpus.rounds}/{place}")
        (origin,) = random.choices(list(shares), list(shares.values()))
        spec, parent = None, ""
        if origin != FRESH:
            parent, mate = random.choices(list(weights), list(weights.values()), k=2)
            parents = Parents(corpus.entries[parent].candidate.spec, corpus.entries[mate].candidate.spec, base)
            spec = mutate(OPERATORS[origin], parents, random)
        if spec is None:
            origin, spec, parent = FRESH, _fresh(corpus, base, random), ""
        name = f"{origin}-{corpus.runs + place:06}"
        return Candidate(name, origin, replace(spec, name=name).to_yaml(), parent)

    return [candidate(place) for place in range(count)]


def _fresh(corpus: Corpus, base: Spec, random: Random) -> Spec:
    draws = FRESH_DRAWS if corpus.runs and random.random() >= _UNSCORED_SHARE else 1
    return max((fresh(base, random.randrange(SEEDS)) for _ in range(draws)), key=corpus.promise)
