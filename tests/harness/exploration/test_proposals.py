"""The controller's check that the sender of an ISR change leads decides about no request that a broker sends."""

from __future__ import annotations

from collections import Counter

import pytest
from kio.schema.errors import ErrorCode

from harness.search.exploration import scope_file
from harness.search.exploration.breadth_first import explore
from images.broker.controller import metadata_change
from images.broker.controller.alter_partition import AlterPartition, IsrProposal, check_proposal
from images.broker.metadata.image import ClusterImage
from images.broker.rules import Rules


@pytest.mark.parametrize(
    ("scope", "outdated"), [("isr-changes", True), ("reassignment", True), ("restarts-of-three", False)]
)
def test_in_every_state_an_isr_change_of_the_present_leader_epoch_is_of_its_leader(
    scope: str, outdated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whenever it arrives: after elections and reassignments, and after its sender has restarted. Each decision is made
    once for all states that have the controller and the request in common."""
    proposals: Counter[str] = Counter()

    def check(image: ClusterImage, request: AlterPartition, proposal: IsrProposal, rules: Rules) -> ErrorCode:
        topic = image.topic_by_id(proposal.topic_id)
        assert topic is not None
        known = topic.partitions[proposal.index]
        is_leader = "of its leader" if request.id == known.leader else "of another"
        proposals["outdated" if proposal.leader_epoch < known.leader_epoch else is_leader] += 1
        proposals["without two members"] += len({*known.isr} - {*proposal.isr}) == 2
        return check_proposal(image, request, proposal, rules)

    monkeypatch.setattr(metadata_change, "check_proposal", check)
    assert explore(scope_file.load(scope, None, ())[1], 1).violation is None
    assert proposals["of its leader"] > 5
    assert not proposals["of another"]
    assert (proposals["outdated"] > 0) is outdated
    assert (proposals["without two members"] > 0) is (scope != "reassignment"), "several followers may lag at once"
