"""Deviations of a run from its script: faults and operations whose moment never came, that failed, or did not end.

They change no verdict by themselves, but a run that did not follow its script tests something else than was meant.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa


def deviations(faults: pa.Table, operations: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """All deviations of a run, a line each: its table FAULTS, and the operations of its `script.json`."""
    rows = faults.select(["fault", "detail"]).to_pylist()
    lines = [line for row in rows for line in fault_deviations(row["fault"], json.loads(row["detail"] or "{}"))]
    return (*lines, *operation_deviations(operations))


def fault_deviations(fault: str, detail: Mapping[str, Any]) -> Iterator[str]:
    """Those of one fault, by its `detail` (`nemesis.nemesis.Injection`)."""
    target = " ".join((fault, *detail.get("nodes", ())))
    words_of = {"not_injected": "was not injected", "failed": "failed", "not_ended": "was not ended by its condition"}
    for field, words in words_of.items():
        if field in detail:
            yield f"{target} {words}: {detail[field]}"


def operation_deviations(operations: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Those of scripted operations, in the order of the script."""
    for number, operation in enumerate(operations):
        if not operation.get("performed"):
            text, reason = operation.get("operation"), operation.get("reason")
            yield f"{text} (clients.operations[{number}]) was not performed: {reason}"
