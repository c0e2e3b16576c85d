"""Flaws of a third writer: the six of ten that an earlier set did not have."""

from __future__ import annotations

from typing import Final

from tests.results.explanation.flaw import HALF_A_MINUTE, Edit, Flaw

THIRD: Final = (
    Flaw(
        "isr-shrink-at-once",
        "While an ISR change is in flight the leader's maximal ISR is the proposed ISR instead of its union with the "
        "committed one, so a shrink lets the high watermark advance before the controller has committed it.",
        "The leader stops waiting for (counts no longer) the members that a shrink it "
        "only proposed would remove, i.e. an ISR shrink takes effect for the high watermark before the controller has "
        "committed it; saying only that the high watermark or an acknowledgement came too early is not enough.",
        (
            Edit(
                "images/broker/replication/leader.py",
                "    return tuple(sorted({*partition.isr, *(leadership.proposed or ()), "
                "*leadership.unresolved_members}))\n",
                "    pending = partition.isr if leadership.proposed is None else leadership.proposed\n"
                "    return tuple(sorted({*pending, *leadership.unresolved_members}))\n",
            ),
        ),
        HALF_A_MINUTE,
    ),
    Flaw(
        "no-divergence-check-below-hw",
        "The leader compares the last fetched epoch of a follower with its own log only if the fetch offset is above "
        "its high watermark, so a returning replica with a short diverging tail is not truncated.",
        "The leader does not check a follower's fetch for divergence when its offset is "
        "at or below the leader's high watermark, so that an old tail there is kept; naming that corner (no "
        "divergence check below/at the high watermark) counts, just 'the replica was not truncated' does not.",
        (
            Edit(
                "images/broker/replication/leader.py",
                "        error, diverging = check_position(partition, fetch.last_fetched_epoch, fetch.offset, "
                "limits)\n",
                "        # Committed records never differ, so the logs can only part above the high watermark.\n"
                "        uncommitted = fetch.offset > partition.high_watermark\n"
                "        last_epoch = fetch.last_fetched_epoch if uncommitted else NO_EPOCH\n"
                "        error, diverging = check_position(partition, last_epoch, fetch.offset, limits)\n",
            ),
        ),
        HALF_A_MINUTE,
    ),
    Flaw(
        "refusal-renews-session",
        "A registration that is refused because the session of the previous incarnation lasts renews that session, so "
        "a broker that restarts before its session ends is refused for ever and never fenced.",
        "The controller renews the session of the earlier incarnation upon a refused "
        "registration (DUPLICATE_BROKER_REGISTRATION) of the new one, so that the session never ends.",
        (
            Edit(
                "images/broker/controller/controller.py",
                "        if known is not None and alive and self.rules.registration_waits_for_fencing:\n",
                "        change.renew_session(request.id, now_ms)\n"
                "        if known is not None and alive and self.rules.registration_waits_for_fencing:\n",
            ),
        ),
        HALF_A_MINUTE,
    ),
    Flaw(
        "duplicate-answered-at-once",
        "The retry of a batch that is in the log already is acknowledged at once, without waiting for the high "
        "watermark to pass the first copy.",
        "A duplicate (a retry recognized by its sequence number) is acknowledged "
        "without waiting for the high watermark, although the first copy is not committed; it must name the "
        "retry/duplicate.",
        (
            Edit(
                "images/broker/apis/produce_fetch.py",
                "                    if body.acks == ACKS_ALL:\n",
                "                    if body.acks == ACKS_ALL and result.retry is None:\n",
            ),
        ),
        HALF_A_MINUTE,
    ),
    Flaw(
        "metadata-without-isr-change-ignored",
        "A broker ignores the metadata of a partition whose replicas, ISR, leader and leader epoch are unchanged, and "
        "so keeps an old partition epoch after a change of the ELR (or of the configuration).",
        "The leader does not take over the new partition epoch from a metadata change "
        "that leaves ISR, leader and replicas as they were (as a change of the ELR alone), so that all its ISR "
        "changes are refused as outdated (95) from then on; naming the stale partition epoch on the leader counts.",
        (
            Edit(
                "images/broker/replication/become_leader_or_follower.py",
                "        return PartitionStep(partition)\n",
                "        return PartitionStep(partition)\n"
                "    known = (partition.replicas, partition.isr, partition.leader, partition.leader_epoch)\n"
                "    if known == (registration.replicas, registration.isr, registration.leader, "
                "registration.leader_epoch):\n"
                "        return PartitionStep(partition)  # a change that does not concern the replicas, "
                "as of the ELR\n",
            ),
        ),
        HALF_A_MINUTE,
    ),
    Flaw(
        "completed-reassignment-keeps-isr",
        "A completed reassignment replaces the replicas but leaves removed replicas in the ISR, and as leader if one "
        "of them led.",
        "On the completion of a reassignment the removed replicas are not taken out of "
        "the ISR (so a broker that is no replica any more stays in the ISR, or leader).",
        (
            Edit(
                "images/broker/controller/partition_change.py",
                "            partition, isr = completed, _in_order(completed, isr)\n",
                "            partition = completed\n",
            ),
        ),
        HALF_A_MINUTE,
    ),
)
