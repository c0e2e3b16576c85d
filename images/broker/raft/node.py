"""The Raft node of a controller: stores the vote, sends messages, replicates and commits the log.

`QuorumState` decides. Each event is handled without waiting: a changed vote is written, trace events are written, newly
committed changes are announced, and only then are messages sent. A request to another controller is sent once; the
state machine sends a new one after its timeout.

A follower fetches from the leader of its epoch, one fetch at a time, and ignores a response if its epoch or the end of
its log has changed since the request. Fetches have connections of their own. A leader appends on behalf of the active
controller.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, NamedTuple

from kio.schema.begin_quorum_epoch.v1.request import BeginQuorumEpochRequest
from kio.schema.describe_quorum.v2.request import DescribeQuorumRequest
from kio.schema.end_quorum_epoch.v1.request import EndQuorumEpochRequest
from kio.schema.errors import ErrorCode
from kio.schema.vote.v2.request import VoteRequest

from images.broker.config import NodeConfig
from images.broker.log.divergence import truncation_offset
from images.broker.log.leader_epochs import UNDEFINED, EpochEnd
from images.broker.metadata.image import LeaderChange, Record
from images.broker.ports import NodePorts
from images.broker.raft import messages, values
from images.broker.raft.log import KafkaMetadataLog
from images.broker.raft.snapshots import fetch_snapshot
from images.broker.raft.state import QuorumState
from images.broker.raft.values import NO_NODE, Moment, RaftRole, SnapshotId
from images.broker.raft.voter_connections import VoterConnections
from images.broker.runtime.fatal_error import FatalError
from images.broker.runtime.server import Request
from images.trace import TraceEvent
from images.wire import batch as batches
from images.wire.connection import Connection, ConnectionLost

_FETCH_MAX_BYTES = 1 << 20
_FETCH_WAIT_MAX_S = 0.5
_TRACED_ROLES = (
    RaftRole.UNATTACHED, RaftRole.CANDIDATE, RaftRole.FOLLOWER, RaftRole.LEADER, RaftRole.RESIGNED
)  # fmt: skip
"""Roles with trace events."""
_NOTABLE_LATENESS_MS = 200
"""Timers of a machine that is not busy are less late than this."""


class Deposed(Exception):
    """This controller is no longer leader; it does not know whether the change is or will be committed."""


class _PendingAppend(NamedTuple):
    """A change that is appended and not yet committed."""

    end: int
    committed: Callable[[], None]
    done: asyncio.Future[None]


class RaftNode:
    """The Raft node of one controller. Call `start`, later `close`; `state` and `log` are for reading."""

    def __init__(
        self,
        config: NodeConfig,
        node_ports: NodePorts,
        log: KafkaMetadataLog,
        fatal_error: FatalError,
        on_leadership_change: Callable[[], None],
    ) -> None:
        """`on_leadership_change` is called after an event in which this controller became active or was deposed."""
        self.log = log
        self._config = config
        self._node_ports = node_ports
        self._fatal_error = fatal_error
        self._on_leadership_change = on_leadership_change
        self._loop = asyncio.get_running_loop()
        timing = values.RaftTimeouts(
            config.number("controller.quorum.election.timeout.ms"),
            config.number("controller.quorum.fetch.timeout.ms"),
            config.number("controller.quorum.election.backoff.max.ms"),
        )
        addresses = {voter.id: voter.endpoint for voter in config.voters}
        voters = tuple(sorted(addresses))
        self._election_state = log.read_election_state()
        self.state = QuorumState(config.node_id, voters, timing, config.rules).restarted(
            self._election_state, log.last_entry.epoch, log.snapshot_end, self._now()
        )
        self.high_watermark_at_election = log.snapshot_end
        """As leader: the high watermark it knew when it was elected."""
        self._request_timeout_s = config.seconds("controller.quorum.request.timeout.ms")
        self._retry_backoff_s = config.seconds("controller.quorum.retry.backoff.ms")
        self._snapshot_max_bytes = config.number("controller.quorum.fetch.snapshot.max.bytes")
        self._election_timer: asyncio.TimerHandle | None = None
        self._pending_appends: deque[_PendingAppend] = deque()
        self._progress = asyncio.Event()
        """Set, and replaced, whenever a waiting fetch may have a new response."""
        self._fetching: asyncio.Task[None] | None = None
        self._fetching_from = (NO_NODE, 0)
        """The leader that the fetches are sent to, and its epoch."""
        self._tasks: dict[asyncio.Task[None], None] = {}
        client_id, setup_s = f"controller-{config.node_id}", config.seconds("socket.connection.setup.timeout.ms")
        self._fetch_connections = VoterConnections(addresses, client_id, setup_s)
        self._election_connections = VoterConnections(addresses, client_id, setup_s)

    def start(self) -> None:
        """Join the quorum."""
        detail = {
            "voted": self._election_state.voted_for,
            "epochs": [list(entry) for entry in self.log.view.epochs.entries],
            **self.log.opening_detail,
        }
        self._trace("quorum_recovered", offset=self.log.start, log_end=self.log.end, detail=detail)
        if self.state.role is RaftRole.FOLLOWER:
            self._trace_role(self.state, self.state)
            self._follow()
        self._set_timer()

    def close(self) -> None:
        """Leave the quorum; pending appends stay unanswered."""
        if self._election_timer is not None:
            self._election_timer.cancel()
        for task in list(self._tasks):
            task.cancel()
        self._fetch_connections.close()
        self._election_connections.close()

    # ---- the active controller's side --------------------------------------------------------------------------------

    async def append(
        self, epoch: int, records: Sequence[Record], timestamp_ms: int, committed: Callable[[], None]
    ) -> None:
        """Append `records`, one change of the leader of `epoch`, and return once they are committed.

        `committed` is called at the moment of the commit, before any fetch can read them. Raises Deposed if this
        controller is not leader of `epoch`, or loses the leadership first, and ChangeTooLarge, with nothing appended.
        """
        if self.state.role is not RaftRole.LEADER or self.state.epoch != epoch:
            raise Deposed
        self._append(self.log.encode_batch(records, epoch, timestamp_ms))
        change = _PendingAppend(self.log.end, committed, self._loop.create_future())
        self._pending_appends.append(change)
        self._transition(self.state.on_append(self.log.end))
        await change.done

    def resign(self) -> None:
        """Resign as leader, if it is leader."""
        self._transition(*self.state.resign(self._now()))

    async def leave(self) -> None:
        """Resign as leader, if it is leader, and send EndQuorumEpoch to the other voters before returning."""
        before = dict(self._tasks)
        self.resign()
        telling = [task for task in self._tasks if task not in before]
        if telling:
            await asyncio.wait(telling, timeout=self._request_timeout_s)

    async def wait_for_progress(self) -> None:
        """Wait for progress: an append, a commit or a new leader."""
        await self._progress.wait()

    # ---- requests ----------------------------------------------------------------------------------------------------

    async def vote(self, request: Request[VoteRequest]) -> Any:
        """Vote."""
        vote = messages.parse_vote_request(request.body)
        error = self._request_error(request.body)
        if vote is None or error is not ErrorCode.none:
            return messages.vote_error(error)
        state, answer = self.state.on_vote_request(vote, self.log.last_entry, self._now())
        self._transition(state, vote=vote)
        if answer.error is ErrorCode.none and (vote.pre_vote or not answer.granted):
            self._trace_answer(vote, "quorum_prevote_granted" if answer.granted else "quorum_vote_refused")
        return messages.vote_response(answer)

    async def begin_epoch(self, request: Request[BeginQuorumEpochRequest]) -> Any:
        """BeginQuorumEpoch."""
        notice = messages.parse_leader_notice(request.body)
        error = self._request_error(request.body)
        if notice is None or error is not ErrorCode.none:
            return messages.begin_quorum_epoch_error(error)
        epoch, leader, _ = notice
        state, error = self.state.on_begin_quorum_epoch(epoch, leader, self._now())
        self._transition(state)
        return messages.begin_quorum_epoch_response(error, state.epoch, state.leader)

    async def end_epoch(self, request: Request[EndQuorumEpochRequest]) -> Any:
        """EndQuorumEpoch. Sent to the leader itself, it asks the leader to resign."""
        notice = messages.parse_leader_notice(request.body)
        error = self._request_error(request.body)
        if notice is None or error is not ErrorCode.none:
            return messages.end_quorum_epoch_error(error)
        epoch, leader, preferred = notice
        if leader == self.state.node_id and epoch == self.state.epoch:
            self.resign()
            return messages.end_quorum_epoch_response(ErrorCode.none, self.state.epoch, self.state.leader)
        state, error = self.state.on_end_quorum_epoch(epoch, leader, preferred, self._now())
        self._transition(state)
        return messages.end_quorum_epoch_response(error, state.epoch, state.leader)

    def on_fetch(self, fetch: values.MetadataFetch) -> values.FetchValidation:
        """Validate a fetch and, if valid, record the follower's position."""
        state, verdict = self.state.on_fetch(fetch, self.log.view, self._now())
        self._transition(state)
        return verdict

    def on_fetch_snapshot(self, replica: int, epoch: int) -> None:
        """A follower in `epoch` is sent a chunk of a snapshot."""
        self._transition(self.state.on_fetch_snapshot(replica, epoch, self._now()))

    async def describe(self, request: Request[DescribeQuorumRequest]) -> Any:
        """DescribeQuorum."""
        if not messages.concerns_metadata_alone(request.body):
            return messages.describe_quorum_unknown(request.body)
        now_ms, unix_ms = round(self._loop.time() * 1000), self._node_ports.now_ms()
        return messages.describe_quorum_response(
            self.state, self.log.end, now_ms, unix_ms - now_ms, self._config.voters
        )

    def _request_error(self, body: Any) -> ErrorCode:
        if body.cluster_id is not None and body.cluster_id != self._config.cluster_id:
            return ErrorCode.inconsistent_cluster_id
        return ErrorCode.none if messages.concerns_metadata(body) else ErrorCode.unknown_topic_or_partition

    # ---- events ------------------------------------------------------------------------------------------------------

    def _transition(
        self,
        state: QuorumState,
        outgoing: tuple[values.OutgoingMessage, ...] = (),
        *,
        vote: values.VoteRequest | None = None,
    ) -> None:
        """Change to `state`, upon a request for a vote if there is one: the only place that assigns it."""
        before = self.state
        if state is before and not outgoing:
            return
        if state.election_state != self._election_state:
            self.log.write_election_state(state.election_state)
            self._election_state = state.election_state  # only now: what the disk refused is not stored
        self.state = state
        self._trace_transition(before, state, vote)
        if state.role is RaftRole.LEADER and before.role is not RaftRole.LEADER:
            self.high_watermark_at_election = before.high_watermark
            change = [LeaderChange(state.node_id, state.epoch)]
            self._append(self.log.encode_batch(change, state.epoch, self._node_ports.now_ms()))
            state = self.state = state.on_append(self.log.end)
        if state.role is RaftRole.LEADER and state.high_watermark > before.high_watermark:
            self._commit(before.high_watermark)
        leadership_changed = state.leadership != before.leadership
        if leadership_changed and state.role is not RaftRole.LEADER:
            self._fail_pending_appends()
        if leadership_changed and state.role is RaftRole.FOLLOWER:
            self._follow()
        if leadership_changed or state.high_watermark > before.high_watermark:
            self._notify()
        if leadership_changed or state.active is not before.active:
            self._loop.call_soon(self._on_leadership_change)
        for message in outgoing:
            self._spawn(self._send, message)
        # A new active controller first reads its predecessor's records, so it does not trim yet.
        may_trim = state.high_watermark > before.high_watermark and state.active is before.active
        if may_trim and self.log.snapshot_and_trim(state.high_watermark):
            self._trace("metadata_trimmed", offset=self.log.start)
        self._set_timer()

    def _append(self, batch: bytes) -> None:
        header = self.log.append(batch)
        segment = {"segment": True} if self.log.begins_segment(header.base_offset) else {}
        self._trace(
            "metadata_appended",
            leader_epoch=header.leader_epoch,
            offset=header.base_offset,
            log_end=header.next_offset,
            detail={"crc": header.crc, **segment},
        )
        self._notify()

    def _commit(self, before: int) -> None:
        state, end = self.state, self.log.end
        detail = {"positions": state.positions}
        self._trace(
            "metadata_committed", offset=before, log_end=end, high_watermark=state.high_watermark, detail=detail
        )
        while self._pending_appends and self._pending_appends[0].end <= state.high_watermark:
            change = self._pending_appends.popleft()
            change.committed()
            if not change.done.done():
                change.done.set_result(None)

    def _fail_pending_appends(self) -> None:
        while self._pending_appends:
            change = self._pending_appends.popleft()
            if not change.done.done():
                change.done.set_exception(Deposed())

    def _notify(self) -> None:
        grown, self._progress = self._progress, asyncio.Event()
        grown.set()

    def _set_timer(self) -> None:
        """Set the one timer. If the deadline has moved later, the old timer fires early and is set again."""
        when = max(self.state.deadline_ms / 1000, self._loop.time())
        if self._election_timer is not None:
            if self._election_timer.when() <= when:
                return
            self._election_timer.cancel()
        self._election_timer = self._loop.call_at(when, self._on_timer)

    def _on_timer(self) -> None:
        self._election_timer = None
        with self._fatal_error.catch():
            if self._now().ms >= self.state.deadline_ms:
                self._transition(*self.state.tick(self.log.last_entry, self._now()))
            self._set_timer()

    def _now(self) -> Moment:
        return Moment(round(self._loop.time() * 1000), self._node_ports.random.random())

    # ---- sending -----------------------------------------------------------------------------------------------------

    def _spawn(self, work: Callable[..., Coroutine[Any, Any, None]], *arguments: Any) -> asyncio.Task[None]:
        async def guarded() -> None:
            with self._fatal_error.catch():
                await work(*arguments)

        task = self._loop.create_task(guarded())
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        return task

    async def _send(self, message: values.OutgoingMessage) -> None:
        cluster, node_id = self._config.cluster_id, self.state.node_id
        if isinstance(message, values.SendVote):
            response = await self._call(message.to, messages.vote_request(cluster, message.to, message.request))
            answer = messages.parse_vote_response(response) if response is not None else None
            if answer is not None:
                outcome = self.state.on_vote_response(
                    message.to, message.request, answer, self.log.last_entry, self._now()
                )
                self._transition(*outcome)
            return
        request = (
            messages.begin_quorum_epoch_request(cluster, node_id, message)
            if isinstance(message, values.SendBeginQuorumEpoch)
            else messages.end_quorum_epoch_request(cluster, node_id, message)
        )
        response = await self._call(message.to, request)
        if response is not None:
            self._transition(self.state.on_leader_and_epoch(*messages.parse_leader_and_epoch(response), self._now()))

    async def _call(self, to: int, request: Any) -> Any:
        """Send one request of an election; None if it is not sent in time, or there is no response."""
        try:
            async with asyncio.timeout(self._request_timeout_s):
                connection = await self._election_connections.to(to)
            return await connection.call(request, self._request_timeout_s)
        except (ConnectionLost, TimeoutError):
            return None

    # ---- following ---------------------------------------------------------------------------------------------------

    def _follow(self) -> None:
        """Fetch from the leader. A fetch that was sent to it earlier in its epoch goes on: a second one would wait for
        the answer to the first."""
        leader, epoch = self.state.leader, self.state.epoch
        if self._fetching is not None and not self._fetching.done():
            if self._fetching_from == (leader, epoch):
                return
            if self._fetching is not asyncio.current_task():
                self._fetching.cancel()
        self._fetching, self._fetching_from = self._spawn(self._fetch_from, leader, epoch), (leader, epoch)

    def _follows(self, leader: int, epoch: int) -> bool:
        state = self.state
        return state.epoch == epoch and state.leader == leader and state.role is RaftRole.FOLLOWER

    async def _fetch_from(self, leader: int, epoch: int) -> None:
        wait_s = min(_FETCH_WAIT_MAX_S, self.state.timing.fetch_ms / 2000)
        while self._follows(leader, epoch):
            try:
                connection = await self._fetch_connections.to(leader)
                if not self._follows(leader, epoch):
                    return
                end = self.log.last_entry
                fetch = values.MetadataFetch(self.state.node_id, epoch, end.offset, end.epoch or UNDEFINED)
                request = messages.fetch_request(fetch, wait_s, _FETCH_MAX_BYTES)
                response = await connection.call(request, self._request_timeout_s + wait_s)
            except ConnectionLost:
                await asyncio.sleep(self._retry_backoff_s)
                continue
            answer = response.responses[0].partitions[0]
            if not self._follows(leader, epoch) or self.log.last_entry != end:
                continue
            if answer.snapshot_id.end_offset >= 0:
                snapshot = SnapshotId(answer.snapshot_id.end_offset, answer.snapshot_id.epoch)
                progressed = await self._install_snapshot(connection, leader, epoch, snapshot)
            else:
                progressed = self._on_fetch_response(answer)
            if not progressed:
                await asyncio.sleep(self._retry_backoff_s)

    async def _install_snapshot(self, connection: Connection, leader: int, epoch: int, snapshot: SnapshotId) -> bool:
        """Replace the log by a snapshot of the leader. Returns whether that succeeded."""
        end = self.log.last_entry

        def on_contact() -> None:
            if self._follows(leader, epoch):
                self._transition(self.state.on_leader_contact(self._now()))

        on_contact()
        call = partial(connection.call, timeout=self._request_timeout_s)
        try:
            data = await fetch_snapshot(call, self.state.node_id, epoch, snapshot, self._snapshot_max_bytes, on_contact)
        except ConnectionLost:
            return False
        if data is None or not self._follows(leader, epoch) or self.log.last_entry != end:
            return False
        self.log.install_snapshot(snapshot, data)
        self._trace("metadata_restored", leader_epoch=snapshot.epoch, offset=snapshot.end)
        self._node_ports.log(f"metadata up to offset {snapshot.end} taken from a snapshot of controller {leader}")
        self._transition(self.state.on_snapshot_installed(snapshot.end, self._now()))
        return True

    def _on_fetch_response(self, answer: Any) -> bool:
        """Apply the leader's response to a fetch. Returns whether it made progress."""
        now = self._now()
        if answer.error_code is not ErrorCode.none:
            hint = answer.current_leader
            self._transition(self.state.on_leader_and_epoch(hint.leader_epoch, hint.leader_id, now))
            return False
        if answer.diverging_epoch.end_offset >= 0:
            diverging = EpochEnd(answer.diverging_epoch.epoch, answer.diverging_epoch.end_offset)
            self._truncate(truncation_offset(self.log.view.epochs, self.log.end, diverging), diverging)
            self._transition(self.state.on_leader_contact(now))
            return True
        for header, batch in batches.iterate(answer.records or b""):
            if header.leader_epoch > self.state.epoch:
                break
            self._append(batch)
        self._transition(self.state.on_fetch_response(answer.high_watermark, self.log.end, now))
        return True

    def _truncate(self, to: int, answer: EpochEnd) -> None:
        end, known, detail = self.log.end, self.state.high_watermark, {"answer": [answer.epoch, answer.end]}
        # Before the cut: a process that ends in the middle of it has cut its log, and tells of nothing any more.
        self._trace("metadata_truncated", offset=to, log_end=end, high_watermark=known, detail=detail)
        self.log.truncate(to)

    # ---- the trace ---------------------------------------------------------------------------------------------------

    def _trace(self, kind: str, **fields: Any) -> None:
        fields.setdefault("leader_epoch", self.state.epoch)
        self._node_ports.trace(TraceEvent(kind, **fields))

    def _trace_answer(self, vote: values.VoteRequest, kind: str) -> None:
        state = self.state
        detail = {
            "pre_vote": vote.pre_vote,
            **self._log_ends(vote),
            "voted": state.voted_for,
            "role": str(state.role),
            "leader_answered": state.leader_answered,
        }
        self._trace(kind, leader=state.leader, broker=vote.candidate, detail=detail)

    def _log_ends(self, vote: values.VoteRequest) -> dict[str, object]:
        return {"candidate": list(vote.end), "own": list(self.log.last_entry)}

    def _trace_transition(self, before: QuorumState, state: QuorumState, vote: values.VoteRequest | None) -> None:
        if state.voted_for != NO_NODE and (state.voted_for, state.epoch) != (before.voted_for, before.epoch):
            ends = {} if vote is None else self._log_ends(vote)
            self._trace("quorum_voted", broker=state.voted_for, detail=ends)
        if state.role in _TRACED_ROLES and state.leadership != before.leadership:
            self._trace_role(before, state)
        if state.role is RaftRole.LEADER and state.positions != before.positions:
            self._trace("voter_positions", log_end=self.log.end, detail={"positions": state.positions})

    def _trace_role(self, before: QuorumState, state: QuorumState) -> None:
        start, end, detail = state.epoch_start_offset, self.log.end, self._timing(before, state)
        self._trace(f"quorum_{state.role}", leader=state.leader, offset=start, log_end=end, detail=detail)
        if state.role not in (RaftRole.UNATTACHED, RaftRole.CANDIDATE):
            self._node_ports.log(f"{state.role} in controller epoch {state.epoch}, led by {state.leader}")

    def _timing(self, before: QuorumState, state: QuorumState) -> dict[str, object]:
        if state.role is RaftRole.LEADER:
            return {"fetch_timeout_ms": state.timing.fetch_ms}
        overdue_ms = self._now().ms - before.deadline_ms if before.role is RaftRole.LEADER else 0
        return {"check_overdue_ms": overdue_ms} if overdue_ms >= _NOTABLE_LATENESS_MS else {}
