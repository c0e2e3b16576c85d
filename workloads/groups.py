"""The workload `groups`: appends as in `append`, read by the members of one consumer group that comes and goes.

Producers and end-offset readers are those of `append`, and so are the final reads, which no member of the group makes.
In place of tailing consumers there are as many *members*. Each lives for a while, then ends and is followed by a new
one; every life is a process of its own in the history, numbered from where the others end. In its life a member

- joins the group `faultline` and is given partitions in a generation: one `assign` operation for each, invoked before
  it fetches the committed offset, `ok` with that offset (0 if nothing was committed), from which it starts;
- polls, each answer an operation as in `append`, and after some polls commits the end of the records that it has read:
  one `commit` operation for each partition, all in one request;
- commits once more when a rebalance is on, every other time, and joins again;
- commits *late* in a share `late_commits` of its rebalances, what it had read before: an asynchronous commit that a
  rebalance overtook, or one of a process that hung. Three such commits are sent: of the generation before and of the
  one that it has joined, both before its SyncGroup, as of clients that do not wait for their partitions; and of the
  generation before once more when it has started in the next one;
- at a random time leaves the group, or dies without leaving, or stalls: it sends no heartbeats for longer than its
  session timeout, and then commits as if nothing had happened.

A share `awkward_members` of the lives is *awkward*, as clients are that nobody tests with:

- its rebalance timeout differs from its session timeout, and it prefers another of two protocols, or knows only one;
- it is busy when a rebalance begins, and joins again late, with heartbeats until then, perhaps too late;
- it asks for a member id that it never joins with, and says so or not: the group expects it until then;
- in a new generation it sends a Heartbeat and a SyncGroup of the generation before;
- it joins again in the middle of a generation, every other time with something else to tell the leader: its group then
  begins another generation, and also if the leader does so, which may have seen other partitions; else it answers what
  it answered before;
- it dies between JoinGroup and SyncGroup, so that its group waits for it, or sends heartbeats alone there, for longer
  than any rebalance timeout;
- a static one dies while it waits to be in a generation, and the next one of its instance begins at once;
- when it has stalled, it joins again under its old member id instead of committing, perhaps with another preference,
  and then dies;
- in every other generation it commits an offset of a topic that there is not, in one request with its own;
- it asks for its committed offsets without naming partitions, or for those of other groups in the same request;
- it asks for a description of the group, and of others in the same request, and for a list of the groups in one state;
- a static one that ends is removed by an administrator now and then, who names its instance, and in some generations
  one removes several members, and one that there is not, in one request.

The members of the first slots are *static*, as many as `static_members` asks for: one after another has the same
instance id, none says that it leaves, and each takes the place of the one before it if it joins within the session.
One that stalls is followed while it stalls, as where a process that hangs is started anew elsewhere. It may go on
before its session is over, and asks until a coordinator has answered its commit, as Kafka's `commitSync` does: once the
next member has joined, every coordinator must refuse it.

Beside them there are as many *standalone consumers* as `standalone_consumers` says, which are no members of any group
(`workloads.standalone`).

Nobody asks for a coordinator before the share `groups_begin` of the run is over, so that a cluster which has gone
through faults, or is in the middle of one, creates `__consumer_offsets`.

After the faults one more member drains the group: it is given every partition, and reads and commits until the ends of
all are reached, so that by then every acknowledged record must have been delivered to some member.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import Final

from workloads.append import AppendWorkload
from workloads.clients.assignments import RANGE
from workloads.clients.library import ClientLibrary
from workloads.clients.membership import Assignment, ChangeResult, FencedInstanceId, GroupMember, GroupSettings
from workloads.clients.native import Client, CommittedPosition, Consumer, OffsetAndEpoch
from workloads.commits import CommitRecorder
from workloads.history import Phase, Recorder, TopicPartition
from workloads.lifetimes import end_of_life_s, sleep_until
from workloads.standalone import StandaloneConsumer
from workloads.workload import WorkloadSettings

GROUP: Final = "faultline"
_NO_TOPIC: Final = "topic-of-nobody"
_NO_GROUP: Final = f"{GROUP}-of-nobody"
_LIFE_S: Final = 15.0
_STALL_SESSIONS: Final = (1.1, 2.0)
_STATIC_STALL_SESSIONS: Final = (0.3, 2.0)
_COMMIT_AGAIN_S: Final = 0.2
_COMMIT_SHARE: Final = 0.4
_FINAL_COMMIT_SHARE: Final = 0.5
_POLL_S: Final = 0.5
_FINAL_PAUSE_MS_MAX: Final = 100
_ENDS: Final = ("leave", "die", "stall")
_PROTOCOLS: Final = (RANGE, "range-again")
_REBALANCE_SESSIONS: Final = (0.5, 1.0, 2.0)
_STATES: Final = ("Stable", "Empty", "PreparingRebalance")
_REMOVE_SHARE: Final = 0.1
_REMOVED_MAX: Final = 2
_NOBODY: Final = "nobody"
_ABANDON_SHARE: Final = 0.3
_HANG_SHARE: Final = 0.2
_IMPATIENT_SHARE: Final = 0.3
_IMPATIENT_SESSIONS_MAX: Final = 0.5
_REJOIN_SHARE: Final = 0.5
_ONE_PROTOCOL_SHARE: Final = 0.3
_BUSY_SHARE: Final = 0.2
_BUSY_SESSIONS_MAX: Final = 2.5
_RESTLESS_SHARE: Final = 0.5
_RESTLESS_SESSIONS_MAX: Final = 1.0


def _group_alone(number: int) -> str:
    """The group of a standalone consumer."""
    return f"{GROUP}-standalone-{number}"


class _HungError(Exception):
    """A member dies between JoinGroup and SyncGroup."""


@dataclass(frozen=True, slots=True)
class _Reading:
    """The end of what a member has read in a generation."""

    generation: int
    offsets: Mapping[TopicPartition, OffsetAndEpoch]


@dataclass(slots=True)
class _MemberLifetime:
    """One member from its first join to its end."""

    process: int
    phase: Phase
    member: GroupMember
    client: Client
    random: Random
    until_s: float
    end: str
    """How it ends: leave, die or stall; or restart, and the next one begins at once."""
    committed: dict[TopicPartition, int] = field(default_factory=dict)
    """The offsets it knows to be committed."""
    read: _Reading | None = None
    """The latest, of any partition."""
    wanted: dict[TopicPartition, int] | None = None
    """Ends once these are committed."""
    awkward: Random | None = None
    """The random stream of its awkward steps; None unless its life is awkward."""
    followed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once the next member of its instance may begin: at its end, or when it stalls."""

    @property
    def over(self) -> bool:
        """Whether it has nothing more to do."""
        if self.member.fenced:
            return True
        if self.wanted is not None:
            return all(self.committed.get(key, -1) >= end for key, end in self.wanted.items())
        return asyncio.get_running_loop().time() >= self.until_s


class GroupsWorkload(AppendWorkload):
    """See the module's docstring; the calls are those of `Workload`."""

    def __init__(
        self,
        settings: WorkloadSettings,
        recorder: Recorder,
        stream: Callable[[str], Random],
        library: ClientLibrary | None = None,
    ) -> None:
        super().__init__(settings, recorder, stream, library)
        session_s = settings.session_timeout_ms / 1000
        self._session = GroupSettings(
            session_timeout_s=session_s, rebalance_timeout_s=session_s, heartbeat_interval_s=session_s / 6
        )
        self._groups_begin_s = -math.inf
        """When the first one may ask for a coordinator, by the loop's clock."""

    async def run(self, until_s: float) -> None:
        now_s = asyncio.get_running_loop().time()
        self._groups_begin_s = now_s + self._settings.groups_begin * (until_s - now_s)
        async with asyncio.TaskGroup() as standing_alone:
            alone = [
                standing_alone.create_task(self._stand_alone(self._standalone(number)))
                for number in range(self._settings.standalone_consumers)
            ]
            await super().run(until_s)
            for consumer in alone:  # one by one: a task group cancels its tasks in no particular order
                consumer.cancel()

    async def _stand_alone(self, consumer: StandaloneConsumer) -> None:
        await self._wait_for_groups()
        await consumer.run()

    async def _wait_for_groups(self) -> None:
        """Wait until the groups of the run begin; without a step of the event loop if they do from the start on."""
        if self._settings.groups_begin:
            await sleep_until(self._groups_begin_s)

    async def final_reads(self, until_s: float) -> bool:
        topic = self._settings.topic
        asking = self._closed_later(Consumer(self._client("ends")))
        try:
            async with asyncio.timeout_at(until_s) as timeout:
                wanted = {
                    (topic, partition): await self._end(asking, self._final_process, "final", partition)
                    for partition in self._partitions
                }
                life = self._begin("drain", "final", until_s)
                life.end = "leave"
                life.wanted = wanted
                await self._live(life)
                await life.member.leave()
        except TimeoutError:
            if not timeout.expired():
                raise
            return False
        return await super().final_reads(until_s)

    # --- lives --------------------------------------------------------------------------------------------------------

    async def _tail(self, process: int, name: str) -> None:
        """One member after another; the process number of `append`'s consumer stays unused."""
        await self._wait_for_groups()
        random = self._stream(f"groups/{name}")
        mean_s = self._settings.consumer_life_ms / 1000 or _LIFE_S
        instance_id = self._instance_id(process - self._settings.producers)
        stalling: list[asyncio.Task[None]] = []
        async with asyncio.TaskGroup() as lives:
            try:
                while True:
                    life = self._begin(name, "main", end_of_life_s(random, mean_s), instance_id)
                    if instance_id is None:
                        await self._live_and_end(life)
                    else:
                        stalling = [living for living in stalling if not living.done()]
                        stalling.append(lives.create_task(self._live_and_end(life)))
                        await life.followed.wait()
                    if life.end != "restart":
                        await self._rest(random)
            finally:
                for living in stalling:  # one by one: a task group cancels its tasks in no particular order
                    living.cancel()

    def _instance_id(self, number: int) -> str | None:
        """The instance id of the members of one slot; None where they are dynamic."""
        static = math.ceil(round(self._settings.static_members * self._settings.consumers, 9))
        return f"instance-{number}" if number < static else None

    async def _live_and_end(self, life: _MemberLifetime) -> None:
        try:
            await self._live(life)
            if life.end == "leave":
                await life.member.leave(removed=life.awkward is not None and life.member.instance_id is not None)
        finally:
            life.followed.set()
            await life.member.close()
            await life.client.close()

    def _begin(self, name: str, phase: Phase, until_s: float, instance_id: str | None = None) -> _MemberLifetime:
        process = self._later_process()
        client = self._client(f"{name}/{self._lives}")
        topics, share = (self._settings.topic,), self._settings.awkward_members
        drawn = self._stream(f"groups/awkward-{self._lives}")
        awkward = drawn if phase == "main" and share and drawn.random() < share else None
        session, protocols = self._session, list(_PROTOCOLS)
        if awkward is not None:
            timeout_s = session.session_timeout_s * awkward.choice(_REBALANCE_SESSIONS)
            session = replace(session, rebalance_timeout_s=timeout_s)
            awkward.shuffle(protocols)
            protocols = [RANGE] if awkward.random() < _ONE_PROTOCOL_SHARE else protocols
        member = GroupMember(client, GROUP, topics, session, instance_id, protocols if share else (RANGE,))
        random = self._stream(f"groups/life-{self._lives}")
        return _MemberLifetime(process, phase, member, client, random, until_s, random.choice(_ENDS), awkward=awkward)

    async def _live(self, life: _MemberLifetime) -> None:
        """Join and read, generation after generation, until the life is over."""
        try:
            while not life.over:
                await self._finish_work(life)
                late = self._draw_late(life)
                if life.awkward is not None and life.awkward.random() < _ABANDON_SHARE:
                    await life.member.abandon(leave=life.awkward.random() < 1 / 2)
                try:
                    async with asyncio.timeout(self._patience_s(life)):
                        assignment = await life.member.join(partial(self._joined, life, late))
                except FencedInstanceId:
                    return
                except _HungError:
                    life.end = "die"
                    return
                except TimeoutError:
                    life.end = "restart"
                    return
                started = await self._start(life, assignment)
                if started is None:
                    continue
                if late is not None and late.generation != assignment.generation:
                    await self._ask_to_commit(life, late.offsets, late.generation, late=True)
                if life.awkward is not None:
                    await self._administer(life.member, life.awkward)
                    if life.read is not None and life.read.generation < assignment.generation:
                        await life.member.ask_late(life.read.generation)
                consumer = self._recorded_consumer(life.client, life.process, life.phase)
                try:
                    consumer.assign(assignment.partitions)
                    for (topic, partition), position in started.items():
                        consumer.seek(topic, partition, position.offset, position.epoch)
                    await self._read(life, assignment, consumer)
                    if assignment.partitions:
                        life.read = _Reading(assignment.generation, consumer.next_offsets())
                finally:
                    await consumer.close()
        finally:
            await life.member.close()

    def _patience_s(self, life: _MemberLifetime) -> float | None:
        """How long a member waits to be in a generation; None where that is for ever, as for most."""
        drawn = life.awkward
        if drawn is None or life.member.instance_id is None or drawn.random() >= _IMPATIENT_SHARE:
            return None
        return self._session.session_timeout_s * _IMPATIENT_SESSIONS_MAX * drawn.random() ** 2

    async def _finish_work(self, life: _MemberLifetime) -> None:
        """Let an awkward member be busy, now and then, before it joins again."""
        if life.awkward is not None and life.read is not None and life.awkward.random() < _BUSY_SHARE:
            sessions = life.awkward.uniform(0, _BUSY_SESSIONS_MAX)
            await life.member.dawdle(self._session.session_timeout_s * sessions)

    async def _administer(self, member: GroupMember, random: Random) -> None:
        """Look at the groups, and now and then remove members, as an administrator does."""
        members = await member.describe(self._groups_beside(GROUP) if random.random() < 1 / 2 else ())
        await member.list_groups((random.choice(_STATES),) if random.random() < 1 / 2 else ())
        if random.random() < _REMOVE_SHARE:
            removed = [*random.sample(members, min(_REMOVED_MAX, len(members))), (_NOBODY, None)]
            random.shuffle(removed)
            await member.remove(removed)

    async def _start(
        self, life: _MemberLifetime, assignment: Assignment
    ) -> dict[TopicPartition, CommittedPosition] | None:
        """The start offset of each partition; None when the next rebalance came before they were answered."""
        commits = self._commits_of(life, assignment.generation)
        open_operations = commits.invoke_start(assignment.partitions)
        asking = asyncio.ensure_future(self._committed(life, assignment))
        rebalancing = asyncio.ensure_future(life.member.rebalancing.wait())
        try:
            await asyncio.wait((asking, rebalancing), return_when=asyncio.FIRST_COMPLETED)
            if not asking.done():
                for index in open_operations.values():
                    self._recorder.discard(index)
                return None
            committed = asking.result()
        finally:
            asking.cancel()
            rebalancing.cancel()
        started = commits.complete_start(open_operations, committed)
        life.committed |= {key: position.offset for key, position in started.items()}
        return started

    async def _committed(
        self, life: _MemberLifetime, assignment: Assignment
    ) -> dict[TopicPartition, CommittedPosition | None]:
        """The committed offsets of its partitions, which an awkward member asks for in one of four ways."""
        if life.awkward is None:
            return await life.member.committed(assignment.partitions)
        all_of_group, several = life.awkward.random() < 1 / 2, life.awkward.random() < 1 / 2
        beside = self._groups_beside(GROUP) if several else ()
        return await life.member.committed(assignment.partitions, all_of_group=all_of_group, beside=beside)

    def _groups_beside(self, group: str) -> tuple[str, ...]:
        """The other groups of the run, and one that there is not."""
        alone = (_group_alone(number) for number in range(self._settings.standalone_consumers))
        return tuple(name for name in (GROUP, *alone, _NO_GROUP) if name != group)

    async def _read(self, life: _MemberLifetime, assignment: Assignment, consumer: Consumer) -> None:
        """Poll and commit until the group rebalances, the life is over, or an awkward member is restless."""
        until_s = self._restless_s(life)
        while not (life.member.rebalancing.is_set() or life.over or asyncio.get_running_loop().time() >= until_s):
            fetched = await consumer.poll(_POLL_S) if assignment.partitions else []
            for answer in fetched:
                await self._polled(consumer, answer)
            if life.wanted is not None or life.random.random() < _COMMIT_SHARE:
                await self._commit(life, assignment, consumer)
            if not assignment.partitions:
                await asyncio.sleep(_POLL_S)
            elif any(answer.records for answer in fetched):
                pause_ms = self._settings.poll_pause_ms
                pause_ms = min(pause_ms, _FINAL_PAUSE_MS_MAX) if life.phase == "final" else pause_ms
                await asyncio.sleep(pause_ms / 1000 * life.random.uniform(0.5, 1.5))
        if life.member.fenced:
            return
        is_restless = not (life.member.rebalancing.is_set() or life.over)
        if life.awkward is not None and is_restless and life.awkward.random() < 1 / 2:
            life.member.change_subscription()
        if life.over and life.end == "stall":
            await self._stall(life, assignment, consumer)
        elif life.random.random() < _FINAL_COMMIT_SHARE:
            await self._commit(life, assignment, consumer)

    def _restless_s(self, life: _MemberLifetime) -> float:
        """When an awkward member joins again, by the loop's clock; infinite where a rebalance alone has it do so."""
        if life.awkward is None or life.awkward.random() >= _RESTLESS_SHARE:
            return math.inf
        sessions = life.awkward.uniform(0, _RESTLESS_SESSIONS_MAX)
        return asyncio.get_running_loop().time() + sessions * self._session.session_timeout_s

    async def _stall(self, life: _MemberLifetime, assignment: Assignment, consumer: Consumer) -> None:
        """Send nothing for a while, then commit as if nothing had happened. A dynamic member asks once."""
        static = life.member.instance_id is not None
        life.member.silent = True
        life.followed.set()
        sessions = life.random.uniform(*(_STATIC_STALL_SESSIONS if static else _STALL_SESSIONS))
        await asyncio.sleep(self._session.session_timeout_s * sessions)
        life.member.silent = False
        if life.awkward is not None and life.awkward.random() < _REJOIN_SHARE:
            life.member.change_preference()
            with suppress(FencedInstanceId):
                await life.member.join()
            return
        committed = await self._commit(life, assignment, consumer, again=True)
        while static and not committed and not life.member.rebalancing.is_set():
            await asyncio.sleep(_COMMIT_AGAIN_S)
            committed = await self._commit(life, assignment, consumer, again=True)

    async def _commit(
        self, life: _MemberLifetime, assignment: Assignment, consumer: Consumer, *, again: bool = False
    ) -> bool:
        """Commit the offsets that have moved since they were last known to be committed; with `again`, all of them.
        False when that was refused, or its outcome is not known."""
        offsets = {
            key: position
            for key, position in consumer.next_offsets().items()
            if again or position.offset != life.committed.get(key, 0)
        }
        if not offsets:
            return True
        result = await self._ask_to_commit(life, offsets, assignment.generation)
        if result.outcome == "ok":
            life.committed |= {key: position.offset for key, position in offsets.items()}
        return result.outcome == "ok"

    def _draw_late(self, life: _MemberLifetime) -> _Reading | None:
        """The offsets to commit late in the rebalance that begins; None for most."""
        share = self._settings.late_commits
        return life.read if life.read is not None and share and life.random.random() < share else None

    async def _joined(self, life: _MemberLifetime, late: _Reading | None, generation: int) -> None:
        """Before the SyncGroup of `generation`: commit late, as of the generation before and as of this one."""
        if late is not None and generation != late.generation:
            for number in (late.generation, generation):
                await self._ask_to_commit(life, late.offsets, number, late=True)
        if life.awkward is not None and life.awkward.random() < _HANG_SHARE:
            if life.awkward.random() < 1 / 2:
                raise _HungError
            sessions = life.awkward.uniform(0.1, 1.5 * max(_REBALANCE_SESSIONS))
            await life.member.dawdle(self._session.session_timeout_s * sessions)

    async def _ask_to_commit(
        self,
        life: _MemberLifetime,
        offsets: Mapping[TopicPartition, OffsetAndEpoch],
        generation: int,
        *,
        late: bool = False,
    ) -> ChangeResult:
        commits = self._commits_of(life, generation)
        positions = {key: commits.position(position) for key, position in offsets.items()}
        beside = (_NO_TOPIC,) if life.awkward is not None and generation % 2 else ()
        ask = partial(life.member.commit, positions, generation if late else None, beside)
        return await commits.change("commit", positions, ask)

    def _commits_of(self, life: _MemberLifetime, generation: int) -> CommitRecorder:
        text_bytes_max, instance_id = self._settings.commit_text_bytes_max, life.member.instance_id
        return CommitRecorder(self._recorder, life.process, text_bytes_max, generation, life.phase, instance_id)

    def _standalone(self, number: int) -> StandaloneConsumer:
        process, name = self._later_process(), f"standalone-{number}"
        client, topic, group = self._client(name), self._settings.topic, _group_alone(number)
        return StandaloneConsumer(
            CommitRecorder(self._recorder, process, self._settings.commit_text_bytes_max),
            partial(GroupMember, client, group, (topic,), self._session),
            tuple((topic, partition) for partition in self._partitions),
            self._stream(f"groups/{name}"),
            lambda: self._recorded_consumer(client, process, "main"),
            self._polled,
            self._groups_beside(group),
        )
