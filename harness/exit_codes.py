"""Exit codes of the command.

0 valid · 1 invalid · 2 unknown · 3 not carried out · 64 bad usage · 130 interrupted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

VALID, INVALID, UNKNOWN, NOT_CARRIED_OUT, BAD_USAGE, INTERRUPTED = 0, 1, 2, 3, 64, 130
EXIT_CODES: Final[Mapping[str, int]] = {
    "invalid": INVALID,
    "failed": NOT_CARRIED_OUT,
    "unknown": UNKNOWN,
    "valid": VALID,
}
"""Result of a run (a validity, or `failed` when it could not be carried out) → exit code; the worst first."""
