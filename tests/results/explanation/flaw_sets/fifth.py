"""The fifth set of flaws that are no switches: ten, with the workload whose runs can show each."""

from __future__ import annotations

from typing import Final

from tests.results.explanation.flaw import VARIED_APPENDS, VARIED_GROUPS, Edit, Flaw

_CONTROLLER_METADATA_CHANGE: Final = "images/broker/controller/metadata_change.py"
_GROUPS_SHARD: Final = "images/broker/groups/shard.py"
_LOG_LEADER_EPOCHS: Final = "images/broker/log/leader_epochs.py"
_LOG_LOG: Final = "images/broker/log/log.py"
_RAFT_FETCH: Final = "images/broker/raft/fetch.py"
_REPLICATION_LEADER: Final = "images/broker/replication/leader.py"
_REPLICATION_REPLICA: Final = "images/broker/replication/replica.py"
_CLIENTS_CONSUMER: Final = "workloads/clients/consumer.py"

FIFTH: Final = (
    Flaw(
        "position-never-falls",
        "The leader records a follower's position as the greater of what it had and what the new fetch says "
        '(`max(fetch.offset, follower.log_end)`), "so that a fetch that was overtaken cannot take it back". '
        "A follower that comes back from a crash with a shorter log, in the same leadership, keeps the "
        "position that its earlier incarnation had (with the new broker epoch beside it).",
        "That the leader counted (for the high watermark or for the ISR) a follower as holding records that "
        "this follower no longer had, since it lost them (restart, power loss, wiped disk) and its later, "
        "lower fetches did not lower its recorded position. Half of it: that a replica was in the ISR or "
        "was elected although it lacked the records, without saying that the leader took it for further "
        "than its own fetches said; or only that the high watermark went above what the ISR had.",
        (
            Edit(
                _REPLICATION_LEADER,
                "                fetch.offset,\n",
                "                max(fetch.offset, follower.log_end or 0),  # a fetch that was overtaken must not "
                "take it back\n",
            ),
        ),
        VARIED_APPENDS,
    ),
    Flaw(
        "leads-checked-once",
        "`wait_until_committed` checks once, before it waits, that this broker still leads in the epoch of "
        "the append, and afterwards waits for the high watermark alone. The check is not made again after "
        "the await.",
        "That a produce was acknowledged by a broker that no longer led (or led in another leader epoch "
        "than that of the append): the high watermark that passed its offset was that of another "
        "leadership, over other records at those offsets. Half of it: that the record was truncated and is "
        "lost, or that it was acknowledged without being committed, without saying that the acknowledger "
        "had been deposed meanwhile.",
        (
            Edit(
                _REPLICATION_REPLICA,
                "        while True:\n"
                "            if self.state.role is not ReplicaRole.LEADER or self.state.leader_epoch != "
                "appended.leader_epoch:\n"
                "                return ErrorCode.not_leader_or_follower\n"
                "            if self.state.high_watermark >= appended.end:\n"
                "                return NO_ERROR\n"
                "            if not await wait_for_any((self.changed,), until):\n"
                "                return ErrorCode.request_timed_out\n",
                "        if self.state.role is not ReplicaRole.LEADER or self.state.leader_epoch != "
                "appended.leader_epoch:\n"
                "            return ErrorCode.not_leader_or_follower\n"
                "        while self.state.high_watermark < appended.end:\n"
                "            if not await wait_for_any((self.changed,), until):\n"
                "                return ErrorCode.request_timed_out\n"
                "        return NO_ERROR\n",
            ),
        ),
        VARIED_APPENDS,
    ),
    Flaw(
        "shrink-at-once",
        "When the leader proposes to shrink the ISR it also takes the smaller ISR as its own at once, as "
        "Kafka did before KIP-497 wrote through the controller: the members that it wants to remove do not "
        "hold the high watermark from the sending on, although the controller has not committed anything.",
        "That the leader left a lagging member out (advanced the high watermark, or acknowledged, without "
        "it) before the removal from the ISR was committed: the ISR that it counted was smaller than the "
        "controller's. Half of it: that the elected replica lacked the records, or that an AlterPartition "
        "was outstanding, without saying that the leader already acted on the shrink.",
        (
            Edit(
                _REPLICATION_LEADER,
                '        return _propose(partition, members, active, "shrink")\n',
                '        return _propose(partition._replace(isr=members), members, active, "shrink")\n',
            ),
        ),
        VARIED_APPENDS,
    ),
    Flaw(
        "epoch-at-cut-stays",
        "`EpochCache.truncate_end(x)` keeps an entry that starts at exactly x (bisect_right in place of "
        "bisect_left): after a truncation the epoch cache still has an epoch that begins at the log end and "
        "has no record.",
        "That a replica's epoch cache keeps an epoch (its own leader epoch, which begins at the end of the "
        "log) that the truncation should have dropped, so that its fetches name a last fetched epoch that "
        "its log does not have, and it is told of the same divergence again and again (it never converges). "
        "Half of it: that a follower does not converge or fetches in vain in a loop, without the epoch "
        "entry that stays in its cache after the cut.",
        (
            Edit(
                _LOG_LEADER_EPOCHS,
                "        keep = bisect_left(self.entries, offset, key=_start)\n",
                "        keep = bisect_right(self.entries, offset, key=_start)\n",
            ),
        ),
        VARIED_APPENDS,
    ),
    Flaw(
        "producers-survive-cut",
        "`Log.truncate` cuts segments, snapshots and epoch cache, but no longer rebuilds the producer "
        "table: it keeps the batches that were just cut.",
        "That the producer state of a replica still had batches which a truncation had removed from its "
        "log, so that as leader it took a retry for a duplicate of a record that it did not have any more "
        "(or answered with an offset from before the truncation). Half of it: that a retry was answered as "
        "a duplicate wrongly, or that the record was acknowledged and is not in the log, without the "
        "truncation that the producer state did not follow.",
        (
            Edit(
                _LOG_LOG,
                "            self._rebuild_producers()\n",
                "",
            ),
        ),
        VARIED_APPENDS,
    ),
    Flaw(
        "unfenced-elr-waits",
        "When a broker is unfenced, the controller elects leaders only for the partitions without leader "
        "that have this broker in their ISR, as before KIP-966. One that is in the ELR (the ISR being "
        "empty) is passed over: the eligible leader replica comes back and nothing elects it.",
        "That the controller did not elect the broker which came back (was unfenced) although it was in the "
        "ELR (eligible) of a partition without a leader. Half of it: that the partition stayed without a "
        "leader, or that all of its ISR was gone, without saying that an eligible replica was there and "
        "unfenced.",
        (
            Edit(
                _CONTROLLER_METADATA_CHANGE,
                "        self._change_partitions(lambda partition: not self.image.is_active(partition.leader), "
                '"elected")\n',
                "        self._change_partitions(\n"
                "            lambda partition: broker.id in partition.isr and not "
                'self.image.is_active(partition.leader), "elected"\n'
                "        )\n",
            ),
        ),
        VARIED_APPENDS,
    ),
    Flaw(
        "brokers-read-to-log-end",
        "The controller answers the metadata fetch of a broker up to its log end, as that of a voter, and "
        "no longer only up to the high watermark: brokers apply changes that are not committed by the "
        "quorum.",
        "That a broker read (applied, acted on) metadata that the controllers' quorum had not committed, "
        "which another controller later overwrote. Half of it: that brokers disagree about a leader or that "
        "the metadata of a broker differs from the committed one, without the word that what it had read "
        "was uncommitted.",
        (
            Edit(
                _RAFT_FETCH,
                "        before = node.log.end if replica in node.state.progress else node.state.high_watermark\n"
                "        try:\n"
                "            size = min(max_bytes, request.partition_max_bytes)\n"
                '            records = node.log.read(request.fetch_offset, size, before) if max_bytes > 0 else b""\n',
                "        try:\n"
                "            size = min(max_bytes, request.partition_max_bytes)\n"
                "            records = node.log.read(request.fetch_offset, size, node.log.end) if max_bytes > 0 else "
                'b""\n',
            ),
        ),
        VARIED_APPENDS,
    ),
    Flaw(
        "load-to-high-watermark",
        "A new coordinator loads `__consumer_offsets` up to the high watermark that it knows at that "
        "moment, not to its log end (the end is read from the high watermark; the wait for the high "
        "watermark to reach that end is trivially over). A new leader's high watermark lags behind what is "
        "committed.",
        "That the new coordinator did not load all of its log: commits that had been acknowledged, between "
        "its high watermark at the election and its log end, were left out (it loaded only up to its stale "
        "high watermark). Half of it: that a committed offset went back after the coordinator moved, "
        "without saying that the record was in the new coordinator's log and was not loaded.",
        (
            Edit(
                _GROUPS_SHARD,
                "        offset, end = replica.log.start, replica.log.end\n",
                "        offset, end = replica.log.start, replica.state.high_watermark\n",
            ),
        ),
        VARIED_GROUPS,
    ),
    Flaw(
        "commits-what-it-fetched",
        "The native consumer's `next_offsets`, which a group member commits, returns its fetch position in "
        "place of the end of the records that `poll` has returned: records that were fetched ahead count as "
        "read.",
        "That a member (the client) committed an offset beyond the records that it had been given (polled, "
        "delivered), so that the next member starts behind records that nobody has read. Half of it: that "
        "records were skipped or were delivered to no member, or that a member started at a later offset, "
        "without saying that the commit went past what the committing member had read.",
        (
            Edit(
                _CLIENTS_CONSUMER,
                "        return {assigned.key: assigned.delivered for assigned in self._assigned}\n",
                "        return {\n"
                "            assigned.key: OffsetAndEpoch(assigned.position.offset, assigned.position.epoch)\n"
                "            for assigned in self._assigned\n"
                "        }\n",
            ),
        ),
        VARIED_GROUPS,
    ),
    Flaw(
        "empty-group-drops-offsets",
        "A coordinator that loads `__consumer_offsets` drops the offsets of a group not only at its "
        'tombstone but at every record of the group without partitions ("a group without them keeps no offsets"). '
        "The record that a generation begins has none, and it is written at every rebalance.",
        "That the new coordinator, while it loaded the log, dropped (cleared, deleted) the offsets that had "
        "been committed before a record of the group without partitions (an empty group, the begin of a "
        "generation). Half of it: that an acknowledged commit is gone, or the committed offset went back or "
        "to nothing, after the coordinator moved, although the record is in the log it loaded, without what "
        "made the coordinator drop it.",
        (
            Edit(
                _GROUPS_SHARD,
                "            self.groups[record.group] = record.value\n",
                "            self.groups[record.group] = record.value\n"
                "        if record.value is None or record.value.state is not GroupState.STABLE:\n"
                "            self._offsets.pop(record.group, None)  # without partitions it keeps no offsets\n",
            ),
        ),
        VARIED_GROUPS,
    ),
)
