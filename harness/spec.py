"""A spec: everything that decides what a run does.

A spec is YAML, every field optional:

    name: two-victims           # name of the run (default: the file's name, else the workload's)
    environment: sim            # sim, docker or ssh
    system: broker              # the system under test: broker or kafka
    version: 4.1.1              # release of the system, where it has several (default: the newest that was tried)
    features: {eligible.leader.replicas.version: 1}     # Kafka's feature levels (default: those of the release)
    workload: append            # append, or groups: consumers form a group that comes and goes
    seed: 7                     # random seed (default: random, and recorded)
    time_limit: 60s             # how long clients and faults run
    ready_limit: 120s           # longest time without progress while the cluster becomes ready, before any fault
    recovery_limit: 30s         # time in which the healed cluster must be ready again (default: 30 s; of kafka 90 s)
    brokers: 3                  # number of brokers, called b1, b2, b3 …
    controllers: 3              # controllers, called c1, c2 …: the quorum that keeps the metadata; 0: the brokers do
    partitions: 2               # number of partitions of the one topic, called 0, 1 …
    replication_factor: 3       # replicas of a partition (default: 3, or the number of brokers when that is less)
    producers: 3                # clients that append
    consumers: 2                # clients that read; with groups: members of the group at a time
    end_offset_readers: 1       # clients that ask for the latest offset (ListOffsets)
    rate: 20                    # appends per second, all producers together
    acks: all                   # all, 1 or 0
    recency: default            # or strict: an empty poll at its high watermark asserts the end of the log
    clients: {batch: 1}         # everything else about clients, and scripted operations (harness/client_spec.py)
    faults: all                 # all, none, a list of families, or a script (nemesis/schedule.py)
    triggers: 0                 # share of the drawn faults that wait for a condition, not for a time alone
    channels: 0                 # share of the drawn faults of links that hit one kind of connection alone,
                                # such as fetches; above 0 one kind may be slow throughout, too
    blackouts: 0                # share of the drawn faults that cut power in or after clean stops, or all at once
    schedules: 1                # number of drawn schedules at the same time: more make a run denser
    administrators: 0           # administrators that change a second topic during the run (needs the family `admin`)
    losses: promised            # data that drawn faults take: none, or promised: as much as the protocol survives
    vary: false                 # true: draw all of the world that is not given; a list: these alone (harness/worlds.py)
    drawn: {}                   # written by a run into its own spec: what was drawn
    settings: {min.insync.replicas: 2}      # Kafka's settings of brokers and topics: retention.ms, segment.bytes …
    node_settings:              # settings of single nodes, on top of `settings`: a cluster of mixed versions
      b1: {faultline.protocol: kip279}
    without: [maximal_isr]      # safety rules to switch off; consumer.validate_position is one of the native client
    mistakes: [fenced_replica_elected]       # patches of the broker, in simulation (harness/environments/mistakes.yaml)
    hosts:                      # host of each node, all of them needed with environment: ssh (harness/cluster/hosts.py)
      b1: {address: 192.0.2.11, user: root, port: 22, key: ~/.ssh/lab, known_hosts: ~/.ssh/known_hosts}

Numbers have limits (`harness.cluster.run_limits`), and so have files (`harness.yaml_document`). Options of the command
line override it. The `spec.yaml` of a run directory has all defaults, the random seed and the world drawn: it repeats
the run under the defaults of a later version, too.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from random import Random
from typing import Any, Final

from checkers.evidence import CheckSettings, default_retention_ms, longest_silence_ms, permits_unclean_elections
from checkers.liveness.log_starts import hears_within_ms
from harness import worlds
from harness.client_spec import (
    NATIVE,
    ClientSpec,
    ScriptedOperation,
    check_operations,
    parse_clients,
    parse_operations,
    with_validation,
)
from harness.cluster.hosts import Host, check_hosts
from harness.cluster.run_limits import CHOICES, LIMITS, check_limits
from harness.cluster.systems import system_named
from harness.environments.mistakes import mistakes
from harness.environments.registry import COMPARABLE_CLOCKS, ENVIRONMENTS
from harness.yaml_document import SpecError, YamlDocument, is_about, parse_document, read_document
from images.system import Capability, System
from nemesis.cluster_shape import RECOVERY_STRATEGY, ClusterShape, facts_of
from nemesis.fields import FieldError, check_names, convert, read
from nemesis.ports import SIDE_TOPICS, EnvironmentCapability
from nemesis.registry import FAIR_FAMILIES, FAMILIES
from nemesis.schedule import Schedule, parse_faults
from nemesis.swarm import NO_EXTRAS, draw
from results.run import stored_yaml
from workloads.clients import consumer_rules
from workloads.operations import CreateTopic
from workloads.registry import WORKLOADS

ACKS: Final[Mapping[str, int]] = {"all": -1, "-1": -1, "1": 1, "0": 0}
SEEDS: Final = 1 << 32
"""A drawn seed lies below this."""
TOPIC: Final = "faultline"
"""Of every run's workload."""
PATIENCE_SETTINGS: Final = ("replica.lag.time.max.ms", "broker.session.timeout.ms")
"""How long leaders and controllers wait for a silent broker; a cluster is watched for as long before it is ready."""
PATIENCE_MS_MAX: Final = 7 * 86_400_000
"""Of each of them: a run would never end."""

PROSE: Final = ("title", "source", "story")
"""Fields for readers, of any spec; a run leaves them aside."""
INCIDENT_FIELDS: Final = ("variants", "expect", "docker")
"""Fields that make a file an incident (`harness.incidents.incident`): a spec with one of them is refused."""

_WRITTEN_IF_GIVEN: Final = ("version", "features", "mistakes", "vary", "drawn", "hosts")
"""Fields that a stored spec has only where they say something."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """See the module's docstring. Raises ValueError naming the field that is wrong."""

    name: str = ""
    environment: str = "sim"
    system: str = "broker"
    version: str = ""
    """Filled in on construction for a system that has several."""
    features: Mapping[str, str] = field(default_factory=dict)
    workload: str = "append"
    seed: int = 0
    time_limit_s: float = 60.0
    ready_limit_s: float = 120.0
    recovery_limit_s: float = 0.0
    brokers: int = 3
    controllers: int = 3
    partitions: int = 2
    replication_factor: int = 0
    """0 stands for 3, or the number of brokers when that is less; it is filled in on construction."""
    producers: int = 3
    consumers: int = 2
    end_offset_readers: int = 1
    rate: float = 20.0
    acks: str = "all"
    recency: str = "default"
    clients: ClientSpec = field(default_factory=ClientSpec)
    operations: tuple[ScriptedOperation, ...] = ()
    """The script of the clients."""
    families: tuple[str, ...] = FAIR_FAMILIES
    """Fault families to draw from; empty with a script."""
    triggers: float = 0.0
    channels: float = 0.0
    blackouts: float = 0.0
    schedules: int = 1
    administrators: int = 0
    losses: str = "promised"
    script: Schedule = field(default_factory=Schedule)
    settings: Mapping[str, str] = field(default_factory=dict)
    node_settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    without: tuple[str, ...] = ()
    mistakes: tuple[str, ...] = ()
    """Patches of the broker (`harness.environments.mistakes`)."""
    vary: tuple[str, ...] = ()
    """The dimensions of its world that are still to be drawn (`harness.drawn_spec`)."""
    drawn: Mapping[str, str] = field(default_factory=dict)
    hosts: Mapping[str, Host] = field(default_factory=dict)
    """By node; environments other than ssh leave them aside."""

    def __post_init__(self) -> None:
        fill = object.__setattr__
        if not self.name:
            fill(self, "name", self.workload)
        if not self.replication_factor:
            fill(self, "replication_factor", min(3, self.brokers))
        for name, choices in {"environment": ENVIRONMENTS, "workload": WORKLOADS, **CHOICES}.items():
            if getattr(self, name) not in choices:
                raise ValueError(f"{name}: {getattr(self, name)!r} is not one of {', '.join(choices)}")
        system = self.deployed_system
        fill(self, "version", system.version)
        fill(self, "recovery_limit_s", self.recovery_limit_s or system.recovery_limit_s)
        fill(self, "settings", {**system.defaults, **self.settings})
        fill(self, "acks", {-1: "all", 1: "1", 0: "0"}.get(ACKS.get(self.acks, 2), self.acks))
        self._check()

    def _check(self) -> None:
        numbers = {name: getattr(self, name) for name in LIMITS}
        check_limits(self.name, (self.settings, *self.node_settings.values()), numbers, len(self.script))
        replicas = self.replication_factor
        if replicas > self.brokers:
            raise ValueError(f"replication_factor: {replicas} replicas do not fit on {self.brokers} brokers")
        if (idle := self.clients.idle_partitions) >= self.partitions:
            raise ValueError(f"clients.idle_partitions: {idle} leaves none of {self.partitions} partitions")
        pipeline = worlds.greatest("clients.pipeline", self.clients.pipeline, self.vary)
        if self.clients.burst > pipeline:
            raise ValueError(f"clients.burst: {self.clients.burst} is more than clients.pipeline, {pipeline}")
        if self.acks not in ACKS:
            raise ValueError(f"acks: {self.acks!r} is not one of all, 1, 0")
        for name in ("rate", "time_limit_s", "ready_limit_s", "recovery_limit_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name.removesuffix('_s')}: {getattr(self, name):g} is not more than 0")
        self._check_system(self.deployed_system)
        if self.clients.library != NATIVE:
            self._check_library(self.clients.library)
        for family in self.families:
            if family not in FAMILIES:
                raise ValueError(f"faults: {family!r} is not one of {', '.join(FAMILIES)}, all, none")
        brokers, controllers = self.broker_names, self.controller_names
        operation_ids = [scripted.id for scripted in self.operations if scripted.id]
        self.script.check(brokers, controllers, self.partitions, operation_ids)
        nodes = (*brokers, *controllers, *self.script.bound_names)
        check_operations(self.operations, nodes, (*self.script.steps, *operation_ids), TOPIC, self.partitions)
        check_hosts(self.hosts, (*brokers, *controllers), all_needed=self.environment == "ssh")
        for number, planned in enumerate(self.script):
            if planned.at_s >= self.time_limit_s:
                raise ValueError(
                    f"faults[{number}].at: {planned.at_s:g} s is not before the time limit of {self.time_limit_s:g} s"
                )

    def _check_system(self, system: System) -> None:
        """Raise ValueError for a setting that is none of the system's, or a capability that it lacks."""
        try:
            system.check_settings(self.settings)
        except ValueError as error:
            raise ValueError(f"settings: {error}") from None
        for name in PATIENCE_SETTINGS:
            if int(self.settings.get(name, 0)) > PATIENCE_MS_MAX:
                raise ValueError(f"settings.{name}: {self.settings[name]} is more than the limit of {PATIENCE_MS_MAX}")
        nodes = (*self.broker_names, *self.controller_names)
        for node, settings in self.node_settings.items():
            if node not in nodes:
                raise ValueError(f"node_settings: {node!r} is not one of {', '.join(nodes)}")
            try:
                system.check_settings({**self.settings, **settings})
            except ValueError as error:
                raise ValueError(f"node_settings.{node}: {error}") from None
        if self.environment == "sim" and Capability.SIMULATION not in system.capabilities:
            others = ", ".join(name for name in ENVIRONMENTS if name != "sim")
            raise ValueError(f"environment: system {system.name} does not run in simulation; choose one of {others}")
        if not self.controllers and Capability.COMBINED_ROLES not in system.capabilities:
            raise ValueError(f"controllers: 0 is less than 1, since the brokers of system {system.name} are none")
        if self.system_rules_off and Capability.RULES not in system.capabilities:
            raise ValueError(f"without: system {system.name} has no rule switches")
        rules = {rule.name for rule in system.rules}
        for name in self.system_rules_off:
            if name not in rules:
                raise ValueError(f"without: {name!r} is not a rule; `faultline rules` lists them")
        if self.mistakes and self.environment != "sim":
            raise ValueError(f"mistakes: only brokers in the simulation are patched, not those of {self.environment}")
        for name in self.mistakes:
            if name not in mistakes():
                raise ValueError(f"mistakes: {name!r} is not one of {', '.join(mistakes())}")

    def _check_library(self, library: str) -> None:
        """Raise ValueError for a field that clients of another library than the native one cannot carry."""
        if self.environment == "sim":
            others = ", ".join(name for name in ENVIRONMENTS if name != "sim")
            reason = f"{library} needs real sockets; choose {NATIVE}, or an environment: {others}"
            raise ValueError(f"clients.library: {reason}")
        lacks = (
            ("workload", self.workload == "groups", "members of a group"),
            ("clients.operations", bool(self.operations), "a script"),
            ("recency", self.recency == "strict", "polls that prove where the log ends: it fetches ahead"),
            ("without", bool(self.consumer_rules_off), f"the switch {' '.join(self.consumer_rules_off)}"),
        )
        for name, asked, lacking in lacks:
            if asked:
                raise ValueError(f"{name}: clients.library {library} does not have {lacking}; {NATIVE} does")

    @property
    def deployed_system(self) -> System:
        """The system under test, in its release. Raises ValueError."""
        return system_named(self.system, self.version, self.features)

    @property
    def broker_names(self) -> tuple[str, ...]:
        """As faults and settings name the brokers."""
        return tuple(f"b{number}" for number in range(1, self.brokers + 1))

    @property
    def controller_names(self) -> tuple[str, ...]:
        """As faults and settings name the controllers."""
        return tuple(f"c{number}" for number in range(1, self.controllers + 1))

    @property
    def system_rules_off(self) -> tuple[str, ...]:
        """The rules of the system under test that are switched off."""
        return tuple(name for name in self.without if name not in consumer_rules.NAMES)

    @property
    def consumer_rules_off(self) -> tuple[str, ...]:
        """The rules of the native client's consumer that are switched off."""
        return tuple(name for name in consumer_rules.NAMES if name in self.without)

    @property
    def min_insync_replicas(self) -> int:
        """As the settings have it."""
        return int(self.settings["min.insync.replicas"])

    @property
    def unclean_recovery(self) -> str:
        """The strategy for unclean recovery: that of the settings, else the default of the system."""
        return self.settings.get(RECOVERY_STRATEGY, self.deployed_system.settings.get(RECOVERY_STRATEGY, "manual"))

    @property
    def steady_s(self) -> float:
        """How long a cluster must stay ready: longer than a silent follower stays in sync, a silent broker unfenced."""
        return sum(int(self.settings[name]) for name in PATIENCE_SETTINGS if name in self.settings) / 1000

    @property
    def conditional(self) -> bool:
        """Whether any fault or operation may wait for a condition."""
        drawn = bool(self.families and self.triggers)
        return drawn or self.script.conditional or any(scripted.when is not None for scripted in self.operations)

    @property
    def faults_asked(self) -> bool:
        """Whether the run has any faults."""
        return bool(self.families or self.script)

    def schedule(
        self,
        brokers: Sequence[str],
        controllers: Sequence[str],
        random: Random,
        unsupported: Collection[EnvironmentCapability] = (),
        injection_s: float = 0.0,
    ) -> Schedule:
        """The faults of the run: the script, or a draw from `random` for an environment that lacks `unsupported` and
        takes `injection_s` to inject a fault."""
        if not self.families:
            return self.script
        cluster = self.cluster_shape(brokers, controllers, unsupported, injection_s)
        return draw(random, cluster, self.time_limit_s, self.families, **{it: getattr(self, it) for it in NO_EXTRAS})

    def with_script(self, script: Schedule) -> Spec:
        """The spec with these faults, and none that are drawn."""
        return replace(self, families=(), script=script, **NO_EXTRAS)

    def cluster_shape(
        self,
        brokers: Sequence[str],
        controllers: Sequence[str],
        unsupported: Collection[EnvironmentCapability] = (),
        injection_s: float = 0.0,
    ) -> ClusterShape:
        """The facts from which faults are drawn."""
        return ClusterShape(
            brokers=tuple(brokers),
            controllers=tuple(controllers),
            partitions=self.partitions,
            min_insync_replicas=min(self.min_insync_replicas, self.replication_factor),
            replication_factor=self.replication_factor,
            patience_s=max(0.1, int(self.settings["broker.session.timeout.ms"]) / 1000),
            request_timeout_s=self.clients.request_timeout_s,
            unsupported=unsupported,
            injection_s=injection_s,
            always_written=self.clients.written_share == 1 and not self.clients.idle_partitions,
            has_groups=self.workload == "groups",
            keeps_data=self.losses == "none",
            **facts_of(self.settings),
        )

    def check_settings(self) -> CheckSettings:
        """The facts about the run that the checkers need."""
        capabilities = self.deployed_system.capabilities
        clock_gain_ms = round(self.script.clock_gain_ms(self.time_limit_s))
        return CheckSettings(
            acks=ACKS[self.acks],
            min_insync_replicas=self.min_insync_replicas,
            replication_factor=self.replication_factor,
            unclean_election=permits_unclean_elections(self.settings, self.unclean_recovery, self.script.configured),
            unclean_recovery=self.unclean_recovery,
            recency=self.recency,
            time_limit_ns=round(self.time_limit_s * 1e9),
            faults_asked=self.faults_asked,
            has_trace=Capability.TRACE in capabilities,
            has_decisions=Capability.DECISIONS in capabilities,
            has_epoch_checkpoints=Capability.EPOCH_CHECKPOINTS in capabilities,
            confirmed_ends=Capability.CONFIRMED_ENDS in capabilities,
            comparable_clocks=self.environment in COMPARABLE_CLOCKS,
            network_is_witness=self.environment == "sim",
            brokers=self.brokers,
            retention_ms=self._setting("retention.ms", default_retention_ms(clock_gain_ms)),
            retention_bytes=self._setting("retention.bytes", -1),
            retention_check_ms=-1 if self.node_settings else self._setting("log.retention.check.interval.ms", -1),
            clock_gain_ms=clock_gain_ms,
            producer_id_expiration_ms=self._setting("producer.id.expiration.ms", 86_400_000),
            expiry_check_ms=-1 if self.node_settings else self._setting("producer.id.expiration.check.interval.ms", -1),
            flush_messages=0 if self.node_settings else self._setting("flush.messages", 0),
            replica_lag_ms=-1 if self.node_settings else int(self.settings.get(PATIENCE_SETTINGS[0], -1)),
            controller_silence_ms=-1 if self.node_settings else longest_silence_ms(self.settings),
            leader_heard_ms=hears_within_ms((self.settings, *self.node_settings.values())),
            mixed_settings=bool(self.node_settings),
            offset_reset=self.clients.auto_offset_reset,
            planned_appends=round(self.rate * self.time_limit_s) if self.producers else 0,
            consumers=self.consumers,
            groups=self.workload == "groups",
            time_readers=self.clients.time_readers,
            clock_error_ms=round(self.clients.clock_error_s * 1000),
            topic=TOPIC,
            partitions=self.partitions,
            controllers=self.controllers,
            script_topics=self.script_topics,
            side_topics=SIDE_TOPICS,
            script_commits=any(each.operation.of_group for each in self.operations),
        )

    @property
    def script_topics(self) -> tuple[str, ...]:
        """The topics that the clients' script creates."""
        return tuple(each.operation.topic for each in self.operations if isinstance(each.operation, CreateTopic))

    def _setting(self, key: str, default: int) -> int:
        """As the settings have it, for topics or for brokers."""
        return int(self.settings.get(key, self.settings.get(f"log.{key}", default)))

    def to_yaml(self) -> str:
        """The spec, read back by `parse` as the same value: complete but for what is still to be drawn."""
        clients = self._without_undrawn(self.clients.to_mapping(), "clients.")
        if self.operations:
            clients["operations"] = [scripted.to_mapping() for scripted in self.operations]
        composed = {
            "families": list(self.families) or self.script.to_script() or "none",
            "clients": clients,
            "settings": self._without_undrawn(self.settings),
            "node_settings": {node: dict(settings) for node, settings in self.node_settings.items()},
            "hosts": {node: host.to_mapping() for node, host in self.hosts.items()},
        }
        values: dict[str, Any] = {}
        for item in fields(self):
            value = composed.get(item.name, getattr(self, item.name))
            if item.name in ("script", "operations") or (item.name in _WRITTEN_IF_GIVEN and not value):
                continue
            name = "faults" if item.name == "families" else item.name.removesuffix("_s")
            plain = list(value) if isinstance(value, tuple) else dict(value) if isinstance(value, Mapping) else value
            values[name] = plain
        return stored_yaml.dump(self._without_undrawn(values))

    def _without_undrawn(self, values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
        return {name: value for name, value in values.items() if f"{prefix}{name}" not in self.vary}


def parse(values: object, *, drawn_seed: int = 0, **overrides: Any) -> Spec:
    """The spec that YAML values stand for, with `overrides` (None: not given) put on top. Raises SpecError.

    Overrides have the values of YAML, too. Settings of both are merged, the overrides' winning; every other override
    replaces the spec's. What they give is drawn no longer. `drawn_seed` is taken when neither names a seed.
    """
    values = {} if values is None else values
    if not isinstance(values, Mapping):
        raise SpecError(f"a spec is a mapping of names to values, not {values!r}")
    merged = {name: value for name, value in values.items() if name not in PROSE}
    try:
        for name in INCIDENT_FIELDS:
            if name in merged:
                raise FieldError(f"{name}: makes this an incident; run it with: faultline incident run")
        plan = parse_faults(merged.pop("faults", "all"))
        given = {name: value for name, value in overrides.items() if value is not None}
        if "faults" in given:
            plan = parse_faults(given.pop("faults"))
        clients_given = given.pop("clients", {})
        merged |= {"clients": clients_given} if clients_given else {}
        instead = {"families": "faults", "script": "faults", "operations": "clients.operations"}
        check_names(Spec, merged, beside=("faults",), instead=instead)
        client_fields = merged.pop("clients", {})
        shorthands, clients, operations, validates = parse_clients(client_fields)
        for name in shorthands:
            if name in merged:
                raise FieldError(f"clients.{name}: is given a second time, beside {name}; keep one of them")
        merged |= shorthands
        vary = worlds.names_of(given.pop("vary", merged.pop("vary", False)))
        settings = convert(given.pop("settings", {}), Mapping[str, str], "settings")
        for fields_given in (merged, given):
            if "acks" in fields_given:
                fields_given["acks"] = str(fields_given["acks"])
        spec = read(Spec, {"seed": drawn_seed, "families": plan[0], **merged, **given})
        decided = {*merged, *given, *(f"clients.{name}" for name in client_fields)}
        decided |= {*(merged.get("settings") or ()), *settings}
        given_names = {*given, *settings, *(f"clients.{name}" for name in clients_given)}
        scripted = bool(operations or plan[1] or spec.node_settings or spec.hosts)
        return replace(
            spec,
            clients=clients,
            operations=parse_operations(operations, spec.partitions),
            script=plan[1],
            settings={**spec.settings, **settings},
            without=with_validation(spec.without, validates),
            vary=worlds.undecided(vary, decided, scripted=scripted),
            drawn={name: value for name, value in spec.drawn.items() if name not in given_names},
        )
    except ValueError as error:
        raise SpecError(str(error)) from None


def load(path: Path, **overrides: Any) -> Spec:
    """As `parse`, from a file; it names the spec unless the spec does. Raises SpecError."""
    return _of_document(read_document(path), path.stem, overrides)


def loads(text: str, source: str = "", **overrides: Any) -> Spec:
    """As `parse`, from the text of a spec; errors name `source` and the line."""
    return _of_document(parse_document(text, source), "", overrides)


def _of_document(document: YamlDocument, name: str, overrides: Mapping[str, Any]) -> Spec:
    values = document.values
    if name and isinstance(values, Mapping):
        values = {"name": name, **values}
    try:
        return parse(values, **overrides)
    except SpecError as error:
        if is_about(str(error), overrides):
            raise
        raise SpecError(document.located(str(error))) from None
