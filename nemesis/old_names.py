"""Names that faults and families had in runs recorded by earlier versions.

Specs and records of such runs are read with the names of today, so that they can still be checked and replayed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

FAULTS: Final[Mapping[str, str]] = {"lost-incarnation": "stale-broker-epoch"}
"""Old name of a fault → the name of today."""

FAMILIES: Final[Mapping[str, str]] = {"choreography": "scripted"}
"""Old name of a family → the name of today."""
