"""A topic that is written, deleted and created anew under its name while other faults are active.

A topic is known by its id, and its replicas are filed under its name: the directory of a log, the entry in a
checkpoint, the part of a metadata image. What is left of a deleted topic must not count for a new one of its name. The
topic of the run cannot be deleted, since everything that clients see rests on it; so this is a topic beside it, the
*side topic*, with one partition and as many replicas as those of the run have. Clients know nothing of it: what becomes
of its records is checked against the protocol trace alone, topic by topic (`CheckSettings.side_topics`).

A broker passes what an administrator asks for on to the controller. Where the answer is lost, the broker does not know
whether it was done, and may say nothing else (`answers`).

With `changes` each topic gets more partitions, other replicas, maybe fewer, and other configurations while it is
written, and every other is deleted by its id. A victim ends while a higher minimum of in-sync replicas needs it in the
ISR, and the strategy of unclean recovery changes when it is back.

With `dry_runs` most changes of a topic are tried before: a request that is only validated has the answer that the
change then has, and no effect. So are changes that are to be refused, at any time of the topic. And every broker is
asked now and then which reassignments are under way.

A victim that ends `earlier` is to miss that its topic is deleted and made anew. So each topic is placed on it, and what
it is to miss is asked for until it is done; then the new topic is left alone until the victim is back.

The administrator who writes to it takes any answer for one: a batch that is refused or lost is not sent again. So does
a group that `commits` offsets of it, which must not count for the next topic, at no coordinator of any time. It goes on
until the topic is deleted, so that a commit is under way when its coordinator reads of that. Before, another topic may
come and go, which is nothing to these offsets. The `coordinator` may be in trouble when the topic is deleted and made
anew, and takes commits for the new one as soon as it can. Several of these faults at a time share the topic, as
administrators do who know nothing of each other. In the end the topic is deleted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from random import Random
from typing import ClassVar, Final, Self

from nemesis.cluster_shape import ClusterShape
from nemesis.drawing import Draws
from nemesis.faults.administrators.admin import Reassign
from nemesis.faults.administrators.coordinator_trouble import CoordinatorTrouble, cut_coordinator_off
from nemesis.faults.administrators.requests import recorded, until_done
from nemesis.faults.administrators.topic_changes import TopicChanges
from nemesis.faults.fault import Family, Fault
from nemesis.faults.message import API_KEYS, NodeRequest
from nemesis.faults.scripted.script import until_event
from nemesis.handle import FaultHandle
from nemesis.ports import (
    DONE,
    PASSING_TOPIC,
    SIDE_GROUP,
    SIDE_TOPIC,
    AdminResult,
    EnvironmentCapability,
    KeepUnsynced,
    MessageEffect,
    MessagePart,
    MessageRule,
    both_ways,
    one_way,
)
from nemesis.situation import Event, Occurrence

_TOPICS_MAX = 4
"""Of a fault that is drawn."""
_TOPICS_OF_ADMINISTRATOR: Final = (3, 8)
_BATCHES_MAX = 12
"""Of a topic until it is deleted."""
_BATCH_RECORDS_MAX = 10
_PAUSE_SHARE = 0.2
"""Longest pause between two batches, in multiples of the patience."""
_ACKS = (1, -1)
_AFTER_A_WHILE_SHARE = 0.5
"""Share of the topics that do not follow at once."""
_VICTIM_SHARE = 0.5
"""Share of the faults that end a broker, where any may end and none is behind."""
_EARLIER_SHARE = 0.5
_AWAY_SHARE: Final = 1 / 3
"""Of the administrators whose topics a broker misses, where any may end."""
_BEHIND_SHARE = 1 / 3
_COMMITS_SHARE = 2 / 3
_COMMITS_MAX = 4
"""Of a topic before it is to be deleted."""
_COORDINATOR_SHARE = 0.5
"""Of the faults with commits, where nobody else is behind."""
_PASSING_SHARE = 0.5
"""Of the topics with commits: while there are some, another topic is created and deleted."""
_COMMITS_PAUSE_S = 0.005
"""The longest between two commits meanwhile."""
_CHANGES_SHARE = 0.5
_CHANGE_SHARE = 0.5
"""Of the batches that a change goes before."""
_BY_ID_SHARE = 0.5
_NONE_TO_DELETE = ("UNKNOWN_TOPIC_OR_PARTITION", "UNKNOWN_TOPIC_ID")
_BACK_WITHIN: Final = 3.0
"""Longest wait for a victim that starts again, in multiples of the patience: the session of its last process lasts."""
_CREATED_BEFORE: Final = "TOPIC_ALREADY_EXISTS"
_ASKED_MOST: Final = 15
_ASKED_BY_PATIENCE: Final = 5
"""How often at most for one thing, and how often within the patience."""
_ANSWERS_LOST_SHARE: Final = 0.5
_RESIGNS_WITHIN_S: Final = 0.05


class LostAnswer(StrEnum):
    """How the broker that passes a request on loses the answer."""

    DROPPED = "dropped"
    """The controller's answer does not arrive, and the connection breaks."""
    DEPOSED = "deposed"
    """The controller has handed the change to the others, and resigns before it knows that they have it."""


@dataclass(frozen=True, slots=True)
class RecreateTopic(Fault):
    """Create a topic beside that of the run, write to it, maybe add partitions to it and configure it, delete it and
    create it anew under its name.

    Often the new topic follows at once, so that a broker reads of both changes together. With a `victim` each new topic
    finds that broker ended: it starts again with what its disk has of the old one and of the new one; if it ends
    `earlier`, with the old one whole under the name of a new one that it knows nothing of. A broker that is `behind`
    does not reach the controllers while the topic is deleted and made anew; since its connections are broken off, no
    answer with the deletion alone waits for it, and it reads of both at once.
    """

    name: ClassVar[str] = "recreate-topic"
    number: ClassVar[int] = 9
    family: ClassVar[Family] = Reassign.family
    weight: ClassVar[float] = 3.0
    """It is several faults: a victim that ends earlier or later, a broker that is behind, lost answers, a coordinator
    in trouble."""
    proof: ClassVar[tuple[str, ...]] = ("deleted", "intercepted", "grown", "configured")
    ends_by_itself: ClassVar[bool] = True
    in_steps: ClassVar[bool] = True

    topics: int = 3
    """How many there are under the one name, one after the other."""
    victim: str | None = None
    """The broker that ends soon after a topic was created anew, or before; without it none does."""
    keep: KeepUnsynced | None = None
    """The unsynced writes that it keeps when it loses its power; without it, it is killed."""
    earlier: bool = False
    """Whether the victim ends before a topic is deleted, and starts again once that was created anew."""
    behind: str | None = None
    """The broker that is cut off from the controllers meanwhile; without it none is."""
    answers: LostAnswer | None = None
    """How the answers to the administrator are lost; without it none is."""
    commits: bool = False
    """Whether a group commits offsets of the topic until it is deleted."""
    coordinator: CoordinatorTrouble | None = None
    """What becomes of its coordinator meanwhile; without it nothing does."""
    changes: bool = False
    """Whether partitions are added to each topic and moved, its configuration is changed, and it may be deleted by its
    id."""
    dry_runs: bool = False
    """Whether a dry run goes before most changes, and before some that are to be refused, and reassignments are
    listed."""
    patience_ms: float = 2_000.0

    def __post_init__(self) -> None:
        if self.topics < 1:
            raise ValueError(f"topics: {self.topics} is less than 1")
        if self.victim is None and self.keep is not None:
            raise ValueError(f"keep: {self.keep} without a victim that loses power")
        if self.victim is None and self.earlier:
            raise ValueError("earlier: true without a victim that ends")
        if self.earlier and (self.behind is not None or self.coordinator is not None):
            raise ValueError("earlier: true with behind or a coordinator: one broker misses the new topic at a time")
        if self.coordinator is not None and not (self.commits and self.behind is None):
            raise ValueError(f"coordinator: {self.coordinator} is of a group with commits, where nobody else is behind")

    @classmethod
    def draw(cls, draws: Draws) -> Self | None:
        """Two topics or more, two of three with commits; where controllers are nodes of their own, with a broker that
        is behind in one of three, or nothing but the coordinator in trouble in half of those with commits where no
        victim ends earlier; with a victim in every other draw that leaves no broker behind, in runs that have any. The
        answers are lost in every other draw, and topics are changed in every other."""
        fault = cls._of_nodes(draws)
        possible = [each for each in LostAnswer if _needed(each).isdisjoint(draws.cluster.unsupported)]
        if possible and draws.cluster.controllers and draws.random.random() < _ANSWERS_LOST_SHARE:
            fault = replace(fault, answers=draws.random.choice(possible))
        fault = replace(fault, commits=draws.random.random() < _COMMITS_SHARE)
        fault = replace(fault, changes=draws.random.random() < _CHANGES_SHARE)
        free = fault.commits and fault.behind is None and not fault.earlier and draws.cluster.controllers
        if free and draws.random.random() < _COORDINATOR_SHARE:
            troubles = (
                tuple(CoordinatorTrouble) if draws.cluster.replication_factor > 1 else (CoordinatorTrouble.BEHIND,)
            )
            trouble = draws.random.choice(troubles)
            fault = replace(fault, coordinator=trouble, victim=None, keep=None, answers=None)
        if fault.coordinator is CoordinatorTrouble.ALONE:
            return replace(fault, patience_ms=draws.isr_patience_ms)
        return fault

    @classmethod
    def of_administrator(cls, random: Random, cluster: ClusterShape, victims: Sequence[str]) -> Self:
        """Topics that are changed, often after a dry run, two of three with commits. Nothing goes wrong, but that one
        of the victims, in a third of the runs that have any, is killed earlier."""
        topics, patience_ms = random.randint(*_TOPICS_OF_ADMINISTRATOR), cluster.patience_s * 1000
        commits = random.random() < _COMMITS_SHARE
        fault = cls(topics, changes=True, dry_runs=True, commits=commits, patience_ms=patience_ms)
        if not victims or random.random() >= _AWAY_SHARE:
            return fault
        return replace(fault, victim=random.choice(victims), earlier=True)

    @classmethod
    def _of_nodes(cls, draws: Draws) -> Self:
        fault, random = cls(draws.random.randint(2, _TOPICS_MAX), patience_ms=draws.patience_ms), draws.random
        if draws.cluster.controllers and random.random() < _BEHIND_SHARE:
            return replace(fault, behind=draws.broker())
        if not draws.profile.victims or random.random() >= _VICTIM_SHARE:
            return fault
        keep = draws.keep() if random.random() < 0.5 else None
        return replace(fault, victim=draws.victim(), keep=keep, earlier=random.random() < _EARLIER_SHARE)

    def targets(self) -> tuple[str, ...]:
        """The victim, and who is behind."""
        return tuple(node for node in (self.victim, self.behind) if node is not None)

    def at_risk(self, cluster: ClusterShape) -> tuple[str, ...]:
        """The victim."""
        return () if self.victim is None else (self.victim,)

    async def inject(self, handle: FaultHandle) -> None:
        """One topic after the other; healing deletes what is left."""
        admin, random, patience_s = handle.cluster.admin, handle.random, self.patience_ms / 1000
        replicas = handle.replication_factor or len(handle.cluster.brokers)
        if self.coordinator is CoordinatorTrouble.LOADING:  # there are no more brokers when a topic is made anew
            replicas = min(replicas, len(handle.cluster.brokers) - 1)
        away = await handle.targets.resolve_one(self.victim) if self.victim is not None and self.earlier else None
        placed = _placed(handle, replicas, away)
        answers: list[AdminResult] = []
        changes = TopicChanges(handle, self.dry_runs)

        async def create(*, dry_run: bool = False) -> AdminResult:
            answer = await admin.create_topic(SIDE_TOPIC, placed, dry_run=dry_run)
            if answer.outcome == DONE and not dry_run:
                handle.count_evidence("created")
            return answer

        async def delete(topic: str = SIDE_TOPIC, *, by_id: bool = False) -> AdminResult:
            answer = await admin.delete_topic(topic, by_id=by_id)
            if answer.outcome == DONE:
                handle.count_evidence("deleted")
            return answer._replace(outcome=DONE) if answer.outcome in _NONE_TO_DELETE else answer

        handle.add_undo(lambda: until_done(handle, delete, f"deleting {SIDE_TOPIC}", answers))
        reconnect: Callable[[], Awaitable[None]] | None = None
        for number in range(self.topics):
            await changes.ask_in_vain(partitions=0)
            await changes.rehearse(create)
            await self._done(handle, answers, NodeRequest.CREATE_TOPICS, create)
            if reconnect is not None:
                await handle.sleep(random.random() ** 2 * patience_s)
                await self._meanwhile(handle, self._reconnected(handle, reconnect))
            ends = bool(number) and self.victim is not None and not self.earlier
            await self._write_batches(handle, changes, with_end=ends)
            await handle.sleep(random.random() * patience_s)
            if self.commits:
                await self._commit(handle)
                if random.random() < _PASSING_SHARE:
                    await self._pass_by(handle, partial(delete, PASSING_TOPIC), replicas)
            reconnect = await self._cut_off(handle, away) if number + 1 < self.topics else None
            deletion = partial(delete, by_id=self.changes and random.random() < _BY_ID_SHARE)
            await self._meanwhile(handle, self._done(handle, answers, NodeRequest.DELETE_TOPICS, deletion))
            if random.random() < _AFTER_A_WHILE_SHARE:
                await asyncio.sleep(random.random() ** 2 * patience_s)

    async def _meanwhile(self, handle: FaultHandle, step: Coroutine[None, None, object]) -> None:
        """Commit, where a group does, until the step is done, and wait for no answer then."""

        async def commit_on() -> None:
            while self.commits:
                await self._commit_once(handle)
                await asyncio.sleep(handle.random.random() * _COMMITS_PAUSE_S)

        async with asyncio.TaskGroup() as tasks:
            committing = tasks.create_task(commit_on())
            await tasks.create_task(step)
            committing.cancel()

    async def _reconnected(self, handle: FaultHandle, reconnect: Callable[[], Awaitable[None]]) -> None:
        """Heal what was cut; a coordinator that was alone needs a while until somebody is back in its ISR."""
        await reconnect()
        if self.coordinator is CoordinatorTrouble.ALONE:
            await handle.sleep(handle.random.random() * self.patience_ms / 1000)

    async def _pass_by(self, handle: FaultHandle, delete: Callable[[], Awaitable[AdminResult]], replicas: int) -> None:
        """Create another topic, and `delete` it."""
        answers: list[AdminResult] = []
        handle.add_undo(lambda: until_done(handle, delete, f"deleting {PASSING_TOPIC}", answers))
        await recorded(answers, handle.cluster.admin.create_topic(PASSING_TOPIC, replicas))
        await recorded(answers, delete())

    async def _done(
        self,
        handle: FaultHandle,
        answers: list[AdminResult],
        api: NodeRequest,
        request: Callable[[], Awaitable[AdminResult]],
    ) -> None:
        """Ask for it; where a victim ends earlier, until it is done, but not for long: that is to happen while the
        victim is away, and the cluster may be without a controller meanwhile."""
        for _ in range(_ASKED_MOST):
            answer = await recorded(answers, self._asked(handle, api, request))
            if not self.earlier or answer.outcome in (DONE, _CREATED_BEFORE):
                return
            await handle.sleep(self.patience_ms / 1000 / _ASKED_BY_PATIENCE)

    async def _asked(
        self, handle: FaultHandle, api: NodeRequest, request: Callable[[], Awaitable[AdminResult]]
    ) -> AdminResult:
        """The answer to a request of this API, which a broker passes on and loses the first answer to."""
        if self.answers is None:
            return await request()
        brokers, controllers = handle.cluster.brokers, handle.cluster.controllers
        if self.answers is LostAnswer.DROPPED:
            dropped = MessageRule(API_KEYS[api], MessagePart.RESPONSE, MessageEffect.DROP)
            let_pass, _ = await handle.intercept(one_way(brokers, controllers), dropped)
            answer = await request()
        else:
            held = MessageRule(API_KEYS[NodeRequest.FETCH], MessagePart.REQUEST, MessageEffect.HOLD, count=0)
            let_pass, _ = await handle.intercept(one_way(controllers, controllers), held)
            async with asyncio.TaskGroup() as tasks:
                asking = tasks.create_task(_awaited(request))
                await asyncio.sleep(handle.random.uniform(0.2, 1.0) * _RESIGNS_WITHIN_S)
                await handle.cluster.admin.move_controller()
                await let_pass()
            answer = asking.result()
        await let_pass()
        return answer

    async def _cut_off(self, handle: FaultHandle, away: str | None) -> Callable[[], Awaitable[None]] | None:
        """Cut the broker that is to be behind off from the controllers, or the coordinator off from what it is to lack,
        or end the victim that is to be `away`; what heals that again."""
        if away is not None:
            return await self._send_away(handle, away)
        if self.behind is not None:
            behind = await handle.targets.resolve((self.behind,))
            return await handle.cut(both_ways(behind, handle.cluster.controllers), reset=True)
        if self.coordinator is not None:
            meanwhile = partial(self._meanwhile, handle)
            return await cut_coordinator_off(self.coordinator, handle, self.patience_ms, meanwhile)
        return None

    async def _send_away(self, handle: FaultHandle, node: str) -> Callable[[], Awaitable[None]]:
        """End the process of the victim; what starts it again, and waits until it takes part: before that it opens no
        log, and knows of no topic that is deleted meanwhile."""
        start = await handle.end(node, self.keep)

        async def bring_back() -> None:
            since = len(handle.situation.events)
            await start()
            await until_event(handle, Event(Occurrence.UNFENCED, node), since, _BACK_WITHIN * self.patience_ms / 1000)

        return bring_back

    async def _end_victim(self, handle: FaultHandle) -> None:
        """End the process of the victim, and start it again after a while."""
        assert self.victim is not None, "nobody is to end"
        start = await handle.end(await handle.targets.resolve_one(self.victim), self.keep)
        await handle.sleep(handle.random.random() ** 2 * self.patience_ms / 1000)
        await start()

    async def _write_batches(self, handle: FaultHandle, changes: TopicChanges, *, with_end: bool) -> None:
        """A few batches, amid which perhaps the victim ends and the topic is changed."""
        random, partitions = handle.random, 1
        batches = random.randint(1, _BATCHES_MAX)
        last_before_end = int(batches * random.random() ** 2) if with_end else batches
        for batch in range(batches):
            if self.changes and random.random() < _CHANGE_SHARE:
                partitions += await changes.change(partitions)
            await self._write(handle, random.randrange(partitions) if partitions > 1 else 0)
            if batch == last_before_end:
                if self.changes:
                    await changes.raise_minimum()
                await self._end_victim(handle)
                if self.changes:
                    await changes.choose_strategy()
            # Requests need no injection: a pause between two may be shorter than that.
            await asyncio.sleep(_PAUSE_SHARE * random.random() ** 3 * self.patience_ms / 1000)

    async def _write(self, handle: FaultHandle, partition: int) -> None:
        """One batch, with acknowledgement of the leader or of all."""
        records = [b"%d" % number for number in range(handle.random.randint(1, _BATCH_RECORDS_MAX))]
        acks = handle.random.choice(_ACKS)
        if (await handle.cluster.admin.append(SIDE_TOPIC, partition, records, acks)).outcome == DONE:
            handle.count_evidence("written")

    async def _commit(self, handle: FaultHandle) -> None:
        """As a consumer that asks where to begin, and commits a few times; what it has of another topic is to stay."""
        await handle.cluster.admin.committed(SIDE_GROUP, SIDE_TOPIC, 0)
        await self._commit_once(handle, handle.topic)
        for _ in range(handle.random.randint(1, _COMMITS_MAX)):
            await self._commit_once(handle)

    async def _commit_once(self, handle: FaultHandle, topic: str = SIDE_TOPIC) -> None:
        offset = handle.random.randint(1, _BATCHES_MAX * _BATCH_RECORDS_MAX)
        if (await handle.cluster.admin.commit(SIDE_GROUP, topic, 0, offset)).outcome == DONE:
            handle.count_evidence("committed")

    def describe(self) -> str:
        """How many topics, and what ends."""
        ends = "" if self.victim is None else f", kill {self.victim}"
        ends = ends if self.keep is None else f", power loss {self.victim} (keeps {self.keep})"
        behind = "" if self.behind is None else f", {self.behind} is behind"
        answers = "" if self.answers is None else f", answers {self.answers}"
        commits = ", with committed offsets" if self.commits else ""
        commits += "" if self.coordinator is None else f", their coordinator is {self.coordinator}"
        changes = ", with changes" if self.changes else ""
        dry_runs = ", with dry runs" if self.dry_runs else ""
        return f"{self.name} ({self.topics} topics){ends}{behind}{answers}{commits}{changes}{dry_runs}"

    def needs(self) -> frozenset[EnvironmentCapability]:
        """What it takes to lose answers, and to keep from a coordinator what it is to lack alone."""
        channels = {EnvironmentCapability.CHANNELS} if self.coordinator is not None else set()
        return frozenset(channels if self.answers is None else channels | _needed(self.answers))

    def adapted(self, unsupported: Collection[EnvironmentCapability], random: Random) -> Self | None:
        """The coordinator is left alone where channels cannot be told apart."""
        without = replace(self, coordinator=None) if EnvironmentCapability.CHANNELS in unsupported else self
        return None if without.needs() & frozenset(unsupported) else without


def _needed(answers: LostAnswer) -> frozenset[EnvironmentCapability]:
    resigns = {EnvironmentCapability.RESIGNATION} if answers is LostAnswer.DEPOSED else set()
    return frozenset({EnvironmentCapability.MESSAGES, *resigns})


def _placed(handle: FaultHandle, replicas: int, away: str | None) -> int | Sequence[str]:
    """So many replicas. The broker that is to be away has the last one of each topic: it is fenced when the next topic
    is made, and controllers place no replica on a fenced broker, but for one that is named."""
    if away is None:
        return replicas
    others = [broker for broker in handle.cluster.brokers if broker != away]
    return (*handle.random.sample(others, replicas - 1), away)


async def _awaited(request: Callable[[], Awaitable[AdminResult]]) -> AdminResult:
    return await request()
