"""A seed is one run under every version of Python that Faultline supports."""

from __future__ import annotations

import sys

import pytest

from tests.simulation.crowd import crowd
from tests.simulation.other_pythons import digests, equipped_pythons, other_pythons, output_of

_CROWD = "from tests.simulation.crowd import crowd; print(crowd(7)[0])"


def test_the_simulation_has_the_same_digest_under_every_python() -> None:
    pythons = other_pythons()
    if not pythons:
        pytest.skip("this machine has one version of Python")
    here, _ = crowd(7)
    assert {version: output_of(python, _CROWD).strip() for version, python in pythons.items()} == dict.fromkeys(
        pythons, here
    )


def test_a_run_of_each_workload_has_the_same_digest_under_another_python() -> None:
    equipped = equipped_pythons()
    if not equipped:
        pytest.skip("no other Python has the libraries: `make pythons` installs them")
    newest = list(equipped.values())[-1]
    assert digests(newest, 1, time_limit_s=8.0) == digests(sys.executable, 1, time_limit_s=8.0)
