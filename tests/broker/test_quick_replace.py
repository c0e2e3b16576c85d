"""The faster `_replace` of named tuples does what that of `NamedTuple` does."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from images.broker.quick_replace import quick_replace


@quick_replace
class Place(NamedTuple):
    topic: str
    partition: int = 0
    leader: int = -1


def test_a_copy_differs_in_what_is_given_and_the_original_stays() -> None:
    place = Place("t", 1, 2)
    assert place._replace(leader=3) == Place("t", 1, 3)
    assert place._replace() == place == Place("t", 1, 2)
    assert type(place._replace(topic="u", partition=4)) is Place


def test_a_field_that_there_is_not_is_refused() -> None:
    with pytest.raises(KeyError, match="offset"):
        Place("t")._replace(offset=3)  # type: ignore[call-arg]
