"""All replicas on this broker, as the cluster's metadata has them.

Layout of the data directory, as in Kafka:

    <topic>-<partition>/                     one log, see `log.py`
    <topic>-<partition>/partition.metadata   the topic's id: a new topic with the name of a deleted one starts empty
    <topic>-<partition>-delete/              what is left of a replica that was deleted
    replication-offset-checkpoint            the high watermark of every replica, written periodically, and before a
                                             new log takes the place of one that it names
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from errno import EIO

from kio.schema.errors import ErrorCode

from images.broker.config import Endpoint, NodeConfig, TopicConfig
from images.broker.log.log import Log
from images.broker.log.log_config import LogConfig
from images.broker.log.log_recovery import first_segment, holes, late_beginning
from images.broker.log.retention import Retention
from images.broker.log.segment import holds_records
from images.broker.metadata.image import ClusterImage, PartitionImage, TopicImage
from images.broker.metadata.internal_topics import CONSUMER_OFFSETS_TOPIC
from images.broker.ports import Files, NodePorts
from images.broker.replication.fetcher import Fetcher, FetchLimits
from images.broker.replication.partition import Limits, PartitionRegistration, ProposeIsr, ReplicaRole
from images.broker.replication.replica import Replica
from images.broker.replication.replica_trace import (
    deleted_detail,
    expired_detail,
    log_detail,
    snapshots_detail,
    synced_detail,
)
from images.broker.runtime.files import TEMPORARY_SUFFIX, read_whole, write_durably
from images.broker.runtime.spawn import Spawn
from images.broker.truncation_protocol import TruncationProtocol
from images.trace import TraceEvent
from images.wire.field_values import NO_ERROR

HIGH_WATERMARKS = "replication-offset-checkpoint"
PARTITION_METADATA = "partition.metadata"
DELETED_SUFFIX = "-delete"
"""The end of the name of a directory that is being deleted; that of a replica ends in a number."""
_NAME_BYTES_MAX = 255
"""The longest name of a directory; the longest one of a topic has 249 characters."""


class ReplicaManager:
    """The replicas on this broker, and the fetchers of its followers."""

    def __init__(
        self,
        config: NodeConfig,
        node_ports: NodePorts,
        clock: Callable[[], float],
        broker_epoch: Callable[[], int],
        propose: Callable[[Replica, ProposeIsr], None],
        spawn: Spawn,
    ) -> None:
        self.active: Mapping[int, int] = {}
        """The broker epoch of every broker that may be in an ISR, in the metadata that this broker has applied."""
        self._config = config
        self._node_ports = node_ports
        self._clock = clock
        self._broker_epoch = broker_epoch
        self._propose = propose
        self._spawn = spawn
        self._replicas: dict[tuple[str, int], Replica] = {}
        self._fetchers: dict[int, Fetcher] = {}
        self._checkpoint = _read_high_watermarks(node_ports.files)
        """The content of the checkpoint of the high watermarks."""
        self._applied = False
        """Whether this broker has applied metadata since its start."""
        self._fetch_limits = FetchLimits(
            max_wait_s=config.seconds("replica.fetch.wait.max.ms"),
            partition_max_bytes=config.number("replica.fetch.max.bytes"),
            max_bytes=config.number("replica.fetch.response.max.bytes"),
            backoff_s=config.seconds("replica.fetch.backoff.ms"),
            timeout_s=config.seconds("replica.socket.timeout.ms"),
        )

    def get(self, topic: str, index: int) -> Replica | None:
        """The replica of this partition on this broker, None without one."""
        return self._replicas.get((topic, index))

    def __iter__(self) -> Iterator[Replica]:
        return iter(self._replicas.values())

    def apply(self, image: ClusterImage) -> None:
        """Apply metadata to every replica and to the fetchers."""
        active_before = self.active
        self.active = {broker.id: broker.epoch for broker in image.brokers.values() if broker.active}
        hosted = {
            (topic.name, partition.index): (topic, partition)
            for topic, partition in image.partitions()
            if self._config.node_id in partition.replicas
        }
        self._delete_all_except(hosted)
        if not self._applied:
            self._applied = True
            self._delete_strays(hosted)
        for key, (topic, partition) in hosted.items():
            replica = self._replicas.get(key)
            if replica is None:
                replica = self._replicas[key] = self._open(topic, partition)
            if replica.configured is not topic.config:
                self._configure(replica, topic)
            replica.apply_registration(
                PartitionRegistration(
                    partition.replicas,
                    partition.isr,
                    partition.leader,
                    partition.leader_epoch,
                    partition.partition_epoch,
                )
            )
        if self.active != active_before:
            for replica in self._replicas.values():
                replica.changed.notify_all()  # a deletion of records waits for the active brokers alone
        self._update_fetchers(image)

    def tick(self) -> None:
        """Let time pass in every replica."""
        for replica in self._replicas.values():
            replica.tick(self.active)

    def retain(self) -> None:
        """Apply retention to every replica."""
        now_ms = self._node_ports.now_ms()
        for replica in self._replicas.values():
            replica.retain(now_ms)

    def expire_producers(self) -> None:
        """Forget the producers of every log that have been idle for too long."""
        now_ms = self._node_ports.now_ms()
        for replica in self._replicas.values():
            before = replica.log.producers
            replica.log.expire_producers(now_ms)
            if replica.log.producers is not before:
                self._node_ports.trace(
                    TraceEvent(
                        "producers_expired",
                        replica.topic,
                        replica.index,
                        log_end=replica.log.end,
                        detail=expired_detail(before, replica.log.producers, now_ms),
                        topic_id=str(replica.topic_id),
                    )
                )

    def checkpoint_high_watermarks(self) -> None:
        """Replace the checkpoint of the high watermarks. Before the first metadata is applied it stays as it is."""
        if not self._applied:
            return
        self._write_checkpoint({key: replica.state.high_watermark for key, replica in self._replicas.items()})

    def _write_checkpoint(self, high_watermarks: dict[tuple[str, int], int]) -> None:
        lines = [f"{topic} {index} {high_watermark}" for (topic, index), high_watermark in high_watermarks.items()]
        text = "\n".join(["0", str(len(lines)), *lines, ""])
        write_durably(self._node_ports.files, HIGH_WATERMARKS, text.encode())
        self._checkpoint = high_watermarks

    def close(self) -> OSError | None:
        """Stop fetching, close the logs cleanly and write the high watermarks. Returns an error after which records may
        not be on disk, if there is one. Raises OSError."""
        for fetcher in self._fetchers.values():
            fetcher.close()
        self._fetchers.clear()
        failures = [self._close(replica) for replica in self]
        self.checkpoint_high_watermarks()
        return next((failure for failure in failures if failure is not None), None)

    def abandon(self) -> None:
        """Stop fetching and close the files as they are, as the end of the process would."""
        for fetcher in self._fetchers.values():
            fetcher.close()
        for replica in self:
            replica.log.close(clean=False)

    def _close(self, replica: Replica) -> OSError | None:
        failure = replica.log.close(clean=True)
        self._node_ports.trace(
            TraceEvent(
                "log_closed",
                replica.topic,
                replica.index,
                broker_epoch=self._broker_epoch(),
                offset=replica.log.recovery_point,
                log_end=replica.log.end,
                detail={"synced": failure is None},
                topic_id=str(replica.topic_id),
            )
        )
        return failure

    def _configure(self, replica: Replica, topic: TopicImage) -> None:
        """Apply a topic's configuration to a replica, before the metadata that was decided by it."""
        settings = self._config.topic(topic.config)
        replica.limits = dataclasses.replace(replica.limits, min_insync_replicas=settings.min_insync_replicas)
        replica.max_batch_bytes = settings.max_batch_bytes
        replica.timestamp_after_ms_max = settings.timestamp_after_ms_max
        replica.log.config = self._log_config(settings)
        replica.retention = retention_of(topic.name, settings)
        replica.configured = topic.config

    def _open(self, topic: TopicImage, partition: PartitionImage) -> Replica:
        directory = f"{topic.name}-{partition.index}"
        settings = self._config.topic(topic.config)
        if _read_topic_id(self._node_ports.files, directory) != topic.id:
            self._delete_stray(directory)
            self._forget_high_watermark((topic.name, partition.index))
            _write_topic_id(self._node_ports.files, directory, topic.id)
        log = Log.open(
            self._node_ports.files,
            directory,
            self._log_config(settings),
            self._node_ports.log,
        )
        high_watermark = self._checkpoint.get((topic.name, partition.index), 0)
        left_over = log.left_over.detail() if log.left_over is not None else {}
        self._node_ports.trace(
            TraceEvent(
                "log_recovered",
                topic.name,
                partition.index,
                offset=log.start,
                log_end=log.end,
                high_watermark=high_watermark,
                detail={
                    "clean": log.recovery.clean,
                    "cut_bytes": log.recovery.cut_bytes,
                    "cut_reason": log.recovery.cut_reason,
                    **left_over,
                    **late_beginning(self._node_ports.files, directory),
                    **holes(log.segments),
                    **log_detail(log),
                    **deleted_detail(log),
                    **snapshots_detail(log),
                    **synced_detail(log),
                },
                topic_id=str(topic.id),
            )
        )
        limits = Limits(
            settings.min_insync_replicas,
            self._config.number("replica.lag.time.max.ms"),
            self._config.rules,
            TruncationProtocol(self._config.text("faultline.protocol")),
        )
        return Replica(
            topic.name,
            topic.id,
            partition.index,
            self._config.node_id,
            limits,
            settings.max_batch_bytes,
            log,
            high_watermark,
            trace=self._node_ports.trace,
            clock=self._clock,
            record_ms=self._node_ports.now_ms,
            propose=self._propose,
        )

    def _forget_high_watermark(self, key: tuple[str, int]) -> None:
        """Take a replica whose log is gone out of the checkpoint, before a new log has its name: after a crash the old
        high watermark would count for the records of the new log, committed or not."""
        if key in self._checkpoint:
            self._write_checkpoint({other: mark for other, mark in self._checkpoint.items() if other != key})

    def _delete_all_except(self, hosted: Mapping[tuple[str, int], tuple[TopicImage, PartitionImage]]) -> None:
        """Delete replicas that are no longer on this broker, or whose topic was deleted, even if it was created
        again."""
        for key, replica in list(self._replicas.items()):
            if key not in hosted or hosted[key][0].id != replica.topic_id:
                replica.resign()
                replica.log.close(clean=False)
                del self._replicas[key]
                self._delete(replica.name)
                self._node_ports.trace(TraceEvent("replica_deleted", *key, topic_id=str(replica.topic_id)))

    def _delete_strays(self, hosted: Iterable[tuple[str, int]]) -> None:
        """Delete the logs on the disk that belong to no replica of this broker, and deletions that a stop cut short."""
        known = {f"{topic}-{index}" for topic, index in hosted}
        for name in self._node_ports.files.list("."):
            if name.endswith(DELETED_SUFFIX):
                self._node_ports.files.delete(name)
            elif name not in known and _is_of_replica(self._node_ports.files, name):
                self._node_ports.log(f"deleting {name}: its topic is gone, or its replica is elsewhere")
                self._delete_stray(name)

    def _delete_stray(self, directory: str) -> None:
        """Delete the directory of a log that belongs to no replica of this broker; if the log has records, trace that
        it was found and deleted."""
        files, (topic, _, index) = self._node_ports.files, directory.rpartition("-")
        if not (index.isdecimal() and holds_records(files, directory)):
            self._delete(directory)
            return
        event = TraceEvent("stray_found", topic, int(index), topic_id=_stray_topic_id(files, directory))
        self._node_ports.trace(event._replace(offset=first_segment(files, directory)))
        self._delete(directory)
        self._node_ports.trace(event._replace(kind="replica_deleted"))

    def _delete(self, directory: str) -> None:
        """Delete the directory of a replica. A power loss leaves it whole, or under a name of no replica."""
        files = self._node_ports.files
        if files.exists(directory) and self._config.rules.delete_replica_durably:
            deleted = directory[: _NAME_BYTES_MAX - len(DELETED_SUFFIX)] + DELETED_SUFFIX  # cut, as in Kafka
            files.delete(deleted)
            files.rename(directory, deleted)
            files.sync_directory(".")
            directory = deleted
        files.delete(directory)

    def _log_config(self, settings: TopicConfig) -> LogConfig:
        return LogConfig(
            segment_bytes=settings.segment_bytes,
            segment_ms=settings.segment_ms,
            flush_interval_messages=settings.flush_interval_messages,
            producer_expiration_ms=self._config.number("producer.id.expiration.ms"),
            max_batch_bytes=settings.max_batch_bytes,
            index_interval_bytes=settings.index_interval_bytes,
            rules=self._config.rules,
        )

    def _update_fetchers(self, image: ClusterImage) -> None:
        """Start the missing fetchers, stop the idle ones, and set the replicas of each."""
        by_leader: dict[int, list[Replica]] = {}
        for replica in self._replicas.values():
            if replica.state.role is ReplicaRole.FOLLOWER and replica.state.leader in image.brokers:
                by_leader.setdefault(replica.state.leader, []).append(replica)
        for leader, fetcher in list(self._fetchers.items()):
            broker = image.brokers.get(leader)
            if leader not in by_leader or broker is None or fetcher.endpoint != Endpoint(broker.host, broker.port):
                self._fetchers.pop(leader).close()
        for leader, replicas in by_leader.items():
            if leader not in self._fetchers:
                broker = image.brokers[leader]
                self._fetchers[leader] = Fetcher(
                    self._config.node_id,
                    leader,
                    Endpoint(broker.host, broker.port),
                    self._fetch_limits,
                    self._broker_epoch,
                    self._node_ports.log,
                    self._spawn,
                )
            self._fetchers[leader].follow(replicas)


def find_replica(
    replica_manager: ReplicaManager, image: ClusterImage, topic: str, index: int
) -> tuple[Replica | None, ErrorCode]:
    """The replica of a partition on this broker, or the error with which a request for it is answered."""
    replica = replica_manager.get(topic, index)
    if replica is not None:
        return replica, NO_ERROR
    if image.partition(topic, index) is not None:
        return None, ErrorCode.not_leader_or_follower
    return None, ErrorCode.unknown_topic_or_partition


def retention_of(topic: str, settings: TopicConfig) -> Retention:
    """The retention of a topic. Committed offsets are kept: Kafka compacts them, and here they are never deleted."""
    return (
        Retention() if topic == CONSUMER_OFFSETS_TOPIC else Retention(settings.retention_ms, settings.retention_bytes)
    )


def _read_high_watermarks(files: Files) -> dict[tuple[str, int], int]:
    """Read the checkpoint of the high watermarks. Empty if the file is missing or damaged, which is always safe."""
    lines = (read_whole(files, HIGH_WATERMARKS) or b"").decode("utf-8", "replace").splitlines()
    if len(lines) < 2 or lines[0] != "0" or lines[1] != str(len(lines) - 2):
        return {}
    high_watermarks = {}
    for line in lines[2:]:
        topic, _, numbers = line.partition(" ")
        index, _, offset = numbers.partition(" ")
        if not (index.isdecimal() and offset.isdecimal()):
            return {}
        high_watermarks[topic, int(index)] = int(offset)
    return high_watermarks


def _is_of_replica(files: Files, name: str) -> bool:
    """Whether it is a directory with the id of a topic, or with no more than what an attempt to write that has left: a
    full disk ends a broker there."""
    if not name.rpartition("-")[2].isdecimal():
        return False
    try:
        content = files.list(name)
    except NotADirectoryError:
        return False
    return PARTITION_METADATA in content or {*content} <= {PARTITION_METADATA + TEMPORARY_SUFFIX}


def _read_topic_id(files: Files, directory: str) -> uuid.UUID | None:
    """The id of the topic of the log in `directory`. None if there is no file with it: the file is written before the
    log, so it is missing only from an unfinished deletion.

    Raises OSError if the file is damaged and the log has records, which are not deleted on a guess.
    """
    path = f"{directory}/{PARTITION_METADATA}"
    content = read_whole(files, path)
    if content is None:
        return None
    try:
        return uuid.UUID(content.decode("utf-8", "replace").partition("topic_id: ")[2].strip())
    except ValueError:
        if holds_records(files, directory):
            raise OSError(EIO, "has no topic id, and the log beside it has records", path) from None
        return None


def _stray_topic_id(files: Files, directory: str) -> str:
    """The same for the trace; empty if it is not known."""
    try:
        topic_id = _read_topic_id(files, directory)
    except OSError:
        return ""
    return str(topic_id) if topic_id is not None else ""


def _write_topic_id(files: Files, directory: str, topic_id: uuid.UUID) -> None:
    write_durably(files, f"{directory}/{PARTITION_METADATA}", f"version: 0\ntopic_id: {topic_id}\n".encode())
    files.sync_directory(".")
