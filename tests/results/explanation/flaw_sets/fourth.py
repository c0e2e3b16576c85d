"""The fourth set of flaws that are no switches: twenty, with the workload whose runs can show each."""

from __future__ import annotations

from typing import Final

from tests.results.explanation.flaw import VARIED_APPENDS, VARIED_GROUPS, Edit, Flaw

_APIS_GROUPS: Final = "images/broker/apis/groups.py"
_APIS_PRODUCE_FETCH: Final = "images/broker/apis/produce_fetch.py"
_CONTROLLER_METADATA_CHANGE: Final = "images/broker/controller/metadata_change.py"
_CONTROLLER_PARTITION_CHANGE: Final = "images/broker/controller/partition_change.py"
_GROUPS_REBALANCE: Final = "images/broker/groups/rebalance.py"
_GROUPS_SHARD: Final = "images/broker/groups/shard.py"
_LOG_LEADER_EPOCHS: Final = "images/broker/log/leader_epochs.py"
_LOG_LOG: Final = "images/broker/log/log.py"
_RAFT_FETCH: Final = "images/broker/raft/fetch.py"
_REPLICATION_BECOME_LEADER_OR_FOLLOWER: Final = "images/broker/replication/become_leader_or_follower.py"
_REPLICATION_FETCHER: Final = "images/broker/replication/fetcher.py"
_REPLICATION_LEADER: Final = "images/broker/replication/leader.py"
_REPLICATION_REPLICA: Final = "images/broker/replication/replica.py"
_CLIENTS_DELIVERY: Final = "workloads/clients/delivery.py"
_CLIENTS_PARTITION_SENDER: Final = "workloads/clients/partition_sender.py"

FOURTH: Final = (
    Flaw(
        "unknown-position-left-out",
        "The high watermark of a new leader is computed over only those ISR members that have already "
        "fetched in this leadership: a member of the (maximal) ISR whose position is not known yet is "
        "skipped instead of holding the high watermark back.",
        "A leader advanced its high watermark (and acknowledged) without counting an ISR member that had "
        "not yet fetched from it, i.e. whose log end was still unknown; it is not enough to say only that "
        "the high watermark was above an in-sync replica's log.",
        (
            Edit(
                _REPLICATION_LEADER,
                "            return PartitionStep(partition)\n",
                "            continue\n",
            ),
        ),
        VARIED_APPENDS,
    ),
    Flaw(
        "shrink-readmits",
        "When a leader shrinks the ISR, the proposed ISR is made of all replicas except those that lag in "
        "the ISR, instead of the current ISR except those: a replica that was out of the ISR is put back "
        "into it without having caught up.",
        "A proposal to shrink the ISR contained (re-admitted) a replica that was not in the ISR and had not "
        "caught up, bypassing the conditions for joining the ISR.",
        (
            Edit(
                _REPLICATION_LEADER,
                "        members = tuple(member for member in partition.isr if member not in leaving)\n",
                "        members = tuple(member for member in partition.replicas if member not in leaving)\n",
            ),
        ),
        VARIED_APPENDS,
    ),
    Flaw(
        "shrink-effective-in-flight",
        "While an ISR change is in flight the leader counts the proposed ISR alone instead of the union of "
        "the committed and the proposed one, so a shrink takes effect on the high watermark as soon as it "
        "is proposed, before the controller has committed it.",
        "The leader let a proposed shrink of the ISR count before the controller had committed it (it "
        "dropped members that were still in the committed ISR from the quorum of the high watermark).",
        (
            Edit(
                _REPLICATION_LEADER,
                "    return tuple(sorted({*partition.isr, *(leadership.proposed or ()), "
                "*leadership.unresolved_members}))\n",
                "    return tuple(sorted({*(leadership.proposed or partition.isr), *leadership.unresolved_members}))\n",
            ),
        ),
        VARIED_APPENDS,
    ),
    Flaw(
        "duplicate-acked-at-once",
        "A retried (duplicate) batch with acks=all is acknowledged at once with the offsets of its first "
        "copy, without waiting until the high watermark has passed that copy.",
        "A retry/duplicate of a batch was acknowledged although the first copy was not committed yet (the "
        "high watermark had not passed it); naming only 'acknowledged above the high watermark' without the "
        "retry is half of it.",
        (
            Edit(
                _APIS_PRODUCE_FETCH,
                "                    if body.acks == ACKS_ALL:\n",
                "                    if body.acks == ACKS_ALL and result.retry is None:\n",
            ),
        ),
        VARIED_APPENDS,
    ),
    Flaw(
        "wrong-last-fetched-epoch",
        "A follower's fetch carries the current leader epoch as its last fetched epoch, instead of the "
        "epoch of the last record in its own log, so the leader compares the wrong epoch and does not see "
        "that the logs diverge.",
        "The follower told its leader a wrong last fetched epoch (the leader's current epoch instead of the "
        "epoch of its own last record), so that the divergence was not detected and the follower did not "
        "truncate (or truncated only to the leader's log end).",
        (
            Edit(
                _REPLICATION_FETCHER,
                "            state.epochs.latest,\n",
                "            state.leader_epoch,\n",
            ),
        ),
        VARIED_APPENDS,
    ),
    Flaw(
        "epoch-entry-kept-at-cut",
        "Truncating the leader epoch cache to an offset keeps an entry that starts exactly at that offset "
        "(off by one), so an epoch without any record left remains the latest epoch of the replica's log.",
        "After a truncation the replica's leader epoch cache still had the epoch that begins at the "
        "truncation offset, all of whose records were cut off (or that never had any), so it goes on "
        "fetching with that epoch as its last one.",
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
        "log-start-checkpoint-base",
        "When the log start advances, the log-start checkpoint names the new start offset as the base "
        "offset of the first segment to keep, instead of the base offset of the segment that contains it; "
        "at the next open every segment below that, also the one with the live records, is deleted as a "
        "left-over.",
        "On a restart the broker deleted the segment that holds the log start (and all records after it), "
        "because the log-start checkpoint had the start offset in place of that segment's base offset: "
        "records were lost by opening the log after DeleteRecords/retention, without any power loss.",
        (
            Edit(
                _LOG_LOG,
                "            self._write_start(offset, base, epochs.epoch_at(offset - 1))\n",
                "            self._write_start(offset, offset, epochs.epoch_at(offset - 1))\n",
            ),
        ),
        VARIED_APPENDS,
    ),
    Flaw(
        "producers-not-rebuilt",
        "Truncating a log does not rebuild the producer state, which still contains the batches that were cut off.",
        "After a truncation the replica still knew the truncated batches (their sequence numbers) of "
        "idempotent producers: its producer state was not rolled back with the log.",
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
        "elr-emptied-early",
        "The controller empties the ELR as soon as ISR and ELR together have min.insync.replicas members, "
        "instead of only when the ISR alone has them: members that leave an ISR below the minimum are not "
        "kept as eligible leaders.",
        "The ELR was emptied (or a member that left the ISR was not kept in it) although the ISR itself was "
        "smaller than min.insync.replicas, because members of the ELR were counted too.",
        (
            Edit(
                _CONTROLLER_PARTITION_CHANGE,
                "        full = len(election.isr) >= self.topic.min_isr(partition) and "
                "self._rules.full_isr_clears_elr\n",
                "        full = len({*election.isr, *elr}) >= self.topic.min_isr(partition) and "
                "self._rules.full_isr_clears_elr\n",
            ),
        ),
        VARIED_APPENDS,
    ),
    Flaw(
        "unfence-elects-from-isr-only",
        "When a broker is unfenced, the controller looks for partitions without a leader only among those "
        "in whose ISR the broker is; but a partition without a leader has an empty ISR, so one in whose ELR "
        "(or LastKnownELR) the broker is gets no leader.",
        "A broker of the ELR (or the last known leader) was unfenced and no leader was elected for its "
        "leaderless partition, because the controller did not consider ELR members on unfencing.",
        (
            Edit(
                _CONTROLLER_METADATA_CHANGE,
                "        self._change_partitions(lambda partition: not self.image.is_active(partition.leader), "
                '"elected")\n',
                "        self._change_partitions(\n"
                "            lambda partition: partition.leader == NO_LEADER and broker.id in partition.isr, "
                '"elected"\n'
                "        )\n",
            ),
        ),
        VARIED_APPENDS,
    ),
    Flaw(
        "reassignment-keeps-removed-in-isr",
        "When a reassignment completes, the removed replicas are taken out of the replica list but not out "
        "of the ISR (a copy of the ISR from before the completion is used), so a removed broker may also "
        "stay the leader.",
        "After a completed reassignment the ISR (and possibly the leader) still contained a broker that was "
        "no longer a replica.",
        (
            Edit(
                _CONTROLLER_PARTITION_CHANGE,
                "            partition, isr = completed, _in_order(completed, isr)\n",
                "            partition = completed\n",
            ),
        ),
        VARIED_APPENDS,
    ),
    Flaw(
        "unready-leader-serves-uncommitted",
        "A controller that was just elected, and has not committed a record of its own epoch yet, answers "
        "brokers' fetches of the metadata log up to its log end instead of up to the high watermark of the "
        "quorum, so brokers read and apply metadata that may not be committed.",
        "Brokers were given (and applied) metadata records above the high watermark of the controller "
        "quorum, i.e. not committed; in full: by a new leader of the quorum before it had committed a "
        "record of its own epoch.",
        (
            Edit(
                _RAFT_FETCH,
                "        before = node.log.end if replica in node.state.progress else node.state.high_watermark\n",
                "        before = node.state.high_watermark\n"
                "        if replica in node.state.progress or not node.state.active:\n"
                "            before = node.log.end  # the high watermark of a new leader may be behind what brokers "
                "have read\n",
            ),
        ),
        VARIED_APPENDS,
    ),
    Flaw(
        "metadata-leaves-isr-change-in-flight",
        "Newer metadata of the same leader epoch does not end the leader's ISR change in flight: the "
        "proposal (and unresolved members) stay set although the partition epoch for which it was sent has "
        "passed and it is sent no more.",
        "The leader kept an ISR change in flight for ever (its proposed/unresolved members were not "
        "cleared) after metadata with a newer partition epoch had superseded it, so it proposed no ISR "
        "change any more and went on counting the proposed members.",
        (
            Edit(
                _REPLICATION_BECOME_LEADER_OR_FOLLOWER,
                "            leadership=partition.leadership._replace(followers=kept, proposed=None, "
                "unresolved_members=())\n",
                "            leadership=partition.leadership._replace(followers=kept)\n",
            ),
        ),
        VARIED_APPENDS,
    ),
    Flaw(
        "coordinator-loads-below-hw",
        "A new group coordinator loads its partition of __consumer_offsets only up to the high watermark "
        "that it happens to have when it takes over, instead of up to its log end; records between the two, "
        "which were committed under the old coordinator, are never read, since it only waits for the high "
        "watermark and does not read on.",
        "The new coordinator did not load the records above its (stale) high watermark at the time of its "
        "election, so it serves without the latest committed offsets or group generation.",
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
        "rebalance-inherits-storing",
        "Starting a rebalance does not reset the flag that a group record is being stored; if the rebalance "
        "starts while the assignment of the previous generation is still being stored, or because storing "
        "it failed, the group waits for ever for a store whose outcome is ignored.",
        "The group stayed in PreparingRebalance for ever, although all members had joined, because the new "
        "rebalance inherited the 'storing' flag of an assignment that was in flight or had failed.",
        (
            Edit(
                _GROUPS_REBALANCE,
                "        storing=False,\n",
                "",
            ),
        ),
        VARIED_GROUPS,
    ),
    Flaw(
        "commit-error-dropped",
        "The result of storing a commit is dropped: OffsetCommit is answered without an error also when the "
        "append was refused, timed out, or the coordinator lost its leadership while it waited.",
        "An OffsetCommit was answered as successful although the commit had failed (not appended, not "
        "replicated in time, or no longer the coordinator): the error of the append was ignored in the "
        "answer.",
        (
            Edit(
                _APIS_GROUPS,
                "                error = await shard.commit(body.group_id, caller, offsets)\n",
                "                await shard.commit(body.group_id, caller, offsets)\n",
            ),
        ),
        VARIED_GROUPS,
    ),
    Flaw(
        "ack-wait-checks-leader-once",
        "A produce request that waits for its acknowledgement checks only when it begins to wait that this "
        "broker still leads in the leader epoch of the append; later it looks at the high watermark alone, "
        "which as a follower is that of another leader's log.",
        "A broker acknowledged an append after it had lost the leadership (or in a later leader epoch): a "
        "waiting produce was not failed on the change of leader and was completed by the high watermark of "
        "the new leader's log.",
        (
            Edit(
                _REPLICATION_REPLICA,
                "        while True:\n"
                "            if self.state.role is not ReplicaRole.LEADER or self.state.leader_epoch != "
                "appended.leader_epoch:\n"
                "                return ErrorCode.not_leader_or_follower\n",
                "        if self.state.role is not ReplicaRole.LEADER or self.state.leader_epoch != "
                "appended.leader_epoch:\n"
                "            return ErrorCode.not_leader_or_follower\n"
                "        while True:\n",
            ),
        ),
        VARIED_APPENDS,
    ),
    Flaw(
        "latest-offset-read-too-early",
        "A read of the latest offset (ListOffsets) takes the high watermark before it waits for its "
        "confirmation (high watermark past the leader epoch start offset, a fetch of every ISR member) and "
        "returns that old value, instead of the one after the wait.",
        "ListOffsets(latest) returned a high watermark from before the read was confirmed (a stale copy), "
        "i.e. below the leader epoch start offset / below records acknowledged before the read began.",
        (
            Edit(
                _REPLICATION_REPLICA,
                "        while self.state.leader_epoch == read.leader_epoch and self.state.leadership is not None:\n",
                "        high_watermark = self.state.high_watermark\n"
                "        while self.state.leader_epoch == read.leader_epoch and self.state.leadership is not None:\n",
            ),
            Edit(
                _REPLICATION_REPLICA,
                "self._trace.latest_told(self.state, read.read_index, confirmed)\n"
                "                return LatestOffset(NO_ERROR, self.state.high_watermark, read.read_index, confirmed)",
                "told = self.state._replace(high_watermark=high_watermark)\n"
                "                self._trace.latest_told(told, read.read_index, confirmed)\n"
                "                return LatestOffset(NO_ERROR, high_watermark, read.read_index, confirmed)",
            ),
        ),
        VARIED_APPENDS,
    ),
    Flaw(
        "not-leader-taken-as-not-appended",
        "The native producer counts NOT_LEADER_OR_FOLLOWER (6) among the errors that a broker gives only "
        "before it appends; but a broker that loses its leadership while an append waits for the high "
        "watermark answers 6 too, after it has appended.",
        "The client treated NOT_LEADER_OR_FOLLOWER as proof that the batch was not appended: it reported a "
        "definite failure for (or sent again under new numbers) a batch that was in the log.",
        (
            Edit(
                _CLIENTS_DELIVERY,
                "        ErrorCode.invalid_required_acks,\n",
                "        ErrorCode.not_leader_or_follower,\n        ErrorCode.invalid_required_acks,\n",
            ),
        ),
        VARIED_APPENDS,
    ),
    Flaw(
        "renumbered-though-maybe-appended",
        "When the native producer begins a new sequence after it gave a batch up, it sends also those "
        "batches behind it again under the new producer epoch and new sequence numbers that may have been "
        "appended already, instead of ending them with an unknown outcome.",
        "The producer sent a batch that may already be in the log once more under another producer "
        "epoch/sequence number, so that the broker could not recognise it as a retry: the duplicate comes "
        "from the client's renumbering, not from the broker's deduplication.",
        (
            Edit(
                _CLIENTS_PARTITION_SENDER,
                "        for batch in self._in_flight:\n"
                "            if batch.may_be_appended:\n"
                "                batch.give_up(batch.error)\n"
                "        again = [batch for batch in self._in_flight if not batch.may_be_appended]\n"
                "        self._waiting.extendleft(reversed(again))\n",
                "        self._waiting.extendleft(reversed(self._in_flight))\n",
            ),
        ),
        VARIED_APPENDS,
    ),
)
