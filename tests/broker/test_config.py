"""The configuration of a node is refused in one line where it cannot work."""

from __future__ import annotations

import pytest

from images.broker.config import ConfigError, NodeConfig
from images.wire.connection import MAX_FRAME_BYTES


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


@pytest.mark.parametrize(
    "key",
    [
        "message.max.bytes",
        "replica.fetch.max.bytes",
        "replica.fetch.response.max.bytes",
        "controller.quorum.fetch.snapshot.max.bytes",
    ],
)
def test_no_node_asks_for_an_answer_that_is_larger_than_a_frame_may_be(key: str) -> None:
    """A follower would close the connection over it, and ask for the same again, for ever."""
    with pytest.raises(ConfigError) as refusal:
        NodeConfig.parse(f"{properties('broker', 1)}\n{key}={MAX_FRAME_BYTES}")
    assert str(refusal.value) == f"{key}: {MAX_FRAME_BYTES} is more than 103809024"
    assert NodeConfig.parse(f"{properties('broker', 1)}\n{key}=103809024")


@pytest.mark.parametrize("key", ["fetch.max.bytes", "socket.request.max.bytes"])
def test_a_size_that_no_request_can_say_is_refused(key: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        NodeConfig.parse(f"{properties('broker', 1)}\n{key}=2147483648")
    assert str(refusal.value) == f"{key}: 2147483648 is more than 2147483647"
