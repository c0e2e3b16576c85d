"""Numbers, values and names as text for people."""

from __future__ import annotations

from typing import Any

_THIN_SPACE = "\u202f"


def numeral(value: float) -> str:
    """A number with grouped thousands and no needless digits."""
    if float(value).is_integer():
        return f"{int(value):,}".replace(",", _THIN_SPACE) if abs(value) >= 10_000 else str(int(value))
    return f"{value:.4g}" if abs(value) < 1000 else f"{value:,.1f}".replace(",", _THIN_SPACE)


def counted(number: int, noun: str) -> str:
    """`1 check`, `2 checks`."""
    return f"{numeral(number)} {noun}" + ("" if number == 1 else "s")


def spaced(name: str) -> str:
    """An identifier as words."""
    return name.replace("_", " ")


def written(value: Any) -> str:
    """A JSON value as text: yes and no, grouped numbers, lists with commas."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return numeral(value)
    if isinstance(value, list | tuple):
        return ", ".join(written(item) for item in value)
    return "" if value is None else str(value)


def compact(value: float, sign: str = "") -> str:
    """A number with two or three significant digits; with `+` as `sign`, positive numbers get a plus. What rounds to
    zero has no sign."""
    if value == 0:
        return "0"
    text = f"{value:{sign}.{0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2}f}"
    return text if float(text) else text.lstrip("+-")


def signed(value: float) -> str:
    """`compact` with a plus for positive numbers."""
    return compact(value, "+")
