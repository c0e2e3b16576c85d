"""The safety rules of the replication protocol, each a switch.

All are on by default. Switching one off yields a *mutant*: a broker known to be wrong in exactly one way, which
a checker must catch to earn trust. Seeds are cited as in the protocol notes: LD (log divergence), RC (replication
correctness), KIP-320, KIP-966, LEN (leader epoch notes).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace


def _rule(protects: str, source: str) -> bool:
    on: bool = field(default=True, metadata={"protects": protects, "source": source})
    return on


@dataclass(frozen=True, slots=True)
class Rules:
    """Which safety rules a broker or controller keeps."""

    fence_fetch_epoch: bool = _rule(
        "A Fetch, OffsetForLeaderEpoch or ListOffsets sent in another leader epoch is refused (74 or 75), so a "
        "request that outlived its leadership never counts as a follower's position.",
        "KIP-320 Leader Fetch Handling",
    )
    ignore_stale_fetch_answer: bool = _rule(
        "A follower ignores an answer to a fetch it sent at another offset or in another leader epoch.",
        "KIP-320 Replica Handling",
    )
    truncate_on_divergence: bool = _rule(
        "A leader tells a follower where their logs part and the follower cuts its log there before it appends.",
        "LD 3.2",
    )
    maximal_isr: bool = _rule(
        "While an ISR change is in flight the high watermark waits for current and proposed members alike.",
        "RC 6.5.2",
    )
    min_isr_gates_high_watermark: bool = _rule(
        "The high watermark stands still while the committed ISR is smaller than min.insync.replicas.",
        "RC 6.5.2",
    )
    leso_gates_isr_join: bool = _rule(
        "A follower joins the ISR only once it has reached the leader epoch start offset, since the leader's own "
        "high watermark may be stale below it.",
        "RC 6.5.3",
    )
    current_epoch_fetch_gates_isr_join: bool = _rule(
        "A follower joins the ISR only on a fetch received in the current leader epoch.", "RC 6.5.4"
    )
    positions_end_with_leadership: bool = _rule(
        "A leader elected again counts nobody by what it heard in its earlier leadership, unless its new leader epoch "
        "is the next one: whoever led in between may have had a follower cut its log.",
        "RC 6.5",
    )
    fenced_stay_out_of_isr: bool = _rule(
        "A leader does not propose a broker for the ISR that is fenced, shutting down or no longer in the broker epoch "
        "in which it fetched.",
        "RC 6.5.1",
    )
    ack_after_high_watermark: bool = _rule(
        "An acks=all append is acknowledged only when the high watermark has passed it.", "RC 6.1"
    )
    min_isr_gates_append: bool = _rule(
        "An acks=all append is refused while the committed ISR is smaller than min.insync.replicas.", "RC 6.5.2"
    )
    consumer_reads_below_high_watermark: bool = _rule("Consumers are served committed records only.", "RC 6.1")
    applied_high_watermark: bool = _rule(
        "The latest offset is not told while the high watermark is below the leader epoch start offset.", "RC 6.4.2"
    )
    latest_confirmed_by_isr: bool = _rule(
        "The latest offset is told only after every in-sync follower has been heard from since the question came, "
        "so a deposed leader cannot tell an old one.",
        "RC 6.1",
    )
    log_start_never_above_high_watermark: bool = _rule(
        "A log's start moves up to the high watermark at most, whoever asks for it: a client's DeleteRecords or the "
        "leader a follower learns it from.",
        "RC 6.1; KIP-107",
    )
    retention_stops_at_high_watermark: bool = _rule(
        "Retention by time and size removes only segments that lie below the high watermark.", "RC 6.1; KIP-107"
    )
    idempotent_dedupe: bool = _rule(
        "A batch seen before from the same producer is answered with its first offsets and not appended again.",
        "RC 6.1",
    )
    producer_sequence_checked: bool = _rule(
        "A batch that leaves a gap in its producer's sequence, or comes from an older producer epoch, is refused.",
        "RC 6.1",
    )
    broker_epoch_checked_in_alter_partition: bool = _rule(
        "The controller refuses an ISR member whose broker epoch is not the registered one.", "RC 6.5.1 case 3"
    )
    partition_epoch_checked_in_alter_partition: bool = _rule(
        "The controller refuses an ISR change made from an older view of the partition.", "RC 6.3"
    )
    registration_waits_for_fencing: bool = _rule(
        "A second incarnation of a broker is refused while the session of the first is alive.", "RC 6.5.1"
    )
    unclean_leaves_isr: bool = _rule(
        "A broker that registers again leaves leadership and every ISR first.", "RC 6.5.1 case 1"
    )
    unclean_leaves_elr: bool = _rule(
        "A broker that registers after an unclean shutdown leaves every ELR.", "RC 6.5.1 case 1"
    )
    elect_from_isr_or_elr: bool = _rule(
        "Only a member of the ISR or the ELR is elected, unless the topic allows unclean election.", "RC 6.5"
    )
    removal_bumps_leader_epoch: bool = _rule(
        "The leader epoch rises when a replica is removed, so that nothing the leader knows of it, and nothing it has "
        "sent, counts for the replica that is added again under its name.",
        "RC 6.5.4",
    )
    reassignment_waits_for_isr: bool = _rule(
        "A reassignment completes only once every adding replica, and at least min.insync.replicas of the target, are "
        "in the ISR.",
        "RC 6.5.4",
    )
    cancel_needs_min_isr: bool = _rule(
        "A reassignment on whose new replicas committed records may rest is cancelled only while at least "
        "min.insync.replicas of the original replicas are in the ISR, or if the topic allows unclean election.",
        "RC 6.5.4",
    )
    min_isr_change_moves_partition_epoch: bool = _rule(
        "A change of min.insync.replicas moves the partition epoch, so that no ISR change is committed for a leader "
        "that does not know the new minimum.",
        "RC 6.5.2; KIP-966",
    )
    recovery_waits_for_last_known_elr: bool = _rule(
        "A balanced unclean recovery elects only once every member of the LastKnownELR has told the end of its log, so "
        "that one of those that lost nothing is among them.",
        "RC 6.8; KIP-966",
    )
    recovery_elects_greatest_log: bool = _rule(
        "An unclean recovery elects the replica whose log has the greatest leader epoch and, among those, the greatest "
        "end offset.",
        "RC 6.8; KIP-966",
    )
    recovery_keeps_last_known_elr: bool = _rule(
        "Whoever an unclean recovery elects out of the LastKnownELR leaves the others in it until the ISR suffices "
        "again, so that their logs are looked at once more should it shut down uncleanly in turn.",
        "RC 6.8",
    )
    recovery_counts_current_lives_only: bool = _rule(
        "In an unclean recovery a log counts only if it was told in the broker epoch that is registered now and in the "
        "leader epoch in which nobody leads, so that it is still as it was told.",
        "RC 6.5.1; KIP-966",
    )
    offset_commit_after_high_watermark: bool = _rule(
        "A committed offset is acknowledged, and told to others, only when the high watermark has passed its record.",
        "KIP-320 OffsetCommit; RC 6.1",
    )
    offset_fetch_confirmed_by_isr: bool = _rule(
        "Committed offsets are told only after every in-sync follower has been heard from since the question came, so "
        "a deposed coordinator cannot tell old ones.",
        "KIP-320 OffsetFetch; RC 6.1",
    )
    coordinator_waits_for_high_watermark: bool = _rule(
        "A new coordinator serves its groups only when all it has loaded is below the high watermark.", "RC 6.4.2"
    )
    generation_fences_commits: bool = _rule(
        "Only a member of a group's current generation may commit offsets for it.", "KIP-320 Consumer Handling"
    )

    vote_once_per_epoch: bool = _rule("A controller votes for one candidate in an epoch.", "RC 6.3; Raft 5.2")
    vote_is_synced: bool = _rule(
        "A controller's vote is on disk before the candidate learns of it, so that a restart does not vote again.",
        "RC 6.3; Raft 5.2",
    )
    vote_needs_up_to_date_log: bool = _rule(
        "A controller votes only for a candidate whose metadata log is at least as up to date as its own: by the epoch "
        "of the last record, then by the log end offset.",
        "RC 6.3; Raft 5.4.1",
    )
    metadata_needs_majority: bool = _rule(
        "A metadata change is committed, acted upon and answered once a majority of the controllers holds it, so a "
        "zombie controller commits nothing.",
        "RC 6.3",
    )
    metadata_is_synced: bool = _rule(
        "A controller counts as holding a metadata record only once it is on its disk.", "RC 6.3; Raft 5.3"
    )
    commit_only_own_epoch: bool = _rule(
        "A new active controller commits records of earlier epochs only together with one of its own epoch, since "
        "those may be on a majority and still be overwritten.",
        "RC 6.3; Raft 5.4.2",
    )
    metadata_fetch_fenced: bool = _rule(
        "A fetch of the metadata log sent in another epoch is refused and counts for nothing.", "RC 6.3; KIP-595"
    )
    metadata_cut_on_divergence: bool = _rule(
        "The active controller tells another where their metadata logs part, and that one cuts its log there before it "
        "appends.",
        "RC 6.3; KIP-595",
    )

    def without(self, names: Iterable[str]) -> Rules:
        """These rules with `names` switched off. Raises ValueError naming a rule that does not exist."""
        names = tuple(names)
        for name in names:
            if name not in NAMES:
                raise ValueError(f"unknown rule {name!r}; one of: {', '.join(NAMES)}")
        return replace(self, **dict.fromkeys(names, False))

    def off(self) -> tuple[str, ...]:
        """The names of the rules switched off, in the order of their definition."""
        return tuple(name for name in NAMES if not getattr(self, name))


@dataclass(frozen=True, slots=True)
class RuleDescription:
    """What one rule protects and the seed section that demands it."""

    name: str
    protects: str
    source: str


DESCRIPTIONS: tuple[RuleDescription, ...] = tuple(
    RuleDescription(item.name, item.metadata["protects"], item.metadata["source"]) for item in fields(Rules)
)
NAMES: tuple[str, ...] = tuple(description.name for description in DESCRIPTIONS)
