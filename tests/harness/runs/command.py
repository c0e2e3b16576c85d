"""The command `faultline check`, started as users start it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def check_again(directory: Path) -> subprocess.CompletedProcess[str]:
    """Checks a stored run; its standard output is one JSON object."""
    command = [sys.executable, "-m", "harness", "check", str(directory), "--json"]
    return subprocess.run(command, capture_output=True, text=True, check=False)
