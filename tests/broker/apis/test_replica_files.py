"""The files that a broker keeps beside its logs: high watermarks, and the topics of its directories."""

from __future__ import annotations

import uuid

import pytest

from images.broker.replication.replica_manager import HIGH_WATERMARKS, PARTITION_METADATA
from images.broker.runtime.files import read_whole
from tests.broker.apis.data_path import Broker, produced, run


def test_high_watermarks_survive_a_restart_and_a_damaged_checkpoint_costs_only_them() -> None:
    async def scenario() -> None:
        broker = Broker()
        await broker.produce((0, produced(b"a")))
        broker.replica_manager.checkpoint_high_watermarks()
        for content, expected in ((None, 1), (b"0\n1\nt 0 \xc2\xb2\n", 0), (b"0\n9\nt 0 1\n", 0), (b"\xff", 0)):
            if content is not None:
                broker.disk.delete(HIGH_WATERMARKS)
                broker.disk.open(HIGH_WATERMARKS).append(content)
            broker.restart()
            broker.elect(2, 5)
            assert broker.partition().state.high_watermark == expected
            assert broker.partition().log.end == 1

    run(scenario)


def test_a_broker_that_leaves_before_it_opened_a_replica_leaves_the_high_watermarks_as_they_were() -> None:
    async def scenario() -> None:
        broker = Broker()
        await broker.produce((0, produced(b"a")))
        assert broker.replica_manager.close() is None
        before = read_whole(broker.disk, HIGH_WATERMARKS)
        broker.restart()
        assert broker.replica_manager.close() is None
        assert read_whole(broker.disk, HIGH_WATERMARKS) == before
        assert b"t 0 1" in (before or b"")

    run(scenario)


@pytest.mark.parametrize(
    "content", [b"", b"version: 0\ntopic_id: 0000002a\n", b"\xff" * 40], ids=["empty", "torn", "damaged"]
)
def test_records_of_an_unknown_topic_are_not_deleted(content: bytes) -> None:
    """A replica that starts empty may still be a candidate for leadership, and then everybody loses what it lost."""

    async def scenario() -> None:
        broker = Broker()
        await broker.produce((0, produced(b"a")))
        assert broker.replica_manager.close() is None
        for index in (0, 1):
            broker.disk.delete(f"t-{index}/{PARTITION_METADATA}")
            broker.disk.open(f"t-{index}/{PARTITION_METADATA}").append(content)
        broker.restart()
        with pytest.raises(OSError, match=f"t-0/{PARTITION_METADATA}"):
            broker.elect(1, 1)
        assert broker.disk.open("t-0/00000000000000000000.log").size() > 0
        broker.disk.delete("t-0")
        broker.restart()
        broker.elect(1, 1)
        assert broker.partition(1).log.end == 0, "nothing was there to be lost"

    run(scenario)


def test_the_remains_of_a_deleted_topic_do_not_become_a_new_topic_of_its_name() -> None:
    async def scenario() -> None:
        broker = Broker()
        await broker.produce((0, produced(b"a")), (1, produced(b"b")))
        assert broker.replica_manager.close() is None
        broker.disk.delete(f"t-0/{PARTITION_METADATA}")
        broker.disk.delete(f"t-1/{PARTITION_METADATA}")
        broker.disk.open(f"t-1/{PARTITION_METADATA}").append(f"version: 0\ntopic_id: {uuid.UUID(int=41)}\n".encode())
        broker.restart()
        broker.elect(1, 1)
        assert [broker.partition(index).log.end for index in (0, 1)] == [0, 0]

    run(scenario)
