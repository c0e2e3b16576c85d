"""The loader of every YAML document: libyaml's parser where PyYAML has it, which takes a seventh of the time, else
PyYAML's own. `stored_yaml` reads with it what runs store; the harness reads what users write, and sets limits to it.
"""

from __future__ import annotations

from typing import Any, Final

import yaml
from yaml.composer import Composer
from yaml.constructor import SafeConstructor
from yaml.resolver import Resolver

YamlLoader: Any
try:
    from yaml.cyaml import CParser  # type: ignore[attr-defined]
except ImportError:  # PyYAML was built without libyaml
    YamlLoader = yaml.SafeLoader
else:

    class _LibyamlLoader(Composer, CParser, SafeConstructor, Resolver):
        """PyYAML's composer stands before libyaml's own, which goes as deep as a document does and ends the process."""

        def __init__(self, text: str) -> None:
            CParser.__init__(self, text)
            for part in (Composer, SafeConstructor, Resolver):
                part.__init__(self)

    YamlLoader = _LibyamlLoader

MISFIT_ERRORS: Final = (AttributeError, LookupError, TypeError, ArithmeticError)
"""What a loader raises at a tag whose value does not fit it, beside ValueError."""
