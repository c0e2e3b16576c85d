"""The checkpoint of a search: every level that is whole, from which a search that was killed goes on.

    search.json          which search it is, how far it is, and the digest of every other file
    level-00007          the states of one level: of each its fingerprint and that of the state before it
    states-00007         the values of the last level's states, one pickle for each shard

Files are written whole and synced, `search.json` after the others, so that the folder is always as after a whole level.
How many shards the search has may change: each takes the states that it owns.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final, NamedTuple

from harness.search.exclusive import kept_for_this_process
from harness.search.state_space.canonical import Fingerprint
from harness.search.state_space.interning import DIGEST_BYTES
from harness.search.state_space.shard import FirstReach, SavedStates
from results.atomic_files import put, put_json, read_json
from results.errors import StoreError

STATE: Final = "search.json"
_OUTDATED: Final = ("states-[0-9]*[0-9]", ".states-[0-9]*.part", ".level-[0-9]*.part")
"""Files that go once a level is kept: the states of levels before, and what a process has left half written."""
_NO_PARENT: Final = bytes(DIGEST_BYTES)


class LevelFigures(NamedTuple):
    """What a search has done before a level."""

    states: int = 0
    """Without those of the level."""
    steps: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0


class SavedLevel(NamedTuple):
    """A level from which a search goes on."""

    depth: int
    figures: LevelFigures
    parents: dict[Fingerprint, Fingerprint | None]
    """Of the states of all levels before."""
    reached: dict[str, FirstReach]
    """The situations that they are in."""
    states: Sequence[bytes]
    """Those of the level, packed by shards."""


class SearchCheckpoint:
    """See the module's docstring."""

    def __init__(self, path: Path, of: str) -> None:
        """`of` says all that the states depend on: the scope and the sources."""
        self._path = path
        self._of = of
        self._digests: list[str] = []
        """Of the levels."""

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Make the folder, and keep it for this process. StoreError when another exploration has it."""
        taken = "another exploration is going on with this checkpoint"
        with kept_for_this_process(self._path, self._path / ".lock", self._path, taken):
            yield

    def load(self) -> SavedLevel | None:
        """The last level; None where there is none yet. StoreError where the folder is damaged or of another search."""
        state = read_json(self._path / STATE)
        if not state:
            return None
        try:
            if state["of"] != self._of:
                raise StoreError(
                    f"{self._path}: is the checkpoint of another scope or of other sources of Faultline; "
                    "choose another folder"
                )
            figures, digests = LevelFigures(**state["figures"]), list(state["levels"])
            reached = {
                code: FirstReach(depth, bytes.fromhex(fingerprint))
                for code, (depth, fingerprint) in state["reached"].items()
            }
            parents: dict[Fingerprint, Fingerprint | None] = {}
            for depth, digest in enumerate(digests[:-1]):
                parents.update(_parents(self._read(_level(depth), digest)))
            states: list[bytes] = pickle.loads(self._read(_states(len(digests) - 1), state["states"]))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise StoreError(f"{self._path / STATE}: is not the checkpoint of an exploration: {error}") from None
        self._digests = digests
        return SavedLevel(len(digests) - 1, figures, parents, reached, states)

    def save(self, figures: LevelFigures, saved: Sequence[SavedStates], reached: dict[str, FirstReach]) -> None:
        """Keep the next level, of which each shard has `saved` its states; `reached` is of all levels before it.
        Raises StoreError."""
        depth = len(self._digests)
        level = b"".join(fingerprint + (parent or _NO_PARENT) for it in saved for fingerprint, parent in it.parents)
        packed = pickle.dumps([it.packed for it in saved], pickle.HIGHEST_PROTOCOL)
        self._digests.append(self._write(_level(depth), level))
        values: dict[str, Any] = {
            "of": self._of,
            "figures": figures._asdict(),
            "reached": {code: (reach.depth, reach.fingerprint.hex()) for code, reach in reached.items()},
            "levels": self._digests,
            "states": self._write(_states(depth), packed),
        }
        put_json(self._path / STATE, values, durable=True)
        for pattern in _OUTDATED:
            for file in self._path.glob(pattern):
                if file.name != _states(depth):
                    file.unlink(missing_ok=True)

    def _write(self, name: str, contents: bytes) -> str:
        put(self._path / name, lambda part: part.write_bytes(contents), durable=True)
        return _digest(contents)

    def _read(self, name: str, digest: str) -> bytes:
        path = self._path / name
        try:
            contents = path.read_bytes()
        except OSError as error:
            raise StoreError.of("read", path, error) from error
        if _digest(contents) != digest:
            raise StoreError(f"{path}: is damaged; begin anew in another folder")
        return contents


def _parents(level: bytes) -> Iterator[tuple[Fingerprint, Fingerprint | None]]:
    for place in range(0, len(level), 2 * DIGEST_BYTES):
        fingerprint = level[place : place + DIGEST_BYTES]
        parent = level[place + DIGEST_BYTES : place + 2 * DIGEST_BYTES]
        yield fingerprint, None if parent == _NO_PARENT else parent


def _level(depth: int) -> str:
    return f"level-{depth:05}"


def _states(depth: int) -> str:
    return f"states-{depth:05}"


def _digest(contents: bytes) -> str:
    return blake2b(contents, digest_size=DIGEST_BYTES).hexdigest()
