"""The configuration of a node is refused in one line where it cannot work."""

from __future__ import annotations

import pytest

from images.broker.config import ConfigError, NodeConfig


def properties(role: str, node: int) -> str:
    return f"""
    process.roles={role}
    node.id={node}
    listeners=PLAINTEXT://127.0.0.1:0
    controller.quorum.voters=101@127.0.0.1:1,102@127.0.0.1:2
    """


@pytest.mark.parametrize(
    ("role", "node", "message"),
    [
        ("broker", 102, "node.id: the id 102 of a broker must not be the id of a voter of controller.quorum.voters"),
        ("controller", 1, "node.id: the id 1 of a controller must be the id of a voter of controller.quorum.voters"),
    ],
)
def test_a_node_is_a_voter_if_and_only_if_it_is_a_controller(role: str, node: int, message: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        NodeConfig.parse(properties(role, node))
    assert str(refusal.value) == message


@pytest.mark.parametrize(("role", "node"), [("broker", 1), ("controller", 102)])
def test_other_node_ids_are_accepted(role: str, node: int) -> None:
    assert NodeConfig.parse(properties(role, node)).node_id == node
