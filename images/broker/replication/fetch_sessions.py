"""Incremental fetch sessions (KIP-227): a fetch and its answer leave out what has not changed since the last ones.

The leader keeps the sessions in a `FetchSessionCache`: for each session the partitions as the client last sent them,
and the offsets of the last answer. The client keeps a `FetchSessionHandler` with what it sent. A request has the id of
its session and an epoch that counts its requests:

    session, epoch   partitions in the request      partitions in the answer                 session
    ---------------  -----------------------------  ---------------------------------------  --------------------------
    any, -1          all                            all                                      is closed; none is created
    any, 0           all                            all                                      is closed; one is created
    s, n > 0         those that changed, those      those with records, an error, a          s goes on, if n is its next
                     whose answer was discarded,    divergence, or another high watermark    epoch
                     and those to forget            or log start than in the last answer;
                                                    those that a follower names

A follower discards the answer for a partition whose offset or leader epoch has changed since the request. It then names
the partition, and the leader answers for it even if nothing has changed since the discarded answer: else the follower
would never read of the high watermark and log start in it. Consumers keep neither, and are answered as by Kafka, which
leaves such a partition out for followers, too. An answer with a partition that was not asked for is discarded as a
whole, as in Kafka: the leader has the session otherwise than the follower.

A session that has no partition left is closed, and its last request is served without a session. A session that does
not exist is answered with FETCH_SESSION_ID_NOT_FOUND (70), an epoch out of turn with INVALID_FETCH_SESSION_EPOCH (71),
a request by name for a session by id, or the other way round, with FETCH_SESSION_TOPIC_ID_ERROR (106). Of a partition
twice in a request the last entry counts. A session saves bytes and no checks: each of its fetches reads every
partition, with the leader epoch that the client last sent for it, so it is fenced like any other fetch.

If all slots are taken, a new session replaces the one that has been idle longest, provided it has been idle for long
enough, or belongs to a consumer while the new one belongs to a follower. Otherwise the request is served without a
session, whose id is then 0.

A session whose requests name topics (up to version 12) keeps the names, and each of its fetches looks them up anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Final, NamedTuple

from kio.schema.errors import ErrorCode

from images.broker.rules import Rules
from images.wire.field_values import NO_ERROR

NO_SESSION: Final = 0
FINAL_EPOCH: Final = -1
"""The epoch of a request outside of any session."""
INITIAL_EPOCH: Final = 0
"""The epoch of a request that creates a session."""
_LAST_EPOCH: Final = (1 << 31) - 1

Key = tuple[Any, int]
"""A topic's id and a partition's index."""


class SessionPartition(NamedTuple):
    """One partition of a fetch."""

    topic_id: Any
    partition: Any

    def unfenced(self) -> SessionPartition:
        """The partition without a leader epoch."""
        return SessionPartition(self.topic_id, replace(self.partition, current_leader_epoch=-1))


@dataclass(slots=True, eq=False)
class FetchSession:
    """One client's partitions at a leader, in the order in which they are served."""

    id: int
    of_follower: bool
    used_s: float
    names: dict[Any, str] | None = None
    """The topics by name, by the id that stands for each; None in a session by id."""
    epoch: int = 1
    """The epoch of the next request."""
    requested: dict[Key, SessionPartition] = field(default_factory=dict)
    """Each partition as the client last sent it."""
    last_answer: dict[Key, tuple[int, int]] = field(default_factory=dict)
    """The high watermark and log start of each partition in its last answer; none for a partition that a follower has
    named since."""
    served_topics: set[int] = field(default_factory=set)
    """The topics that have been answered without an error, by id as a number."""

    def partitions(self, unfenced: Set[Key] = frozenset()) -> list[SessionPartition]:
        """Every partition of the session; those in `unfenced` without a leader epoch."""
        if not unfenced:
            return list(self.requested.values())
        return [sent.unfenced() if key in unfenced else sent for key, sent in self.requested.items()]

    def has_served(self, topic_id: Any) -> bool:
        """Whether a partition of this topic has ever been answered without an error."""
        return topic_id is not None and topic_id.int in self.served_topics

    def answered(self, key: Key, high_watermark: int, log_start: int, *, records: bool) -> bool:
        """Record the answer for a partition; returns whether its offsets differ from those of the last one. A partition
        that had records comes after the others in the next fetch."""
        answer = (high_watermark, log_start)
        differs = self.last_answer.get(key) != answer
        if differs:
            self.last_answer[key] = answer
            if high_watermark >= 0:
                self.served_topics.add(key[0].int)
        if records and key in self.requested:
            self.requested[key] = self.requested.pop(key)
        return differs


class FetchContext(NamedTuple):
    """The partitions to serve for a request, and its session."""

    error: ErrorCode = NO_ERROR
    partitions: list[SessionPartition] = []  # noqa: RUF012  (never changed)
    session: FetchSession | None = None
    incremental: bool = False


class FetchSessionCache:
    """The sessions at one broker."""

    def __init__(
        self, slots: int, resting_s: float, clock: Callable[[], float], random: Random, rules: Rules | None = None
    ) -> None:
        self._rules = rules or Rules()
        self._slots = slots
        self._resting_s = resting_s
        self._clock = clock
        self._random = random
        self._sessions: dict[int, FetchSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, request: Any, *, of_follower: bool, names: Mapping[Any, str] | None = None) -> FetchContext:
        """The partitions of a FetchRequest, and its session if it continues or creates one. `names` has the topics of
        a request by name."""
        requested = {
            (topic.topic_id, part.partition): SessionPartition(topic.topic_id, part)
            for topic in request.topics
            for part in topic.partitions
        }
        if request.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            self._sessions.pop(request.session_id, None)
            creates = request.session_epoch == INITIAL_EPOCH
            session = self._create(requested, of_follower, names) if creates else None
            return FetchContext(partitions=list(requested.values()), session=session)
        session = self._sessions.get(request.session_id)
        if session is None:
            return FetchContext(ErrorCode.fetch_session_id_not_found)
        if (names is None) is not (session.names is None):
            return FetchContext(ErrorCode.fetch_session_topic_id_error)
        if request.session_epoch != session.epoch:
            return FetchContext(ErrorCode.invalid_fetch_session_epoch)
        session.epoch = next_epoch(session.epoch)
        session.used_s = self._clock()
        session.requested.update(requested)
        if session.of_follower:
            for key in requested:
                session.last_answer.pop(key, None)
        for topic in request.forgotten_topics_data:
            for index in topic.partitions:
                session.requested.pop((topic.topic_id, index), None)
                session.last_answer.pop((topic.topic_id, index), None)
        if session.names is not None and names is not None:
            every_name = {**session.names, **names}
            session.names = {topic_id: every_name[topic_id] for topic_id, _ in session.requested}
        if not session.requested:
            del self._sessions[session.id]
            return FetchContext(partitions=list(requested.values()))
        fenced = self._rules.fence_every_session_fetch
        unfenced = frozenset() if fenced else session.requested.keys() - requested.keys()
        return FetchContext(partitions=session.partitions(unfenced), session=session, incremental=True)

    def _create(
        self, requested: dict[Key, SessionPartition], of_follower: bool, names: Mapping[Any, str] | None
    ) -> FetchSession | None:
        now_s = self._clock()
        if len(self._sessions) >= self._slots and not self._evict(now_s, of_follower):
            return None
        number = NO_SESSION
        while number == NO_SESSION or number in self._sessions:
            number = self._random.randrange(1, _LAST_EPOCH)
        kept_names = None if names is None else dict(names)
        session = self._sessions[number] = FetchSession(number, of_follower, now_s, kept_names)
        session.requested = requested
        return session

    def _evict(self, now_s: float, of_follower: bool) -> bool:
        if not self._sessions:
            return False
        oldest = min(self._sessions.values(), key=lambda session: session.used_s)
        if now_s - oldest.used_s < self._resting_s:
            consumers = [session for session in self._sessions.values() if not session.of_follower]
            if not of_follower or not consumers:
                return False
            oldest = min(consumers, key=lambda session: session.used_s)
        del self._sessions[oldest.id]
        return True


class SessionRequest(NamedTuple):
    """The session fields of a Fetch request."""

    session_id: int
    epoch: int
    changed: list[SessionPartition]
    forgotten: list[Key]


class FetchSessionHandler:
    """The client's side of one session, with one request in flight at a time."""

    def __init__(self) -> None:
        self._id = NO_SESSION
        self._epoch = INITIAL_EPOCH
        self._sent: dict[Key, Any] = {}
        """Each partition as last sent, None if its answer was discarded."""

    def next_request(self, wanted: Mapping[Key, Any]) -> SessionRequest:
        """The session fields of a request for exactly these partitions."""
        before = self._sent if self._epoch != INITIAL_EPOCH else {}
        changed = [
            SessionPartition(key[0], part)
            for key, part in wanted.items()
            if (sent := before.get(key)) is not part and sent != part  # nearly all are the very same object
        ]
        forgotten = [key for key in before if key not in wanted]
        self._sent = dict(wanted)
        return SessionRequest(self._id, self._epoch, changed, forgotten)

    def answered(self, error: ErrorCode, session_id: int) -> bool:
        """Process the answer to the last request. False for a session error: the next request is a full one."""
        if error is not NO_ERROR:
            if error is ErrorCode.fetch_session_id_not_found:
                self._id = NO_SESSION
            self._epoch = INITIAL_EPOCH
            return False
        if self._epoch != INITIAL_EPOCH:
            # Without partitions the session is closed, and the next request must open another.
            self._epoch = next_epoch(self._epoch) if session_id != NO_SESSION else INITIAL_EPOCH
        elif session_id != NO_SESSION:
            self._id, self._epoch = session_id, 1
        return True

    def discarded(self, key: Key) -> None:
        """The answer for this partition was discarded: the next request names it, even if it has not changed."""
        if key in self._sent:
            self._sent[key] = None

    def begin_anew(self) -> None:
        """The leader may have the session otherwise, since the last request may not have arrived, or was answered for
        partitions that are not in it: the next request is a full one and closes the session."""
        self._epoch = INITIAL_EPOCH


def next_epoch(epoch: int) -> int:
    """The epoch after `epoch`; after the last one comes 1."""
    return 1 if epoch >= _LAST_EPOCH else epoch + 1
