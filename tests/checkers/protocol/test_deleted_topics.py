"""Committed offsets of topics that are deleted: each coordinator forgets them, in its log too."""

from __future__ import annotations

from typing import Any

import pytest

from tests.checkers.protocol.test_group_promises import (
    SERVES,
    Row,
    appended,
    broken,
    changes,
    leads,
    loaded,
    of_group,
)
from tests.checkers.small_evidence import event


def applies(time_s: float, end: int) -> Row:
    return event(time_s, "b1", "metadata_applied", topic="", partition=-1, log_end=end)


BEGAN = event(0.2, "c1", "partition_changed", {"replicas": [1]}, offset=5, topic="u")
ENDED = event(2, "c1", "partition_deleted", offset=9, topic="u")
ANEW = event(2.5, "c1", "partition_changed", {"replicas": [1]}, offset=11, topic="u#2")


@pytest.mark.parametrize(
    ("told", "read_up_to", "kept"),
    [(7, 8, True), (None, 8, True), (5, 8, False), (None, 9, True), (7, 9, False), (None, 12, True), (7, 12, False)],
)
def test_a_coordinator_forgets_the_offsets_of_a_topic_when_it_reads_of_its_deletion(
    told: int | None, read_up_to: int, kept: bool
) -> None:
    log = [BEGAN, applies(0.3, 5), *SERVES, appended(1), changes(1, ["g", "u-0", 7])]
    tombstone = [appended(2), changes(2, ["g", "u-0", None])] if read_up_to > 8 else []
    end = 2 if tombstone else 1
    answer = of_group(3, "offsets_told", end, high_watermark=end, offsets={} if told is None else {"u-0": told})
    found = broken([*log, ENDED, ANEW, applies(2.9, read_up_to), *tombstone, answer])
    assert found == ([] if kept else ["offsets-held-otherwise"])


@pytest.mark.parametrize(
    ("between", "kept"), [(["g", "u-0", None], True), (["g", None, None], True), (["g", "u-1", 3], False)]
)
def test_a_tombstone_stands_before_offsets_of_the_next_topic(between: list[Any], kept: bool) -> None:
    log = [BEGAN, applies(0.3, 5), *SERVES, appended(1), changes(1, ["g", "u-0", 7]), ENDED, ANEW, applies(2.9, 12)]
    anew = [appended(2), changes(2, between), appended(3), changes(3, ["g", "u-0", 4])]
    assert broken([*log, *anew]) == ([] if kept else ["tombstone-missing"])


def test_no_offsets_are_deleted_but_of_deleted_topics_and_groups() -> None:
    log = [BEGAN, applies(0.3, 5), *SERVES, appended(1), changes(1, ["g", "u-0", 7])]
    of_another = [ENDED, ANEW, applies(2.9, 12), appended(2), changes(2, ["g", "u-1", None])]
    of_another += [appended(3), changes(3, ["g", "u-0", 4])]
    assert broken([*log, *of_another]) == ["offset-deleted-unasked", "tombstone-missing"]
    assert broken([*log, appended(2), changes(2, ["g", "u-0", None])]) == ["offset-deleted-unasked"]
    assert broken([*log, appended(2), changes(2, ["g", "u-0", None], ["g", None, None])]) == []
    of_next = [ENDED, ANEW, applies(2.9, 12), appended(2), changes(2, ["g", "u-0", None])]
    of_next += [appended(3), changes(3, ["g", "u-0", 4]), appended(4), changes(4, ["g", "u-0", None])]
    of_next.insert(-2, of_group(3.5, "offsets_told", 3, high_watermark=3, offsets={"u-0": 4}))
    assert broken([*log, *of_next]) == ["offset-deleted-unasked"]


@pytest.mark.parametrize(
    ("tombstone", "high_watermark", "kept"),
    [
        ([], 1, False),
        ([["g", "u-0", None]], 1, False),
        ([["g", "u-0", None]], 2, True),
        ([["g", None, None]], 1, False),
        ([["g", None, None]], 2, True),
    ],
)
def test_offsets_of_a_deleted_topic_are_told_as_deleted_once_their_tombstones_are_committed(
    tombstone: list[list[Any]], high_watermark: int, kept: bool
) -> None:
    log = [BEGAN, applies(0.3, 5), *SERVES, appended(1), changes(1, ["g", "u-0", 7]), ENDED, applies(2.9, 9)]
    log += [appended(2), changes(2, *tombstone)] if tombstone else []
    answer = of_group(3, "offsets_told", 2, high_watermark=high_watermark, offsets={})
    assert broken([*log, answer]) == ([] if kept else ["deletion-told-early"])
    elsewhere = answer | {"detail": answer["detail"].replace('"g"', '"h"')}
    assert broken([*log, elsewhere]) == []


def test_a_committed_tombstone_suffices_while_the_deletion_of_its_group_is_not_committed() -> None:
    log = [BEGAN, applies(0.3, 5), *SERVES, appended(1), changes(1, ["g", "u-0", 7]), ENDED, applies(2.9, 9)]
    log += [appended(2), changes(2, ["g", "u-0", None]), appended(3), changes(3, ["g", None, None])]
    assert broken([*log, of_group(3, "offsets_told", 3, high_watermark=2, offsets={})]) == []


def test_a_deleted_group_needs_no_tombstones_for_topics_that_are_deleted_later() -> None:
    """The coordinator may have read that the deletion is committed: it has no offsets of the group then."""
    log = [BEGAN, applies(0.3, 5), *SERVES, appended(1), changes(1, ["g", "u-0", 7])]
    log += [appended(2), changes(2, ["g", "u-0", None], ["g", None, None]), ENDED, ANEW, applies(2.9, 12)]
    anew = [appended(3), changes(3, ["g", "u-0", 4])]
    answer = of_group(3, "offsets_told", 3, high_watermark=3, offsets={"u-0": 4})
    assert broken([*log, *anew, answer]) == []


@pytest.mark.parametrize(
    ("ends", "committed_at", "kept"),
    [
        ((BEGAN, ENDED), 5, False),
        ((BEGAN, ENDED, ANEW), 5, False),
        ((BEGAN, ENDED, ANEW), 12, True),
        ((BEGAN,), 5, True),
    ],
)
def test_a_new_coordinator_forgets_the_offsets_of_topics_that_are_gone(
    ends: tuple[Row, ...], committed_at: int, kept: bool
) -> None:
    """Also where there is a new topic of the name: the commit was for that of the metadata which its coordinator had
    applied."""
    group = {"state": "Empty", "generation": 0, "leader": None, "protocol": None, "record": {}}
    log = [*ends, applies(0.3, committed_at), appended(1), changes(1, ["g", "u-0", 7])]
    loads = [of_group(3, "group_loaded", **group), loaded(3, 1, {"g": {"u-0": 7}}, epoch=2)]
    answer = of_group(4, "offsets_told", 1, 2, high_watermark=1, offsets={"u-0": 7})
    events = [*log, applies(2.8, 20), leads(2.9, 1, 2), *loads, answer]
    assert broken(events) == ([] if kept else ["offsets-held-otherwise"])


@pytest.mark.parametrize(
    ("committed_at", "read_up_to", "told", "kept"),
    [(5, 9, 7, False), (5, 9, None, True), (5, 12, 7, False), (5, 12, None, True), (12, 12, 7, True)],
)
def test_a_topic_that_is_created_while_a_coordinator_loads_is_not_the_one_of_its_commits(
    committed_at: int, read_up_to: int, told: int | None, kept: bool
) -> None:
    """The topic was gone when the broker became leader with the metadata up to 9, and is there once it has loaded."""
    group = {"state": "Empty", "generation": 0, "leader": None, "protocol": None, "record": {}}
    log = [BEGAN, ENDED, ANEW, applies(0.3, committed_at), appended(1), changes(1, ["g", "u-0", 7])]
    loads = [of_group(3, "group_loaded", **group), loaded(3, 1, {"g": {"u-0": 7}}, epoch=2)]
    tombstone = [appended(2, epoch=2), changes(2, ["g", "u-0", None], epoch=2)] if committed_at == 5 else []
    end = 2 if tombstone else 1
    answer = of_group(4, "offsets_told", end, 2, high_watermark=end, offsets={} if told is None else {"u-0": told})
    found = broken([*log, applies(2.8, read_up_to), leads(2.8, 1, 2), applies(2.9, 12), *loads, *tombstone, answer])
    assert found == ([] if kept else ["offsets-held-otherwise"])
