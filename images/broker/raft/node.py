"""A controller's part in the quorum, carried out: the vote on disk, messages sent, the log replicated and committed.

The deciding is `Quorum`'s. Each event is taken in one go, without waiting: the vote is written if it changed, the trace
told, what became committed announced, and only then does anybody hear of it. Requests to other controllers are sent
once and not again; the machine asks anew when its time is up.

As follower it fetches from the leader of its epoch, one fetch at a time, and ignores an answer that comes when its
epoch or the end of its log is no longer what it asked with. As leader it appends on behalf of the active controller.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode

from images.broker.config import NodeConfig
from images.broker.log.leader_epochs import UNDEFINED, EpochEnd
from images.broker.metadata.image import LeaderChange, Record
from images.broker.ports import NodePorts
from images.broker.raft import messages
from images.broker.raft.divergence import cut
from images.broker.raft.log import MetadataLog
from images.broker.raft.snapshots import fetch_snapshot
from images.broker.raft.state import Quorum
from images.broker.raft.values import (
    NOBODY,
    AskVote,
    Begin,
    Fetched,
    FetchVerdict,
    Message,
    Moment,
    Role,
    SnapshotId,
    Timing,
)
from images.broker.runtime.fatal_error import Failure
from images.broker.runtime.server import Request
from images.trace import TraceEvent
from images.wire import batch as batches
from images.wire.connection import Connection, ConnectionLost

_FETCH_MAX_BYTES = 1 << 20
_FETCH_WAIT_MAX_S = 0.5
_TOLD = (Role.CANDIDATE, Role.FOLLOWER, Role.LEADER, Role.RESIGNED)
"""The roles that the trace tells of."""


class Deposed(Exception):
    """This controller no longer leads: whether the change was, or will be, committed is not known here."""


class _Change(NamedTuple):
    """A change that waits to be committed."""

    end: int
    committed: Callable[[], None]
    done: asyncio.Future[None]


class QuorumNode:
    """See the module. `start`, then `close`; in between `state` and `log` are for looking at."""

    def __init__(
        self,
        config: NodeConfig,
        node_ports: NodePorts,
        log: MetadataLog,
        failure: Failure,
        changed: Callable[[], None],
    ) -> None:
        """`changed` is called, outside of any event, when this controller may have become active or been deposed."""
        self.log = log
        self._config = config
        self._node_ports = node_ports
        self._failure = failure
        self._changed = changed
        self._loop = asyncio.get_running_loop()
        self._addresses = {voter.id: voter.endpoint for voter in config.voters}
        timing = Timing(
            config.number("controller.quorum.election.timeout.ms"),
            config.number("controller.quorum.fetch.timeout.ms"),
            config.number("controller.quorum.election.backoff.max.ms"),
        )
        voters = tuple(sorted(self._addresses))
        self._durable = log.vote()
        self.state = Quorum(config.node_id, voters, timing, config.rules).started(
            self._durable, log.start, self._moment()
        )
        self.known_when_elected = log.start
        """As leader: how far it knew the log to be committed when it was elected."""
        self._request_s = config.seconds("controller.quorum.request.timeout.ms")
        self._retry_s = config.seconds("controller.quorum.retry.backoff.ms")
        self._alarm: asyncio.TimerHandle | None = None
        self._waiting: deque[_Change] = deque()
        self._grown = asyncio.Event()
        """Set, and replaced, whenever a waiting fetch may be answered otherwise than before."""
        self._fetching: asyncio.Task[None] | None = None
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._connections: dict[int, Connection] = {}
        self._opening = {voter: asyncio.Lock() for voter in voters}

    def start(self) -> None:
        """Take part."""
        detail = {"voted": self._durable.voted, "epochs": [list(entry) for entry in self.log.view.epochs.entries]}
        self._tell("quorum_recovered", offset=self.log.start, log_end=self.log.end, detail=detail)
        if self.state.role is Role.FOLLOWER:
            self._follow()
        self._set_alarm()

    def close(self) -> None:
        """Take part no more; changes that wait are left without an answer."""
        if self._alarm is not None:
            self._alarm.cancel()
        for task in list(self._tasks):
            task.cancel()
        for connection in self._connections.values():
            connection.close()

    # ---- the active controller's side --------------------------------------------------------------------------------

    async def append(
        self, epoch: int, records: Sequence[Record], timestamp_ms: int, committed: Callable[[], None]
    ) -> None:
        """Return once `records`, one change of the leader of `epoch`, are committed; `committed` is called at that very
        moment, before anybody can read them. Raises Deposed when that is not for this controller to find out."""
        if self.state.role is not Role.LEADER or self.state.epoch != epoch:
            raise Deposed
        self._add(self.log.change(records, epoch, timestamp_ms))
        change = _Change(self.log.end, committed, self._loop.create_future())
        self._waiting.append(change)
        self._become(self.state.appended(self.log.end))
        await change.done

    def resign(self) -> None:
        """Hand the leadership on, if there is any."""
        self._become(*self.state.resign(self._moment()))

    async def leave(self) -> None:
        """Hand the leadership on, if there is any, and give the others a moment to hear of it."""
        before = dict(self._tasks)
        self.resign()
        telling = [task for task in self._tasks if task not in before]
        if telling:
            await asyncio.wait(telling, timeout=self._request_s)

    async def until_changed(self) -> None:
        """Wait until fetches may be answered otherwise: something was appended or committed, or the leader changed."""
        await self._grown.wait()

    # ---- requests ----------------------------------------------------------------------------------------------------

    async def vote(self, request: Request) -> Any:
        """Vote."""
        asked = messages.vote_asked(request.body)
        error = self._refusal(request.body)
        if asked is None or error is not ErrorCode.none:
            return messages.vote_refused(error)
        state, answer = self.state.asked_for_vote(asked, self.log.log_end, self._moment())
        self._become(state)
        return messages.voted(answer)

    async def begin_epoch(self, request: Request) -> Any:
        """BeginQuorumEpoch."""
        told = messages.told_of_leader(request.body)
        error = self._refusal(request.body)
        if told is None or error is not ErrorCode.none:
            return messages.begin_refused(error)
        epoch, leader, _ = told
        state, error = self.state.begun(epoch, leader, self._moment())
        self._become(state)
        return messages.begun(error, state.epoch, state.leader)

    async def end_epoch(self, request: Request) -> Any:
        """EndQuorumEpoch. To the leader itself it is the wish that it resign."""
        told = messages.told_of_leader(request.body)
        error = self._refusal(request.body)
        if told is None or error is not ErrorCode.none:
            return messages.end_refused(error)
        epoch, leader, preferred = told
        if leader == self.state.me and epoch == self.state.epoch:
            self.resign()
            return messages.ended(ErrorCode.none, self.state.epoch, self.state.leader)
        state, error = self.state.ended(epoch, leader, preferred, self._moment())
        self._become(state)
        return messages.ended(error, state.epoch, state.leader)

    def fetched_by(self, fetched: Fetched) -> FetchVerdict:
        """Take note of a fetch and say whether it may be served."""
        state, verdict = self.state.fetched_by(fetched, self.log.view, self._moment())
        self._become(state)
        return verdict

    async def describe(self, request: Request) -> Any:
        """DescribeQuorum."""
        if not messages.is_metadata(request.body):
            return messages.quorum_refused(
                ErrorCode.unknown_topic_or_partition, "Only the metadata partition has a quorum."
            )
        return messages.described(self.state, self.log.end, self._moment().ms, self._config.voters)

    def _refusal(self, body: Any) -> ErrorCode:
        if body.cluster_id is not None and body.cluster_id != self._config.cluster_id:
            return ErrorCode.inconsistent_cluster_id
        return ErrorCode.none if messages.is_metadata(body) else ErrorCode.unknown_topic_or_partition

    # ---- events ------------------------------------------------------------------------------------------------------

    def _become(self, state: Quorum, outgoing: tuple[Message, ...] = ()) -> None:
        """The one place where the state changes."""
        before = self.state
        if state is before and not outgoing:
            return
        if state.durable != self._durable:
            self._durable = state.durable
            self.log.keep_vote(self._durable)
        self.state = state
        self._tell_changes(before, state)
        if state.role is Role.LEADER and before.role is not Role.LEADER:
            self.known_when_elected = before.high_watermark
            self._add(self.log.change([LeaderChange(state.me, state.epoch)], state.epoch, self._moment().ms))
            state = self.state = state.appended(self.log.end)
        if state.role is Role.LEADER and state.high_watermark > before.high_watermark:
            self._commit(before.high_watermark)
        moved = (state.role, state.epoch, state.leader) != (before.role, before.epoch, before.leader)
        if moved and state.role is not Role.LEADER:
            self._give_up_changes()
        if moved and state.role is Role.FOLLOWER:
            self._follow()
        if moved or state.high_watermark > before.high_watermark:
            self._wake()
        if moved or state.active is not before.active:
            self._loop.call_soon(self._changed)
        for message in outgoing:
            self._spawn(self._send, message)
        # Whoever takes over reads first what its predecessor left, so becoming active is no time to trim.
        trims = state.high_watermark > before.high_watermark and state.active is before.active
        if trims and self.log.trim(state.high_watermark):
            self._tell("metadata_trimmed", offset=state.high_watermark)
        self._set_alarm()

    def _add(self, batch: bytes) -> None:
        header = self.log.append(batch)
        self._tell(
            "metadata_appended",
            leader_epoch=header.leader_epoch,
            offset=header.base_offset,
            log_end=header.next_offset,
            detail={"crc": header.crc},
        )
        self._wake()

    def _commit(self, before: int) -> None:
        state = self.state
        self._tell("metadata_committed", offset=before, high_watermark=state.high_watermark)
        while self._waiting and self._waiting[0].end <= state.high_watermark:
            change = self._waiting.popleft()
            change.committed()
            if not change.done.done():
                change.done.set_result(None)

    def _give_up_changes(self) -> None:
        while self._waiting:
            change = self._waiting.popleft()
            if not change.done.done():
                change.done.set_exception(Deposed())

    def _wake(self) -> None:
        grown, self._grown = self._grown, asyncio.Event()
        grown.set()

    def _set_alarm(self) -> None:
        """One timer; where a deadline has moved away it rings early, once, and is set again."""
        when = max(self.state.deadline_ms / 1000, self._loop.time())
        if self._alarm is not None:
            if self._alarm.when() <= when:
                return
            self._alarm.cancel()
        self._alarm = self._loop.call_at(when, self._ring)

    def _ring(self) -> None:
        self._alarm = None
        try:
            if self._moment().ms >= self.state.deadline_ms:
                self._become(*self.state.tick(self.log.log_end, self._moment()))
            self._set_alarm()
        except Exception as error:
            self._failure.take(error)

    def _moment(self) -> Moment:
        return Moment(round(self._loop.time() * 1000), self._node_ports.random.random())

    # ---- sending -----------------------------------------------------------------------------------------------------

    def _spawn(self, work: Callable[..., Coroutine[Any, Any, None]], *arguments: Any) -> asyncio.Task[None]:
        async def guarded() -> None:
            try:
                await work(*arguments)
            except Exception as error:
                self._failure.take(error)

        task = self._loop.create_task(guarded())
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        return task

    async def _send(self, message: Message) -> None:
        cluster, me = self._config.cluster_id, self.state.me
        if isinstance(message, AskVote):
            response = await self._call(message.to, messages.ask_vote(cluster, message.to, message.asked))
            answer = messages.vote_answer(response) if response is not None else None
            if answer is not None:
                outcome = self.state.vote_answered(message.to, message.asked, answer, self.log.log_end, self._moment())
                self._become(*outcome)
            return
        request = (
            messages.begin(cluster, me, message) if isinstance(message, Begin) else messages.end(cluster, me, message)
        )
        response = await self._call(message.to, request)
        if response is not None:
            self._become(self.state.learned(*messages.knows(response), self._moment()))

    async def _call(self, to: int, request: Any) -> Any:
        """One request on the connection kept for such; None when no answer came."""
        try:
            async with self._opening[to]:
                connection = self._connections.get(to)
                if connection is None or connection.closed:
                    connection = self._connections[to] = await self._connect(to)
            return await connection.call(request, self._request_s)
        except ConnectionLost:
            return None

    async def _connect(self, to: int) -> Connection:
        address = self._addresses[to]
        return await Connection.open(address.host, address.port, f"controller-{self.state.me}", self._request_s)

    # ---- following ---------------------------------------------------------------------------------------------------

    def _follow(self) -> None:
        if self._fetching is not None and self._fetching is not asyncio.current_task():
            self._fetching.cancel()
        self._fetching = self._spawn(self._fetch_from, self.state.leader, self.state.epoch)

    def _follows(self, leader: int, epoch: int) -> bool:
        state = self.state
        return state.epoch == epoch and state.leader == leader and state.role is Role.FOLLOWER

    async def _fetch_from(self, leader: int, epoch: int) -> None:
        wait_s = min(_FETCH_WAIT_MAX_S, self.state.timing.fetch_ms / 2000)
        connection: Connection | None = None
        try:
            while self._follows(leader, epoch):
                end = self.log.log_end
                asked = Fetched(self.state.me, epoch, end.offset, end.epoch or UNDEFINED)
                try:
                    if connection is None or connection.closed:
                        connection = await self._connect(leader)
                    request = messages.fetch(asked, wait_s, _FETCH_MAX_BYTES)
                    response = await connection.call(request, self._request_s + wait_s)
                except ConnectionLost:
                    await asyncio.sleep(self._retry_s)
                    continue
                answer = response.responses[0].partitions[0]
                if not self._follows(leader, epoch) or self.log.log_end != end:
                    continue
                if answer.snapshot_id.end_offset >= 0:
                    snapshot = SnapshotId(answer.snapshot_id.end_offset, answer.snapshot_id.epoch)
                    taken = await self._restore(connection, leader, epoch, snapshot)
                else:
                    taken = self._take(answer)
                if not taken:
                    await asyncio.sleep(self._retry_s)
        finally:
            if connection is not None:
                connection.close()

    async def _restore(self, connection: Connection, leader: int, epoch: int, snapshot: SnapshotId) -> bool:
        """Begin anew with a snapshot of the leader's; whether it could be had."""
        self._become(self.state.answered(self._moment()))
        end = self.log.log_end
        try:
            data = await fetch_snapshot(
                lambda request: connection.call(request, self._request_s), self.state.me, epoch, snapshot
            )
        except ConnectionLost:
            return False
        if data is None or not self._follows(leader, epoch) or self.log.log_end != end:
            return False
        self.log.restore(snapshot, data)
        self._tell("metadata_restored", leader_epoch=snapshot.epoch, offset=snapshot.end)
        self._node_ports.log(f"metadata up to offset {snapshot.end} taken from a snapshot of controller {leader}")
        self._become(self.state.restored(snapshot.end, self._moment()))
        return True

    def _take(self, answer: Any) -> bool:
        """Do what the leader's answer says; whether it was of use."""
        at = self._moment()
        if answer.error_code is not ErrorCode.none:
            hint = answer.current_leader
            self._become(self.state.learned(hint.leader_epoch, hint.leader_id, at))
            return False
        if answer.diverging_epoch.end_offset >= 0:
            diverging = EpochEnd(answer.diverging_epoch.epoch, answer.diverging_epoch.end_offset)
            self._cut(cut(self.log.view, diverging))
            self._become(self.state.answered(at))
            return True
        for header, batch in batches.iterate(answer.records or b""):
            if header.leader_epoch > self.state.epoch:
                break
            self._add(batch)
        self._become(self.state.fetched(answer.high_watermark, self.log.end, at))
        return True

    def _cut(self, to: int) -> None:
        before = self.log.end
        self.log.truncate(to)
        self._tell("metadata_truncated", offset=self.log.end, log_end=before, high_watermark=self.state.high_watermark)

    # ---- the trace ---------------------------------------------------------------------------------------------------

    def _tell(self, kind: str, **facts: Any) -> None:
        facts.setdefault("leader_epoch", self.state.epoch)
        self._node_ports.trace(TraceEvent(kind, **facts))

    def _tell_changes(self, before: Quorum, state: Quorum) -> None:
        if state.voted != NOBODY and (state.voted, state.epoch) != (before.voted, before.epoch):
            self._tell("quorum_voted", broker=state.voted)
        if state.role in _TOLD and (state.role, state.epoch, state.leader) != (
            before.role,
            before.epoch,
            before.leader,
        ):
            self._tell(f"quorum_{state.role}", leader=state.leader, offset=state.epoch_start, log_end=self.log.end)
            if state.role is not Role.CANDIDATE:
                self._node_ports.log(f"{state.role} in controller epoch {state.epoch}, led by {state.leader}")
