"""The sources stay easy to find one's way in: small folders, short modules, one meaning for each class name."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("images", "workloads", "nemesis", "checkers", "results", "harness", "faultline")
FOLDER_ENTRIES_MAX = 20
MODULE_LINES_MAX = 500

SHARED_NAMES = {"_Timespec"}
"""Classes of programs that run on their own on a machine, so that they share no module (`images/base`)."""


def modules(*packages: str) -> Iterator[Path]:
    for package in packages:
        yield from sorted((ROOT / package).rglob("*.py"))


def test_no_folder_has_more_than_20_modules_and_subfolders() -> None:
    entries: dict[Path, set[Path]] = defaultdict(set)
    for module in modules(*PACKAGES, "tests", "examples"):
        if module.name != "__init__.py":
            entries[module.parent].add(module)
        entries[module.parent.parent].add(module.parent)
    assert {str(folder): len(names) for folder, names in entries.items() if len(names) > FOLDER_ENTRIES_MAX} == {}


def test_no_module_outside_the_tests_has_more_than_500_lines() -> None:
    lines = {str(module): len(module.read_text(encoding="utf-8").splitlines()) for module in modules(*PACKAGES)}
    assert {module: count for module, count in lines.items() if count > MODULE_LINES_MAX} == {}


def test_no_class_name_has_two_meanings() -> None:
    """kio has a module for each version of a message, and the same classes in each; so has `images/wire`."""
    places: dict[str, list[str]] = defaultdict(list)
    for module in modules(*PACKAGES):
        if module.parent.name == "wire":
            continue
        for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and node.name not in SHARED_NAMES:
                places[node.name].append(str(module.relative_to(ROOT)))
    assert {name: paths for name, paths in places.items() if len(paths) > 1} == {}
