"""A broker process: registers, follows the metadata log, sends heartbeats, serves, and shuts down in control.

A broker acts upon metadata only from its own registration record on. Earlier records belong to earlier incarnations of
the same broker, in which it may have led partitions; the registration removed it from leadership and ISRs (Kafka
Replication Correctness §6.5.1).

Any exception that is not a network error (a full disk, a bug) stops the whole node, as a storage failure stops Kafka's
broker: a broker that cannot write must not acknowledge. For the same reason a broker claims a clean shutdown only when
every record is on disk: with that claim it stays eligible as leader while it is down. If the controller refuses the
claim, because the registered broker epoch is another one, the broker gives it up.

A broker also gives up when it reads in the metadata a later registration of its node id: it would take the leaderships
of another process for its own. The registration may be of no process that lives, since a request of an earlier one may
arrive late; so the broker then starts over (`node.py`), and registers once the session of the other is over. A refusal
of a heartbeat (STALE_BROKER_EPOCH) proves less, since it may come from a deposed controller; as in Kafka, the broker
sends the next heartbeat.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from datetime import timedelta
from errno import EIO
from typing import Any

from kio.schema.broker_heartbeat.v1.request import BrokerHeartbeatRequest
from kio.schema.broker_registration.v3.request import BrokerRegistrationRequest, Listener
from kio.schema.errors import ErrorCode
from kio.schema.fetch.v16.request import FetchPartition, FetchRequest, FetchTopic, ReplicaState

from images.broker.apis.cluster import ClusterApis
from images.broker.apis.configs import ConfigApis
from images.broker.apis.delete_records import DeleteRecordsApis
from images.broker.apis.find_coordinator import FindCoordinatorApis
from images.broker.apis.forwarded import ForwardedApis
from images.broker.apis.groups import GroupCoordinator
from images.broker.apis.list_offsets import OffsetApis
from images.broker.apis.log_dirs import LogDirApis
from images.broker.apis.produce_fetch import ProduceFetchApis
from images.broker.apis.producer_ids import ProducerIdApis
from images.broker.apis.replica_log_info import ReplicaLogInfoApis
from images.broker.apis.topics import TopicApis
from images.broker.apis.transactions import TransactionApis
from images.broker.config import NodeConfig
from images.broker.controller.channel import ControllerChannel, ControllerLocator
from images.broker.log.leader_epochs import UNDEFINED
from images.broker.metadata.image import ClusterImage
from images.broker.metadata.image_trace import applied_detail, metadata_loaded
from images.broker.metadata.internal_topics import CLUSTER_METADATA_TOPIC_ID
from images.broker.ports import NodePorts
from images.broker.raft.log import decode_records
from images.broker.raft.snapshots import decode_snapshot, fetch_snapshot
from images.broker.raft.values import SnapshotId
from images.broker.replication.alter_partition_manager import AlterPartitionManager
from images.broker.replication.fetch_sessions import FetchSessionCache
from images.broker.replication.replica_manager import ReplicaManager
from images.broker.runtime.fatal_error import FatalError
from images.broker.runtime.server import Handler, Server
from images.broker.runtime.shutdown_mark import (
    NO_BROKER_EPOCH,
    ShutdownMark,
    leave_clean_shutdown,
    take_clean_shutdown,
)
from images.broker.runtime.spawn import Arguments, Spawn
from images.broker.truncation_protocol import TruncationProtocol
from images.trace import TraceEvent
from images.wire import batch as batches
from images.wire.connection import Api, ConnectionLost

_METADATA_WAIT_S = 0.5
_METADATA_MAX_BYTES = 1 << 20
_PLAINTEXT = 0


class Superseded(Exception):
    """There is a later registration with the node id of this broker."""


class BrokerNode:
    """One broker. `run` returns after a controlled shutdown."""

    def __init__(self, config: NodeConfig, node_ports: NodePorts) -> None:
        self._config = config
        self._node_ports = node_ports
        self._epoch = NO_BROKER_EPOCH
        self._mark = ShutdownMark()
        """The clean shutdown that this broker claims."""
        self._handover = "unasked"
        """What has become of the request to hand leaderships over, for the trace."""
        self._image = ClusterImage()
        """The metadata as far as it has been read."""
        self._image_epoch = -1
        """The controller epoch of the last batch in it."""
        self._applied = ClusterImage()
        """The metadata this broker acts upon; empty until it has read its own registration."""
        self._metadata_applied = asyncio.Event()
        self._fatal_error = FatalError()
        request_timeout_s = config.seconds("replica.socket.timeout.ms")
        session_s = config.seconds("broker.session.timeout.ms")
        fetch_timeout_s = max(session_s, config.seconds("controller.quorum.request.timeout.ms"))
        retry_s = config.seconds("controller.quorum.retry.backoff.ms")
        active = self._controllers = ControllerLocator(config.voters)

        def channel(purpose: str, timeout_s: float = request_timeout_s) -> ControllerChannel:
            return ControllerChannel(active, f"broker-{config.node_id}-{purpose}", timeout_s, retry_s)

        # As in Kafka (KAFKA-14392): a broker must find the successor of a silent controller within its session.
        self._heartbeat_channel = channel("heartbeat", min(session_s / 2, request_timeout_s))
        self._metadata_channel = channel("metadata", min(fetch_timeout_s, request_timeout_s))
        self._isr_channel = channel("alter-partition")
        self._forwarding_channel = channel("forwarding")
        self._backoff_s = config.seconds("replica.fetch.backoff.ms")
        self._retry_s = retry_s
        self._server: Server | None = None
        self._replica_manager: ReplicaManager | None = None

    async def run(self, stopping: asyncio.Event) -> None:
        """Serve until `stopping` is set, then hand over and shut down cleanly.

        Raises Superseded, with nothing left open and no task left, or the fatal error of the node.
        """
        try:
            await self._run_connected(stopping)
        except ExceptionGroup as failures:
            superseded, others = failures.split(Superseded)
            if superseded is None or others is not None:
                raise
            if self._replica_manager is not None:
                self._replica_manager.abandon()
            raise Superseded(str(superseded.exceptions[0])) from None

    async def _run_connected(self, stopping: asyncio.Event) -> None:
        """Run, and close every connection at the end."""
        try:
            await self._run(stopping)
        finally:
            if self._server is not None:
                await self._server.close()
            for channel in (
                self._heartbeat_channel,
                self._metadata_channel,
                self._isr_channel,
                self._forwarding_channel,
            ):
                channel.close()

    async def _run(self, stopping: asyncio.Event) -> None:
        """Register, work until `stopping` is set, hand over, and leave the claim of a clean shutdown behind."""
        self._mark = take_clean_shutdown(self._node_ports.files)
        self._node_ports.trace(TraceEvent("node_started", broker_epoch=self._mark.broker_epoch))
        running: dict[asyncio.Task[None], None] = {}
        async with asyncio.TaskGroup() as tasks:
            spawn = self._spawn_in(tasks, running)
            replica_manager = self._replica_manager = self._make_replica_manager(spawn)
            groups = self._make_group_coordinator(replica_manager, spawn)
            server = self._server = self._make_server(replica_manager, groups, spawn)
            spawn(self._fatal_error.wait)
            advertised = self._config.advertised
            self._mark = self._mark.asked(f"{advertised.host}:{advertised.port}", self._node_ports.random)
            registration, stop_requested = spawn(self._register), spawn(_until, stopping)
            await asyncio.wait((registration, stop_requested), return_when=asyncio.FIRST_COMPLETED)
            registered = registration.done()
            if registered:
                session = self._start_work(replica_manager, groups, server, spawn)
                await stop_requested
                session.cancel()
                await self._controlled_shutdown()
            for task in list(running):
                task.cancel()
            await server.close()
            if registered:
                self._leave(replica_manager)
            else:
                self._leave_unregistered()

    def _start_work(
        self, replica_manager: ReplicaManager, groups: GroupCoordinator, server: Server, spawn: Spawn
    ) -> asyncio.Task[None]:
        """Start all that a registered broker does; the task that keeps its session with the controller."""
        seconds = self._config.seconds
        spawn(self._follow_metadata, replica_manager, groups)
        spawn(self._serve, server)
        session = spawn(self._keep_session)
        # Half of the allowed lag, like Kafka's isr-expiration task.
        spawn(self._repeat, seconds("replica.lag.time.max.ms") / 2, replica_manager.tick)
        spawn(groups.run, lambda: self._fatal_error.occurred)
        checkpoint_s = seconds("replica.high.watermark.checkpoint.interval.ms")
        spawn(self._repeat, checkpoint_s, replica_manager.checkpoint_high_watermarks)
        spawn(self._repeat, seconds("log.retention.check.interval.ms"), replica_manager.retain)
        expiry_s = seconds("producer.id.expiration.check.interval.ms")
        spawn(self._repeat, expiry_s, replica_manager.expire_producers)
        return session

    def _leave(self, replica_manager: ReplicaManager) -> None:
        failure = replica_manager.close()
        if failure is not None and self._config.rules.clean_claim_after_flush:
            message = f"stopped, but not every record is on disk: the next start counts as after a crash: {failure}"
            raise OSError(failure.errno or EIO, message)
        self._leave_mark(ShutdownMark(self._epoch), handover=self._handover)
        self._node_ports.log("shut down cleanly")

    def _leave_unregistered(self) -> None:
        """Stop without having heard of a registration: nothing was written, so the clean shutdown before still counts,
        also if the controllers have registered this process."""
        if self._mark.is_clean:
            self._leave_mark(self._mark)
        self._node_ports.log("stopped before the controller had registered this broker")

    def _leave_mark(self, mark: ShutdownMark, **detail: str) -> None:
        # Traced first: a process that is killed in between may have left the mark.
        self._node_ports.trace(TraceEvent("clean_shutdown", broker_epoch=mark.broker_epoch, detail=detail))
        leave_clean_shutdown(self._node_ports.files, mark)

    def _spawn_in(self, tasks: asyncio.TaskGroup, running: dict[asyncio.Task[None], None]) -> Spawn:
        """The function by which the parts of this broker start tasks. Those that have not ended are in `running`."""

        def spawn(
            work: Callable[[*Arguments], Coroutine[Any, Any, None]], *arguments: *Arguments
        ) -> asyncio.Task[None]:
            watched = self._fatal_error.watch(work, *arguments)
            try:
                task = tasks.create_task(watched)
            except RuntimeError:
                # The node ends: closed unstarted, the work leaves no warning behind.
                watched.close()
                raise
            running[task] = None
            task.add_done_callback(running.pop)
            return task

        return spawn

    def _make_replica_manager(self, spawn: Spawn) -> ReplicaManager:
        alter_partition_manager = AlterPartitionManager(
            self._config.node_id,
            self._isr_channel,
            lambda: self._epoch,
            self._backoff_s,
            spawn,
            self._node_ports.trace,
        )
        return ReplicaManager(
            self._config,
            self._node_ports,
            asyncio.get_running_loop().time,
            lambda: self._epoch,
            alter_partition_manager.propose,
            spawn,
        )

    def _make_group_coordinator(self, replica_manager: ReplicaManager, spawn: Spawn) -> GroupCoordinator:
        clock = asyncio.get_running_loop().time
        return GroupCoordinator(self._config, self._node_ports, replica_manager, lambda: self._applied, clock, spawn)

    def _make_server(self, replica_manager: ReplicaManager, groups: GroupCoordinator, spawn: Spawn) -> Server:
        config, forwards = self._config, self._forwarding_channel

        def image() -> ClusterImage:
            return self._applied

        def broker_epoch() -> int:
            return self._epoch

        sessions = FetchSessionCache(
            config.number("max.incremental.fetch.session.cache.slots"),
            config.seconds("min.incremental.fetch.session.eviction.ms"),
            asyncio.get_running_loop().time,
            self._node_ports.random,
            config.rules,
        )
        handlers: dict[Api, Handler] = {
            **ProduceFetchApis(
                replica_manager, image, sessions, config.number("fetch.max.bytes"), self._node_ports.trace
            ).handlers(),
            **OffsetApis(
                replica_manager,
                image,
                config.confirmation_wait_s,
                TruncationProtocol(config.text("faultline.release")),
            ).handlers(),
            **DeleteRecordsApis(replica_manager, image).handlers(),
            **LogDirApis(replica_manager, config.log_directory, self._node_ports.disk_space).handlers(),
            **TransactionApis().handlers(),
            **ReplicaLogInfoApis(replica_manager, image, broker_epoch).handlers(),
            **TopicApis(image, self._node_ports.trace).handlers(),
            **ClusterApis(config, image, self._node_ports.trace).handlers(),
            **ConfigApis(config, image).handlers(),
            **ForwardedApis(forwards).handlers(),
            **ProducerIdApis(config.node_id, forwards, broker_epoch, self._node_ports.trace).handlers(),
            **FindCoordinatorApis(
                config, image, forwards, spawn, self._node_ports.log, self._node_ports.trace
            ).handlers(),
            **groups.handlers(),
        }
        return Server(
            {api: self._fatal_error.guard(handler) for api, handler in handlers.items()},
            log=self._node_ports.log,
            max_frame_bytes=config.number("socket.request.max.bytes"),
        )

    async def _serve(self, server: Server) -> None:
        """Listen once the metadata is applied, as Kafka's broker does: before, no topic would seem to exist."""
        await self._metadata_applied.wait()
        await server.start(self._config.listener.host, self._config.listener.port)

    # --- the session with the controller ------------------------------------------------------------------------------

    async def _register(self) -> None:
        """Register until the controller grants a broker epoch; it refuses while the session of an earlier incarnation
        lasts, and the claim of a clean shutdown that was not the last one."""
        request = BrokerRegistrationRequest(
            broker_id=self._config.node_id,
            cluster_id=self._config.cluster_id,
            incarnation_id=self._mark.incarnation,
            listeners=(
                Listener(
                    name="PLAINTEXT",
                    host=self._config.advertised.host,
                    port=self._config.advertised.port,
                    security_protocol=_PLAINTEXT,
                ),
            ),
            features=(),
            rack=None,
            previous_broker_epoch=self._mark.broker_epoch,
        )
        refusal = ""
        while True:
            try:
                answer = await self._heartbeat_channel.call(request)
                if answer.error_code is ErrorCode.none:
                    break
                reason = answer.error_code.name
                if answer.error_code is ErrorCode.stale_broker_epoch:
                    self._mark = replace(self._mark, broker_epoch=NO_BROKER_EPOCH)
                    request = replace(request, previous_broker_epoch=NO_BROKER_EPOCH)
            except ConnectionLost as lost:
                reason = str(lost)
            if reason != refusal:
                self._node_ports.log(f"not registered yet: {reason}")
                refusal = reason
            await asyncio.sleep(self._backoff_s)
        self._epoch = answer.broker_epoch
        self._node_ports.trace(
            TraceEvent("registered", broker_epoch=self._epoch, detail={"clean": self._mark.is_clean})
        )
        self._node_ports.log(f"registered with broker epoch {self._epoch}")

    async def _heartbeat(self, *, shutting_down: bool) -> Any:
        """Send one heartbeat; None without a response."""
        try:
            answer = await self._heartbeat_channel.call(
                BrokerHeartbeatRequest(
                    broker_id=self._config.node_id,
                    broker_epoch=self._epoch,
                    current_metadata_offset=self._applied.offset - 1,
                    want_fence=False,
                    want_shut_down=shutting_down,
                )
            )
        except ConnectionLost:
            return None
        return answer

    async def _keep_session(self) -> None:
        interval_s = self._config.seconds("broker.heartbeat.interval.ms")
        while True:
            answer = await self._heartbeat(shutting_down=False)
            # A fenced broker only has to catch up, and should be unfenced soon. Without an active controller the broker
            # may be fenced soon.
            healthy = answer is not None and answer.error_code is ErrorCode.none and not answer.is_fenced
            await asyncio.sleep(interval_s if healthy else min(interval_s, self._backoff_s))

    async def _controlled_shutdown(self) -> None:
        """Controlled shutdown: ask the controller to move leadership away, and wait until it has done so."""
        try:
            async with asyncio.timeout(self._config.seconds("controlled.shutdown.timeout.ms")):
                while True:
                    answer = await self._heartbeat(shutting_down=True)
                    self._handover = "let_go" if answer is not None and answer.should_shut_down else "asked"
                    if answer is not None and answer.error_code is ErrorCode.none and answer.should_shut_down:
                        return
                    await asyncio.sleep(self._backoff_s)
        except TimeoutError:
            self._handover = "timed_out"
            self._node_ports.log("leaving without having handed everything over: the time for it is up")

    # --- metadata -----------------------------------------------------------------------------------------------------

    async def _follow_metadata(self, replica_manager: ReplicaManager, groups: GroupCoordinator) -> None:
        while True:
            try:
                response = await self._metadata_channel.call(self._metadata_fetch(), _METADATA_WAIT_S)
            except ConnectionLost:
                await asyncio.sleep(self._retry_s)
                continue
            answer = response.responses[0].partitions[0] if response.responses else None
            if answer is not None:
                self._controllers.update(answer.current_leader.leader_id, answer.current_leader.leader_epoch)
            if answer is None or answer.error_code is not ErrorCode.none:
                await asyncio.sleep(self._retry_s)
                continue
            if answer.snapshot_id.end_offset >= 0:
                snapshot = SnapshotId(answer.snapshot_id.end_offset, answer.snapshot_id.epoch)
                if not await self._load_snapshot(snapshot):
                    await asyncio.sleep(self._retry_s)
                    continue
            if answer.records:
                self._read_metadata(answer.records)
            self._check_registration()
            if self._fatal_error.occurred:
                return
            if (answer.records or answer.snapshot_id.end_offset >= 0) and self._image.offset > self._epoch:
                before, self._applied = self._applied.offset, self._image
                self._trace_applied(before)
                replica_manager.apply(self._image)
                groups.apply()
                self._metadata_applied.set()

    def _trace_applied(self, before: int) -> None:
        """Trace that the metadata from offset `before` to the end of the image takes effect on this broker."""
        end = self._applied.offset
        if end != before:
            self._node_ports.trace(
                TraceEvent(
                    "metadata_applied",
                    leader_epoch=self._image_epoch,
                    offset=before,
                    log_end=end,
                    detail=applied_detail(self._applied),
                )
            )

    def _check_registration(self) -> None:
        """Raises Superseded once the metadata has a later registration of this broker's node id."""
        registered = self._image.brokers.get(self._config.node_id)
        if registered is not None and registered.epoch > self._epoch:
            raise Superseded(
                f"broker {registered.id} is registered anew, with broker epoch {registered.epoch}; this process has "
                f"{self._epoch}"
            )

    async def _load_snapshot(self, snapshot: SnapshotId) -> bool:
        """Load a snapshot. Returns whether that succeeded."""
        call, max_bytes = self._metadata_channel.call, self._config.number("controller.quorum.fetch.snapshot.max.bytes")
        try:
            data = await fetch_snapshot(call, self._config.node_id, UNDEFINED, snapshot, max_bytes)
        except ConnectionLost:
            return False
        if data is None or snapshot.end <= self._image.offset:
            return False
        self._image, self._image_epoch = decode_snapshot(data, snapshot), snapshot.epoch
        self._node_ports.trace(metadata_loaded(self._image, snapshot.epoch))
        return True

    def _metadata_fetch(self) -> FetchRequest:
        partition = FetchPartition(
            partition=0, fetch_offset=self._image.offset, partition_max_bytes=_METADATA_MAX_BYTES
        )
        return FetchRequest(
            replica_state=ReplicaState(replica_id=self._config.node_id, replica_epoch=self._epoch),
            max_wait=timedelta(seconds=_METADATA_WAIT_S),
            min_bytes=1,
            max_bytes=_METADATA_MAX_BYTES,
            topics=(FetchTopic(topic_id=CLUSTER_METADATA_TOPIC_ID, partitions=(partition,)),),
            forgotten_topics_data=(),
        )

    def _read_metadata(self, records: bytes) -> None:
        """Apply whole batches: all records of one change share a batch, so no change is applied in part."""
        for header, batch in batches.iterate(records):
            if header.base_offset < self._image.offset:
                continue
            self._image = self._image.apply_all(decode_records(batch), header.base_offset)
            self._image_epoch = header.leader_epoch

    # --- time ---------------------------------------------------------------------------------------------------------

    async def _repeat(self, interval_s: float, work: Callable[[], None]) -> None:
        """Do something again and again, until there is a fatal error."""
        while True:
            await asyncio.sleep(interval_s)
            if self._fatal_error.occurred:
                return
            work()


async def _until(stopping: asyncio.Event) -> None:
    await stopping.wait()
