"""Scripted operations: what one client does step by step, beside the clients that a workload drives at random.

    produce 10 to 0                 append ten records to partition 0, and wait until all have ended
    produce 10 to 0 by second       the same by another producer, with sequence numbers of its own
    poll 0                          read partition 0 from its position until it returns records
    poll 0 until 10                 read partition 0 from its position until that is 10 or more
    seek 0 to 3                     move the position; `seek 0 to 3 in epoch 2` has it validated
    seek 0 back 5s                  move the position to the first record of the last five seconds
    commit 0                        commit the position
    resume 0                        move the position to the committed offset
    create topic spare              create a topic beside that of the run; `with 3 partitions`, or with one
    delete topic spare              delete such a topic

Each is a frozen value; `parse_operation` reads one. The scripted client is one process of the history: it has an
idempotent producer, a consumer with its positions, and a group of its own for commits. Each producer with a name is a
process of its own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Final


class OperationError(ValueError):
    """A text that is no operation; the message is one line for the user."""


class OperationRefused(Exception):
    """The cluster refuses an operation; the message is one line for the user."""


@dataclass(frozen=True, slots=True)
class ClientOperation:
    """One step of the scripted client."""

    of_group: ClassVar[bool] = False
    """Whether it writes or reads the committed offset of the client's group."""


@dataclass(frozen=True, slots=True)
class PartitionOperation(ClientOperation):
    """A step on one partition of the topic of the run."""

    partition: int


@dataclass(frozen=True, slots=True)
class TopicOperation(ClientOperation):
    """A step on a topic beside that of the run."""

    topic: str


@dataclass(frozen=True, slots=True)
class ProduceRecords(PartitionOperation):
    """Append records, one after the other, and wait until all have ended."""

    count: int
    producer: str | None = None
    """The name of the producer; None stands for the client's own."""


@dataclass(frozen=True, slots=True)
class PollRecords(PartitionOperation):
    """Read until the position is `until`, or until records came."""

    until: int | None = None


@dataclass(frozen=True, slots=True)
class SeekPosition(PartitionOperation):
    """Move the position."""

    offset: int
    epoch: int | None = None


@dataclass(frozen=True, slots=True)
class SeekBack(PartitionOperation):
    """Move the position to the first record with a timestamp of the last `age`, to the end of the log without one."""

    age: str
    """In milliseconds or in seconds: `500ms`, `5s`."""

    @property
    def age_ms(self) -> int:
        number = int(self.age.rstrip("ms"))
        return number if self.age.endswith("ms") else 1_000 * number


@dataclass(frozen=True, slots=True)
class CommitPosition(PartitionOperation):
    """Commit the position."""

    of_group: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class ResumeCommitted(PartitionOperation):
    """Move the position to the committed offset and its epoch; to 0 when nothing was committed."""

    of_group: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class CreateTopic(TopicOperation):
    """Create a topic."""

    partitions: int | None = None

    @property
    def partitions_or_one(self) -> int:
        return 1 if self.partitions is None else self.partitions


@dataclass(frozen=True, slots=True)
class DeleteTopic(TopicOperation):
    """Delete a topic."""


FORMS: Final[Mapping[str, type[ClientOperation]]] = {
    r"produce (?P<count>\d+) to (?P<partition>\d+)(?: by (?P<producer>[a-z][a-z0-9-]*))?": ProduceRecords,
    r"poll (?P<partition>\d+)(?: until (?P<until>\d+))?": PollRecords,
    r"seek (?P<partition>\d+) to (?P<offset>\d+)(?: in epoch (?P<epoch>\d+))?": SeekPosition,
    r"seek (?P<partition>\d+) back (?P<age>\d+m?s)": SeekBack,
    r"commit (?P<partition>\d+)": CommitPosition,
    r"resume (?P<partition>\d+)": ResumeCommitted,
    r"create topic (?P<topic>[a-z][a-z0-9-]*)(?: with (?P<partitions>\d+) partitions)?": CreateTopic,
    r"delete topic (?P<topic>[a-z][a-z0-9-]*)": DeleteTopic,
}
_DIGITS_MAX: Final = 9
_PARTITIONS_MAX: Final = 100


def parse_operation(text: object, partitions: int) -> ClientOperation:
    """The operation that a text stands for. Raises OperationError."""
    for form, kind in FORMS.items():
        match = re.fullmatch(form, " ".join(text.split())) if isinstance(text, str) else None
        if match is None:
            continue
        words = {name: word for name, word in match.groupdict().items() if word is not None}
        if any(digits.isdigit() and len(digits) > _DIGITS_MAX for digits in (w.rstrip("ms") for w in words.values())):
            raise OperationError(f"{text!r} has a number of more than {_DIGITS_MAX} digits")
        values: dict[str, Any] = {name: int(word) if word.isdigit() else word for name, word in words.items()}
        operation = kind(**values)
        if isinstance(operation, PartitionOperation) and operation.partition >= partitions:
            raise OperationError(f"{text!r}: there is no partition {operation.partition}, only 0 to {partitions - 1}")
        if isinstance(operation, CreateTopic) and not 1 <= operation.partitions_or_one <= _PARTITIONS_MAX:
            raise OperationError(f"{text!r}: {operation.partitions} is not between 1 and {_PARTITIONS_MAX} partitions")
        return operation
    raise OperationError(
        f"{text!r} is not an operation such as produce 10 to 0, poll 0, seek 0 to 3, seek 0 back 5s, commit 0, "
        "resume 0, create topic spare, delete topic spare"
    )


def operation_text(operation: ClientOperation) -> str:
    """The text that `parse_operation` reads as this operation."""
    form = next(form for form, kind in FORMS.items() if kind is type(operation))
    values = {item.name: getattr(operation, item.name) for item in fields(operation)}
    optional = re.sub(
        r"\(\?:([^()]*)\(\?P<(\w+)>[^()]*\)([^()]*)\)\?",
        lambda part: "" if values[part[2]] is None else f"{part[1]}{values[part[2]]}{part[3]}",
        form,
    )
    return re.sub(r"\(\?P<(\w+)>[^()]*\)", lambda part: str(values[part[1]]), optional)
