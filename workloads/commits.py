"""Records the positions that a group has committed: what one process asks its coordinator for, and is answered.

The operations are `commit` and `forget`, which change what is committed, and `assign`, which fetches it. One request is
about several partitions, and is one operation for each.

A commit carries a text that no other process commits, nor the same one for another offset in one generation. A broker
refuses a text that is longer than its `offset.metadata.max.bytes`; where it would be, the text is left empty.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass

from workloads.clients.membership import ChangeResult
from workloads.clients.positions import CommittedPosition, OffsetAndEpoch
from workloads.history import NO_GENERATION, HistoryKind, Phase, Recorder, TopicPartition


@dataclass(frozen=True, slots=True)
class CommitRecorder:
    """Records the operations of one process in one generation of its group."""

    recorder: Recorder
    process: int
    text_bytes_max: int
    """Longest text of a commit."""
    generation: int = NO_GENERATION
    phase: Phase = "main"
    instance: str | None = None
    """The instance id of a static member."""

    def position(self, at: OffsetAndEpoch) -> CommittedPosition:
        """The position as this process commits it."""
        text = f"{at.offset} by {self.process} in {self.generation}"
        return CommittedPosition(*at, text if len(text) <= self.text_bytes_max else "")

    async def change(
        self,
        kind: HistoryKind,
        positions: Mapping[TopicPartition, CommittedPosition | None],
        ask: Callable[[], Awaitable[ChangeResult]],
    ) -> ChangeResult:
        """Record the operations of the request that `ask` sends: of a `forget` without positions."""
        open_operations = [
            self.recorder.invoke(
                self.process,
                kind,
                *key,
                phase=self.phase,
                value=self.generation,
                offset=position and position.offset,
                leader_epoch=position and position.epoch,
                instance=self.instance,
                metadata=position and position.metadata,
            )
            for key, position in positions.items()
        ]
        result = await ask()
        for index in open_operations:
            self.recorder.complete(index, result.outcome, error=result.error)
        return result

    def invoke_start(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Record that the committed positions of partitions are asked for; the indexes of the operations."""
        return {
            key: self.recorder.invoke(
                self.process, "assign", *key, phase=self.phase, value=self.generation, instance=self.instance
            )
            for key in partitions
        }

    def complete_start(
        self,
        open_operations: Mapping[TopicPartition, int],
        committed: Mapping[TopicPartition, CommittedPosition | None],
    ) -> dict[TopicPartition, CommittedPosition]:
        """Record the answers: where the process starts, at 0 where nothing is committed."""
        starts = {key: committed[key] or CommittedPosition(0) for key in open_operations}
        for key, index in open_operations.items():
            offset, epoch, text = starts[key]
            self.recorder.complete(index, "ok", offset=offset, leader_epoch=epoch, metadata=text)
        return starts
