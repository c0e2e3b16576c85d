"""The flaws of docs/explained-flaws.md that are patches: they still apply, and the page tells all of them."""

from __future__ import annotations

import json

import pytest

from tests.results.explanation.flaws import FLAWS, NAMED, NAMED_SINCE, ROOT, ROWS, Flaw, patched


@pytest.mark.parametrize("flaw", FLAWS, ids=lambda flaw: flaw.name)
def test_a_flaw_applies_to_the_broker_of_today(flaw: Flaw) -> None:
    for path in {edit.path for edit in flaw.edits}:
        source = (ROOT / path).read_text(encoding="utf-8")
        compile(patched(source, flaw, path), path, "exec")


def test_the_page_tells_every_flaw() -> None:
    rows = json.loads(ROWS.read_text(encoding="utf-8"))
    assert [row["flaw"] for row in rows] == [flaw.name for flaw in FLAWS]


def test_a_flaw_was_named_at_first_or_since_or_not_at_all() -> None:
    assert not NAMED & NAMED_SINCE
    assert {flaw.name for flaw in FLAWS} >= NAMED | NAMED_SINCE
