"""Configuration of a node and of a topic: Kafka's keys, Kafka's defaults.

A node reads a properties file, the same for brokers and controllers. Keys of topics may be given there as the
broker-wide default (under Kafka's broker names, e.g. `min.insync.replicas`, `log.segment.bytes`) and per topic when it
is created (under Kafka's topic names, e.g. `min.insync.replicas`, `segment.bytes`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from images.broker.rules import Rules
from images.broker.truncation_protocol import TruncationProtocol

NO_THROTTLE_RATE = (1 << 63) - 1
_INT32_MAX = (1 << 31) - 1
_ANSWER_BYTES_MAX = 99 << 20
"""Largest batch, and largest answer that a node may ask another one for: its frame has to fit `MAX_FRAME_BYTES`, with
some room for what is said of each partition. A follower would ask in vain for ever."""


class ConfigError(ValueError):
    """An unknown key or an invalid value; the message is one line for the user."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A host and a port."""

    host: str
    port: int

    @classmethod
    def parse(cls, key: str, text: str) -> Self:
        """Read `[PLAINTEXT://]host:port`."""
        address = text.rpartition("://")[2]
        host, colon, port = address.rpartition(":")
        if not colon or not port.isdecimal() or not 0 <= int(port) <= 65535:
            raise ConfigError(f"{key}: {text!r} is not host:port")
        return cls(host, int(port))


@dataclass(frozen=True, slots=True)
class Voter:
    """A controller: its node id and where it listens."""

    id: int
    endpoint: Endpoint


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """The type, default and limits of one configuration key."""

    kind: type[int] | type[bool] | type[str] | type[list[str]]
    """The value of a list is its text: items divided by commas."""
    default: int | bool | str
    documentation: str
    minimum: int = 0
    choices: tuple[str, ...] = ()
    item_pattern: str = ""
    """The form of each item of a list."""
    maximum: int = (1 << 63) - 1

    def parse(self, name: str, text: str) -> int | bool | str:
        """The value in `text`. Raises ConfigError if it is none."""
        text = text.strip()
        if self.kind is bool:
            if text.lower() not in ("true", "false"):
                raise ConfigError(f"{name}: {text!r} is neither true nor false")
            return text.lower() == "true"
        if self.kind is int:
            try:
                number = int(text)
            except ValueError:
                raise ConfigError(f"{name}: {text!r} is not a whole number") from None
            if number < self.minimum:
                raise ConfigError(f"{name}: {number} is less than {self.minimum}")
            if number > self.maximum:
                raise ConfigError(f"{name}: {number} is more than {self.maximum}")
            return number
        if self.kind is list:
            for item in split_list(text):
                if text != "*" and not re.fullmatch(self.item_pattern, item):
                    raise ConfigError(f"{name}: {item!r} is not of the form {self.item_pattern}")
            return text
        if self.choices and text not in self.choices:
            raise ConfigError(f"{name}: {text!r} is not one of {', '.join(self.choices)}")
        return text


def split_list(text: str) -> list[str]:
    """The items of a list's text."""
    return [item.strip() for item in text.split(",")] if text else []


TOPIC_KEYS: Mapping[str, ConfigKey] = {
    "min.insync.replicas": ConfigKey(int, 1, "In-sync replicas an acks=all append needs.", minimum=1),
    "unclean.leader.election.enable": ConfigKey(bool, False, "Whether a replica outside ISR and ELR may be elected."),
    "unclean.recovery.strategy": ConfigKey(
        str,
        "last-known-leader",
        "Recovery of a partition without a leader: once ISR and ELR are empty, by the last leader (last-known-leader) "
        "or the best log of the LastKnownELR (balanced); by the best log of the replicas that answer (proactive); none "
        "(manual).",
        choices=("last-known-leader", "manual", "balanced", "proactive"),
    ),
    "segment.bytes": ConfigKey(int, 1 << 30, "Size at which a log segment is closed.", minimum=1024),
    "segment.ms": ConfigKey(int, 604_800_000, "Age of its first record at which a log segment is closed.", minimum=1),
    "retention.ms": ConfigKey(int, 604_800_000, "Age at which a closed segment is removed; -1 for never.", minimum=-1),
    "retention.bytes": ConfigKey(int, -1, "Size of a log above which its oldest segments go; -1 for none.", minimum=-1),
    "flush.messages": ConfigKey(int, (1 << 63) - 1, "Records between two forced flushes of a log.", minimum=1),
    "index.interval.bytes": ConfigKey(
        int,
        0,
        "Bytes of a segment between two entries of its offset index; with 0 every batch has one.",
        maximum=_INT32_MAX,
    ),
    "message.timestamp.after.max.ms": ConfigKey(
        int, 3_600_000, "How far ahead of the broker's clock a record's timestamp may be."
    ),
    "max.message.bytes": ConfigKey(
        int, 1_048_588, "Largest record batch accepted.", minimum=1, maximum=_ANSWER_BYTES_MAX
    ),
}
"""Keys a topic may set, by Kafka's topic name."""

BROKER_NAME_OF_TOPIC_KEY: Mapping[str, str] = {
    "min.insync.replicas": "min.insync.replicas",
    "unclean.leader.election.enable": "unclean.leader.election.enable",
    "unclean.recovery.strategy": "unclean.recovery.strategy",
    "segment.bytes": "log.segment.bytes",
    "segment.ms": "log.roll.ms",
    "retention.ms": "log.retention.ms",
    "retention.bytes": "log.retention.bytes",
    "flush.messages": "log.flush.interval.messages",
    "index.interval.bytes": "log.index.interval.bytes",
    "message.timestamp.after.max.ms": "log.message.timestamp.after.max.ms",
    "max.message.bytes": "message.max.bytes",
}
"""The broker-wide key that gives a topic key its default."""

_THROTTLED_REPLICAS = "Replicas of the topic, as partition:broker, whose {} is throttled; has no effect here."
_THROTTLED_RATE = "Bytes per second allowed to {}; has no effect here."

TOPIC_THROTTLE_KEYS: Mapping[str, ConfigKey] = {
    "leader.replication.throttled.replicas": ConfigKey(
        list, "", _THROTTLED_REPLICAS.format("leadership"), item_pattern=r"[0-9]+:[0-9]+"
    ),
    "follower.replication.throttled.replicas": ConfigKey(
        list, "", _THROTTLED_REPLICAS.format("following"), item_pattern=r"[0-9]+:[0-9]+"
    ),
}
"""Keys of a topic with which Kafka's tools throttle a reassignment: stored and described, without effect."""

BROKER_THROTTLE_KEYS: Mapping[str, ConfigKey] = {
    "leader.replication.throttled.rate": ConfigKey(int, NO_THROTTLE_RATE, _THROTTLED_RATE.format("throttled leaders")),
    "follower.replication.throttled.rate": ConfigKey(
        int, NO_THROTTLE_RATE, _THROTTLED_RATE.format("throttled followers")
    ),
    "replica.alter.log.dirs.io.max.bytes.per.second": ConfigKey(
        int, NO_THROTTLE_RATE, _THROTTLED_RATE.format("moves between log directories")
    ),
}
"""The keys of a broker that can be set while it runs: the other half of the same throttles."""

NODE_KEYS: Mapping[str, ConfigKey] = {
    "num.partitions": ConfigKey(int, 1, "Partitions of a topic created without a count.", minimum=1),
    "default.replication.factor": ConfigKey(int, 1, "Replicas of a topic created without a count.", minimum=1),
    "replica.lag.time.max.ms": ConfigKey(int, 30_000, "Longest time a follower in the ISR may lag.", minimum=1),
    "replica.fetch.wait.max.ms": ConfigKey(int, 500, "Longest wait of a follower's fetch at the leader.", minimum=1),
    "replica.fetch.max.bytes": ConfigKey(
        int, 1 << 20, "Bytes a follower fetches of one partition.", minimum=1, maximum=_ANSWER_BYTES_MAX
    ),
    "replica.fetch.response.max.bytes": ConfigKey(
        int, 10 << 20, "Bytes of one answer to a follower.", minimum=1, maximum=_ANSWER_BYTES_MAX
    ),
    "replica.fetch.backoff.ms": ConfigKey(int, 1_000, "Pause of a follower after a failed fetch.", minimum=1),
    "replica.socket.timeout.ms": ConfigKey(
        int, 30_000, "Time after which a request to another node is given up.", minimum=1
    ),
    "replica.high.watermark.checkpoint.interval.ms": ConfigKey(
        int, 5_000, "Time between two checkpoints of the high watermarks.", minimum=1
    ),
    "log.retention.check.interval.ms": ConfigKey(int, 300_000, "Time between two checks of the retention.", minimum=1),
    "producer.id.expiration.ms": ConfigKey(
        int, 86_400_000, "Age of an idempotent producer's newest batch at which its state expires.", minimum=1
    ),
    "producer.id.expiration.check.interval.ms": ConfigKey(
        int, 600_000, "Time between two removals of expired producer states.", minimum=1
    ),
    "max.incremental.fetch.session.cache.slots": ConfigKey(int, 1_000, "Fetch sessions kept at a time.", minimum=0),
    "min.incremental.fetch.session.eviction.ms": ConfigKey(
        int, 120_000, "Rest after which a fetch session makes room for a new one.", minimum=0
    ),
    "fetch.max.bytes": ConfigKey(int, 55 << 20, "Bytes of one answer to a consumer.", minimum=1024, maximum=_INT32_MAX),
    "socket.request.max.bytes": ConfigKey(
        int, 100 << 20, "Largest request accepted.", minimum=1024, maximum=_INT32_MAX
    ),
    "socket.connection.setup.timeout.ms": ConfigKey(
        int, 10_000, "Time after which opening a connection between controllers is given up.", minimum=1
    ),
    "broker.heartbeat.interval.ms": ConfigKey(int, 2_000, "Time between two heartbeats to the controller.", minimum=1),
    "broker.session.timeout.ms": ConfigKey(
        int, 9_000, "Silence after which the controller fences a broker.", minimum=1
    ),
    "controlled.shutdown.timeout.ms": ConfigKey(
        int, 30_000, "Time a stopping broker hands leadership over.", minimum=0
    ),
    "unclean.recovery.timeout.ms": ConfigKey(
        int, 300_000, "Time after which a proactive recovery waits for no more replicas.", minimum=0
    ),
    "controller.quorum.election.timeout.ms": ConfigKey(
        int, 1_000, "Least time a controller without a leader waits before it stands for election.", minimum=1
    ),
    "controller.quorum.fetch.timeout.ms": ConfigKey(
        int, 2_000, "Longest time without an answer of the active controller before another stands.", minimum=1
    ),
    "controller.quorum.election.backoff.max.ms": ConfigKey(
        int, 1_000, "Longest pause after an election that nobody won.", minimum=1
    ),
    "controller.quorum.request.timeout.ms": ConfigKey(
        int, 2_000, "Time after which a request between controllers is given up.", minimum=1
    ),
    "controller.quorum.retry.backoff.ms": ConfigKey(
        int, 20, "Pause before a failed request to a controller is sent to it, or another, again.", minimum=1
    ),
    "controller.quorum.fetch.snapshot.max.bytes": ConfigKey(
        int, 1 << 20, "Bytes of a metadata snapshot that are fetched at a time.", minimum=1, maximum=_ANSWER_BYTES_MAX
    ),
    "metadata.log.max.record.bytes.between.snapshots": ConfigKey(
        int, 20 << 20, "Bytes of metadata records after which a snapshot is written.", minimum=1
    ),
    "metadata.log.segment.bytes": ConfigKey(
        int, 1 << 30, "Size at which a segment of the metadata log is closed.", minimum=1024
    ),
    "offsets.topic.num.partitions": ConfigKey(
        int, 50, "Partitions of __consumer_offsets when it is created.", minimum=1
    ),
    "offsets.topic.replication.factor": ConfigKey(
        int, 3, "Replicas of __consumer_offsets when it is created.", minimum=1
    ),
    "offsets.commit.timeout.ms": ConfigKey(int, 5_000, "Time a committed offset may take to be replicated.", minimum=1),
    "offset.metadata.max.bytes": ConfigKey(
        int, 4_096, "Largest metadata of a committed offset.", minimum=0, maximum=(1 << 15) - 1
    ),
    "group.min.session.timeout.ms": ConfigKey(
        int, 6_000, "Least session timeout a group's member may ask for.", minimum=1
    ),
    "group.max.session.timeout.ms": ConfigKey(
        int, 1_800_000, "Largest session timeout a member may ask for.", minimum=1
    ),
    "faultline.protocol": ConfigKey(
        str,
        str(TruncationProtocol.TRUNCATE_ON_FETCH),
        "The truncation protocol of the followers.",
        choices=tuple(map(str, TruncationProtocol)),
    ),
    "faultline.release": ConfigKey(
        str,
        str(TruncationProtocol.TRUNCATE_ON_FETCH),
        "The newest truncation protocol whose requests are answered, as by a Kafka that knows no later one.",
        choices=tuple(map(str, TruncationProtocol)),
    ),
    "faultline.producer.id.block.size": ConfigKey(
        int, 1_000, "Producer ids that a broker is given at a time; in Kafka always as many as by default.", minimum=1
    ),
    "group.initial.rebalance.delay.ms": ConfigKey(int, 3_000, "Time an empty group waits for more members.", minimum=0),
}
"""Keys of a node that are single values, by Kafka's broker name."""

_STRUCTURAL_KEYS = (
    "process.roles",
    "node.id",
    "cluster.id",
    "listeners",
    "advertised.listeners",
    "controller.quorum.voters",
    "log.dirs",
    "faultline.rules.off",
)

CONFIRMATION_WAIT_S = 0.5
"""The least time that a read of the latest offset, or of committed offsets, waits for the in-sync followers to confirm
it. A follower does so with a fetch upon an answer that was sent after the read began: that takes a round trip between
the brokers, or two if its last fetch is under way, however short its fetches wait at the leader. Where a round trip
takes longer than the whole wait, no such read is answered."""

DEFAULT_CLUSTER_ID = "ZmF1bHRsaW5lLWNsdXN0ZQ"


def read_properties(text: str) -> dict[str, str]:
    """Java properties as Kafka's files use them: `key=value` lines, `#` comments. ConfigError names a broken line."""
    properties: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        line = line.strip()
        if not line or line.startswith(("#", "!")):
            continue
        key, equals, value = line.partition("=")
        if not equals:
            raise ConfigError(f"line {number}: {line!r} is not key=value")
        properties[key.strip()] = value.strip()
    return properties


def check_protocol(values: Mapping[str, object]) -> None:
    """Raise ConfigError if the truncation protocol in `values` came after their release."""
    protocol, release = (
        TruncationProtocol(str(values.get(name, NODE_KEYS[name].default)))
        for name in ("faultline.protocol", "faultline.release")
    )
    if not release.came_with_or_after(protocol):
        raise ConfigError(f"faultline.protocol: {str(protocol)!r} is later than faultline.release, {str(release)!r}")


def parse_topic_config(settings: Mapping[str, str]) -> dict[str, int | bool | str]:
    """Check and read a topic's own settings; ConfigError names an unknown key or a bad value."""
    parsed: dict[str, int | bool | str] = {}
    for name, text in settings.items():
        key = topic_key(name)
        if key is None:
            raise ConfigError(f"unknown topic configuration {name!r}")
        parsed[name] = key.parse(name, text)
    return parsed


def topic_key(name: str) -> ConfigKey | None:
    """The key that a topic may set under `name`."""
    return TOPIC_KEYS.get(name) or TOPIC_THROTTLE_KEYS.get(name)


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """The settings in force for one topic."""

    min_insync_replicas: int
    segment_bytes: int
    segment_ms: int
    retention_ms: int
    retention_bytes: int
    flush_interval_messages: int
    index_interval_bytes: int
    timestamp_after_ms_max: int
    max_batch_bytes: int


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """The configuration of one node."""

    node_id: int
    roles: tuple[str, ...]
    listener: Endpoint
    advertised: Endpoint
    voters: tuple[Voter, ...]
    cluster_id: str
    log_directory: str
    rules: Rules
    values: Mapping[str, int | bool | str]
    """Every key of NODE_KEYS, and the broker-wide default of every topic key under its broker name."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a properties file. Raises ConfigError with one line naming the key, the value and what is wrong."""
        properties = read_properties(text)
        topic_key_of = {broker: topic for topic, broker in BROKER_NAME_OF_TOPIC_KEY.items()}
        values: dict[str, int | bool | str] = {name: key.default for name, key in NODE_KEYS.items()}
        values |= {broker: TOPIC_KEYS[topic].default for broker, topic in topic_key_of.items()}
        for name, value in properties.items():
            if name in _STRUCTURAL_KEYS:
                continue
            key = NODE_KEYS.get(name) or TOPIC_KEYS.get(topic_key_of.get(name, ""))
            if key is None:
                raise ConfigError(f"unknown configuration {name!r}")
            values[name] = key.parse(name, value)
        check_protocol(values)
        roles = tuple(role.strip() for role in _required(properties, "process.roles").split(","))
        if roles not in (("broker",), ("controller",)):
            raise ConfigError(f"process.roles: {','.join(roles)!r} is neither 'broker' nor 'controller'")
        node_id = _required(properties, "node.id")
        if not node_id.isdecimal():
            raise ConfigError(f"node.id: {node_id!r} is not a whole number")
        voters = _parse_voters(_required(properties, "controller.quorum.voters"))
        _check_voters(int(node_id), roles, voters)
        listener = Endpoint.parse("listeners", _required(properties, "listeners"))
        advertised = properties.get("advertised.listeners")
        return cls(
            node_id=int(node_id),
            roles=roles,
            listener=listener,
            advertised=Endpoint.parse("advertised.listeners", advertised) if advertised else listener,
            voters=voters,
            cluster_id=properties.get("cluster.id", DEFAULT_CLUSTER_ID),
            log_directory=properties.get("log.dirs", "data"),
            rules=_parse_rules(properties.get("faultline.rules.off", "")),
            values=values,
        )

    def number(self, name: str) -> int:
        """The whole number configured under `name`."""
        value = self.values[name]
        assert isinstance(value, int)
        return value

    def seconds(self, name: str) -> float:
        """The duration configured under `name`, a key in milliseconds, in seconds."""
        return self.number(name) / 1000

    @property
    def confirmation_wait_s(self) -> float:
        """Longest time that a read waits for the in-sync followers to confirm it: that of one of their fetches, and at
        least CONFIRMATION_WAIT_S."""
        return max(self.seconds("replica.fetch.wait.max.ms"), CONFIRMATION_WAIT_S)

    def text(self, name: str) -> str:
        """The word configured under `name`."""
        return str(self.values[name])

    def topic(self, settings: Mapping[str, str]) -> TopicConfig:
        """The settings in force for a topic that was created with `settings`."""
        own = parse_topic_config(settings)

        def value(name: str) -> int:
            setting = own.get(name, self.values[BROKER_NAME_OF_TOPIC_KEY[name]])
            assert isinstance(setting, int)
            return setting

        return TopicConfig(
            min_insync_replicas=value("min.insync.replicas"),
            segment_bytes=value("segment.bytes"),
            segment_ms=value("segment.ms"),
            retention_ms=value("retention.ms"),
            retention_bytes=value("retention.bytes"),
            flush_interval_messages=value("flush.messages"),
            index_interval_bytes=value("index.interval.bytes"),
            timestamp_after_ms_max=value("message.timestamp.after.max.ms"),
            max_batch_bytes=value("max.message.bytes"),
        )


def _required(properties: Mapping[str, str], name: str) -> str:
    value = properties.get(name)
    if not value:
        raise ConfigError(f"{name} is missing")
    return value


def _parse_voters(text: str) -> tuple[Voter, ...]:
    voters = []
    for item in text.split(","):
        identity, at, address = item.strip().partition("@")
        if not at or not identity.isdecimal():
            raise ConfigError(f"controller.quorum.voters: {item.strip()!r} is not id@host:port")
        voters.append(Voter(int(identity), Endpoint.parse("controller.quorum.voters", address)))
    return tuple(voters)


def _check_voters(node_id: int, roles: tuple[str, ...], voters: tuple[Voter, ...]) -> None:
    """Node ids are unique in a cluster: as in Kafka, a node is a voter if and only if it is a controller."""
    if (node_id in [voter.id for voter in voters]) != (roles == ("controller",)):
        rule = "must not be the id of a voter of" if roles == ("broker",) else "must be the id of a voter of"
        raise ConfigError(f"node.id: the id {node_id} of a {roles[0]} {rule} controller.quorum.voters")


def _parse_rules(text: str) -> Rules:
    try:
        return Rules().without(name.strip() for name in text.split(",") if name.strip())
    except ValueError as error:
        raise ConfigError(f"faultline.rules.off: {error}") from None
