"""Outcomes of incidents on a system, try by try, kept in a file for docs/kafka.md.

    {"isr-of-one-kafka": {"min.insync.replicas 1": {
        "kafka 4.1.1": {"verdicts": {"unknown": 2, "valid": 1}, "met": 2, "lost": [0, 9, 7]}}}}

`faultline incident run NAME --tries 3 --outcomes FILE` adds to it. Every try counts, also one that shows something else
than expected or could not be carried out; nothing is ever removed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from harness.incidents.telling import Telling
from results.atomic_files import put_text, read_json
from results.errors import StoreError

Outcomes = dict[str, dict[str, dict[str, "TriedVariant"]]]
"""By incident, by variant, by system with its version."""


@dataclass(slots=True)
class TriedVariant:
    """All tries of one variant on one release."""

    verdicts: dict[str, int] = field(default_factory=dict)
    """Runs by their verdict; `failed` are those that could not be carried out."""
    met: int = 0
    """Runs that showed what is expected."""
    lost: list[int] = field(default_factory=list)
    """Acknowledged records that each run lost, in the order of the runs."""

    def add(self, telling: Telling) -> None:
        """Enter the tries of one telling."""
        for result in telling.results:
            self.verdicts[result.validity] = self.verdicts.get(result.validity, 0) + 1
            self.met += result.met
            self.lost.append(result.acknowledged_lost)


def read_outcomes(path: Path) -> Outcomes:
    """The file's; empty where there is none. Raises StoreError."""
    try:
        return {
            incident: {
                variant: {system: TriedVariant(**tried) for system, tried in systems.items()}
                for variant, systems in variants.items()
            }
            for incident, variants in read_json(path).items()
        }
    except (AttributeError, TypeError) as error:
        raise StoreError(f"{path}: does not hold outcomes of incidents: {error}") from None


def record_outcomes(path: Path, tellings: Iterable[Telling]) -> None:
    """Add these tellings to the file. Raises StoreError."""
    outcomes = read_outcomes(path)
    for telling in tellings:
        spec = telling.variant.spec
        release = f"{spec.system} {spec.version}".strip()
        systems = outcomes.setdefault(telling.incident.name, {}).setdefault(telling.variant.name, {})
        systems.setdefault(release, TriedVariant()).add(telling)
    values = {
        incident: {
            variant: {release: asdict(tried) for release, tried in sorted(systems.items())}
            for variant, systems in variants.items()
        }
        for incident, variants in sorted(outcomes.items())
    }
    put_text(path, json.dumps(values, indent=1, ensure_ascii=False) + "\n")


def rows(outcomes: Outcomes) -> Iterator[tuple[str, str, str, str, str, str]]:
    """Incident, variant, release, verdicts, tries as expected, and acknowledged records lost."""
    for incident, variants in outcomes.items():
        for variant, systems in variants.items():
            for release, tried in systems.items():
                verdicts = ", ".join(f"{count} {validity}" for validity, count in tried.verdicts.items())
                lost = ", ".join(str(count) for count in tried.lost)
                yield incident, variant, release, verdicts, f"{tried.met} of {len(tried.lost)}", lost
