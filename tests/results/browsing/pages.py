"""A served page as a reader has it: its elements, its text and its links."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

from results.pages.browsing.routes import Response, Router

SCRIPT = "<script>alert(1)</script>"


class Page(HTMLParser):
    """The elements of a page, and its text."""

    def __init__(self, answer: Response) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        assert isinstance(answer.body, bytes)
        self.feed(answer.body.decode())
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    def links(self) -> list[str]:
        return [str(attributes["href"]) for tag, attributes in self.elements if tag == "a"]

    def runs_only_our_scripts(self) -> bool:
        return all(
            attributes.get("src") in ("/assets/report.js", "/assets/plotly.js")
            or attributes.get("type") == "application/json"
            for tag, attributes in self.elements
            if tag == "script"
        ) and not any(name.startswith("on") for _, attributes in self.elements for name in attributes)


def bad_run(store: Path) -> Path:
    (path,) = [path for path in store.glob("2*seed7") if not path.is_symlink()]
    return path


def show(site: Router, target: str) -> Page:
    answer = site.respond(target)
    assert answer.status == 200, target
    page = Page(answer)
    assert page.runs_only_our_scripts()
    return page
