"""Kafka's command line tools, played against the broker in the order of this table.

Each entry is a script of Kafka's `bin`, the class behind it, and what is done with it. The tools share one topic, one
cluster of three brokers, and one Java process (`java/Tools.java`).
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from kio.schema.alter_partition_reassignments.v0 import request as reassigning
from kio.schema.errors import ErrorCode

from harness.cluster.loopback import LoopbackCluster
from harness.cluster.readiness import Expected
from images.wire.connection import Connection

TOPIC, LATENCY_TOPIC, GROUP = "orders", "latency", "readers"
RECORDS = 1_000
_RUNNER = Path(__file__).parent / "java/Tools.java"
_JAVA = (
    "java",
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-Xmx512m",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=off",
)
_TOOL_LIMIT_S = 300.0
_EVENTUALLY_LIMIT_S = 120.0


class JavaTools:
    """The Java process that runs tools. Use it in a `with` block; its log goes to `log`."""

    def __init__(self, libraries: Path, log: Path) -> None:
        self._command = [*_JAVA, "-cp", f"{libraries}/*", str(_RUNNER)]
        self._log = log
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.communicate()

    def run(self, tool: str, arguments: tuple[str, ...], input_text: str) -> tuple[int, str]:
        """The exit status and the output of one tool."""
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        request = {"tool": tool, "arguments": arguments, "input": input_text}
        watchdog = threading.Timer(_TOOL_LIMIT_S, process.kill)
        watchdog.start()
        try:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        finally:
            watchdog.cancel()
        assert line, f"{tool} {' '.join(arguments)} did not end, or ended the process; see {self._log}"
        answer = json.loads(line)
        return answer["status"], answer["output"]


@dataclass(frozen=True, slots=True)
class Session:
    """A tool about to be used."""

    java: JavaTools
    cluster: LoopbackCluster
    directory: Path
    tool: Tool

    def __call__(self, *arguments: str, input_text: str = "", bootstrap: str = "--bootstrap-server") -> str:
        """The output of the tool; it must end with status 0. `bootstrap` is the option for the brokers, or empty."""
        given = (bootstrap, self.cluster.bootstrap, *arguments) if bootstrap else arguments
        status, output = self.java.run(self.tool.main, given, input_text)
        assert status == 0, f"{self.tool.script} {' '.join(given)} ended with {status}:\n{output}"
        return output

    def eventually(self, wanted: str, *arguments: str, bootstrap: str = "--bootstrap-server") -> str:
        """The output of the tool, once it has `wanted` in it: brokers read of a change, and followers have the records,
        a moment after they are made."""
        until = time.monotonic() + _EVENTUALLY_LIMIT_S
        while wanted not in (output := self(*arguments, bootstrap=bootstrap)):
            assert time.monotonic() < until, f"{self.tool.script} {' '.join(arguments)} has no {wanted!r}:\n{output}"
        return output

    def file(self, name: str, content: Any) -> str:
        """The path of a JSON file with this content."""
        path = self.directory / name
        path.write_text(json.dumps(content))
        return str(path)


@dataclass(frozen=True, slots=True)
class Tool:
    """A script of Kafka, and its use here; `play` raises AssertionError when the tool does not do what it should."""

    script: str
    main: str
    use: str
    play: Callable[[Session], None] = field(repr=False)


TOOLS: list[Tool] = []


def _tool(script: str, main: str, use: str) -> Callable[[Callable[[Session], None]], Callable[[Session], None]]:
    def register(play: Callable[[Session], None]) -> Callable[[Session], None]:
        TOOLS.append(Tool(script, main, use, play))
        return play

    return register


@_tool(
    "kafka-broker-api-versions", "org.apache.kafka.tools.BrokerApiVersionsCommand", "lists the APIs of three brokers"
)
def broker_api_versions(run: Session) -> None:
    output = run()
    assert output.count(" -> (") == 3
    assert output.count("CreatePartitions(37): 0 to 3 [usable: 3]") == 3


@_tool("kafka-cluster", "org.apache.kafka.tools.ClusterTool", "`cluster-id`, `list-endpoints`")
def cluster_tool(run: Session) -> None:
    endpoints = run("list-endpoints", "--bootstrap-server", run.cluster.bootstrap, bootstrap="")
    assert all(str(node.port) in endpoints for node in run.cluster.layout.brokers)
    assert "ZmF1bHRsaW5lLWNsdXN0ZQ" in run("cluster-id", "--bootstrap-server", run.cluster.bootstrap, bootstrap="")


@_tool(
    "kafka-topics", "org.apache.kafka.tools.TopicCommand", "`--create`, `--list`, `--describe`, `--alter --partitions`"
)
def topics(run: Session) -> None:
    run("--create", "--topic", TOPIC, "--replica-assignment", "1:2", "--config", "min.insync.replicas=1")
    run.eventually(TOPIC, "--list")
    # `kafka-e2e-latency` does not wait until brokers have read of a topic that it makes itself.
    run("--create", "--topic", LATENCY_TOPIC, "--replica-assignment", "1:2")
    run("--alter", "--topic", TOPIC, "--partitions", "2", "--replica-assignment", "1:2,2:3")
    described = run.eventually("PartitionCount: 2", "--describe", "--topic", TOPIC)
    assert re.search(r"Partition: 1\s+Leader: 2\s+Replicas: 2,3\s+Isr: 2,3", described)


@_tool("kafka-configs", "kafka.admin.ConfigCommand", "a topic's and a broker's: `--alter`, `--describe`")
def configs(run: Session) -> None:
    topic = ("--entity-type", "topics", "--entity-name", TOPIC)
    run("--alter", *topic, "--add-config", "retention.ms=86400000,segment.bytes=2097152")
    run.eventually("retention.ms=86400000", "--describe", *topic)
    run("--alter", *topic, "--delete-config", "retention.ms")
    assert "segment.bytes=2097152" in run("--describe", *topic)
    broker = ("--entity-type", "brokers", "--entity-name", "1")
    run("--alter", *broker, "--add-config", "leader.replication.throttled.rate=1000")
    run.eventually("leader.replication.throttled.rate=1000", "--describe", *broker)
    run("--alter", *broker, "--delete-config", "leader.replication.throttled.rate")
    assert "num.partitions=1" in run("--describe", "--all", *broker)


@_tool("kafka-console-producer", "org.apache.kafka.tools.ConsoleProducer", "two records with keys, idempotent")
def console_producer(run: Session) -> None:
    options = ("--property", "parse.key=true", "--property", "key.separator=:")
    run("--topic", TOPIC, *options, input_text="a:first\na:second\n")


@_tool("kafka-console-consumer", "org.apache.kafka.tools.consumer.ConsoleConsumer", "reads them in a group")
def console_consumer(run: Session) -> None:
    output = run("--topic", TOPIC, "--from-beginning", "--group", GROUP, "--max-messages", "2")
    assert output.startswith("first\nsecond\n")


@_tool(
    "kafka-verifiable-producer",
    "org.apache.kafka.tools.VerifiableProducer",
    f"{RECORDS:,} records, `acks=-1`, which the next tool reads",
)
def verifiable_producer(run: Session) -> None:
    output = run("--topic", TOPIC, "--max-messages", str(RECORDS), "--throughput", "-1")
    assert '"name":"startup_complete"' in output  # it reports the last records when its process ends


@_tool("kafka-verifiable-consumer", "org.apache.kafka.tools.VerifiableConsumer", "reads all of them in a group")
def verifiable_consumer(run: Session) -> None:
    count = RECORDS + 2
    options = ("--reset-policy", "earliest", "--max-messages", str(count))
    output = run("--topic", TOPIC, "--group-id", "verifiable", *options)
    counts = [json.loads(line)["count"] for line in output.splitlines() if '"name":"records_consumed"' in line]
    assert sum(counts) == count


@_tool("kafka-producer-perf-test", "org.apache.kafka.tools.ProducerPerformance", f"{RECORDS:,} records, gzip")
def producer_performance(run: Session) -> None:
    options = ("--num-records", str(RECORDS), "--record-size", "100", "--throughput", "-1")
    properties = f"bootstrap.servers={run.cluster.bootstrap}"
    output = run("--topic", TOPIC, *options, "--producer-props", properties, "compression.type=gzip", bootstrap="")
    assert f"{RECORDS} records sent" in output


@_tool("kafka-consumer-perf-test", "org.apache.kafka.tools.ConsumerPerformance", "reads all records")
def consumer_performance(run: Session) -> None:
    output = run("--topic", TOPIC, "--messages", str(2 * RECORDS))
    assert int(output.splitlines()[-1].split(", ")[4]) >= 2 * RECORDS


@_tool("kafka-e2e-latency", "org.apache.kafka.tools.EndToEndLatency", "20 records there and back, one at a time")
def end_to_end_latency(run: Session) -> None:
    output = run(run.cluster.bootstrap, LATENCY_TOPIC, "20", "all", "100", bootstrap="")
    assert "Percentiles: 50th = " in output


@_tool("kafka-get-offsets", "org.apache.kafka.tools.GetOffsetShell", "`--time` earliest, latest, max-timestamp")
def get_offsets(run: Session) -> None:
    def offsets(at: str) -> int:
        lines = run("--topic", TOPIC, "--time", at).splitlines()
        return sum(int(line.split(":")[2]) for line in lines if line.startswith(f"{TOPIC}:"))

    assert offsets("earliest") == 0
    assert offsets("latest") == 2 * RECORDS + 2
    assert offsets("max-timestamp") > 0


@_tool(
    "kafka-consumer-groups",
    "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "`--list`, `--describe`, `--reset-offsets`, `--delete`",
)
def consumer_groups(run: Session) -> None:
    assert GROUP in run("--list")
    assert re.search(rf"{GROUP}\s+{TOPIC}\s+\d+\s+\d+\s+\d+\s+\d+", run("--describe", "--group", GROUP))
    run("--reset-offsets", "--to-earliest", "--execute", "--topic", TOPIC, "--group", GROUP)
    assert re.search(rf"{GROUP}\s+{TOPIC}\s+0\s+0\s", run("--describe", "--group", GROUP))
    run("--delete", "--group", GROUP)
    assert GROUP not in run("--list").split()


@_tool("kafka-groups", "org.apache.kafka.tools.GroupsCommand", "`--list`")
def groups(run: Session) -> None:
    assert re.search(r"verifiable\s+Classic\s+consumer", run("--list"))


@_tool(
    "kafka-reassign-partitions",
    "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
    "`--generate`, `--execute --throttle`, `--list`, `--verify`, `--cancel` of a move to a broker that is down",
)
def reassign_partitions(run: Session) -> None:
    wanted = {"version": 1, "topics": [{"topic": TOPIC}]}
    assert "Proposed partition reassignment" in run(
        "--generate", "--topics-to-move-json-file", run.file("topics.json", wanted), "--broker-list", "1,2,3"
    )
    moved = run.file("moved.json", _moved([3, 1]))
    assert "Successfully started partition reassignment" in run(
        "--execute", "--reassignment-json-file", moved, "--throttle", "100000000"
    )
    run.eventually("is completed", "--verify", "--reassignment-json-file", moved)
    assert "None of the specified partition moves are active" in run("--cancel", "--reassignment-json-file", moved)
    run.cluster.kill("b2")
    asyncio.run(_reassign(run.cluster, [3, 2]))
    run.eventually(f"{TOPIC}-0", "--list")
    back = run.file("back.json", _moved([3, 2]))
    # It would remove throttles from every broker of the move, the one that is down included.
    assert "Successfully cancelled" in run("--cancel", "--preserve-throttles", "--reassignment-json-file", back)
    assert "No partition reassignments found" in run("--list")
    run.cluster.start("b2")
    run.cluster.wait_until_ready(Expected(TOPIC, partitions=2, replication_factor=2))


async def _reassign(cluster: LoopbackCluster, replicas: list[int]) -> None:
    """Begin to move partition 0: the tool does not to a broker that it cannot ask."""
    partition = reassigning.ReassignablePartition(partition_index=0, replicas=tuple(replicas))
    topic = reassigning.ReassignableTopic(name=TOPIC, partitions=(partition,))
    request = reassigning.AlterPartitionReassignmentsRequest(topics=(topic,), timeout=timedelta(seconds=60))
    node = cluster.layout.brokers[0]
    connection = await Connection.open(node.host, node.port, "test", _TOOL_LIMIT_S)
    try:
        answer = await connection.call(request, _TOOL_LIMIT_S)
    finally:
        connection.close()
    assert answer.responses[0].partitions[0].error_code is ErrorCode.none


def _moved(replicas: list[int]) -> dict[str, Any]:
    return {"version": 1, "partitions": [{"topic": TOPIC, "partition": 0, "replicas": replicas}]}


@_tool("kafka-leader-election", "org.apache.kafka.tools.LeaderElectionCommand", "preferred, of every partition")
def leader_election(run: Session) -> None:
    run("--election-type", "preferred", "--all-topic-partitions")


@_tool("kafka-delete-records", "org.apache.kafka.tools.DeleteRecordsCommand", "below offset 1 of a partition")
def delete_records(run: Session) -> None:
    below = {"version": 1, "partitions": [{"topic": TOPIC, "partition": 0, "offset": 1}]}
    assert "low_watermark: 1" in run("--offset-json-file", run.file("delete.json", below))


@_tool("kafka-log-dirs", "org.apache.kafka.tools.LogDirsCommand", "`--describe`")
def log_dirs(run: Session) -> None:
    lines = run("--describe", "--topic-list", TOPIC).splitlines()
    described = json.loads(next(line for line in lines if line.startswith("{")))
    partitions = [
        partition
        for broker in described["brokers"]
        for directory in broker["logDirs"]
        for partition in directory["partitions"]
    ]
    assert sorted(partition["partition"] for partition in partitions) == [f"{TOPIC}-{n}" for n in (0, 0, 1, 1)]
    assert sum(partition["size"] for partition in partitions) > RECORDS


@_tool("kafka-metadata-quorum", "org.apache.kafka.tools.MetadataQuorumCommand", "`describe --status`, `--replication`")
def metadata_quorum(run: Session) -> None:
    assert re.search(r"LeaderId:\s+101", run("describe", "--status"))
    assert re.search(r"101\s.*Leader", run("describe", "--replication"))


@_tool("kafka-transactions", "org.apache.kafka.tools.TransactionsCommand", "`list`: there are none")
def transactions(run: Session) -> None:
    assert run("list").split() == ["TransactionalId", "Coordinator", "ProducerId", "TransactionState"]


@_tool("kafka-features", "org.apache.kafka.tools.FeatureCommand", "`describe`: there are none")
def features(run: Session) -> None:
    run("describe")


@_tool("kafka-dump-log", "kafka.tools.DumpLogSegments", "`--print-data-log` of every segment of a topic at a broker")
def dump_log(run: Session) -> None:
    # Of both partitions, as a producer chooses which of them gets its records, and may give all to one.
    segments = sorted((run.cluster.directory / "b3/data").glob(f"{TOPIC}-*/*.log"))
    files = ",".join(str(segment) for segment in segments)
    output = run.eventually("compresscodec: gzip", "--files", files, "--print-data-log", bootstrap="")
    assert "isvalid: true" in output
    assert "isvalid: false" not in output
    assert "payload: second" in output


@_tool("kafka-topics", "org.apache.kafka.tools.TopicCommand", "`--delete`")
def delete_topic(run: Session) -> None:
    run("--delete", "--topic", TOPIC)
