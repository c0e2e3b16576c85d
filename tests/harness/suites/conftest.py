"""The suite of `mixed_suite`: as a file, and run once in one go."""

from __future__ import annotations

import re
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from harness.cli.main import main
from harness.exit_codes import INVALID
from tests.harness.suites.mixed_suite import MIXED


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    path = tmp_path / "mixed.yaml"
    path.write_text(MIXED)
    return path


@pytest.fixture(scope="session")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with one suite, run in one go."""
    directory = tmp_path_factory.mktemp("uninterrupted")
    (directory / "mixed.yaml").write_text(MIXED)
    with redirect_stdout(StringIO()) as output, redirect_stderr(StringIO()) as errors:
        code = main(["suite", str(directory / "mixed.yaml"), "--store", str(directory)])
    assert code == INVALID, errors.getvalue()
    assert "mutant" in output.getvalue()
    assert "values drawn, in 2 dimensions; never: " in output.getvalue()
    assert re.search(r"\ncovered: \d+ kinds of protocol events, with \d+ different reasons", output.getvalue())
    assert re.search(r"\nrules: \d+ of 63 safety rules were read; never: ", output.getvalue())
    assert "\nsituations: " in output.getvalue()
    assert [line for line in errors.getvalue().splitlines() if line.startswith("invalid mutant-seed")]
    return directory
