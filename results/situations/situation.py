"""The situation of a partition: relations between its replicas and the controllers' decision, without numbers or names.

The code of a situation has a word for the partition and, sorted, one for each replica. So it is the same for brokers
with other ids, for longer logs and for later epochs, and in every process.

    L> FI--i=sc LI--.>rc fo-uo<sb

A letter has one meaning at its place in a word (`PARTITION_WORD`, `REPLICA_WORD`); `-` and `.` have nothing to say. A
replica is described in relation to the *acting leader*, which leads in the leader epoch of the controllers' last
decision, and to the *committed records*, all that were ever below a leader's high watermark: so the letters of its log
say how close the high watermark is to passing the end of a member of the ISR.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from hashlib import blake2b
from typing import Final, NamedTuple

from results.situations.facts import UNKNOWN, PartitionFacts, ReplicaFacts

_ID_BYTES: Final = 6

_Letters = Mapping[str, Mapping[str, str]]
"""Subject of each place of a word → what a letter says there."""
PARTITION_WORD: Final[_Letters] = {
    "leader": {
        "N": "no leader is elected",
        "E": "the elected leader has not taken over",
        "L": "the elected leader leads",
    },
    "ISR": {
        "<": "the ISR is below min.insync.replicas",
        "=": "the ISR is at min.insync.replicas",
        ">": "the ISR is above min.insync.replicas",
    },
}
REPLICA_WORD: Final[_Letters] = {
    "role": {
        "L": "leader",
        "l": "leader of an older epoch",
        "p": "leader of an older epoch with an ISR change in flight",
        "F": "follower",
        "f": "follower in an older epoch",
        "n": "replica without a role",
    },
    "decision": {
        "I": "in the ISR",
        "E": "in the ELR",
        "o": "out of the ISR",
        "A": "being added and in the ISR",
        "a": "being added",
    },
    "session": {"x": "fenced", "-": ""},
    "incarnation": {"u": "shut down uncleanly since it was in the ISR", "-": ""},
    "leader's view": {
        "i": "counted in the ISR by the leader",
        "o": "not counted in the ISR by the leader",
        "+": "proposed to join the ISR",
        "-": "proposed to leave the ISR",
        "?": "perhaps added by an abandoned ISR change",
        "p": "with an ISR change in flight",
        ".": "",
    },
    "records": {
        "<": "lacks committed records",
        "=": "ends with the committed records",
        ">": "has records that are not committed",
    },
    "log": {
        "s": "log shorter than the leader's",
        "g": "log short of the leader's epoch start",
        "=": "log like the leader's",
        "l": "log longer than the leader's",
        "d": "log diverges from the leader's",
        "b": "high watermark below its epoch start",
        "n": "no record of its own epoch",
        "r": "records of its own epoch",
        ".": "",
    },
    "high watermark": {"c": "", "b": "does not know all committed records"},
}
_EXPECTED: Final = {"I": "i", "A": "i", "E": "o", "o": "o", "a": "o"}
"""The place of a replica → the letter of a leader that knows it."""


class ProtocolSituation(NamedTuple):
    """A situation, by its code."""

    code: str

    @property
    def id(self) -> str:
        """A short name for it, the same everywhere."""
        return blake2b(self.code.encode(), digest_size=_ID_BYTES).hexdigest()

    @property
    def sentence(self) -> str:
        """The situation in words."""
        partition, *replicas = self.code.split(" ")
        counts = Counter(sorted(replicas, key=lambda word: (word[0] != "L", word)))
        described = [f"{count} × {_words(word)}" if count > 1 else _words(word) for word, count in counts.items()]
        heads = (letters[letter] for letters, letter in zip(PARTITION_WORD.values(), partition, strict=True))
        return f"{', '.join(heads)}: {'; '.join(described)}"


class Transition(NamedTuple):
    """A kind of event, with the situations before and after it."""

    event: str
    before: ProtocolSituation | None
    after: ProtocolSituation

    @property
    def name(self) -> str:
        """The kind of event and the ids of both situations."""
        return f"{self.event} {self.before.id if self.before else 'none'}→{self.after.id}"


def code_of(partition: PartitionFacts, fenced: Collection[int]) -> str:
    """The code of the situation of a partition about which the controllers have decided; `fenced` are the fenced
    brokers."""
    leader = _acting_leader(partition)
    head = "N" if partition.leader < 0 else "E" if leader is None else "L"
    spare = len(partition.isr) - partition.min_isr
    words = [head + ("<" if spare < 0 else ">" if spare else "=")]
    words += sorted(_word(partition, leader, broker, broker in fenced) for broker in partition.members)
    return " ".join(words)


def _acting_leader(partition: PartitionFacts) -> ReplicaFacts | None:
    elected = partition.replicas.get(partition.leader)
    if elected is None or not elected.leads or elected.leader_epoch < partition.leader_epoch:
        return None
    return elected


def _word(partition: PartitionFacts, leader: ReplicaFacts | None, broker: int, fenced: bool) -> str:
    replica = partition.replica(broker)
    log, committed = replica.log, partition.committed
    if broker in partition.adding:
        place = "A" if broker in partition.isr else "a"
    else:
        place = "I" if broker in partition.isr else "E" if broker in partition.elr else "o"
    if log.end < committed or (committed and _differ(log.epoch_at(committed - 1), partition.committed_epoch)):
        records = "<"
    else:
        records = ">" if log.end > committed else "="
    if replica is leader:
        role, view = "L", "." if leader.proposed is None else "p"
        relation = "b" if leader.high_watermark < leader.epoch_start else "n" if log.end == leader.epoch_start else "r"
    else:
        role, view, relation = _role(replica, partition.leader_epoch), ".", "."
        if leader is not None:
            view, relation = _counted(leader, broker), _relation(replica, leader)
    return (
        f"{role}{place}{'x' if fenced else '-'}{'u' if broker in partition.unclean else '-'}{view}{records}{relation}"
        f"{'c' if replica.high_watermark >= committed else 'b'}"
    )


def _role(replica: ReplicaFacts, leader_epoch: int) -> str:
    if replica.leads is None:
        return "n"
    if replica.leads:
        return "l" if replica.proposed is None else "p"
    return "F" if replica.leader_epoch >= leader_epoch else "f"


def _counted(leader: ReplicaFacts, broker: int) -> str:
    """The place that the acting leader gives to another replica."""
    counted = broker in leader.isr
    if leader.proposed is not None and counted != (broker in leader.proposed):
        return "-" if counted else "+"
    return "i" if counted else "?" if broker in leader.unresolved else "o"


def _relation(replica: ReplicaFacts, leader: ReplicaFacts) -> str:
    """The log of a replica beside the acting leader's. Logs that agree in the epoch of a record agree in all before."""
    log, other = replica.log, leader.log
    shared = min(log.end, other.end)
    if shared and _differ(log.epoch_at(shared - 1), other.epoch_at(shared - 1)):
        return "d"
    if log.end >= other.end:
        return "=" if log.end == other.end else "l"
    return "g" if log.end < leader.epoch_start > leader.high_watermark else "s"


def _differ(one: int, other: int) -> bool:
    return one != other and UNKNOWN not in (one, other)


def _words(word: str) -> str:
    meanings = [letters[letter] for letters, letter in zip(REPLICA_WORD.values(), word, strict=True)]
    if word[4] == _EXPECTED[word[1]]:
        meanings[4] = ""
    return ", ".join(meaning for meaning in meanings if meaning)
