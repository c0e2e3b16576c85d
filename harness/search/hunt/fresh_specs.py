"""Fresh specs: runs without a parent, drawn towards traits that have shown much.

A fresh spec is drawn in three steps, each from the chances of a random run times what traits are worth
(`harness.search.hunt.traits`):

1. *Its world*: each dimension one after the other, each value by its chance in a random world × its factor. Of a few
   such worlds the one with the greatest promise is taken.
2. *Its schedules*: as a random run of that world draws them, several at the same time. Faults of several schedules meet
   each other, and a run has the same fixed cost and nearly the same steps with many faults as with few. Half of
   the faults wait for conditions (TRIGGERS).
3. *How many schedules* at once, of LAYERS: so many as promise the most; at a fifth of the specs, and where nothing is
   known yet, any of them.

The faults of others come in pairs, in random worlds: they hold messages back (`harness.search.hunt.held_messages`), or
strike a node when something has happened to it (`harness.search.hunt.struck_changes`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from random import Random
from typing import Final

from harness.drawn_spec import drawn_dimensions, given_world, with_drawn_world, with_world
from harness.search.hunt.held_messages import held_messages
from harness.search.hunt.operators import cluster_of, is_legal, scripted, with_faults
from harness.search.hunt.struck_changes import struck_changes
from harness.search.hunt.traits import TraitYield, promise, trait_of, traits_of
from harness.spec import SEEDS, Spec
from harness.worlds import Dimension, World, WorldValue, draw_each, recorded
from nemesis.cluster_shape import ClusterShape
from nemesis.schedule import Schedule, ScheduledFault
from nemesis.swarm import draw_victims

LAYERS: Final = (4, 8, 16)
"""Random schedules at once, as far as they are legal together."""
TRIGGERS: Final = 0.5
"""How many of the faults of these schedules wait for conditions, where runs draw that: the most that a suite draws."""
_WORLDS: Final = 8
"""Worlds from which the most promising is taken."""
_ANY_LAYERS_SHARE: Final = 0.2
_DrawPairs = Callable[[Random, ClusterShape, float, tuple[str, ...], tuple[str, ...]], Iterator[ScheduledFault]]


def promising(base: Spec, random: Random, yields: Mapping[str, TraitYield]) -> Spec:
    """A fresh spec, with its world drawn and its faults as a script."""
    factors = {trait: each.factor for trait, each in yields.items()}
    names, given = drawn_dimensions(base), given_world(base)
    drawn_worlds = [_world(names, given, factors, random) for _ in range(_WORLDS if factors else 1)]
    world = max(drawn_worlds, key=lambda each: promise([_trait(*item) for item in each.items()], factors))
    if "triggers" in world:
        world["triggers"] = TRIGGERS
    drawn = replace(base, seed=random.randrange(SEEDS))
    specs = _dense(with_world(drawn, world) if names else drawn, base)
    if not factors or random.random() < _ANY_LAYERS_SHARE:
        return random.choice(specs)
    return max(specs, key=lambda spec: promise(traits_of(spec), factors))


def holding(base: Spec, random: Random) -> Spec | None:
    """A spec whose faults hold messages back, in a random world; None where they would not be legal."""
    return _paired(base, random, held_messages)


def striking(base: Spec, random: Random) -> Spec | None:
    """A spec whose faults strike a node when something has happened to it, in a random world; None where they would
    not be legal."""
    return _paired(base, random, struck_changes)


def _paired(base: Spec, random: Random, draw_pairs: _DrawPairs) -> Spec | None:
    world = with_drawn_world(replace(base, seed=random.randrange(SEEDS)))
    cluster = cluster_of(world)
    victims = draw_victims(cluster, random, random)
    faults = draw_pairs(random, cluster, world.time_limit_s, base.families, victims)
    spec = with_faults(world.with_script(Schedule()), faults)
    return spec if spec is not None and is_legal(spec, base) else None


def _world(names: list[str], given: World, factors: Mapping[str, float], random: Random) -> dict[str, WorldValue]:
    share = 1 - random.random() ** 2

    def draw_value(dimension: Dimension, known: World) -> WorldValue | None:
        chances = dimension.chances(share, known)
        weights = [chance * factors.get(_trait(dimension.name, value), 1.0) for value, chance in chances.items()]
        return random.choices(list(chances), weights)[0] if chances else None

    return draw_each(names, given, draw_value)


def _trait(name: str, value: WorldValue) -> str:
    return trait_of(name, recorded(value))


def _dense(world: Spec, base: Spec) -> list[Spec]:
    """The spec with each number of LAYERS of random schedules at once, as far as they are legal."""
    specs = (scripted(replace(world, schedules=layers)) for layers in LAYERS)
    return [spec for spec in specs if is_legal(spec, base)] or [scripted(world)]
