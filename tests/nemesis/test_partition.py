"""Shapes of partitions: exactly the links that the shape's description says."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemesis.faults.network_partition import PartitionShape, links
from nemesis.ports import Link

BROKERS = ("b1", "b2", "b3")
FIVE = ("b1", "b2", "b3", "b4", "b5")
CONTROLLERS = ("c1",)


def _cut(
    shape: PartitionShape, *nodes: str, brokers: tuple[str, ...] = BROKERS, against: tuple[str, ...] = ()
) -> set[str]:
    return {f"{link.source}{link.target}" for link in links(shape, nodes, brokers, CONTROLLERS, against)}


def test_an_isolated_node_hears_and_is_heard_by_nobody() -> None:
    assert _cut(PartitionShape.ISOLATE, "b2") == {"b2b1", "b1b2", "b2b3", "b3b2", "b2c1", "c1b2"}


def test_two_isolated_nodes_do_not_see_each_other_either() -> None:
    assert {"b1b2", "b2b1"} <= _cut(PartitionShape.ISOLATE, "b1", "b2")


def test_a_minority_sees_itself_and_not_the_controllers() -> None:
    cut = _cut(PartitionShape.MINORITY, "b1", "b2", brokers=FIVE)
    assert {"b1c1", "c1b1", "b1b3", "b5b2"} <= cut
    assert not {"b1b2", "b2b1", "b3b4", "b3c1"} & cut


def test_halves_leave_the_controllers_with_the_first() -> None:
    cut = _cut(PartitionShape.HALVES, "b3", "b1", "b2")
    assert cut == {"b3b2", "b2b3", "b1b2", "b2b1", "c1b2", "b2c1"}


def test_the_bridge_sees_both_sides_and_everyone_sees_the_controllers() -> None:
    assert _cut(PartitionShape.BRIDGE, "b2") == {"b1b3", "b3b1"}
    assert not any("c1" in link or "b3" in link for link in _cut(PartitionShape.BRIDGE, "b3", brokers=FIVE))


def test_in_a_ring_of_five_each_sees_its_two_neighbours() -> None:
    cut = _cut(PartitionShape.RING, *FIVE, brokers=FIVE)
    for here, there in permutations(range(5), 2):
        neighbours = (there - here) % 5 in (1, 4)
        assert (f"b{here + 1}b{there + 1}" in cut) is not neighbours


def test_in_a_ring_of_three_each_hears_only_the_one_before_it() -> None:
    assert _cut(PartitionShape.RING, *BROKERS) == {"b2b1", "b3b2", "b1b3"}


def test_one_way_cuts_one_direction_only() -> None:
    assert _cut(PartitionShape.ONE_WAY, "b1", against=("b2",)) == {"b1b2"}
    assert _cut(PartitionShape.ONE_WAY, "b1") == {"b1b2", "b1b3", "b1c1"}


def test_one_way_towards_oneself_cuts_towards_all() -> None:
    """From leader/0 to b1, and b1 leads: seed 1226 of the default run had this as its only fault, which never bit."""
    assert _cut(PartitionShape.ONE_WAY, "b1", against=("b1",)) == {"b1b2", "b1b3", "b1c1"}
    assert _cut(PartitionShape.ONE_WAY, *BROKERS, *CONTROLLERS, against=("b1",)) >= {"b1b2", "b2b1", "b1c1", "c1b1"}


def test_a_leader_cut_from_its_followers_keeps_the_controller() -> None:
    assert _cut(PartitionShape.LEADER_ONLY, "b1") == {"b1b2", "b2b1", "b1b3", "b3b1"}


def test_a_controller_apart_from_the_others_is_seen_by_every_broker() -> None:
    cut = links(PartitionShape.CONTROLLERS_APART, ["c2"], ("b1", "b2", "b3"), ("c1", "c2", "c3"))
    assert {(link.source, link.target) for link in cut} == {("c2", "c1"), ("c1", "c2"), ("c2", "c3"), ("c3", "c2")}


def test_controllers_cut_from_brokers_leave_brokers_together() -> None:
    assert _cut(PartitionShape.CONTROLLER_FROM_BROKERS, *BROKERS) == {"b1c1", "c1b1", "b2c1", "c1b2", "b3c1", "c1b3"}


@given(shape=st.sampled_from(list(PartitionShape)), size=st.integers(1, 7), data=st.data())
def test_no_shape_cuts_a_node_from_itself_or_names_a_link_twice(
    shape: PartitionShape, size: int, data: st.DataObject
) -> None:
    brokers = tuple(f"b{number}" for number in range(1, size + 1))
    nodes = data.draw(st.lists(st.sampled_from(brokers), min_size=1, unique=True))
    cut = links(shape, nodes, brokers, CONTROLLERS)
    assert len(cut) == len(set(cut))
    assert all(link.source != link.target for link in cut)


@pytest.mark.parametrize(
    "shape", [shape for shape in PartitionShape if shape not in (PartitionShape.ONE_WAY, PartitionShape.RING)]
)
def test_every_other_shape_cuts_both_directions(shape: PartitionShape) -> None:
    cut = set(links(shape, ("b1",), BROKERS, CONTROLLERS))
    assert cut == {Link(link.target, link.source) for link in cut}
