"""The promises of the replication protocol, checked against the trace (white box), also where a run was only lucky.

The trace is replayed event by event (`checkers.protocol.trace_replay`), which gives at each moment the log of every
replica as leader epochs by offset, the *committed* records (all that were ever below a leader's high watermark), the
last decision of the controllers, and the nodes that restarted since they last registered. A record is identified by its
offset and leader epoch, which Log Matching (`checkers.logs`) permits. Then, for every partition:

two-leaders-one-epoch     no two nodes lead, or are elected, in one leader epoch
leader-incomplete         a new leader holds everything committed in an earlier leader epoch (Leader
                          Completeness)
candidate-incomplete      after every ISR change, election, registration and recovery each member of ISR ∪ ELR holds
                          everything committed (Leader Candidate Completeness)
unclean-election          no replica outside ISR and ELR is elected, unless the topic allows it: any replica by unclean
                          election or proactive recovery, a member of the LastKnownELR by balanced recovery, the only
                          one as last known leader when ISR and ELR are empty; or any upon an administrator's request,
                          where nobody leads
unclean-not-excluded      a broker that registers after an unclean shutdown is in no ISR and no ELR until it has
                          joined an ISR again, or was elected by an unclean recovery (Unclean Exclusion)
fenced-broker-elected     no broker is elected that the controllers have fenced, or registered and not unfenced yet
fenced-broker-joined-isr  no such broker is let into the ISR
quorum-too-small          the high watermark moves only with a quorum of min.insync.replicas (MinISR recovery quorum)
quorum-not-superset       the quorum that moves it holds the controller's ISR ∪ ELR while that ISR is large enough, for
                          the current leader (Replication Quorum Superset)
quorum-not-maximal-isr    … and is the leader's maximal ISR: the ISR as decided in the partition epoch that it knows,
                          and whom it has proposed for it then
replica-counted-wrongly   every member of that quorum holds the records that the high watermark passes
committed-overwritten     the record committed at an offset never changes
high-watermark-fell       the high watermark never falls within a leadership
high-watermark-behind     … and is no lower than what all have whom the leader counts, once it counts others
latest-below-start        a leader answers with the latest offset only once its high watermark has reached its epoch's
                          start (Applied-HW)
none-told-early           … and so it tells that it has no record for a time
latest-unconfirmed        a leader answers with the latest offset once every member of the ISR, as it knows and has
                          proposed it, has fetched since the read began, as the leader tells of each; none that had
                          left for a later leader epoch by then has
offsets-unconfirmed       a coordinator answers with committed offsets once these have
read-answers-twice        … by a read that the request itself has begun
read-below-minimum        … and neither does with fewer than min.insync.replicas in the ISR that it knows
read-confirmed-early      a fetch confirms the reads that had begun when the answer before it was sent, on its
                          connection and in its leader epoch
offset-misstated          a leader answers from its own log: with its start for the earliest offset, for a time with
                          the first record that is not older, for the largest timestamp with the first record that has
                          it, below its high watermark, and with the leader epoch and the timestamp of that
divergence-untold         a consumer beyond its log, which says of which leader epoch it has read last, is told where
                          both logs part
deletion-unconfirmed      a leader answers DeleteRecords once the log of every member of the ISR starts there, and of
                          every replica on a broker that it knows as active; there is where it moved its own for that
deletion-below-minimum    … and with min.insync.replicas in the ISR that it knows
deletion-refused-wrongly  … and takes no offset up to its high watermark for one that is out of range
deletion-undone           … so that who leads later, unless by an unclean election, has none of these records
coordinator-serves-uncommitted  a coordinator serves its groups once all that it has loaded is below its high watermark
coordinator-incomplete    a coordinator has loaded its log as far as its leader epoch's start
coordinator-not-loaded    … and has loaded it when it has been at work for 3 s since all of that is committed
generation-told-early     members get the number of a generation once the record that begins it is committed, and if it
                          gives the instance of none of them to another member
assignment-never-made     a member gets its partitions in a generation once the leader of that has assigned them
assignment-told-early     a member gets its partitions once a record in which it has them is committed
commit-not-fenced         a coordinator takes commits of the group's current generation only, and of that none between
                          its JoinGroups and its assignment
group-loaded-otherwise    a coordinator has of each group that it loads what its last record in the log says: members
                          with instance ids and timeouts, generation, leader, protocol, assignments; one without a
                          leader waits for joins
record-of-another-member  … and that record has of each member what it said when it joined last, a protocol that all
                          members support, and one of them as leader
offsets-held-otherwise    the committed offsets that a coordinator has loaded, and that it has with its answers, are
                          those of the records below its high watermark, the last one of each partition, without those
                          of topics whose deletion it has read of
tombstone-missing         … and those are deleted from its log before it has one of the next topic of the name
offset-deleted-unasked    … and no others are, but with their group
deletion-told-early       … and are told as deleted once their tombstones are below its high watermark
generation-unrecorded     a group that waits until its next generation is stored has appended the record of that
empty-group-unrecorded    that a group has no members any more is in its log
member-id-repeated        a new member gets an id that nobody had before
request-misjudged         JoinGroup, SyncGroup, Heartbeat, LeaveGroup, OffsetCommit and DeleteGroups get the answer that
                          the state of the group has for their sender: its member id, instance id and generation; the
                          leader of a stable group that joins again, and a member with another subscription, wait for
                          another generation
wrong-coordinator         … a broker that does not lead their partition tells their sender to look for another one, and
                          one that leads it and has not loaded it yet, to wait
group-described-otherwise DescribeGroups tells the state of the group, its members, and what these were given
groups-listed-otherwise   ListGroups tells the groups in the states that it asks for, and no others, and that there may
                          be more while the broker loads some
leave-answered-otherwise  LeaveGroup is answered for each of its members as that was judged
left-member-kept          … and who has left is no member any more
answer-missing            a JoinGroup or a SyncGroup is answered once the group does not let its sender wait for that
member-removed            a member goes when it has left, when another one of its instance takes its place, at the end
                          of its session, or when a rebalance has waited for it for the longest rebalance timeout and
                          it is not static
rebalance-overdue         … and once one has joined, the group waits for the others no longer than that
member-kept               … and stays no longer than its session timeout after the last contact
group-time-otherwise      … by a clock that runs as time does, unless a fault changed the timers of its node
generation-without-join   a generation begins with members that have all joined since its rebalance began, or are static
                          and were waited for in vain
generation-repeated       … with a number above that of all that have begun, or may have: whose record was appended
joins-answered-otherwise  … and their answers agree in its number and its leader, one of them, which is told all members
assignment-told-otherwise a member gets what the leader of its generation has assigned to it, or to the one of its
                          instance that was in its place
log-start-uncommitted     no log's start moves above what was ever below a leader's high watermark
log-start-unasked         no leader moves a log's start by its own decision further than deletion was requested until
                          then, unless the topic has the retention that it names (`checkers.deletions`)
retention-early           no record goes by retention.ms before it is so old, by when its append was invoked, and by as
                          much as faults can have set the clock of its node ahead
retention-unfounded       … nor before the largest timestamp of its batch is so old on the node's own clock
retention-below-size      what retention.bytes leaves of a log has that size at least
retention-overdue         a leader deletes a whole segment below its high watermark once it is too old by the append of
                          its last record, or the segments behind it have retention.bytes: at the latest when it has
                          been at work for two intervals of its checks and 3 s more, by timers that run right, and by
                          as much as its clock can be behind
producer-expired-early    no broker forgets a producer before its newest batch is so old, by its largest timestamp on
                          the node's own clock, which is right but for what faults can have done to it
producer-expiration-overdue  … and all that are so old when it looks for them; so none is kept for long: at the latest
                          when the broker has been at work for two intervals of its checks and 3 s more, by timers that
                          run right, and by as much as its clock, and that of the producer, can be behind
log-start-unfounded       a log that is replaced, recovered or follows starts no higher than some leader had decided
acknowledged-uncommitted  an acks=all append is acknowledged when the high watermark has passed it, in the leadership in
                          which it was made
acknowledged-without-leading  … and any append, with acks=1, too, by a node that leads then
unacknowledged-otherwise  … and is not answered as of a leader that leads no more while that leadership goes on
appended-batches-differ   batches that replicas append at one offset in one leader epoch are the same, by checksum and
                          by the epoch of the record before them (Log Matching, while the run goes on)
log-start-fell            a log that is opened starts no lower than it had started
log-start-not-followed    a follower's log starts where its leader's does, as far as the high watermark in that answer
log-start-ahead           a log starts no higher than its own node decided, or than the leader that it follows started
high-watermark-above-log-end  a high watermark lies within the node's own log, on followers and as a node begins to lead
                          or to follow, too (HW ≤ LEO)
high-watermark-below-log-start  … and no follower's falls below where its log starts
high-watermark-unfounded  a log is opened, a leader begins, and a follower goes on with a high watermark that some
                          leader had reached since the topic was created
log-end-not-on-disk       at the end a log reaches on its disk as far as its node traced (LEO ≤ what is on disk)
log-shortened             a log comes back from a restart as long as it was, unless a fault lost data on its node
not-on-disk               what a broker takes to be on its disk no loss of power takes from it (in simulation, where the
                          disk tells): what it counts as synced, also of a log that it opens, the start of a log, and
                          that a log was deleted
synced-records-lost       … and with all that it had synced whatever fault hit it, but for one that takes the disk
clean-shutdown-lost-records  where the controllers accept that a broker shut down cleanly, its logs come back whole
clean-claim-unsynced      a broker presents its last life as cleanly shut down only if that synced all of its logs when
                          it closed them
deleted-log-came-back     the log of a replica that was deleted never stands on the disk again: no start opens it, nor
                          finds it there as that of no replica
bytes-left-behind         the file of a log that was opened or cut ends where the log does
synced-beyond-end         … and of what it appends next none counts as synced already
index-entry-left          … and its offset index has no entry for it yet
producer-snapshot-left    … and it has no snapshot of its producers above its end
cut-left-unsynced         nothing is appended behind a cut of the log before that is on disk
opened-unsynced           … and with `flush.messages` fewer than so many records of an opened log may not be on disk
log-beginning-missing     a log that is opened begins at offset 0, or where its log-start checkpoint says
log-with-hole             each segment of a log that is opened begins where the one before it ends
log-end-below-start       … and goes on where it starts, if what is left of it ends before
isr-proposal-behind       a leader proposes a follower for the ISR that it has seen at its high watermark and at its
                          leader epoch's start (LESO), and whose log starts no lower than its own
isr-proposal-of-absent    a leader proposes for the ISR whom it knows as unfenced, in the life whose fetch it has seen
isr-proposal-without-fetch  … and upon a fetch of that follower: the log of an earlier one may be gone (RC §6.5.4)
isr-change-outdated       the controllers change an ISR as the leader has proposed in the state before the change
isr-change-of-an-earlier-life  the leader that asked, and each member that joins, are in the life registered then
isr-change-refused-otherwise  a refused change gets the error of the first check that it fails (docs/protocol.md); one
                          that an earlier life of its sender sent is refused for that, whatever it proposes
isr-change-given-up       a leader gives a refused change up if newer metadata is to settle it, so never because the
                          controller does not know the partition, is not the active one, or knows another life of it
isr-change-not-sent-again … and sends it again after such an answer, and where there is none
isr-change-unsettled      a change that was refused, and may still be made by an earlier request, is settled by the
                          next one, if only of the ISR to itself
isr-change-kept           a change that a leader counts as in flight, or as one that may still be made, was proposed in
                          the partition epoch that it knows
isr-change-sent-again     a change that was refused for what it is, is proposed again before it is sent again
isr-change-taken-back-early  a leader takes a change back once it is refused for its members, and no earlier request
                          with it may still arrive
isr-change-taken-for-certain  … whatever has become of the later requests
isr-shrink-early          a leader takes no follower out of the ISR that was caught up within replica.lag.time.max.ms
isr-shrink-overdue        … and takes out whom its high watermark has waited for much longer, and whose log has not
                          ended where its own did for as long
leader-otherwise          a change of a partition has the leader that follows from the state before it: who leads, else
                          ISR, ELR and LastKnownELR in order of preference, of brokers that may lead
isr-otherwise             … and the ISR: nobody leaves or joins it unasked, and no fenced broker begins in it
elr-otherwise             … and the ELR: whoever left the ISR while that is smaller than min.insync.replicas (KIP-966)
replicas-otherwise        … and the replicas: a reassignment begins with those of before, and ends once it is complete
last-known-elr-otherwise  … and the LastKnownELR: whoever left the ELR since, or the last leader alone
strategy-changed-early    unclean recovery comes to promise that every committed record is found only where ISR and ELR
                          have min.insync.replicas members
let-go-while-leading      a broker that shuts down is let go once it leads nothing
idle-broker-kept          no fenced broker, nor one that shuts down, stays leader or in the ISR when its state changes
left-without-leader       … and no partition stays without a leader that has a candidate who may lead: any replica where
                          its topic permits unclean elections, and its strategy leaves them to that setting
fetch-of-another-epoch    a follower's fetch counts for its position in the leader epoch in which it was sent, and each
                          fetch is held to that
fetch-of-an-earlier-life  … and in no later life of the follower than that which sent it, as far as the leader knows
forgotten-partition-fetched  … and is none for a partition that the follower asks to leave out of its session
refusal-untold            a fetch that is refused, or whose log diverges, is told so in its answer, however often
log-start-untold          … and a follower's, where its leader's log starts, whenever that has moved
position-of-another-leadership  a leader counts a follower where it has seen it since it leads; what it saw before
                          another one may have led does not count
fetch-of-no-replica       … and is none of a broker that is no replica, in the partition epoch that the leader knows
fetch-of-another-log      … where the record before it has the leader epoch that it has in the follower's log, be that
                          record deleted or not, and no lower than the leader's log starts
query-of-another-epoch    a client that asks for an offset, or where a leader epoch ends, and says which leader epoch it
                          knows, is answered by the leader in that alone
request-refused-otherwise  a request that the leader alone answers is refused with the error of the first check that it
                          fails: of an earlier leader epoch as fenced, of a later one as unknown, and by a broker that
                          does not lead for that; a follower's fetch of an earlier life, and any fetch without a place
                          in the log, for that; and no other one is
divergence-misstated      where the logs part, a leader answers with the greatest leader epoch that its own has up to
                          the follower's last one, and where that ends; of an epoch that it is asked for likewise
deleted-topic-served      a broker does nothing with a replica of a topic whose end it has applied
deleted-replica-kept      … and has deleted it when it applies other metadata
epoch-cache-wrong         a log that is opened, is cut, has a new start, or begins to be led has the epoch cache of its
                          records and of the one before its start
truncation-incomplete     a follower cuts off all that its leader's answer rules out
truncation-needless       … and no record that its leader has in the same place
producers-forgotten       … nor a log that ends where its leader's starts, unless their last records differ
producer-state-wrong      … and knows the last batches of each of its producers; so does the snapshot in place of
                          deleted batches, and no producer in that is forgotten when the log is opened
segment-time-wrong        … and the largest timestamp in its last segment
batch-appended-twice      a leader appends no batch that is among the last five of its producer in its log (KIP-98), or
                          deleted from it (KAFKA-7190)
batch-out-of-sequence     … and of a producer that its log has only the batch that follows
retry-without-batch       a batch that it takes for a retry stands in its log where it says
batch-refused-wrongly     it refuses no retry of those five, nor the batch that follows, nor one of a producer of which
                          its log has none; another one as out of order, or as of an earlier producer epoch, if it is
leader-epoch-not-entered  a leader has its leader epoch in its epoch cache when it begins to lead, where its log ends
                          (KIP-101)
logs-not-compared         a follower looks in each leader epoch for where its log and its leader's part before it
                          appends (KAFKA-7164)
answer-unasked            a fetch of a follower is answered for the partitions of its session, and for no other
records-out-of-place      a log goes on where it ends; a follower takes records in the leader epoch in which it asked
minimum-outdated          a leader begins with the min.insync.replicas of the metadata by which it leads
appended-below-minimum    with acks=all a leader takes a batch only while its ISR has min.insync.replicas members
refused-needlessly        … and refuses none for that while it has
partition-epoch-stood     every change of a partition moves its partition epoch up, and so does one of the minimum, and
                          every ISR that is granted
partition-epoch-skipped   … by one: no decision on it is missing in the metadata log
leader-epoch-stood        the leader epoch never falls; a change of leader and the removal of a replica move it up
leader-epoch-skipped      … by one, and nothing else moves it
reassignment-joins-isr    no change adds a replica and puts it into the ISR at once (RC §6.7, rule 2), but as
                          the leader of an unclean election
reassignment-completed-early  replicas are removed once all added ones are in the ISR (RC §6.7, rule 3)
reassignment-shrinks-isr  the removal of replicas does not leave the ISR smaller than min.insync.replicas (rule 1), nor
                          does it take an added one out of the ISR or the ELR while the ISR is that small
reassignment-drops-last-known  … and takes no member of the LastKnownELR while ISR and ELR are empty
recovery-early            a balanced recovery elects once every member of the LastKnownELR has told of its log
recovery-outdated         … in the life that is registered and the leader epoch in which there is no leader; so does the
                          one that any recovery elects
recovery-of-lesser-log    … and none of the logs that count is greater than that of the replica that is elected
recovery-misinformed      … and has told where its log ends, and of which leader epoch its last record is
last-known-elr-forgotten  … and the other members stay in the LastKnownELR, in which every replica is that has left
                          the ELR since the ISR was large enough
epoch-undecided           a record on disk is of a leader epoch in which the controllers had decided on a leader; and an
                          entry of a `leader-epoch-checkpoint`, where the system keeps these up to date
isr-answer-outdated       a leader takes up an ISR that the controllers have committed once, and none older than what it
                          knows
isr-answer-undecided      … and is told of one as granted once the controllers have decided it
decision-not-taken-over   a broker acts in no partition epoch below that of a decision that it has applied
acted-on-undecided        a broker leads, follows and counts its ISR as the controllers decided in that partition epoch,
                          and in none in which they have decided nothing

RC is Kafka Replication Correctness.

Subtle choices, each with a run that shows why:

*A node between its restart and its registration is not checked.* b2 loses its tail to a power loss and starts again at
once; the controller, which has not noticed, still counts the old b2 in the ISR, and may even elect it. No promise is
broken: the new b2 may not act before it registers, and registration removes it from the ISR. A rule switched off shows
when b2 has registered and still is a member.

*A replica that lost data is not held to what a leader counted for it before.* b2 had fetched up to 100, and lost 95–99;
b3 catches up, and the leader moves on to 100. It could not know. Not so once b2 has joined an ISR again.

*A node may become leader long after it was elected.* b3 is elected in epoch 1 and paused before it learns of it; b2
leads in epoch 4 and commits; b3 wakes, takes up epoch 1 for an instant and lacks what b2 committed. It will commit
nothing.

*Events of one instant are checked together, after the last of them.* A registration writes several records in one
batch; the states between them are visible to nobody.

*Records below a replica's log start do not count.* They were deleted, and a replica may even hold other records
there: its leader, which has deleted them, can no longer answer where the two logs diverge.

*The superset is required of the current leader only.* A deposed leader that does not know it yet commits with its own
old quorum, which contains the replica that was elected; the controllers' ISR has changed without it.

*A log that comes back shorter may have been truncated.* b2 follows a new leader, truncates its log and is killed before
it traces that. So a shorter log is a violation only if the node had led, converged, appended or taken over a high
watermark since it became follower, and its log had ended above every log start that was decided: a log that ends below
its leader's begins anew there. After a clean shutdown no truncation is under way.

*A decision may be traced late.* c1 commits a change and is cut off; c2 takes over and traces it; c1 wakes and traces it
again. Decisions are compared in the order of the metadata log, and an older one is left out. A broker is held to the
decisions of the partition epoch that it names, whenever they were traced.

*A read is held to the ISR of the partition epoch that its answer names.* b1 leads in partition epoch 3 with the ISR
{b1, b2}, and the controllers have let b3 in; until b1 reads of that, b2 alone confirms its reads, unless it was b1 who
proposed b3 and has no answer. A deposed leader that b2 does not fetch from any more is held to its old ISR.

*A topic that is created again is another one.* b1 had the high watermark 100 of a topic that is deleted, and is killed
once it has opened a new one of its name: with 100 its checkpoint would commit what the new leader alone has. So the
trace names the topics of one name apart (`CheckSettings.side_topics`), and a partition ends with its topic: b2, which
was down meanwhile, registers after an unclean end and stays in the last ISR of the deleted one, which means nothing.

*Many promises are about steps, not about losses.* A fetch of an earlier life that counts, or a batch taken below the
minimum, costs a record only if more goes wrong at the same time. A broker that takes such a step is found where that is
seen, however lucky its run was.

*A broker knows of another one what the metadata says that it has applied.* b1 may take a fetch of an earlier life of b2
while it has not read of the next one, or while that is fenced: then it counts for nothing.

Unclean elections and losses beyond the fault model (`checkers.violations`) can excuse the four promises about the
replicas that hold committed records, and retention-early: another record may stand at an offset then; and
generation-repeated: the record of the generation before may be gone. The others are about decisions of nodes, and
nothing excuses them; nodes whose disk lied about fsync are held to none of the promises about logs that come back
whole, nor to those about batches that they take or refuse by what such a log had told of its producers.

*A topic may be configured anew.* Whether an election is unclean, and who belongs into the LastKnownELR, depends on the
strategy that the topic has at the time, where the trace says so, and on that of the run where it does not.

*A system may write no trace, and tell of its controllers' decisions afterwards* (`CheckSettings.has_decisions`):
Apache Kafka, whose metadata logs have them. Then unclean-election, fenced-broker-elected, fenced-broker-joined-isr,
partition-epoch-stood, leader-epoch-stood, reassignment-joins-isr, reassignment-completed-early and epoch-undecided
are checked, in the order of the metadata log; the others need what brokers did meanwhile, and a note says so. Of logs
it is known when brokers opened and cut them: log-shortened and log-end-not-on-disk hold for where they ended then, on
nodes from which no fault took data, and of replicas that were never removed.

*Machines may be busy.* A node waits for what is due only while its process runs. On a machine it traces when that has
not been so (`node_stalled`), and such a time counts for nothing.

Blind spots: events missing from the trace (an offset that does not follow makes that part of a log, whose beginning is
not in the trace, unknown, and matches anything; `trace_gaps` counts them); promises about metadata logs; everything,
when the nodes' clocks are not comparable. Nodes are identified by name: broker N is `bN` (`nemesis.ports`).
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from checkers.deletions import deletion_requests
from checkers.evidence import EXCUSES, EvidencePart, RunEvidence
from checkers.fault_model import (
    lied_since,
    lied_to,
    node_failures,
    tolerances,
    vanished_nodes,
    wiped_since,
)
from checkers.protocol.expiration_promises import check_kept
from checkers.protocol.groups.coordinator_promises import check_loading
from checkers.protocol.log_promises import check_disks, check_told_ends
from checkers.protocol.metadata_promises import check_epochs
from checkers.protocol.retention_promises import check_ages, check_overdue
from checkers.protocol.state import ClusterState, ProtocolViolation
from checkers.protocol.trace_replay import replay_trace
from checkers.tables import of_partition, trace_rows, traced_stalls, wrong_clocks, wrong_timers
from checkers.unclean_elections import election_requests
from checkers.verdict import Finding, Verdict
from checkers.violations import by_kind, merge_verdicts, unknown_verdict, verdict_of

NAME = "protocol"
RESTS_ON = EXCUSES | {EvidencePart.TRACE}
_BEYOND_KAFKA = frozenset({"reassignment-shrinks-isr", "reassignment-drops-last-known"})
"""Promises of the prototype that Apache Kafka does not make: until 3.7 it completed a reassignment once the added
replicas were in the ISR, however few these are (KAFKA-15665), and its LastKnownELR names the last leader alone."""
_DECISIONS_ALONE = Finding(
    "decisions-alone",
    (
        "the system writes no trace: leaders, epochs, ISR, ELR and reassignments were checked as its metadata logs "
        "decided them, the epochs of logs and checkpoints on disk, and that logs end no earlier than brokers said when "
        "they opened or cut them; promises about quorums, high watermarks and other changes of logs were not checked",
    ),
)
_OF_LOGS = ("log_recovered", "truncated")
"""Events of a system without a trace whose brokers tell when they open and cut logs."""
_DISKS = frozenset({EvidencePart.REPLICAS, EvidencePart.HISTORY})
"""Where one of these has a gap, the ends of logs are not compared with the disks: `checkers.logs` or others, which rest
on them, are `unknown` then."""


def check(evidence: RunEvidence) -> Verdict:
    """Every partition that has an event in the trace."""
    if not evidence.settings.has_trace:
        if evidence.settings.has_decisions:
            return _check_decisions(evidence)
        return unknown_verdict(NAME, "the system writes no protocol trace")
    if not evidence.settings.comparable_clocks:
        return unknown_verdict(NAME, "the trace's nodes have clocks of their own, so their events have no order")
    if not evidence.trace.num_rows:
        return unknown_verdict(NAME, "no protocol trace was recorded")
    tolerance = tolerances(evidence)
    requests, ended = deletion_requests(evidence), bool(evidence.recovery)
    cluster = replay_trace(evidence.trace, evidence.settings, requests, _cluster(evidence), ended=ended)
    if evidence.history.num_rows and not any(gap.part in _DISKS for gap in evidence.gaps):
        check_disks(cluster, evidence.replica_ends, pc.max(evidence.history.column("completed_ns")).as_py() or 0)
    verdicts, converged = [], _convergences(evidence.trace)
    check_overdue(cluster, evidence.trace, evidence.settings)
    check_kept(cluster, evidence.trace, evidence.settings)
    check_loading(cluster, evidence.trace)
    for name, partition in sorted(cluster.partitions.items()):
        check_ages(partition, of_partition(evidence.history, *name), evidence.settings, cluster.clocks)
        figures = {
            "events": float(partition.events),
            "committed": float(len(partition.committed)),
            "elections": float(partition.elections),
            "log_start": float(partition.decided_log_start),
            "high_watermark_moves": float(partition.watermark_moves),
            "trace_gaps": float(partition.trace_gaps),
            "convergences": float(len(converged.get(name, ()))),
            "exchanges": float(sum(converged.get(name, ()))),
        }
        verdicts.append(
            verdict_of(NAME, by_kind(partition.violations, partial(_explain, name=name)), tolerance[name], figures)
        )
    return merge_verdicts(NAME, verdicts, "the trace has no event of a partition")


def _check_decisions(evidence: RunEvidence) -> Verdict:
    """The promises about decisions of the controllers, where these are all that the trace has."""
    if not evidence.trace.num_rows:
        return unknown_verdict(NAME, "the metadata logs tell of no decision")
    tolerance = tolerances(evidence)
    of_logs = pc.is_in(evidence.trace.column("kind"), value_set=pa.array(_OF_LOGS))
    changes = evidence.trace.filter(of_logs)
    decisions = evidence.trace.filter(pc.invert(of_logs))
    before = ClusterState(election_requests=election_requests(evidence))
    cluster = replay_trace(decisions, evidence.settings, cluster=before, ended=bool(evidence.recovery))
    failures = (*node_failures(evidence.faults), *vanished_nodes(evidence.recovery))
    unreliable = {failure.node for failure in failures if failure.may_have_lost} | lied_to(evidence.faults)
    on_disk = not any(gap.part in _DISKS for gap in evidence.gaps)
    verdicts = []
    for name, partition in sorted(cluster.partitions.items()):
        if on_disk:
            ends = of_partition(evidence.replica_ends, *name)
            kept = ends if evidence.settings.has_epoch_checkpoints else ends.slice(0, 0)
            check_epochs(partition, of_partition(evidence.replicas, *name), kept)
            check_told_ends(partition, trace_rows(of_partition(changes, *name)), ends, unreliable)
        promised = [violation for violation in partition.violations if violation.kind not in _BEYOND_KAFKA]
        figures = {"decisions": float(partition.events), "elections": float(partition.elections)}
        verdicts.append(verdict_of(NAME, by_kind(promised, partial(_explain, name=name)), tolerance[name], figures))
    verdict = merge_verdicts(NAME, verdicts, "the metadata logs have no decision about a partition")
    return replace(verdict, findings=(*verdict.findings, _DECISIONS_ALONE))


def _cluster(evidence: RunEvidence) -> ClusterState:
    """The cluster before the run, with what faults did to the disks of its nodes."""
    lossy: dict[str, list[tuple[int, int]]] = {}
    for failure in node_failures(evidence.faults):
        if failure.lost_bytes > 0:
            lossy.setdefault(failure.node, []).append((failure.started_ns, failure.last_loss_ns))
    return ClusterState(
        lossy_faults=lossy,
        lied_since=lied_since(evidence.faults),
        wiped_since=wiped_since(evidence.faults),
        wrong_timers=wrong_timers(evidence.faults),
        clocks=wrong_clocks(evidence.faults, healed=not evidence.recovery.get("unhealed")),
        stalls=traced_stalls(evidence.trace),
        lag_max_ms=evidence.settings.replica_lag_ms,
        election_requests=election_requests(evidence),
    )


def _convergences(trace: pa.Table) -> dict[tuple[str, int], list[int]]:
    """By partition: the exchanges that each follower needed to find where its log and its leader's part."""
    exchanges: dict[tuple[str, int], list[int]] = {}
    rows = trace.filter(pc.field("kind") == "converged").select(["topic", "partition", "detail"])
    for row in rows.to_pylist():
        exchanges.setdefault((row["topic"], row["partition"]), []).append(json.loads(row["detail"])["exchanges"])
    return exchanges


def _explain(violation: ProtocolViolation, name: tuple[str, int]) -> Finding:
    return Finding(violation.kind, violation.lines, *name, offsets=violation.offsets, time_ns=violation.time_ns)
