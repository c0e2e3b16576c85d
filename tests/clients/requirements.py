"""Clients that are not Python packages: a machine without them skips their tests, CI must not."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


def missing(what: str) -> NoReturn:
    """Skip the test, or fail it with FAULTLINE_REQUIRE_CLIENTS=1."""
    if os.environ.get("FAULTLINE_REQUIRE_CLIENTS") == "1":
        pytest.fail(f"{what}, and FAULTLINE_REQUIRE_CLIENTS=1 asks for it")
    pytest.skip(what)
