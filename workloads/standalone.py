"""Standalone consumers: each reads every partition, commits in a group of its own that has no members, and forgets.

A consumer that assigns its partitions itself commits without a generation (`NO_GENERATION`). Here it lives again and
again, each time for a few seconds, as a program that is started anew:

- it asks where its group had committed, every other time without naming partitions, and every other time for other
  groups in the same request: one `assign` operation for each partition, as of a member;
- it polls, and after some polls commits where it stands: one `commit` operation for each partition that has moved;
- after some lives the group has a member for a moment, as where the program subscribes instead, and a commit without a
  generation and a request to delete the group, which are to be refused then;
- at the end of some lives it deletes its group, once: one `forget` operation for each partition, in one request, which
  sometimes names a group before that there is not. The next life must begin at 0 then.

One consumer is one process of the history, and the only one that uses its group, so that its operations there follow
each other. What is to be refused while the group has a member is recorded like the rest: the member's session may be
over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from random import Random
from typing import Final

from workloads.clients.completed_fetch import CompletedFetch
from workloads.clients.membership import ChangeResult, GroupMember
from workloads.clients.native import CommittedPosition, Consumer, OffsetAndEpoch
from workloads.commits import CommitRecorder
from workloads.history import TopicPartition
from workloads.lifetimes import end_of_life_s

_LIFE_S: Final = 2.0
_COMMIT_SHARE: Final = 0.3
_FORGET_SHARE: Final = 0.4
_SUBSCRIBE_SHARE: Final = 0.2
_POLL_S: Final = 0.5


class StandaloneConsumer:
    """The consumer that is the process of `commits` in the history, and the only one in the group of its members.

    `member` gives it a member of its group, `consumer` a new consumer for each life, and `polled` records an answer of
    that; `beside` are the other groups that it asks for, at last one that there is not.
    """

    def __init__(
        self,
        commits: CommitRecorder,
        member: Callable[[], GroupMember],
        partitions: tuple[TopicPartition, ...],
        random: Random,
        consumer: Callable[[], Consumer],
        polled: Callable[[Consumer, CompletedFetch], Awaitable[None]],
        beside: tuple[str, ...] = (),
    ) -> None:
        self._commits = commits
        self._new_member = member
        self._member = member()
        self._partitions = partitions
        self._random = random
        self._consumer = consumer
        self._polled = polled
        self._beside = beside
        self._starts = 0

    async def run(self) -> None:
        """Live one life after the other, until cancelled."""
        while True:
            consumer = self._consumer()
            try:
                await self._live(consumer, end_of_life_s(self._random, _LIFE_S))
            finally:
                await consumer.close()
            if self._random.random() < _SUBSCRIBE_SHARE:
                await self._subscribe()
            if self._random.random() < _FORGET_SHARE:
                await self._forget(self._member)
                await asyncio.sleep(self._random.expovariate(1 / _LIFE_S))

    async def _subscribe(self) -> None:
        """A member for a moment, in which nobody may commit without a generation, or delete the group."""
        member = self._new_member()
        try:
            await member.join()
            start = self._commits.position(OffsetAndEpoch(0))
            await self._ask_to_commit(dict.fromkeys(self._partitions, start))
            await self._forget(member)
            await member.leave()
        finally:
            await member.close()

    async def _forget(self, member: GroupMember) -> None:
        beside = self._beside[-1:] if self._starts % 2 else ()
        await self._commits.change("forget", dict.fromkeys(self._partitions), lambda: member.delete_group(beside))

    async def _live(self, consumer: Consumer, until_s: float) -> None:
        committed = await self._start()
        consumer.assign(self._partitions)
        for (topic, partition), position in committed.items():
            consumer.seek(topic, partition, position.offset, position.epoch)
        while asyncio.get_running_loop().time() < until_s:
            for answer in await consumer.poll(_POLL_S):
                await self._polled(consumer, answer)
            if self._random.random() < _COMMIT_SHARE:
                await self._commit(consumer, committed)

    async def _start(self) -> dict[TopicPartition, CommittedPosition]:
        open_operations = self._commits.invoke_start(self._partitions)
        try:
            self._starts += 1
            self._member.rebalancing.clear()  # set by commits that were refused while the group had a member
            answers = await self._member.committed(
                self._partitions,
                all_of_group=self._starts % 2 == 0,
                beside=self._beside if self._starts % 4 < 2 else (),
            )
        except BaseException:
            for index in open_operations.values():
                self._commits.recorder.discard(index)
            raise
        return self._commits.complete_start(open_operations, answers)

    async def _commit(self, consumer: Consumer, committed: dict[TopicPartition, CommittedPosition]) -> None:
        offsets = {
            key: self._commits.position(position)
            for key, position in consumer.next_offsets().items()
            if position.offset != committed[key].offset
        }
        if not offsets:
            return
        result = await self._ask_to_commit(offsets)
        if result.outcome == "ok":
            committed |= offsets

    async def _ask_to_commit(self, positions: Mapping[TopicPartition, CommittedPosition]) -> ChangeResult:
        return await self._commits.change("commit", positions, lambda: self._member.commit(positions))
