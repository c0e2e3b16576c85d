"""The runs of a round, drawn from the corpus as it is when the round begins.

Each candidate has a stream of its own, named for the hunt's random seed, the round and its place in it. So a round
depends on the corpus and on nothing else, however its runs are spread over processes. Rounds begin small, since nothing
is learned within one. At some places a spec is drawn as if nothing had been learned, since what shows many situations
is not what shows a flaw: a dense one, one that holds messages back, or one that strikes what has changed. Such runs
find what they find early, so at first they are three fifths of all, later a fifth. At a tenth of the places of other
fresh specs a random run is made, so that what seems to promise little is still tried.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from random import Random
from typing import Final

from harness.search.hunt.corpus import FRESH, HOLDING, PAIRED, STRIKING, Candidate, Corpus
from harness.search.hunt.fresh_specs import holding, promising, striking
from harness.search.hunt.held_messages import holds_messages
from harness.search.hunt.operators import OPERATORS, Parents, fresh, mutate
from harness.search.hunt.traits import TraitYield
from harness.spec import SEEDS, Spec

FIRST_RUNS: Final = 96
UNSTEERED_SHARE_FIRST: Final = 0.6
"""The share of the places of the first runs at which a run of a random world is made …"""
UNSTEERED_SHARE_LATER: Final = 0.2
"""… and of all others."""
RANDOM_SHARE: Final = 0.1
"""Of the places of other fresh specs: those at which a run is made as a suite draws it."""
_PAIRED_SPECS: Final = {HOLDING: holding, STRIKING: striking}
FIRST_ROUND: Final = 8
"""Runs of the first rounds."""


def round_size(corpus: Corpus, most: int) -> int:
    """How many runs the next round has, if a round has so many at most: as many as all rounds before."""
    return min(most, max(FIRST_ROUND, corpus.runs))


def candidates(corpus: Corpus, base: Spec, seed: int, count: int) -> list[Candidate]:
    """The next round: `count` runs."""
    weights, shares, yields = corpus.weights(), corpus.shares(), corpus.trait_yields()
    unsteered_share = UNSTEERED_SHARE_FIRST if corpus.runs < FIRST_RUNS else UNSTEERED_SHARE_LATER

    def candidate(place: int) -> Candidate:
        random = Random(f"{seed}/{corpus.rounds}/{place}")
        (origin,) = random.choices(list(shares), list(shares.values()))
        spec, parent = None, ""
        if random.random() < unsteered_share:
            origin, spec = _unsteered(base, random)
        elif origin != FRESH:
            parent, mate = random.choices(list(weights), list(weights.values()), k=2)
            parents = Parents(corpus.entries[parent].candidate.spec, corpus.entries[mate].candidate.spec, base)
            spec = mutate(OPERATORS[origin], parents, random)
        if spec is None:
            origin, spec, parent = FRESH, _fresh(base, random, yields), ""
        name = f"{origin}-{corpus.runs + place:06}"
        return Candidate(name, origin, replace(spec, name=name).to_yaml(), parent)

    return [candidate(place) for place in range(count)]


def _unsteered(base: Spec, random: Random) -> tuple[str, Spec]:
    """A spec of one of the ways, each as often as the others, with the name of its way."""
    possible = {HOLDING: holds_messages(base.families), STRIKING: bool(base.families)}
    origin = random.choice([FRESH, *(paired for paired in PAIRED if possible[paired])])
    spec = _PAIRED_SPECS[origin](base, random) if origin in PAIRED else None
    return (FRESH, promising(base, random, {})) if spec is None else (origin, spec)


def _fresh(base: Spec, random: Random, yields: Mapping[str, TraitYield]) -> Spec:
    if random.random() < RANDOM_SHARE:
        return fresh(base, random.randrange(SEEDS))
    return promising(base, random, yields)
