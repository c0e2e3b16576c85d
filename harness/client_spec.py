"""The field `clients` of a spec: all that clients do.

    clients:
      library: native             # client library: native, librdkafka or java
      processes: 1                # processes over which the clients of the library are spread; none of the native one
      producers: 3                # clients that append; this and the next four may stand in the spec itself, too
      consumers: 2                # clients that read
      end_offset_readers: 1       # clients that ask for the latest offset (ListOffsets)
      rate: 20                    # appends per second, all producers together
      acks: all                   # all, 1 or 0
      batch: 1                    # most records of a batch
      record_bytes: 1             # least size of a record's value: the number in it is filled up with zeros in front
      burst: 1                    # appends that a producer begins at once on one partition, at most `pipeline`;
                                  # `rate` stays the same
      linger: 0s                  # how long a batch waits for more records
      compression: none           # compression of batches: none, gzip, snappy, lz4 or zstd
      in_flight: 5                # batches in flight per partition and producer
      pipeline: 5                 # appends that a producer has open at once on one partition
      delivery_timeout: 8s        # time after which a producer gives up an append, whose outcome is then unknown
      request_timeout: 1500ms     # time after which a client gives up a request, and its connection with it
      validate_positions: true    # false: the same as without: [consumer.validate_position]
      auto_offset_reset: earliest # where a consumer goes on that is out of range: earliest, latest or none
      isolation: read_uncommitted # isolation level of consumers: read_uncommitted or read_committed
      tell_epochs: false          # true: consumers tell with each fetch the leader epoch of the record before it
      fetch_bytes: 1048576        # most bytes of a fetch's answer
      poll_pause: 100ms           # mean rest of a consumer after a poll that returned records
      producer_life: 0s           # mean life of a producer, after which a new one follows; 0: the whole run
      consumer_life: 0s           # mean life of a consumer, likewise; 0: the whole run, with groups 15 s
      consumer_rest: 2s           # longest time between the end of a consumer and the next one
      session_timeout: 3s         # session timeout of the members of a group
      static_members: 0           # share of the members of a group that are static, rounded up to whole members
      late_commits: 0             # share of a member's rebalances in which it commits late,
                                  # see workloads/groups.py
      awkward_members: 0          # share of the lives of a group's members that are awkward, see workloads/groups.py
      groups_begin: 0             # share of the run that is over when the first consumer of a group begins
      time_readers: 0             # clients that ask for the first offset that is not older than a time
      clock_error: 0s             # how far the clock by which a producer stamps its records is wrong at most
      first_sequence: 0           # sequence number with which a producer begins on each partition
      standalone_consumers: 0     # consumers beside a group, each of which commits in a group of its own,
                                  # and deletes it now and then
      idle_partitions: 0          # number of partitions that no producer writes to: the last ones
      written_share: 1            # share of the run in which a partition is written to; the first one always is
      operations:                 # script of one further client, in this order (workloads/operations.py)
        - produce 10 to 0
        - {do: commit 0, when: {elected: b2}, id: committed}

An operation begins when the one before it has ended and its own moment is there, which has the fields `at`, `when`,
`after`, `then_after` and `timeout` of a fault (`nemesis.schedule`). With `producers: 0` nothing but the script is
appended.

`validate_positions: false` switches the rule `consumer.validate_position` off: it is entered in the spec's `without`,
which alone decides; `true` beside that rule in `without` is refused.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

from images.wire.batch import SEQUENCE_MODULUS, Compression
from nemesis.fields import FieldError, read
from nemesis.ports import SIDE_TOPICS
from nemesis.schedule import ScheduledStep, check_condition, parse_moment
from workloads.clients import consumer_rules
from workloads.lifetimes import REST_S_MIN
from workloads.operations import (
    ClientOperation,
    OperationError,
    TopicOperation,
    operation_text,
    parse_operation,
)

SHORTHANDS: Final = ("producers", "consumers", "end_offset_readers", "rate", "acks")
"""Fields of `clients` that may stand in the spec itself."""
NATIVE: Final = "native"
LIBRARIES: Final = (NATIVE, "librdkafka", "java")
RESETS: Final = ("earliest", "latest", "none")
ISOLATIONS: Final = ("read_uncommitted", "read_committed")
LIFE_S_MIN: Final = 0.1
COMPRESSIONS: Final = tuple(compression.name.lower() for compression in Compression)
RANGES: Final[Mapping[str, tuple[int, int]]] = {
    "processes": (1, 64),
    "batch": (1, 10_000),
    "record_bytes": (1, 4_000),
    "burst": (1, 10_000),
    "in_flight": (1, 5),
    "pipeline": (1, 1_000),
    "static_members": (0, 1),
    "late_commits": (0, 1),
    "awkward_members": (0, 1),
    "groups_begin": (0, 1),
    "time_readers": (0, 100),
    "first_sequence": (0, SEQUENCE_MODULUS - 1),
    "standalone_consumers": (0, 100),
    "idle_partitions": (0, 10_000),
    "written_share": (0, 1),
    "fetch_bytes": (1, 1 << 30),
}
"""The least and the greatest value of a number."""


@dataclass(frozen=True, slots=True)
class ScriptedOperation(ScheduledStep):
    """An operation with its moment."""

    operation: ClientOperation

    def to_mapping(self) -> dict[str, Any]:
        """As an element of the list."""
        values = {"do": operation_text(self.operation), **self.moment()}
        if not self.at_s:
            del values["at"]
        return values


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSpec:
    """See the module's docstring; without the shorthands. Raises ValueError naming the field that is wrong."""

    library: str = NATIVE
    processes: int = 1
    batch: int = 1
    record_bytes: int = 1
    burst: int = 1
    linger_s: float = 0.0
    compression: str = "none"
    in_flight: int = 5
    pipeline: int = 5
    delivery_timeout_s: float = 8.0
    request_timeout_s: float = 1.5
    auto_offset_reset: str = "earliest"
    isolation: str = "read_uncommitted"
    tell_epochs: bool = False
    fetch_bytes: int = 1 << 20
    poll_pause_s: float = 0.1
    producer_life_s: float = 0.0
    consumer_life_s: float = 0.0
    consumer_rest_s: float = 2.0
    session_timeout_s: float = 3.0
    static_members: float = 0.0
    late_commits: float = 0.0
    awkward_members: float = 0.0
    groups_begin: float = 0.0
    time_readers: int = 0
    clock_error_s: float = 0.0
    first_sequence: int = 0
    standalone_consumers: int = 0
    idle_partitions: int = 0
    written_share: float = 1.0

    def __post_init__(self) -> None:
        for name, values in (
            ("library", LIBRARIES),
            ("compression", COMPRESSIONS),
            ("auto_offset_reset", RESETS),
            ("isolation", ISOLATIONS),
        ):
            if getattr(self, name) not in values:
                raise FieldError(f"clients.{name}: {getattr(self, name)!r} is not one of {', '.join(values)}")
        for name, (least, most) in RANGES.items():
            if not least <= getattr(self, name) <= most:
                raise FieldError(f"clients.{name}: {getattr(self, name)} is not between {least} and {most}")
        for name in ("delivery_timeout_s", "request_timeout_s", "session_timeout_s"):
            if not 0 < getattr(self, name) <= 3_600:
                raise FieldError(
                    f"clients.{name.removesuffix('_s')}: {getattr(self, name):g} s is not between 0 and an hour"
                )
        if not 0 <= self.clock_error_s <= 3_600:
            raise FieldError(f"clients.clock_error: {self.clock_error_s:g} s is not between 0 and an hour")
        for name in ("producer_life_s", "consumer_life_s"):
            if 0 < getattr(self, name) < LIFE_S_MIN:
                life = f"clients.{name.removesuffix('_s')}: {getattr(self, name):g} s"
                raise FieldError(f"{life} is neither 0 nor at least {LIFE_S_MIN:g} s")
        if self.consumer_rest_s < REST_S_MIN:
            raise FieldError(f"clients.consumer_rest: {self.consumer_rest_s:g} s is less than {REST_S_MIN:g} s")
        if self.library != NATIVE and self.delivery_timeout_s < self.linger_s + self.request_timeout_s:
            raise FieldError(
                f"clients.delivery_timeout: {self.delivery_timeout_s:g} s is less than linger and request_timeout "
                f"together, which clients of {self.library} refuse"
            )

    def to_mapping(self) -> dict[str, Any]:
        """As YAML values, all of them."""
        return {item.name.removesuffix("_s"): getattr(self, item.name) for item in fields(self)}


def parse_clients(value: object) -> tuple[dict[str, Any], ClientSpec, object, object]:
    """The shorthands that `clients` gives, the rest of it, and as YAML values its script and its `validate_positions`
    (None: not given). Raises FieldError."""
    if not isinstance(value, Mapping):
        raise FieldError(f"clients: {value!r} is not a mapping of names to values")
    rest = dict(value)
    shorthands = {name: rest.pop(name) for name in SHORTHANDS if name in rest}
    operations, validates = rest.pop("operations", []), rest.pop("validate_positions", None)
    return shorthands, read(ClientSpec, rest, "clients"), operations, validates


def with_validation(without: tuple[str, ...], validates: object) -> tuple[str, ...]:
    """The rules switched off, with the one that `clients.validate_positions` stands for. Raises FieldError."""
    rule = consumer_rules.VALIDATE_POSITION
    if not isinstance(validates, bool | None):
        raise FieldError(f"clients.validate_positions: {validates!r} is not true or false")
    if validates and rule in without:
        raise FieldError(f"clients.validate_positions: true contradicts without: {rule}; keep one of them")
    return (*without, rule) if validates is False and rule not in without else without


def parse_operations(value: object, partitions: int) -> tuple[ScriptedOperation, ...]:
    """The script that a list stands for. Raises FieldError."""
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise FieldError(f"clients.operations: {value!r} is not a list of operations")
    return tuple(_parse(item, f"clients.operations[{number}]", partitions) for number, item in enumerate(value))


def _parse(item: object, where: str, partitions: int) -> ScriptedOperation:
    values = dict(item) if isinstance(item, Mapping) else {"do": item}
    if "do" not in values:
        raise FieldError(f"{where}.do: missing; an operation such as produce 10 to 0")
    try:
        operation = parse_operation(values.pop("do"), partitions)
    except OperationError as error:
        raise FieldError(f"{where}: {error}") from None
    moment = parse_moment(values, where)
    if values:
        raise FieldError(
            f"{where}.{next(iter(values))}: unknown field; one of: do, id, at, when, after, then_after, timeout"
        )
    return ScriptedOperation(operation=operation, **moment)


def check_operations(
    operations: Sequence[ScriptedOperation], nodes: Collection[str], steps: Collection[str], topic: str, partitions: int
) -> None:
    """Raise FieldError when a condition of an operation names a node, a step or a partition that there is not, or when
    an operation would create or delete `topic`, that of the run."""
    for number, scripted in enumerate(operations):
        where = f"clients.operations[{number}]"
        if isinstance(scripted.operation, TopicOperation) and scripted.operation.topic == topic:
            raise FieldError(f"{where}: {topic} is the topic of the run, which exists throughout; name another one")
        if isinstance(scripted.operation, TopicOperation) and scripted.operation.topic in SIDE_TOPICS:
            name = scripted.operation.topic
            raise FieldError(f"{where}: {name} is a topic that faults create and delete; name another one")
        if scripted.when is not None:
            check_condition(scripted.when, f"{where}.when", nodes, steps, partitions)
