"""The native client: asyncio and kio, the same in simulation and against real brokers.

The public face of this package. A `Client` has connections and a metadata cache; it serves a
`Producer`, a `Consumer` or an `AdminClient`, each with a client of its own.
"""

from workloads.clients.admin import AdminClient, AdminError, LeadersUnknown
from workloads.clients.completed_fetch import CompletedFetch, ConsumerRecord, LogTruncationError, OffsetOutOfRangeError
from workloads.clients.connections import Backoff, Client, ClientTimeouts
from workloads.clients.consumer import Consumer, Reset
from workloads.clients.consumer_rules import ConsumerRules
from workloads.clients.delivery import Delivery
from workloads.clients.metadata_cache import Leader, MetadataCache
from workloads.clients.offsets import EARLIEST, LATEST, OffsetAnswer
from workloads.clients.positions import CommittedPosition, OffsetAndEpoch, Truncation
from workloads.clients.producer import Producer

__all__ = [
    "EARLIEST",
    "LATEST",
    "AdminClient",
    "AdminError",
    "Backoff",
    "Client",
    "Consumer",
    "ConsumerRules",
    "Delivery",
    "CommittedPosition",
    "CompletedFetch",
    "Leader",
    "LeadersUnknown",
    "LogTruncationError",
    "OffsetAndEpoch",
    "OffsetAnswer",
    "OffsetOutOfRangeError",
    "ClientTimeouts",
    "Producer",
    "ConsumerRecord",
    "Reset",
    "Truncation",
    "MetadataCache",
]
