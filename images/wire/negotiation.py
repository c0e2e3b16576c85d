"""A connection to a broker of any release: a request goes out in the newest version that both sides know.

Like Kafka's own clients it begins with ApiVersions (KIP-511). Callers have the canonical versions alone: a request is
translated to an older one, and its answer back, field by field by name. `_OLDEST` has where that ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Self

from kio.schema.errors import ErrorCode

from images.wire.connection import Connection, ConnectionLost
from images.wire.messages import CANONICAL, SUPPORTED, Api, request_class, response_class_of
from images.wire.schema import Entity, convert

_OLDEST: Final[Mapping[Api, int]] = {
    Api.FETCH: 13,
    Api.METADATA: 10,
    Api.DELETE_TOPICS: 6,
    Api.FIND_COORDINATOR: 4,
    Api.LEAVE_GROUP: 3,
    Api.OFFSET_FETCH: 8,
}
"""The oldest version that differs from the canonical one in fields which it lacks, and in nothing else, where it is not
the oldest supported. Older ones know topics by name alone, or have one thing where these have a list. Every release
from 3.3 on serves these versions."""


class UnsupportedVersion(ConnectionLost):
    """The broker and this client have no version of the API in common. Nothing was sent; the connection stays open."""

    def __init__(self, peer: str, api: Api) -> None:
        super().__init__(f"{peer}: serves no version of {api.name} that this client knows", sent=False)


class NegotiatedConnection(Connection):
    """One connection to a broker of any release. Created by `open`."""

    _served: Mapping[int, tuple[int, int]]
    """API key → the oldest and the newest version that the broker serves."""

    @classmethod
    async def open(cls, host: str, port: int, client_id: str | None, connect_timeout: float) -> Self:
        """Connect, and ask for the versions, each within `connect_timeout` seconds. Raises ConnectionLost or
        CallTimeout, `sent` False."""
        connection = await super().open(host, port, client_id, connect_timeout)
        question = request_class(Api.API_VERSIONS)(client_software_name="faultline", client_software_version="1")
        try:
            answer = await Connection.call(connection, question, connect_timeout)
            if answer.error_code is not ErrorCode.none:
                raise ConnectionLost(f"{host}:{port}: ApiVersions: {answer.error_code.name}")
        except BaseException as error:  # a cancellation, too: nobody else holds the connection
            connection._disconnect("gave up asking for versions")
            if isinstance(error, ConnectionLost):
                error.sent = False  # none of the caller's requests was
            raise
        connection._served = {key.api_key: (key.min_version, key.max_version) for key in answer.api_keys}
        return connection

    async def call(self, request: Entity, timeout: float) -> Entity:
        """As `Connection.call`, for a request in its canonical version. Raises UnsupportedVersion, too."""
        answer = await super().call(self._in_common_version(request), timeout)
        return convert(answer, response_class_of(type(request)))

    def send_only(self, request: Entity) -> None:
        """As `Connection.send_only`. Raises UnsupportedVersion, too."""
        super().send_only(self._in_common_version(request))

    def _in_common_version(self, request: Entity) -> Entity:
        api = Api(int(request.__api_key__))
        oldest_served, newest_served = self._served.get(api, (0, -1))
        version = min(newest_served, CANONICAL[api])
        if version < max(oldest_served, _OLDEST.get(api, SUPPORTED[api][0])):
            raise UnsupportedVersion(self._peer, api)
        return convert(request, request_class(api, version))
