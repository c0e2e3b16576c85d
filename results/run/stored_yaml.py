"""YAML that a run stores: by libyaml where PyYAML has it, in a fraction of the time; read without lines for errors."""

from __future__ import annotations

from typing import Any

import yaml

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
_WIDTH = 120


def dump(values: Any) -> str:
    """The document that has these values, in their order."""
    text: str = yaml.dump(values, Dumper=_DUMPER, sort_keys=False, allow_unicode=True, width=_WIDTH)
    return text


def parse(text: str) -> Any:
    """The values of a document. Raises yaml.YAMLError."""
    return yaml.load(text, Loader=_LOADER)
