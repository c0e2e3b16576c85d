"""The YAML that users write: specs, suites and comparisons are read here, and every error names the file and the line.

The rest of the harness refuses a value with a message that begins with its field, such as `faults[0].at: …` or
`specs.append.brokers: …`. A `YamlDocument` keeps the nodes that the values were read from, follows the field to its
node, and puts `FILE:LINE: ` before the message. A field that is not in the document is located at the nearest one
above it.

A key given twice in one mapping is an error: YAML forbids it, and PyYAML silently takes the last. So is a number that
versions of YAML read differently: `010` is 8 in YAML 1.1, which PyYAML reads, and 10 in YAML 1.2. A document beyond the
limits below, which no spec comes near, is one, too: it would take hours and gigabytes to read, or never end.

A document that libyaml's parser refuses (`results.run.yaml_loader`) is read once more by PyYAML's own: so errors have
the same words everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml
from yaml.composer import Composer

from results.run.yaml_loader import MISFIT_ERRORS, YamlLoader

BYTES_MAX: Final = 1 << 20
"""Of a file."""
DEPTH_MAX: Final = 50
"""Of lists and mappings in each other."""
ALIASES_MAX: Final = 1_000
VALUES_MAX: Final = 200_000
"""With every alias written out."""
NUMBER_LENGTH_MAX: Final = 40
"""Characters of a number."""
MESSAGE_LENGTH_MAX: Final = 2_000
"""Characters of an error: of a longer one, which repeats a long value, its middle is left out."""

_NUMBERS: Final = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
_AMBIGUOUS_NUMBER: Final = re.compile(r"[-+]?0(b.*|[0-9]+)|.*[_:].*", re.IGNORECASE)
"""Octal by a leading zero, binary, to the base 60 (`12:30`), or with `_` among the digits."""
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


def is_about(message: str, given: Mapping[str, Any]) -> bool:
    """Whether the field at the beginning of `message` is one that is `given` beside the document, not in it."""
    field = re.split(r"[.:\[]", message, maxsplit=1)[0]
    value = given.get(field)
    return any(str(key) in message for key in value) if isinstance(value, Mapping) else value is not None


def read_document(path: Path) -> YamlDocument:
    """The YAML document in a file. Raises SpecError."""
    try:
        with path.open("rb") as file:
            contents = file.read(BYTES_MAX + 1)
        if len(contents) > BYTES_MAX:
            raise SpecError(f"{path}: has more than {BYTES_MAX} bytes, the limit of a file")
        text = contents.decode("utf-8")
    except (OSError, ValueError) as error:  # a name with a null byte is a ValueError, too
        raise SpecError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    return parse_document(text, str(path))


def parse_document(text: str, source: str = "") -> YamlDocument:
    """The YAML document that `text` holds; `source` names its file. Raises SpecError."""
    with suppress(*_UNREADABLE):
        return _document(_FasterLoader, text, source)
    try:
        return _document(_PlainLoader, text, source)
    except _Refused as error:
        raise SpecError(_placed(source, error.mark, str(error))) from None
    except yaml.MarkedYAMLError as error:
        words = " ".join(f"{error.context or ''} {error.problem or ''}".split())
        raise SpecError(_placed(source, error.problem_mark or error.context_mark, f"not YAML: {words}")) from None
    except (yaml.YAMLError, ValueError) as error:
        raise SpecError(_placed(source, None, f"not YAML: {' '.join(str(error).split())}")) from None
    except MISFIT_ERRORS as error:
        raise SpecError(_placed(source, None, f"not YAML: a value does not fit its tag ({error})")) from None


class _Refused(Exception):
    """A document beyond a limit; the message begins with the field, as far as there is one."""

    def __init__(self, message: str, mark: yaml.Mark | None) -> None:
        super().__init__(message)
        self.mark = mark


class _LimitedComposer(Composer):
    """Counts what it composes, and stops at a limit."""

    _depth = 0
    _aliases = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """See yaml.composer.Composer."""
        parser: Any = self
        mark: yaml.Mark = parser.peek_event().start_mark
        self._aliases += parser.check_event(yaml.AliasEvent)
        if self._aliases > ALIASES_MAX:
            raise _Refused(f"more than {ALIASES_MAX} aliases, the limit of a file", mark)
        if self._depth > DEPTH_MAX:
            raise _Refused(f"nested more than {DEPTH_MAX} deep, the limit of lists and mappings", mark)
        self._depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1


class _FasterLoader(_LimitedComposer, YamlLoader):
    """By libyaml's parser, where PyYAML has it."""


class _PlainLoader(_LimitedComposer, yaml.SafeLoader):
    """By PyYAML's own parser."""


_UNREADABLE: Final = (_Refused, yaml.YAMLError, ValueError, *MISFIT_ERRORS)
"""What a loader raises at a document that is none, or beyond a limit."""


def _document(loader_class: Any, text: str, source: str) -> YamlDocument:
    loader = loader_class(text)
    root = loader.get_single_node()
    for node in _every(root):
        _refuse_numbers(node)
        _refuse_duplicates(node, loader)
    _refuse_expansion(root)
    return YamlDocument(source, loader.construct_document(root) if root is not None else None, root)


def _placed(source: str, mark: yaml.Mark | None, message: str) -> str:
    if len(message) > MESSAGE_LENGTH_MAX:
        message = f"{message[: MESSAGE_LENGTH_MAX // 2]} … {message[-MESSAGE_LENGTH_MAX // 4 :]}"
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


def _refuse_numbers(node: yaml.Node) -> None:
    """Refuse the numbers in a node that are too long, or that versions of YAML read differently."""
    if isinstance(node, yaml.MappingNode):
        named = [(f"{key.value}: " if isinstance(key, yaml.ScalarNode) else "", value) for key, value in node.value]
        named += [("", key) for key, _ in node.value]
    elif isinstance(node, yaml.SequenceNode):
        named = [("", value) for value in node.value]
    else:
        named = [("", node)] if node.start_mark.index == 0 else []
    for name, value in named:
        if value.tag not in _NUMBERS:
            continue
        if len(value.value) > NUMBER_LENGTH_MAX:
            message = f"a number of {len(value.value)} characters, {NUMBER_LENGTH_MAX} is the limit"
            raise _Refused(name[:100] + message, value.start_mark)
        if _AMBIGUOUS_NUMBER.fullmatch(value.value):
            message = (
                f"versions of YAML read {value.value} differently; write a number in decimal digits, a text in quotes"
            )
            raise _Refused(name[:100] + message, value.start_mark)


def _refuse_duplicates(node: yaml.Node, loader: yaml.SafeLoader) -> None:
    """`1`, `+1` and `"1"` are one key, as text of a setting or of a field."""
    if not isinstance(node, yaml.MappingNode):
        return
    first: dict[str, yaml.Mark] = {}
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode):
            continue
        name = key.value if key.tag == "tag:yaml.org,2002:merge" else str(loader.construct_object(key))
        if name in first:
            line = first[name].line + 1
            raise _Refused(f"{key.value}: is given twice, first in line {line}; keep one of them", key.start_mark)
        first[name] = key.start_mark


def _refuse_expansion(root: yaml.Node | None) -> None:
    """Refuse an alias to what holds it, and aliases of aliases that come to more values than any spec has."""
    sizes: dict[int, int] = {}
    inside: set[int] = set()

    def size(node: yaml.Node) -> int:
        if isinstance(node, yaml.ScalarNode):
            return 1
        if id(node) in inside:
            raise _Refused("an alias refers to what it is part of", node.start_mark)
        if id(node) not in sizes:
            inside.add(id(node))
            pairs = isinstance(node, yaml.MappingNode)
            sizes[id(node)] = 1 + sum(size(part) for item in node.value for part in (item if pairs else (item,)))
            inside.discard(id(node))
        return sizes[id(node)]

    if root is not None and size(root) > VALUES_MAX:
        raise _Refused(
            f"more than {VALUES_MAX} values with its aliases written out, the limit of a file", root.start_mark
        )


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
