"""A controller process: a part in the quorum, and while it leads that, the cluster's one active controller.

The deciding is `Controller`'s. This shell gives it requests and the time, commits its records through the quorum and
only then shows the new state, traces it and answers. One change at a time: whoever comes while a change is being
committed waits for it, so that every decision is made on committed state (RC 6.3).

A controller is active once a record of its own epoch is committed, for then it knows all that is. One that is not
answers NOT_CONTROLLER. One that is deposed while a change waits to be committed hangs up on whoever asked for it: its
successor may commit that change or not, and no answer would be true.

A failure that is not the network's ends the node.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from kio.schema.errors import ErrorCode

from images.broker.config import BROKER_NAME_OF_TOPIC_KEY, NodeConfig
from images.broker.controller import admin_messages, messages
from images.broker.controller import takeover_trace as taking_over
from images.broker.controller.controller import Controller, Settings, Step
from images.broker.controller.not_controller import not_controller
from images.broker.controller.placement import TopicDefaults
from images.broker.controller.recovery_rounds import Pace, RecoveryRounds
from images.broker.controller.requests import RegistrationAnswer, TopicResult
from images.broker.frozen_map import FrozenMap
from images.broker.metadata.image import ClusterImage
from images.broker.ports import NodePorts
from images.broker.raft.fetch import MetadataServing
from images.broker.raft.log import MetadataLog
from images.broker.raft.node import Deposed, QuorumNode
from images.broker.runtime.fatal_error import Failure
from images.broker.runtime.server import Handler, Hangup, Request, Server
from images.trace import TraceEvent
from images.wire.connection import Api

A = TypeVar("A")
_TAKE_OVER_BYTES = 1 << 20


class NotActive(Exception):
    """This controller is not in charge, and has done nothing."""


class ControllerNode:
    """One controller. `run` serves until told to stop; `start` and `close` are the two ends of it."""

    def __init__(self, config: NodeConfig, node_ports: NodePorts) -> None:
        self._config = config
        self._node_ports = node_ports
        self._failure: Failure | None = None
        self._log: MetadataLog | None = None
        self._quorum: QuorumNode | None = None
        self._active: _ActiveController | None = None
        self._server: Server | None = None
        self._tasks: tuple[asyncio.Task[None], ...] = ()

    async def run(self, stopping: asyncio.Event) -> None:
        """Serve until `stopping` is set. Raises what made the node fail."""
        await self.start()
        assert self._failure is not None
        assert self._quorum is not None
        told = asyncio.ensure_future(stopping.wait())
        failing = asyncio.ensure_future(self._failure.wait())
        try:
            await asyncio.wait((told, failing), return_when=asyncio.FIRST_COMPLETED)
            if told.done():
                await self._quorum.leave()
        finally:
            told.cancel()
            failing.cancel()
            await self.close()
        if failing.done() and not failing.cancelled():
            failing.result()

    async def start(self) -> None:
        """Read the metadata log, listen and take part in the quorum. Raises OSError or CorruptBatch."""
        config, node_ports = self._config, self._node_ports
        node_ports.trace(TraceEvent("node_started"))
        failure = self._failure = Failure()
        log = self._log = MetadataLog(
            node_ports,
            config.number("metadata.log.segment.bytes"),
            config.rules,
            config.number("metadata.log.max.record.bytes.between.snapshots"),
        )
        quorum = self._quorum = QuorumNode(config, node_ports, log, failure, self._look_who_leads)
        serving = MetadataServing(quorum)
        handlers: dict[Api, Handler] = {
            Api.VOTE: quorum.vote,
            Api.BEGIN_QUORUM_EPOCH: quorum.begin_epoch,
            Api.END_QUORUM_EPOCH: quorum.end_epoch,
            Api.DESCRIBE_QUORUM: quorum.describe,
            Api.FETCH: serving.fetch,
            Api.FETCH_SNAPSHOT: serving.fetch_snapshot,
            **{api: self._by_the_active_one(api, method) for api, method in _OF_THE_ACTIVE_CONTROLLER.items()},
        }
        guarded = {api: failure.guarded(handler) for api, handler in handlers.items()}
        self._server = Server(guarded, log=node_ports.log, max_frame_bytes=config.number("socket.request.max.bytes"))
        await self._server.start(config.listener.host, config.listener.port)
        node_ports.log(f"serving, metadata up to offset {log.end}")
        quorum.start()

    async def close(self) -> None:
        """Listen no more, leave waiting requests unanswered, release the log."""
        for task in self._tasks:
            task.cancel()
        if self._quorum is not None:
            self._quorum.close()
        if self._server is not None:
            await self._server.close()
        if self._log is not None:
            self._log.close()

    @property
    def port(self) -> int:
        """The port listened on."""
        assert self._server is not None, "not started"
        return self._server.port

    def _by_the_active_one(self, api: Api, method: _Method) -> Handler:
        async def handle(request: Request) -> Any:
            if self._active is None:
                return not_controller(api, request.body)
            try:
                return await method(self._active, request)
            except NotActive:
                return not_controller(api, request.body)
            except Deposed:
                raise Hangup(f"deposed while a change for {request.client_id} waited to be committed") from None

        return handle

    def _look_who_leads(self) -> None:
        """Take charge, or leave it, as the quorum has it."""
        quorum, failure = self._quorum, self._failure
        assert quorum is not None
        assert failure is not None
        state = quorum.state
        if self._active is not None and self._active.epoch != (state.epoch if state.active else None):
            self._active.deposed = True
            self._active = None
            for task in self._tasks:
                task.cancel()
        if self._active is None and state.active and not failure.happened:
            try:
                self._active = _ActiveController(self._config, self._node_ports, quorum, failure)
            except Exception as error:
                failure.take(error)
                return
            self._node_ports.log(f"active in controller epoch {state.epoch}, metadata up to offset {quorum.log.end}")
            loop, active = asyncio.get_running_loop(), self._active
            self._tasks = (
                loop.create_task(active.fence_the_silent()),
                loop.create_task(active.recover_the_leaderless()),
            )


class _ActiveController:
    """The controller in charge: decides, commits, tells, one change at a time."""

    def __init__(self, config: NodeConfig, node_ports: NodePorts, quorum: QuorumNode, failure: Failure) -> None:
        self.epoch = quorum.state.epoch
        self.deposed = False
        self._quorum = quorum
        self._failure = failure
        self._cluster_id = config.cluster_id
        self._node_ports = node_ports
        image = self._found()
        self._controller = Controller(_settings(config), config.rules).take_over(image, _now_ms())
        self._one_at_a_time = asyncio.Lock()
        pace = Pace(
            answer_s=config.seconds("replica.socket.timeout.ms"),
            pause_s=config.seconds("replica.fetch.backoff.ms"),
            patience_s=config.seconds("unclean.recovery.timeout.ms"),
        )
        self._recovery = RecoveryRounds(
            f"controller-{config.node_id}-recovery", lambda: self._controller, self._decide, pace
        )

    def _found(self) -> ClusterImage:
        """The image of all that is committed, with what the predecessor may not have told of it traced."""
        quorum, end = self._quorum, self._quorum.state.high_watermark
        image = quorum.log.image(quorum.known_when_elected)
        while image.offset < end:
            data = quorum.log.read(image.offset, _TAKE_OVER_BYTES, end)
            for after, events in taking_over.found(image, data):
                image = after
                for event in events:
                    self._node_ports.trace(event)
        return image

    async def _decide(self, decide: Callable[[Controller, int], Step[A]]) -> A:
        """Decide on committed state, commit, and only then let anyone know. Raises NotActive when nothing was begun,
        Deposed when nobody here can tell what became of it."""
        async with self._one_at_a_time:
            if self._failure.happened:
                await self._failure.wait()
            if self.deposed or self._quorum.state.epoch != self.epoch or not self._quorum.state.active:
                raise NotActive
            step = decide(self._controller, _now_ms())
            if step.records:
                await self._commit(step)
            else:
                self._take(step)
            if step.records:
                self._recovery.look()
            return step.answer

    async def _commit(self, step: Step[Any]) -> None:
        end = self._quorum.log.end + len(step.records)
        if end != step.state.image.offset:
            error = RuntimeError(f"the log will end at {end}, decided for {step.state.image.offset}")
            self._failure.take(error)
            raise error
        try:
            await self._quorum.append(self.epoch, step.records, _now_ms(), lambda: self._take(step))
        except Deposed:
            raise
        except Exception as error:
            self._failure.take(error)
            raise

    def _take(self, step: Step[Any]) -> None:
        self._controller = step.state
        for event in step.trace:
            self._node_ports.trace(event._replace(offset=step.state.image.offset) if step.records else event)
            if event.kind.startswith("broker_"):
                self._node_ports.log(_line(event))

    async def fence_the_silent(self) -> None:
        """Fence brokers as their sessions end, one a change, until it is deposed."""
        timeout_ms = self._controller.settings.session_timeout_ms
        try:
            while True:
                now_ms = _now_ms()
                first_ms = self._controller.next_expiry_ms()
                # A session that does not run yet cannot end before a full timeout from now.
                ends_ms = now_ms + timeout_ms if first_ms is None else min(first_ms, now_ms + timeout_ms)
                if ends_ms > now_ms:
                    await asyncio.sleep((ends_ms - now_ms) / 1000)
                else:
                    await self._decide(lambda controller, at_ms: controller.tick(at_ms))
        except (NotActive, Deposed):
            return
        except Exception as error:
            self._failure.take(error)

    async def recover_the_leaderless(self) -> None:
        """Find leaders for partitions that nobody is known to be able to lead, where their topics ask for it."""
        try:
            await self._recovery.run()
        except (NotActive, Deposed):
            return
        except Exception as error:
            self._failure.take(error)

    # ---- handlers ----------------------------------------------------------------------------------------------------

    async def register(self, request: Request) -> Any:
        """BrokerRegistration."""
        asked = messages.registration(request.body)
        if request.body.cluster_id != self._cluster_id:
            return messages.registered(RegistrationAnswer(ErrorCode.inconsistent_cluster_id))
        if asked is None:
            return messages.registered(RegistrationAnswer(ErrorCode.invalid_request))
        return messages.registered(await self._decide(lambda controller, now_ms: controller.register(asked, now_ms)))

    async def heartbeat(self, request: Request) -> Any:
        """BrokerHeartbeat."""
        asked = messages.heartbeat(request.body)
        return messages.heard(await self._decide(lambda controller, now_ms: controller.heartbeat(asked, now_ms)))

    async def alter_partition(self, request: Request) -> Any:
        """AlterPartition."""
        asked = messages.isr_proposals(request.body)
        answer = await self._decide(lambda controller, _: controller.alter_partition(asked))
        return messages.isrs_altered(request.body, answer)

    async def allocate_producer_ids(self, request: Request) -> Any:
        """AllocateProducerIds."""
        broker, epoch = request.body.broker_id, request.body.broker_epoch
        answer = await self._decide(lambda controller, _: controller.allocate_producer_ids(broker, epoch))
        return messages.producer_ids(answer)

    async def create_topics(self, request: Request) -> Any:
        """CreateTopics."""
        topics = messages.new_topics(request.body, self._node_ports.random)
        validate_only = request.body.validate_only
        results = await self._decide(
            lambda controller, _: controller.create_topics(topics, validate_only=validate_only)
        )
        return messages.topics_created(results, validate_only=validate_only)

    async def delete_topics(self, request: Request) -> Any:
        """DeleteTopics."""
        wanted = messages.topics_to_delete(request.body)
        results = await self._decide(lambda controller, _: controller.delete_topics(wanted))
        return messages.topics_deleted(results)

    async def alter_configs(self, request: Request) -> Any:
        """IncrementalAlterConfigs: each resource is a change of its own."""
        validate_only, results = request.body.validate_only, []
        for resource in request.body.resources:
            if resource.resource_type != admin_messages.TOPIC:
                refused = "Only the configuration of a topic can be changed while it is in use."
                results.append(TopicResult(resource.resource_name, ErrorCode.invalid_request, refused))
                continue
            results.append(await self._alter_config(resource, validate_only))
        return admin_messages.configs_altered(request.body, results)

    async def _alter_config(self, resource: Any, validate_only: bool) -> TopicResult:
        name, changes = resource.resource_name, admin_messages.config_changes(resource)
        return await self._decide(
            lambda controller, _: controller.alter_config(name, changes, validate_only=validate_only)
        )

    async def reassign(self, request: Request) -> Any:
        """AlterPartitionReassignments."""
        wanted = admin_messages.reassignments(request.body)
        results = await self._decide(lambda controller, _: controller.reassign(wanted))
        return admin_messages.reassigned(request.body, results)

    async def reassignments(self, request: Request) -> Any:
        """ListPartitionReassignments: of committed state, which whoever has had a reassignment answered finds it in."""
        image = await self._decide(lambda controller, _: Step(controller, controller.image))
        return admin_messages.reassignments_under_way(request.body, image)

    async def elect_leaders(self, request: Request) -> Any:
        """ElectLeaders."""
        wanted, unclean = admin_messages.elections(request.body), request.body.election_type == admin_messages.UNCLEAN
        results = await self._decide(lambda controller, _: controller.elect(wanted, unclean=unclean))
        return admin_messages.elected(results)


_Method = Callable[[_ActiveController, Request], Awaitable[Any]]

_OF_THE_ACTIVE_CONTROLLER: Mapping[Api, _Method] = {
    Api.BROKER_REGISTRATION: _ActiveController.register,
    Api.BROKER_HEARTBEAT: _ActiveController.heartbeat,
    Api.ALTER_PARTITION: _ActiveController.alter_partition,
    Api.ALLOCATE_PRODUCER_IDS: _ActiveController.allocate_producer_ids,
    Api.CREATE_TOPICS: _ActiveController.create_topics,
    Api.DELETE_TOPICS: _ActiveController.delete_topics,
    Api.INCREMENTAL_ALTER_CONFIGS: _ActiveController.alter_configs,
    Api.ALTER_PARTITION_REASSIGNMENTS: _ActiveController.reassign,
    Api.LIST_PARTITION_REASSIGNMENTS: _ActiveController.reassignments,
    Api.ELECT_LEADERS: _ActiveController.elect_leaders,
}


def _settings(config: NodeConfig) -> Settings:
    defaults = {topic: str(config.values[broker]) for topic, broker in BROKER_NAME_OF_TOPIC_KEY.items()}
    return Settings(
        config.number("broker.session.timeout.ms"),
        TopicDefaults(
            config.number("num.partitions"), config.number("default.replication.factor"), FrozenMap(defaults)
        ),
    )


def _now_ms() -> int:
    return round(asyncio.get_running_loop().time() * 1000)


def _line(event: TraceEvent) -> str:
    """A broker's change in one line: `broker 2 fenced, broker epoch 7 (session_timeout)`."""
    _, _, change = event.kind.partition("_")
    why = event.detail.get("reason") or ("clean" if event.detail.get("clean") else "")
    return f"broker {event.broker} {change}, broker epoch {event.broker_epoch}" + (f" ({why})" if why else "")
