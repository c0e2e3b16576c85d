"""The tenth set of flaws that are no switches: ten, with the workload whose runs can show each."""

from __future__ import annotations

from typing import Final

from tests.results.explanation.flaw import VARIED_APPENDS, VARIED_GROUPS, Edit, Flaw

_CONTROLLER_CONTROLLER: Final = "images/broker/controller/controller.py"
_GROUPS_REBALANCE: Final = "images/broker/groups/rebalance.py"
_GROUPS_SHARD: Final = "images/broker/groups/shard.py"
_LOG_LEADER_EPOCHS: Final = "images/broker/log/leader_epochs.py"
_RAFT_FETCH: Final = "images/broker/raft/fetch.py"
_REPLICATION_LEADER: Final = "images/broker/replication/leader.py"
_REPLICATION_REPLICA: Final = "images/broker/replication/replica.py"
_REPLICATION_REPLICA_MANAGER: Final = "images/broker/replication/replica_manager.py"
_WORKLOADS_CLIENTS_CONSUMER: Final = "workloads/clients/consumer.py"

TENTH: Final = (
    Flaw(
        "proposed-shrink-counts-at-once",
        "While an ISR change is in flight the quorum for the high watermark is the maximal ISR: the "
        "committed ISR plus the proposed members; a shrink counts only when the controller has committed "
        "it. The patched `maximal_isr` takes the proposed ISR in place of the committed one. For an "
        "expansion that makes no difference, for a shrink the leader leaves the lagging members out as soon "
        "as it has sent AlterPartition. A leader that is cut off from the controller (or was paused, and "
        "finds all followers lagging when it wakes up) then commits and acknowledges alone, or with few, "
        "what the members of the ISR that the controller knows do not have; one of these is elected, and "
        "acknowledged records are lost. Reads of the latest offset are confirmed by too few members, too.",
        "The leader bL moved its high watermark (committed / acknowledged) with the quorum of the ISR that "
        "it had only proposed, i.e. without member bX that it wanted to remove, before the controller had "
        "committed the shrink (bX was still in the committed ISR / the controller never committed it). "
        "Needed: which leader, that bX was left out of the quorum, and that the shrink was only proposed "
        '(in flight, refused, never committed). Half: "the leader moved its watermark without ISR member '
        'bX", with bX in the committed ISR, but nothing about the pending shrink. Not enough: "record '
        'lost", "bX was elected without a committed record", "leader acknowledged while isolated" without '
        "the quorum; or the opposite story (a member proposed for joining was left out).",
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
        "refused-registration-renews-session",
        "A new incarnation of a broker is refused (DUPLICATE_BROKER_REGISTRATION) while the session of its "
        "previous incarnation lasts, and succeeds once that has ended without heartbeats. The patched "
        "`register` renews the session before it decides, so each refused attempt of the new incarnation "
        "prolongs the session of the dead one. The attempts come faster than the session timeout, so the "
        "session never ends: the dead incarnation is never fenced, stays leader and in the ISR in the "
        "metadata, the new one never gets in. The partitions that it led are unavailable for good, for "
        "others the high watermark stands still until the leader removes it; the broker is out until it is "
        "down for longer than a session.",
        "The controller took the (refused) registration attempts of the new incarnation of broker bX for "
        "contact with the earlier incarnation, i.e. renewed the session of the dead incarnation with each "
        "attempt, so that it never expired and bX was neither fenced nor registered. Needed: the broker, "
        "that its registration is refused over and over because the session of its earlier incarnation "
        "lasts, and that this session is kept alive by the attempts themselves although that incarnation is "
        "dead / sent no heartbeat for longer than the session timeout. Half: \"the controller refuses bX's "
        "registration although the earlier incarnation has been silent for longer than the session timeout "
        '/ never fences it", without what renews the session. Not enough: "bX does not register / is not '
        'unfenced", "partition P has no working leader", "registration refused" without the session being '
        "over by its heartbeats.",
        (
            Edit(
                _CONTROLLER_CONTROLLER,
                "        if known is not None and alive and "
                "self.rules.registration_waits_for_fencing:\n"
                "            change.refuse_registration(request, known, "
                "**self._session(request.id, now_ms))\n"
                "            return self._result(change, "
                "RegistrationAnswer(ErrorCode.duplicate_broker_registration))\n"
                "        clean = known is None or request.previous_epoch == known.epoch\n"
                "        if known is not None and not clean and request.previous_epoch >= 0:\n"
                "            change.refuse_clean_claim(request, known)\n"
                "            return self._result(change, "
                "RegistrationAnswer(ErrorCode.stale_broker_epoch)).confirmed()\n"
                "        change.register(request, known, clean, **self._session(request.id, now_ms))\n"
                "        change.end_session(request.id)  # the first heartbeat begins the next one\n",
                "        change.renew_session(request.id, now_ms)\n"
                "        if known is not None and alive and "
                "self.rules.registration_waits_for_fencing:\n"
                "            change.refuse_registration(request, known, "
                "**self._session(request.id, now_ms))\n"
                "            return self._result(change, "
                "RegistrationAnswer(ErrorCode.duplicate_broker_registration))\n"
                "        clean = known is None or request.previous_epoch == known.epoch\n"
                "        if known is not None and not clean and request.previous_epoch >= 0:\n"
                "            change.refuse_clean_claim(request, known)\n"
                "            return self._result(change, "
                "RegistrationAnswer(ErrorCode.stale_broker_epoch)).confirmed()\n"
                "        change.register(request, known, clean, **self._session(request.id, now_ms))\n",
            ),
        ),
        VARIED_APPENDS,
    ),
    Flaw(
        "duplicate-acknowledged-one-offset-early",
        "A retry of a batch that the leader has appended already is a duplicate: it is answered with the "
        "offsets of the first copy, but only once the high watermark has passed it. The patched code puts "
        "the last offset of the batch (inclusive) where the end (exclusive) belongs. So the wait ends when "
        "the watermark has reached the last record's offset instead of the one behind it: for a batch of "
        "one record, when everything before it is committed. The first uncommitted batch of a partition, "
        "exactly the one at which a stalled watermark stands, is acknowledged as soon as it is retried, "
        "although no follower need have it. If the leader is then replaced, the acknowledged record is "
        "truncated: lost.",
        "The leader answered a retry (duplicate, known sequence numbers) of a batch with success while its "
        "high watermark had not passed the batch (it stood at / below its last offset N, N+1 was needed). "
        "Needed: the leader that answered, that it was the retry / duplicate that was acknowledged, and "
        "that the record at N was not committed then (HW = N). The off-by-one need not be spelled out if "
        'the offsets are given. Half: "the leader acknowledged offset N although its watermark was N" '
        'without saying that it was a duplicate. Not enough: only "acknowledged record lost/truncated", or '
        'a general "acknowledged before replicated" without node and offset; blaming the follower that '
        "truncated it.",
        (
            Edit(
                _REPLICATION_REPLICA,
                "                end = verdict.last_offset + 1\n"
                "                epoch = self.state.leader_epoch\n"
                "                return AppendResult(NO_ERROR, verdict.base_offset, end, "
                "epoch, self.log.start, header)\n",
                "                base, end, epoch = verdict.base_offset, verdict.last_offset, "
                "self.state.leader_epoch\n"
                "                return AppendResult(NO_ERROR, base, end, epoch, "
                "self.log.start, header)\n",
            ),
        ),
        VARIED_APPENDS,
    ),
    Flaw(
        "failed-generation-record-leaves-group-storing",
        "When all members have joined, the coordinator appends a record that the next generation begins, "
        "and notes `storing` until that is committed or has failed. Upon a failure all members must join "
        "again and the group starts a new attempt. The patched error path answers the members with the "
        "error and forgets to reset `storing`: the group stays in PreparingRebalance, waiting for a record "
        "of which nothing more will be heard. Every later JoinGroup waits, no deadline ends it (deadlines "
        "do not run while a record is stored), so no member gets partitions again until another broker "
        "becomes coordinator: the group is unavailable for good after all faults are over.",
        "The coordinator bX failed to store the record of generation G (NOT_ENOUGH_REPLICAS / "
        'COORDINATOR_NOT_AVAILABLE / timeout) and left the group in the state "storing" '
        "(PreparingRebalance, waits for the record that has failed already), so that it never starts "
        "another attempt and joins wait for ever. Needed: the coordinator, the failed generation record, "
        "and that the group goes on waiting for it (storing not reset / no new attempt after the failure). "
        'Half: "the group stays in PreparingRebalance at coordinator bX since time t, all members have '
        'joined", or the failed record alone. Not enough: "the group has no generation / members get no '
        'partitions / records are not delivered at the end", "JoinGroup times out".',
        (
            Edit(
                _GROUPS_REBALANCE,
                "    next_group = group._replace(generation=generation, storing=False)\n"
                "    if error is not ErrorCode.none:\n"
                "        failed = tuple(JoinAnswer(member.id, error) for member in group.members if member.joining)\n"
                "        members = tuple(member._replace(joining=False, last_contact_ms=now_ms) "
                "for member in group.members)\n"
                "        step = prepare(next_group._replace(members=members), now_ms, 0)\n"
                "        return step._replace(decisions=failed + step.decisions)\n",
                "    if error is not ErrorCode.none:\n"
                "        failed = tuple(JoinAnswer(member.id, error) for member in group.members if member.joining)\n"
                "        members = tuple(member._replace(joining=False, last_contact_ms=now_ms) "
                "for member in group.members)\n"
                "        return GroupStep(group._replace(generation=generation, "
                "members=members), failed)\n"
                "    next_group = group._replace(generation=generation, storing=False)\n",
            ),
        ),
        VARIED_GROUPS,
    ),
    Flaw(
        "unfetched-member-does-not-hold-watermark",
        "A leader computes its high watermark (`advance_high_watermark`) as the lowest log end offset of "
        "the (maximal) ISR. A member that has not fetched yet in this leadership has an unknown position "
        "and must hold the watermark where it is. The patched code leaves such a member out of the minimum "
        "(`continue` instead of `return`). Right after an election all followers are unknown, so the new "
        "leader's watermark jumps to its own log end, and acks=all appends are acknowledged, and read by "
        "consumers, without any follower having them, until each ISR member has fetched for the first time. "
        "If the leader fails in that window, or is deposed, or the silent member (paused, cut off, backing "
        "off) is elected from the ISR, acknowledged records are lost.",
        "The leader (which one, in which leader epoch) moved its high watermark up to / past offset N "
        "although the ISR member bX had not fetched from it in this leader epoch, so that its position was "
        "unknown (or: it counted only itself / only those that had fetched; the unfetched member was "
        "ignored instead of holding the watermark). Needed: the node, the step (advance of the high "
        "watermark, shortly after it became leader) and the fact that a member of the ISR had not fetched "
        "in this leadership. Naming only \"the leader moved its watermark to N while ISR member bX's log "
        'ended below N" without saying that bX had not fetched yet / its position was unknown is half. Only '
        '"acknowledged record lost", "an ISR member lacks a committed record", "HW above a replica\'s log '
        "end\" without the leader's step is not enough. Saying that the ISR was wrong, or that a proposed "
        "member was forgotten, is wrong.",
        (
            Edit(
                _REPLICATION_LEADER,
                "    ISR is large enough. It never falls within a leadership, and does not advance before every "
                'member has fetched."""\n',
                '    ISR is large enough. It never falls within a leadership."""\n',
            ),
            Edit(
                _REPLICATION_LEADER,
                "            return PartitionStep(partition)\n",
                "            continue\n",
            ),
        ),
        VARIED_APPENDS,
    ),
    Flaw(
        "next-offsets-include-undelivered-records",
        "A consumer fetches ahead: the answer to a fetch moves its position, while `poll` hands the records "
        "to the application later. What may be committed is the end of what `poll` has returned "
        "(`delivered`). The patched `next_offsets` returns the position, which includes records that were "
        "fetched and lie in the client's buffer. A member that commits before a rebalance, when it leaves "
        "or after a stall, commits offsets past records that it never processed; they are thrown away with "
        "the consumer, and the next owner starts behind them: the group skips acknowledged records.",
        "The member (consumer client, process p) committed offset N for partition P although it had been "
        "given (its poll had returned) only the records below M < N: it committed its fetch position, with "
        "records fetched but not delivered, so nobody in the group reads M … N-1. Needed: the client as the "
        'culprit, that the commit is beyond what it had delivered/read, and the gap. Half: "the commit of N '
        'by member p makes the group skip M … N-1", without that this member had itself not delivered them. '
        'Not enough: "record at M was never delivered to any member", "the next owner started at N"; '
        "blaming the coordinator, the log or a lost commit is wrong.",
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
        "brokers-fetch-metadata-above-watermark",
        "Brokers follow the metadata log as observers and may read committed records only, up to the "
        "quorum's high watermark; only voters read up to the log end. The patched handler gives every "
        "fetcher everything up to the log end, as long as this controller leads. Brokers act upon changes "
        "(elections, fencing, ISR, registrations) that a majority does not hold. When the active controller "
        "is cut off from the other voters, or is deposed before the record is replicated, the records are "
        "overwritten by its successor: the broker has applied a change that was never made, and, since it "
        "reads on from its own offset, misses the one made in its place: a leader that nobody elected, two "
        "leaders in one leader epoch, a broker whose metadata differs for good.",
        "Controller cX (active, in controller epoch E) handed broker bY the metadata records at offset N, "
        "above the quorum's high watermark, i.e. before they were committed (held by a majority), and bY "
        "applied them. Needed: an uncommitted metadata record reached and was applied by a broker, with the "
        'controller or the broker and the offset / the change named. "b2 applied the metadata up to offset '
        'N when only offset M was committed" is full. Half: "b2 acted upon a change (leader of epoch 6) '
        'that the controllers never committed / that was overwritten", without saying that it was read '
        'uncommitted; or "b2\'s metadata at offset N differs from the committed log". Not enough: "two '
        'leaders in an epoch", "records lost", "b2 stays behind". Saying that the controller committed '
        "without a majority is wrong, as the commit rule is kept.",
        (
            Edit(
                _RAFT_FETCH,
                "        before = node.log.end if replica in node.state.progress else node.state.high_watermark\n",
                "        before = node.log.end if node.state.role is RaftRole.LEADER else node.state.high_watermark\n",
            ),
        ),
        VARIED_APPENDS,
    ),
    Flaw(
        "coordinator-loads-up-to-stale-watermark",
        "A new group coordinator loads its partition of `__consumer_offsets` up to its leader epoch start "
        "offset (its log end), then waits until the high watermark has reached that. The patched `load` "
        "reads only up to the high watermark that the broker knows when it becomes leader. That is what it "
        "learnt as a follower, older than the log by up to a fetch (half a second), or from a checkpoint "
        "after a restart. Records between it and the log end are never loaded, though they may have been "
        "acknowledged: committed offsets go back to older ones or to none (members read again, or an offset "
        "that was confirmed is lost), and the latest generation is forgotten, whose number is then given to "
        "other members again.",
        "The new coordinator bX (leader of __consumer_offsets-P in epoch E) loaded the log only up to "
        "offset H, its high watermark at its election, although its log (leader epoch start offset) ended "
        "at L > H, so that the record at N (H ≤ N < L: the commit / the group's generation) was not loaded "
        "although it was committed. Needed: the coordinator, the loading, and that the loaded part ended "
        'before the record, which was in its own log. "Its watermark was stale" makes it precise, but '
        '"loaded up to H, its log ended at L, the commit is at N between" is full. Half: "the new '
        'coordinator answered with / holds offset A though commit B, acknowledged before, is in its log", '
        'without that it had not been loaded. Not enough: "the committed offset went back after a change of '
        'coordinator"; "the commit was lost" as if replication had lost it.',
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
        "running-fetcher-not-given-new-partitions",
        "A broker has one fetcher per leader. When metadata changes, `_update_fetchers` must hand every "
        "fetcher the replicas that follow its leader now. The patched code does so only for a fetcher that "
        "it has just created. A fetcher that is running already keeps its old set: a partition whose "
        "leadership moves to a broker from which this broker fetches something else already is never "
        "fetched. This replica stands still, holds up the high watermark (appends time out) until it is "
        "removed from the ISR, and never returns: the partition stays under-replicated, and acks=all is "
        "refused for good when fewer than min.insync.replicas are left. The replicas differ for good.",
        "The follower bF does not fetch partition P from its leader bL although it follows it (has become "
        "follower in epoch E), because the fetcher for bL that was running before (for other partitions) "
        "was not given P: its fetches to bL contain the other partitions only. Needed: the node bF, the "
        "partition, that bF sends no fetch of P to bL at all since the leadership went to bL, while it "
        "fetches others from bL. (Knowing that the fetcher existed before, or that its set of partitions / "
        'fetch session lacks P, makes it full.) Half: "bF never fetched P from bL in epoch E", nothing '
        'about the fetcher\'s other partitions. Not enough: "bF is out of sync / out of the ISR", "the '
        'partition is under-replicated / unavailable", "bF\'s log ends at N"; blaming the ISR change, the '
        "leader's fencing or the network.",
        (
            Edit(
                _REPLICATION_REPLICA_MANAGER,
                "            self._fetchers[leader].follow(replicas)\n",
                "                self._fetchers[leader].follow(replicas)\n",
            ),
        ),
        VARIED_APPENDS,
    ),
    Flaw(
        "cut-keeps-epoch-that-starts-there",
        "The leader epoch cache must drop, when a log is cut to offset x, every entry that starts at x or "
        "above. The patched `truncate_end` (bisect_right for bisect_left) keeps an entry that starts "
        "exactly at x, an epoch of which no record is left. A deposed leader that discards its whole epoch, "
        "or that never had a replicated record in it, is left with that epoch as its latest one and sends "
        "it as the last fetched epoch. Its leader does not know the epoch, answers with the point of "
        "divergence, the follower cuts to the same offset, keeps the entry, and so for ever. Also a clean "
        "restart keeps the empty epoch of a former leader. The replica never replicates again: under- "
        "replicated for good, unavailable when others fail; its epoch lookups claim an epoch that its log "
        "does not have.",
        "The replica bF truncated its log to offset x (upon a divergence, or at reopening) and kept in its "
        "leader epoch cache the epoch E that starts at x although no record of E is left, so that it goes "
        "on to fetch with last fetched epoch E, which the leader lacks, and is answered with the same "
        "divergence again and again. Needed: the node, the truncation to x, and that the epoch that starts "
        "exactly there stayed in the cache (or: still sends last fetched epoch E after the truncation that "
        "removed all of E). Half: \"bF's fetch diverges again and again at (epoch, offset), its log and its "
        'epochs contradict each other", without saying that the truncation left the epoch. Not enough: "bF '
        "does not catch up / is out of the ISR / diverges\"; blaming the leader's answer.",
        (
            Edit(
                _LOG_LEADER_EPOCHS,
                '        """The cache once the log is cut to `offset`: no entry starts there or '
                'above, wherever the log ended."""\n'
                "        keep = bisect_left(self.entries, offset, key=_start)\n",
                '        """The cache once the log is cut to `offset`: no entry starts above '
                'it, wherever the log ended."""\n'
                "        keep = bisect_right(self.entries, offset, key=_start)\n",
            ),
        ),
        VARIED_APPENDS,
    ),
)
