"""The safety rules of the replication protocol, each a switch.

All are on by default. With one switched off the broker is a *mutant*: wrong in exactly one known way, which a checker
must detect to earn trust. docs/protocol.md has the titles of the sources.

Where it can be, a rule is read last, after what else its decision depends on, so that most rules are read only where
they make a difference. A run in which nobody has read a rule is the same, event by event, as the run of the broker
without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields, replace


def _rule(protects: str, source: str) -> bool:
    on: bool = field(default=True, metadata={"protects": protects, "source": source})
    return on


@dataclass(frozen=True, slots=True)
class Rules:
    """The safety rules that a broker or controller follows."""

    fence_fetch_epoch: bool = _rule(
        "A Fetch, OffsetForLeaderEpoch or ListOffsets of another leader epoch is refused (74 or 75), so a delayed "
        "request of an earlier leader epoch never counts as a follower's position.",
        "KIP-320 Leader Fetch Handling",
    )
    fence_fetch_broker_epoch: bool = _rule(
        "A Fetch of an earlier incarnation of a follower is refused (6), so that a delayed one does not count for the "
        "incarnation that is registered now, which may have lost what the earlier one held.",
        "KIP-903; KAFKA-15221",
    )
    ignore_stale_fetch_answer: bool = _rule(
        "A follower ignores the answer to a fetch that it sent from another offset or in another leader epoch.",
        "KIP-320 Replica Handling",
    )
    truncate_on_divergence: bool = _rule(
        "A leader answers a diverging fetch with the point of divergence, and the follower truncates its log there "
        "before it appends.",
        "Kafka Log Divergence §3.2",
    )
    truncate_in_every_leader_epoch: bool = _rule(
        "A follower looks in every leader epoch for where the logs part, also if its leader is the one it knew: it may "
        "have missed that another one led in between, for whom its leader truncated its log.",
        "KAFKA-7164",
    )
    ignore_stale_epoch_answer: bool = _rule(
        "A follower ignores the answer to an OffsetForLeaderEpoch that it sent in another leader epoch, or about "
        "another epoch than it now needs.",
        "KIP-320 Replica Handling",
    )
    fence_every_session_fetch: bool = _rule(
        "Every fetch of an incremental fetch session is fenced for each of its partitions, not only the fetch that "
        "names the partition.",
        "KIP-320 Leader Fetch Handling; KIP-227",
    )
    enter_leader_epoch_start: bool = _rule(
        "A new leader enters its leader epoch with its log end offset in its epoch cache before it serves, so that it "
        "knows where earlier epochs end before it has a record of its own.",
        "KIP-101; Kafka Log Divergence §3.2",
    )
    maximal_isr: bool = _rule(
        "While an ISR change is in flight, the high watermark waits for the current and the proposed members.",
        "Kafka Replication Correctness §6.5.2",
    )
    min_isr_gates_high_watermark: bool = _rule(
        "The high watermark does not advance while the committed ISR is smaller than min.insync.replicas.",
        "Kafka Replication Correctness §6.5.2",
    )
    min_isr_counts_committed_isr: bool = _rule(
        "min.insync.replicas is compared with the committed ISR, not with the maximal one, whose proposed members the "
        "controller may refuse.",
        "Kafka Replication Correctness §6.5.2",
    )
    one_isr_change_at_a_time: bool = _rule(
        "A leader proposes an ISR change only when no other one is in flight, since the maximal ISR has the members of "
        "one proposal.",
        "Kafka Replication Correctness §6.5.2",
    )
    follower_high_watermark_within_log: bool = _rule(
        "A follower's high watermark does not rise above its own log end offset.",
        "Kafka Replication Correctness §6.4",
    )
    high_watermark_gates_isr_join: bool = _rule(
        "A follower joins the ISR only once it has reached the high watermark.",
        "Kafka Replication Correctness §6.5.3",
    )
    leso_gates_isr_join: bool = _rule(
        "A follower joins the ISR only once it has reached the leader epoch start offset, since the leader's own "
        "high watermark may be stale below it.",
        "Kafka Replication Correctness §6.5.3",
    )
    current_epoch_fetch_gates_isr_join: bool = _rule(
        "A follower joins the ISR only on a fetch received in the current leader epoch.",
        "Kafka Replication Correctness §6.5.4",
    )
    positions_end_with_leadership: bool = _rule(
        "A leader that is elected again keeps followers' positions only if its new leader epoch is the next one: "
        "under another leader in between a follower may have truncated its log.",
        "Kafka Replication Correctness §6.5",
    )
    fenced_stay_out_of_isr: bool = _rule(
        "A leader does not propose a broker for the ISR that is fenced, shutting down or no longer in the broker "
        "epoch of its fetch.",
        "Kafka Replication Correctness §6.5.1",
    )
    ack_after_high_watermark: bool = _rule(
        "An acks=all append is acknowledged only when the high watermark has passed it.",
        "Kafka Replication Correctness §6.1",
    )
    min_isr_gates_append: bool = _rule(
        "An acks=all append is refused while the committed ISR is smaller than min.insync.replicas.",
        "Kafka Replication Correctness §6.5.2",
    )
    consumer_reads_below_high_watermark: bool = _rule(
        "Consumers read committed records only.",
        "Kafka Replication Correctness §6.1",
    )
    applied_high_watermark: bool = _rule(
        "A read of the latest offset is not answered while the high watermark is below the leader epoch start offset.",
        "Kafka Replication Correctness §6.4.2",
    )
    latest_confirmed_by_isr: bool = _rule(
        "A read of the latest offset is answered only after every in-sync follower has fetched since the read "
        "began, so a deposed leader cannot answer with an old offset.",
        "Kafka Replication Correctness §6.1",
    )
    log_start_never_above_high_watermark: bool = _rule(
        "A log start advances to the high watermark at most, upon a client's DeleteRecords as upon the leader's log "
        "start.",
        "Kafka Replication Correctness §6.1; KIP-107",
    )
    retention_stops_at_high_watermark: bool = _rule(
        "Retention by time and size deletes only segments below the high watermark.",
        "Kafka Replication Correctness §6.1; KIP-107",
    )
    delete_replica_durably: bool = _rule(
        "A replica that is deleted is renamed durably first, and a log starts above offset 0 only where its log-start "
        "checkpoint says so, so that what a power loss leaves of a deletion is never taken for a log.",
        "Kafka Replication Correctness §6.5.4; KAFKA-1382",
    )
    idempotent_dedupe: bool = _rule(
        "A duplicate batch of a producer is answered with the offsets of the first append and not appended again.",
        "Kafka Replication Correctness §6.1",
    )
    producer_sequence_checked: bool = _rule(
        "A batch that leaves a gap in its producer's sequence, or comes from an older producer epoch, is refused.",
        "Kafka Replication Correctness §6.1",
    )
    broker_epoch_checked_in_alter_partition: bool = _rule(
        "The controller refuses an ISR member whose broker epoch is not the registered one.",
        "Kafka Replication Correctness §6.5.1 case 3",
    )
    partition_epoch_checked_in_alter_partition: bool = _rule(
        "The controller refuses an ISR change of an older partition epoch.",
        "Kafka Replication Correctness §6.3",
    )
    leader_epoch_checked_in_alter_partition: bool = _rule(
        "The controller refuses an ISR change of an older leader epoch.",
        "Kafka Replication Correctness §6.3",
    )
    sender_epoch_checked_in_alter_partition: bool = _rule(
        "The controller refuses an ISR change that an earlier incarnation of the leader sent.",
        "Kafka Replication Correctness §6.5.1",
    )
    registration_waits_for_fencing: bool = _rule(
        "A new incarnation of a broker is refused while the session of the previous one lasts.",
        "Kafka Replication Correctness §6.5.1",
    )
    stale_heartbeat_refused: bool = _rule(
        "A heartbeat of an earlier incarnation of a broker is refused: it neither renews the session nor unfences the "
        "broker nor starts a controlled shutdown.",
        "Kafka Replication Correctness §6.5.1",
    )
    clean_claim_after_flush: bool = _rule(
        "A broker claims a clean shutdown, with which it stays in the ELR, only when every record is on its disk.",
        "Kafka Replication Correctness §6.5.1",
    )
    unclean_leaves_isr: bool = _rule(
        "A broker that registers again is first removed from leadership and from every ISR.",
        "Kafka Replication Correctness §6.5.1 case 1",
    )
    unclean_leaves_elr: bool = _rule(
        "A broker that registers after an unclean shutdown is removed from every ELR.",
        "Kafka Replication Correctness §6.5.1 case 1",
    )
    eligible_leader_replicas: bool = _rule(
        "While the ISR is smaller than min.insync.replicas, the members that leave it stay eligible as leader (ELR), "
        "so the last member can leave it, too. Without an ELR, as in Apache Kafka with "
        "eligible.leader.replicas.version=0, the last member stays in the ISR, whatever it loses.",
        "KIP-966",
    )
    full_isr_clears_elr: bool = _rule(
        "While the ISR has min.insync.replicas members, also after an administrator has lowered that, the ELR is "
        "empty: the ISR commits without the members that left it.",
        "KIP-966",
    )
    last_known_elr_kept: bool = _rule(
        "Replicas that leave the ELR are recorded in the LastKnownELR, so that an unclean recovery knows where the "
        "committed records were.",
        "Kafka Replication Correctness §6.8; KIP-966",
    )
    elect_from_isr_or_elr: bool = _rule(
        "Only a member of the ISR or the ELR is elected, unless the topic allows unclean election.",
        "Kafka Replication Correctness §6.5",
    )
    removal_bumps_leader_epoch: bool = _rule(
        "The leader epoch is bumped when a replica is removed, so that its recorded position and its delayed "
        "requests do not count for a replica that is added again with its id.",
        "Kafka Replication Correctness §6.5.4",
    )
    reassignment_keeps_isr: bool = _rule(
        "A reassignment adds no replica to the ISR; the leader does, once the replica has caught up.",
        "Kafka Replication Correctness §6.7",
    )
    reassignment_waits_for_isr: bool = _rule(
        "A reassignment completes only once every adding replica, and at least min.insync.replicas of the target, "
        "are in the ISR.",
        "Kafka Replication Correctness §6.5.4",
    )
    cancel_needs_min_isr: bool = _rule(
        "A reassignment whose new replicas may be needed for committed records is cancelled only while at least "
        "min.insync.replicas of the original replicas are in the ISR, or if the topic allows unclean election.",
        "Kafka Replication Correctness §6.5.4",
    )
    min_isr_change_moves_partition_epoch: bool = _rule(
        "A change of min.insync.replicas bumps the partition epoch, so that no ISR change is committed for a leader "
        "that does not know the new minimum.",
        "Kafka Replication Correctness §6.5.2; KIP-966",
    )
    recovery_waits_for_last_known_elr: bool = _rule(
        "A balanced unclean recovery elects only once every member of the LastKnownELR has answered with the end of "
        "its log, so that a member that lost nothing is among them.",
        "Kafka Replication Correctness §6.8; KIP-966",
    )
    recovery_elects_greatest_log: bool = _rule(
        "An unclean recovery elects the replica whose log has the greatest leader epoch and, among those, the "
        "greatest end offset; none that ends before a log whose records have all been deleted.",
        "Kafka Replication Correctness §6.8; KIP-966",
    )
    recovery_keeps_last_known_elr: bool = _rule(
        "After an unclean recovery has elected a member of the LastKnownELR, the others stay in it until the ISR is "
        "large enough again, so that a later recovery considers their logs, too.",
        "Kafka Replication Correctness §6.8",
    )
    recovery_counts_current_lives_only: bool = _rule(
        "In an unclean recovery a log counts only if its end is of the registered broker epoch and of the leader "
        "epoch without a leader, so that the log has not changed since.",
        "Kafka Replication Correctness §6.5.1; KIP-966",
    )
    offset_commit_after_high_watermark: bool = _rule(
        "A committed offset is acknowledged, and returned to clients, only when the high watermark has passed its "
        "record.",
        "KIP-320 OffsetCommit; Kafka Replication Correctness §6.1",
    )
    offset_fetch_confirmed_by_isr: bool = _rule(
        "Committed offsets are returned only after every in-sync follower has fetched since the read began, so a "
        "deposed coordinator cannot return old ones.",
        "KIP-320 OffsetFetch; Kafka Replication Correctness §6.1",
    )
    coordinator_waits_for_high_watermark: bool = _rule(
        "A new coordinator serves its groups only when the high watermark has passed all the records that it has "
        "loaded.",
        "Kafka Replication Correctness §6.4.2",
    )
    generation_fences_commits: bool = _rule(
        "Only a member of a group's current generation may commit offsets for it.",
        "KIP-320 Consumer Handling",
    )
    generation_stored_before_join: bool = _rule(
        "A member gets the number of a group's generation only once a record that it has begun is committed, so that a "
        "later coordinator does not give the number to another generation.",
        "KIP-848 Group Epoch; KIP-320 Consumer Handling",
    )
    vote_once_per_epoch: bool = _rule(
        "A controller votes for one candidate in an epoch.",
        "Kafka Replication Correctness §6.3; Raft §5.2",
    )
    vote_is_synced: bool = _rule(
        "A controller's vote is on disk before the candidate receives it, so that a restarted controller does not "
        "vote again.",
        "Kafka Replication Correctness §6.3; Raft §5.2",
    )
    vote_needs_up_to_date_log: bool = _rule(
        "A controller votes only for a candidate whose metadata log is at least as up to date as its own: by the "
        "epoch of the last record, then by the log end offset.",
        "Kafka Replication Correctness §6.3; Raft §5.4.1",
    )
    metadata_needs_majority: bool = _rule(
        "A metadata change is committed, applied and answered once a majority of the controllers holds it, so a "
        "zombie controller commits nothing.",
        "Kafka Replication Correctness §6.3",
    )
    metadata_is_synced: bool = _rule(
        "A controller counts as holding a metadata record only once it is on its disk.",
        "Kafka Replication Correctness §6.3; Raft §5.3",
    )
    commit_only_own_epoch: bool = _rule(
        "A new active controller commits records of earlier epochs only together with one of its own epoch, since "
        "those may be on a majority and still be overwritten.",
        "Kafka Replication Correctness §6.3; Raft §5.4.2",
    )
    metadata_fetch_fenced: bool = _rule(
        "A fetch of the metadata log of another epoch is refused and does not count as a position.",
        "Kafka Replication Correctness §6.3; KIP-595",
    )
    metadata_cut_on_divergence: bool = _rule(
        "The active controller answers a diverging fetch of the metadata log with the point of divergence, and the "
        "follower truncates its log there before it appends.",
        "Kafka Replication Correctness §6.3; KIP-595",
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


class WatchedRules(Rules):
    """The same rules, which report a rule when it is read for the first time. They are not compared with others, since
    that would read all of them."""

    __slots__ = ("_on_read", "_rules")
    _on_read: Callable[[str], None]
    _rules: Rules

    def __init__(self, rules: Rules, on_read: Callable[[str], None]) -> None:
        object.__setattr__(self, "_rules", rules)
        object.__setattr__(self, "_on_read", on_read)

    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __getattr__(self, name: str) -> bool:
        """Called for what is not set yet: a rule that nobody has read."""
        value: bool = getattr(self._rules, name)
        object.__setattr__(self, name, value)
        self._on_read(name)
        return value


@dataclass(frozen=True, slots=True)
class RuleDescription:
    """One rule: what it protects, and the section of the source that requires it."""

    name: str
    protects: str
    source: str


DESCRIPTIONS: tuple[RuleDescription, ...] = tuple(
    RuleDescription(item.name, item.metadata["protects"], item.metadata["source"]) for item in fields(Rules)
)
NAMES: tuple[str, ...] = tuple(description.name for description in DESCRIPTIONS)
