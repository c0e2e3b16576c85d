"""Incremental fetch sessions (KIP-227): what was asked and answered before is not said again.

The leader's side, `FetchSessions`, remembers for each session the partitions as they were last asked for, and what the
last answer told. The follower's side, `AskingSession`, remembers what it sent. A request names its session and an epoch
that counts its requests:

    session, epoch   the request names              the answer holds                         and the session
    ---------------  -----------------------------  ---------------------------------------  --------------------------
    any, -1          all partitions                 all of them                              ends; none is made
    any, 0           all partitions                 all of them                              ends; a new one is made
    s, n > 0         partitions that changed, and   those with records, an error, a diver-   s goes on, if n is its next
                     those to be forgotten          gence or another high watermark or log   epoch
                                                    start than told

A session that does not exist is answered with FETCH_SESSION_ID_NOT_FOUND (70), an epoch out of turn with
INVALID_FETCH_SESSION_EPOCH (71). Being remembered spares a partition nothing else: each fetch of a session asks every
partition of it anew, with the leader epoch it was last named with, so that a session is fenced like any other fetch.

When all slots are taken a new session replaces the one that has rested longest, if it has for so long, or if it is a
consumer's and the new one a follower's; otherwise the request is served without a session, whose id is then 0. So is a
request that names topics instead of their ids (up to version 12): a name whose topic is gone could not be told again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final, NamedTuple

from kio.schema.errors import ErrorCode

NO_SESSION: Final = 0
FULL_AND_NO_MORE: Final = -1
"""The epoch of a request outside of any session."""
FULL: Final = 0
"""The epoch of a request that asks for a session."""
_LAST_EPOCH: Final = (1 << 31) - 1

Key = tuple[Any, int]
"""A topic's id and a partition's index."""


class SessionPartition(NamedTuple):
    """One partition that a fetch asks for."""

    topic_id: Any
    partition: Any


@dataclass(slots=True, eq=False)
class FetchSession:
    """One client's partitions at a leader, in the order in which they are served."""

    id: int
    of_follower: bool
    used_s: float
    epoch: int = 1
    """Of the request that comes next."""
    asked: dict[Key, Any] = field(default_factory=dict)
    told: dict[Key, tuple[int, int]] = field(default_factory=dict)
    """The high watermark and log start that were last told."""

    def partitions(self) -> list[SessionPartition]:
        """Every partition of the session."""
        return [SessionPartition(topic_id, partition) for (topic_id, _), partition in self.asked.items()]

    def is_news(self, key: Key, high_watermark: int, log_start: int) -> bool:
        """Whether an answer without records still tells something new of a partition."""
        return self.told.get(key) != (high_watermark, log_start)

    def answered(self, key: Key, high_watermark: int, log_start: int, *, records: bool) -> None:
        """An answer for the partition leaves; one that had records is served after the others next time."""
        self.told[key] = (high_watermark, log_start)
        if records and key in self.asked:
            self.asked[key] = self.asked.pop(key)


class FetchContext(NamedTuple):
    """What a request comes to."""

    error: ErrorCode = ErrorCode.none
    asked: list[SessionPartition] = []  # noqa: RUF012  (never changed)
    session: FetchSession | None = None
    incremental: bool = False


class FetchSessionCache:
    """The sessions at one broker."""

    def __init__(self, slots: int, resting_s: float, clock: Callable[[], float], random: Random) -> None:
        self._slots = slots
        self._resting_s = resting_s
        self._clock = clock
        self._random = random
        self._sessions: dict[int, FetchSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, request: Any, *, of_follower: bool, by_name: bool = False) -> FetchContext:
        """The partitions that a FetchRequest asks for, and its session, if it has one or is given one."""
        named = [SessionPartition(topic.topic_id, part) for topic in request.topics for part in topic.partitions]
        if request.session_epoch in (FULL, FULL_AND_NO_MORE):
            self._sessions.pop(request.session_id, None)
            asks = request.session_epoch == FULL and named and not by_name
            session = self._make(named, of_follower) if asks else None
            return FetchContext(asked=named, session=session)
        session = self._sessions.get(request.session_id)
        if session is None:
            return FetchContext(ErrorCode.fetch_session_id_not_found)
        if request.session_epoch != session.epoch:
            return FetchContext(ErrorCode.invalid_fetch_session_epoch)
        session.epoch = next_epoch(session.epoch)
        session.used_s = self._clock()
        for topic_id, part in named:
            session.asked[topic_id, part.partition] = part
        for topic in request.forgotten_topics_data:
            for index in topic.partitions:
                session.asked.pop((topic.topic_id, index), None)
                session.told.pop((topic.topic_id, index), None)
        return FetchContext(asked=session.partitions(), session=session, incremental=True)

    def _make(self, named: Iterable[SessionPartition], of_follower: bool) -> FetchSession | None:
        now_s = self._clock()
        if len(self._sessions) >= self._slots and not self._make_room(now_s, of_follower):
            return None
        number = NO_SESSION
        while number == NO_SESSION or number in self._sessions:
            number = self._random.randrange(1, _LAST_EPOCH)
        session = self._sessions[number] = FetchSession(number, of_follower, now_s)
        session.asked = {(topic_id, part.partition): part for topic_id, part in named}
        return session

    def _make_room(self, now_s: float, of_follower: bool) -> bool:
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
    """What the next request of an asking session says."""

    session_id: int
    epoch: int
    named: list[SessionPartition]
    forgotten: list[Key]


class FetchSessionHandler:
    """A session as the one who fetches keeps it. One request at a time."""

    def __init__(self) -> None:
        self._id = NO_SESSION
        self._epoch = FULL
        self._asked: dict[Key, Any] = {}

    def next_request(self, wanted: Mapping[Key, Any]) -> SessionRequest:
        """How to ask for exactly these partitions."""
        before = self._asked if self._epoch != FULL else {}
        named = [
            SessionPartition(key[0], part)
            for key, part in wanted.items()
            if (asked := before.get(key)) is not part and asked != part  # nearly all are the very same
        ]
        forgotten = [key for key in before if key not in wanted]
        self._asked = dict(wanted)
        return SessionRequest(self._id, self._epoch, named, forgotten)

    def answered(self, error: ErrorCode, session_id: int) -> bool:
        """Take the answer to the last question; False when it was refused and has to be asked again, in full."""
        if error is not ErrorCode.none:
            if error is ErrorCode.fetch_session_id_not_found:
                self._id = NO_SESSION
            self._epoch = FULL
            return False
        if self._epoch != FULL:
            self._epoch = next_epoch(self._epoch)
        elif session_id != NO_SESSION:
            self._id, self._epoch = session_id, 1
        return True

    def broken(self) -> None:
        """Nobody knows whether the last question arrived: ask in full next time, and have what there was ended."""
        self._epoch = FULL


def next_epoch(epoch: int) -> int:
    """The epoch after `epoch`; after the last one comes 1."""
    return 1 if epoch >= _LAST_EPOCH else epoch + 1
