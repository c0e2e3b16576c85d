"""Atomic files: each is complete or absent, with the old content or the new, never half of it.

The new content is written to a hidden file beside the old one, which it then replaces by renaming. What could not be
written whole, on a full disk, takes no room there. This protects against the death of the process; with `durable` the
content is synced, which protects against that of the machine, too. Symbolic links are followed, and the permissions of
the old file stay. A device or a pipe is written to, and so is what `/dev/stdout` stands for.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from results.errors import StoreError


def put(target: Path, write: Callable[[Path], object], *, parents: bool = False, durable: bool = False) -> None:
    """Let `write` make the new content, then put it in place; with `parents`, also its directory. StoreError."""
    place = Path(os.path.realpath(target))
    part = place.with_name(f".{place.name}.{os.getpid()}.part")
    try:
        if is_stream(target):
            write(target)
            return
        if parents:
            place.parent.mkdir(parents=True, exist_ok=True)
        write(part)
        if place.exists():
            shutil.copymode(place, part)
        if durable:
            _sync(part)
        os.replace(part, place)
        if durable:
            _sync(place.parent)
    except OSError as error:
        raise StoreError.of("write", target, error) from error
    finally:
        with suppress(OSError):  # it is in its place
            part.unlink()


def is_stream(target: Path) -> bool:
    """Whether it is a device, a pipe, or something that this process has open, such as `/dev/stdout`: `put` writes to
    it, and replaces nothing."""
    directory = os.path.realpath(target.parent)
    is_open = directory == "/dev" or directory.startswith("/proc/")
    return target.exists() and not target.is_dir() and (is_open or not target.is_file())


def put_text(target: Path, text: str, *, parents: bool = False, durable: bool = False) -> None:
    """As `put`, in UTF-8. A character that has no encoding, such as half of a surrogate pair, becomes `?`."""
    write = partial(Path.write_text, data=text, encoding="utf-8", errors="replace")
    put(target, write, parents=parents, durable=durable)


def put_json(target: Path, value: Mapping[str, Any], *, durable: bool = False) -> None:
    """As `put_text`: one JSON object, for people too."""
    put_text(target, json.dumps(value, indent=2) + "\n", durable=durable)


def _sync(path: Path) -> None:
    """Have the disk keep a file, or the names in a directory."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_text(path: Path) -> str | None:
    """The text; None when there is no such file. StoreError when it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        reason = error if isinstance(error, OSError) else OSError(str(error))
        raise StoreError.of("read", path, reason) from error


def json_object(text: str) -> dict[str, Any]:
    """The JSON object in a text; an empty one where there is anything else."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object; an empty one when there is no such file. StoreError when it is not one."""
    text = read_text(path)
    if text is None:
        return {}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{path} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise StoreError(f"{path} does not hold a JSON object")
    return value
