"""One whole replica for tests: the decision machine and its log on a disk in memory, told of metadata by hand."""

from __future__ import annotations

import uuid

from images.broker.log.log import Log
from images.broker.log.log_config import LogConfig
from images.broker.replication.partition import Limits, PartitionRegistration, ProposeIsr
from images.broker.replication.replica import Replica
from images.broker.rules import Rules
from images.trace import TraceEvent
from images.wire import batch as batches
from tests.broker.log.disk_model import DiskModel

LIMITS = Limits(min_insync_replicas=2, replica_lag_time_max_ms=1_000, rules=Rules())
ACTIVE = {1: 11, 2: 12, 3: 13}
PLENTY = 1 << 20


class Node:
    """One replica of `t-0` on a disk of its own."""

    def __init__(
        self, node: int, limits: Limits = LIMITS, high_watermark: int = 0, disk: DiskModel | None = None
    ) -> None:
        self.disk = disk or DiskModel()
        self.proposed: list[ProposeIsr] = []
        self.trace: list[TraceEvent] = []
        self.now_s = 0.0
        self.replica = Replica(
            "t",
            uuid.UUID(int=7),
            0,
            node,
            limits,
            PLENTY,
            Log.open(self.disk, "t-0", LogConfig(segment_bytes=400), lambda line: None),
            high_watermark,
            trace=self.trace.append,
            clock=lambda: self.now_s,
            record_ms=lambda: int(self.now_s * 1000),
            propose=lambda replica, proposal: self.proposed.append(proposal),
        )

    @property
    def values(self) -> list[bytes | None]:
        """The records of the log."""
        values: list[bytes | None] = []
        log = self.replica.log
        while len(values) < log.end:
            for _, batch in batches.iterate(log.read(len(values), PLENTY, log.end)):
                values += [record.value for record in batches.records(batch)]
        return values

    def lead(self, epoch: int, *, isr: tuple[int, ...] = (1, 2), partition_epoch: int | None = None) -> Replica:
        """Make it the leader in `epoch`."""
        partition_epoch = 10 * epoch if partition_epoch is None else partition_epoch
        self.replica.apply_registration(
            PartitionRegistration((1, 2, 3), isr, self.replica.state.node, epoch, partition_epoch)
        )
        return self.replica

    def follow(self, leader: int, epoch: int, *, isr: tuple[int, ...] = (1, 2)) -> Replica:
        """Make it follow `leader` in `epoch`."""
        self.replica.apply_registration(PartitionRegistration((1, 2, 3), isr, leader, epoch, 10 * epoch))
        return self.replica


def produced(*values: bytes, producer: int = -1, sequence: int = -1) -> bytes:
    return batches.build(
        values, timestamp_ms=5, producer_id=producer, producer_epoch=0 if producer >= 0 else -1, base_sequence=sequence
    )
