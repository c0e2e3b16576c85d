"""The known differences between this broker's answers and Kafka's, and the page that shows them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from tests.differential.messages import Plain

_FILE = Path(__file__).parent / "differences.yaml"
_PARTS_MOST = 3
_LENGTH_MOST = 90


@dataclass(frozen=True, slots=True)
class Difference:
    """One reason, and the cases that it makes differ."""

    reason: str
    cases: tuple[str, ...]


def load_differences() -> list[Difference]:
    """The contents of `differences.yaml`."""
    entries = yaml.safe_load(_FILE.read_text(encoding="utf-8"))
    return [Difference(entry["reason"], tuple(entry["cases"])) for entry in entries]


def changed_parts(kafka: Plain, ours: Plain, path: str = "") -> Iterator[tuple[str, Plain, Plain]]:
    """Each part in which two answers differ: where it is, Kafka's, ours."""
    if isinstance(kafka, dict) and isinstance(ours, dict):
        for key in sorted({*kafka, *ours}):
            if kafka.get(key) != ours.get(key):
                yield from changed_parts(kafka.get(key), ours.get(key), f"{path}.{key}" if path else key)
    elif isinstance(kafka, list) and isinstance(ours, list) and len(kafka) == len(ours):
        for number, (one, other) in enumerate(zip(kafka, ours, strict=True)):
            if one != other:
                yield from changed_parts(one, other, f"{path}[{number}]")
    else:
        yield path, kafka, ours


def page_tables(answers: dict[str, Plain], ours: dict[str, Plain]) -> str:
    """The generated part of `docs/kafka-differences.md`: the count, then a table for each reason."""
    text = f"{len(answers)} cases: {len(answers) - len(ours)} answered alike, {len(ours)} differently.\n"
    for difference in load_differences():
        text += f"\n**{difference.reason}**\n\n| case | Kafka | Faultline |\n|---|---|---|\n"
        for name in difference.cases:
            parts = list(changed_parts(answers[name], ours[name]))
            text += f"| {name} | {_shown(parts, 1)} | {_shown(parts, 2)} |\n"
    return text


def _shown(parts: list[tuple[str, Plain, Plain]], side: int) -> str:
    lines = []
    for part in parts[:_PARTS_MOST]:
        value = "-" if part[side] is None else json.dumps(part[side])
        cut = value if len(value) <= _LENGTH_MOST else value[:_LENGTH_MOST] + "…"
        where = part[0].rpartition(".")[2]
        lines.append(f"`{where}: {cut}`" if where else f"`{cut}`")
    if len(parts) > _PARTS_MOST:
        lines.append("…")
    return "<br>".join(lines)
