"""YAML that a run has stored: written by Faultline, so read by libyaml where it is there, without lines for errors."""

from __future__ import annotations

from typing import Any

import yaml

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def parse(text: str) -> Any:
    """The values of a document. Raises yaml.YAMLError."""
    return yaml.load(text, Loader=_LOADER)
