"""The settings of a run's workload, as its spec and the cluster that was deployed for it have them."""

from __future__ import annotations

import asyncio
import time
from typing import Final, cast

from harness.environments.base import Deployment
from harness.spec import ACKS, TOPIC, Spec
from images.wire.batch import Compression
from workloads.clients.native import Reset
from workloads.workload import WorkloadSettings

_COMMIT_TEXT_BYTES: Final = "offset.metadata.max.bytes"
_COMMIT_TEXT_BYTES_MAX: Final = 4_096
"""Kafka's default of that setting."""


def workload_settings(spec: Spec, deployment: Deployment) -> WorkloadSettings:
    """The settings of the native clients. Producers and consumers of another library are made from them, too."""
    return WorkloadSettings(
        bootstrap=tuple(deployment.bootstrap()),
        topic=TOPIC,
        partitions=spec.partitions,
        replication_factor=spec.replication_factor,
        producers=spec.producers,
        consumers=spec.consumers,
        end_offset_readers=spec.end_offset_readers,
        rate=spec.rate,
        acks=ACKS[spec.acks],
        record_empty_polls=spec.recency == "strict",
        batch_records=spec.clients.batch,
        linger_ms=round(spec.clients.linger_s * 1000),
        compression=Compression[spec.clients.compression.upper()],
        max_in_flight=spec.clients.in_flight,
        pipeline=spec.clients.pipeline,
        delivery_timeout_ms=round(spec.clients.delivery_timeout_s * 1000),
        request_timeout_ms=round(spec.clients.request_timeout_s * 1000),
        consumer_rules_off=spec.consumer_rules_off,
        auto_offset_reset=cast(Reset, spec.clients.auto_offset_reset),
        read_committed=spec.clients.isolation == "read_committed",
        tell_epochs=spec.clients.tell_epochs,
        fetch_bytes_max=spec.clients.fetch_bytes,
        poll_pause_ms=round(spec.clients.poll_pause_s * 1000),
        record_bytes=spec.clients.record_bytes,
        burst=spec.clients.burst,
        producer_life_ms=round(spec.clients.producer_life_s * 1000),
        consumer_life_ms=round(spec.clients.consumer_life_s * 1000),
        consumer_rest_ms=round(spec.clients.consumer_rest_s * 1000),
        session_timeout_ms=round(spec.clients.session_timeout_s * 1000),
        static_members=spec.clients.static_members,
        late_commits=spec.clients.late_commits,
        awkward_members=spec.clients.awkward_members,
        groups_begin=spec.clients.groups_begin,
        time_readers=spec.clients.time_readers,
        clock_error_ms=round(spec.clients.clock_error_s * 1000),
        first_sequence=spec.clients.first_sequence,
        commit_text_bytes_max=_commit_text_bytes_max(spec),
        standalone_consumers=spec.clients.standalone_consumers,
        idle_partitions=spec.clients.idle_partitions,
        written_share=spec.clients.written_share,
        negotiate_versions=spec.environment != "sim",
        set_up_timeout_ms=round(spec.ready_limit_s * 1000),
        unix_ahead_ms=0 if spec.environment == "sim" else _unix_ahead_ms(),
    )


def _commit_text_bytes_max(spec: Spec) -> int:
    """The least that the settings name, of any node."""
    all_settings = (spec.settings, *spec.node_settings.values())
    named = [int(settings[_COMMIT_TEXT_BYTES]) for settings in all_settings if _COMMIT_TEXT_BYTES in settings]
    return min(named, default=_COMMIT_TEXT_BYTES_MAX)


def _unix_ahead_ms() -> int:
    return round((time.time() - asyncio.get_running_loop().time()) * 1000)
