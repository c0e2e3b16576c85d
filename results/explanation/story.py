"""The values of an explanation: a step of the protocol, what nodes believed at that moment, and the story of a failure.

A story names no rule and no setting of the system: everything in it was recorded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final

from checkers.verdict import Finding
from checkers.violations import SHOWN_OF_A_KIND
from results.explanation.signature import Signature

LINES_MAX: Final = 10
"""Lines of a story on a terminal."""
SEEN: Final = "seen    "
"""The beginning of a line with a finding."""
_CONSEQUENCES_SHOWN: Final = 3
_OFFSETS_NAMED: Final = 3


class StepKind(StrEnum):
    """The kinds of broken steps, by the names that signatures have; docs/explanations.md says what each one is."""

    HIGH_WATERMARK_WITHOUT_PROPOSED_MEMBER = "high-watermark-without-proposed-member"
    HIGH_WATERMARK_WITHOUT_ISR_MEMBER = "high-watermark-without-isr-member"
    HIGH_WATERMARK_WITH_SMALL_QUORUM = "high-watermark-with-small-quorum"
    HIGH_WATERMARK_ABOVE_COUNTED_POSITION = "high-watermark-above-counted-position"
    STALE_POSITION_COUNTED = "stale-position-counted"
    DIVERGING_POSITION_COUNTED = "diverging-position-counted"
    POSITION_AHEAD_OF_LOG_COUNTED = "position-ahead-of-log-counted"
    HIGH_WATERMARK_FELL = "high-watermark-fell"
    HIGH_WATERMARK_ABOVE_LOG_END = "high-watermark-above-log-end"
    ACKNOWLEDGED_ABOVE_HIGH_WATERMARK = "acknowledged-above-high-watermark"
    ACKNOWLEDGED_WITHOUT_LEADERSHIP = "acknowledged-without-leadership"
    LATEST_OFFSET_BELOW_EPOCH_START = "latest-offset-below-epoch-start"
    ISR_JOIN_BELOW_EPOCH_START = "isr-join-below-epoch-start"
    ISR_JOIN_BELOW_HIGH_WATERMARK = "isr-join-below-high-watermark"
    ISR_JOIN_OF_INCOMPLETE_LOG = "isr-join-of-incomplete-log"
    ISR_CHANGE_FROM_STALE_PARTITION_EPOCH = "isr-change-from-stale-partition-epoch"
    ISR_JOIN_OF_EARLIER_LIFE = "isr-join-of-earlier-life"
    UNCLEAN_BROKER_KEPT = "unclean-broker-kept"
    ELR_BESIDE_FULL_ISR = "elr-beside-full-isr"
    ELR_JOIN_FROM_OUTSIDE = "elr-join-from-outside"
    ELECTED_OUTSIDE_ISR = "elected-outside-isr"
    UNCLEAN_ELECTION = "unclean-election"
    ELECTED_WITHOUT_COMMITTED_RECORDS = "elected-without-committed-records"
    LED_WITHOUT_COMMITTED_RECORDS = "led-without-committed-records"
    LEADER_CHANGED_IN_LEADER_EPOCH = "leader-changed-in-leader-epoch"
    TWO_LEADERS_IN_ONE_EPOCH = "two-leaders-in-one-epoch"
    COMMITTED_RECORDS_TRUNCATED = "committed-records-truncated"
    APPENDED_BEHIND_DIVERGING_RECORDS = "appended-behind-diverging-records"
    BATCH_APPENDED_AGAIN = "batch-appended-again"
    LOG_CAME_BACK_SHORTER = "log-came-back-shorter"
    PROPOSAL_DROPPED_UNDECIDED = "proposal-dropped-undecided"
    REASSIGNED_TO_OTHERS = "reassigned-to-others"
    CLEAN_SHUTDOWN_CLAIMED_AFTER_KILL = "clean-shutdown-claimed-after-kill"
    BYTES_LEFT_BEHIND_LOG_END = "bytes-left-behind-log-end"
    LOG_START_ABOVE_LEADERS = "log-start-above-leaders"
    COMMITTED_BEYOND_DELIVERED = "committed-beyond-delivered"
    METADATA_TRIMMED_BEFORE_COMMIT = "metadata-trimmed-before-commit"
    RECORD_READ_ABOVE_HIGH_WATERMARK = "record-read-above-high-watermark"
    LATEST_OFFSET_OUTDATED = "latest-offset-outdated"
    UNKNOWN_POSITION_COUNTED = "unknown-position-counted"
    HIGH_WATERMARK_NOT_COUNTED = "high-watermark-not-counted"
    LATEST_OFFSET_UNCONFIRMED = "latest-offset-unconfirmed"
    RETRY_ACKNOWLEDGED_WITHOUT_BATCH = "retry-acknowledged-without-batch"
    FETCH_OF_OTHER_EPOCH_ACCEPTED = "fetch-of-other-epoch-accepted"
    FETCH_GAVE_WRONG_EPOCH = "fetch-gave-wrong-epoch"
    DIVERGING_FETCH_ACCEPTED = "diverging-fetch-accepted"
    WRONG_DIVERGENCE_ANSWERED = "wrong-divergence-answered"
    TRUNCATED_TO_WRONG_OFFSET = "truncated-to-wrong-offset"
    EPOCH_CACHE_CONTRADICTS_LOG = "epoch-cache-contradicts-log"
    PRODUCER_STATE_CONTRADICTS_LOG = "producer-state-contradicts-log"
    APPENDED_OUT_OF_PLACE = "appended-out-of-place"
    APPENDED_RECORDS_NOT_OF_LEADER = "appended-records-not-of-leader"
    SEQUENCE_GAP_APPENDED = "sequence-gap-appended"
    UNCOMMITTED_RECORDS_DELETED = "uncommitted-records-deleted"
    CLEAN_LOG_CAME_BACK_SHORTER = "clean-log-came-back-shorter"
    DECIDED_WITH_OLD_EPOCH = "decided-with-old-epoch"
    REPLICA_REMOVED_IN_LEADER_EPOCH = "replica-removed-in-leader-epoch"
    LEADER_OUTSIDE_ISR = "leader-outside-isr"
    FENCED_BROKER_ELECTED = "fenced-broker-elected"
    ISR_OUTSIDE_REPLICAS = "isr-outside-replicas"
    ISR_JOIN_UNREQUESTED = "isr-join-unrequested"
    FENCED_BROKER_JOINED_ISR = "fenced-broker-joined-isr"
    REASSIGNMENT_COMPLETED_EARLY = "reassignment-completed-early"
    ISR_CHANGE_OF_DEPOSED_LEADER = "isr-change-of-deposed-leader"
    UNCLEAN_TAKEN_FOR_CLEAN = "unclean-taken-for-clean"
    FENCED_BROKER_KEPT = "fenced-broker-kept"
    DECISION_APPLIED_WRONGLY = "decision-applied-wrongly"
    ISR_PROPOSED_DURING_CHANGE = "isr-proposed-during-change"
    VOTE_FOR_OLDER_LOG = "vote-for-older-log"
    CONTROLLER_WITHOUT_MAJORITY = "controller-without-majority"
    METADATA_COMMITTED_WITHOUT_MAJORITY = "metadata-committed-without-majority"
    METADATA_OF_EARLIER_EPOCH_COMMITTED = "metadata-of-earlier-epoch-committed"
    METADATA_POSITION_NOT_HELD = "metadata-position-not-held"
    COMMITTED_METADATA_TRUNCATED = "committed-metadata-truncated"
    COUNTED_METADATA_LOST = "counted-metadata-lost"
    COORDINATOR_LOADED_UNCOMMITTED = "coordinator-loaded-uncommitted"
    COORDINATOR_LOADED_PART = "coordinator-loaded-part"
    GENERATION_NUMBER_REUSED = "generation-number-reused"
    COMMIT_OF_EARLIER_GENERATION = "commit-of-earlier-generation"
    COMMIT_ANSWERED_ABOVE_HIGH_WATERMARK = "commit-answered-above-high-watermark"
    COMMITTED_OFFSET_OUTDATED = "committed-offset-outdated"
    COMMIT_DROPPED_WHILE_LOADING = "commit-dropped-while-loading"
    DECISION_NOT_TAKEN_OVER = "decision-not-taken-over"
    PROPOSAL_KEPT_AFTER_DECISION = "proposal-kept-after-decision"
    CHANGE_NEVER_DECIDED = "change-never-decided"
    METADATA_APPLIED_BEFORE_COMMIT = "metadata-applied-before-commit"
    ISR_MEMBERS_DROPPED = "isr-members-dropped"
    ELR_LACKS_MEMBER = "elr-lacks-member"
    ELIGIBLE_LEADER_NOT_ELECTED = "eligible-leader-not-elected"
    REASSIGNMENT_NOT_COMPLETED = "reassignment-not-completed"
    ISR_CHANGE_REFUSED_WRONGLY = "isr-change-refused-wrongly"
    SESSION_OF_ENDED_PROCESS_RENEWED = "session-of-ended-process-renewed"
    FENCED_WITHIN_SESSION = "fenced-within-session"
    REGISTERED_WITHIN_SESSION = "registered-within-session"
    BROKER_KEPT_FENCED = "broker-kept-fenced"
    UNFENCED_BEFORE_REGISTRATION_READ = "unfenced-before-registration-read"
    ISR_SHRINK_OF_CAUGHT_UP_MEMBER = "isr-shrink-of-caught-up-member"
    ISR_CHANGE_GIVEN_UP_UNCERTAIN = "isr-change-given-up-uncertain"
    FETCH_REFUSED_WRONGLY = "fetch-refused-wrongly"
    FETCH_ANSWERED_FROM_ELSEWHERE = "fetch-answered-from-elsewhere"
    BATCH_REFUSED_WRONGLY = "batch-refused-wrongly"
    ACKNOWLEDGED_IN_LATER_EPOCH = "acknowledged-in-later-epoch"
    LED_FROM_WRONG_START = "led-from-wrong-start"
    DIVERGENCE_REPEATED = "divergence-repeated"
    FOLLOWER_HIGH_WATERMARK_ABOVE_LEADER = "follower-high-watermark-above-leader"
    LOG_START_FELL = "log-start-fell"
    VOTED_TWICE_IN_EPOCH = "voted-twice-in-epoch"
    TWO_CONTROLLERS_IN_ONE_EPOCH = "two-controllers-in-one-epoch"
    GROUP_WAITS_FOR_NO_WRITE = "group-waits-for-no-write"
    GROUP_RECORD_NOT_COMMITTED = "group-record-not-committed"
    PARTITION_ASSIGNED_WRONGLY = "partition-assigned-wrongly"
    ASSIGNMENT_NOT_OF_GENERATION = "assignment-not-of-generation"
    LIVE_SEGMENT_DELETED = "live-segment-deleted"
    CAUGHT_UP_FOLLOWER_NOT_PROPOSED = "caught-up-follower-not-proposed"
    FOLLOWER_STANDS_STILL = "follower-stands-still"
    APPEND_FAILED_THOUGH_APPENDED = "append-failed-though-appended"
    BATCH_SENT_UNDER_OTHER_NUMBER = "batch-sent-under-other-number"
    SEQUENCE_NUMBER_REUSED = "sequence-number-reused"
    ACKNOWLEDGEMENT_NEVER_GIVEN = "acknowledgement-never-given"
    LATEST_OFFSET_NEVER_TOLD = "latest-offset-never-told"
    COMMIT_NEVER_ANSWERED = "commit-never-answered"
    COMMIT_FAILED_THOUGH_ACCEPTED = "commit-failed-though-accepted"
    START_NEVER_TOLD = "start-never-told"
    HIGH_WATERMARK_SET_AT_TAKEOVER = "high-watermark-set-at-takeover"
    CHECKPOINT_ABOVE_HIGH_WATERMARK = "checkpoint-above-high-watermark"
    HIGH_WATERMARK_STANDS_STILL = "high-watermark-stands-still"
    PROPOSAL_NEVER_DECIDED = "proposal-never-decided"
    BROKER_NEVER_UNFENCED = "broker-never-unfenced"
    BROKER_NEVER_REGISTERED = "broker-never-registered"
    METADATA_NOT_READ = "metadata-not-read"
    LOADED_METADATA_DIFFERS = "loaded-metadata-differs"
    REGISTRATION_REFUSED_AFTER_SESSION = "registration-refused-after-session"
    VOTE_REFUSED_WRONGLY = "vote-refused-wrongly"
    VOTE_FORGOTTEN = "vote-forgotten"
    NO_CONTROLLER_ELECTED = "no-controller-elected"
    METADATA_COMMIT_STANDS_STILL = "metadata-commit-stands-still"
    OFFSETS_FORGOTTEN = "offsets-forgotten"
    COMMIT_OF_NO_MEMBER = "commit-of-no-member"
    GROUP_WRITE_NEVER_ENDED = "group-write-never-ended"
    GROUP_STANDS_STILL = "group-stands-still"
    RECOVERED_SHORTER_LOG = "recovered-shorter-log"
    DAMAGED_RECORDS_ANSWERED = "damaged-records-answered"
    OFFSET_REFUSED_WRONGLY = "offset-refused-wrongly"
    ANSWER_SKIPS_RECORDS = "answer-skips-records"
    LOG_LOST_WITHOUT_FAULT = "log-lost-without-fault"
    FILE_NOT_SYNCED = "file-not-synced"


@dataclass(frozen=True, slots=True)
class Belief:
    """What one node held to be true at a moment, as far as its own events say."""

    node: str
    role: str
    """`leader`, `follower`, or empty before it had one."""
    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    """Of a leader."""
    proposed: tuple[int, ...]
    """The ISR that a leader has proposed and that is not decided yet."""
    high_watermark: int
    log_end: int
    positions: tuple[tuple[int, int], ...] = ()
    """(replica, log end) as a leader last counted them."""
    down_ns: int = -1
    """Since when its process has ended; -1 while it runs."""

    def __str__(self) -> str:
        if self.down_ns >= 0:
            return f"{self.node} is down (since {self.down_ns / 1e9:.3f} s)"
        if self.role == "leader":
            words = f"{self.node} leads in epoch {self.leader_epoch}, ISR {brokers(self.isr)}"
            if self.proposed:
                words += f", proposed {brokers(self.proposed)}"
        elif self.role == "follower":
            whom = f"follows b{self.leader}" if self.leader >= 0 else "has no leader"
            words = f"{self.node} {whom} in epoch {self.leader_epoch}"
        else:
            words = f"{self.node} has no role"
        watermark = "?" if self.high_watermark < 0 else self.high_watermark
        return f"{words}, HW {watermark}, log end {self.log_end}"


@dataclass(frozen=True, slots=True)
class Step:
    """Something that a node did, and that a node which keeps the protocol does not do."""

    kind: StepKind
    time_ns: int
    node: str
    text: str
    first: int = 0
    """The records concerned: offsets from here …"""
    end: int = -1
    """… up to here, exclusive; -1 for a step that concerns every record from `first` on."""
    before: tuple[tuple[int, str], ...] = ()
    """(time in ns, event) that led to it, in order."""
    committed: int = -1
    """The committed offset of a group that it is about; -1 for none or any."""
    lacking: str = ""
    """A fact about it that the trace does not have."""
    is_loss: bool = False
    """Whether a fault explains it: a log that a power loss shortened breaks no promise by itself."""
    beliefs: tuple[Belief, ...] = ()
    decided: str = ""
    """What the controllers had decided last."""

    def concerns(self, offset: int) -> bool:
        """Whether the record at `offset` is among those concerned."""
        return self.first <= offset and (self.end < 0 or offset < self.end)


@dataclass(frozen=True, slots=True)
class Consequence:
    """What one check found about the story's records: its first finding of a kind, and how many the check shows."""

    check: str
    finding: str
    time_ns: int
    """-1 when the finding has no time."""
    text: str
    count: int = 1


@dataclass(frozen=True, slots=True)
class Story:
    """A failure, cause first."""

    signature: Signature
    topic: str
    partition: int
    offsets: tuple[int, ...]
    """Of the records concerned, as the findings name them."""
    step: Step | None
    """The broken step; None when the trace shows none."""
    first: Consequence
    """The first finding, which stands for the cause where there is no step."""
    consequences: tuple[Consequence, ...]
    """In the order of time, one for each kind of finding of each check."""
    findings: tuple[tuple[str, Finding], ...]
    """Every finding that it tells, with its check, in all partitions."""
    faults: tuple[str, ...]
    """Faults active at the moment of the cause, or that ended last before."""
    requests: tuple[str, ...]
    """Operations of clients that carried the records."""
    lacking: tuple[str, ...]
    """Facts that the evidence does not have."""
    beliefs: tuple[Belief, ...] = ()
    """What each node held to be true after the step, or at the first finding."""
    decided: str = ""
    """What the controllers had decided last."""
    elsewhere: tuple[str, ...] = ()
    """Other partitions with the same cause."""

    @property
    def signatures(self) -> tuple[Signature, ...]:
        """Those of all findings, the story's own first."""
        return tuple(dict.fromkeys((self.signature, *map(self.signature_of, self.consequences))))

    def signature_of(self, item: Consequence) -> Signature:
        """That of one of its findings: with the story's cause, if that is a step, else the finding's own kind."""
        return self._signature(item.check, item.finding)

    def signatures_of(self, check: str, finding: Finding) -> tuple[Signature, ...]:
        """The signature of a finding of this check; none where the story does not tell it."""
        return (self._signature(check, finding.kind),) if (check, finding) in self.findings else ()

    def _signature(self, check: str, kind: str) -> Signature:
        return Signature(check, kind, self.signature.cause if self.step is not None else kind)

    @property
    def time_ns(self) -> int:
        """The moment of the cause."""
        return self.step.time_ns if self.step is not None else self.first.time_ns

    @property
    def place(self) -> str:
        """The partition in words; empty for a story about the cluster."""
        return f"{self.topic}-{self.partition}" if self.topic else ""

    @property
    def cause(self) -> str:
        """The cause in one sentence."""
        return self.step.text if self.step is not None else self.first.text

    @property
    def title(self) -> str:
        """The kind of the cause, the partition, and the records."""
        offsets = ", ".join(str(offset) for offset in self.offsets[:_OFFSETS_NAMED])
        more = " …" if len(self.offsets) > _OFFSETS_NAMED else ""
        words = [self.signature.cause, self.place, f"offset {offsets}{more}" if offsets else ""]
        if self.elsewhere:
            words.append(f"also in {', '.join(self.elsewhere)}")
        return " · ".join(word for word in words if word)

    def lines(self) -> tuple[str, ...]:
        """The story in at most LINES_MAX lines, cause first."""
        return tuple(self._lines())[:LINES_MAX]

    def _lines(self) -> Iterator[str]:
        yield self.title
        yield f"cause   {at(self.time_ns)}{self.cause}"
        if self.step is not None and self.step.before:
            yield "before  " + "; ".join(f"{at(time_ns)}{text}" for time_ns, text in self.step.before)
        if believed := [*map(str, self.beliefs), *filter(None, (self.decided,))]:
            yield "belief  " + " · ".join(believed)
        if self.faults:
            yield "faults  " + " · ".join(self.faults)
        if self.requests:
            yield "clients " + " · ".join(self.requests)
        shown = self.consequences[:_CONSEQUENCES_SHOWN]
        for number, item in enumerate(shown):
            more = " or more" if item.count >= SHOWN_OF_A_KIND else ""
            times = f" ×{item.count}{more}" if item.count > 1 else ""
            when = at(item.time_ns) if item.time_ns >= self.time_ns else ""
            line = f"{SEEN}{when}{item.check}: {item.finding}{times}: {item.text}"
            left = [f"{rest.check}: {rest.finding}" for rest in self.consequences[_CONSEQUENCES_SHOWN:]]
            yield line + (f" · and {', '.join(left)}" if left and number == len(shown) - 1 else "")
        if self.lacking:
            yield "unknown " + " · ".join(self.lacking)

    def to_json(self) -> dict[str, Any]:
        """The story as JSON values."""
        return {
            "signature": str(self.signature),
            "signatures": [str(signature) for signature in self.signatures],
            "topic": self.topic,
            "partition": self.partition,
            "offsets": list(self.offsets),
            "time_ns": self.time_ns,
            "cause": self.cause,
            "beliefs": [asdict(belief) for belief in self.beliefs],
            "decided": self.decided,
            "before": [{"time_ns": time_ns, "text": text} for time_ns, text in self.step.before] if self.step else [],
            "consequences": [asdict(item) for item in self.consequences],
            "faults": list(self.faults),
            "requests": list(self.requests),
            "lacking": list(self.lacking),
            "elsewhere": list(self.elsewhere),
        }


def stories_to_json(stories: Sequence[Story]) -> dict[str, Any]:
    """`{"stories": [...]}`, each as `Story.to_json` gives it."""
    return {"stories": [story.to_json() for story in stories]}


def at(time_ns: int) -> str:
    """A time in front of a sentence; nothing where it is not known."""
    return f"{time_ns / 1e9:.6f} s  " if time_ns >= 0 else ""


def brokers(members: tuple[int, ...] | frozenset[int] | set[int]) -> str:
    """A set of brokers by name."""
    return "{" + ", ".join(f"b{member}" for member in sorted(members)) + "}"


def leader_name(leader: int) -> str:
    """The leader of a partition in a sentence."""
    return f"b{leader}" if leader >= 0 else "nobody"


def listed(members: frozenset[int]) -> str:
    """Brokers by name, in a sentence."""
    return ", ".join(f"b{member}" for member in sorted(members))


def span(first: int, end: int) -> str:
    """Offsets from `first` up to `end`, exclusive, in words."""
    return f"offset {first}" if end == first + 1 else f"offsets {first} to {end - 1}"
