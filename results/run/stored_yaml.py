"""YAML that a run stores: by libyaml's parser where PyYAML has it, in a fraction of the time; read without lines for
errors. Whatever a damaged file holds, reading it raises one error.
"""

from __future__ import annotations

from typing import Any

import yaml
from yaml.composer import Composer
from yaml.constructor import SafeConstructor
from yaml.resolver import Resolver

_LOADER: Any
try:
    from yaml.cyaml import CParser  # type: ignore[attr-defined]
except ImportError:  # PyYAML was built without libyaml
    _LOADER = yaml.SafeLoader
else:

    class _StoredLoader(Composer, CParser, SafeConstructor, Resolver):
        """PyYAML's composer stands before libyaml's own, which goes as deep as a document does and ends the process."""

        def __init__(self, text: str) -> None:
            CParser.__init__(self, text)
            for part in (Composer, SafeConstructor, Resolver):
                part.__init__(self)

    _LOADER = _StoredLoader

_DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
_WIDTH = 120


def dump(values: Any) -> str:
    """The document that has these values, in their order."""
    text: str = yaml.dump(values, Dumper=_DUMPER, sort_keys=False, allow_unicode=True, width=_WIDTH)
    return text


def parse(text: str) -> Any:
    """The values of a document. Raises yaml.YAMLError."""
    try:
        return yaml.load(text, Loader=_LOADER)
    except (AttributeError, ArithmeticError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise yaml.YAMLError(f"{type(error).__name__}: {error}") from None  # of a value that does not fit its tag
