"""Calls of the native client that only scripts make: deleting a topic, finding an offset by its timestamp."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from harness.environments.base import Deployment
from tests.scenarios.test_deleting import P0, RECORDS, TOPIC, play
from workloads.clients.native import AdminClient, AdminError, Consumer, ConsumerRecord


def test_a_topic_created_again_after_its_deletion_is_empty() -> None:
    async def scenario(_: Deployment, admin: AdminClient, consumer: Callable[..., Consumer]) -> None:
        await admin.delete_topic(TOPIC, 30)
        with pytest.raises(AdminError, match="UNKNOWN_TOPIC_OR_PARTITION"):
            await admin.delete_topic(TOPIC, 30)
        await admin.create_topic(TOPIC, 1, 3, {}, 30)
        await admin.wait_for_leaders(TOPIC, 1, 30)
        assert (await consumer().end_offset(*P0)).offset == 0

    play(scenario)


def test_an_offset_found_by_its_timestamp_is_that_of_the_first_record_not_older() -> None:
    async def scenario(_: Deployment, admin: AdminClient, consumer: Callable[..., Consumer]) -> None:
        reader = consumer()
        records: list[ConsumerRecord] = []
        while len(records) < RECORDS:
            for fetch in await reader.poll(5):
                records += fetch.records
        times = sorted({record.timestamp_ms for record in records})
        assert len(times) > 2
        for time_ms in times:
            expected = next(record for record in records if record.timestamp_ms >= time_ms)
            answer = (await reader.offsets_for_times({P0: time_ms}))[P0]
            assert (answer.offset, answer.epoch) == (expected.offset, expected.leader_epoch)
        assert (await reader.offsets_for_times({P0: times[-1] + 1}))[P0].offset == -1

    play(scenario)
