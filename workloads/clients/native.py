"""The native client: asyncio and kio, the same in simulation and against real brokers.

The public face of this package. A `Client` is one client's connections and what it knows of the cluster; on it stand a
`Producer`, a `Consumer` or an `Admin`, each with a client of its own.
"""

from workloads.clients.admin import Admin, AdminError, ClusterDescription, TopicDescription
from workloads.clients.connections import Backoff, Client, Patience
from workloads.clients.consumer import EARLIEST, LATEST, Consumer, Fetched, OffsetAnswer, Record
from workloads.clients.producer import Delivery, Producer
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
    "OffsetAnswer",
    "Patience",
    "Producer",
    "Record",
    "TopicDescription",
    "View",
]
