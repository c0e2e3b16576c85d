"""Mistakes of controllers, about what they give away, and of those who follow them, each played by a running cluster:
a check finds the promise that it breaks.

A clean shutdown that two lives claim is played where the fault is that brings it about (tests/nemesis).
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import pytest

from harness.simulation.event_loop.loop import NodeLoop
from images.broker import controller_node
from images.broker.apis import producer_ids
from images.broker.controller import metadata_change, partition_change
from images.broker.controller.channel import ControllerChannel
from images.broker.controller.controller import Controller
from images.broker.controller.metadata_change import MetadataChange
from images.broker.controller.requests import Heartbeat
from images.broker.controller_node import _ActiveController
from images.broker.frozen_map import FrozenMap
from images.broker.metadata.image import BrokerImage, ClusterImage, ProducerIdsBlock, Record
from images.broker.ports import Files
from images.broker.raft import log, snapshots
from images.broker.raft.log import KafkaMetadataLog
from images.broker.raft.node import RaftNode
from images.broker.raft.state import QuorumState
from images.broker.raft.values import NO_NODE, EpochAndOffset, Moment, RaftRole, SnapshotId, VoteRequest
from images.broker.runtime.files import TEMPORARY_SUFFIX
from tests.simulation.applied_mistake import replace_in
from tests.torture.mistakes.mistake import Fault, Patch, PlayedMistake

_BUILD = "images.broker.controller.partition_change:PartitionChangeBuilder.build"

# ---- replicas --------------------------------------------------------------------------------------------------------


def _minimum_of_all_replicas(patch: Patch) -> None:
    """A move to fewer replicas than the minimum waits for as many in the ISR as all of them would need."""
    function = "images.broker.controller.reassignment:complete_reassignment"
    replace_in(patch, function, "topic.min_isr_of(len(target))", by="topic.min_isr(partition)")


# ---- disks -----------------------------------------------------------------------------------------------------------


def _vote_unsynced(patch: Patch) -> None:
    """A controller votes before its vote is on the disk."""
    right = log.write_durably

    def write(files: Files, path: str, data: bytes) -> None:
        right(files, path + ".new", data)
        files.rename(path + ".new", path)

    patch.setattr(log, "write_durably", write)


def _cut_to_leaders_end(patch: Patch) -> None:
    """A log is cut to where its leader's end of an epoch is, also where its own is lower."""
    function = "images.broker.log.divergence:truncation_offset"
    replace_in(patch, function, "min(own.end, diverging.end, log_end)", by="min(diverging.end, log_end)")


# ---- votes -----------------------------------------------------------------------------------------------------------


def _vote_kept(patch: Patch) -> None:
    """A controller that follows in a later epoch keeps its vote."""
    right = QuorumState._follower

    def follower(self: QuorumState, epoch: int, leader: int, now: Moment) -> QuorumState:
        return replace(right(self, epoch, leader, now), voted_for=self.voted_for)

    patch.setattr(QuorumState, "_follower", follower)


def _vote_for_leader(patch: Patch) -> None:
    """A controller that follows has voted for its leader."""
    right = QuorumState._follower

    def follower(self: QuorumState, epoch: int, leader: int, now: Moment) -> QuorumState:
        return replace(right(self, epoch, leader, now), voted_for=leader)

    patch.setattr(QuorumState, "_follower", follower)


def _leader_kept(patch: Patch) -> None:
    """A controller that is asked for its vote in a later epoch keeps its leader."""
    right = QuorumState._unattached

    def unattached(self: QuorumState, epoch: int, now: Moment) -> QuorumState:
        return replace(right(self, epoch, now), leader=self.leader)

    patch.setattr(QuorumState, "_unattached", unattached)


def _grants(patch: Patch, pre_vote: Callable[[QuorumState, VoteRequest, EpochAndOffset, bool], bool]) -> None:
    right = QuorumState._grants

    def grants(self: QuorumState, request: VoteRequest, end: EpochAndOffset) -> bool:
        granted = right(self, request, end)
        return pre_vote(self, request, end, granted) if request.pre_vote else granted

    patch.setattr(QuorumState, "_grants", grants)


def _prevote_bound_by_vote(patch: Patch) -> None:
    """A controller that has voted gives its pre-vote to nobody else."""
    _grants(patch, lambda state, request, _, granted: granted and state.voted_for in (NO_NODE, request.candidate))


def _prevote_against_leader(patch: Patch) -> None:
    """A controller gives its pre-vote although the leader answers it."""
    _grants(
        patch,
        lambda state, request, end, granted: granted or (state.role is RaftRole.FOLLOWER and request.end >= end),
    )


def _diverging_fetch_counted(patch: Patch) -> None:
    """A leader takes the offset of a fetch for the voter's position, although its log parts from the voter's before."""
    function = "images.broker.raft.state:QuorumState.on_fetch"
    replace_in(patch, function, "verdict != FetchValidation()", by="verdict.error is not ErrorCode.none")


def _late_vote_counted(patch: Patch) -> None:
    """A candidate counts a vote that it was given in an election before."""
    function = "images.broker.raft.state:QuorumState.on_vote_response"
    replace_in(patch, function, "state.epoch != request.epoch or ", "")


def _reassignments_unconfirmed(patch: Patch) -> None:
    """A controller tells of reassignments by what it knows, and does not wait whether it still leads."""
    function = "images.broker.controller_node:_ActiveController.reassignments"
    replace_in(patch, function, "_decide_confirmed(lambda", by="_decide(lambda")


# ---- the metadata log ------------------------------------------------------------------------------------------------


def _in_charge_after_resigning(patch: Patch) -> None:
    """A controller that has resigned goes on to decide until another one leads."""
    leads, append = (RaftRole.LEADER, RaftRole.RESIGNED, RaftRole.PROSPECTIVE), RaftNode.append

    def active(self: QuorumState) -> bool:
        return self.role in leads and self.high_watermark > self.epoch_start_offset >= 0

    async def append_anyway(
        self: RaftNode, epoch: int, records: Sequence[Record], timestamp_ms: int, committed: Callable[[], None]
    ) -> None:
        if self.state.role is not RaftRole.LEADER:
            self._append(self.log.encode_batch(records, epoch, timestamp_ms))
        await append(self, epoch, records, timestamp_ms, committed)

    patch.setattr(QuorumState, "active", property(active))
    patch.setattr(RaftNode, "append", append_anyway)


def _answered_before_commit(patch: Patch) -> None:
    """A controller answers a request once it has decided on it, and commits the change then."""
    right = _ActiveController._decide

    async def decide_and_answer(self: _ActiveController, decide: Callable[[Controller, int], Any]) -> Any:
        answer = asyncio.get_running_loop().create_future()

        def decided(controller: Controller, now_ms: int) -> Any:
            result = decide(controller, now_ms)
            answer.set_result(result.answer)
            return result

        change = asyncio.ensure_future(right(self, decided))
        await asyncio.wait((answer, change), return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            return change.result()
        change.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        return answer.result()

    patch.setattr(_ActiveController, "_decide", decide_and_answer)


def _snapshot_of_epoch_before(patch: Patch) -> None:
    """A snapshot is named by the epoch before that of its last record."""
    patch.setattr(log, "SnapshotId", lambda end, epoch: SnapshotId(end, max(1, epoch - 1)))


def _snapshot_unsynced(patch: Patch) -> None:
    """A snapshot gets its name before its content is on the disk."""

    def write(files: Files, path: str, data: bytes) -> None:
        temporary = path + TEMPORARY_SUFFIX
        files.delete(temporary)
        file = files.open(temporary)
        file.append(data)
        file.close()
        files.rename(temporary, path)
        files.sync_directory(path.rpartition("/")[0])

    patch.setattr(snapshots, "write_durably", write)


def _trim_to_latest(patch: Patch) -> None:
    """The log is trimmed to the latest snapshot, not to the one before it."""

    def trim(self: KafkaMetadataLog) -> None:
        self._log.advance_start(self.snapshot_end)

    patch.setattr(KafkaMetadataLog, "_trim", trim)


def _emptied_before_its_snapshot(patch: Patch) -> None:
    """The log gives way to the leader's snapshot before that is on the disk."""
    right = KafkaMetadataLog.install_snapshot

    def install(self: KafkaMetadataLog, snapshot: SnapshotId, data: bytes) -> None:
        self._log.truncate_fully_and_start_at(snapshot.end)
        right(self, snapshot, data)

    patch.setattr(KafkaMetadataLog, "install_snapshot", install)


# ---- producer ids ----------------------------------------------------------------------------------------------------


def _block_kept(patch: Patch) -> None:
    """A block of producer ids that a broker gets is not taken from those that are left."""
    patch.setattr(metadata_change, "ProducerIdsBlock", lambda _: ProducerIdsBlock(0))


def _one_id_more(patch: Patch) -> None:
    """A broker gives one id more than its block has."""
    patch.setattr(producer_ids, "range", lambda first, end: range(first, end + 1), raising=False)


# ---- brokers ---------------------------------------------------------------------------------------------------------


def _back_while_shutting_down(patch: Patch) -> None:
    """A heartbeat that does not ask for it unfences a broker that shuts down."""
    right = MetadataChange.keep_fenced

    def keep_fenced(self: MetadataChange, broker: BrokerImage, heartbeat: Heartbeat) -> None:
        if broker.shutting_down:
            self.unfence(broker, heartbeat)
        else:
            right(self, broker, heartbeat)

    patch.setattr(MetadataChange, "keep_fenced", keep_fenced)


def _no_unclean_election(patch: Patch) -> None:
    """The controllers elect no replica from outside ISR and ELR, whatever the topic permits."""
    patch.setattr(partition_change, "unclean_election_allowed", lambda _: False)


_ROUNDS = "images.broker.controller.recovery_rounds:RecoveryRounds.run"
_ASKS_AGAIN = "await asyncio.sleep(self._timeouts.interval_s)"


def _asks_after_changes_alone(patch: Patch) -> None:
    """An unclean recovery asks for log ends once, and then only after a change of the metadata."""
    replace_in(patch, _ROUNDS, _ASKS_AGAIN, "await self._change.wait()")


def _asks_until_all_answer(patch: Patch) -> None:
    """… or until all of its replicas have answered, be it in an earlier leader epoch, which does not count."""
    answered = "all(log_ends.get(key[:2], {}).keys() >= {*it.replicas} for key, it in zip(keys, recoveries))"
    again = f"await (self._change.wait() if {answered} else asyncio.sleep(self._timeouts.interval_s))"
    replace_in(patch, _ROUNDS, _ASKS_AGAIN, again)


def _completed_by_the_whole_isr(patch: Patch) -> None:
    """A reassignment is complete once the ISR is large enough, with those that are to leave."""
    completes = "images.broker.controller.reassignment:complete_reassignment"
    replace_in(patch, completes, "len(in_sync) >= topic", "len(isr) >= topic")


def _completed_by_some_of_the_added(patch: Patch) -> None:
    """A reassignment is complete once one of the replicas that it adds has joined the ISR."""
    completes = "images.broker.controller.reassignment:complete_reassignment"
    some = "not partition.adding or not set(partition.adding).isdisjoint(isr)"
    replace_in(patch, completes, "set(partition.adding) <= set(isr)", some)


def _cancelled_in_part(patch: Patch) -> None:
    """Of the replicas that a cancelled reassignment was adding all but one stay."""
    originals = "images.broker.controller.reassignment:_original"
    replace_in(patch, originals, "replica not in partition.adding", "replica not in partition.adding[:1]")


def _two_epochs_at_once(patch: Patch) -> None:
    """Every change moves the partition epoch by two."""
    replace_in(patch, _BUILD, "before.partition_epoch + 1", by="before.partition_epoch + 2")


def _leader_epoch_of_every_change(patch: Patch) -> None:
    """Every change moves the leader epoch."""
    replace_in(patch, _BUILD, "(election.leader != before.leader or removal)", by="1")


def _sessions_by_wall_clock(patch: Patch) -> None:
    """A controller measures sessions by the wall clock."""
    patch.setattr(
        controller_node, "_now_ms", lambda: cast(NodeLoop, asyncio.get_running_loop()).node.clock.wall_now_ms()
    )


def _sessions_begin_with_heartbeats(patch: Patch) -> None:
    """A controller that takes charge fences no broker that it has not heard of itself."""
    activate, ends_ms = Controller.activate, Controller._session_end_ms

    def without_sessions(self: Controller, image: ClusterImage, now_ms: int) -> Controller:
        return replace(activate(self, image, now_ms), sessions=FrozenMap())

    def end_if_any(self: Controller, broker_id: int) -> int:
        return ends_ms(self, broker_id) if broker_id in self.sessions else sys.maxsize

    patch.setattr(Controller, "activate", without_sessions)
    patch.setattr(Controller, "_session_end_ms", end_if_any)


def _waits_without_limit(patch: Patch) -> None:
    """A broker waits for hours for the answer to a metadata fetch, unless its connection breaks."""
    right = ControllerChannel.call

    async def call(self: ControllerChannel, request: Any, extra_timeout_s: float = 0.0) -> Any:
        return await right(self, request, 10_000.0 if extra_timeout_s else 0.0)

    patch.setattr(ControllerChannel, "call", call)


LEADER_DIES: Fault = {"at": "3s", "for": "4s", "fault": "kill", "nodes": ["c1"]}
ONE_WAY: Fault = {"at": "3s", "for": "6s", "fault": "partition", "shape": "one-way"}
"""c1 is the active controller of these runs."""
LEADER_FALLS_SILENT: Fault = {"at": "3s", "for": "3s", "fault": "power-loss", "nodes": ["c1"]}
"""No connection to a machine without power breaks by itself."""
POWER_LOSS: Fault = LEADER_FALLS_SILENT | {"keep": "torn"}
DEPOSED: Fault = ONE_WAY | {"nodes": ["c2", "c3"], "against": ["c1"]}
LAGS: Fault = {"at": "2.5s", "for": "6s", "fault": "partition", "shape": "one-way", "nodes": ["b3"], "against": ["b1"]}
"""b3 leads in this run, and takes b1 out of the ISR while c1 has no majority any more."""
IMPATIENT = {"settings": {"replica.lag.time.max.ms": "1000"}, "time_limit": "6s"}
"""The run is over before the next controller decides anything in the partition epoch that c1 has granted."""
LEAVES: Fault = {"at": "2s", "for": "1.2s", "fault": "controlled-restart", "nodes": ["b3"]}
SNAPSHOTS = {"settings": {"metadata.log.max.record.bytes.between.snapshots": "1"}}
ONE_SNAPSHOT = {"settings": {"metadata.log.max.record.bytes.between.snapshots": "1200"}}
"""Until the fault: the log begins at 0 then, and a controller that cannot read the snapshot goes on without it."""
LATE_HEARTBEAT: Fault = {
    "at": "2s",
    "for": "5s",
    "fault": "message",
    "api": "BrokerHeartbeat",
    "effect": "delay",
    "delay_ms": 2500,
    "nodes": ["b1"],
    "against": ["controllers"],
}
"""Later than its sender waits for an answer, and than the heartbeats with which it shuts down."""
STOP: Fault = {"at": "2.2s", "for": "5s", "fault": "controlled-restart", "nodes": ["b1"]}
WALL_CLOCK: Fault = {"at": "5s", "for": "4s", "fault": "clock", "nodes": ["c1"], "wall_jump_ms": -4_000}
WALL_CLOCK_FAR_BACK: Fault = {"at": "2s", "for": "8s", "fault": "clock", "nodes": ["c1"], "wall_jump_ms": -30_000}
LEADER_RETURNS: Fault = {"at": "2.5s", "for": "7s", "fault": "kill", "nodes": ["leader/0"]}
"""By a clock that is right, the session of the leader is over long before."""
GONE_WITH_CONTROLLER: Sequence[Fault] = [
    {"at": "2.5s", "for": "1s", "fault": "kill", "nodes": ["c1"]},
    {"at": "2.5s", "for": "9s", "fault": "kill", "nodes": ["leader/0"]},
]
CUT_OFF_WITH_CONTROLLER: Sequence[Fault] = [
    GONE_WITH_CONTROLLER[0],
    {
        "at": "2.5s",
        "for": "9s",
        "fault": "partition",
        "shape": "one-way",
        "nodes": ["leader/0"],
        "against": ["controllers"],
    },
]
BROKER_RESTARTS: Fault = {"at": "4.5s", "for": "1s", "fault": "kill", "nodes": ["b1"]}
LEFT_BEHIND: Fault = {"at": "3s", "for": "4s", "fault": "kill", "nodes": ["c3"]}
"""It lacks what a snapshot of the others has taken the place of."""
SHORT: Fault = {"at": 2, "for": 5, "fault": "reassign", "short": True}
SEVERAL_MOVE: Fault = {"at": 2, "for": 3, "fault": "reassign", "anew": True}
SEVERAL_STAY: Fault = {"at": 2, "for": 4, "fault": "cancel-reassignment", "anew": True, "patience_ms": 300}
FIVE_BROKERS = {"brokers": 5, "time_limit": "6s"}

LONG_SESSIONS = {"settings": {"broker.session.timeout.ms": "6000"}}
ALONE = {"controllers": 1, "time_limit": "12s"}
LONG_RUN = {"time_limit": "14s"}
BLOCKS_OF_ONE = {"settings": {"faultline.producer.id.block.size": "1"}}
ONE_IS_BEHIND: Sequence[Fault] = [
    {"at": "1s", "for": "3s", "fault": "kill", "nodes": ["b3"]},
    {"at": "3.5s", "for": "5s", "fault": "kill", "nodes": ["b1", "b2"]},
]
"""b3 is back while both others, which have what it missed, are gone."""
ANY_LEADS = {
    "settings": {"unclean.leader.election.enable": "true", "unclean.recovery.strategy": "last-known-leader"},
}

MOVED_TO_FEWER: Sequence[Fault] = [{"at": 1, "for": 6, "fault": "recreate-topic", "changes": True, "topics": 2}] * 2

CUT_OFF: Fault = {"at": 2, "for": 2.6, "fault": "partition", "shape": "one-way"}
COMES_BACK_SLOWLY: Sequence[Fault] = [
    CUT_OFF | {"nodes": ["c1"], "against": ["c2", "c3"]},
    CUT_OFF | {"nodes": ["c2", "c3"], "against": ["c1"]},
    {"at": 1.9, "for": 0.3, "fault": "kill", "nodes": ["b3"]},
    {"at": 4.5, "for": 3, "fault": "packets", "nodes": ["c1"], "against": ["c2", "c3"], "delay_ms": 300},
    {"at": 4, "for": 3, "fault": "recreate-topic", "changes": True, "topics": 2},
]
"""c1 has appended what nobody else has. Until it has heard that and fetches again, the next leader commits."""

FETCHES_NOTHING: Fault = {"at": 2, "for": 5, "fault": "message", "api": "Fetch", "part": "response", "effect": "hold"}
NEITHER_HAS_ALL: Sequence[Fault] = [
    {"at": 2, "for": 3.5, "fault": "partition", "shape": "controllers-apart", "nodes": ["c1"]},
    {"at": 2.1, "for": 3, "fault": "recreate-topic", "changes": True, "topics": 2},
    {"at": 2.1, "for": 5, "fault": "kill", "nodes": ["b3"]},
    FETCHES_NOTHING | {"nodes": ["c3"], "against": ["c2"], "count": 20},
    {
        "at": 2.2,
        "for": 5,
        "fault": "kill",
        "nodes": ["c2"],
        "when": {"traced": {"node": "c2", "events": ["quorum_leader"]}},
    },
]
"""c1 has appended what nobody else has, and so has c2, in the next epoch and from a lower offset on. c1 leads again."""

FOLLOWERS: Fault = {"at": "1s", "nodes": ["b2", "b3"]}
TOLD_TOO_EARLY: Sequence[Fault] = [
    FOLLOWERS | {"for": "1s", "fault": "kill"},
    FOLLOWERS | {"for": "10s", "fault": "partition", "shape": "one-way", "against": ["b1"], "channel": "fetch"},
    FOLLOWERS | {"at": "4.5s", "for": "10s", "fault": "packets", "channel": "metadata", "delay_ms": 3000},
    {"at": "5s", "for": "500ms", "fault": "kill", "nodes": ["b1"]},
]
"""Nobody is left who is known to have everything. b2 tells of its log before it has heard that b1 does not lead any
more, which does not count, and nothing else changes."""
BALANCED = {"settings": {"unclean.recovery.strategy": "balanced"}, "time_limit": "14s", "recovery_limit": "8s"}

UNAWARE: Fault = {"at": "2s", "fault": "unaware-controller"}
LATE_VOTE: Fault = {"at": "2s", "fault": "late-vote"}
PATIENT_CANDIDATES = {"settings": {"controller.quorum.request.timeout.ms": 2_000}, "time_limit": "12s"}

MISTAKES = (
    PlayedMistake("replicas-otherwise", _minimum_of_all_replicas, MOVED_TO_FEWER, {"seed": 4}, said="complete at once"),
    PlayedMistake("metadata-not-on-disk", _vote_unsynced),
    PlayedMistake("vote-unasked", _vote_kept, [LEADER_DIES], said="it does not stand for election"),
    PlayedMistake("vote-unasked", _vote_for_leader, [LEADER_DIES], said="nobody had asked it"),
    PlayedMistake("leader-of-another-epoch", _leader_kept, [LEADER_DIES]),
    PlayedMistake("vote-refused-wrongly", _prevote_bound_by_vote, [LEADER_DIES]),
    PlayedMistake(
        "prevote-granted-wrongly",
        _prevote_against_leader,
        [ONE_WAY | {"nodes": ["c1"], "against": ["c3"], "for": "4s"}],
    ),
    PlayedMistake("position-of-another-log", _diverging_fetch_counted, COMES_BACK_SLOWLY, {"time_limit": "12s"}),
    PlayedMistake("elected-without-majority", _late_vote_counted, [LATE_VOTE], PATIENT_CANDIDATES),
    PlayedMistake("reassignments-misstated", _reassignments_unconfirmed, [UNAWARE], {"brokers": 4}),
    PlayedMistake("metadata-cut-in-part", _cut_to_leaders_end, NEITHER_HAS_ALL, {"time_limit": "13s"}),
    PlayedMistake("appended-without-leader", _in_charge_after_resigning, [DEPOSED]),
    PlayedMistake("isr-answer-undecided", _answered_before_commit, [LAGS, DEPOSED], IMPATIENT),
    PlayedMistake("registered-undecided", _answered_before_commit, [LEAVES, DEPOSED]),
    PlayedMistake("snapshot-of-another-epoch", _snapshot_of_epoch_before, [LEADER_DIES], SNAPSHOTS),
    PlayedMistake("metadata-snapshot-damaged", _snapshot_unsynced, [POWER_LOSS], ONE_SNAPSHOT),
    PlayedMistake("trimmed-before-snapshot", _trim_to_latest, world=SNAPSHOTS),
    PlayedMistake("trimmed-before-snapshot", _emptied_before_its_snapshot, [LEFT_BEHIND, BROKER_RESTARTS], SNAPSHOTS),
    PlayedMistake("producer-ids-allocated-twice", _block_kept),
    PlayedMistake("producer-id-assigned-twice", _block_kept),
    PlayedMistake("producer-id-unallocated", _one_id_more, world=BLOCKS_OF_ONE),
    PlayedMistake("unfenced-shutting-down", _back_while_shutting_down, [LATE_HEARTBEAT, STOP], LONG_SESSIONS),
    PlayedMistake("metadata-unheard", _waits_without_limit, [LEADER_FALLS_SILENT]),
    PlayedMistake("not-recovered", _asks_after_changes_alone, TOLD_TOO_EARLY, BALANCED, said="there is no leader"),
    PlayedMistake("not-recovered", _asks_until_all_answer, TOLD_TOO_EARLY, BALANCED, said="there is no leader"),
    PlayedMistake("left-without-leader", _no_unclean_election, ONE_IS_BEHIND, ANY_LEADS),
    PlayedMistake("partition-epoch-skipped", _two_epochs_at_once, [LEADER_RETURNS]),
    PlayedMistake("leader-epoch-skipped", _leader_epoch_of_every_change, [LEADER_RETURNS]),
    PlayedMistake("reassignment-shrinks-isr", _completed_by_the_whole_isr, [SHORT]),
    PlayedMistake("reassignment-completed-early", _completed_by_some_of_the_added, [SEVERAL_MOVE], FIVE_BROKERS),
    PlayedMistake("reassignment-completed-early", _cancelled_in_part, [SEVERAL_STAY], {**FIVE_BROKERS, "seed": 2}),
    PlayedMistake("session-ran-back", _sessions_by_wall_clock, [WALL_CLOCK, BROKER_RESTARTS]),
    PlayedMistake("fenced-late", _sessions_by_wall_clock, [WALL_CLOCK_FAR_BACK, LEADER_RETURNS], ALONE),
    PlayedMistake("fenced-late", _sessions_begin_with_heartbeats, GONE_WITH_CONTROLLER, LONG_RUN),
    PlayedMistake("fenced-late", _sessions_begin_with_heartbeats, CUT_OFF_WITH_CONTROLLER, LONG_RUN),
)


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_a_mistake_of_controllers_is_found(mistake: PlayedMistake, monkeypatch: Patch) -> None:
    mistake.check_found(monkeypatch)
