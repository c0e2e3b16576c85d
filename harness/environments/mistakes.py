"""Mistakes: patches of the broker, by name, for runs and explorations of brokers that are wrong as no rule is.

A mistake (`mistakes.yaml`) replaces one text in one function. The patched source is compiled under the function's own
name, and the function runs that code while the mistake is applied, wherever else it was imported to. So a spec names
what is wrong and the patch stays small data; only the broker in this process can be patched. Of several mistakes in one
function each is a patch of what the ones before have made of it.
"""

from __future__ import annotations

import inspect
import linecache
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from types import CodeType, FunctionType
from typing import Final

_LIBRARY: Final = Path(__file__).with_name("mistakes.yaml")


class MistakeError(ValueError):
    """A mistake that cannot be applied; the message is one line."""


@dataclass(frozen=True, slots=True)
class Mistake:
    """A patch of one function."""

    name: str
    says: str
    """One sentence: how the broker is wrong."""
    target: str
    """`module:function` or `module:Class.method`."""
    replace: str
    by: str

    def function(self) -> FunctionType:
        """The function that is patched. Raises MistakeError."""
        module, _, path = self.target.partition(":")
        value: object = import_module(module)
        for name in path.split("."):
            value = getattr(value, name, None)
        if not isinstance(value, FunctionType):
            raise MistakeError(f"{self.name}: {self.target} is not a function")
        return value

    def code(self) -> CodeType:
        """The code of the patched function, as it is now. Raises MistakeError when the text is not in it exactly
        once."""
        function = self.function()
        source = textwrap.dedent(inspect.getsource(function))
        if source.count(self.replace) != 1:
            raise MistakeError(
                f"{self.name}: {self.target} contains {self.replace!r} {source.count(self.replace)} times, not once"
            )
        source, place = source.replace(self.replace, self.by), f"<{self.name}>"
        patched = compile(source, place, "exec", dont_inherit=True)
        # Where `inspect` finds the source of the patched function, for the next mistake in it, and tracebacks do.
        linecache.cache[place] = len(source), None, source.splitlines(keepends=True), place
        (code,) = (
            each for each in patched.co_consts if isinstance(each, CodeType) and each.co_name == function.__name__
        )
        if code.co_freevars != function.__code__.co_freevars:
            raise MistakeError(f"{self.name}: {self.target} needs variables of the function around it")
        return code


@cache
def mistakes() -> Mapping[str, Mistake]:
    """All mistakes by name, in the order of the file."""
    import yaml

    values = yaml.safe_load(_LIBRARY.read_text(encoding="utf-8"))
    return {name: Mistake(name, each["says"], each["in"], each["replace"], each["by"]) for name, each in values.items()}


@contextmanager
def applied(names: Iterable[str]) -> Iterator[None]:
    """Run with the mistakes of these names; afterwards every function is as before. Raises MistakeError."""
    with ExitStack() as restored:
        for name in names:
            mistake = mistakes()[name]
            function, code = mistake.function(), mistake.code()
            restored.callback(setattr, function, "__code__", function.__code__)
            function.__code__ = code
        yield
