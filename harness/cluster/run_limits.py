"""What a run may be. Its limits: a larger cluster or load is beyond one machine, and a longer run would never end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

LIMITS: Final[Mapping[str, tuple[float, float]]] = {
    "brokers": (1, 100),
    "controllers": (0, 25),
    "partitions": (1, 10_000),
    "replication_factor": (1, 100),
    "producers": (0, 1_000),
    "consumers": (0, 1_000),
    "end_offset_readers": (0, 1_000),
    "rate": (0.001, 100_000),
    "time_limit_s": (0.001, 7 * 86_400),
    "recovery_limit_s": (0.001, 7 * 86_400),
    "seed": (0, (1 << 63) - 1),
    "triggers": (0, 1),
    "channels": (0, 1),
    "blackouts": (0, 1),
    "schedules": (1, 64),
    "administrators": (0, 16),
}
"""Field → its least and its greatest value. Larger clusters and loads are beyond one machine, and would never end."""
CHOICES: Final[Mapping[str, Sequence[str]]] = {"recency": ("default", "strict"), "losses": ("promised", "none")}
"""Field → what it may be."""
NAME_LENGTH_MAX: Final = 100
FAULTS_MAX: Final = 10_000
"""Of a script."""
SETTING_LENGTH_MAX: Final = 1_000


def check_limits(name: str, settings: Iterable[Mapping[str, str]], numbers: Mapping[str, float], faults: int) -> None:
    """Raise ValueError for the first field beyond its limit: the name, a value of `settings`, one of the `numbers` by
    their fields, or the number of faults in a script."""
    if len(name) > NAME_LENGTH_MAX or not name.isprintable():
        raise ValueError(f"name: {name[:20]!r} … is not at most {NAME_LENGTH_MAX} printable characters")
    for setting, value in (item for mapping in settings for item in mapping.items()):
        if len(value) > SETTING_LENGTH_MAX:
            raise ValueError(
                f"settings.{setting[:50]}: {len(value)} characters are more than the limit of {SETTING_LENGTH_MAX}"
            )
    for field in LIMITS:
        check_number(field, numbers[field], field.removesuffix("_s"))
    if faults > FAULTS_MAX:
        raise ValueError(f"faults: {faults} faults are more than the limit of {FAULTS_MAX}")


def check_number(field: str, number: float, name: str) -> None:
    """Raise ValueError, of the field or option `name`, for a number beyond the limits of `field`."""
    least, most = LIMITS[field]
    if not number >= least:
        raise ValueError(f"{name}: {_written(number)} is less than {least:g}")
    if not number <= most:
        raise ValueError(f"{name}: {_written(number)} is more than the limit of {most:g}")


def _written(number: float) -> str:
    try:
        return f"{number:g}"
    except OverflowError:  # a whole number that no float is as large as
        return f"a number of {len(str(abs(number)))} digits"
