"""The name of a connection, from its two nodes and the first request that is sent on it."""

from __future__ import annotations

from struct import Struct
from typing import Final

from nemesis.faults.message import API_KEYS, NodeRequest
from nemesis.ports import ChannelName

_HEAD: Final = Struct(">ih")
"""Length of the frame and API key."""
_BROKER, _CONTROLLER = "b", "c"
_TO_CONTROLLER: Final = {
    API_KEYS[NodeRequest.FETCH]: ChannelName.METADATA,
    API_KEYS[NodeRequest.FETCH_SNAPSHOT]: ChannelName.METADATA,
    API_KEYS[NodeRequest.BROKER_REGISTRATION]: ChannelName.HEARTBEAT,
    API_KEYS[NodeRequest.BROKER_HEARTBEAT]: ChannelName.HEARTBEAT,
    API_KEYS[NodeRequest.ALTER_PARTITION]: ChannelName.ALTER_PARTITION,
}
_OF_FOLLOWER: Final = (API_KEYS[NodeRequest.FETCH], API_KEYS[NodeRequest.OFFSET_FOR_LEADER_EPOCH])
UNNAMED: Final = "unnamed"
"""Of connections that no fault is limited to, such as a controller's to a broker."""


def name_of(source: str, target: str, data: bytes) -> str:
    """The name of a connection on which `source` sends `data` first, to `target`."""
    roles = source[:1], target[:1]
    api_key = _HEAD.unpack_from(data)[1] if len(data) >= _HEAD.size else -1
    if roles[0] not in (_BROKER, _CONTROLLER):
        return ChannelName.CLIENT
    if roles == (_BROKER, _CONTROLLER):
        return _TO_CONTROLLER.get(api_key, ChannelName.FORWARDING)
    if roles == (_CONTROLLER, _CONTROLLER):
        return ChannelName.QUORUM
    return ChannelName.FETCH if roles == (_BROKER, _BROKER) and api_key in _OF_FOLLOWER else UNNAMED
