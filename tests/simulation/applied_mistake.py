"""A mistake that is made for the rest of a test."""

from __future__ import annotations

import pytest

from harness.environments.mistakes import Mistake


def replace_in(patch: pytest.MonkeyPatch, target: str, replace: str, by: str) -> None:
    """Have the function `target` (`module:Class.method`) run with `by` in place of `replace`."""
    apply_mistake(patch, Mistake(target, "", target, replace, by))


def apply_mistake(patch: pytest.MonkeyPatch, mistake: Mistake) -> None:
    """Have the function run with the mistake, wherever it was imported to."""
    patch.setattr(mistake.function(), "__code__", mistake.code())
