"""The protocol trace: the events of a node that concern the guarantees of the protocol.

One flat event type, so that a trace is one table. Fields that do not apply hold -1, an empty string or an empty
tuple. Offsets are exclusive where they are ends (LEO, HW). The receiver adds `time_ns` (its own clock, one clock for
the whole cluster in simulation) and `node`.

kind                      written by  meaning of the fields used
------------------------  ----------  -----------------------------------------------------------------------------
node_started              any         broker_epoch of the previous life if it ended cleanly
rule_read                 any         a safety rule is read for the first time in this life of the node; detail: rule
node_stalled              any         on machines only: its process has not run, or was at one and the same step, until
                                      now; detail: for_ms, if 150 or more: up to 100 ms longer than it was
answer_unheard            any         in simulation only: its process gives up a connection on which it has read the
                                      answer to each of its requests, as the network has seen; detail: peer
log_recovered             broker      offset=log start, log_end, high_watermark=checkpointed; detail: clean, cut_bytes,
                                      cut_reason=what was damaged of these,
                                      epochs=[[epoch, start], …] of its epoch cache, producers={id: last sequence},
                                      batches={id: [[base, end], …] of its batches that are known},
                                      producer_times={id: largest timestamp in its newest batch},
                                      producer_expiration_ms=age at which it forgets a producer;
                                      left_over, [base offset, end] of the segments deleted as being below the base in
                                      start_checkpoint=[log start, base offset], if there were any; bytes_behind=bytes
                                      that its file has behind the last batch, if any; last_segment=[base offset,
                                      largest timestamp] of its last segment, if known; synced_below=the offset below
                                      which it counts all as on disk, if above its end; indexed_above=the last offset
                                      at its end or above that its index has, if any; first_segment=[base offset, the
                                      one in the log-start checkpoint or -1] of the first segment, if not at 0;
                                      holes=[[end of a segment, base offset of the next one], …] where these differ;
                                      base, producers_before, as of log_start_written; unsynced=the records at its end
                                      that it does not know to be on disk, if flush.messages is set; synced_segments=
                                      names of those that it takes to be there; snapshots_above=
                                      [offset, …] above its end of which it has producer snapshots, if any
registered                broker      broker_epoch granted; detail: clean
clean_shutdown            broker      broker_epoch: its process is about to leave the mark of a clean shutdown for the
                                      next one; detail, if it was registered: handover=what became of its request to
                                      hand leaderships over: let_go, as a controller has answered in the end; timed_out;
                                      else asked, or unasked
became_leader             broker      leader_epoch, partition_epoch, offset=LESO, log_end, members=ISR; detail: epochs,
                                      producers, batches, producer_times, producer_expiration_ms, bytes_behind,
                                      synced_below, indexed_above, last_segment, as above;
                                      high_watermark with which it takes over, before it counts; positions {replica:
                                      LEO} that it keeps of an earlier leadership; min_isr=its min.insync.replicas
became_follower           broker      leader_epoch, partition_epoch, leader (-1 for none), log_end, high_watermark
log_closed                broker      a clean stop has closed the log: log_end, offset=below it every record is known to
                                      be on disk, broker_epoch of the life that ends; detail: synced=whether the last
                                      sync of it succeeded
resigned                  broker      its replica is no longer hosted here
stray_found               broker      at a start, before it is deleted: a log with records whose replica is not hosted
                                      here, or was of an earlier topic of that name; offset=base of its first segment
replica_deleted           broker      the log of a replica that is no longer hosted here has been deleted, a stray, too;
                                      a power loss from now on does not bring it back
appended                  broker      leader_epoch of the batch, partition_epoch in which it is appended, offset=base,
                                      log_end after; detail: producer_id, sequence, crc (of the batch's header; it
                                      covers neither offset nor leader epoch), timestamp=the largest of its records, in
                                      ms, producer_epoch, where it is above 0;
                                      fetched_in, the leader epoch in which a follower asked for it, where it is not in
                                      that one any more; synced, where it is on disk with all before it; closed_bytes=
                                      size of the segment before it, where it is the first one of a segment;
                                      cut_unsynced, where a cut of its segment, or of that one, is not known to be on
                                      disk then
truncated                 broker      offset=new LEO, log_end=LEO before, high_watermark before; detail: epochs,
                                      producers, batches, bytes_behind, synced_below, indexed_above, last_segment,
                                      snapshots_above, as they are then; log_start, if that changed; answer, the
                                      [epoch, end offset] of the leader that asked for it, if one did
producers_expired         broker      producers whose newest batch is too old are forgotten: log_end; detail: producers=
                                      {id: largest timestamp in its newest batch} of them, now_ms=time on the node's
                                      clock
log_start                 broker      offset=new log start, log_end, high_watermark; detail: before, reason
                                      (delete_records, retention_ms, retention_bytes, leader), kept_bytes=size of the
                                      segments that remain, after retention_bytes, now_ms=time on the node's clock,
                                      after retention_ms
log_start_written         broker      … offset=log start, log_end, when it is on disk; detail: epochs, producers,
                                      batches, bytes_behind, synced_below, indexed_above, last_segment, as above;
                                      base=offset of the first segment,
                                      producers_before={id: last sequence} of the batches before it, which its snapshot
                                      replaces
leader_log_start          follower    it has taken an answer by which its leader's log starts above where its own did:
                                      offset=that start, log_end, high_watermark that it has now; detail:
                                      leader_high_watermark in the answer
deletion_confirmed        leader      a DeleteRecords is answered: offset=low watermark; every log of the ISR, which has
                                      min.insync.replicas members, starts there or above
deletion_refused          leader      DeleteRecords below offset, -1 for all that is committed, is out of range:
                                      high_watermark
converged                 follower    leader, log_end: the log fits the leader's; detail: exchanges that took
high_watermark            leader      high_watermark after, offset=before, members=quorum that allowed it; detail:
                                      positions {replica: LEO the leader held for it, -1 for none}
follower_high_watermark   follower    high_watermark after, offset=before
isr_proposed              leader      members=proposed ISR, partition_epoch it was proposed from, offset=LESO, log_end,
                                      high_watermark at that moment; detail: reason, positions {replica that joins: LEO
                                      the leader held for it, -1 before its first fetch}, fetch_of=follower upon whose
                                      fetch it is proposed, -1 for none, epochs {member: broker epoch}, lag_ms {member
                                      that leaves: time since it was caught up}, lag_max_ms, unconfirmed=those that
                                      leave and have not confirmed the last read of the latest offset, if any
alter_partition_sent      leader      a proposal leaves for the controllers, each time: leader_epoch, partition_epoch,
                                      members of the proposal, broker_epoch
alter_partition_answered  leader      … comes back: fields as there; detail: error, none if granted, and the
                                      partition_epoch in the answer; lost without one, and sent=whether the request may
                                      have arrived; again_ms=pause before it is sent again, where that is due; certain=
                                      whether no request with it that is unanswered may still arrive
isr_counted               leader      what it counts is not as it was: members=ISR, partition_epoch, high_watermark with
                                      that; detail: proposed=ISR of the change in flight, if there is one, unresolved=
                                      [members that a change given up may still add], positions of all these as of
                                      high_watermark, and awaited={replica: LEO} of those that have caught up and are to
                                      join, for which it waits, if there are any
isr_committed             leader      members=ISR, partition_epoch
isr_rejected              leader      members=proposed ISR; detail: error, rolled_back
fetch_accepted            leader      offset=position of a follower, log_end; detail: replica, requested=leader epoch of
                                      the fetch, broker_epoch of its sender, last_epoch=of the record before; written
                                      for the first fetch of a follower in a leader epoch, for each one that gives
                                      another leader epoch or another broker epoch, and for the first one since the
                                      leader knows the follower in another broker epoch
diverging                 leader      leader_epoch, offset=end offset answered; detail: replica, epoch; fetched, the
                                      [last epoch, offset] of the fetch
fetch_answered            leader      an answer is sent to a follower, the first one on this connection since the last
                                      read of the latest offset began; detail: replica, connection
reads_confirmed           leader      a follower's fetch confirms reads of the latest offset; detail: replica,
                                      connection, read=the number of the last of these
fetch_session             leader      the partitions of a follower's fetch are others than in its last one; detail:
                                      replica, session, partitions by name; forgotten, those that it asks to leave out
log_start_told            leader      a follower's fetch is answered, for the first time since the log starts at offset;
                                      log_end; detail: replica, told=the start in the answer, -1 if it leaves the
                                      partition out
fetch_refused             broker      a fetch from offset is answered, of a partition that cannot be read, or whose log
                                      parts from that of the fetch; detail: replica, -1 of a consumer, refusal=the
                                      error, or diverging, told=the same as the answer has it, or nothing if it leaves
                                      the partition out
consumer_moved            leader      a consumer's fetch from offset is answered with records behind it, or as out of
                                      range; log_end, high_watermark; detail: first of these records, or -1,
                                      last_epoch=of the record before, as the consumer gives it
request_fenced            leader      leader_epoch held; detail: api, requested epoch, error; of a follower's fetch
                                      offset=position in it, log_end; detail: replica, broker_epoch, last_epoch
append_refused            leader      log_end; detail: producer_id, sequence of the batch, error, last=sequence that the
                                      producer state has, -1 for none; producer_epoch, where it is above 0
isr_too_small             leader      a batch with acks=all is refused: members=ISR that it compares with the minimum
answer_unasked            follower    an answer of the leader, to a fetch from offset, has partitions that the fetch had
                                      not; detail: unasked, by topic id; by=who answered
records_refused           follower    offset=base of the batch in the leader's answer, which does not follow log_end; -1
                                      for bytes that are no sound batch
acknowledged              leader      offset=base, log_end=last offset + 1, high_watermark; detail: acks; retry, the
                                      [producer id, sequence, crc] of a batch that was taken for a duplicate;
                                      producer_epoch of that, where it is above 0
append_unacknowledged     leader      as acknowledged, of a batch in the log that is answered with an error; detail:
                                      error
latest_asked              leader      a read of the latest offset begins, for a ListOffsets(latest) or for committed
                                      offsets; detail: read=its number in this leader epoch, requested=epoch in the
                                      request, -1 for none
latest_told               leader      high_watermark in the answer, members=the leader, and the followers that have
                                      fetched since the read began; detail: read
offset_told               leader      ListOffsets for anything else than the latest offset is answered without an error:
                                      offset in the answer, log_end, high_watermark; detail: asked=time in ms, or -2 for
                                      the earliest offset, -3 for the largest timestamp; requested; timestamp, epoch in
                                      the answer
epoch_end_told            leader      OffsetForLeaderEpoch is answered without an error: offset=end in the answer,
                                      log_end; detail: asked=leader epoch, requested, epoch in the answer
coordinator_loaded        leader      of __consumer_offsets, when it begins to serve its groups: offset=log start,
                                      log_end of what it loaded, high_watermark; detail:
                                      {group: {partition: committed offset}}
group_loaded              leader      … before that, of each group: log_end, high_watermark; detail: group, state, at_ms
                                      on its own clock, generation, leader, protocol, record {id: [instance id, session
                                      timeout in ms, rebalance timeout in ms, assignment]}
group_request             leader      … log_end, high_watermark, when it judges a request of a member; detail: group,
                                      api (join, sync, heartbeat, leave, commit, describe,
                                      delete), error that it is answered
                                      with at once, or waits, at_ms on its own clock, member, instance, said=generation
                                      that it gave; of a join as=member id that it has now, session_ms,
                                      rebalance_ms, protocols, subscriptions=the CRC-32C of what it says under each,
                                      told if answered at once; of a sync assigned
                                      {id: assignment}; of a describe state, told [[id, instance id]] of the members,
                                      assignments {id: its assignment in hexadecimal digits};
                                      open [[id, join or sync]] of the group's requests that are not answered
group_unserved            broker      a request for a group is answered by a broker that does not serve it, or not yet;
                                      topic and partition are those that the group falls to; detail: group, api (as
                                      above, or fetch), error
leave_answered            leader      … log_end, high_watermark, when LeaveGroup is answered; detail: group, asked
                                      [[id, instance id]] of its members, told [[id, instance id, error]]
groups_listed             leader      … log_end, high_watermark, when ListGroups is answered; detail: asked=states in
                                      small letters, or none for all, told {group: state} of this partition, error
generation_begun          leader      … log_end, high_watermark, when members get its number; detail: group, generation,
                                      members, told {id: [generation, leader, members] in the answer to its join} of
                                      those that have joined
group_changed             leader      … log_end, high_watermark, when it waits for something else; detail: group, state,
                                      generation, storing=a record that is not committed yet, members {id: the answer
                                      that it waits for}, held {partition: committed offset that it has}, at_ms
group_assigned            leader      … log_end, high_watermark, when the leader of a generation has assigned its
                                      partitions; detail: group, generation, leader=member, members {id: its assignment
                                      in hexadecimal digits}
assignment_told           leader      … log_end, high_watermark, when a member gets its assignment; detail: group,
                                      generation, members, as above
group_storing             leader      … offset=base, log_end of the record that begins a generation, or of that of its
                                      assignment, high_watermark, when it is appended; detail: group, generation,
                                      leader, protocol, record, as of group_loaded, error that keeps it from being
                                      appended, or none
group_stored              leader      … offset=base of such a record, log_end, high_watermark, when it is taken for
                                      committed, or given up; detail: group, generation, error
offsets_storing           leader      … offset=base, log_end of a batch, high_watermark, when it is appended; detail:
                                      changes [[group, partition, committed offset]] in the order of the records, no
                                      offset where it is deleted, no partition where the group is
offsets_committed         leader      … offset=base of the record, log_end, high_watermark, when the commit is answered;
                                      detail: group, member, generation it gave, current=of the group, offsets,
                                      held {partition: committed offset that it has with that}
commit_failed             leader      … as offsets_committed, when the record of a commit was not appended, or was not
                                      committed in time; detail: error
offsets_told              leader      … log_end, high_watermark; detail: group, offsets in the answer,
                                      confirmed=members as of latest_told, read
metadata_applied          broker      log_end of the metadata that takes effect now, offset=end before,
                                      leader_epoch of its last batch; detail: number of partitions in it, sums of their
                                      partition_epochs and leader_epochs, and of broker_epochs; active brokers
metadata_loaded           any         a broker has loaded a snapshot that ends at log_end, or a controller that takes
                                      charge has replayed what is committed; leader_epoch of its end; detail: partitions
                                      {name: fields as of partition_changed}, brokers {id: epoch, fenced,
                                      shutting_down}, topics {name: as of topic_configured}, next_producer_id
metadata_told             broker      Metadata about topics by name, or DescribeTopicPartitions as a whole, is answered,
                                      about at most 1,000 topics: log_end of the metadata in effect; detail: asked=names
                                      of topics, null for all;
                                      topics in the answer [[name, error, id, [{partition, error, leader, leader_epoch,
                                      replicas, isr, offline; elr, last_known_elr}]]]; brokers in that of Metadata
coordinators_told         broker      FindCoordinator is answered for groups: log_end as above; detail: groups {group:
                                      [broker, or -1, error]}
producer_id_assigned      broker      broker_epoch; detail: producer_id that a producer gets
quorum_recovered          controller  leader_epoch it is in, offset=log start, log_end; detail: voted, epochs of its
                                      log; snapshots=[end, …] of those that it has; left_over, start_checkpoint,
                                      bytes_behind, as of log_recovered; snapshots_damaged=[name, …] of those that it
                                      could not read and has deleted, if any
quorum_voted              controller  leader_epoch, broker=candidate; itself included; detail, of another one: candidate
                                      and own=[last epoch, log end]
quorum_vote_refused       controller  leader_epoch, leader it knows then, broker=candidate, refused though not for its
                                      epoch; detail: pre_vote, candidate and own=[last epoch, log end], voted=its vote
                                      in this epoch, role, leader_answered its fetches
quorum_prevote_granted    controller  the same of a pre-vote that is granted
quorum_candidate          controller  leader_epoch it stands in
quorum_leader             controller  leader_epoch it leads, offset=log end when it was elected; detail:
                                      fetch_timeout_ms
quorum_follower           controller  leader_epoch, leader; also at a start, of the leader that it had written down
quorum_resigned           controller  leader_epoch it led
quorum_unattached         controller  leader_epoch it is in, and knows no leader of; of what ends a leadership, detail:
                                      check_overdue_ms by which the leader had missed the time to look for its quorum,
                                      if by 200 ms or more
metadata_appended         controller  leader_epoch of the batch, offset=base, log_end after; detail: crc; segment, where
                                      it is the first batch of a file of its own
metadata_truncated        controller  the log is about to be cut: offset=new end, log_end before, high_watermark it
                                      knew; detail: answer, the [epoch, end offset] of its leader
metadata_snapshot         controller  a snapshot of all below log_end has been written, of leader_epoch; detail:
                                      log_start=where the log starts then; what stands in it, as of metadata_loaded;
                                      also of the leader's, before the log gives way to that
metadata_trimmed          controller  offset=new start: the snapshot before the latest replaces the records below it
metadata_restored         controller  offset=start and end: the leader's snapshot, of leader_epoch, in place of the log
voter_positions           controller  as leader of leader_epoch, when it knows of another position: log_end; detail:
                                      positions, as of metadata_committed
metadata_committed        controller  as leader of leader_epoch: high_watermark after, offset=before, log_end; detail:
                                      positions {voter: log end the leader held for it, -1 for none}
broker_registered         controller  broker=id, broker_epoch; detail: clean, incarnation, previous=broker epoch that it
                                      presents, known=that of its last registration; silent_ms, session_timeout_ms of
                                      the session that it ends
broker_fenced             controller  broker=id, broker_epoch; detail: reason; after a session: silent_ms, since the
                                      last contact, session_timeout_ms
broker_unfenced           controller  broker=id, broker_epoch; detail: metadata_offset that its heartbeat gave, and
                                      heartbeat_epoch, the broker epoch that this gave
broker_stays_fenced       controller  a heartbeat does not unfence its broker; detail: metadata_offset, shutting_down,
                                      heartbeat_epoch
session_begun             controller  a heartbeat is the first of its life, or of a session; detail: heartbeat_epoch
session_outlived          controller  a heartbeat comes of an unfenced broker whose session is over; detail: silent_ms,
                                      left out where no contact is known; session_timeout_ms
broker_shutting_down      controller  broker=id, broker_epoch: it may not lead, nor join an ISR; detail: heartbeat_epoch
registration_refused      controller  broker=id, broker_epoch registered; detail: incarnation, contact_ms=time of the
                                      last contact with the registered one, on the controller's clock;
                                      session_timeout_ms, over=whether that long ago, ahead=whether later than now
clean_claim_refused       controller  broker=id, broker_epoch registered; detail: incarnation, previous=broker epoch of
                                      the clean shutdown that it claims
heartbeat_refused         controller  broker=id, broker_epoch that it gave; detail: known
partition_changed         controller  leader, leader_epoch, partition_epoch, members=ISR; detail: elr, last_known_elr,
                                      replicas, min_isr, reason (created, elected, alter_partition, fenced,
                                      last_known_leader, …; snapshot: the state in one), unclean;
                                      of an unclean recovery told {replica: [last leader epoch, LEO]}, told_in
                                      {replica: [broker epoch, leader epoch of the partition] in which it told so}
partition_deleted         controller  its topic has been deleted
topic_configured          controller  a topic is created, or configured anew; detail: name, id, config {key: value}
producer_ids_allocated    controller  broker, broker_epoch; detail: first, count: the block of producer ids it gets
alter_partition_refused   controller  broker=sender, broker_epoch that it gave, members=proposed ISR, leader_epoch,
                                      partition_epoch of the proposal; detail: error, known=[leader, leader epoch,
                                      partition epoch] of the controller, registered=broker epoch in which it has the
                                      sender, -1 for none, epochs {member: broker epoch}

A simulated disk bears witness: where an event says that something is on the disk (batches, as appended and log_closed
say with synced, and log_recovered of synced_segments; a log start, the deletion of a replica, a snapshot, a vote, the
leader of an epoch, and every metadata record), the receiver adds at_risk=[path, …] of the files for which that is not
so.

The offset of a broker_, producer_ids_, topic_ or partition_ event is where the metadata log ended with the change. A
controller that takes over traces the changes that it finds committed, too (detail: taken_over); the receiver leaves out
duplicates. Allocated producer ids are not traced again: only the controller that allocates them answers the broker.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

NODE_KINDS: Final = (
    "node_started", "rule_read", "node_stalled", "answer_unheard", "metadata_loaded",
)  # fmt: skip
"""Kinds of events that any node writes."""
BROKER_KINDS: Final = (
    "log_recovered", "registered", "clean_shutdown", "became_leader", "became_follower", "log_closed", "resigned",
    "stray_found", "replica_deleted", "appended", "truncated", "log_start", "log_start_written", "leader_log_start",
    "deletion_confirmed", "converged", "high_watermark", "follower_high_watermark", "isr_proposed",
    "alter_partition_sent", "alter_partition_answered", "isr_counted", "isr_committed", "isr_rejected",
    "fetch_accepted", "diverging", "fetch_answered", "reads_confirmed", "fetch_session", "consumer_moved",
    "request_fenced", "append_refused", "isr_too_small", "answer_unasked", "records_refused", "acknowledged",
    "append_unacknowledged", "latest_asked", "latest_told", "offset_told", "epoch_end_told", "metadata_applied",
    "metadata_told", "coordinators_told", "producer_id_assigned", "fetch_refused", "log_start_told",
    "deletion_refused", "producers_expired",
)  # fmt: skip
"""Those that brokers write, but for the coordinators of groups."""
GROUP_KINDS: Final = (
    "coordinator_loaded", "group_loaded", "group_request", "group_unserved", "leave_answered", "groups_listed",
    "generation_begun", "group_changed", "group_assigned", "assignment_told", "group_storing", "group_stored",
    "offsets_storing", "offsets_committed", "commit_failed", "offsets_told",
)  # fmt: skip
"""Those that coordinators of groups write."""
CONTROLLER_KINDS: Final = (
    "quorum_recovered", "quorum_voted", "quorum_vote_refused", "quorum_prevote_granted", "quorum_candidate",
    "quorum_leader", "quorum_follower", "quorum_resigned", "quorum_unattached", "metadata_appended",
    "metadata_truncated", "metadata_snapshot", "metadata_trimmed", "metadata_restored", "voter_positions",
    "metadata_committed", "broker_registered", "broker_fenced", "broker_unfenced", "broker_stays_fenced",
    "session_begun", "session_outlived", "broker_shutting_down", "registration_refused", "clean_claim_refused",
    "heartbeat_refused", "partition_changed", "partition_deleted", "topic_configured", "producer_ids_allocated",
    "alter_partition_refused",
)  # fmt: skip
"""Those that controllers write."""
KINDS: Final = frozenset((*NODE_KINDS, *BROKER_KINDS, *GROUP_KINDS, *CONTROLLER_KINDS))
"""Every kind of event, as in the table above."""


class TraceEvent(NamedTuple):
    """One event; the table above has the fields of each `kind`."""

    kind: str
    topic: str = ""
    partition: int = -1
    leader: int = -1
    leader_epoch: int = -1
    partition_epoch: int = -1
    broker: int = -1
    broker_epoch: int = -1
    offset: int = -1
    log_end: int = -1
    high_watermark: int = -1
    members: tuple[int, ...] = ()
    detail: Mapping[str, object] = MappingProxyType({})
    """Further facts, JSON values only."""
    topic_id: str = ""
    """The id of the topic, by which the receiver tells a topic from a deleted one of its name."""
