"""The promises of the controllers, checked against the trace (white box): Raft over the metadata log.

The trace gives at each moment the metadata log of every controller as leader epochs by offset, the votes it cast, and
the offset up to which the active controller regarded the log as committed. Then:

two-controllers-one-epoch   no two controllers lead in one controller epoch
voted-twice                 no controller votes for two candidates in one epoch
vote-for-older-log          no controller votes for another one whose log, as it says, is behind its own: by the epoch
                            of the last record, then by the end
log-end-misjudged           a controller that is asked for its vote knows where its own log ends, and the epoch of the
                            last record, also where a snapshot has replaced that
vote-forgotten              a controller that restarts knows its epoch and the candidate it voted for
vote-unasked                a vote for another controller is the answer to its request, one for itself is that of a
                            candidate, and both are of that epoch alone
vote-refused-wrongly        a vote, or pre-vote, is given to whoever may win: its log is up to date, and the voter has
                            neither voted for another nor knows a leader; the leader of a pre-vote has answered it
prevote-granted-wrongly     … and a pre-vote to nobody else
leader-of-another-epoch     a controller that comes to an epoch by itself knows no leader of it
appended-without-leader     a metadata log grows while its controller leads, or follows the leader of its epoch
controller-incomplete       a new leader holds everything committed in earlier epochs (Leader Completeness)
commit-without-majority     a committed record is in the logs of a majority of the controllers at that moment
commit-of-earlier-epoch     … and the last one is of the epoch of the leader that commits it
metadata-logs-differ        two logs that hold a batch of the same offset and epoch hold the same batch, after a batch
                            of the same epoch: by induction they are the same up to there (Log Matching)
committed-metadata-differs  the record committed at an offset never changes
committed-metadata-cut      no controller truncates its log below the offset that it knows to be committed
metadata-cut-in-part        … and it cuts all that its leader's answer rules out
metadata-lost               a controller's log comes back from a restart with everything it had
metadata-not-on-disk        … which is on its disk as soon as it says so, and so are its votes and its snapshots (in
                            simulation, where the disk tells)
metadata-left-behind        … and its file ends where it does
broker-epoch-fell           broker epochs only rise, over all brokers and all active controllers
uncommitted-metadata-applied  a broker applies only metadata that a majority of the controllers holds at that moment
snapshot-of-another-epoch   a snapshot is named by the epoch of the last record that it replaces, and what is loaded
                            ends with a record of its epoch
uncommitted-metadata-loaded  a snapshot that is written or loaded, and the metadata with which a controller takes
                            charge, end where a leader has committed by then
producer-ids-allocated-twice  the blocks of producer ids that brokers get do not overlap
producer-id-assigned-twice  no producer id is given to two producers, by whichever brokers
producer-id-unallocated     a broker gives producers only ids from the blocks that it got itself
position-of-another-epoch   an active controller counts a voter where it has been since it has followed it in its epoch
position-of-another-log     … and up to where its log is the same as its own
registered-in-session       a broker registers anew once the session of its earlier life is over
refused-after-session       … and is not refused after that
heartbeat-of-an-earlier-life  what a heartbeat brings about is of the broker epoch that the heartbeat gives
current-heartbeat-refused  … and none is refused as of another life that gives the registered one
elected-without-majority    a controller leads by the votes of a majority of the controllers, cast in its epoch
follows-another-leader      a controller follows whom the votes of an epoch have made its leader
led-without-quorum          a leader resigns once the majority that elected the next one fetches from it no more
metadata-loaded-otherwise   a snapshot that a broker loads, and the metadata with which a controller takes charge, have
                            what the changes up to there add up to: partitions, topics, brokers, producer ids
metadata-applied-otherwise  what a broker applies has as many partitions, the sums of epochs and the active brokers that
                            these changes add up to; and no broker goes back to older metadata
metadata-misstated          what a broker tells clients of topics, leaders, ISR, brokers and coordinators is what it has
                            applied (`checkers.raft.told_metadata`)
metadata-told-early         … and once it was started it tells nothing before it has applied any
trimmed-before-snapshot     a log begins where a snapshot ends that is on the disk, and is trimmed only to one that a
                            later one follows
metadata-snapshot-damaged   … and a controller can read the latest snapshot when it opens its log
decision-uncommitted        what a controller decides is committed before it has an effect
registration-misjudged      a broker registers as the successor of its last registration, as cleanly shut down if it
                            presents the broker epoch of that
registered-twice            a process that asks again to be registered, or the next one in its name, gets its broker
                            epoch again, and is not refused
registered-undecided        … and is told so once that is committed
superseded-went-on          a broker that reads of a later registration of its own begins anew
clean-claim-repeated        a clean shutdown is claimed by the next life of the broker alone
clean-shutdown-forgotten    … and by a later one, where that one was registered and never heard of it: to the
                            controllers, too, this one then follows a clean shutdown
left-without-handover       a broker that shuts down leaves once a controller has moved its leaderships and lets it go,
                            unless the time for that is up
unfenced-shutting-down      a broker that shuts down comes back by its next registration alone
unfenced-behind             a broker is unfenced once it has applied its own registration
kept-fenced                 … and its first heartbeat after that unfences it
session-ran-back            a controller has heard of no broker later than it is
fenced-late                 no broker stays unfenced after its session while many other changes are made, or none
fenced-in-session           a broker is fenced as silent once a session has passed without a heartbeat, and since the
                            controller took charge
change-unasked              a change that is made upon an administrator's request alone belongs to one that was answered
                            as done, and is made once, or to one whose answer was lost
answered-undone             what is answered as done to an administrator has been decided
election-refused            an unclean election is refused only where there is a leader, or nobody who may lead
partitions-added-otherwise  partitions that are added to a topic follow those that it has, with as many replicas
configured-otherwise        a topic's configuration changes as was asked, no other key (`checkers.raft.configurations`)
reassignments-misstated     administrators are told which reassignments are under way (`checkers.raft.reassignments`)
dry-run-otherwise           a dry run changes nothing, and has the answer of the request (`checkers.raft.dry_runs`)

All of them hold whatever is killed, paused, cut off or loses power, of one controller or of all. Nothing excuses them
but a disk that lies about fsync: from the beginning of such a fault against a controller on, a violation is `unknown`.

*A controller may become leader long after others voted for it.* c2 stands in epoch 6; c3 leads in epoch 7 and commits;
a vote for c2 arrives, and it leads in epoch 6 for an instant. What was committed in epoch 7 is not for it to hold, also
where the record itself is of epoch 5, and it will commit nothing.

The number of controllers is that of the run, or of all that ever started in it, where that is not recorded.

*A system may write no trace, and leave its metadata logs* (`CheckSettings.has_decisions`): then metadata-logs-differ,
two-controllers-one-epoch, broker-epoch-fell and producer-ids-allocated-twice are checked on these, and a note says so.

*Machines may be busy.* A controller does what is due only while its process runs. On a machine it traces when that has
not been so (`node_stalled`): as after a pause, fenced-late and led-without-quorum begin to count anew then.

Blind spots: records below a snapshot, which the controllers no longer hold, when a broker applies them late;
everything, when the nodes' clocks are not comparable.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from checkers.evidence import EvidencePart, RunEvidence
from checkers.fault_model import lied_since
from checkers.raft.administration import administration_findings
from checkers.raft.cluster_metadata import cluster_metadata_findings
from checkers.raft.disks import disk_findings
from checkers.raft.leaderships import controllers_started, leadership_findings
from checkers.raft.lives import broker_epoch_findings, life_findings
from checkers.raft.metadata_log import UNKNOWN, MetadataLog, cut_in_part, differ, left_behind
from checkers.raft.metadata_snapshots import snapshot_findings
from checkers.raft.producer_ids import ProducerIds
from checkers.raft.reassignments import reassignment_findings
from checkers.raft.voter_positions import misplaced_voters
from checkers.raft.votes import vote_findings, voter_name
from checkers.tables import TraceRow, stalls, trace_rows, wrong_timers
from checkers.verdict import Finding, Validity, Verdict
from checkers.violations import SHOWN_OF_A_KIND, unknown_verdict

NAME = "raft"
RESTS_ON = frozenset({EvidencePart.TRACE, EvidencePart.FAULTS, EvidencePart.RECOVERY, EvidencePart.SETTINGS})
_DECISIONS_ALONE = Finding(
    "decisions-alone",
    (
        "the system writes no trace: metadata logs were compared as they lay on disk, with their leaders, broker "
        "epochs and blocks of producer ids; promises about votes, commits and what brokers applied were not checked",
    ),
)


class _RaftState:
    """The state of all controllers after the trace so far, and the violations in it."""

    def __init__(self, voters: int) -> None:
        self.voters, self.majority = voters, voters // 2 + 1
        self.logs: dict[str, MetadataLog] = {}
        self.votes: dict[str, tuple[int, int]] = {}
        """Controller → the latest epoch it voted in, and its candidate."""
        self.ballots: set[tuple[str, int, int]] = set()
        """Every vote: controller, epoch, candidate."""
        self.ids: dict[str, int] = {}
        """Controller → its node id, by the vote for itself."""
        self.leaders: dict[int, str] = {}
        self.batches: dict[tuple[int, int], tuple[int, int, int, str]] = {}
        """(offset, epoch) → end, checksum, epoch before it, node."""
        self.committed: list[int] = []
        """The epoch of each record."""
        self.committed_in: list[int] = []
        """The epoch of the leader that committed it first."""
        self.known: dict[str, int] = {}
        """Controller → the offset up to which it has committed its log, as leader."""
        self.followed: set[tuple[str, int]] = set()
        """Controller, and the epoch in which it has followed a leader."""
        self.following: dict[str, int] = {}
        """Controller → the last epoch of these: in a later one its log may be cut."""
        self.producer_ids = ProducerIds(self.report)
        self.applied = self.commits = self.cut = self.snapshots = 0
        self.findings: list[Finding] = []

    def apply(self, event: TraceRow) -> None:
        handler = _HANDLERS.get(event.kind)
        if handler is not None:
            handler(self, event)

    def report(self, event: TraceRow, kind: str, *lines: str) -> None:
        self.findings.append(Finding(kind, lines, time_ns=event.time_ns))

    # ---- elections ---------------------------------------------------------------------------------------------------

    def recovered(self, event: TraceRow) -> None:
        log = self.logs.setdefault(event.node, MetadataLog())
        voted_in, voted_for = self.votes.get(event.node, (0, UNKNOWN))
        forgot = event.leader_epoch == voted_in and voted_for not in (UNKNOWN, event.details().get("voted"))
        if event.leader_epoch < voted_in or forgot:
            voted = event.details().get("voted", UNKNOWN)
            vote = "without a vote" if voted == UNKNOWN else f"with a vote for {voter_name(voted, self.ids)}"
            self.report(
                event,
                "vote-forgotten",
                f"{event.node} started {event.at} in controller epoch {event.leader_epoch}, {vote}",
                f"it had voted for {voter_name(voted_for, self.ids)} in controller epoch {voted_in}",
            )
        if event.log_end < log.end and not log.gave_way(event):
            self.report(
                event,
                "metadata-lost",
                f"{event.node} started {event.at} with a metadata log that ends at {event.log_end}",
                f"it had held records up to {log.end}, and no truncation was traced",
            )
        if lines := left_behind(event):
            self.report(event, "metadata-left-behind", *lines)
        log.restart(event.offset, event.log_end, event.details().get("epochs") or [])

    def voted(self, event: TraceRow) -> None:
        epoch, candidate = self.votes.get(event.node, (0, UNKNOWN))
        if epoch == event.leader_epoch and candidate not in (UNKNOWN, event.broker):
            self.report(
                event,
                "voted-twice",
                f"{event.node} voted for {voter_name(event.broker, self.ids)} in controller epoch {epoch} {event.at}",
                f"it had voted for {voter_name(candidate, self.ids)} in the same epoch",
            )
        self.ballots.add((event.node, event.leader_epoch, event.broker))
        if "candidate" not in event.details():
            self.ids[event.node] = event.broker
        if event.leader_epoch >= epoch:
            self.votes[event.node] = (event.leader_epoch, event.broker)
        self.check_ends(event)

    def check_ends(self, event: TraceRow) -> None:
        """A voter knows where its own log ends, and votes for no candidate whose log is behind. A vote for itself has
        no log ends, nor has one of a version that did not trace them. Where the last record is not known, the end
        that the voter reports is taken."""
        detail = event.details()
        if "candidate" not in detail:
            return
        log, candidate = self.logs.setdefault(event.node, MetadataLog()), tuple(detail["candidate"])
        last = log.at(log.end - 1) if log.end > 0 else 0
        taken = tuple(detail["own"])
        own = taken if last == UNKNOWN else (last, log.end)
        if candidate < own and event.kind == "quorum_voted":
            self.report(
                event,
                "vote-for-older-log",
                f"{event.node} voted for {voter_name(event.broker, self.ids)} in controller epoch {event.leader_epoch} "
                f"{event.at}, whose log ends at {candidate[1]}, after a record of epoch {candidate[0]}",
                f"its own ended at {own[1]}, after a record of epoch {own[0]}",
            )
        elif taken != own:
            self.report(
                event,
                "log-end-misjudged",
                f"{event.node} was asked for its vote {event.at}, and took its own log for one that ends at "
                f"{taken[1]}, after a record of epoch {taken[0]}",
                f"it ends at {own[1]}, after a record of epoch {own[0]}",
            )

    def leads(self, event: TraceRow) -> None:
        other = self.leaders.setdefault(event.leader_epoch, event.node)
        if other != event.node:
            self.report(
                event,
                "two-controllers-one-epoch",
                f"{event.node} was elected in controller epoch {event.leader_epoch} {event.at}",
                f"{other} had been elected in the same epoch",
            )
        own = self.ids.get(event.node, UNKNOWN)
        voters = sorted(node for node in self.logs if (node, event.leader_epoch, own) in self.ballots)
        if event.node in voters and len(voters) < self.majority:
            self.report(
                event,
                "elected-without-majority",
                f"{event.node} was elected in controller epoch {event.leader_epoch} {event.at}",
                f"{', '.join(voters)} had voted for it in that epoch, of {self.voters} controllers",
            )
        log = self.logs.setdefault(event.node, MetadataLog())
        lacking = self.first_missing(log, event.leader_epoch)
        if lacking is not None:
            self.report(
                event,
                "controller-incomplete",
                f"{event.node} was elected in controller epoch {event.leader_epoch} {event.at} with a metadata log "
                f"that ends at {log.end}",
                f"it lacks the record at offset {lacking}, committed in controller epoch {self.committed_in[lacking]}",
            )

    def follows(self, event: TraceRow) -> None:
        leader = self.leaders.get(event.leader_epoch)
        elected = self.ids.get(leader, event.leader) if leader is not None else event.leader
        if event.leader not in (elected, UNKNOWN):
            self.report(
                event,
                "follows-another-leader",
                f"{event.node} follows {voter_name(event.leader, self.ids)} in controller epoch {event.leader_epoch} "
                f"{event.at}",
                f"{leader} was elected in that epoch",
            )
        self.followed.add((event.node, event.leader_epoch))
        self.following[event.node] = event.leader_epoch

    def first_missing(self, log: MetadataLog, epoch: int) -> int | None:
        """The least offset, committed before `epoch`, at which `log` holds something else, or nothing."""
        for offset in range(log.start, len(self.committed)):
            missing = offset >= log.end or differ(log.at(offset), self.committed[offset])
            if missing and self.committed_in[offset] < epoch:
                return offset
        return None

    # ---- the log -----------------------------------------------------------------------------------------------------

    def appended(self, event: TraceRow) -> None:
        log = self.logs.setdefault(event.node, MetadataLog())
        batch = (event.log_end, int(event.details().get("crc") or 0), log.at(event.offset - 1), event.node)
        first = self.batches.setdefault((event.offset, event.leader_epoch), batch)
        if first[:2] != batch[:2] or differ(first[2], batch[2]):
            self.report(
                event,
                "metadata-logs-differ",
                f"{event.node} holds a batch of controller epoch {event.leader_epoch} at offset {event.offset}: up to "
                f"{batch[0]}, checksum {batch[1]}, after a record of epoch {batch[2]} ({event.at})",
                f"{first[3]} held one up to {first[0]}, checksum {first[1]}, after a record of epoch {first[2]}",
            )
        log.put(event.offset, event.log_end, event.leader_epoch)

    def truncated(self, event: TraceRow) -> None:
        self.cut += 1
        log = self.logs.setdefault(event.node, MetadataLog())
        known = max(event.high_watermark, self.known.get(event.node, 0))
        if event.offset < known:
            self.report(
                event,
                "committed-metadata-cut",
                f"{event.node} cut its metadata log to {event.offset} {event.at}",
                f"it knew that everything below {known} was committed",
            )
        if lines := cut_in_part(log, event):
            self.report(event, "metadata-cut-in-part", *lines)
        del log.epochs[max(0, event.offset - log.start) :]

    def restored(self, event: TraceRow) -> None:
        self.snapshots += 1
        self.logs.setdefault(event.node, MetadataLog()).restart(event.offset, event.offset, [], event.leader_epoch)

    def trimmed(self, event: TraceRow) -> None:
        self.snapshots += 1
        self.logs.setdefault(event.node, MetadataLog()).trim(event.offset)

    def takes_for_committed(self, event: TraceRow) -> None:
        """A snapshot, and metadata that a node goes by, is of what a leader has committed by then, and of the epoch of
        the last record of that."""
        if event.log_end > len(self.committed):
            self.report(
                event,
                "uncommitted-metadata-loaded",
                f"{event.node} took the metadata up to {event.log_end} for committed {event.at} ({event.kind})",
                f"nothing from {len(self.committed)} on had been committed",
            )
        elif event.log_end > 0 and differ(self.committed[event.log_end - 1], event.leader_epoch):
            self.report(
                event,
                "snapshot-of-another-epoch",
                f"{event.node} has the metadata up to {event.log_end} as of controller epoch {event.leader_epoch} "
                f"{event.at} ({event.kind})",
                f"its last record is of controller epoch {self.committed[event.log_end - 1]}",
            )

    def commits_up_to(self, event: TraceRow) -> None:
        self.commits += 1
        log, end = self.logs.setdefault(event.node, MetadataLog()), event.high_watermark
        self.known[event.node] = end
        holders = sorted(
            node
            for node, held in self.logs.items()
            if held.end >= end and not differ(held.at(end - 1), log.at(end - 1))
        )
        by_majority = len(holders) >= self.majority
        if not by_majority or log.at(end - 1) != event.leader_epoch:
            self.report(
                event,
                "commit-of-earlier-epoch" if by_majority else "commit-without-majority",
                f"{event.node}, in controller epoch {event.leader_epoch}, committed everything below {end} {event.at}",
                f"{', '.join(holders) or 'nobody'} held it, of {self.voters} controllers",
                f"the last record is of controller epoch {log.at(end - 1)}",
            )
        self.counts_voters(event)
        self.committed += [UNKNOWN] * (log.start - len(self.committed))
        for offset in range(max(log.start, min(event.offset, len(self.committed))), end):
            held = log.at(offset)
            if offset >= len(self.committed):
                self.committed.append(held)
            elif differ(held, self.committed[offset]):
                self.report(
                    event,
                    "committed-metadata-differs",
                    f"{event.node} committed a record of controller epoch {held} at offset {offset} {event.at}",
                    f"a record of controller epoch {self.committed[offset]} had been committed there",
                )
                self.committed[offset] = held
        self.committed_in += [event.leader_epoch] * (len(self.committed) - len(self.committed_in))

    def counts_voters(self, event: TraceRow) -> None:
        for kind, what, why in misplaced_voters(event, self.logs, self.followed, self.following):
            self.report(event, kind, what, why)

    def registered(self, event: TraceRow) -> None:
        detail = event.details()
        silent_ms, timeout_ms = detail.get("silent_ms"), detail.get("session_timeout_ms")
        if silent_ms is not None and timeout_ms is not None and silent_ms < timeout_ms:
            self.report(
                event,
                "registered-in-session",
                f"{event.node} registered broker {event.broker} anew, in broker epoch {event.broker_epoch}, {event.at}",
                f"it had heard of its earlier life {silent_ms} ms before; a session lasts {timeout_ms} ms",
            )

    # ---- what brokers apply ------------------------------------------------------------------------------------------

    def applies(self, event: TraceRow) -> None:
        self.applied += 1
        last = event.log_end - 1
        holders = sorted(
            node for node, log in self.logs.items() if log.end > last and not differ(log.at(last), event.leader_epoch)
        )
        if len(holders) < self.majority:
            self.report(
                event,
                "uncommitted-metadata-applied",
                f"{event.node} applied metadata up to {event.log_end}, the last of controller epoch "
                f"{event.leader_epoch}, {event.at}",
                f"{', '.join(holders) or 'no controller'} held it, of {self.voters} controllers",
            )


_HANDLERS: Final[Mapping[str, Callable[[_RaftState, TraceRow], None]]] = {
    "metadata_applied": _RaftState.applies,
    "producer_ids_allocated": lambda raft, event: raft.producer_ids.allocates(event),
    "producer_id_assigned": lambda raft, event: raft.producer_ids.assigns(event),
    "quorum_recovered": _RaftState.recovered,
    "quorum_voted": _RaftState.voted,
    "quorum_vote_refused": _RaftState.check_ends,
    "quorum_prevote_granted": _RaftState.check_ends,
    "quorum_leader": _RaftState.leads,
    "quorum_follower": _RaftState.follows,
    "metadata_appended": _RaftState.appended,
    "metadata_truncated": _RaftState.truncated,
    "metadata_committed": _RaftState.commits_up_to,
    "voter_positions": _RaftState.counts_voters,
    "metadata_restored": _RaftState.restored,
    "metadata_snapshot": _RaftState.takes_for_committed,
    "metadata_loaded": _RaftState.takes_for_committed,
    "metadata_trimmed": _RaftState.trimmed,
    "broker_registered": _RaftState.registered,
}


def check(evidence: RunEvidence) -> Verdict:
    """All controllers of the run."""
    decisions_alone = not evidence.settings.has_trace and evidence.settings.has_decisions
    if not evidence.settings.has_trace and not decisions_alone:
        return unknown_verdict(NAME, "the system writes no protocol trace")
    if not evidence.settings.comparable_clocks and not decisions_alone:
        return unknown_verdict(NAME, "the trace's nodes have clocks of their own, so their events have no order")
    started = controllers_started(evidence.trace)
    raft = _RaftState(max(evidence.settings.controllers, started))
    wanted = pc.is_in(evidence.trace.column("kind"), value_set=pa.array(list(_HANDLERS)))
    for event in trace_rows(evidence.trace.filter(wanted)):
        raft.apply(event)
    raft.findings += broker_epoch_findings(evidence.trace)
    if not decisions_alone:
        wrong, stalled = wrong_timers(evidence.faults), stalls(evidence.faults, evidence.trace)
        raft.findings += cluster_metadata_findings(
            evidence.trace, whole=not evidence.settings.script_topics, wrong_timers=wrong, stalls=stalled
        )
        raft.findings += snapshot_findings(evidence.trace, evidence.faults)
        raft.findings += disk_findings(evidence.trace)
        raft.findings += leadership_findings(evidence.trace, started, wrong, stalled)
        raft.findings += vote_findings(evidence.trace)
        raft.findings += life_findings(evidence.trace, lied_since(evidence.faults))
        raft.findings += administration_findings(evidence.trace, evidence.recovery, evidence.settings)
        raft.findings += reassignment_findings(evidence.trace, evidence.recovery.get("told_reassignments", ()))
    if not raft.logs:
        return unknown_verdict(NAME, "the trace has no event of a controller")
    counts: dict[str, int] = {}
    shown = []
    for finding in raft.findings:
        counts[finding.kind] = counts.get(finding.kind, 0) + 1
        if counts[finding.kind] <= SHOWN_OF_A_KIND:
            shown.append(finding)
    figures = {
        "controllers": float(len(raft.logs)),
        "elections": float(len(raft.leaders)),
        "commits": float(raft.commits),
        "committed": float(len(raft.committed)),
        "cuts": float(raft.cut),
        "snapshots": float(raft.snapshots),
        "applied": float(raft.applied),
        "producer_ids": float(len(raft.producer_ids.assigned)),
        "invalid": float(len(raft.findings)),
    }
    if not raft.findings:
        return Verdict(NAME, Validity.VALID, (_DECISIONS_ALONE,) if decisions_alone else (), figures)
    liars = {since_ns: node for node, since_ns in lied_since(evidence.faults).items() if node in raft.logs}
    # Decisions have the times of the controllers' own clocks.
    excused = bool(liars) and (decisions_alone or all(finding.time_ns >= min(liars) for finding in raft.findings))
    if excused:
        lied = f"the disk of {liars[min(liars)]} lied about fsync: no promise holds then"
        shown.append(Finding("fsync-lies", (lied,)))
    return Verdict(NAME, Validity.UNKNOWN if excused else Validity.INVALID, tuple(shown), figures)
