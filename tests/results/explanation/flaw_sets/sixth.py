"""The sixth set of flaws that are no switches: nine, with the workload whose runs can show each."""

from __future__ import annotations

from typing import Final

from tests.results.explanation.flaw import VARIED_APPENDS, VARIED_GROUPS, Edit, Flaw

_GROUPS_COMMITTED_OFFSETS: Final = "images/broker/groups/committed_offsets.py"
_GROUPS_SHARD: Final = "images/broker/groups/shard.py"
_LOG_DIVERGENCE: Final = "images/broker/log/divergence.py"
_LOG_LOG: Final = "images/broker/log/log.py"
_METADATA_IMAGE: Final = "images/broker/metadata/image.py"
_RAFT_STATE: Final = "images/broker/raft/state.py"
_REPLICATION_ALTER_PARTITION_MANAGER: Final = "images/broker/replication/alter_partition_manager.py"
_REPLICATION_BECOME_LEADER_OR_FOLLOWER: Final = "images/broker/replication/become_leader_or_follower.py"
_REPLICATION_REPLICA: Final = "images/broker/replication/replica.py"

SIXTH: Final = (
    Flaw(
        "retry-acked-at-once",
        "`wait_until_committed` answers the retry of a batch that the leader already has "
        "(`AppendResult.retry`) at once, as if a batch in the log were a committed one. Only first copies "
        "wait for the high watermark.",
        "A retry (duplicate) of a batch that the leader had appended was acknowledged while the batch was "
        "still above the high watermark: the leader answered without waiting until the ISR had it, and the "
        "batch was lost with that leader's tail. Half: 'acknowledged above the high watermark' without "
        "saying that it was a retry / duplicate. Not enough: 'an acknowledged record was truncated'.",
        (
            Edit(
                _REPLICATION_REPLICA,
                "            if self.state.high_watermark >= appended.end:\n",
                "            if appended.retry is not None or self.state.high_watermark >= appended.end:\n",
            ),
        ),
        VARIED_APPENDS,
    ),
    Flaw(
        "whole-log-committed-at-takeover",
        "A new leader sets its high watermark to its own log end when it takes over: 'I was in the ISR, so "
        "all I have is committed.' All committed records are in its log, but not all of its log is "
        "committed.",
        "The new leader took its whole log for committed when it became leader: its high watermark was at "
        "its log end (LESO) at once, although the other ISR members did not hold those records (had not "
        "fetched them from it). Records between were read or acknowledged, and lost at the next election. "
        "Half: 'the high watermark was above what the ISR held' without naming the takeover.",
        (
            Edit(
                _REPLICATION_BECOME_LEADER_OR_FOLLOWER,
                "        leadership=LeaderState(start=updated.log_end, followers=tuple(followers), "
                "read_index=read_index),\n",
                "        high_watermark=updated.log_end,\n"
                "        leadership=LeaderState(start=updated.log_end, followers=tuple(followers), "
                "read_index=read_index),\n",
            ),
        ),
        VARIED_APPENDS,
    ),
    Flaw(
        "one-proposal-per-topic",
        "The requests in flight to the controller are kept by topic instead of by topic and partition, so a "
        "proposal of one partition cancels ('an earlier one of the same partition') the AlterPartition of "
        "another partition of the topic that the broker leads too.",
        "An ISR change (AlterPartition) that the leader proposed was never sent or never answered, as "
        "another partition's proposal of the same leader cancelled it; the partition waits for it for ever, "
        "so that its ISR neither grows nor shrinks. For naming the cause it is enough to say: the leader's "
        "proposed ISR change is stuck in flight / abandoned - the controller never got it and the leader "
        "never sent it again - and so the ISR does not change. Naming the other partition is the full "
        "answer. Half: 'the follower is not in the ISR at the end' alone.",
        (
            Edit(
                _REPLICATION_ALTER_PARTITION_MANAGER,
                "        self._in_flight: dict[tuple[str, int], asyncio.Task[None]] = {}\n",
                "        self._in_flight: dict[str, asyncio.Task[None]] = {}\n",
            ),
            Edit(
                _REPLICATION_ALTER_PARTITION_MANAGER,
                "        key = (replica.topic, replica.index)\n",
                "        key = replica.topic\n",
            ),
            Edit(
                _REPLICATION_ALTER_PARTITION_MANAGER,
                "    def _forget(self, key: tuple[str, int], done: asyncio.Task[None]) -> None:\n",
                "    def _forget(self, key: str, done: asyncio.Task[None]) -> None:\n",
            ),
        ),
        VARIED_APPENDS,
    ),
    Flaw(
        "flush-below-recovery-point",
        "`flush` skips the segments that *begin* below the recovery point, as if these were on disk. The "
        "active segment begins below it as soon as it was flushed once, and is never synced again.",
        "Records that had to be on disk (the metadata log of a controller, which flushes every append; a "
        "topic with flush.messages; a clean close) were lost in a power loss because they were never synced "
        "after the first flush. Enough: 'the log of controller/broker N lost flushed (acknowledged, "
        "committed) records in a power loss: its flush did not sync them'. Half: 'a committed metadata "
        "record is missing' without the power loss or the missing sync.",
        (
            Edit(
                _LOG_LOG,
                "                segment.fsync()\n            self._segments",
                "                if segment.base_offset >= self.recovery_point:  # the others are on disk\n"
                "                    segment.fsync()\n            self._segments",
            ),
        ),
        VARIED_APPENDS,
    ),
    Flaw(
        "shutting-down-for-ever",
        "A registration changes the broker that the metadata already knows instead of replacing it, and so "
        "keeps `shutting_down` from the incarnation before: nobody resets it.",
        "A broker that shut down in a controlled way and came back stays fenced for ever: its new "
        "registration (incarnation) still counts as shutting down, so that no heartbeat unfences it. Half: "
        "'broker N stays fenced / is never unfenced' without the leftover shutting-down state.",
        (
            Edit(
                _METADATA_IMAGE,
                "            broker = BrokerImage(\n"
                "                record.id, epoch, record.incarnation, record.host, record.port, fenced=True, "
                "shutting_down=False\n",
                "            broker = image.brokers.get(record.id) or BrokerImage(\n"
                "                record.id, epoch, record.incarnation, record.host, record.port, fenced=True, "
                "shutting_down=False\n"
                "            )\n"
                "            broker = replace(\n"
                "                broker, epoch=epoch, incarnation=record.incarnation, host=record.host, "
                "port=record.port, fenced=True\n",
            ),
        ),
        VARIED_APPENDS,
    ),
    Flaw(
        "answers-counted-as-votes",
        "`_count_votes` counts the answers to a Vote request instead of the granted votes.",
        "A controller became leader of the quorum without a majority of granted votes: refusals counted as "
        "votes. So its log could lack committed metadata, or two controllers led in one epoch. Enough: "
        "'controller N was elected though the others refused it / without a majority'. Half: 'committed "
        "metadata was lost/overwritten' or 'two controllers in one epoch' without the votes.",
        (
            Edit(
                _RAFT_STATE,
                "        granted = 1 + sum(self.votes.values())\n",
                "        granted = 1 + len(self.votes)\n",
            ),
        ),
        VARIED_APPENDS,
    ),
    Flaw(
        "commit-replaces-offsets",
        "The offsets of a commit replace all offsets of the group instead of being merged: those of the "
        "partitions that the commit does not name are forgotten.",
        "A commit for one partition (by another member) made the coordinator forget the group's committed "
        "offsets of other partitions; OffsetFetch had none (-1) or lacked them. Half: 'an acknowledged "
        "commit was lost / offset missing' without saying that another commit of the group wiped it.",
        (
            Edit(
                _GROUPS_COMMITTED_OFFSETS,
                "            self._of_groups.setdefault(record.group, {})[key] = record.value\n",
                "            self._of_groups[record.group] = {key: record.value}\n",
            ),
            Edit(
                _GROUPS_COMMITTED_OFFSETS,
                "                self._of_groups.setdefault(change.group, {}).update(change.offsets)\n",
                "                self._of_groups[change.group] = dict(change.offsets)\n",
            ),
        ),
        VARIED_GROUPS,
    ),
    Flaw(
        "cut-to-own-end",
        "A follower told the point of divergence truncates to the end of that epoch in its own log "
        "and ignores the leader's end of it.",
        "A follower does not truncate to the leader's end of the shared epoch but to its own end, so "
        "nothing is removed and it diverges again and again: it never catches up. Half: 'the replica never "
        "converges' alone.",
        (
            Edit(
                _LOG_DIVERGENCE,
                "    if own.epoch != diverging.epoch:\n"
                "        return min(own.end, log_end)\n"
                "    return min(own.end, diverging.end, log_end)\n",
                "    return min(own.end, log_end)\n",
            ),
        ),
        VARIED_APPENDS,
    ),
    Flaw(
        "failed-generation-unreported",
        "When the append that begins a generation fails (too few replicas, timeout), nobody tells "
        "the group: it stays 'storing'.",
        "The append of the record that begins a generation failed, and the coordinator did not answer the "
        "waiting members or start again: the group waits for ever in PreparingRebalance. Half: 'the group "
        "is stuck' alone.",
        (
            Edit(
                _GROUPS_SHARD,
                "        if group is None or not self.leads:\n",
                "        has_failed = isinstance(store, StoreGeneration) and error is not ErrorCode.none\n"
                "        if group is None or not self.leads or has_failed:\n",
            ),
        ),
        VARIED_GROUPS,
    ),
)
