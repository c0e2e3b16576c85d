"""Apache Kafka itself under a fault in Docker, once, and what its files tell of the run."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

from checkers import logs
from checkers.verdict import Validity
from harness.cluster.systems import SYSTEMS
from harness.environments.docker.engine import OWNER_LABEL, connect
from harness.environments.process_identity import this_process
from harness.node_images.building import build
from harness.node_images.jars import JarsError, jars
from harness.runner.outcome import Outcome
from harness.runner.run import run
from harness.spec import loads
from images.kafka.metadata_log import DIRECTORY, MetadataSnapshot, read_metadata_log, read_snapshots
from images.kafka.record_schemas import RecordSchemas
from images.trace import TraceEvent
from images.wire import batch
from results.run.directory import RunDirectory
from tests.clients.requirements import missing

pytestmark = pytest.mark.docker

KAFKA = SYSTEMS["kafka"]
FIRST = f"{0:020}.log"
SPEC = """
environment: docker
system: kafka
controllers: 0
partitions: 1
seed: 1
ready_limit: 300s
recovery_limit: 300s
settings:  # for a machine that is busy with other tests
  broker.session.timeout.ms: 6000
  replica.lag.time.max.ms: 6000
  controller.quorum.election.timeout.ms: 4000
  controller.quorum.fetch.timeout.ms: 6000
  metadata.log.max.record.bytes.between.snapshots: 1000
faults:
  - {when: {acknowledged: 5}, until: {elected: any}, for: 20s, fault: power-loss, nodes: [leader/0], keep: nothing}
"""


TIME_LIMITS_S = (25.0, 50.0, 100.0)
"""A busy machine may need longer than the first until Kafka has acknowledged what the fault waits for, and elected."""


@pytest.fixture(scope="module")
def archives() -> Path:
    """Kafka's archives."""
    try:
        return jars(KAFKA.shipment.jars)
    except JarsError as error:
        missing(str(error))


@pytest.fixture(scope="module")
def outcome(archives: Path, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """The first run in which the fault took effect."""
    client = connect(timeout_s=1800)
    try:
        build(client, [KAFKA])
    finally:
        client.close()
    for limit_s in TIME_LIMITS_S:
        directory = RunDirectory.create(tmp_path_factory.mktemp("kafka"), "kafka", 1)
        outcome = run(replace(loads(SPEC), time_limit_s=limit_s), directory)
        if outcome.failure or all(injection.took_effect for injection in outcome.injections):
            break
    return outcome


def test_kafka_keeps_its_promises_when_a_leader_loses_power(outcome: Outcome) -> None:
    assert outcome.failure == ""
    assert outcome.unreported == ""
    verdicts = {verdict.checker: verdict for verdict in outcome.verdicts}
    assert {name for name, verdict in verdicts.items() if verdict.validity is not Validity.VALID} == set()
    assert {"linearizability", "loss", "logs", "protocol", "raft", "liveness", "processes"} <= verdicts.keys()
    assert verdicts["loss"].figures["promised"] >= 5
    assert verdicts["protocol"].figures["elections"] >= 2, "the partition got a leader, and then another one"
    assert verdicts["raft"].figures["controllers"] == 3
    (injection,) = outcome.injections
    assert injection.took_effect
    assert injection.evidence["killed"] == 1


def test_brokers_tell_when_they_opened_logs_and_where_these_ended(outcome: Outcome) -> None:
    assert outcome.directory is not None
    evidence = RunDirectory.open(outcome.directory).load()
    (injection,) = outcome.injections
    (killed,) = injection.detail["resolved"]["leader/0"]
    opened: dict[str, list[int]] = {}
    for row in evidence.trace.to_pylist():
        if row["kind"] == "log_recovered":
            opened.setdefault(row["node"], []).append(row["log_end"])
    assert opened.keys() == {"b1", "b2", "b3"}
    assert all(ends[0] == 0 for ends in opened.values()), "it was created"
    assert len(opened[killed]) == 2, "and opened again once it had lost power"


def test_nothing_of_it_is_left_in_the_engine(outcome: Outcome) -> None:
    client = connect()
    try:
        label = {"label": f"{OWNER_LABEL}={this_process()}"}
        assert client.containers.list(all=True, filters=label) == []
        assert client.networks.list(filters=label) == []
    finally:
        client.close()


def test_metadata_is_decoded_as_kafkas_own_tool_does(outcome: Outcome, archives: Path) -> None:
    if shutil.which("java") is None:
        missing("java is not installed")
    assert outcome.directory is not None
    node = outcome.directory / "nodes" / "b1"
    schemas = RecordSchemas(json.loads((node / "record-schemas.json").read_text()))
    ours = {offset: record for held in read_metadata_log(node / "data") for offset, record in held.records}
    snapshot = read_snapshots(node / "data")[-1]
    theirs, of_snapshot = _dumped(archives, *(node / "data" / DIRECTORY / name for name in (FIRST, _name(snapshot))))
    assert theirs.keys() == ours.keys()
    assert {"PartitionRecord", "PartitionChangeRecord", "RegisterBrokerRecord"} <= {
        schemas.decode(record).name for record in ours.values()
    }
    dumped = [(ours[offset], record) for offset, record in theirs.items()]
    for record, (kind, version, values) in (*dumped, *zip(snapshot.records, of_snapshot.values(), strict=True)):
        decoded = schemas.decode(record)
        assert (_constant_case(decoded.name), decoded.version) == (kind, version)
        assert {name: value for name, value in _as_json(decoded.fields).items() if name in values} == values


def test_decisions_begin_with_a_snapshot_where_the_log_does(outcome: Outcome, tmp_path: Path) -> None:
    """The logs of this run from a snapshot on are what is left when Kafka deletes the segments below it."""
    assert outcome.directory is not None
    voters = {number: outcome.directory / "nodes" / f"b{number}" for number in (1, 2, 3)}
    whole = [item.event for item in KAFKA.decisions(voters)]
    states, tails = set(), set()
    for owner, node in voters.items():
        for snapshot in read_snapshots(node / "data"):
            place = tmp_path / f"{owner}-{snapshot.end}"
            _trim(voters, place, snapshot.end)
            shutil.copy(node / "data" / DIRECTORY / _name(snapshot), place / f"b{owner}" / "data" / DIRECTORY)
            trimmed = [item.event for item in KAFKA.decisions({number: place / f"b{number}" for number in voters})]
            assert _state(trimmed, snapshot.end) == _state(whole, snapshot.end)
            assert _later(trimmed, snapshot.end) == _later(whole, snapshot.end)
            states |= _state(trimmed, snapshot.end).keys()
            tails |= {event.kind for event in _later(trimmed, snapshot.end)}
    assert {("faultline", 0), "b1", "b2", "b3", "next producer id"} <= states
    assert {"partition_changed", "broker_registered"} <= tails


def _trim(voters: Mapping[int, Path], place: Path, start: int) -> None:
    """Copies of the voters' metadata logs that begin at `start`, without their snapshots."""
    for node in voters.values():
        directory = place / node.name / "data" / DIRECTORY
        directory.mkdir(parents=True)
        shutil.copy(node / "record-schemas.json", place / node.name)
        contents = (node / "data" / DIRECTORY / FIRST).read_bytes()
        rest = [payload for header, payload in batch.iterate(contents) if header.base_offset >= start]
        (directory / f"{start:020}.log").write_bytes(b"".join(rest))


def test_leader_epochs_in_checkpoints_are_those_of_the_logs(outcome: Outcome) -> None:
    verdicts = {verdict.checker: verdict for verdict in outcome.verdicts}
    assert verdicts["logs"].figures["epoch_checkpoints"] == 2, "not of the leader, which has lost its power"
    assert outcome.directory is not None
    evidence = RunDirectory.open(outcome.directory).load()
    entries = [json.loads(row["epoch_checkpoint"]) for row in evidence.replica_ends.to_pylist()]
    assert len(entries) == 3
    assert all(len(epochs) >= 2 for epochs in entries)
    first_lost = [
        row | {"epoch_checkpoint": json.dumps(epochs[1:])}
        for row, epochs in zip(evidence.replica_ends.to_pylist(), entries, strict=True)
    ]
    verdict = logs.check(replace(evidence, replica_ends=pa.Table.from_pylist(first_lost, evidence.replica_ends.schema)))
    assert [finding.kind for finding in verdict.findings] == ["epoch-checkpoint-lacks"] * 2


def _state(events: Iterable[TraceEvent], end: int) -> dict[object, object]:
    """What the events up to an offset of the metadata log make of partitions, brokers and producer ids."""
    state: dict[object, object] = {}
    for event in events:
        if event.offset > end or event.kind in ("metadata_appended", "quorum_leader"):
            continue
        if event.kind == "partition_changed":
            detail = {name: value for name, value in event.detail.items() if name != "reason"}
            state[event.topic, event.partition] = event._replace(offset=end, detail=detail)
        elif event.kind == "producer_ids_allocated":
            state["next producer id"] = int(str(event.detail["first"])) + int(str(event.detail["count"]))
        else:
            state[f"b{event.broker}"] = event.broker_epoch, event.kind == "broker_unfenced"
    return state


def _later(events: Iterable[TraceEvent], end: int) -> list[TraceEvent]:
    """The decisions from an offset of the metadata log on."""
    return [
        event for event in events if event.offset > end and event.kind not in ("metadata_appended", "quorum_leader")
    ]


def _name(snapshot: MetadataSnapshot) -> str:
    return f"{snapshot.end:020}-{snapshot.leader_epoch:010}.checkpoint"


def _dumped(archives: Path, *files: Path) -> list[dict[int, tuple[str, int, dict[str, Any]]]]:
    """Of each file, offset → type, version and fields of each record, by kafka-dump-log."""
    tool = ["kafka.tools.DumpLogSegments", "--cluster-metadata-decoder", "--files", ",".join(map(str, files))]
    java = ["java", "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", f"{archives}/*"]
    done = subprocess.run([*java, *tool], capture_output=True, text=True, check=True)
    dumps = []
    for output in re.split(r"^Dumping .*$", done.stdout, flags=re.MULTILINE)[1:]:
        records = {}
        for offset, payload in re.findall(r"^\| offset: (\d+) .*?payload: (\{.*\})$", output, re.MULTILINE):
            content = json.loads(payload)
            if "data" in content and content["type"].endswith("_RECORD"):
                records[int(offset)] = content["type"], content["version"], content["data"]
        dumps.append(records)
    return dumps


def _constant_case(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).upper()


def _as_json(value: Any) -> Any:
    """As Kafka writes its records as JSON."""
    if isinstance(value, UUID):
        return base64.urlsafe_b64encode(value.bytes).decode().rstrip("=")
    if isinstance(value, tuple):
        return [_as_json(each) for each in value]
    if isinstance(value, dict):
        return {name[0].lower() + name[1:]: _as_json(each) for name, each in value.items()}
    return value
