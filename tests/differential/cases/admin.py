"""Configurations, producer ids, and what administrators ask about brokers and transactions."""

from __future__ import annotations

from typing import Any

from tests.differential.scene import NODE, Scene, case

_TOPIC, _BROKER, _LOGGER, _CLIENT_METRICS, _GROUP = 2, 4, 8, 16, 32
_SET, _DELETE, _APPEND, _SUBTRACT = range(4)
_KEYS = ["retention.ms", "min.insync.replicas", "segment.bytes", "max.message.bytes", "unclean.leader.election.enable"]


def _resource(s: Scene, fields: dict[str, Any]) -> dict[str, Any]:
    return {"resource_type": _TOPIC, "resource_name": s.name, **fields}


# --- DescribeConfigs --------------------------------------------------------------------------------------------------

for _version in range(1, 5):

    @case(f"DescribeConfigs v{_version}: some keys of a topic", _version)
    async def describe_version(s: Scene, version: int) -> None:
        await s.topic(configs={"retention.ms": "1000"})
        await s.ask("describe_configs", version, resources=[_resource(s, {"configuration_keys": _KEYS})])


for _name, _fields in {
    "an unknown key": {"configuration_keys": ["nonsense"]},
    "a key twice": {"configuration_keys": ["retention.ms", "retention.ms"]},
    "an unknown topic": {"resource_name": "unknown"},
    "an invalid topic name": {"resource_name": "not a name"},
    "an empty topic name": {"resource_name": ""},
    "another broker": {"resource_type": _BROKER, "resource_name": "9"},
    "a broker that is no number": {"resource_type": _BROKER, "resource_name": "x"},
    "type 0": {"resource_type": 0},
    "type 3": {"resource_type": 3},
    "type 99": {"resource_type": 99},
    "type -1": {"resource_type": -1},
    "a key of a broker": {
        "resource_type": _BROKER,
        "resource_name": str(NODE),
        "configuration_keys": ["message.max.bytes", "num.partitions"],
    },
    "a key of every broker": {
        "resource_type": _BROKER,
        "resource_name": "",
        "configuration_keys": ["message.max.bytes"],
    },
    "a key of the broker's logger": {
        "resource_type": _LOGGER,
        "resource_name": str(NODE),
        "configuration_keys": ["nonsense"],
    },
    "a key of a group": {
        "resource_type": _GROUP,
        "resource_name": "some",
        "configuration_keys": ["consumer.session.timeout.ms"],
    },
    "a key of client metrics": {
        "resource_type": _CLIENT_METRICS,
        "resource_name": "some",
        "configuration_keys": ["interval.ms"],
    },
}.items():

    @case(f"DescribeConfigs: {_name}", _fields)
    async def describe_fields(s: Scene, fields: dict[str, Any]) -> None:
        await s.topic()
        await s.ask("describe_configs", 4, resources=[_resource(s, fields)])


for _name, _keys in {"no keys": [], "every key": None}.items():

    @case(f"DescribeConfigs: {_name}", _keys)
    async def describe_keys(s: Scene, keys: Any) -> None:
        await s.topic()
        resources = [_resource(s, {"configuration_keys": keys})]
        answer = await s.ask("describe_configs", 4, resources=resources, only=["throttle_time"])
        names = {config["name"] for config in answer["results"][0]["configs"]}
        s.note({"error_code": answer["results"][0]["error_code"], "with": sorted(names & set(_KEYS))})


@case("DescribeConfigs: the keys a topic has")
async def describe_names(s: Scene) -> None:
    await s.topic()
    resources = [_resource(s, {"configuration_keys": None})]
    answer = await s.ask("describe_configs", 4, resources=resources, only=["throttle_time"])
    s.note(sorted(config["name"] for config in answer["results"][0]["configs"]))


@case("DescribeConfigs: with synonyms")
async def describe_synonyms(s: Scene) -> None:
    await s.topic(configs={"retention.ms": "1000"})
    resources = [_resource(s, {"configuration_keys": ["retention.ms", "max.message.bytes"]})]
    await s.ask("describe_configs", 4, resources=resources, include_synonyms=True)


@case("DescribeConfigs: no resources", [])
@case("DescribeConfigs: null resources", None)
async def describe_nothing(s: Scene, resources: Any) -> None:
    await s.ask("describe_configs", 4, resources=resources)


@case("DescribeConfigs: the same resource twice")
async def describe_twice(s: Scene) -> None:
    await s.topic()
    await s.ask("describe_configs", 4, resources=[_resource(s, {"configuration_keys": ["retention.ms"]})] * 2)


# --- IncrementalAlterConfigs ------------------------------------------------------------------------------------------


def _operations(*operations: tuple[str, int, str | None]) -> dict[str, Any]:
    return {"configs": [{"name": name, "config_operation": op, "value": value} for name, op, value in operations]}


for _version in (0, 1):

    @case(f"IncrementalAlterConfigs v{_version}: a key set, then deleted", _version)
    async def alter_version(s: Scene, version: int) -> None:
        await s.topic()
        asked = [_resource(s, {"configuration_keys": ["retention.ms"]})]
        for operation in (("retention.ms", _SET, "1000"), ("retention.ms", _DELETE, None)):
            await s.ask("incremental_alter_configs", version, resources=[_resource(s, _operations(operation))])
            await s.settle()
            await s.ask("describe_configs", 4, resources=asked)


for _name, _fields in {
    "an unknown key": _operations(("nonsense", _SET, "1")),
    "an unknown key deleted": _operations(("nonsense", _DELETE, None)),
    "a key deleted that is not set": _operations(("retention.ms", _DELETE, None)),
    "a key deleted with a value": _operations(("retention.ms", _DELETE, "5")),
    "a bad value": _operations(("retention.ms", _SET, "x")),
    "a value out of range": _operations(("min.insync.replicas", _SET, "0")),
    "a null value": _operations(("retention.ms", _SET, None)),
    "an empty value": _operations(("retention.ms", _SET, "")),
    "an empty key": _operations(("", _SET, "1")),
    "a key twice": _operations(("retention.ms", _SET, "1"), ("retention.ms", _SET, "2")),
    "a key set and deleted": _operations(("retention.ms", _SET, "1"), ("retention.ms", _DELETE, None)),
    "appended to a number": _operations(("retention.ms", _APPEND, "1")),
    "subtracted from a number": _operations(("retention.ms", _SUBTRACT, "1")),
    "appended to a list": _operations(("cleanup.policy", _APPEND, "compact")),
    "operation 9": _operations(("retention.ms", 9, "1")),
    "operation -1": _operations(("retention.ms", -1, "1")),
    "no operations": _operations(),
    "null operations": {"configs": None},
    "a throttle of followers": _operations(("follower.replication.throttled.replicas", _SET, "0:1")),
    "a throttle of leaders deleted": _operations(("leader.replication.throttled.replicas", _DELETE, None)),
    "an unknown topic": {"resource_name": "unknown", **_operations(("retention.ms", _SET, "1"))},
    "an invalid topic name": {"resource_name": "not a name", **_operations(("retention.ms", _SET, "1"))},
    "an empty topic name": {"resource_name": "", **_operations(("retention.ms", _SET, "1"))},
    "type 0": {"resource_type": 0, **_operations(("retention.ms", _SET, "1"))},
    "type 99": {"resource_type": 99, **_operations(("retention.ms", _SET, "1"))},
    "a throttle of a broker": {
        "resource_type": _BROKER,
        "resource_name": str(NODE),
        **_operations(("leader.replication.throttled.rate", _SET, "1000000")),
    },
    "a throttle of a broker deleted": {
        "resource_type": _BROKER,
        "resource_name": str(NODE),
        **_operations(("leader.replication.throttled.rate", _DELETE, None)),
    },
    "an unknown key of a broker": {
        "resource_type": _BROKER,
        "resource_name": str(NODE),
        **_operations(("nonsense", _DELETE, None)),
    },
    "a broker that is no number": {
        "resource_type": _BROKER,
        "resource_name": "x",
        **_operations(("nonsense", _SET, "1")),
    },
}.items():

    @case(f"IncrementalAlterConfigs: {_name}", _fields)
    async def alter_fields(s: Scene, fields: dict[str, Any]) -> None:
        await s.topic()
        await s.ask("incremental_alter_configs", 1, resources=[_resource(s, fields)])


@case("IncrementalAlterConfigs: validated only")
async def alter_validated(s: Scene) -> None:
    await s.topic()
    changed = _resource(s, _operations(("retention.ms", _SET, "1000")))
    await s.ask("incremental_alter_configs", 1, resources=[changed], validate_only=True)
    await s.settle()
    await s.ask("describe_configs", 4, resources=[_resource(s, {"configuration_keys": ["retention.ms"]})])


@case("IncrementalAlterConfigs: no resources", [])
@case("IncrementalAlterConfigs: null resources", None)
async def alter_nothing(s: Scene, resources: Any) -> None:
    await s.ask("incremental_alter_configs", 1, resources=resources)


@case("IncrementalAlterConfigs: the same topic twice")
async def alter_twice(s: Scene) -> None:
    await s.topic()
    changed = _resource(s, _operations(("retention.ms", _SET, "1000")))
    await s.ask("incremental_alter_configs", 1, resources=[changed, changed])


@case("IncrementalAlterConfigs: a good topic and an unknown one")
async def alter_good_and_bad(s: Scene) -> None:
    await s.topic()
    changed = _operations(("retention.ms", _SET, "1000"))
    resources = [_resource(s, changed), _resource(s, {"resource_name": "unknown", **changed})]
    await s.ask("incremental_alter_configs", 1, resources=resources)


_THROTTLED = "leader.replication.throttled.replicas"


@case("IncrementalAlterConfigs: the throttles of a topic, described")
async def throttle_topic(s: Scene) -> None:
    await s.topic()
    for operation in (
        (_THROTTLED, _SET, "0:1"),
        (_THROTTLED, _APPEND, "0:2,0:1"),
        (_THROTTLED, _SUBTRACT, "0:1"),
        (_THROTTLED, _DELETE, None),
    ):
        await s.ask("incremental_alter_configs", 1, resources=[_resource(s, _operations(operation))])
        await s.settle()
        await s.ask("describe_configs", 4, resources=[_resource(s, {"configuration_keys": [_THROTTLED]})])


for _name, _value in {"every replica": "*", "nonsense": "x", "nothing": "", "a list with a star": "0:1,*"}.items():

    @case(f"IncrementalAlterConfigs: a throttle of {_name}", _value)
    async def throttle_values(s: Scene, value: str) -> None:
        await s.topic()
        await s.ask("incremental_alter_configs", 1, resources=[_resource(s, _operations((_THROTTLED, _SET, value)))])


@case("IncrementalAlterConfigs: a throttle of a broker, described")
async def throttle_broker(s: Scene) -> None:
    """A key that no other case changes: there is but one broker."""
    name = "replica.alter.log.dirs.io.max.bytes.per.second"
    broker = {"resource_type": _BROKER, "resource_name": str(NODE)}
    for operation in ((name, _SET, "1000"), (name, _SET, "-1"), (name, _SET, "x"), (name, _DELETE, None)):
        await s.ask("incremental_alter_configs", 1, resources=[{**broker, **_operations(operation)}])
        await s.settle()
        await s.ask("describe_configs", 4, resources=[{**broker, "configuration_keys": [name]}])


@case("IncrementalAlterConfigs: a throttle of another broker")
async def throttle_other_broker(s: Scene) -> None:
    changed = _operations(("leader.replication.throttled.rate", _SET, "1000"))
    await s.ask("incremental_alter_configs", 1, resources=[{"resource_type": _BROKER, "resource_name": "9", **changed}])


# --- AlterConfigs -----------------------------------------------------------------------------------------------------

for _version in range(3):

    @case(f"AlterConfigs v{_version}: a key replaces another", _version)
    async def replace_version(s: Scene, version: int) -> None:
        await s.topic(configs={"retention.ms": "1000"})
        changed = {"configs": [{"name": "segment.bytes", "value": "2097152"}]}
        await s.ask("alter_configs", version, resources=[_resource(s, changed)])
        await s.settle()
        await s.ask("describe_configs", 4, resources=[_resource(s, {"configuration_keys": _KEYS[:3]})])


for _name, _fields in {
    "no keys": {"configs": []},
    "null keys": {"configs": None},
    "an unknown key": {"configs": [{"name": "nonsense", "value": "1"}]},
    "a bad value": {"configs": [{"name": "retention.ms", "value": "x"}]},
    "a null value": {"configs": [{"name": "retention.ms", "value": None}]},
    "an unknown topic": {"resource_name": "unknown", "configs": []},
    "an invalid topic name": {"resource_name": "not a name", "configs": []},
    "an empty topic name": {"resource_name": "", "configs": []},
    "a key twice": {"configs": [{"name": "retention.ms", "value": "1"}, {"name": "retention.ms", "value": "2"}]},
    "type 99": {"resource_type": 99, "configs": []},
}.items():

    @case(f"AlterConfigs: {_name}", _fields)
    async def replace_fields(s: Scene, fields: dict[str, Any]) -> None:
        await s.topic(configs={"retention.ms": "1000"})
        await s.ask("alter_configs", 2, resources=[_resource(s, fields)])


@case("AlterConfigs: validated only")
async def replace_validated(s: Scene) -> None:
    await s.topic(configs={"retention.ms": "1000"})
    await s.ask("alter_configs", 2, resources=[_resource(s, {"configs": []})], validate_only=True)
    await s.settle()
    await s.ask("describe_configs", 4, resources=[_resource(s, {"configuration_keys": ["retention.ms"]})])


@case("AlterConfigs: the same topic twice")
async def replace_twice(s: Scene) -> None:
    await s.topic()
    await s.ask("alter_configs", 2, resources=[_resource(s, {"configs": []})] * 2)


@case("AlterConfigs: no resources", [])
@case("AlterConfigs: null resources", None)
async def replace_nothing(s: Scene, resources: Any) -> None:
    await s.ask("alter_configs", 2, resources=resources)


# --- InitProducerId ---------------------------------------------------------------------------------------------------

for _version in range(6):

    @case(f"InitProducerId v{_version}: a new producer", _version)
    async def init_version(s: Scene, version: int) -> None:
        await s.ask("init_producer_id", version, transactional_id=None, transaction_timeout=60_000)


for _name, _fields in {
    "a timeout of 0": {"transaction_timeout": 0},
    "a timeout of -1": {"transaction_timeout": -1},
    "an empty transactional id": {"transactional_id": ""},
    "an id without an epoch": {"producer_id": 5},
    "an epoch without an id": {"producer_epoch": 5},
    "an id and an epoch": {"producer_id": 5, "producer_epoch": 5},
    "an id of -2": {"producer_id": -2, "producer_epoch": 0},
}.items():

    @case(f"InitProducerId: {_name}", _fields)
    async def init_fields(s: Scene, fields: dict[str, Any]) -> None:
        known = {"transactional_id": None, "transaction_timeout": 60_000, "producer_id": -1, "producer_epoch": -1}
        await s.ask("init_producer_id", 4, **{**known, **fields})


@case("InitProducerId: a transactional id")
async def init_transactional(s: Scene) -> None:
    coordinators = await s.ask("find_coordinator", 4, loading=True, key_type=1, coordinator_keys=[s.name])
    if coordinators["coordinators"][0]["error_code"] == 0:
        await s.ask("init_producer_id", 4, loading=True, transactional_id=s.name, transaction_timeout=60_000)


# --- what is not about a topic's records ------------------------------------------------------------------------------

for _version in range(1, 5):

    @case(f"DescribeLogDirs v{_version}: one partition", _version)
    async def log_dirs(s: Scene, version: int) -> None:
        topic = await s.topic(b"one", partitions=2)
        answer = await s.ask(
            "describe_log_dirs", version, topics=[{"topic": topic.name, "partitions": [0]}], only=["error_code"]
        )
        _note_log_dirs(s, answer)


def _note_log_dirs(s: Scene, answer: Any) -> None:
    for result in answer["results"]:
        sizes = [
            {"partition": part["partition_index"], "size": part["partition_size"], "lag": part["offset_lag"]}
            for topic in result["topics"]
            if topic["name"].startswith(s.name)
            for part in sorted(topic["partitions"], key=lambda part: part["partition_index"])
        ]
        totals = {key: result[key] >= 0 for key in ("total_bytes", "usable_bytes") if key in result}
        s.note({"error_code": result["error_code"], "partitions": sizes, **totals})


@case("DescribeLogDirs: every topic", None)
@case("DescribeLogDirs: no topics", [])
@case("DescribeLogDirs: a topic without partitions", [{"topic": "unknown", "partitions": []}])
@case("DescribeLogDirs: an unknown topic", [{"topic": "unknown", "partitions": [0]}])
@case("DescribeLogDirs: null partitions", [{"topic": "unknown", "partitions": None}])
async def log_dirs_of(s: Scene, topics: Any) -> None:
    await s.topic(b"one", partitions=2)
    _note_log_dirs(s, await s.ask("describe_log_dirs", 4, topics=topics, only=["error_code"]))


for _version in range(3):

    @case(f"ListTransactions v{_version}: there are none", _version)
    async def transactions(s: Scene, version: int) -> None:
        await s.ask("find_coordinator", 4, loading=True, key_type=1, coordinator_keys=[s.name], only=["throttle_time"])
        await s.ask("list_transactions", version, loading=True, state_filters=[], producer_id_filters=[12_345_678])


for _name, _fields in {
    "an unknown state": {"state_filters": ["Nonsense"], "producer_id_filters": [12_345_678]},
    "a state": {"state_filters": ["PrepareCommit"], "producer_id_filters": []},
    "null states": {"state_filters": None},
}.items():

    @case(f"ListTransactions: {_name}", _fields)
    async def transactions_filtered(s: Scene, fields: dict[str, Any]) -> None:
        await s.ask("find_coordinator", 4, loading=True, key_type=1, coordinator_keys=[s.name], only=["throttle_time"])
        await s.ask("list_transactions", 1, loading=True, **fields)


for _name, _pattern in {"any id": ".*", "nonsense": "("}.items():

    @case(f"ListTransactions v2: a pattern of {_name}", _pattern)
    async def transactions_of_pattern(s: Scene, pattern: str) -> None:
        await s.ask("find_coordinator", 4, loading=True, key_type=1, coordinator_keys=[s.name], only=["throttle_time"])
        only = {"producer_id_filters": [12_345_678], "transactional_id_pattern": pattern, "duration_filter": 5}
        await s.ask("list_transactions", 2, loading=True, state_filters=[], **only)


@case("DescribeTransactions: an unknown id")
async def describe_transactions(s: Scene) -> None:
    await s.ask("find_coordinator", 4, loading=True, key_type=1, coordinator_keys=[s.name], only=["throttle_time"])
    await s.ask("describe_transactions", 0, loading=True, transactional_ids=["unknown"], only=["transaction_states"])


@case("DescribeProducers: a partition without producers")
async def producers(s: Scene) -> None:
    topic = await s.topic(b"one")
    await s.ask("describe_producers", 0, topics=[{"name": topic.name, "partition_indexes": [0, 7]}])


@case("ListConfigResources: groups", [_GROUP])
@case("ListConfigResources: a type that does not exist", [99])
async def config_resources(s: Scene, types: list[int]) -> None:
    await s.ask("list_config_resources", 1, resource_types=types)


@case("DescribeAcls: every one")
async def acls(s: Scene) -> None:
    kinds = {"resource_type_filter": 1, "pattern_type_filter": 1, "operation": 1, "permission_type": 1}
    await s.ask("describe_acls", 3, **kinds)


@case("DescribeClientQuotas: every one")
async def quotas(s: Scene) -> None:
    await s.ask("describe_client_quotas", 1, components=[], strict=False)


@case("UnregisterBroker: one that does not exist")
async def unregister(s: Scene) -> None:
    await s.ask("unregister_broker", 0, broker_id=9)


@case("UpdateFeatures: none")
async def update_features(s: Scene) -> None:
    await s.ask("update_features", 1, feature_updates=[], timeout=5000)


@case("SaslHandshake on a listener without SASL")
async def sasl(s: Scene) -> None:
    await s.ask("sasl_handshake", 1, mechanism="PLAIN")
