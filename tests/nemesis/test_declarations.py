"""Declarations: every fault brings all that schedules, draws, figures and documents need; adding one adds a module."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from random import Random
from types import ModuleType

import pytest

from nemesis import old_names
from nemesis.cluster_shape import ClusterShape
from nemesis.faults.fault import Fault
from nemesis.registry import FAIR_FAMILIES, FAMILIES, FAULTS, DeclarationError, declared_faults
from nemesis.schedule import Schedule, ScheduledFault, parse_script
from nemesis.swarm import draw
from results.figures.canvas import GREY
from results.figures.faults import family_colour

CLUSTER = ClusterShape(
    ("b1", "b2", "b3", "b4"),
    ("c1", "c2", "c3"),
    partitions=2,
    waits_for_operator=True,
    recovery_compares_logs=True,
    queries_epochs=True,
    fetches_are_small=True,
    votes_outlast_elections=True,
)
PAGE = (Path(__file__).parents[2] / "docs" / "faults.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("fault", FAULTS.values(), ids=lambda fault: fault.name)
def test_every_fault_is_drawn_for_its_family_and_reads_back_from_a_script(fault: type[Fault]) -> None:
    drawn = (draw(Random(seed), CLUSTER, 60.0, [fault.family.name]) for seed in range(300))
    example = next(each.fault for schedule in drawn for each in schedule if type(each.fault) is fault)
    schedule = Schedule((ScheduledFault(1.0, 2.0, example),))
    schedule.check(CLUSTER.brokers, CLUSTER.controllers, CLUSTER.partitions)
    assert parse_script(schedule.to_script()) == schedule
    assert example.proof


@pytest.mark.parametrize("fault", FAULTS.values(), ids=lambda fault: fault.name)
def test_every_fault_has_a_row_on_its_page(fault: type[Fault]) -> None:
    assert re.search(rf"^\| `{fault.name}` \| `{fault.family.name}`.* \| \w.*\. \| \w", PAGE, re.MULTILINE)


def test_every_family_has_a_colour_of_its_own_in_figures() -> None:
    colours = [family_colour(name) for name in FAMILIES]
    assert len({*colours, GREY}) == len(FAMILIES) + 1
    assert all(re.fullmatch("#[0-9a-f]{6}", colour) for colour in colours)
    assert family_colour("a family of a later version") == GREY


def test_old_names_lead_to_faults_and_families_of_today_and_are_not_used_again() -> None:
    assert set(old_names.FAULTS.values()) <= set(FAULTS)
    assert set(old_names.FAMILIES.values()) <= set(FAMILIES)
    assert not old_names.FAULTS.keys() & FAULTS.keys()
    assert not old_names.FAMILIES.keys() & FAMILIES.keys()


def test_the_numbers_of_the_draw_never_change() -> None:
    """A seed stands for a schedule as long as they stay: a new fault takes a new number, and a name may change."""
    families = {family.number: name for name, family in FAMILIES.items()}
    assert families == {
        1: "partition",
        2: "kill",
        3: "power-loss",
        4: "pause",
        5: "clock",
        6: "packets",
        7: "scripted",
        8: "admin",
        9: "wipe",
        10: "power-loss-all",
        11: "fsync-lies",
        12: "disk-full",
        13: "slow-disk",
        14: "message",
    }
    assert FAIR_FAMILIES == tuple(families[number] for number in (*range(1, 10), 12, 13, 14))
    assert [fault.name for fault in FAULTS.values() if fault.family.name == "scripted"] == [
        "zombie-follower",
        "hidden-commit",
        "deaf-leader",
        "quick-succession",
        "late-proposal",
        "removed-and-back",
        "unclean-return",
        "stale-broker-epoch",
        "zombie-controller",
        "lagging-controller",
        "half-deleted-replica",
        "cancelled-in-doubt",
        "late-epoch-answer",
        "late-quorum-fetch",
        "late-join",
        "slow-catch-up",
        "late-vote",
        "there-and-back",
        "unaware-controller",
    ]


MODULE = """
from dataclasses import dataclass
from typing import ClassVar
from nemesis.faults.fault import Family, Fault

@dataclass(frozen=True, slots=True)
class {name}(Fault):
    name: ClassVar[str] = "{name}"
    number: ClassVar[int] = {number}
    family: ClassVar[Family] = Family({family}, "{family}", "#000000")
    proof: ClassVar[tuple[str, ...]] = ("done",)
"""


def _package(path: Path, monkeypatch: pytest.MonkeyPatch, **modules: tuple[str, int, int]) -> ModuleType:
    folder = path / f"faults_of_{path.name}".replace("-", "_")
    folder.mkdir()
    (folder / "__init__.py").touch()
    for module, (name, number, family) in modules.items():
        (folder / f"{module}.py").write_text(MODULE.format(name=name, number=number, family=family))
    monkeypatch.syspath_prepend(path)
    return importlib.import_module(folder.name)


def test_a_new_fault_is_its_module_and_its_place_is_its_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = _package(tmp_path, monkeypatch, a=("Third", 1, 3), b=("First", 1, 1), c=("Second", 1, 2))
    assert [fault.name for fault in declared_faults(package)] == ["First", "Second", "Third"]


def test_two_faults_of_one_name_or_number_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = _package(tmp_path, monkeypatch, a=("One", 1, 1), b=("One", 1, 2))
    with pytest.raises(DeclarationError, match="two faults are declared as One"):
        declared_faults(package)


def test_two_families_of_one_number_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = _package(tmp_path, monkeypatch, a=("One", 1, 1), b=("Two", 2, 1))
    (Path(package.__path__[0]) / "b.py").write_text(
        MODULE.format(name="Two", number=2, family=1).replace('"1"', '"another"')
    )
    with pytest.raises(DeclarationError, match="two families are declared as 1"):
        declared_faults(package)
