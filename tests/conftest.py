"""How all tests run.

The order: tests of containers come first in each half. pytest-xdist gives every process a contiguous part, and they
take long: last of all, one process would be at them while the others have nothing left. Tests with Spark in their own
process come first in the second quarter: with four processes (two cores) all of them are of one process, which starts
Java once. Other processes take tests over from the end of a part only.

Hypothesis: no deadline, since the machine may be busy; on CI always the same examples, so that anybody can repeat a
failure there. Tests marked `docker` are skipped without an engine, unless FAULTLINE_REQUIRE_DOCKER=1: then they fail.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache
from itertools import islice

import hypothesis
import pytest

hypothesis.settings.register_profile("here", deadline=None, print_blob=True)
hypothesis.settings.register_profile("ci", hypothesis.settings.get_profile("here"), derandomize=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "here")


@pytest.fixture(scope="session", autouse=True)
def hypothesis_hidden_from_children(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Hides Hypothesis from processes that tests start, which then are as those of users.

    kio imports it where it is installed: a third of the time in which a broker starts.
    """
    directory = tmp_path_factory.mktemp("hidden")
    (directory / "hypothesis.py").write_text('raise ImportError("hidden from processes that tests start")\n')
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = f"{directory}{os.pathsep}{before}" if before else str(directory)


@cache
def _engine_answers() -> bool:
    if shutil.which("docker") is None:
        return False
    return subprocess.run(["docker", "info"], capture_output=True, check=False, timeout=30).returncode == 0


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put every second file with tests of containers first, Spark at a quarter, the others with containers at half."""
    containers = {item.path: None for item in items if item.get_closest_marker("docker") is not None}
    first, middle = list(containers)[::2], list(containers)[1::2]
    spark = [item for item in items if item.get_closest_marker("spark") is not None]
    blocks = [
        [item for path in first for item in items if item.path == path],
        spark,
        [item for path in middle for item in items if item.path == path],
    ]
    placed = {item for block in blocks for item in block}
    others = iter([item for item in items if item not in placed])
    total, order = len(items), list[pytest.Item]()
    for number, block in enumerate(blocks):
        begin = -(-total * number // 4)
        order += islice(others, max(0, begin - len(order)))
        order += block
    items[:] = [*order, *others]


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip or fail what needs an engine that is not there."""
    if item.get_closest_marker("docker") is None or _engine_answers():
        return
    if os.environ.get("FAULTLINE_REQUIRE_DOCKER") == "1":
        pytest.fail("no Docker engine answers, and FAULTLINE_REQUIRE_DOCKER=1 asks for one")
    pytest.skip("no Docker engine answers")
