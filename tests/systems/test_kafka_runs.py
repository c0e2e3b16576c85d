"""Apache Kafka itself under a fault in Docker, once, and what its files tell of the run."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from checkers.verdict import Validity
from harness.cluster.systems import SYSTEMS
from harness.environments.docker.engine import OWNER_LABEL, connect
from harness.environments.process_identity import this_process
from harness.node_images.building import build
from harness.node_images.jars import JarsError, jars
from harness.runner.outcome import Outcome
from harness.runner.run import run
from harness.spec import loads
from images.kafka.metadata_log import read_metadata_log
from images.kafka.record_schemas import RecordSchemas
from results.run.directory import RunDirectory
from tests.clients.requirements import missing

pytestmark = pytest.mark.docker

KAFKA = SYSTEMS["kafka"]
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
    theirs = _dumped(archives, node / "data" / "__cluster_metadata-0" / f"{0:020}.log")
    assert theirs.keys() == ours.keys()
    assert {"PartitionRecord", "PartitionChangeRecord", "RegisterBrokerRecord"} <= {
        schemas.decode(record).name for record in ours.values()
    }
    for offset, (kind, version, values) in theirs.items():
        decoded = schemas.decode(ours[offset])
        assert (_constant_case(decoded.name), decoded.version) == (kind, version)
        assert {name: value for name, value in _as_json(decoded.fields).items() if name in values} == values


def _dumped(archives: Path, segment: Path) -> dict[int, tuple[str, int, dict[str, Any]]]:
    """Offset → type, version and fields of each record, by kafka-dump-log."""
    tool = ["kafka.tools.DumpLogSegments", "--cluster-metadata-decoder", "--files"]
    java = ["java", "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", f"{archives}/*"]
    done = subprocess.run([*java, *tool, str(segment)], capture_output=True, text=True, check=True)
    records = {}
    for offset, payload in re.findall(r"^\| offset: (\d+) .*?payload: (\{.*\})$", done.stdout, re.MULTILINE):
        content = json.loads(payload)
        if "data" in content and content["type"].endswith("_RECORD"):
            records[int(offset)] = content["type"], content["version"], content["data"]
    return records


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
