"""The native client: asyncio and kio, the same in simulation and against real brokers.

The public face of this package. A `Client` is one client's connections and what it knows of the cluster; on it stand a
`Producer`, a `Consumer` or an `Admin`, each with a client of its own.
"""

from workloads.clients.admin import Admin, AdminError, ClusterDescription, TopicDescription
from workloads.clients.connections import Backoff, Client, Patience
from workloads.clients.consumer import Consumer, Reset
from workloads.clients.delivery import Delivery
from workloads.clients.fetched import Fetched, LogTruncationError, OffsetOutOfRangeError, Record
from workloads.clients.offsets import EARLIEST, LATEST, OffsetAnswer
from workloads.clients.positions import OffsetAndEpoch, Truncation
from workloads.clients.producer import Producer
from workloads.clients.view import Leader, View

__all__ = [
    "EARLIEST",
    "LATEST",
    "Admin",
    "AdminError",
    "Backoff",
    "Client",
    "ClusterDescription",
    "Consumer",
    "Delivery",
    "Fetched",
    "Leader",
    "LogTruncationError",
    "OffsetAndEpoch",
    "OffsetAnswer",
    "OffsetOutOfRangeError",
    "Patience",
    "Producer",
    "Record",
    "Reset",
    "TopicDescription",
    "Truncation",
    "View",
]
