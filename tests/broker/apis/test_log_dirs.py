"""DescribeLogDirs: the one directory of a broker, its replicas, and the space on its disk."""

from __future__ import annotations

import errno
from typing import Any

from kio.schema.describe_log_dirs.v4.request import DescribableLogDirTopic, DescribeLogDirsRequest
from kio.schema.errors import ErrorCode

from images.broker.apis.log_dirs import LogDirApis
from images.broker.ports import DiskSpace
from images.broker.runtime.server import Request
from images.wire.messages import SUPPORTED, Api
from tests.broker.apis.data_path import Broker, produced, run


async def described(broker: Broker, space: DiskSpace | OSError, *topics: DescribableLogDirTopic) -> Any:
    """The answer about the one directory."""

    def disk_space() -> DiskSpace:
        if isinstance(space, OSError):
            raise space
        return space

    handler = LogDirApis(broker.replica_manager, "/data", disk_space).handlers()[Api.DESCRIBE_LOG_DIRS]
    body = DescribeLogDirsRequest(topics=topics or None)
    answer: Any = await handler(
        Request(Api.DESCRIBE_LOG_DIRS, SUPPORTED[Api.DESCRIBE_LOG_DIRS][-1], "test", 1, body, {})
    )
    (result,) = answer.results
    assert result.log_dir == "/data"
    return result


def test_a_directory_is_told_with_its_replicas_and_the_space_that_is_left() -> None:
    async def scenario() -> None:
        broker = Broker()
        await broker.produce((1, produced(b"a")))
        result = await described(broker, DiskSpace(total_bytes=900, usable_bytes=400))
        assert (result.error_code, result.total_bytes, result.usable_bytes) == (ErrorCode.none, 900, 400)
        (topic,) = result.topics
        sizes = {part.partition_index: part.partition_size for part in topic.partitions}
        assert (topic.name, sizes) == ("t", {0: 0, 1: len(produced(b"a"))})

    run(scenario)


def test_only_the_replicas_that_are_asked_for_are_told() -> None:
    async def scenario() -> None:
        asked = [DescribableLogDirTopic(topic=name, partitions=(1, 7)) for name in ("t", "other")]
        (topic,) = (await described(Broker(), DiskSpace(), *asked)).topics
        assert (topic.name, [part.partition_index for part in topic.partitions]) == ("t", [1])

    run(scenario)


def test_a_disk_that_cannot_be_asked_is_a_storage_error() -> None:
    async def scenario() -> None:
        result = await described(Broker(), OSError(errno.EIO, "no answer"))
        assert (result.error_code, result.topics) == (ErrorCode.kafka_storage_error, ())

    run(scenario)
