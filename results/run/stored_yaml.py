"""YAML that a run stores, read without lines for errors. Whatever a damaged file holds, reading it raises one error."""

from __future__ import annotations

from typing import Any

import yaml

from results.run.yaml_loader import MISFIT_ERRORS, YamlLoader

_DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
_WIDTH = 120


def dump(values: Any) -> str:
    """The document that has these values, in their order."""
    text: str = yaml.dump(values, Dumper=_DUMPER, sort_keys=False, allow_unicode=True, width=_WIDTH)
    return text


def parse(text: str) -> Any:
    """The values of a document. Raises yaml.YAMLError."""
    try:
        return yaml.load(text, Loader=YamlLoader)
    except (*MISFIT_ERRORS, RecursionError, ValueError) as error:
        raise yaml.YAMLError(f"{type(error).__name__}: {error}") from None
