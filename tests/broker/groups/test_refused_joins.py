"""Joins that are refused, as in Kafka: without a protocol that all members of the group know, the one that joins again
included; and of a static member with an id that it cannot have been given."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from images.broker.groups.group import Group, JoinAnswer, JoinRequest
from images.broker.groups.rebalance import join
from tests.broker.groups.test_group import LIMITS, RANGE, ask, stable

STICKY = (("sticky", b"topics"),)
REFUSED = JoinAnswer("m1", ErrorCode.inconsistent_group_protocol)


def rejoin(group: Group, **changes: object) -> JoinAnswer | None:
    """The answer to m1, which joins again and knows something else now; None where it waits for that."""
    request: JoinRequest = ask("m1", **changes)
    answer = join(group, request, 6_000, LIMITS).answer
    assert answer is None or isinstance(answer, JoinAnswer)
    return answer


@pytest.mark.parametrize(
    ("changes", "answer"),
    [
        ({"protocols": STICKY}, REFUSED),
        ({"protocols": (*STICKY, *RANGE)}, None),
        ({"protocol_type": "connect"}, REFUSED),
    ],
)
def test_a_member_alone_in_its_group_gives_up_no_protocol_in_one_step(
    changes: dict[str, object], answer: JoinAnswer | None
) -> None:
    assert rejoin(stable("m1"), **changes) == answer


def test_a_protocol_that_all_but_the_member_itself_knew_is_none_in_common() -> None:
    group = stable("m1", "m2")
    second = group.member("m2")
    assert second is not None
    group = group.with_member(second._replace(protocols=(*RANGE, *STICKY)))
    assert rejoin(group, protocols=STICKY) == REFUSED


@pytest.mark.parametrize("instance", ["i1", "i2"])
def test_a_static_member_joins_with_no_id_that_a_dynamic_one_was_given(instance: str) -> None:
    """Its instance could have two members, of which one could do nothing but hold its partitions."""
    group = join(Group("g"), ask(new="m1", instance_id="i1"), 0, LIMITS).group
    group = join(group, ask(new="m2", id_required=True), 0, LIMITS).group
    step = join(group, ask("m2", instance_id=instance), 10, LIMITS)
    assert step.answer == JoinAnswer("m2", ErrorCode.unknown_server_error)
    assert [(member.id, member.instance_id) for member in step.group.members] == [("m1", "i1")]
