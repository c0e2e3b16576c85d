"""The mark of a clean shutdown: a broker leaves it as its last action, and its next process takes it back.

A process that stops before it hears that it is registered has written nothing, so the shutdown before it still counts,
and it leaves the mark again. Its registration may have been committed all the same; the controllers then know a broker
epoch that no process knows. So the mark also keeps as which incarnation the process has asked, and the next one asks as
the same: where the first request was committed, the controllers take the second for a retry of it and grant the same
broker epoch; where it was not, the broker epoch of the shutdown is still the one that they know. A request that arrives
late is a retry, too. No process ever acted in that broker epoch, so none of its messages can be taken for the next
one's.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass, replace
from random import Random
from typing import Final

from images.broker.ports import Files
from images.broker.runtime.files import read_whole, write_durably

CLEAN_SHUTDOWN: Final = ".kafka_cleanshutdown"
NO_BROKER_EPOCH: Final = -1


@dataclass(frozen=True, slots=True)
class ShutdownMark:
    """The last clean shutdown of a broker, and the registration that has been asked for since."""

    broker_epoch: int = NO_BROKER_EPOCH
    """Of the process that shut down; NO_BROKER_EPOCH if the last one did not do so cleanly."""
    incarnation: uuid.UUID | None = None
    """As which a process has asked to be registered since, and stopped without an answer."""
    address: str = ""
    """Where that one would have been reached, `host:port`."""

    @property
    def is_clean(self) -> bool:
        """Whether the last process to be registered shut down cleanly."""
        return self.broker_epoch != NO_BROKER_EPOCH

    def asked(self, address: str, random: Random) -> ShutdownMark:
        """The mark with the incarnation as which a process at `address` asks: a retry is the same request, so at
        another address it is a new one, and the broker may count as not cleanly shut down."""
        if self.incarnation is not None and self.address == address:
            return self
        return replace(self, incarnation=uuid.UUID(int=random.getrandbits(128), version=4), address=address)


def take_clean_shutdown(files: Files) -> ShutdownMark:
    """Read and delete the mark. A file that is missing or makes no sense is none of a clean shutdown.

    It is deleted before anything else is written, so that a later crash does not count as a clean shutdown.
    """
    content = read_whole(files, CLEAN_SHUTDOWN)
    if content is None:
        return ShutdownMark()
    files.delete(CLEAN_SHUTDOWN)
    files.sync_directory(".")
    try:
        kept = json.loads(content)
        mark = ShutdownMark(int(kept["brokerEpoch"]))
        if "incarnation" not in kept:
            return mark
        return replace(mark, incarnation=uuid.UUID(str(kept["incarnation"])), address=str(kept["address"]))
    except (ValueError, KeyError, TypeError):
        return ShutdownMark()


def leave_clean_shutdown(files: Files, mark: ShutdownMark) -> None:
    """Write the mark, as the last action of a broker."""
    content: dict[str, object] = {"version": 0, "brokerEpoch": mark.broker_epoch}
    if mark.incarnation is not None:
        content |= {"incarnation": str(mark.incarnation), "address": mark.address}
    write_durably(files, CLEAN_SHUTDOWN, json.dumps(content).encode())
