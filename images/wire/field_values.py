"""Values of message fields that several APIs share."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from kio.schema.errors import ErrorCode

NO_THROTTLE: Final = timedelta(0)
"""The throttle time of every answer: nothing here has quotas."""

NO_ERROR: Final[ErrorCode] = ErrorCode.none
"""A constant, since Python looks for a member of an enumeration five times as long."""

LATEST: Final = -1
EARLIEST: Final = -2
"""Timestamps by which ListOffsets asks for the end and for the start of a log."""

NO_EPOCH: Final = -1
"""In place of a leader epoch: none is known, or asked for."""
NO_LEADER: Final = -1
"""In place of the id of a broker: the partition has no leader."""
