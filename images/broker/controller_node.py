"""A controller process: a voter of the quorum, and while it is leader, the active controller of the cluster.

`Controller` decides. This shell passes it requests and the time, commits its records through the quorum, and only then
publishes the new state, writes trace events and responds. It makes one change at a time: a request that arrives during
a commit waits, so that every decision is based on committed state (Kafka Replication Correctness §6.3).

A controller is active once a record of its own epoch is committed, since it then knows all committed records. Otherwise
it responds NOT_CONTROLLER. A controller deposed while a change waits for its commit closes the connection of the
client: its successor may or may not commit the change, so no response would be certain. Until a controller knows that
it is deposed it may decide by old metadata. So an answer to an administrator waits for a commit even if it changes
nothing (`NoOp`), and so does the refusal of a clean shutdown that a broker claims, since the broker gives its claim up.
Brokers repeat everything else that a deposed controller refuses, and get such answers at once.

A change that is too large for the metadata log is refused, and has no effect (POLICY_VIOLATION). Any other exception
that is not a network error is fatal for the node.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from kio.schema.allocate_producer_ids.v0.request import AllocateProducerIdsRequest
from kio.schema.alter_configs.v2.request import AlterConfigsRequest
from kio.schema.alter_partition.v3.request import AlterPartitionRequest
from kio.schema.alter_partition_reassignments.v0.request import AlterPartitionReassignmentsRequest
from kio.schema.broker_heartbeat.v1.request import BrokerHeartbeatRequest
from kio.schema.broker_registration.v3.request import BrokerRegistrationRequest
from kio.schema.create_partitions.v3.request import CreatePartitionsRequest
from kio.schema.create_topics.v7.request import CreateTopicsRequest
from kio.schema.delete_topics.v6.request import DeleteTopicsRequest
from kio.schema.elect_leaders.v2.request import ElectLeadersRequest
from kio.schema.errors import ErrorCode
from kio.schema.incremental_alter_configs.v1.request import IncrementalAlterConfigsRequest
from kio.schema.list_partition_reassignments.v0.request import ListPartitionReassignmentsRequest

from images.broker.config import BROKER_NAME_OF_TOPIC_KEY, NodeConfig
from images.broker.controller import admin_messages, messages, takeover_trace
from images.broker.controller.controller import Controller, ControllerResult, ControllerSettings
from images.broker.controller.placement import TopicDefaults
from images.broker.controller.recovery_rounds import RecoveryRounds, RecoveryTimeouts
from images.broker.controller.refusals import not_controller, refusal
from images.broker.controller.requests import RegistrationAnswer, TopicResult
from images.broker.controller.topic_config import ConfigChange
from images.broker.frozen_map import FrozenMap
from images.broker.metadata.image import ClusterImage
from images.broker.metadata.image_trace import metadata_loaded
from images.broker.ports import NodePorts
from images.broker.raft.fetch import MetadataFetchHandler
from images.broker.raft.log import ChangeTooLarge, KafkaMetadataLog
from images.broker.raft.node import Deposed, RaftNode
from images.broker.runtime.fatal_error import FatalError
from images.broker.runtime.server import CloseConnection, Handler, Request, Server
from images.trace import TraceEvent
from images.wire.connection import Api

A = TypeVar("A")


class NotActive(Exception):
    """This controller is not active; the request had no effect."""


class ControllerNode:
    """One controller. `run` serves until it is stopped; tests use `start` and `close`."""

    def __init__(self, config: NodeConfig, node_ports: NodePorts) -> None:
        self._config = config
        self._node_ports = node_ports
        self._fatal_error = FatalError()
        self._log: KafkaMetadataLog | None = None
        self._raft: RaftNode | None = None
        self._active: _ActiveController | None = None
        self._server: Server | None = None
        self._tasks: tuple[asyncio.Task[None], ...] = ()

    async def run(self, stopping: asyncio.Event) -> None:
        """Serve until `stopping` is set. Raises the fatal error of the node."""
        await self.start()
        assert self._raft is not None
        stop_requested = asyncio.ensure_future(stopping.wait())
        failure = asyncio.ensure_future(self._fatal_error.wait())
        try:
            await asyncio.wait((stop_requested, failure), return_when=asyncio.FIRST_COMPLETED)
            if stop_requested.done():
                await self._raft.leave()
        finally:
            stop_requested.cancel()
            failure.cancel()
            await self.close()
        if failure.done() and not failure.cancelled():
            failure.result()

    async def start(self) -> None:
        """Read the metadata log, listen and join the quorum. Raises OSError or CorruptBatch."""
        config, node_ports = self._config, self._node_ports
        node_ports.trace(TraceEvent("node_started"))
        log = self._log = KafkaMetadataLog(
            node_ports,
            config.number("metadata.log.segment.bytes"),
            config.rules,
            config.number("metadata.log.max.record.bytes.between.snapshots"),
        )
        raft = self._raft = RaftNode(config, node_ports, log, self._fatal_error, self._on_leadership_change)
        metadata_fetches = MetadataFetchHandler(raft)
        handlers: dict[Api, Handler] = {
            Api.VOTE: raft.vote,
            Api.BEGIN_QUORUM_EPOCH: raft.begin_epoch,
            Api.END_QUORUM_EPOCH: raft.end_epoch,
            Api.DESCRIBE_QUORUM: raft.describe,
            Api.FETCH: metadata_fetches.fetch,
            Api.FETCH_SNAPSHOT: metadata_fetches.fetch_snapshot,
            **{api: self._active_only(api, method) for api, method in _ACTIVE_HANDLERS.items()},
        }
        guarded = {api: self._fatal_error.guard(handler) for api, handler in handlers.items()}
        self._server = Server(guarded, log=node_ports.log, max_frame_bytes=config.number("socket.request.max.bytes"))
        await self._server.start(config.listener.host, config.listener.port)
        node_ports.log(f"serving, metadata up to offset {log.end}")
        raft.start()

    async def close(self) -> None:
        """Stop listening, leave waiting requests unanswered, close the log."""
        for task in self._tasks:
            task.cancel()
        if self._raft is not None:
            self._raft.close()
        if self._server is not None:
            await self._server.close()
        if self._log is not None:
            self._log.close()

    @property
    def port(self) -> int:
        """The port listened on."""
        assert self._server is not None, "not started"
        return self._server.port

    def _active_only(self, api: Api, method: _Method) -> Handler:
        async def handle(request: Request[Any]) -> Any:
            if self._active is None:
                return not_controller(api, request.body)
            try:
                return await method(self._active, request)
            except NotActive:
                return not_controller(api, request.body)
            except ChangeTooLarge as error:
                return refusal(api, request.body, ErrorCode.policy_violation, str(error))
            except Deposed:
                raise CloseConnection(
                    f"deposed while a change for {request.client_id} waited to be committed"
                ) from None

        return handle

    def _on_leadership_change(self) -> None:
        """Become active or stop being active, as the quorum's state says."""
        raft = self._raft
        assert raft is not None
        state = raft.state
        if self._active is not None and self._active.epoch != (state.epoch if state.active else None):
            self._active.deposed = True
            self._active = None
            for task in self._tasks:
                task.cancel()
        if self._active is None and state.active and not self._fatal_error.occurred:
            with self._fatal_error.catch():
                active = self._active = _ActiveController(self._config, self._node_ports, raft, self._fatal_error)
                self._node_ports.log(f"active in controller epoch {state.epoch}, metadata up to offset {raft.log.end}")
                self._tasks = active.start()


class _ActiveController:
    """The active controller: decides, commits, responds, one change at a time."""

    def __init__(self, config: NodeConfig, node_ports: NodePorts, raft: RaftNode, fatal_error: FatalError) -> None:
        self.epoch = raft.state.epoch
        self.deposed = False
        self._raft = raft
        self._fatal_error = fatal_error
        self._cluster_id = config.cluster_id
        self._voters = frozenset(voter.id for voter in config.voters)
        self._node_ports = node_ports
        image = self._replay_committed()
        self._controller = Controller(_settings(config), config.rules).activate(image, _now_ms())
        self._decision_lock = asyncio.Lock()
        self._last_refusals: dict[tuple[str, int], TraceEvent] = {}
        """By kind and broker, the last answer that a broker gets again and again, as it is traced once."""
        timeouts = RecoveryTimeouts(
            request_timeout_s=config.seconds("replica.socket.timeout.ms"),
            interval_s=config.seconds("replica.fetch.backoff.ms"),
            proactive_timeout_s=config.seconds("unclean.recovery.timeout.ms"),
        )
        self._recovery = RecoveryRounds(
            f"controller-{config.node_id}-recovery", lambda: self._controller, self._decide, timeouts
        )

    def start(self) -> tuple[asyncio.Task[None], ...]:
        """Start fencing brokers and recovering partitions, until deposed."""
        create_task = asyncio.get_running_loop().create_task
        return tuple(
            create_task(self._until_deposed(work)) for work in (self._fence_expired_sessions, self._recovery.run)
        )

    def _replay_committed(self) -> ClusterImage:
        """The image of all committed records, after trace events for those its predecessor may not have traced."""
        raft, end = self._raft, self._raft.state.high_watermark
        image = raft.log.image(raft.high_watermark_at_election)
        while image.offset < end:
            data = raft.log.read_committed(image.offset, end)
            for after, events in takeover_trace.committed_changes(image, data):
                image = after
                for event in events:
                    self._node_ports.trace(event)
        self._node_ports.trace(metadata_loaded(image, self.epoch))
        return image

    async def _decide(self, decide: Callable[[Controller, int], ControllerResult[A]]) -> A:
        """Decide on committed state, commit, then publish.

        Raises NotActive and ChangeTooLarge if nothing was appended, Deposed if the outcome of the append is unknown.
        """
        async with self._decision_lock:
            if self._fatal_error.occurred:
                await self._fatal_error.wait()
            if self.deposed or self._raft.state.epoch != self.epoch or not self._raft.state.active:
                raise NotActive
            result = decide(self._controller, _now_ms())
            if result.records:
                await self._commit(result)
                self._recovery.metadata_changed()
            else:
                self._publish(result)
            return result.answer

    async def _decide_confirmed(self, decide: Callable[[Controller, int], ControllerResult[A]]) -> A:
        """Decide for an administrator. Also an answer that changes nothing waits for a commit: a deposed controller
        would say of old metadata that all is as it is to be, or that a request cannot be carried out."""
        return await self._decide(lambda controller, now_ms: decide(controller, now_ms).confirmed())

    async def _commit(self, result: ControllerResult[Any]) -> None:
        end = self._raft.log.end + len(result.records)
        if end != result.state.image.offset:
            error = RuntimeError(f"the log will end at {end}, decided for {result.state.image.offset}")
            self._fatal_error.set(error)
            raise error
        try:
            await self._raft.append(
                self.epoch, result.records, self._node_ports.now_ms(), lambda: self._publish(result)
            )
        except (Deposed, ChangeTooLarge):
            raise
        except Exception as error:
            self._fatal_error.set(error)
            raise

    def _publish(self, result: ControllerResult[Any]) -> None:
        self._controller = result.state
        for event in result.trace:
            if event.kind in _REPEATED:
                if self._last_refusals.get((event.kind, event.broker)) == event:
                    continue
                self._last_refusals[event.kind, event.broker] = event
            self._node_ports.trace(event._replace(offset=result.state.image.offset) if result.records else event)
            if event.kind.startswith("broker_") and event.kind not in _REPEATED:
                self._node_ports.log(_line(event))

    async def _until_deposed(self, work: Callable[[], Awaitable[None]]) -> None:
        with self._fatal_error.catch(), suppress(NotActive, Deposed):
            await work()

    async def _fence_expired_sessions(self) -> None:
        """Fence brokers whose sessions end, one per change."""
        timeout_ms = self._controller.settings.session_timeout_ms
        while True:
            now_ms = _now_ms()
            first_ms = self._controller.next_expiry_ms()
            # A session that does not run yet cannot end before a full timeout from now.
            ends_ms = now_ms + timeout_ms if first_ms is None else min(first_ms, now_ms + timeout_ms)
            if ends_ms > now_ms:
                await asyncio.sleep((ends_ms - now_ms) / 1000)
            else:
                await self._decide(lambda controller, at_ms: controller.tick(at_ms))

    # ---- handlers ----------------------------------------------------------------------------------------------------

    async def register(self, request: Request[BrokerRegistrationRequest]) -> Any:
        """BrokerRegistration. A broker with the node id of a controller gets INVALID_REGISTRATION (119)."""
        message = messages.parse_registration(request.body)
        if request.body.cluster_id != self._cluster_id:
            answer = RegistrationAnswer(ErrorCode.inconsistent_cluster_id)
        elif message is None:
            answer = RegistrationAnswer(ErrorCode.invalid_request)
        elif message.id in self._voters:
            answer = RegistrationAnswer(ErrorCode.invalid_registration)
        else:
            answer = await self._decide(lambda controller, now_ms: controller.register(message, now_ms))
        return messages.registration_response(answer)

    async def heartbeat(self, request: Request[BrokerHeartbeatRequest]) -> Any:
        """BrokerHeartbeat."""
        message = messages.parse_heartbeat(request.body)
        answer = await self._decide(lambda controller, now_ms: controller.heartbeat(message, now_ms))
        return messages.heartbeat_response(answer)

    async def alter_partition(self, request: Request[AlterPartitionRequest]) -> Any:
        """AlterPartition."""
        message = messages.parse_alter_partition(request.body)
        answer = await self._decide(lambda controller, _: controller.alter_partition(message))
        return messages.alter_partition_response(request.body, answer)

    async def allocate_producer_ids(self, request: Request[AllocateProducerIdsRequest]) -> Any:
        """AllocateProducerIds."""
        broker, epoch = request.body.broker_id, request.body.broker_epoch
        answer = await self._decide(lambda controller, _: controller.allocate_producer_ids(broker, epoch))
        return messages.producer_ids_response(answer)

    async def create_topics(self, request: Request[CreateTopicsRequest]) -> Any:
        """CreateTopics."""
        topics = messages.parse_create_topics(request.body, self._node_ports.random)
        validate_only = request.body.validate_only
        results = await self._decide_confirmed(
            lambda controller, _: controller.create_topics(topics, validate_only=validate_only)
        )
        return messages.create_topics_response(results, validate_only=validate_only)

    async def delete_topics(self, request: Request[DeleteTopicsRequest]) -> Any:
        """DeleteTopics."""
        requested = messages.parse_delete_topics(request.body)
        results = await self._decide_confirmed(lambda controller, _: controller.delete_topics(requested))
        return messages.delete_topics_response(results)

    async def create_partitions(self, request: Request[CreatePartitionsRequest]) -> Any:
        """CreatePartitions."""
        requests = messages.parse_create_partitions(request.body, self._node_ports.random)
        validate_only = request.body.validate_only
        results = await self._decide_confirmed(
            lambda controller, _: controller.create_partitions(requests, validate_only=validate_only)
        )
        return messages.create_partitions_response(results)

    async def alter_configs(self, request: Request[AlterConfigsRequest | IncrementalAlterConfigsRequest]) -> Any:
        """AlterConfigs and IncrementalAlterConfigs: each resource is one change. Once one of them may have been made, a
        refusal of the next one would say that none was, and the whole request be repeated at the next controller."""
        results: list[TopicResult] = []
        counts = admin_messages.count_resources(request.body)
        for resource in request.body.resources:
            changes = admin_messages.parse_config_changes(resource)
            problem = admin_messages.config_request_problem(resource, changes, counts)
            if problem is not None:
                results.append(TopicResult(resource.resource_name, *problem))
            else:
                try:
                    results.append(await self._alter_config(request, resource, changes))
                except NotActive:
                    raise Deposed if results else NotActive from None
        return admin_messages.alter_configs_response(request.body, results)

    async def _alter_config(self, request: Request[Any], resource: Any, changes: Sequence[ConfigChange]) -> TopicResult:
        name, validate_only = resource.resource_name, request.body.validate_only
        replaces = request.api is Api.ALTER_CONFIGS

        def decide(controller: Controller, _: int) -> ControllerResult[TopicResult]:
            if resource.resource_type == admin_messages.TOPIC:
                return controller.alter_config(name, changes, replaces=replaces, validate_only=validate_only)
            return controller.alter_broker_config(int(name), changes, replaces=replaces, validate_only=validate_only)

        try:
            return await self._decide_confirmed(decide)
        except ChangeTooLarge as error:
            return TopicResult(name, ErrorCode.policy_violation, str(error))

    async def reassign(self, request: Request[AlterPartitionReassignmentsRequest]) -> Any:
        """AlterPartitionReassignments."""
        requested = admin_messages.parse_reassignments(request.body)
        results = await self._decide_confirmed(lambda controller, _: controller.reassign(requested))
        return admin_messages.reassignments_response(request.body, results)

    async def reassignments(self, request: Request[ListPartitionReassignmentsRequest]) -> Any:
        """ListPartitionReassignments, from the newest state, so that it contains every acknowledged reassignment."""
        image = await self._decide_confirmed(lambda controller, _: ControllerResult(controller, controller.image))
        return admin_messages.list_reassignments_response(request.body, image)

    async def elect_leaders(self, request: Request[ElectLeadersRequest]) -> Any:
        """ElectLeaders."""
        if request.body.election_type not in (admin_messages.PREFERRED, admin_messages.UNCLEAN):
            return admin_messages.elections_refused(request.body, ErrorCode.invalid_request, "Unknown election type.")
        requested = admin_messages.parse_elections(request.body)
        unclean = request.body.election_type == admin_messages.UNCLEAN
        results = await self._decide_confirmed(lambda controller, _: controller.elect(requested, unclean=unclean))
        return admin_messages.elect_leaders_response(request.body, results)


_REPEATED = frozenset({"registration_refused", "heartbeat_refused", "broker_stays_fenced"})
"""Events of answers that a broker gets until something changes."""

_Method = Callable[[_ActiveController, Request[Any]], Awaitable[Any]]

_ACTIVE_HANDLERS: Mapping[Api, _Method] = {
    Api.BROKER_REGISTRATION: _ActiveController.register,
    Api.BROKER_HEARTBEAT: _ActiveController.heartbeat,
    Api.ALTER_PARTITION: _ActiveController.alter_partition,
    Api.ALLOCATE_PRODUCER_IDS: _ActiveController.allocate_producer_ids,
    Api.CREATE_TOPICS: _ActiveController.create_topics,
    Api.DELETE_TOPICS: _ActiveController.delete_topics,
    Api.CREATE_PARTITIONS: _ActiveController.create_partitions,
    Api.ALTER_CONFIGS: _ActiveController.alter_configs,
    Api.INCREMENTAL_ALTER_CONFIGS: _ActiveController.alter_configs,
    Api.ALTER_PARTITION_REASSIGNMENTS: _ActiveController.reassign,
    Api.LIST_PARTITION_REASSIGNMENTS: _ActiveController.reassignments,
    Api.ELECT_LEADERS: _ActiveController.elect_leaders,
}


def _settings(config: NodeConfig) -> ControllerSettings:
    defaults = {topic: str(config.values[broker]) for topic, broker in BROKER_NAME_OF_TOPIC_KEY.items()}
    return ControllerSettings(
        config.number("broker.session.timeout.ms"),
        TopicDefaults(
            config.number("num.partitions"), config.number("default.replication.factor"), FrozenMap(defaults)
        ),
        config.number("faultline.producer.id.block.size"),
    )


def _now_ms() -> int:
    return round(asyncio.get_running_loop().time() * 1000)


def _line(event: TraceEvent) -> str:
    """A broker event in one line: `broker 2 fenced, broker epoch 7 (session_timeout)`."""
    change = event.kind.removeprefix("broker_").replace("_", " ")
    why = event.detail.get("reason") or ("clean" if event.detail.get("clean") else "")
    return f"broker {event.broker} {change}, broker epoch {event.broker_epoch}" + (f" ({why})" if why else "")
