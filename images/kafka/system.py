"""Apache Kafka as a system under test (`images.system`): one release, from Maven's archives, on Debian's Java 17.

The properties of a node are those of its role and address, then `defaults` and the settings of the spec; a setting that
is unknown here is passed through, and Kafka refuses what it cannot use when it starts. A node without `controllers`
beside it is a controller, too (`process.roles=broker,controller`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from images.kafka.decisions import recorded_decisions
from images.kafka.metadata_log import VoterLog, read_metadata_log, read_snapshots
from images.kafka.node_log import replica_log_events
from images.kafka.record_schemas import RecordSchemas
from images.system import Capability, RecordedEvent, Rule, Service, Shipment, System
from images.wire.codec import Malformed

_HERE = Path(__file__).parent

DEFAULT_VERSION: Final = "4.1.1"
"""The newest release of docs/kafka-versions.md."""
_OLDEST: Final = (3, 3)
"""KRaft is for production since 3.3."""
_VERSION: Final = re.compile(r"(\d+)\.(\d+)\.(\d+)")
_FEATURE: Final = re.compile(r"[a-z][a-z.]*")
_NUMBER: Final = re.compile(r"-?[0-9]+")
_OF_NUMBERS: Final = (".ms", ".bytes", ".messages")
"""Endings of settings that are whole numbers, each of them in Kafka; -1 stands for no limit in some."""
_SLF4J: Final = "org.slf4j:slf4j-simple:1.7.36"
"""Writes Kafka's log to standard error; releases choose no library for it when they come from Maven."""
_SCHEMAS: Final = "record-schemas.json"
"""Of metadata records, as a node left them among its files."""
_ON_MACHINES: Final = ("__init__.py", "__main__.py", "class_archive.py")
_PACKAGES: Final = ("openjdk-17-jre-headless",)
_JAVA_LEAST: Final = 17
"""KIP-1013."""
_JAVA_LEAST_BEFORE_4: Final = 8

DEFAULTS: Final[Mapping[str, str]] = {
    "broker.heartbeat.interval.ms": "500",
    "broker.session.timeout.ms": "3000",
    "replica.lag.time.max.ms": "3000",
    "replica.fetch.backoff.ms": "100",
    "replica.socket.timeout.ms": "1500",
    "replica.high.watermark.checkpoint.interval.ms": "1000",
    "controller.quorum.election.timeout.ms": "1000",
    "controller.quorum.fetch.timeout.ms": "2000",
    "min.insync.replicas": "2",
    "offsets.topic.num.partitions": "3",
    "offsets.commit.timeout.ms": "1500",
    "group.min.session.timeout.ms": "1000",
    "group.initial.rebalance.delay.ms": "500",
}
"""Settings of a run that differ from Kafka's own: a minute must see several elections."""

_SMALL: Final[Mapping[str, str]] = {
    "auto.create.topics.enable": "false",
    "log.index.size.max.bytes": "1048576",
    "log.cleaner.dedupe.buffer.size": "4194304",
    "num.io.threads": "4",
    "num.network.threads": "2",
}
"""Three nodes have room in 1 GiB; no promise depends on these."""

_PATIENT: Final[Mapping[str, str]] = {"initial.broker.registration.timeout.ms": "600000"}
"""A broker that has not registered by then ends itself: on a busy machine the controllers take minutes to start."""

_BROKER_NAMES: Final[Mapping[str, str]] = {
    "cleanup.policy": "log.cleanup.policy",
    "delete.retention.ms": "log.cleaner.delete.retention.ms",
    "file.delete.delay.ms": "log.segment.delete.delay.ms",
    "flush.messages": "log.flush.interval.messages",
    "flush.ms": "log.flush.interval.ms",
    "index.interval.bytes": "log.index.interval.bytes",
    "max.compaction.lag.ms": "log.cleaner.max.compaction.lag.ms",
    "max.message.bytes": "message.max.bytes",
    "message.timestamp.type": "log.message.timestamp.type",
    "min.cleanable.dirty.ratio": "log.cleaner.min.cleanable.ratio",
    "min.compaction.lag.ms": "log.cleaner.min.compaction.lag.ms",
    "preallocate": "log.preallocate",
    "retention.bytes": "log.retention.bytes",
    "retention.ms": "log.retention.ms",
    "segment.bytes": "log.segment.bytes",
    "segment.index.bytes": "log.index.size.max.bytes",
    "segment.jitter.ms": "log.roll.jitter.ms",
    "segment.ms": "log.roll.ms",
}
"""Kafka's topic name of a setting → its broker name, where they differ."""

_MIB: Final = 1 << 20
_NOT_KAFKAS: Final = ("faultline.", "unclean.recovery.")
"""Beginnings of settings that no release of Kafka has."""
_SINCE: Final[Mapping[str, tuple[int, int]]] = {"controller.quorum.fetch.snapshot.max.bytes": (4, 3)}
"""Setting → the first release that has it, of those that earlier ones leave aside without a word (KIP-1219)."""


@dataclass(frozen=True, slots=True)
class KafkaSystem:
    """Implements `images.system.System`. Raises ValueError for a version or a feature that is none."""

    version: str = DEFAULT_VERSION
    features: Mapping[str, str] = field(default_factory=dict)
    """Feature → level, for `storage format --feature`; those left out get the level of the release."""
    name: str = "kafka"
    recovery_limit_s: float = 90.0
    memory_bytes: int = 450 << 20
    capabilities: frozenset[Capability] = frozenset(
        {Capability.COMBINED_ROLES, Capability.CLOCKS, Capability.DECISIONS, Capability.EPOCH_CHECKPOINTS}
    )
    rules: tuple[Rule, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, str] = field(default_factory=lambda: DEFAULTS)

    def __post_init__(self) -> None:
        match = _VERSION.fullmatch(self.version)
        if match is None:
            raise ValueError(f"version: {self.version!r} is not a release of Kafka, such as {DEFAULT_VERSION}")
        if self._release < _OLDEST:
            raise ValueError(f"version: {self.version} is older than 3.3, the first that runs without ZooKeeper")
        for feature, level in self.features.items():
            if not _FEATURE.fullmatch(feature) or not level.isdecimal():
                raise ValueError(f"features: {feature}: {level} is not a feature's name and a level, a whole number")

    @property
    def _major(self) -> int:
        return self._release[0]

    @property
    def _release(self) -> tuple[int, int]:
        major, minor, _ = self.version.split(".")
        return int(major), int(minor)

    @property
    def shipment(self) -> Shipment:
        """The launcher, Java, and the archives of Kafka with its tools."""
        kafka = [f"org.apache.kafka:{artefact}:{self.version}" for artefact in ("kafka_2.13", "kafka-tools")]
        return Shipment(
            sources={f"images/kafka/{name}": _HERE / name for name in _ON_MACHINES},
            requirements=_HERE / "requirements.txt",
            dockerfile=_HERE / "Dockerfile",
            packages=_PACKAGES,
            jars=(*kafka, _SLF4J),
            java_least=_JAVA_LEAST if self._major >= 4 else _JAVA_LEAST_BEFORE_4,
        )

    def release(self, version: str, features: Mapping[str, str]) -> System:
        """Another release, with these feature levels; an empty version stands for the default."""
        return replace(self, version=version or DEFAULT_VERSION, features=dict(features))

    def check_settings(self, settings: Mapping[str, str]) -> None:
        """Raises ValueError for a setting that Kafka cannot have, or that the harness must understand and does not."""
        for name, value in settings.items():
            if name.startswith(_NOT_KAFKAS):
                raise ValueError(f"Kafka has no setting {name!r}")
            since = _SINCE.get(name, _OLDEST)
            if self._release < since:
                raise ValueError(f"Kafka {self.version} has no setting {name!r}; Kafka {since[0]}.{since[1]} has")
            if (DEFAULTS.get(name, "").isdecimal() and not value.isdecimal()) or (
                name.endswith(_OF_NUMBERS) and not _NUMBER.fullmatch(value)
            ):
                raise ValueError(f"{name}: {value!r} is not a whole number")
        least = {"metadata.log.segment.bytes": 8 * _MIB}
        if self._major >= 4:  # KIP-1030
            least |= {"segment.bytes": _MIB, "log.segment.bytes": _MIB}
        for name, bytes_least in least.items():
            value = settings.get(name, "")
            if value.isdecimal() and int(value) < bytes_least:
                raise ValueError(f"{name}: {value} is less than {bytes_least}, the least of Kafka {self.version}")

    def properties(
        self,
        *,
        node_id: int,
        role: str,
        host: str,
        port: int,
        voters: Sequence[tuple[int, str, int]],
        settings: Mapping[str, str],
        rules_off: Sequence[str] = (),
    ) -> str:
        """The properties file of one node; a broker that is among the voters is a controller, too. Raises ValueError
        naming what is wrong."""
        self.check_settings(settings)
        if rules_off:
            raise ValueError("Kafka has no rule switches")
        votes_at = {voter: (address, number) for voter, address, number in voters}
        listeners = {"PLAINTEXT": (host, port)} if role == "broker" else {}
        roles = [role]
        if node_id in votes_at:
            listeners["CONTROLLER"] = votes_at[node_id]
            roles = list(dict.fromkeys([role, "controller"]))
        lines = {
            "process.roles": ",".join(roles),
            "node.id": str(node_id),
            "listeners": ",".join(f"{name}://{address}:{number}" for name, (address, number) in listeners.items()),
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.voters": ",".join(f"{voter}@{address}:{number}" for voter, address, number in voters),
            **_SMALL,
            **_PATIENT,
            **DEFAULTS,
            **{_BROKER_NAMES.get(name, name): value for name, value in settings.items()},
        }
        return "".join(f"{name}={value}\n" for name, value in lines.items())

    def decisions(self, controllers: Mapping[int, Path]) -> Iterator[RecordedEvent]:
        """From the metadata logs and snapshots of the voters, by the schemas of the release that wrote them."""
        texts = [path.read_text() for path in (node / _SCHEMAS for node in controllers.values()) if path.exists()]
        if not texts:
            raise ValueError("no controller left the schemas of its metadata records")
        data = {node_id: node / "data" for node_id, node in controllers.items()}
        logs = {node_id: VoterLog(read_metadata_log(path), read_snapshots(path)) for node_id, path in data.items()}
        try:
            yield from recorded_decisions(logs, RecordSchemas(json.loads(texts[0])))
        except Malformed as error:
            raise ValueError(f"a metadata log cannot be read: {error}") from None

    def log_changes(self, brokers: Mapping[int, Path]) -> Iterator[RecordedEvent]:
        """From what the brokers print."""
        for node_id, node in brokers.items():
            if (path := node / "node.log").exists():
                with path.open(encoding="utf-8", errors="replace") as lines:
                    yield from replica_log_events(node_id, lines)

    def service(self, properties: str, home: str) -> Service:
        """A node with these properties, on a machine where `home` is its own directory."""
        config, data, schemas = f"{home}/node.properties", f"{home}/data", f"{home}/{_SCHEMAS}"
        features = (f"--feature={name}={level}" for name, level in self.features.items())
        return Service(
            argv=("python3", "-m", "images.kafka", config, data, schemas, *features),
            files={config: f"{properties}log.dirs={data}\n"},
            data=data,
            log=f"{home}/node.log",
            trace=None,
            stop_limit_s=60.0,
            records={_SCHEMAS: schemas},
        )


SYSTEM: System = KafkaSystem()
