"""Running other programs to completion."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from images.base.agent.run_directory import AgentError

_LIMIT_S = 60


def run(argv: Sequence[str], text: str = "") -> bytes:
    """The output of a program, given `text` on stdin. Raises AgentError with its error output if it fails."""
    try:
        done = subprocess.run(argv, input=text.encode(), capture_output=True, timeout=_LIMIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise AgentError(f"{argv[0]}: {error}") from None
    if done.returncode:
        raise AgentError(f"{argv[0]}: {' '.join(done.stderr.decode(errors='replace').split())}")
    return done.stdout
