"""The pages of situations: over time, beside another suite, counted when the suite changes."""

from __future__ import annotations

from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from results.pages.browsing import store_browser
from results.pages.browsing.routes import Router
from results.store import tables
from results.store.schema import SCHEMAS, batch_path
from results.suites import SuiteSituations, situations_of_suite
from tests.results.browsing.pages import SCRIPT, show
from tests.results.trend.nights import make_night

HARD = "L= FI--i=sc Fo-u+<sb LI--p>rc"


def test_situations_are_shown_over_time_and_beside_another_suite(site: Router, store: Path) -> None:
    hunt = make_night(
        store, 0, name="hunt", seeds=3, situations={"append-seed1": [HARD, SCRIPT], "groups-seed2": [HARD]}
    )
    plain_suite = make_night(store, 1, seeds=3)
    assert f"/situations/{hunt}" in show(site, f"/suites/{hunt}").links()
    index = show(site, "/situations")
    assert index.links().index(f"/situations/{plain_suite}") < index.links().index(f"/situations/{hunt}")
    page = show(site, f"/situations/{hunt}")
    assert "Situations: 9 in 6 runs, 7 of them in one run only" in page.text
    assert "processor time 9.0 s" in page.text
    assert f"/situations/{hunt}/{plain_suite}" in page.links()
    assert sum(1 for tag, attributes in page.elements if attributes.get("class") == "plot") == 2
    page = show(site, f"/situations/{hunt}/{plain_suite}")
    assert "in both 7" in page.text
    assert f"Only {hunt} reached: 2 situations" in page.text
    assert f"{hunt} reached all situations of {plain_suite}." in page.text
    assert "the elected leader leads, the ISR is at min.insync.replicas" in page.text
    assert SCRIPT in page.text
    firsts = [link for link in page.links() if link.startswith(f"/suites/{hunt}/")]
    assert firsts == [f"/suites/{hunt}/append-seed1"] * 2
    assert f"Only {plain_suite} reached: 0 situations" in page.text
    for nothing in (f"/situations/{hunt}/{hunt}", "/situations/none", f"/situations/{hunt}/none"):
        assert site.respond(nothing).status == 404


def test_situations_are_counted_anew_when_their_suite_changes_and_only_then(
    site: Router, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    suites = [make_night(store, night, seeds=2) for night in range(2)]
    counted = list[str]()

    def count(of: Path, name: str) -> SuiteSituations:
        counted.append(name)
        return situations_of_suite(of, name)

    monkeypatch.setattr(store_browser, "situations_of_suite", count)
    show(site, "/situations")
    assert {*suites} <= {*counted}
    counted.clear()
    show(site, f"/situations/{suites[0]}")
    assert counted == []
    rows = tables.read(store, "coverage", suites[1]).table.drop_columns(["suite"])
    path = batch_path(store, "coverage", suites[1], "batch-00001")
    path.write_bytes(b"PAR1")
    page = show(site, "/situations")
    assert counted == [suites[1]]
    assert suites[1] not in [link.rpartition("/")[2] for link in page.links()]
    pq.write_table(rows.filter(pc.field("name") != "append-seed1").cast(SCHEMAS["coverage"]), path)
    assert "Situations: 4 in 4 runs" in show(site, f"/situations/{suites[1]}").text
