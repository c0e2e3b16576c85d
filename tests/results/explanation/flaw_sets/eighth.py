"""The eighth set of flaws that are no switches: ten, with the workload whose runs can show each."""

from __future__ import annotations

from typing import Final

from tests.results.explanation.flaw import VARIED_APPENDS, VARIED_GROUPS, Edit, Flaw

_CONTROLLER_PARTITION_CHANGE: Final = "images/broker/controller/partition_change.py"
_GROUPS_SHARD: Final = "images/broker/groups/shard.py"
_LOG_SEGMENT: Final = "images/broker/log/segment.py"
_METADATA_IMAGE: Final = "images/broker/metadata/image.py"
_RAFT_FETCH: Final = "images/broker/raft/fetch.py"
_REPLICATION_BECOME_LEADER_OR_FOLLOWER: Final = "images/broker/replication/become_leader_or_follower.py"
_REPLICATION_FETCHER: Final = "images/broker/replication/fetcher.py"
_REPLICATION_LEADER: Final = "images/broker/replication/leader.py"
_REPLICATION_REPLICA: Final = "images/broker/replication/replica.py"
_WORKLOADS_CLIENTS_CONSUMER: Final = "workloads/clients/consumer.py"

EIGHTH: Final = (
    Flaw(
        "consumer-commits-its-fetch-position",
        "`next_offsets` of the consumer, which is what a group member commits, gives the fetch position of "
        "each partition in place of the end of the records that `poll` has returned. The consumer fetches "
        "ahead: while the application is busy with what a poll returned, the answer of another broker may "
        "have arrived, so that the position of that partition is beyond records which the application has "
        "never seen. A commit between such an answer and the next poll (the commit when a rebalance begins "
        "or the member leaves) covers undelivered records. The next owner starts behind them: no member is "
        "ever given them.",
        "the member committed an offset beyond the records it had been given (polled), since it committed "
        "the position of a fetch whose answer had come in but had not been returned to the application. "
        "Half: the member's commit is ahead of what it was given, with member, offset and last delivered "
        "record, but without the fetched-ahead answer / fetch position as the reason. Not enough: records "
        "were skipped or never delivered, the next owner started too far, the rebalance named. A broker or "
        "coordinator named as the cause is wrong.",
        (
            Edit(
                _WORKLOADS_CLIENTS_CONSUMER,
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
        "registration-keeps-the-shutting-down-mark",
        "When a broker registers again, the metadata image makes a new entry for it, fenced, in its new "
        "broker epoch, but carries over `shutting_down` of the entry of its earlier incarnation. A broker "
        "that left by a controlled shutdown had that mark. After its restart it is registered, fenced and "
        '"shutting down", and the controller unfences no broker that is shutting down: it heartbeats for '
        "ever, catches up with the metadata, and never becomes active again. It can neither lead nor join "
        "an ISR, in this and every later incarnation; after the clean restart of a second broker partitions "
        "stay below min.insync.replicas, and are unavailable for good.",
        'the broker stays fenced after its clean restart because the mark "shutting down" of its earlier '
        "incarnation (of its controlled shutdown) still holds in its new registration; the controller "
        "(image) did not clear it. Half: the controller refuses to unfence bN since it counts as shutting "
        "down, without that this is left over from before its registration. Not enough: bN is fenced, is "
        "not in the ISR, replicas are missing, the partition is below min.insync.replicas after a restart.",
        (
            Edit(
                _METADATA_IMAGE,
                "            broker = BrokerImage(\n"
                "                record.id, epoch, record.incarnation, record.host, "
                "record.port, fenced=True, shutting_down=False\n",
                "            known = image.brokers.get(record.id)\n"
                "            leaving = known is not None and known.shutting_down\n"
                "            broker = BrokerImage(\n"
                "                record.id, epoch, record.incarnation, record.host, "
                "record.port, fenced=True, shutting_down=leaving\n",
            ),
        ),
        VARIED_APPENDS,
    ),
    Flaw(
        "shrink-counts-before-it-is-committed",
        "`maximal_isr` gives, while an AlterPartition is in flight, the proposed ISR in place of the union "
        "of the committed and the proposed one. For an expansion that is the same set. For a shrink it "
        "means that the leader drops the lagging follower from the quorum of its high watermark the moment "
        "it sends AlterPartition, not when the controller has committed it; min.insync.replicas is still "
        "compared with the larger committed ISR, so it does not stop this. The high watermark advances, and "
        "appends are acknowledged and read, without a replica that the controller still has in the ISR and "
        "may elect (or, if the shrink goes below min.insync.replicas, keeps in the ELR). If the leader is "
        "lost or cut off then, that replica leads without acknowledged records.",
        "the leader moved its high watermark (or acknowledged) with the quorum of its own uncommitted "
        "proposal, leaving out a follower that it had proposed to remove, while the controller had not "
        "committed the removal, so that the follower was still in the ISR and could be elected (or went to "
        'the ELR) without the record. Node, the member left out, and "its shrink was only proposed, not '
        'committed yet" must be there. Half: the leader moved its high watermark without ISR member bN, '
        "with nothing about the shrink in flight; or a shrink said to be the cause without the quorum. Not "
        "enough: the new leader lacked an acknowledged record, the record was truncated, bN was in the ISR "
        "with a short log.",
        (
            Edit(
                _REPLICATION_LEADER,
                "    return tuple(sorted({*partition.isr, *(leadership.proposed or ()), "
                "*leadership.unresolved_members}))\n",
                "    members = partition.isr if leadership.proposed is None else leadership.proposed\n"
                "    return tuple(sorted({*members, *leadership.unresolved_members}))\n",
            ),
        ),
        VARIED_APPENDS,
    ),
    Flaw(
        "recovery-leaves-the-torn-tail-in-the-file",
        "After an unclean end the recovery of a segment finds the last whole batch and must cut the file "
        "there. The comparison is turned around (`size > file_size`, never true), so the recovery only "
        "forgets the torn bytes and leaves them in the file. Appends go to the end of the file, behind the "
        "torn bytes, while the segment believes them to be where the whole batches end: every later batch "
        "is read from a wrong position. As a leader the broker answers with garbage, followers refuse the "
        "records as corrupt and consumers cannot read on: the partition is stuck. At the next restart, even "
        "a clean one, the recovery stops again at the torn bytes and cuts off, as far as the log's state is "
        "concerned, everything appended since, so a broker that stopped cleanly, and stays eligible as "
        "such, has lost committed records; on disk the replica differs from the others.",
        "the broker's recovery after its power loss left the torn (damaged) bytes in the segment file, so "
        "that the batches appended later lie behind them and are unreadable (or are lost at the next "
        'recovery). The node, the recovery that found the torn tail, and "the bytes were not removed, the '
        "file goes on behind them\" must be there. Half: the node's log is damaged at the offset / byte at "
        "which an earlier recovery of the same node had reported a cut, without saying that the cut was not "
        "made in the file; or the second recovery cut the same place again, named as suspicious. Not "
        "enough: followers refused corrupt records, the log of bN is shorter or differs, consumers stuck, "
        "the power loss named alone.",
        (
            Edit(
                _LOG_SEGMENT,
                "        if self.size < file_size:\n",
                "        if self.size > file_size:\n",
            ),
        ),
        VARIED_APPENDS,
    ),
    Flaw(
        "elr-takes-every-replica-outside-the-isr",
        "When the ISR is below min.insync.replicas, the controller must keep as ELR those former candidates "
        "(members of ISR or ELR before the change) that left the ISR. The patched code takes all replicas "
        "of the partition that are not in the ISR: replicas that had left the ISR long ago, while it was "
        "large enough to commit without them, that restarted uncleanly before, or that a reassignment has "
        "only just added. They lack committed records but are eligible as clean leaders. Once the ISR is "
        "empty, the first active one is elected, and acknowledged records are truncated everywhere.",
        "the controller put into the ELR (and perhaps elected from it) a replica that had been in neither "
        "ISR nor ELR before that change, so nothing guaranteed that it held the committed records. The "
        "change, the replica, and that it was no candidate before (had left the ISR earlier, had restarted "
        "uncleanly, or was just being added) must be there. Half: a replica that lacks committed records is "
        "in the ELR or was elected from it, with the election or change named, but not that it did not come "
        "from the ISR/ELR. Not enough: the new leader's log is short, records were truncated after the "
        'election, "unclean election".',
        (
            Edit(
                _CONTROLLER_PARTITION_CHANGE,
                "        elr = tuple(replica for replica in candidates if replica not in isr "
                "and replica not in self._unclean_replicas)\n",
                "        elr = tuple(\n"
                "            replica for replica in partition.replicas if replica not in isr "
                "and replica not in self._unclean_replicas\n"
                "        )\n",
            ),
        ),
        VARIED_APPENDS,
    ),
    Flaw(
        "coordinator-loads-up-to-its-high-watermark",
        "A new leader of a partition of `__consumer_offsets` must replay its log up to its log end (its "
        "leader epoch start) and serve once all of that is committed. The patched one takes its high "
        "watermark at the moment it becomes leader as the end of what is to be loaded. A follower's high "
        "watermark lags behind its leader's, so that records that were committed and acknowledged by the "
        "earlier coordinator lie above it. The new coordinator still waits until its high watermark has "
        "passed the start of its epoch, but has never read those records: committed offsets go back to "
        "older ones, or a generation or assignment record is missed, so that the group goes on in an older "
        "generation and numbers are given out again.",
        "the new coordinator (broker, leader epoch) loaded `__consumer_offsets` only up to its (stale) high "
        "watermark / an offset below its log end, so that it never read the record (offset commit, "
        "generation or assignment) at the offset above, which was in its own log and committed. Half: the "
        "new coordinator does not have the committed offset / generation although the record is in its log "
        "(or: it loaded less than its log), without that the end was its high watermark; that half becomes "
        "full with the two numbers, loaded end and log end, next to each other and the lost record between "
        "them. Not enough: committed offset went back after a coordinator change, members reread records, "
        "generation repeated.",
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
        "retry-acknowledged-one-record-early",
        "A retry whose batch is in the log already (found by its producer id and sequence numbers) must be "
        "acknowledged only when the high watermark has passed the batch, i.e. reached the exclusive end. "
        "The patched leader waits for `last_offset` instead of `last_offset + 1`. For a batch of one record "
        "that is its base offset: the retry of the first uncommitted batch is acknowledged at once, when "
        "all records before it are committed but it is not. It may be on the leader alone. If the leader is "
        "deposed or lost before it replicates the record, a record acknowledged with acks=all is lost. "
        "First attempts are acknowledged correctly.",
        "the leader acknowledged the retry (duplicate) of a batch at offset N while its high watermark was "
        "at N, i.e. not beyond it, so the batch was not committed (which followers lacked it is welcome). "
        "Node, that it was a retry/duplicate, and high watermark not past the record must be there. Half: "
        "the leader acknowledged the record at N with high watermark N, without saying that it was a retry "
        'taken for a duplicate; or "a duplicate was acknowledged before it was replicated" without the high '
        "watermark. Not enough: an acknowledged record was lost at a fail-over, the new leader did not have "
        "it, it was truncated.",
        (
            Edit(
                _REPLICATION_REPLICA,
                "                end = verdict.last_offset + 1\n",
                "                end = verdict.last_offset\n",
            ),
        ),
        VARIED_APPENDS,
    ),
    Flaw(
        "follower-begins-anew-at-the-leader-end",
        "A follower whose log ends below its leader's log start (or a new, empty replica of such a "
        "partition) gets OFFSET_OUT_OF_RANGE, asks ListOffsets for the leader's end and start, and must "
        "delete its records and begin anew at the leader's log start. The patched fetcher begins at the "
        "leader's log end. It skips every record between the two. Its log is empty, so its fetch has no "
        "last fetched epoch and passes the check for divergence; its fetch offset is at the high watermark, "
        "so it joins the ISR and is counted for every one of those records. It lacks committed records that "
        "nobody deleted; when it is elected, they are gone for consumers, and the other replicas, which "
        "follow their leader's log start, delete them, too.",
        "the follower, whose fetch was out of range below the leader's log start, restarted its log at the "
        "leader's log end (an offset above the leader's log start), so that it skipped the records from the "
        "leader's start to there which were never deleted, and counted as a full replica all the same. "
        "Half: the follower's log begins at offset X, above the log start of its leader / above any "
        "deletion, with the truncation at which that happened named but not that X was the leader's end in "
        "place of its start. Not enough: replica or new leader lacks records, log start above every "
        "requested deletion, consumers were moved to a later offset, a DeleteRecords named as the cause.",
        (
            Edit(
                _REPLICATION_FETCHER,
                "        if start is not None and start.offset > state.offset:\n"
                "            state.replica.truncate_fully_and_start_at(state.offset, "
                "state.leader_epoch, start.offset, start.epoch)\n",
                "        if latest is not None and start is not None and start.offset > state.offset:\n"
                "            state.replica.truncate_fully_and_start_at(state.offset, "
                "state.leader_epoch, latest.offset, latest.epoch)\n",
            ),
        ),
        VARIED_APPENDS,
    ),
    Flaw(
        "brokers-read-the-active-controllers-whole-log",
        "The leader of the controller quorum gives brokers (observers of the metadata log) the log up to "
        "its end once it is active, not up to its high watermark. Controllers still count a majority "
        "correctly before they acknowledge; but brokers apply changes that are not committed yet. If the "
        "active controller is cut off from the other controllers (or dies) before the commit, its successor "
        "writes other records at these offsets. Brokers never truncate metadata: a broker that has read the "
        "lost records skips the successor's records at the same offsets. It acts on elections, ISRs or "
        "fencings that never happened and misses those that did: two leaders in one leader epoch, a leader "
        "that commits with an ISR that the controllers do not have, or a broker that stops on a record that "
        "contradicts its image.",
        "broker bN applied metadata (offset / the change) that the active controller had not committed, "
        "i.e. that the controller served records above its high watermark (only it, no majority, held "
        "them). For a case with a lost change also: the record was later replaced, so that bN kept a change "
        'that never took effect or skipped the one in its place. Naming controller and broker and "not '
        "committed\" is full. Half: bN's metadata differs from the controllers' at an offset, or bN acts on "
        "a leader / ISR that the controllers never decided, without that it was read before its commit. Not "
        "enough: two leaders, diverging logs, a crashed broker, a controller fail-over or zombie controller "
        "named alone.",
        (
            Edit(
                _RAFT_FETCH,
                "        before = node.log.end if replica in node.state.progress else node.state.high_watermark\n",
                "        # An active controller knows all committed records: nothing in its log "
                "can be overwritten by another's.\n"
                "        whole = node.state.active or replica in node.state.progress\n"
                "        before = node.log.end if whole else node.state.high_watermark\n",
            ),
        ),
        VARIED_APPENDS,
    ),
    Flaw(
        "new-leader-takes-its-whole-log-for-committed",
        "On becoming leader a broker keeps the high watermark that it had as a follower, and raises it once "
        "the ISR has fetched. The patched one sets its high watermark to its log end offset at the "
        "election, reasoning that a leader out of the ISR has every committed record. It has; but it may "
        "also have records that are not committed: appended by the last leader (or by itself), and not yet "
        "on the other members of the ISR. Consumers read them at once, retries of them are found as "
        "duplicates and acknowledged at once, latest offsets and deletions go by them. If the leader is "
        "lost or cut off before the others have fetched them, the next leader does not have them: "
        "acknowledged or already read records are lost. The same happens with a leader elected out of the "
        "ELR whose ISR is below min.insync.replicas, and with a leader whose leader epoch is only bumped.",
        "broker bN became leader with a high watermark equal to its log end (raised at its election, "
        "without any fetch of the ISR), while member bM of the ISR (or the ISR that was too small) did not "
        "have these records: uncommitted records were taken for committed. Half: the leader's high "
        "watermark was above the log of ISR member bM right after the election, without that the election "
        'itself set it; or "it acknowledged / served a record that bM lacks" with the election named. Not '
        "enough: a record that was read or acknowledged is missing on the next leader, truncation, a read "
        "that went back.",
        (
            Edit(
                _REPLICATION_BECOME_LEADER_OR_FOLLOWER,
                "        epochs=epochs,\n",
                "        epochs=epochs,\n        high_watermark=updated.log_end,\n",
            ),
        ),
        VARIED_APPENDS,
    ),
)
