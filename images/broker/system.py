"""The prototype broker as a system under test (`images.system`)."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from images.broker.config import BROKER_NAME_OF_TOPIC_KEY, NODE_KEYS, TOPIC_KEYS, ConfigError, check_protocol
from images.broker.rules import DESCRIPTIONS, Rules
from images.system import Capability, RecordedEvent, Rule, Service, Shipment, System

_HERE = Path(__file__).parent
_IMAGES = _HERE.parent

_DEFAULTS: Mapping[str, str] = {
    "broker.heartbeat.interval.ms": "300",
    "broker.session.timeout.ms": "2000",
    "replica.lag.time.max.ms": "2000",
    "replica.fetch.wait.max.ms": "500",
    "replica.fetch.backoff.ms": "100",
    "replica.socket.timeout.ms": "1500",
    "replica.high.watermark.checkpoint.interval.ms": "1000",
    "controlled.shutdown.timeout.ms": "5000",
    "log.retention.check.interval.ms": "1000",
    "controller.quorum.election.timeout.ms": "500",
    "controller.quorum.fetch.timeout.ms": "1000",
    "controller.quorum.election.backoff.max.ms": "300",
    "controller.quorum.request.timeout.ms": "500",
    "controller.quorum.retry.backoff.ms": "50",
    "socket.connection.setup.timeout.ms": "2000",
    "metadata.log.segment.bytes": "4096",
    "metadata.log.max.record.bytes.between.snapshots": "8192",
    "min.insync.replicas": "2",
    "unclean.recovery.timeout.ms": "3000",
    "offsets.topic.num.partitions": "3",
    "offsets.commit.timeout.ms": "1500",
    "group.min.session.timeout.ms": "1000",
    "group.initial.rebalance.delay.ms": "500",
}
"""Settings of a run that differ from Kafka's defaults: a minute must see several elections."""


_SHIPMENT = Shipment(
    sources={
        "images/broker": _HERE,
        "images/wire": _IMAGES / "wire",
        "images/trace.py": _IMAGES / "trace.py",
        "images/system.py": _IMAGES / "system.py",
    },
    requirements=_HERE / "requirements.txt",
    dockerfile=_HERE / "Dockerfile",
)


@dataclass(frozen=True, slots=True)
class BrokerSystem:
    """Implements `images.system.System`."""

    name: str = "broker"
    version: str = ""
    recovery_limit_s: float = 30.0
    memory_bytes: int = 80 << 20
    capabilities: frozenset[Capability] = frozenset(Capability) - {
        Capability.COMBINED_ROLES,
        Capability.DECISIONS,
        Capability.EPOCH_CHECKPOINTS,
    }
    rules: tuple[Rule, ...] = tuple(Rule(rule.name, rule.protects, rule.source) for rule in DESCRIPTIONS)
    settings: Mapping[str, str] = field(
        default_factory=lambda: {
            **{name: str(key.default) for name, key in NODE_KEYS.items()},
            **{BROKER_NAME_OF_TOPIC_KEY[name]: str(key.default) for name, key in TOPIC_KEYS.items()},
        }
    )
    defaults: Mapping[str, str] = field(default_factory=lambda: _DEFAULTS)
    shipment: Shipment = field(default_factory=lambda: _SHIPMENT)

    def release(self, version: str, features: Mapping[str, str]) -> System:
        """Raises ValueError: there is one, that of the source tree."""
        raise ValueError("version, features: system broker has one release, that of this source tree")

    def check_settings(self, settings: Mapping[str, str]) -> None:
        """Raises ConfigError, in one line, for a setting that is unknown or has a bad value."""
        broker_names = {broker: topic for topic, broker in BROKER_NAME_OF_TOPIC_KEY.items()}
        for name, value in settings.items():
            key = NODE_KEYS.get(name) or TOPIC_KEYS.get(broker_names.get(name, name))
            if key is None:
                close = difflib.get_close_matches(name, (*NODE_KEYS, *TOPIC_KEYS, *broker_names), n=1)
                raise ConfigError(
                    f"unknown configuration {name!r}" + "".join(f"; did you mean {each}?" for each in close)
                )
            key.parse(name, value)
        check_protocol(settings)

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
        """The properties file of one node. `settings` may use Kafka's broker names or its topic names; `voters` are
        (id, host, port) of the controllers. Raises ConfigError or ValueError naming what is wrong."""
        self.check_settings(settings)
        Rules().without(rules_off)
        given = {BROKER_NAME_OF_TOPIC_KEY.get(name, name): value for name, value in settings.items()}
        lines = {
            "process.roles": role,
            "node.id": str(node_id),
            "listeners": f"PLAINTEXT://{host}:{port}",
            "controller.quorum.voters": ",".join(f"{voter}@{address}:{number}" for voter, address, number in voters),
            **_DEFAULTS,
            **given,
        }
        if rules_off:
            lines["faultline.rules.off"] = ",".join(rules_off)
        return "".join(f"{name}={value}\n" for name, value in lines.items())

    def decisions(self, controllers: Mapping[int, Path]) -> Iterator[RecordedEvent]:
        """None: the trace has them."""
        return iter(())

    def log_changes(self, brokers: Mapping[int, Path]) -> Iterator[RecordedEvent]:
        """None: the trace has them."""
        return iter(())

    def service(self, properties: str, home: str) -> Service:
        """A node with these properties, on a machine where `home` is its own directory."""
        config, data, trace = f"{home}/node.properties", f"{home}/data", f"{home}/trace.jsonl"
        return Service(
            argv=("python3", "-m", "images.broker", config, "--trace", trace),
            files={config: f"{properties}log.dirs={data}\n"},
            data=data,
            log=f"{home}/node.log",
            trace=trace,
            stop_limit_s=30.0,
        )


SYSTEM: System = BrokerSystem()
