"""One seed is one run: the same digest in every process, and a digest that shows every difference."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.crowd import crowd

ROOT = Path(__file__).parents[2]


def _in_a_process(hash_seed: str, seed: int, spoil: str = "") -> str:
    return subprocess.run(
        [
            sys.executable,
            "-c",
            f"from tests.simulation.crowd import crowd; print(crowd({seed}, {spoil!r})[0])",
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        check=True,
        text=True,
    ).stdout.strip()


def test_the_same_seed_gives_the_same_digest_in_every_process() -> None:
    here, _ = crowd(7)
    assert {_in_a_process(hash_seed, 7) for hash_seed in ("0", "1", "12345", "random")} == {here}


def test_neither_memory_layout_nor_garbage_changes_the_run() -> None:
    first, trail = crowd(3)
    garbage: list[object] = []
    for _ in range(1000):
        garbage.append([garbage])
    gc.collect()
    second, other_trail = crowd(3)
    assert second == first
    assert other_trail == trail
    assert len(trail) > 5
    assert [step for step, _, _ in trail] == [1024 * (number + 1) for number in range(len(trail))]


def test_seeds_differ() -> None:
    assert len({crowd(seed)[0] for seed in range(4)}) == 4


@pytest.mark.parametrize("spoil", ["one more callback", "one byte", "a nanosecond"])
def test_the_smallest_difference_shows_in_the_digest(spoil: str) -> None:
    plain, trail = crowd(5)
    spoiled, spoiled_trail = crowd(5, spoil)
    assert spoiled != plain
    same = [point for point, other in zip(trail, spoiled_trail, strict=False) if point == other]
    assert 0 < len(same) < len(trail)
    assert same == trail[: len(same)]


def test_iterating_over_a_set_of_strings_shows_as_differing_digests() -> None:
    assert _in_a_process("1", 7, "hash order") != _in_a_process("2", 7, "hash order")
