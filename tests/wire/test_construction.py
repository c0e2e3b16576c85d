"""Message classes with the fast `__init__` are what they were: frozen, with the same arguments and defaults."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace

import pytest
from kio.schema.errors import ErrorCode
from kio.schema.fetch.v16.response import EpochEndOffset, PartitionData

from images.wire.construction import quicken, thawed
from images.wire.messages import prepare
from tests.wire.message_values import EVERY_CLASS, class_name, filled


@pytest.mark.parametrize("message", EVERY_CLASS, ids=class_name)
def test_every_message_class_can_be_quickened_and_stays_itself(message: type) -> None:
    before = filled(message)
    quicken(message)
    after = filled(message)
    assert type(after) is message
    assert after == before
    assert hash(after) == hash(before)


def test_a_message_stays_frozen_and_asks_for_its_fields() -> None:
    prepare()
    answer = PartitionData(
        partition_index=1, error_code=ErrorCode.none, high_watermark=2, aborted_transactions=None, records=None
    )
    assert answer.log_start_offset == -1
    assert answer.diverging_epoch == EpochEndOffset()
    assert replace(answer, high_watermark=3).high_watermark == 3
    with pytest.raises(FrozenInstanceError):
        answer.high_watermark = 4  # type: ignore[misc]
    with pytest.raises(TypeError, match="high_watermark"):
        PartitionData(partition_index=1, error_code=ErrorCode.none)  # type: ignore[call-arg]
    assert thawed(PartitionData) is thawed(PartitionData)
