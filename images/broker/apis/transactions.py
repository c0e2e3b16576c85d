"""ListTransactions: there are none, since transactions are not implemented."""

from __future__ import annotations

from kio.schema.errors import ErrorCode
from kio.schema.list_transactions.v2.request import ListTransactionsRequest
from kio.schema.list_transactions.v2.response import ListTransactionsResponse

from images.broker.runtime.server import Handler, Request
from images.wire.field_values import NO_THROTTLE
from images.wire.messages import Api

_STATES = frozenset(
    {
        "Empty",
        "Ongoing",
        "PrepareCommit",
        "PrepareAbort",
        "CompleteCommit",
        "CompleteAbort",
        "Dead",
        "PrepareEpochFence",
    }
)
"""Kafka's states of a transaction."""


class TransactionApis:
    """The handler of one broker."""

    def handlers(self) -> dict[Api, Handler]:
        """The handler of each API."""
        return {Api.LIST_TRANSACTIONS: self.list_transactions}

    async def list_transactions(self, request: Request[ListTransactionsRequest]) -> ListTransactionsResponse:
        """An empty list, and the states of the request that Kafka does not know."""
        return ListTransactionsResponse(
            throttle_time=NO_THROTTLE,
            error_code=ErrorCode.none,
            unknown_state_filters=tuple(state for state in request.body.state_filters if state not in _STATES),
            transaction_states=(),
        )
