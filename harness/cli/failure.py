"""The one line of an error that no command has handled.

Errors of files and of the machine are foreseen: their line says it all. Any other exception is an error of Faultline:
its line names a file with the traceback, the command and the versions, for a bug report.
"""

from __future__ import annotations

import errno
import platform
import shlex
import traceback
from collections.abc import Sequence
from tempfile import NamedTemporaryFile
from typing import Final

from results.version import version

_LINE_LENGTH_MAX: Final = 400
_OF_THE_DISK: Final = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


def line_of(error: Exception, arguments: Sequence[str]) -> str:
    """The line for `error`, which ended the command with these arguments."""
    from harness.errors import EnvironmentUnavailable
    from harness.yaml_document import SpecError
    from results.errors import StoreError

    if isinstance(error, StoreError | SpecError | EnvironmentUnavailable):
        return f"faultline: {_one_line(error)}"
    if isinstance(error, OSError) and error.strerror and isinstance(error.filename, str | bytes):
        name = error.filename if isinstance(error.filename, str) else repr(error.filename)
        return f"faultline: {name}: {error.strerror}"
    if isinstance(error, OSError) and error.errno in _OF_THE_DISK:
        return f"faultline: {error.strerror}"
    kind = f"{type(error).__name__}: {_one_line(error)}".rstrip(": ")
    return f"faultline: an error of Faultline itself, {kind} ({_saved(error, arguments)})"


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= _LINE_LENGTH_MAX else f"{text[:_LINE_LENGTH_MAX]} …"


def _saved(error: Exception, arguments: Sequence[str]) -> str:
    """Save the details in a new file, and say where it is."""
    details = [
        f"faultline {version()}, Python {platform.python_version()}, {platform.platform()}\n",
        f"faultline {shlex.join(arguments)}\n\n",
        *traceback.format_exception(error),
    ]
    try:
        with NamedTemporaryFile(
            "w", prefix="faultline-error-", suffix=".txt", delete=False, encoding="utf-8", errors="backslashreplace"
        ) as file:
            file.writelines(details)
        return f"details: {file.name}"
    except OSError as reason:
        return f"its details cannot be saved: {reason.strerror or reason}"
