"""The mark that a clean shutdown leaves for the next process of a broker."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from images.broker.runtime.files import RealFiles
from images.broker.runtime.shutdown_mark import (
    CLEAN_SHUTDOWN,
    ShutdownMark,
    leave_clean_shutdown,
    take_clean_shutdown,
)

ADDRESS = "b1:9092"
ASKED = ShutdownMark(17).asked(ADDRESS, Random(1))


@pytest.mark.parametrize("mark", [ShutdownMark(17), ASKED], ids=["registered", "asked to be registered"])
def test_a_mark_is_taken_once_as_it_was_left(tmp_path: Path, mark: ShutdownMark) -> None:
    files = RealFiles(tmp_path)
    leave_clean_shutdown(files, mark)
    assert take_clean_shutdown(files) == mark
    assert take_clean_shutdown(files) == ShutdownMark()


@pytest.mark.parametrize(
    ("content", "mark"),
    [
        ('{"version": 0, "brokerEpoch": 17}', ShutdownMark(17)),
        ('{"version": 0, "brokerEpo', ShutdownMark()),
        ('{"version": 0, "brokerEpoch": 17, "incarnation": 5, "address": ""}', ShutdownMark()),
        ('{"version": 0, "brokerEpoch": 17, "incarnation": "4d17568b-d640-4ed3-8029-66bdcc215f03"}', ShutdownMark()),
        ("17", ShutdownMark()),
        ("", ShutdownMark()),
    ],
    ids=["without an incarnation, as Kafka's", "torn", "no incarnation", "no address", "no object", "empty"],
)
def test_a_file_that_makes_no_sense_is_none_of_a_clean_shutdown(
    tmp_path: Path, content: str, mark: ShutdownMark
) -> None:
    (tmp_path / CLEAN_SHUTDOWN).write_text(content)
    assert take_clean_shutdown(RealFiles(tmp_path)) == mark
    assert not (tmp_path / CLEAN_SHUTDOWN).exists()


def test_a_process_asks_as_the_one_before_that_had_no_answer() -> None:
    assert ASKED.asked(ADDRESS, Random(2)) == ASKED
    assert ShutdownMark(17).asked(ADDRESS, Random(2)).incarnation != ASKED.incarnation


def test_a_process_at_another_address_asks_anew() -> None:
    """The controllers take a retry for what was asked before, with the address that had then."""
    moved = ASKED.asked("b1:9093", Random(2))
    assert (moved.broker_epoch, moved.address) == (17, "b1:9093")
    assert moved.incarnation != ASKED.incarnation
