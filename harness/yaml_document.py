"""The one YAML reader: specs, suites and comparisons are read here, and every error names the file and the line.

The rest of the harness refuses a value with a message that begins with its field, such as `faults[0].at: …` or
`specs.append.brokers: …`. A `YamlDocument` keeps the nodes that the values were read from, follows the field to its
node, and puts `FILE:LINE: ` before the message. A field that is not in the document is located at the nearest one
above it.

A key given twice in one mapping is an error: YAML forbids it, and PyYAML silently takes the last.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

_AFTER_A_FIELD: Final = (".", ":", "[", " ")


class SpecError(Exception):
    """A spec, suite or comparison that cannot be used; the message is one line for the user."""


@dataclass(frozen=True, slots=True)
class YamlDocument:
    """The values of one YAML document, and where they are written."""

    source: str
    """The file; empty for a text that has none."""
    values: Any
    root: yaml.Node | None
    """None for an empty document."""

    def located(self, message: str) -> str:
        """`message`, which begins with a field, with the file and the line of that field before it."""
        return _placed(self.source, _mark(self.root, message), message)


def read_document(path: Path) -> YamlDocument:
    """The YAML document in a file. Raises SpecError."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    return parse_document(text, str(path))


def parse_document(text: str, source: str = "") -> YamlDocument:
    """The YAML document that `text` holds; `source` names its file. Raises SpecError."""
    try:
        loader = yaml.SafeLoader(text)
        root = loader.get_single_node()
        for node in _every(root):
            _refuse_duplicates(node, source)
        return YamlDocument(source, loader.construct_document(root) if root is not None else None, root)
    except yaml.MarkedYAMLError as error:
        words = " ".join(f"{error.context or ''} {error.problem or ''}".split())
        raise SpecError(_placed(source, error.problem_mark or error.context_mark, f"not YAML: {words}")) from None
    except (yaml.YAMLError, ValueError) as error:
        raise SpecError(_placed(source, None, f"not YAML: {' '.join(str(error).split())}")) from None
    except RecursionError:
        raise SpecError(_placed(source, None, "not YAML that can be read: nested too deeply")) from None


def _placed(source: str, mark: yaml.Mark | None, message: str) -> str:
    if mark is None:
        return f"{source}: {message}" if source else message
    return f"{source}:{mark.line + 1}: {message}" if source else f"line {mark.line + 1}: {message}"


def _every(root: yaml.Node | None) -> Iterator[yaml.Node]:
    """Each node once, however often it is referred to."""
    seen: set[int] = set()
    waiting = [root] if root is not None else []
    while waiting:
        node = waiting.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        yield node
        if isinstance(node, yaml.MappingNode):
            waiting += [part for pair in node.value for part in pair]
        elif isinstance(node, yaml.SequenceNode):
            waiting += node.value


def _refuse_duplicates(node: yaml.Node, source: str) -> None:
    if not isinstance(node, yaml.MappingNode):
        return
    first: dict[str, yaml.Mark] = {}
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode):
            continue
        if key.value in first:
            line = first[key.value].line + 1
            raise SpecError(
                _placed(source, key.start_mark, f"{key.value}: is given twice, first in line {line}; keep one of them")
            )
        first[key.value] = key.start_mark


def _mark(node: yaml.Node | None, message: str) -> yaml.Mark | None:
    """Where the field at the beginning of `message` is written: each step goes one field down."""
    mark = node.start_mark if node is not None else None
    rest = message
    while node is not None:
        child, rest = _child(node, rest.removeprefix(": ").removeprefix("."))
        if child is None:
            return _mentioned(node, rest) or mark
        mark, node = child
    return mark


def _child(node: yaml.Node, rest: str) -> tuple[tuple[yaml.Mark, yaml.Node] | None, str]:
    """The field of `node` that `rest` begins with, and what follows it."""
    if isinstance(node, yaml.MappingNode):
        for key, value in sorted(node.value, key=lambda pair: -len(str(pair[0].value))):
            name = str(key.value)
            if rest.startswith(tuple(name + end for end in _AFTER_A_FIELD)):
                return (key.start_mark, value), rest[len(name) :]
    elif isinstance(node, yaml.SequenceNode) and rest.startswith("["):
        number, _, after = rest[1:].partition("]")
        if number.isdecimal() and int(number) < len(node.value):
            value = node.value[int(number)]
            return (value.start_mark, value), after
    return None, rest


def _mentioned(node: yaml.Node, rest: str) -> yaml.Mark | None:
    """Where a key or an element is written that the rest of the message quotes."""
    if isinstance(node, yaml.MappingNode):
        parts = [key for key, _ in node.value]
    else:
        parts = node.value if isinstance(node, yaml.SequenceNode) else []
    return next((part.start_mark for part in parts if repr(part.value) in rest), None)
