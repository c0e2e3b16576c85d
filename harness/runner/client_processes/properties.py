"""The properties of each library's clients that stand for the settings of a workload."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from workloads.workload import WorkloadSettings

Properties = dict[str, str]

_JAVA_BATCH_BYTES: Final = 16_384
_ACKS: Final = {-1: "all", 0: "0", 1: "1"}
_LIBRDKAFKA_CONNECT_MS_LEAST: Final = 1_000
_LIBRDKAFKA_SOCKET_MS_OVER_FETCH: Final = 1_000


def _common(settings: WorkloadSettings, name: str) -> Properties:
    return {
        "bootstrap.servers": ",".join(f"{host}:{port}" for host, port in settings.bootstrap),
        "client.id": name,
        "reconnect.backoff.ms": str(settings.retry_backoff_ms),
        "reconnect.backoff.max.ms": str(settings.retry_backoff_ms_max),
        "retry.backoff.ms": str(settings.retry_backoff_ms),
    }


def _producer(settings: WorkloadSettings, name: str) -> Properties:
    """Without all acknowledgements no library's producer is idempotent, so it must not retry: a retry would append
    twice."""
    idempotent = settings.acks == -1
    return _common(settings, name) | {
        "acks": _ACKS[settings.acks],
        "enable.idempotence": str(idempotent).lower(),
        **({} if idempotent else {"retries": "0"}),
        "max.in.flight.requests.per.connection": str(settings.max_in_flight),
        "linger.ms": str(settings.linger_ms),
        "compression.type": settings.compression.name.lower(),
        "request.timeout.ms": str(settings.request_timeout_ms),
        "delivery.timeout.ms": str(settings.delivery_timeout_ms),
    }


def _consumer(settings: WorkloadSettings, name: str) -> Properties:
    return _common(settings, name) | {
        "isolation.level": "read_committed" if settings.read_committed else "read_uncommitted",
        "enable.auto.commit": "false",
        "fetch.max.bytes": str(settings.fetch_bytes_max),
        "max.partition.fetch.bytes": str(settings.fetch_bytes_max),
    }


def _of_java(settings: WorkloadSettings) -> Properties:
    return {
        "metadata.max.age.ms": str(settings.metadata_max_age_ms),
        "retry.backoff.max.ms": str(settings.retry_backoff_ms_max),
        "socket.connection.setup.timeout.ms": str(settings.connect_timeout_ms),
        "socket.connection.setup.timeout.max.ms": str(settings.connect_timeout_ms),
    }


def _java_producer(settings: WorkloadSettings, name: str) -> Properties:
    serializer = "org.apache.kafka.common.serialization.ByteArraySerializer"
    return (
        _producer(settings, name)
        | _of_java(settings)
        | {
            "key.serializer": serializer,
            "value.serializer": serializer,
            "batch.size": "0" if settings.batch_records == 1 else str(_JAVA_BATCH_BYTES),
            "max.block.ms": str(settings.delivery_timeout_ms),
        }
    )


def _java_consumer(settings: WorkloadSettings, name: str) -> Properties:
    deserializer = "org.apache.kafka.common.serialization.ByteArrayDeserializer"
    return (
        _consumer(settings, name)
        | _of_java(settings)
        | {
            "key.deserializer": deserializer,
            "value.deserializer": deserializer,
            "auto.offset.reset": "none",
            "fetch.max.wait.ms": str(settings.fetch_wait_ms_max),
            "request.timeout.ms": str(settings.fetch_wait_ms_max + settings.request_timeout_ms),
        }
    )


def _of_librdkafka(settings: WorkloadSettings) -> Properties:
    return {
        "topic.metadata.refresh.interval.ms": str(settings.metadata_max_age_ms),
        "socket.connection.setup.timeout.ms": str(max(settings.connect_timeout_ms, _LIBRDKAFKA_CONNECT_MS_LEAST)),
    }


def _librdkafka_producer(settings: WorkloadSettings, name: str) -> Properties:
    return (
        _producer(settings, name)
        | _of_librdkafka(settings)
        | {
            "batch.num.messages": str(settings.batch_records),
            "socket.timeout.ms": str(settings.request_timeout_ms),
        }
    )


def _librdkafka_consumer(settings: WorkloadSettings, name: str) -> Properties:
    properties = _consumer(settings, name)
    del properties["fetch.max.bytes"]  # librdkafka has none below the size of a message
    over_fetch_ms = max(settings.request_timeout_ms, _LIBRDKAFKA_SOCKET_MS_OVER_FETCH)
    return (
        properties
        | _of_librdkafka(settings)
        | {
            "group.id": f"faultline-{name}",
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": str(settings.fetch_wait_ms_max),
            "socket.timeout.ms": str(settings.fetch_wait_ms_max + over_fetch_ms),
        }
    )


PROPERTIES: Final[Mapping[tuple[str, str], Callable[[WorkloadSettings, str], Properties]]] = {
    ("java", "producer"): _java_producer,
    ("java", "consumer"): _java_consumer,
    ("librdkafka", "producer"): _librdkafka_producer,
    ("librdkafka", "consumer"): _librdkafka_consumer,
}
"""By library and kind of client."""
