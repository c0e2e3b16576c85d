"""A controller process: requests in, changes committed, answers out.

The deciding is `Controller`'s. This shell gives it requests and the time, commits its records through a `MetadataLog`
and only then shows the new state, traces it and answers. One change at a time: whoever comes while a change is being
committed waits for it, so that every decision is made on committed state (RC 6.3).

A failure that is not the network's ends the node: a controller that does not know whether its last change is committed
must not decide another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from kio.schema.errors import ErrorCode

from images.broker import admin_messages
from images.broker import controller_messages as messages
from images.broker.config import BROKER_NAME_OF_TOPIC_KEY, NodeConfig
from images.broker.controller import Controller, RegistrationAnswer, Settings, Step, TopicResult
from images.broker.doors import Doors
from images.broker.failure import Failure
from images.broker.frozen import FrozenMap
from images.broker.metadata_log import LocalMetadataLog, MetadataLog, replay
from images.broker.metadata_serving import MetadataServing
from images.broker.placement import TopicDefaults
from images.broker.recovery_rounds import Pace, RecoveryRounds
from images.broker.server import Handler, Request, Server
from images.broker.trace import TraceEvent
from images.broker.wire import Api

A = TypeVar("A")


class ControllerNode:
    """One controller. `run` serves until told to stop; `start` and `close` are the two ends of it."""

    def __init__(self, config: NodeConfig, doors: Doors) -> None:
        self._config = config
        self._doors = doors
        self._active: _ActiveController | None = None
        self._server: Server | None = None
        self._tasks: tuple[asyncio.Task[None], ...] = ()

    async def run(self, stopping: asyncio.Event) -> None:
        """Serve until `stopping` is set. Raises what made the node fail."""
        await self.start()
        assert self._active is not None
        told = asyncio.ensure_future(stopping.wait())
        failing = asyncio.ensure_future(self._active.failure.wait())
        try:
            await asyncio.wait((told, failing), return_when=asyncio.FIRST_COMPLETED)
        finally:
            told.cancel()
            failing.cancel()
            await self.close()
        if failing.done() and not failing.cancelled():
            failing.result()

    async def start(self) -> None:
        """Read the metadata log, take charge and listen. Raises OSError, MetadataError or CorruptBatch."""
        config, doors = self._config, self._doors
        doors.trace(TraceEvent("node_started"))
        log = LocalMetadataLog(doors, config.number("log.segment.bytes"))
        active = self._active = _ActiveController(config, doors, log)
        handlers: dict[Api, Handler] = {
            Api.BROKER_REGISTRATION: active.register,
            Api.BROKER_HEARTBEAT: active.heartbeat,
            Api.ALTER_PARTITION: active.alter_partition,
            Api.ALLOCATE_PRODUCER_IDS: active.allocate_producer_ids,
            Api.CREATE_TOPICS: active.create_topics,
            Api.DELETE_TOPICS: active.delete_topics,
            Api.INCREMENTAL_ALTER_CONFIGS: active.alter_configs,
            Api.ALTER_PARTITION_REASSIGNMENTS: active.reassign,
            Api.ELECT_LEADERS: active.elect_leaders,
            Api.FETCH: active.serving.fetch,
        }
        guarded = {api: active.failure.guarded(handler) for api, handler in handlers.items()}
        self._server = Server(guarded, log=doors.log, max_frame_bytes=config.number("socket.request.max.bytes"))
        await self._server.start(config.listener.host, config.listener.port)
        doors.log(f"serving in controller epoch {log.epoch}, metadata up to offset {log.end}")
        loop = asyncio.get_running_loop()
        self._tasks = (loop.create_task(active.fence_the_silent()), loop.create_task(active.recover_the_leaderless()))

    async def close(self) -> None:
        """Listen no more, leave waiting requests unanswered, release the log."""
        for task in self._tasks:
            task.cancel()
        if self._server is not None:
            await self._server.close()
        if self._active is not None:
            self._active.log.close()

    @property
    def port(self) -> int:
        """The port listened on."""
        assert self._server is not None, "not started"
        return self._server.port


class _ActiveController:
    """The controller in charge of a log: decides, commits, tells, one change at a time."""

    def __init__(self, config: NodeConfig, doors: Doors, log: MetadataLog) -> None:
        self.log = log
        self.serving = MetadataServing(config.node_id, log)
        self.failure = Failure()
        self._cluster_id = config.cluster_id
        self._doors = doors
        self._controller = Controller(_settings(config), config.rules).take_over(replay(log), _now_ms())
        self._one_at_a_time = asyncio.Lock()
        pace = Pace(
            answer_s=config.seconds("replica.socket.timeout.ms"),
            pause_s=config.seconds("replica.fetch.backoff.ms"),
            patience_s=config.seconds("unclean.recovery.timeout.ms"),
        )
        self._recovery = RecoveryRounds(
            f"controller-{config.node_id}-recovery", lambda: self._controller, self._decide, pace
        )

    async def _decide(self, decide: Callable[[Controller, int], Step[A]]) -> A:
        """Decide on committed state, commit, and only then let anyone know."""
        async with self._one_at_a_time:
            if self.failure.happened:
                await self.failure.wait()
            step = decide(self._controller, _now_ms())
            if step.records:
                await self._commit(step)
            self._controller = step.state
            for event in step.trace:
                self._doors.trace(event)
                if event.kind.startswith("broker_"):
                    self._doors.log(_line(event))
            if step.records:
                self._recovery.look()
            return step.answer

    async def _commit(self, step: Step[Any]) -> None:
        try:
            await self.log.append(step.records, _now_ms())
            if self.log.end != step.state.image.offset:
                raise RuntimeError(f"committed up to {self.log.end}, decided for {step.state.image.offset}")
        except Exception as error:
            self.failure.take(error)
            raise
        self.serving.committed()

    async def fence_the_silent(self) -> None:
        """Fence brokers as their sessions end, one a change, for ever."""
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
        except Exception as error:
            self.failure.take(error)

    async def recover_the_leaderless(self) -> None:
        """Find leaders for partitions that nobody is known to be able to lead, where their topics ask for it."""
        try:
            await self._recovery.run()
        except Exception as error:
            self.failure.take(error)

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
        topics = messages.new_topics(request.body, self._doors.random)
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

    async def elect_leaders(self, request: Request) -> Any:
        """ElectLeaders."""
        wanted, unclean = admin_messages.elections(request.body), request.body.election_type == admin_messages.UNCLEAN
        results = await self._decide(lambda controller, _: controller.elect(wanted, unclean=unclean))
        return admin_messages.elected(results)


def _settings(config: NodeConfig) -> Settings:
    defaults = {topic: str(config.values[broker]) for topic, broker in BROKER_NAME_OF_TOPIC_KEY.items()}
    return Settings(
        config.number("broker.session.timeout.ms"),
        TopicDefaults(
            config.number("num.partitions"), config.number("default.replication.factor"), FrozenMap(defaults)
        ),
    )


def _now_ms() -> int:
    return int(asyncio.get_running_loop().time() * 1000)


def _line(event: TraceEvent) -> str:
    """A broker's change in one line: `broker 2 fenced, broker epoch 7 (session_timeout)`."""
    _, _, change = event.kind.partition("_")
    why = event.detail.get("reason") or ("clean" if event.detail.get("clean") else "")
    return f"broker {event.broker} {change}, broker epoch {event.broker_epoch}" + (f" ({why})" if why else "")
