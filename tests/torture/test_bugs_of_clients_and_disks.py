"""Bugs of clients, disks and coordinators that no rule switches on: each in a running cluster, found by its name.

The promises of `protocol` are broken by `tests/torture/test_foreign_bugs.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from checkers.verdict import Validity
from harness.environments.sim import SimDeployment
from harness.runner.outcome import Outcome
from harness.runner.run import run_in_simulation
from harness.spec import parse
from images.broker.apis.producer_ids import ProducerIdApis
from images.broker.controller.metadata_change import MetadataChange
from images.broker.groups.shard import Shard
from images.broker.metadata.image import BrokerImage
from images.broker.replication import replica
from images.broker.replication.replica import AppendResult
from images.wire.batch import HEADER_BYTES, assign, build
from workloads.clients import consumer, partition_sender
from workloads.clients.completed_fetch import ConsumerRecord, read
from workloads.clients.delivery import ProducerBatch
from workloads.clients.partition_sender import PartitionSender

Patch = pytest.MonkeyPatch
Bug = Callable[[Patch], None]

A_LEADER_DIES = ({"at": "2s", "for": "2s", "fault": "kill", "nodes": ["leader/0"]},)
SLOW_REPLICATION = (
    {"at": "1s", "for": "9s", "fault": "packets", "nodes": ["brokers"], "against": ["brokers"], "delay_ms": 600},
)


@dataclass(frozen=True, slots=True)
class Broken:
    """A bug, the spec under which it shows, and all the findings that must name it."""

    findings: frozenset[str]
    bug: Bug
    spec: dict[str, Any] = field(default_factory=dict)

    def run(self, *, whole: bool = False) -> Outcome:
        """A run of the spec; with `whole` under every rule."""
        values = {"seed": 1, "time_limit": "6s", "recovery_limit": "5s", "faults": "none", **self.spec}
        return run_in_simulation(parse(values | ({"without": []} if whole else {})))


def _newest_first(patch: Patch) -> None:
    """A producer sends the batches that wait in the wrong order."""

    def add(self: PartitionSender, batch: ProducerBatch) -> None:
        self._waiting.appendleft(batch)
        self._wake.set()

    patch.setattr(PartitionSender, "add", add)


def _falling_producer_epoch(patch: Patch) -> None:
    """A producer lowers its epoch every ten records."""

    def lowered(values: Any, *, base_sequence: int, **others: Any) -> bytes:
        others["producer_epoch"] = max(0, 9 - base_sequence // 10)
        return build(values, base_sequence=base_sequence, **others)

    patch.setattr(partition_sender, "build", lowered)


def _skipped_sequence(patch: Patch) -> None:
    """A producer leaves out a sequence number every ten records."""

    def skipping(values: Any, *, base_sequence: int, **others: Any) -> bytes:
        return build(values, base_sequence=base_sequence + base_sequence // 10, **others)

    patch.setattr(partition_sender, "build", skipping)


def _one_producer_id(patch: Patch) -> None:
    """Brokers give every producer the same id."""

    async def next_producer_id(self: ProducerIdApis) -> tuple[ErrorCode, int]:
        return ErrorCode.none, 7

    patch.setattr(ProducerIdApis, "_next_producer_id", next_producer_id)


def _one_block(patch: Patch) -> None:
    """The controller gives every broker the first block of producer ids."""

    def allocate(self: MetadataChange, broker: BrokerImage, count: int) -> None:
        self._trace_broker("producer_ids_allocated", broker, first=self.image.next_producer_id, count=count)

    patch.setattr(MetadataChange, "allocate_producer_ids", allocate)


def _falling_leader_epoch(patch: Patch) -> None:
    """A leader stamps every other record with the epoch before its own."""

    def stamped(batch: bytes, base: int, epoch: int) -> bytes:
        return assign(batch, base, max(0, epoch - base % 2))

    patch.setattr(replica, "assign", stamped)


def _at_the_end(patch: Patch, damage: Callable[[bytearray], bytes]) -> None:
    """A disk damages the log of one replica before it is collected."""
    held_files = SimDeployment.held_files

    def damaging(self: SimDeployment) -> Mapping[str, bytes]:
        files = held_files(self)
        log = next(path for path in sorted(files) if fnmatch(path, "b1/data/faultline-*/*.log") and files[path])
        return {**files, log: damage(bytearray(files[log]))}

    patch.setattr(SimDeployment, "held_files", damaging)


def _torn(patch: Patch) -> None:
    _at_the_end(patch, lambda data: bytes(data[:-5]))


def _corrupt(patch: Patch) -> None:
    def flipped(data: bytearray) -> bytes:
        data[HEADER_BYTES] ^= 1
        return bytes(data)

    _at_the_end(patch, flipped)


def _positions_off_by(by: int) -> Bug:
    """A consumer goes on too far on, or too far back, after what it has read."""

    def bug(patch: Patch) -> None:
        def misread(data: bytes, position: int) -> tuple[tuple[ConsumerRecord, ...], int]:
            records, end = read(data, position)
            return records, end + by if records else end

        patch.setattr(consumer, "read", misread)

    return bug


def _answers_at_once(patch: Patch) -> None:
    """A coordinator waits for no commit."""

    async def at_once(self: Shard, append_result: AppendResult, errors: Any = None) -> ErrorCode:
        self._offsets.commit(None)
        return append_result.error

    patch.setattr(Shard, "_wait_until_committed", at_once)


BROKEN = (
    Broken(frozenset({"producer-order"}), _newest_first, {"rate": 100, "partitions": 1, "faults": list(A_LEADER_DIES)}),
    Broken(
        frozenset({"producer-epoch-fell"}),
        _falling_producer_epoch,
        {"without": ["producer_sequence_checked"], "partitions": 1},
    ),
    Broken(frozenset({"sequence-gap"}), _skipped_sequence, {"without": ["producer_sequence_checked"], "partitions": 1}),
    Broken(
        frozenset({"producer-id-twice", "producer-id-assigned-twice", "producer-id-unallocated"}),
        _one_producer_id,
        {"without": ["producer_sequence_checked", "idempotent_dedupe"], "partitions": 1},
    ),
    Broken(frozenset({"producer-ids-allocated-twice"}), _one_block, {"producers": 9}),
    Broken(frozenset({"leader-epoch-fell"}), _falling_leader_epoch, {"partitions": 1, "faults": list(A_LEADER_DIES)}),
    Broken(frozenset({"torn-log"}), _torn),
    Broken(frozenset({"corrupt-log"}), _corrupt),
    Broken(frozenset({"position-skipped"}), _positions_off_by(1)),
    Broken(frozenset({"position-went-back"}), _positions_off_by(-1)),
    Broken(frozenset({"position-skipped", "records-skipped"}), _positions_off_by(1), {"workload": "groups"}),
    Broken(
        frozenset({"commit-uncommitted", "assignment-uncommitted", "offset-uncommitted"}),
        _answers_at_once,
        {
            "workload": "groups",
            "without": ["offset_fetch_confirmed_by_isr"],
            "time_limit": "10s",
            "clients": {"consumer_life": "6s", "consumer_rest": "0.2s"},
            "faults": list(SLOW_REPLICATION),
        },
    ),
)


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: " ".join(sorted(broken.findings)))
def test_a_bug_in_a_running_cluster_is_found_by_its_name(broken: Broken, monkeypatch: pytest.MonkeyPatch) -> None:
    assert broken.run(whole=True).validity is not Validity.INVALID
    broken.bug(monkeypatch)
    kinds = {finding.kind for verdict in broken.run().verdicts for finding in verdict.findings}
    assert kinds >= broken.findings
