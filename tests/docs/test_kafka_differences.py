"""`docs/kafka-differences.md` shows the differential table. `make docs` writes it anew."""

from __future__ import annotations

import os
import re
from pathlib import Path

from tests.differential.differences import page_tables
from tests.differential.record import ANSWERS, OURS, load

PAGE = Path(__file__).parents[2] / "docs/kafka-differences.md"


def test_the_page_of_differences_shows_the_recorded_answers() -> None:
    text = PAGE.read_text(encoding="utf-8")
    mark = r"(<!-- differences: written by `make docs` -->\n)(.*?)(<!-- /differences -->)"
    match = re.search(mark, text, re.DOTALL)
    assert match is not None
    content = page_tables(load(ANSWERS), load(OURS))
    if os.environ.get("FAULTLINE_WRITE_DOCS"):
        PAGE.write_text(text[: match.end(1)] + content + text[match.start(3) :], encoding="utf-8")
        return
    assert match[2] == content, "docs/kafka-differences.md is behind the recorded answers; run `make docs`"
