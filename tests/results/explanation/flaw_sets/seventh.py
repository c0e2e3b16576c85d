"""The seventh set of flaws that are no switches: ten, with the workload whose runs can show each."""

from __future__ import annotations

from typing import Final

from tests.results.explanation.flaw import VARIED_APPENDS, VARIED_GROUPS, Edit, Flaw

_APIS_PRODUCE_FETCH: Final = "images/broker/apis/produce_fetch.py"
_CONTROLLER_METADATA_CHANGE: Final = "images/broker/controller/metadata_change.py"
_GROUPS_SHARD: Final = "images/broker/groups/shard.py"
_LOG_LOG_START_CHECKPOINT: Final = "images/broker/log/log_start_checkpoint.py"
_METADATA_IMAGE: Final = "images/broker/metadata/image.py"
_RAFT_SNAPSHOTS: Final = "images/broker/raft/snapshots.py"
_REPLICATION_ALTER_PARTITION_MANAGER: Final = "images/broker/replication/alter_partition_manager.py"
_REPLICATION_FETCHER: Final = "images/broker/replication/fetcher.py"
_REPLICATION_LEADER: Final = "images/broker/replication/leader.py"
_WORKLOADS_CLIENTS_PARTITION_SENDER: Final = "workloads/clients/partition_sender.py"

SEVENTH: Final = (
    Flaw(
        "retry-answered-without-wait",
        "A batch recognised as a duplicate has been appended already, so a produce with acks=all need not "
        "wait for it: a retry is answered at once with the offsets of the first copy.",
        "The leader acknowledged a retry (a duplicate batch) before the high watermark had passed its first "
        "copy: it recognises the retry by its sequence numbers and answers from the producer state, without "
        "the wait that the first copy gets. What decides: duplicate/retry, and acknowledged without the "
        'wait for the high watermark (above the HW). Half: "an acks=all append was acknowledged above the '
        'high watermark" without the retry (ordinary appends do wait), or "the retry was deduplicated '
        'wrongly". Not enough: "acknowledged record lost", "the new leader lacked it / truncated it", or '
        "naming the leader change or ISR as the cause.",
        (
            Edit(
                _APIS_PRODUCE_FETCH,
                "                    if body.acks == ACKS_ALL:\n",
                "                    if body.acks == ACKS_ALL and result.retry is None:  # the "
                "log has what is sent again\n",
            ),
        ),
        VARIED_APPENDS,
    ),
    Flaw(
        "coordinator-loads-to-high-watermark",
        "A new group coordinator reads its partition of `__consumer_offsets` up to the high watermark, "
        "since only committed records count; it still waits, before it serves, until the high watermark has "
        "reached its leader epoch start.",
        "The new coordinator loaded the log only up to the high watermark it had when it took over, not up "
        "to its leader epoch start (log end); a fresh leader's high watermark is stale, so commits (and "
        "group records) that the previous coordinator had acknowledged lie above it and are never replayed, "
        "although the log has them. What decides: loading stopped at the (stale) high watermark / records "
        'between it and the log end were not read. Half: "the coordinator loaded too little" or "lacks a '
        'committed offset that its log has" without where it stopped. Not enough: "a committed offset was '
        'lost / went back after a change of coordinator", "it served before its high watermark was applied" '
        "(it does wait), or a loss in replication.",
        (
            Edit(
                _GROUPS_SHARD,
                "        offset, end = replica.log.start, replica.log.end\n",
                "        offset, end = replica.log.start, replica.state.high_watermark  # what "
                "lies above is not committed\n",
            ),
        ),
        VARIED_GROUPS,
    ),
    Flaw(
        "last-fetched-epoch-of-request",
        "A follower's fetch carries as 'last fetched epoch' the leader epoch in which its last fetch was "
        "answered (`Replica.fetched_epoch`), which is what the field is called.",
        "The follower's fetch carries as last fetched epoch not the epoch of the last record in its own "
        "log, but the leader epoch of its last answered fetch (none, if it has not fetched since it "
        "started); so the leader compares a wrong epoch: a replica that led itself and never fetched gives "
        "none, its divergent tail is not detected, and it appends behind it (in other cases too much is "
        "cut). What decides: wrong last fetched epoch in the request (missing, or not that of the log's "
        'end), thus the divergence check is skipped or wrong. Half: "the leader did not answer with a '
        'diverging epoch / accepted a diverging fetch", "the follower did not truncate its old tail". Not '
        'enough: "the logs differ / two records at one offset", or blaming the leader\'s check, fencing, or '
        "the election.",
        (
            Edit(
                _REPLICATION_FETCHER,
                "            state.epochs.latest,\n",
                "            replica.fetched_epoch,\n",
            ),
        ),
        VARIED_APPENDS,
    ),
    Flaw(
        "returns-still-shutting-down",
        "Registering a broker that is known already updates its entry in the metadata image in place: new "
        "broker epoch, incarnation, address, and fenced. What else is in the entry stays.",
        "The registration of a new incarnation does not reset `shutting_down`: the flag that the controlled "
        "shutdown of the previous incarnation set is kept, so the controller keeps the restarted broker "
        "fenced for ever, whatever it has caught up with. What decides: the shutting-down mark of the "
        'earlier incarnation survives the new registration. Half: "stays fenced because it counts as '
        'shutting down" without saying that this comes from the life before. Not enough: "the broker is '
        'never unfenced / does not rejoin the ISR", "it has not caught up with the metadata", or partitions '
        "below min ISR as the cause.",
        (
            Edit(
                _METADATA_IMAGE,
                "            broker = BrokerImage(\n"
                "                record.id, epoch, record.incarnation, record.host, "
                "record.port, fenced=True, shutting_down=False\n"
                "            )\n",
                "            known = image.brokers.get(record.id) or BrokerImage(\n"
                "                record.id, epoch, record.incarnation, record.host, "
                "record.port, fenced=True, shutting_down=False\n"
                "            )\n"
                "            broker = replace(\n"
                "                known, epoch=epoch, incarnation=record.incarnation, "
                "host=record.host, port=record.port, fenced=True\n"
                "            )\n",
            ),
        ),
        VARIED_APPENDS,
    ),
    Flaw(
        "high-watermark-skips-unknown",
        "A follower that has not fetched in this leadership yet has no position, so it is left out of the "
        "minimum from which the leader computes its high watermark.",
        "The high watermark was advanced without the position of an ISR member that had not fetched in this "
        "leadership yet (unknown position skipped instead of holding it); so a new leader commits and "
        "acknowledges records that it alone holds. What decides: a member of the ISR with an unknown "
        'position / before its first fetch from the new leader was ignored. Half: "the high watermark was '
        'above the log end of an ISR member" without that its position was not known. Not enough: '
        '"acknowledged records were lost at the next election", "a too small ISR" (the ISR counts as large '
        'enough), or "the maximal ISR / a change in flight was ignored".',
        (
            Edit(
                _REPLICATION_LEADER,
                "            return PartitionStep(partition)\n",
                "            continue\n",
            ),
        ),
        VARIED_APPENDS,
    ),
    Flaw(
        "snapshot-without-fenced-brokers",
        "A metadata snapshot leaves out brokers that are fenced: they are no part of the working cluster, "
        "and register when they come back.",
        "The metadata snapshot lacks the brokers that were fenced when it was taken; a broker that was only "
        "cut off or paused does not register again but is unfenced in its old registration, so whoever "
        "loads the snapshot (a restarted controller, a node that lagged) does not know the broker: its "
        "heartbeats get BROKER_ID_NOT_REGISTERED, and a later change of it cannot be applied and ends the "
        "process. What decides: the snapshot without the fenced broker (registration missing after "
        'loading/restart from a snapshot). Half: "a node cannot apply the metadata: change of a broker that '
        'is not registered" or "images of the metadata differ between nodes" without the snapshot. Not '
        'enough: "a controller/broker crashes, does not start, no controller is active", "the broker is '
        'never unfenced".',
        (
            Edit(
                _RAFT_SNAPSHOTS,
                "    for broker in image.brokers.values():\n",
                "    for broker in image.brokers.values():\n"
                "        if broker.fenced:\n"
                "            continue  # it registers when it comes back\n",
            ),
        ),
        VARIED_GROUPS,
    ),
    Flaw(
        "unfence-elects-isr-only",
        "When a broker is unfenced, leaders are elected for the partitions without an active one, but only "
        "where the broker is in the ISR: nobody else may be elected because of it.",
        "Unfencing a broker elects no leader for partitions where it is eligible through the ELR (or as the "
        "last known leader) rather than the ISR: when the ISR is empty, its return changes nothing, and the "
        "partition stays without a leader although an eligible replica is active. What decides: the "
        "election upon unfencing is left out because the broker is not in the ISR, but in the ELR / "
        'LastKnownELR. Half: "no leader was elected although an eligible replica is back (unfenced)" '
        'without ISR against ELR. Not enough: "the partition has no leader / stays unavailable", "ISR is '
        'empty", or an unclean shutdown as the cause.',
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
        VARIED_GROUPS,
    ),
    Flaw(
        "log-start-renamed-unsynced",
        "The log-start checkpoint is written to a temporary file and renamed, which is atomic: after a "
        "crash there is the old checkpoint or the new one, so the content is not synced.",
        "The content of the log-start checkpoint is not synced before it is renamed into place; a power "
        "loss leaves the durable name with empty or torn content, the log start is unknown, and the node "
        "(controller after a trim of the metadata log, broker after DeleteRecords) cannot open its log and "
        "never starts again. What decides: log-start checkpoint not fsynced (lost or damaged by the power "
        'loss). Half: "the log-start checkpoint is damaged, so the node cannot start" without the missing '
        'sync / power loss. Not enough: "the node does not come back after a power loss", "a disk error", '
        "lost quorum or ISR too small.",
        (
            Edit(
                _LOG_LOG_START_CHECKPOINT,
                "from images.broker.runtime.files import read_whole, write_durably\n",
                "from images.broker.runtime.files import TEMPORARY_SUFFIX, read_whole\n",
            ),
            Edit(
                _LOG_LOG_START_CHECKPOINT,
                '    write_durably(files, f"{directory}/{LOG_START_CHECKPOINT}", text.encode())\n',
                '    path = f"{directory}/{LOG_START_CHECKPOINT}"\n'
                "    temporary = path + TEMPORARY_SUFFIX\n"
                "    files.delete(temporary)\n"
                "    file = files.open(temporary)\n"
                "    file.append(text.encode())\n"
                "    file.close()\n"
                "    files.rename(temporary, path)  # atomic: a crash leaves the old checkpoint "
                "or the new one\n"
                "    files.sync_directory(directory)\n",
            ),
        ),
        VARIED_APPENDS,
    ),
    Flaw(
        "last-answer-decides",
        "Whether a batch of the producer may have been appended is decided by the answer it got: an error "
        "that a broker gives only before it appends says that it was not.",
        "The producer lets the last answer decide whether a batch may be in a log: a certain error (such as "
        "NOT_ENOUGH_REPLICAS) to a retry wipes out that an earlier attempt (timeout, NOT_LEADER, lost "
        "connection) may have been appended; so it reports `fail` for a record that is in the log, or sends "
        "it again under a new sequence as a new record. What decides: the client (producer), an earlier "
        'attempt appended / its uncertainty forgotten because of a later refusal. Half: "the producer '
        'reported fail although the batch had been appended by an earlier attempt" without the later '
        'refusal; or "sent it again under new numbers". Not enough: "a failed append was read", "a record '
        "twice\", or blaming the broker's deduplication or the leader.",
        (
            Edit(
                _WORKLOADS_CLIENTS_PARTITION_SENDER,
                "        if code not in NEVER_APPENDED:\n            batch.may_be_appended = True\n",
                "        batch.may_be_appended = code not in NEVER_APPENDED\n",
            ),
        ),
        VARIED_APPENDS,
    ),
    Flaw(
        "isr-change-sent-once",
        "An AlterPartition whose answer is lost may have been committed, so it is not sent again: the "
        "leader stays on the maximal ISR and the metadata will tell.",
        "The leader does not send an ISR change again after its request or answer was lost (connection lost "
        "or timed out); if the controller never committed it, no metadata ever resolves it, the change "
        "stays 'in flight', and since only one may be, the leader proposes no other: followers that have "
        "caught up never come back (or a lagging one never leaves), until something else changes the "
        "partition. What decides: the lost AlterPartition was not retried, so the proposal hangs for good. "
        'Half: "an ISR change is in flight for ever / was never resolved" without why. Not enough: "a '
        'replica that has caught up is not in the ISR", "below min.insync.replicas", "the high watermark '
        'stands still", or a refusal by the controller.',
        (
            Edit(
                _REPLICATION_ALTER_PARTITION_MANAGER,
                "                certain = certain and not lost.sent\n",
                "                if lost.sent:\n"
                "                    return  # it may be committed: the metadata will tell\n",
            ),
        ),
        VARIED_APPENDS,
    ),
)
