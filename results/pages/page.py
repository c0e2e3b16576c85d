"""The page a report is written on: its frame, and the pieces that sections are made of.

A page stands alone in a file, with all it needs inside it, or is served (`harness.cli.serve`), with what pages have in
common beside it, ASSETS. Both forbid themselves everything else by their content security policy.

Every piece takes plain text and escapes it, except where its docstring says that it takes HTML.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import Any

from results.figures.canvas import Figure, to_json
from results.number_format import numeral, spaced, written

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data: blob:"
SERVED_POLICY = (
    "default-src 'none'; style-src 'self' 'unsafe-inline'; script-src 'self'; img-src data: blob:; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""Of served pages, as a header: no script but those of ASSETS runs, whatever a run may be named."""
ASSETS = {
    "report.css": ("results.pages", "report.css"),
    "serve.css": ("results.pages", "serve.css"),
    "report.js": ("results.pages", "report.js"),
    "plotly.js": ("plotly", "package_data/plotly.min.js"),
}
"""What served pages load from `/assets/`: package and file in it."""


def frame(title: str, body: str) -> str:
    """The whole page around `body`, which is HTML."""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<title>{escape(title)}</title>
<link rel="icon" href="data:,">
<style>
{asset("report.css")}</style>
</head>
<body>
<main>
{body}
</main>
<script>{asset("plotly.js")}</script>
<script>
{asset("report.js")}</script>
</body>
</html>
"""


def served(title: str, navigation: str, body: str) -> str:
    """The whole page around `navigation` and `body`, which are HTML, as the server sends it."""
    drawing = '<script src="/assets/plotly.js"></script>' if 'class="plot"' in body else ""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)} · Faultline</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="/assets/report.css">
<link rel="stylesheet" href="/assets/serve.css">
</head>
<body>
<a class="skip" href="#content">To the content</a>
{navigation}
<main id="content" tabindex="-1">
{body}
</main>
{drawing}
<script src="/assets/report.js"></script>
</body>
</html>
"""


def section(title: str, *content: str, anchor: str = "") -> str:
    """A card; its content is HTML. `anchor` is what an address names after `#` to get here."""
    named = f' id="{escape(anchor)}" tabindex="-1"' if anchor else ""
    return f"<section{named}>\n<h2>{escape(title)}</h2>\n{''.join(content)}\n</section>"


def table(heads: Sequence[str], rows: Iterable[str], kind: str = "") -> str:
    """A table that scrolls sideways when it must; its rows are HTML."""
    head = "".join(f"<th>{escape(name)}</th>" for name in heads)
    body = "".join(rows)
    return (
        f'<div class="scroll"><table class="{kind}"><thead><tr>{head}</tr></thead>'
        f"<tbody>\n{body}\n</tbody></table></div>"
    )


def number_row(name: str, numbers: Iterable[float | None]) -> str:
    """A row of a table of numbers; None leaves its cell empty."""
    cells = (f'<td class="number">{"" if value is None else numeral(value)}</td>' for value in numbers)
    return f'<tr><td class="name">{escape(name)}</td>{"".join(cells)}</tr>'


def plot(figure: Figure, caption: str = "") -> str:
    """A figure, which the page's script draws."""
    note = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    height = int(figure["layout"]["height"])
    return (
        f'<figure>{note}<div class="plot" style="height:{height}px"></div>'
        f'<script type="application/json">{to_json(figure)}</script></figure>'
    )


def note(text: str) -> str:
    """A quiet line."""
    return f'<p class="dim">{escape(text)}</p>' if text else ""


def definitions(facts: Mapping[str, Any]) -> str:
    """Names above their values, side by side; facts without a value are left out."""
    items = "".join(
        f"<div><dt>{escape(spaced(name))}</dt><dd>{escape(written(value))}</dd></div>"
        for name, value in facts.items()
        if value not in ("", None)
    )
    return f"<dl>{items}</dl>" if items else ""


def bullets(items: Iterable[str]) -> str:
    """A list; nothing when it is empty."""
    lines = "".join(f"<li>{escape(item)}</li>" for item in items)
    return f"<ul>{lines}</ul>" if lines else ""


def measures(values: Mapping[str, Any]) -> str:
    """Names and values in small print; zeros are left out."""
    shown = "".join(
        f"<span>{escape(spaced(name))} <b>{escape(written(value))}</b></span>"
        for name, value in values.items()
        if value != 0
    )
    return f'<div class="figures">{shown}</div>' if shown else ""


def command(name: str, line: str) -> str:
    """A command with a button that copies it; `name` is unique on the page."""
    return (
        f'<div class="command"><pre id="{name}">{escape(line)}</pre>'
        f'<button type="button" data-copies="{name}">Copy</button></div>'
    )


def folded(summary: str, content: str) -> str:
    """Content, which is HTML, that opens when its summary is clicked."""
    return f"<details><summary>{escape(summary)}</summary>{content}</details>"


def link(text: str, href: str) -> str:
    """A link; without an address the text alone."""
    return f'<a href="{escape(href)}">{escape(text)}</a>' if href else escape(text)


def pill(validity: str | None, word: str = "") -> str:
    """A verdict in its colour, or another word in that colour."""
    kind = validity or "not checked"
    return f'<span class="pill {escape(kind.replace(" ", "-"))}">{escape(word or kind)}</span>'


def asset(name: str) -> str:
    """The text of one of ASSETS. Raises KeyError."""
    package, path = ASSETS[name]
    return files(package).joinpath(path).read_text(encoding="utf-8")
