"""A system under test that offers nothing but processes which answer Metadata: no rules, no trace, no simulation."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from images.system import Capability, RecordedEvent, Rule, Service, Shipment, System

HERE = Path(__file__).parent
STOP_LIMIT_S = 45.0


@dataclass(frozen=True, slots=True)
class TinySystem:
    """Implements `images.system.System`."""

    name: str = "tiny"
    version: str = ""
    recovery_limit_s: float = 30.0
    memory_bytes: int = 50 << 20
    capabilities: frozenset[Capability] = frozenset()
    rules: tuple[Rule, ...] = ()
    settings: Mapping[str, str] = field(default_factory=lambda: {"greeting": ""})
    defaults: Mapping[str, str] = field(
        default_factory=lambda: {"min.insync.replicas": "1", "broker.session.timeout.ms": "2000"}
    )
    shipment: Shipment = field(
        default_factory=lambda: Shipment(
            sources={"tests/systems/tiny": HERE, "images/wire": HERE.parents[2] / "images" / "wire"},
            requirements=HERE / "requirements.txt",
            dockerfile=HERE / "Dockerfile",
        )
    )

    def release(self, version: str, features: Mapping[str, str]) -> System:
        raise ValueError("version, features: system tiny has one release")

    def check_settings(self, settings: Mapping[str, str]) -> None:
        for name in settings:
            if name not in self.settings and name not in self.defaults:
                raise ValueError(f"the tiny system has no setting {name!r}")

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
        self.check_settings(settings)
        assert not rules_off
        return json.dumps({"id": node_id, "host": host, "port": port})

    def decisions(self, controllers: Mapping[int, Path]) -> Iterator[RecordedEvent]:
        """None: it decides nothing."""
        return iter(())

    def log_changes(self, brokers: Mapping[int, Path]) -> Iterator[RecordedEvent]:
        """None: its nodes do not say."""
        return iter(())

    def service(self, properties: str, home: str) -> Service:
        config = f"{home}/tiny.json"
        return Service(
            argv=("python3", "-m", "tests.systems.tiny.node", config),
            files={config: json.dumps({**json.loads(properties), "data": f"{home}/data"})},
            data=f"{home}/data",
            log=f"{home}/tiny.log",
            trace=None,
            stop_limit_s=STOP_LIMIT_S,
        )


TINY: System = TinySystem()
