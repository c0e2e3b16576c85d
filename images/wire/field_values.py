"""Values of message fields that several APIs share."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

NO_THROTTLE: Final = timedelta(0)
"""The throttle time of every answer: nothing here has quotas."""

LATEST: Final = -1
EARLIEST: Final = -2
"""Timestamps by which ListOffsets asks for the end and for the start of a log."""
