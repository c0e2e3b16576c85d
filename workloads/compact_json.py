"""Values as JSON without spaces, for files of one object a line.

`JSONEncoder.encode` makes an encoder for every value it is given, which costs more than encoding a short line; this one
is made once.
"""

from __future__ import annotations

from json import JSONEncoder
from json.encoder import c_make_encoder  # type: ignore[attr-defined]
from json.encoder import encode_basestring_ascii as quoted
from typing import Any

__all__ = ["compact", "quoted"]

_chunks = c_make_encoder(None, JSONEncoder().default, quoted, None, ":", ",", False, False, True)


def compact(value: Any) -> str:
    """`value` as JSON. Raises TypeError for what JSON has no word for; a value that holds itself is not looked for."""
    return "".join(_chunks(value, 0))
