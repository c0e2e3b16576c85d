"""The ninth set of flaws that are no switches: ten, with the workload whose runs can show each."""

from __future__ import annotations

from typing import Final

from tests.results.explanation.flaw import VARIED_APPENDS, VARIED_GROUPS, Edit, Flaw

_APIS_PRODUCE_FETCH: Final = "images/broker/apis/produce_fetch.py"
_CONTROLLER_METADATA_CHANGE: Final = "images/broker/controller/metadata_change.py"
_GROUPS_REBALANCE: Final = "images/broker/groups/rebalance.py"
_GROUPS_SHARD: Final = "images/broker/groups/shard.py"
_LOG_SEGMENTS: Final = "images/broker/log/segments.py"
_RAFT_FETCH: Final = "images/broker/raft/fetch.py"
_REPLICATION_ALTER_PARTITION_MANAGER: Final = "images/broker/replication/alter_partition_manager.py"
_REPLICATION_BECOME_LEADER_OR_FOLLOWER: Final = "images/broker/replication/become_leader_or_follower.py"
_REPLICATION_LEADER: Final = "images/broker/replication/leader.py"
_WORKLOADS_CLIENTS_CONSUMER: Final = "workloads/clients/consumer.py"

NINTH: Final = (
    Flaw(
        "old-metadata-resolves-an-isr-change-in-flight",
        "A leader takes over a partition's registration also if it has the partition epoch that the leader "
        "knows already (`<` in place of `<=`). Every metadata update is applied to every partition, so "
        "whenever anything in the cluster changes (another partition's ISR, a broker unfenced, a config) "
        "while an AlterPartition of this leader is in flight, the leader takes its own change for resolved: "
        "it forgets the proposed member and goes back from the maximal ISR to the committed one, though the "
        "controller may commit the change a moment later. Until it learns of that, its high watermark "
        "advances without the new ISR member, which may be elected without those records; also several ISR "
        "changes may be in flight at a time.",
        "the leader (named) dropped its proposal for the ISR, which was still in flight (neither answered "
        "nor overtaken by a newer partition epoch), because it applied metadata that said nothing new about "
        "the partition (the same partition epoch), and so moved its high watermark without the proposed "
        "member, whom the controller then committed. Enough is: the leader considered the change resolved / "
        "left the maximal ISR upon metadata of an unchanged partition epoch, while the request was under "
        'way. Half: "the high watermark moved without a member that had been proposed and may be in the '
        'ISR" without why the leader no longer counted it. Not enough: the new ISR member lacks a committed '
        "record, or records lost.",
        (
            Edit(
                _REPLICATION_BECOME_LEADER_OR_FOLLOWER,
                "    if registration.leader_epoch < partition.leader_epoch or "
                "registration.partition_epoch <= partition.partition_epoch:\n",
                "    if registration.leader_epoch < partition.leader_epoch or "
                "registration.partition_epoch < partition.partition_epoch:\n",
            ),
        ),
        VARIED_APPENDS,
    ),
    Flaw(
        "leader-never-lowers-a-followers-position",
        "The leader records a follower's position (its log end offset, by which it judges the ISR and the "
        "high watermark) as the maximum of the old one and the fetch offset, as a Raft leader's match "
        "index. Kafka's followers may come back with less: within one leader epoch a broker that lost "
        "unsynced records in a power loss restarts, is removed from the ISR (which bumps the partition "
        "epoch, not the leader epoch), and fetches from a lower offset. The leader keeps the old, higher "
        "position, so the follower's very first fetch passes the gates for the ISR join (high watermark, "
        "leader epoch start), and once in the ISR it is counted in the high watermark with records it has "
        "not got. If it is elected then, acknowledged records are lost.",
        "the leader (named) proposed or admitted the follower (named) to the ISR, or moved its high "
        "watermark counting it, by a position that was not the offset of that follower's latest fetch but a "
        "higher, earlier one (of before its restart or truncation); the follower's log ended below it. "
        "Naming the node, the position that the leader held or the join at an offset below the high "
        "watermark, and that the follower's actual log end or fetch offset was lower, is enough. Half: \"the "
        'follower joined the ISR although its log ended below the high watermark" without saying that the '
        "leader still went by its old position. Not enough: acknowledged records are missing, replicas "
        "differ, or the power loss / the unclean restart alone is blamed.",
        (
            Edit(
                _REPLICATION_LEADER,
                "                fetch.offset,\n",
                "                max(fetch.offset, follower.log_end or 0),  # a late fetch must not move it back\n",
            ),
        ),
        VARIED_APPENDS,
    ),
    Flaw(
        "brokers-read-what-the-active-controller-has-appended",
        "An active controller answers the metadata fetches of brokers up to the end of its log, in the "
        "belief that all it has appended while active is committed; in truth a record is committed only "
        "once a majority of the voters has fetched it. Brokers apply changes (leader elections, ISRs, "
        "registrations) that are not committed. If the controller is cut off from the other voters, or "
        "dies, before the commit, the next active controller has other records at these offsets: the "
        "brokers never truncate metadata, they fetch on behind, so they keep a change that never happened "
        "and miss others for good: two leaders in one leader epoch, leaders unknown to some brokers, or a "
        "record that contradicts their image.",
        "broker(s) applied metadata beyond what was committed (above the high watermark of the quorum), "
        "served by the active controller (named) which had appended it without a majority; where it came to "
        "harm: that these records were later overwritten by another controller. Naming that uncommitted "
        'metadata was read/applied by a broker is what counts. Half: "brokers have other metadata than the '
        'controllers / the metadata at this offset differs" with the deposed controller named, but not that '
        "the records had never been committed. Not enough: two leaders, a stuck partition, a crashed "
        "broker, a controller fail-over.",
        (
            Edit(
                _RAFT_FETCH,
                "        before = node.log.end if replica in node.state.progress else node.state.high_watermark\n",
                "        # An active controller has committed what it took over, so only one "
                "that is not active has a doubtful tail.\n"
                "        whole = node.state.active or replica in node.state.progress\n"
                "        before = node.log.end if whole else node.state.high_watermark\n",
            ),
        ),
        VARIED_APPENDS,
    ),
    Flaw(
        "retry-is-acknowledged-without-waiting",
        "A Produce that the leader recognizes as a duplicate (same producer id, epoch, sequence numbers) is "
        "answered without error at once, in the belief that the first copy has been waited for. But a "
        "producer retries exactly those batches whose first copy was not acknowledged, typically since the "
        "wait for the high watermark timed out. So with acks=all the retry is acknowledged although the "
        "high watermark has not passed the batch; if the leader is cut off from its followers and another "
        "one is elected, an acknowledged record is lost.",
        "the leader (named) acknowledged a retry (a batch taken for a duplicate) at an offset at or above "
        "its high watermark, i.e. before the in-sync replicas had it. Both that it was the answer to a "
        'retry/duplicate and that the high watermark had not passed it belong to it. Half: "the leader '
        'acknowledged a record above the high watermark" without the retry. Not enough: "an acknowledged '
        'record was truncated / lost when the new leader took over", or the partition as the cause.',
        (
            Edit(
                _APIS_PRODUCE_FETCH,
                "                    if body.acks == ACKS_ALL:\n",
                "                    if body.acks == ACKS_ALL and result.retry is None:  # its "
                "first copy has been waited for\n",
            ),
        ),
        VARIED_APPENDS,
    ),
    Flaw(
        "group-waits-for-ever-for-a-record-that-failed",
        "`storing` (a group record has been appended and its commit is awaited) is cleared only where the "
        "record turns out to be stored; `prepare`, which starts a rebalance, no longer clears it. If the "
        "append of a generation or of an assignment fails (NOT_ENOUGH_REPLICAS, or not committed within "
        "offsets.commit.timeout), or if a member joins, leaves or expires while an assignment is being "
        "stored, the group is in PreparingRebalance and still `storing`: no rebalance completes, neither "
        "when all members have joined nor at the rebalance timeout, and waiting members never expire. The "
        "group is stuck in PreparingRebalance until its coordinator moves: nobody owns a partition, nobody "
        "reads or commits.",
        "the coordinator (named) left the group in PreparingRebalance (all members waiting for JoinGroup) "
        "because it still waits for a record (of generation N, or its assignment) whose append had failed "
        "or been abandoned; i.e. the group still counts as storing after the failure. Enough: the store of "
        "generation N failed (error, time) / was overtaken by a rebalance, and the group stayed `storing` "
        'and began no generation afterwards. Half: "the group is stuck in PreparingRebalance at this '
        'coordinator, no generation begins although all members have joined". Not enough: members get no '
        "partitions, records are not delivered, the drain does not finish.",
        (
            Edit(
                _GROUPS_REBALANCE,
                "        storing=False,\n",
                "",
            ),
            Edit(
                _GROUPS_REBALANCE,
                "    next_group = group._replace(generation=generation, storing=False)\n"
                "    if error is not ErrorCode.none:\n"
                "        failed = tuple(JoinAnswer(member.id, error) for member in group.members if member.joining)\n"
                "        members = tuple(member._replace(joining=False, last_contact_ms=now_ms) "
                "for member in group.members)\n"
                "        step = prepare(next_group._replace(members=members), now_ms, 0)\n"
                "        return step._replace(decisions=failed + step.decisions)\n",
                "    next_group = group._replace(generation=generation)\n"
                "    if error is not ErrorCode.none:\n"
                "        failed = tuple(JoinAnswer(member.id, error) for member in group.members if member.joining)\n"
                "        members = tuple(member._replace(joining=False, last_contact_ms=now_ms) "
                "for member in group.members)\n"
                "        step = prepare(next_group._replace(members=members), now_ms, 0)\n"
                "        return step._replace(decisions=failed + step.decisions)\n"
                "    next_group = next_group._replace(storing=False)\n",
            ),
        ),
        VARIED_GROUPS,
    ),
    Flaw(
        "consumer-commits-records-fetched-ahead",
        "`Consumer.next_offsets`, from which members commit, returns the fetch position in place of the end "
        "of what `poll` has returned. A fetch that completes in the background (of the other partition, "
        "while the application works or pauses) has moved the position already, while its records still "
        "wait for the next `poll`. A member that commits then, because a rebalance is on or its life ends, "
        "and does not poll any more, commits records that it never gave to the application; the next owner "
        "begins behind them: records are skipped (Kafka's rule: commit the position of what was returned, "
        "as in the old prefetch bugs of clients).",
        "the consumer (member named) committed an offset beyond the records that its poll had returned: "
        "those from X to Y had been fetched but not delivered, so the next owner skips them. The wrong step "
        "is the client's commit (not the coordinator's answer), and the fact is that what it committed had "
        'been fetched ahead only. Half: "the member committed Y, though it was given records up to X only" '
        "(ahead of what it was given) without that it had fetched them. Not enough: records were not "
        "delivered to any member, the next owner started at Y.",
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
        "unfenced-broker-leads-only-where-it-is-in-the-isr",
        "When a broker is unfenced, the controller looks for partitions without an active leader only among "
        "those that have the broker in the ISR. But a fenced broker is in no ISR: with an ELR even the last "
        "member leaves it (as was not so before KIP-966), and a replica that may lead again is in the ELR, "
        "or is the last known leader. So unfencing never elects anybody. A partition whose replicas were "
        "all fenced (ISR empty) stays without a leader although an eligible replica is back, until another "
        "change happens to touch the partition (a registration of one of its brokers, an administrator's "
        "election).",
        "the controller (named) elected no leader for the partition when it unfenced the broker (named), "
        "which was eligible: a member of the ELR (or the last known leader), the ISR being empty. Enough: "
        "broker b was unfenced at t, is in the ELR / last known leader of a partition without a leader, and "
        'the controller did not elect it. Half: "the partition has no leader although an eligible replica '
        '(ELR member) is active" without the unfencing that should have elected it. Not enough: partition '
        "unavailable, no recovery, appends fail, all brokers were down.",
        (
            Edit(
                _CONTROLLER_METADATA_CHANGE,
                "        self._change_partitions(lambda partition: not "
                'self.image.is_active(partition.leader), "elected")\n',
                "        self._change_partitions(\n"
                "            lambda partition: broker.id in partition.isr and not "
                'self.image.is_active(partition.leader), "elected"\n'
                "        )\n",
            ),
        ),
        VARIED_APPENDS,
    ),
    Flaw(
        "isr-change-is-given-up-at-an-inactive-controller",
        "NOT_CONTROLLER is no longer retried by the sender of AlterPartition requests. The proposal is "
        "handed to the partition as refused, for an error that proves nothing, so the leader keeps the "
        "proposal as its one change in flight (and the maximal ISR with it), but nobody sends it any more. "
        "As the controllers changed nothing, no newer metadata comes that would settle it. From then on the "
        "leader proposes nothing for this partition: a follower that caught up never joins the ISR, a "
        "follower that lags never leaves it and holds the high watermark for ever, so that acks=all times "
        "out; until something else changes the partition.",
        "the leader (named) stopped sending its AlterPartition (proposed ISR) after a controller that was "
        "not active answered NOT_CONTROLLER, and still regards the change as in flight, so it proposes no "
        'other one. Enough: the proposal was refused with NOT_CONTROLLER and never sent again. Half: "an '
        'ISR change of this leader is in flight for ever / was never settled" without the answer that ended '
        "it. Not enough: the ISR is incomplete, appends time out, the cluster does not recover, or the "
        "controller's fail-over alone.",
        (
            Edit(
                _REPLICATION_ALTER_PARTITION_MANAGER,
                "        ErrorCode.not_controller,\n        ErrorCode.stale_broker_epoch,\n",
                "        ErrorCode.stale_broker_epoch,\n",
            ),
            Edit(
                _REPLICATION_ALTER_PARTITION_MANAGER,
                '"""Errors that do not concern the change itself. A deposed',
                '"""Errors that do not concern the change itself. After any other, newer metadata '
                "settles it. A deposed",
            ),
        ),
        VARIED_APPENDS,
    ),
    Flaw(
        "coordinator-stops-at-its-high-watermark",
        "A new group coordinator (the new leader of a partition of `__consumer_offsets`) loads the log only "
        "up to the high watermark that it has at its election. A follower's high watermark lags behind its "
        "leader's by at least one fetch, so the last commits, which were acknowledged by the old "
        "coordinator, and group records lie between that high watermark and the leader epoch start offset. "
        "They are in the log and get committed, but not into the coordinator's memory: it answers "
        "OffsetFetch with older offsets (consumers read records again, committed offsets go back), and may "
        "give out a generation number a second time.",
        "the new coordinator (named) loaded `__consumer_offsets`-n only up to its high watermark at the "
        "election (X), below its log end / leader epoch start offset (Y), so it does not know the records "
        "in X…Y, among them the acknowledged commit (or generation). The fact that makes it wrong: these "
        'records were committed, its high watermark was stale. Half: "the new coordinator does not know the '
        'committed offset although the record is in its log". Not enough: the committed offset went back at '
        "the fail-over, a generation was used twice.",
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
        "name-of-a-new-segment-is-never-synced",
        "`LogSegments.create` is to note that the new file's name in the directory has yet to be synced, "
        "except if a file of that name was there before; but it looks only after the file has been created, "
        "so it always finds one. `Log.flush` then syncs the content of a rolled segment and never the "
        "directory. A power loss removes the whole file, with records that were flushed. The metadata log, "
        "whose every append is flushed and counted as on disk (a follower's fetch commits it), rolls every "
        "4096 bytes in these runs: a controller that loses power forgets committed metadata records that it "
        "had confirmed, unless a vote or a snapshot has synced the directory since. With two controllers at "
        "a time, or one and a lagging one, the cluster's metadata goes back. (ext4 bugs of this kind: "
        "LevelDB, etcd, KAFKA-3968.)",
        "the controller (named; or the broker's log) lost a whole segment, i.e. records that it had flushed "
        "/ confirmed as being on disk, in a power loss, since the name (directory entry) of the rolled "
        "segment was not synced. Enough: the log ended, after the power loss, at the base offset of the "
        "segment that it had rolled last, although the records behind it had been synced, so the new "
        'segment file was not durable. Half: "this controller lost metadata records in a power loss that it '
        'had acknowledged / counted as durable" without the segment. Not enough: committed metadata is '
        "missing, the metadata went back, a controller elected with a shorter log.",
        (
            Edit(
                _LOG_SEGMENTS,
                "        self._names_unsynced = True\n",
                "        # A file that is left from an earlier start has its name on the disk "
                "already.\n"
                "        self._names_unsynced |= not self._files.exists(segment.path)\n",
            ),
        ),
        VARIED_APPENDS,
    ),
)
