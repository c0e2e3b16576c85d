"""Rendering of pages with Jinja2: the environment, the frames of pages, and their assets.

A page is a file of its own with everything it needs inside, or it is served (`harness.cli.serve`) and loads the common
ASSETS. The content security policy of both forbids everything else.

The templates in `results/pages/templates` escape every value they print. The only exceptions are `Markup` values, which
this package makes itself: rendered parts of pages, the JSON of figures, and ASSETS. Nothing that a run contains becomes
markup.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from importlib.resources import files
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from checkers.verdict import Finding
from results.figures.canvas import Figure, to_json
from results.number_format import compact, counted, numeral, spaced, written

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data: blob:"
SERVED_POLICY = (
    "default-src 'none'; style-src 'self' 'unsafe-inline'; script-src 'self'; img-src data: blob:; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""The policy of served pages, sent as a header: only the scripts of ASSETS run, whatever the names in a run are."""
_PLACE_OF_PLOTLY = "<script></script>"
"""An empty element of the template; the last one in the page, since no script of ASSETS has markup in it."""
ASSETS = {
    "report.css": ("results.pages", "report.css"),
    "serve.css": ("results.pages", "serve.css"),
    "report.js": ("results.pages", "report.js"),
    "plotly.js": ("plotly", "package_data/plotly.min.js"),
}
"""Files that served pages load from `/assets/`: name → package and file in it."""


def render(template: str, **values: Any) -> Markup:
    """Render a template of `results/pages/templates` as a part of a page."""
    return Markup(_environment().get_template(template).render(values))


def frame(title: str, body: Markup) -> str:
    """A whole page as one file.

    Plotly, of millions of characters, is put into the rendered page: Jinja2 would copy it five times.
    """
    page = str(render("file.html", title=title, body=body, policy=Markup(_POLICY), asset=_asset_markup))
    before, _, after = page.rpartition(_PLACE_OF_PLOTLY)
    return f"{before}<script>{asset('plotly.js')}</script>{after}"


def served(title: str, current: str, body: Markup) -> str:
    """A whole page for the server; `current` is the first step of its address."""
    return str(render("served.html", title=title, current=current, body=body, has_plots='class="plot"' in body))


@cache
def asset(name: str) -> str:
    """The text of one of ASSETS. Raises KeyError."""
    package, path = ASSETS[name]
    return files(package).joinpath(path).read_text(encoding="utf-8")


def address(*parts: str) -> str:
    """The address of a served page: each part is one step of the path, whatever characters it has."""
    return "/" + "/".join(quote(os.fsencode(part), safe="") for part in parts)


def moment(iso: str) -> str:
    """`2026-11-21 00:15:00`, from ISO 8601."""
    return iso.replace("T", " ").replace("+00:00", "")


def _template(name: str) -> str:
    """Its source, also where Spark sent the package as `./faultline-….zip`, in which PackageLoader finds nothing."""
    return (files("results.pages") / "templates" / name).read_text(encoding="utf-8")


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FunctionLoader(_template),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters: dict[str, Callable[..., Any]] = {
        "address": lambda parts: address(*parts),
        "compact": compact,
        "counted": counted,
        "figure_json": _figure_json,
        "moment": moment,
        "numeral": numeral,
        "place": _place,
        "spaced": spaced,
        "written": written,
    }
    environment.filters.update(filters)
    return environment


def _figure_json(figure: Figure) -> Markup:
    """The figure's JSON in a script element; `to_json` leaves no `<` in it."""
    return Markup('<script type="application/json">{}</script>').format(Markup(to_json(figure)))


def _asset_markup(name: str) -> Markup:
    return Markup(asset(name))


def _place(finding: Finding) -> str:
    """`topic-0`, `topic` or nothing."""
    return finding.topic + (f"-{finding.partition}" if finding.topic and finding.partition >= 0 else "")
