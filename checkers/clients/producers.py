"""Idempotent producers: their batches stand in the log in the order they were sent, each once, without gaps.

An idempotent producer numbers its batches, and a leader appends a batch only behind its predecessor. So, whatever is
killed, delayed or retried, also with several batches in flight:

producer-order        a producer's append has a lower offset than one that it had invoked before on the same partition
sequence-gap          in one log, a record's sequence number does not follow the last one of its producer id; with a new
                      producer epoch sequence numbers begin at 0
producer-epoch-fell   in one log, a record of a producer id has a lower producer epoch than the one before it
producer-id-twice     two producers wrote with one producer id: it was handed out twice

*Order* compares acknowledged appends by the index of their invocation, overlapping or not; real-time order
(`checkers.linearizability`) binds only those that do not overlap. With acks=1 an acknowledged record may be lost and
its offset reused, so only appends count that a poll returned where they were acknowledged; with acks=0 there are none.
Unclean elections and losses beyond the fault model excuse it.

*Sequence numbers* are compared within each replica's log, as it was found on its disk. A leader derives the state of
its producers from its own log alone, and other logs are copies, so this holds for uncommitted records, after
truncations, unclean elections and power losses, too. Three things are no violation:
- the first record of a producer id in a log may have any sequence number and epoch: a leader that does not know the id
  accepts every one, as Kafka's does, and the records before it may have been deleted or lost;
- where records were deleted (`checkers.deletions`), a replica that began anew at the log start knows no producer from
  before, and as a leader it accepts any sequence number. So a record whose predecessor may have been deleted counts in
  the figures only;
- a leader that has forgotten a producer, whose state had expired, accepts any sequence number of it, as Kafka's does.
  Where it did so, as the trace tells (`checkers.deletions.forgetful_appends`), a record is not compared with one from
  before; and a batch that it has appended a second time, once more, has its place in the *order* where it stood first.
  Without a trace sequence numbers and epochs are not compared where `producer.id.expiration.ms` is not far longer than
  the run.

*Producer ids* are joined by value: the history says which process appended it, the logs which id it has. Controllers
hand out ids in blocks, from their committed metadata, so only a disk of a controller that lies about fsync excuses an
id given twice; the verdict is then `unknown`, unless both had been given away before it lied.

The verdict is `unknown` when no log has a record of the partition, although one was acknowledged that nothing has
deleted: sequence numbers are nowhere else.

Blind spots: a producer id given to two producers that never write to the same partition; a gap before the first record
of a producer id; records of a compacted topic, which are taken for missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from checkers.deletions import ForgetfulAppend, forgetful_appends
from checkers.evidence import EXCUSES, SEQUENCE_MODULUS, EvidencePart, RunEvidence, producers_may_expire
from checkers.fault_model import check_partitions, lied_since
from checkers.verdict import Finding, Verdict
from checkers.violations import Tolerance, Violations, verdict_of
from workloads.columns import APPEND, FOREIGN, NEVER, OK, Columns, Int64, numbers
from workloads.history import TopicPartition

NAME = "producers"
RESTS_ON = EXCUSES | {EvidencePart.HISTORY, EvidencePart.REPLICAS}


def check(evidence: RunEvidence) -> Verdict:
    """Every partition of a run."""
    check_one = partial(
        check_partition,
        acks=evidence.settings.acks,
        expiration_ms=NEVER if evidence.settings.has_ordered_trace else evidence.settings.producers_kept_ms,
        forgetful=forgetful_appends(evidence),
        controllers_lied_since={node: at for node, at in lied_since(evidence.faults).items() if node.startswith("c")},
    )
    return check_partitions(NAME, evidence, check_one, evidence.replicas)


def check_partition(
    history: pa.Table,
    replicas: pa.Table,
    *,
    topic: str = "",
    partition: int = -1,
    acks: int = -1,
    expiration_ms: int = NEVER,
    forgetful: Mapping[TopicPartition, Sequence[ForgetfulAppend]] = MappingProxyType({}),
    controllers_lied_since: Mapping[str, int] = MappingProxyType({}),
    tolerance: Tolerance | None = None,
) -> Verdict:
    """One partition of one run."""
    columns = Columns.from_table(history)
    appends = forgetful.get((topic, partition), ())
    log = _Batches(replicas, topic, partition, appends)
    ended_ns = int(columns.completed_ns[columns.completed_ns != NEVER].max(initial=0))
    expires = producers_may_expire(expiration_ms, ended_ns)
    order = _order(columns, acks, topic, partition, [each.offsets for each in appends if each.copies])
    first_ns = min(controllers_lied_since.values(), default=NEVER)
    twice, forgotten = _ids_twice(columns, log, first_ns)
    violations = [order, *([] if expires else log.violations()), twice]
    figures = {"producers": float(len(np.unique(log.producer_id))), "records": float(len(log.offset))}
    doubts = []
    tolerance = tolerance or Tolerance()
    if not replicas.num_rows and acks != 0 and _has_stayed(columns, tolerance):
        doubts.append(Finding("logs-missing", ("no replica's log has a record of this partition",), topic, partition))
    if len(forgotten):
        liar = min(controllers_lied_since, key=controllers_lied_since.__getitem__)
        lines = (*forgotten.explain(0).lines, f"the disk of {liar} lied about fsync: it may have forgotten")
        doubts.append(Finding("fsync-lies", lines, topic, partition))
    return verdict_of(NAME, violations, tolerance, figures, doubts)


def _has_stayed(columns: Columns, tolerance: Tolerance) -> bool:
    """Whether some acknowledged record must be in the logs. One acknowledged without an offset may be a deleted one,
    and an unclean election may have left nothing."""
    if tolerance.unclean:
        return False
    deleted_below = tolerance.deleted_below
    acknowledged = (columns.kind == APPEND) & (columns.outcome == OK)
    return bool((acknowledged & ((columns.offset >= deleted_below) | (deleted_below == 0))).any())


def _order(columns: Columns, acks: int, topic: str, partition: int, repeated: Sequence[range]) -> Violations:
    """Acknowledged appends below the greatest offset of those that their producer had invoked before. One that stands
    at these offsets for a second time is left out."""
    counts = (columns.kind == APPEND) & (columns.outcome == OK) & (columns.offset >= 0)
    for again in repeated:
        counts &= (columns.offset < again.start) | (columns.offset >= again.stop)
    if acks != -1:
        counts &= _polled_in_place(columns)
    rows = np.flatnonzero(counts)
    index = columns.index if len(columns.index) else np.arange(len(columns), dtype=np.int64)
    rows = rows[np.lexsort((index[rows], columns.process[rows]))] if len(columns.process) else rows[:0]
    offsets = columns.offset[rows]
    # One running maximum for all producers: each producer's offsets are lifted above all those of the one before.
    _, group = np.unique(columns.process[rows], return_inverse=True) if len(rows) else (rows, rows)
    lifted = offsets + group * (int(offsets.max(initial=0)) + 1)
    highest = np.maximum.accumulate(lifted) if len(rows) else lifted
    falls = np.flatnonzero(lifted[1:] <= highest[:-1]) + 1
    above = np.searchsorted(highest, highest[falls - 1]) if len(falls) else falls
    later, earlier = rows[falls], rows[above]

    def explain(number: int) -> Finding:
        before, after = int(earlier[number]), int(later[number])
        reason = f"process {columns.process[after]} invoked #{columns.index_of(before)} first, and its offset is higher"
        return Finding(
            "producer-order",
            (columns.describe(before), columns.describe(after), reason),
            topic,
            partition,
            (columns.index_of(before), columns.index_of(after)),
            (int(columns.offset[before]), int(columns.offset[after])),
            int(columns.completed_ns[after]),
        )

    return Violations(
        "producer-order",
        columns.offset[later],
        np.maximum(columns.completed_ns[earlier], columns.completed_ns[later]),
        explain,
        columns.invoked_ns[earlier],
    )


def _polled_in_place(columns: Columns) -> npt.NDArray[np.bool_]:
    """Which rows have an offset and a value that some poll returned together."""
    claimed = np.concatenate([columns.value, columns.poll_value])
    _, rank = np.unique(claimed, return_inverse=True)
    offset = np.concatenate([columns.offset, columns.poll_offset])
    pair = rank * (int(offset.max(initial=0)) + 1) + np.maximum(offset, 0)
    return np.isin(pair[: len(columns)], pair[len(columns) :])


class _Batches:
    """The records of idempotent producers in every log of a partition, ordered by node, producer id and offset."""

    def __init__(
        self, replicas: pa.Table, topic: str, partition: int, forgetful: Sequence[ForgetfulAppend] = ()
    ) -> None:
        self.topic, self.partition = topic, partition
        self._forgotten_below = {
            (offset, each.leader_epoch): each.forgotten_below for each in forgetful for offset in each.offsets
        }
        nodes = replicas.column("node").to_pylist()
        self.names = sorted(set(nodes))
        node = np.searchsorted(self.names, nodes) if nodes else np.empty(0, dtype=np.int64)
        columns = {name: numbers(replicas.column(name), FOREIGN) for name in _READ}
        chosen = np.flatnonzero((columns["producer_id"] >= 0) & (columns["sequence"] >= 0))
        order = np.lexsort((columns["offset"][chosen], columns["producer_id"][chosen], node[chosen]))
        chosen = chosen[order]
        self.node = node[chosen]
        self.producer_id, self.epoch, self.sequence, self.offset, self.value, self.leader_epoch = (
            columns[name][chosen] for name in _READ
        )

    def violations(self) -> list[Violations]:
        """Records that do not follow the one before of their producer id in the same log."""
        same = (self.node[1:] == self.node[:-1]) & (self.producer_id[1:] == self.producer_id[:-1])
        step = self.epoch[1:] - self.epoch[:-1]
        due = np.where(step > 0, 0, (self.sequence[:-1] + 1) % SEQUENCE_MODULUS)
        same &= ~self._forgotten_before()
        gaps = np.flatnonzero(same & (step >= 0) & (self.sequence[1:] != due)) + 1
        falls = np.flatnonzero(same & (step < 0)) + 1
        return [self._of("sequence-gap", gaps), self._of("producer-epoch-fell", falls)]

    def _forgotten_before(self) -> npt.NDArray[np.bool_]:
        """Of which records the leader that appended them had forgotten the one before."""
        below = [
            self._forgotten_below.get((offset, epoch), 0)
            for offset, epoch in zip(self.offset[1:].tolist(), self.leader_epoch[1:].tolist(), strict=True)
            if self._forgotten_below
        ]
        return self.offset[:-1] < np.array(below or [0], dtype=np.int64)

    def _of(self, kind: str, records: Int64) -> Violations:
        """Each record once, though several logs may hold it. Its violation stands at the offset of its predecessor:
        where that may have been deleted, the producer's state may have been, too."""
        _, first = np.unique(self.offset[records], return_index=True)
        records = records[np.sort(first)]
        return Violations(
            kind,
            self.offset[records - 1],
            np.full(len(records), NEVER, dtype=np.int64),
            partial(self._explain, kind, records),
        )

    def _explain(self, kind: str, records: Int64, number: int) -> Finding:
        after = int(records[number])
        lines = (self._describe(after - 1), self._describe(after), "nothing of this producer id stands between them")
        return Finding(
            kind, lines, self.topic, self.partition, offsets=(int(self.offset[after - 1]), int(self.offset[after]))
        )

    def _describe(self, record: int) -> str:
        value = "no client's value" if self.value[record] == FOREIGN else f"value {self.value[record]}"
        return (
            f"{self.names[self.node[record]]} holds {value} at offset {self.offset[record]}: producer id "
            f"{self.producer_id[record]}, producer epoch {self.epoch[record]}, sequence {self.sequence[record]}"
        )


_READ = ("producer_id", "producer_epoch", "sequence", "offset", "value", "leader_epoch")


def _ids_twice(columns: Columns, log: _Batches, lied_since_ns: int) -> tuple[Violations, Violations]:
    """Records of a producer id that another process than its first one appended: first those whose appends had
    both completed before controllers may have forgotten which ids they had given away."""
    appends = np.flatnonzero(columns.kind == APPEND)
    appends = appends[np.argsort(columns.value[appends], kind="stable")]
    known = np.flatnonzero(np.isin(log.value, columns.value[appends]))
    rows = appends[np.searchsorted(columns.value[appends], log.value[known])] if len(known) else known
    order = np.lexsort((log.offset[known], log.producer_id[known]))
    known, rows = known[order], rows[order]
    ids, first = np.unique(log.producer_id[known], return_index=True)
    owner = first[np.searchsorted(ids, log.producer_id[known])]
    process = columns.process[rows] if len(columns.process) else np.zeros(len(rows), dtype=np.int32)
    others = np.flatnonzero(process != process[owner])
    _, once = np.unique(log.producer_id[known[others]], return_index=True)
    others = others[once]

    def explain(number: int) -> Finding:
        at, of = int(others[number]), int(owner[others[number]])
        reason = f"process {process[of]} and process {process[at]} wrote with producer id {log.producer_id[known[at]]}"
        one, other = int(rows[of]), int(rows[at])
        return Finding(
            "producer-id-twice",
            (columns.describe(one), columns.describe(other), reason),
            log.topic,
            log.partition,
            (columns.index_of(one), columns.index_of(other)),
            (int(log.offset[known[of]]), int(log.offset[known[at]])),
        )

    both = Violations(
        "producer-id-twice", log.offset[known[others]], np.full(len(others), NEVER, dtype=np.int64), explain
    )
    completed_ns = np.maximum(columns.completed_ns[rows[others]], columns.completed_ns[rows[owner[others]]])
    before = (completed_ns < lied_since_ns) | (lied_since_ns == NEVER)
    return both.chosen(np.flatnonzero(before)), both.chosen(np.flatnonzero(~before))
