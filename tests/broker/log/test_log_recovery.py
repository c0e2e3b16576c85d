"""Recovery of a log after power losses, kills and torn files at any moment, also in the middle of its own doings.

A `Life` keeps every state that the log may be in after a loss: those since its last flush, but none with what was cut
before the last append. Whatever a loss leaves must be a prefix, in whole batches, of one of them, with at least the
batches that were flushed and not cut since; epoch cache and producer table must be those made from the batches alone,
those deleted from the start included for producers. A start once moved stays moved. Every batch's bytes are unique, so
that a mixture of two states, such as an old tail that came back behind new batches, is a prefix of neither.

Hypothesis leads one life after another and makes a failing one short; plain seeds lead longer ones, which meet the rare
orders of events (cut, roll, kill, loss) that short ones miss.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from images.broker.log.epoch_checkpoint import EPOCH_CHECKPOINT
from images.broker.log.leader_epochs import EpochCache
from images.broker.log.log import Log
from images.broker.log.log_config import LogConfig
from images.broker.log.producer_state import ProducerTable, record
from images.wire.batch import build, iterate, parse
from tests.broker.log.disk_model import DiskModel, Draw, PowerCut, is_not_an_epoch_byte

DIRECTORY = "data/topic-0"


@dataclass(frozen=True)
class State:
    """A log as a list: where it starts, its batches, and those that the start has passed."""

    start: int
    batches: tuple[bytes, ...] = ()
    gone: tuple[bytes, ...] = ()
    epoch_before: int = -1
    """Of the record before the start, -1 if it is not known."""

    @property
    def end(self) -> int:
        return parse(self.batches[-1]).next_offset if self.batches else self.start

    def cut(self, to: int) -> State:
        """Without what reaches beyond `to`; where that leaves less than the start, empty and starting there."""
        if to < self.start:
            return State(to)
        kept = tuple(one for one in self.batches if parse(one).next_offset <= to)
        if kept or not self.batches:
            return replace(self, batches=kept)
        base = parse(self.batches[0]).base_offset
        return replace(self, batches=()) if base >= self.start else State(base)

    def advanced(self, to: int) -> State:
        """Starting at `to`; what ends below that has lost it all."""
        if to == self.start:
            return self
        if to > self.end:
            return State(to)
        passed = sum(parse(one).next_offset <= to for one in self.batches)
        last = parse(next(one for one in self.batches if parse(one).next_offset >= to))
        return State(to, self.batches[passed:], (*self.gone, *self.batches[:passed]), last.leader_epoch)

    def begins(self, other: State) -> bool:
        return self.start == other.start and self.batches == other.batches[: len(self.batches)]

    def producers(self) -> ProducerTable:
        table = ProducerTable()
        for one in (*self.gone, *self.batches):
            table = record(table, parse(one))
        return table


class Life:
    """One log and the losses it meets. Each method in `OPERATIONS` is one thing that happens to it."""

    def __init__(self, draw: Draw) -> None:
        self.draw = draw
        self.disk = DiskModel()
        self.config = LogConfig(
            segment_bytes=self.one_of(150, 250, 400, 1 << 30),
            flush_interval_messages=self.one_of(1 << 62, 4, 1),
            index_interval_bytes=self.one_of(0, 200),
        )
        self.written = 0
        self.epoch = 0
        self.now = State(0)
        self.earlier: list[State] = []
        """The log before each truncation since the last flush and the last append."""
        self.flushed = State(0)
        self.reopen()

    def one_of(self, *choices: int) -> int:
        return choices[self.draw(0, len(choices) - 1)]

    # ---- what a broker does ------------------------------------------------------------------------------------------

    def append(self) -> None:
        for _ in range(self.draw(1, 6)):
            after = self.appended()
            self.log.append(after.batches[-1])
            # What it was before is a prefix of this, and needs no keeping; and what was cut does not come back.
            self.now, self.earlier = after, []
            if self.log.recovery_point == after.end:
                self.note_flush()

    def truncate(self) -> None:
        to = max(0, self.now.end - self.draw(-1, 8))
        after = self.now.cut(to)
        assert self.log.truncate(to) == after.end
        self.note_cut(after)

    def truncate_fully(self) -> None:
        to = max(0, self.now.end + self.draw(-5, 5))
        epoch_before = self.draw(-1, self.epoch) if to else -1
        self.log.truncate_fully_and_start_at(to, epoch_before)
        # Removing whole files is synced at once: none comes back.
        self.now = self.flushed = State(to, epoch_before=epoch_before)
        self.earlier = []

    def advance_start(self) -> None:
        to = self.draw(self.now.start, self.now.end)
        self.log.advance_start(to)
        self.note_start(to)

    def roll(self) -> None:
        self.log.roll()

    def take_over(self) -> None:
        self.epoch += 1
        self.log.assign_epoch(self.epoch, self.now.end)

    def flush(self) -> None:
        self.log.flush()
        self.note_flush()

    def close_and_open(self) -> None:
        self.log.close(clean=True)
        self.note_flush()
        damage = self.draw(0, 3)
        if damage == 1:
            self.disk.delete(f"{DIRECTORY}/{EPOCH_CHECKPOINT}")
        elif damage == 2:
            file = self.disk.open(f"{DIRECTORY}/{EPOCH_CHECKPOINT}")
            file.truncate(file.size() - 1)
        elif damage == 3:
            first = next(name for name in self.disk.list(DIRECTORY) if name.endswith(".log"))
            for name in self.disk.list(DIRECTORY):
                if name.endswith(".snapshot") and not name.startswith(first[:20]) and self.draw(0, 1):
                    self.disk.delete(f"{DIRECTORY}/{name}")
        self.reopen()
        assert self.log.recovery.clean
        assert self.read() == self.now

    # ---- what befalls it ---------------------------------------------------------------------------------------------

    def kill(self) -> None:
        self.reopen()
        assert not self.log.recovery.clean
        assert not self.log.recovery.cut_bytes
        assert self.read() == self.now
        if self.now.end - self.now.start >= self.config.flush_interval_messages:
            self.note_flush()

    def lose_power(self) -> None:
        self.lose({self.now, *self.earlier}, self.flushed)

    def lose_power_after_a_clean_close(self) -> None:
        self.log.close(clean=True)
        self.note_flush()
        self.lose({self.now}, self.now)
        assert self.log.recovery.clean

    def lose_power_within(self) -> None:
        """The loss strikes after a few changes to the disk, whatever the log is at then."""
        possible, flushed = {self.now, *self.earlier}, self.flushed
        do: Callable[[], object]
        doing = self.draw(0, 6)
        if doing == 0:
            after = self.appended()
            possible.add(after)
            do = lambda: self.log.append(after.batches[-1])  # noqa: E731
        elif doing <= 2:
            to = max(0, self.now.end - self.draw(0 if doing == 1 else -3, 8))
            after = self.now.cut(to) if doing == 1 else State(to)
            possible.add(after)
            if doing == 1 and after.begins(self.now):
                flushed = flushed if after.end >= flushed.end else flushed.cut(after.end)
            elif to < self.now.end:
                # Old segments go first, the new one comes last: in between there may be none at all.
                possible |= {State(0), State(self.now.start)}
                flushed = None
            do = (lambda: self.log.truncate(to)) if doing == 1 else (lambda: self.log.truncate_fully_and_start_at(to))
        elif doing == 3:
            do = self.log.flush
        elif doing == 4:
            do = lambda: self.log.close(clean=True)  # noqa: E731
        elif doing == 5:
            start = self.draw(self.now.start, self.now.end)
            possible |= {state.advanced(start) for state in possible}
            flushed = None if flushed.end < start else flushed
            do = lambda: self.log.advance_start(start)  # noqa: E731
        else:
            do = self.reopen
        self.disk.fail_after(self.draw(0, 12))
        try:
            do()
        except PowerCut:
            pass
        self.lose(possible, flushed)

    OPERATIONS = (
        append,
        truncate,
        flush,
        kill,
        lose_power,
        lose_power_within,
        close_and_open,
        lose_power_after_a_clean_close,
        take_over,
        truncate_fully,
        advance_start,
        roll,
    )
    WEIGHTS = (40, 12, 5, 8, 5, 5, 4, 2, 4, 2, 6, 2)

    # ---- the promises ------------------------------------------------------------------------------------------------

    def lose(self, possible: set[State], flushed: State | None) -> None:
        """`flushed`: what must be there at least, None when removing everything was under way."""
        self.disk.lose_power(self.draw, is_not_an_epoch_byte)
        self.reopen()
        found = self.read()
        assert any(found.begins(state) for state in possible), "a log that never was"
        if flushed is not None:
            assert flushed.advanced(found.start).begins(found), "flushed batches are gone"
        # Which state that was decides what was before the start; a log that lost more than it was to keep has forgotten
        # its producers.
        origins = [replace(state, batches=found.batches) for state in possible if found.begins(state)]
        origins += [replace(state, gone=()) for state in origins if not found.batches]
        known = self.log.epochs.epoch_at(found.start - 1), self.log.producers
        self.now = next((it for it in origins if (it.epoch_before, it.producers()) == known), origins[0])
        self.flushed, self.earlier = self.now, []

    def check(self) -> None:
        epochs = EpochCache.behind(self.now.epoch_before, self.now.start)
        for one in self.now.batches:
            header = parse(one)
            epochs = epochs.with_batch(header.leader_epoch, max(header.base_offset, self.now.start))
        assert self.log.epochs.truncate_end(self.log.end) == epochs
        assert len(self.log.epochs.entries) <= len(epochs.entries) + 1
        assert self.log.producers == self.now.producers()
        assert self.log.last_batch_epoch == (epochs.latest if self.now.batches else -1)
        assert (self.log.start, self.log.end) == (self.now.start, self.now.end)
        assert self.log.recovery_point <= self.flushed.end

    # ---- the parts ---------------------------------------------------------------------------------------------------

    def appended(self) -> State:
        """The state with one more batch."""
        self.written += 1
        last = parse(self.now.batches[-1]).leader_epoch if self.now.batches else max(0, self.now.epoch_before)
        epoch = last + self.one_of(0, 0, 0, 1)
        self.epoch = max(self.epoch, epoch)
        producer = self.draw(0, 2)
        one = build(
            [b"%d" % self.written] * self.draw(1, 3),
            timestamp_ms=self.written,
            producer_id=producer if producer else -1,
            producer_epoch=self.draw(0, 1) if producer else -1,
            base_sequence=self.draw(0, 6) if producer else -1,
            leader_epoch=epoch,
            base_offset=self.now.end,
        )
        return replace(self.now, batches=(*self.now.batches, one))

    def note_start(self, to: int) -> None:
        """All the log may be after a loss starts at `to` now."""
        self.now, self.flushed = self.now.advanced(to), self.flushed.advanced(to)
        self.earlier = [state.advanced(to) for state in self.earlier]

    def note_cut(self, after: State) -> None:
        if not after.begins(self.now):
            self.earlier, self.flushed = [], after
        elif after != self.now:
            self.earlier.append(self.now)
            self.flushed = self.flushed.cut(after.end)
        self.now = after

    def note_flush(self) -> None:
        self.flushed, self.earlier = self.now, []

    def reopen(self) -> None:
        self.log = Log.open(self.disk, DIRECTORY, self.config, [].append)

    def read(self) -> State:
        found: list[bytes] = []
        offset = self.log.start
        while offset < self.log.end:
            for header, one in iterate(self.log.read(offset, 1 << 30, self.log.end)):
                found.append(one)
                offset = header.next_offset
        return replace(self.now, start=self.log.start, batches=tuple(found))


class LogUnderLosses(RuleBasedStateMachine):
    """A life that Hypothesis leads."""

    @initialize(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        self.life = Life(lambda low, high: data.draw(st.integers(low, high)))

    @rule(operation=st.sampled_from(Life.OPERATIONS), data=st.data())
    def happen(self, operation: Callable[[Life], None], data: st.DataObject) -> None:
        self.life.draw = lambda low, high: data.draw(st.integers(low, high))
        operation(self.life)

    @invariant()
    def promises(self) -> None:
        if hasattr(self, "life"):
            self.life.check()


TestLogUnderLosses = LogUnderLosses.TestCase
TestLogUnderLosses.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)


@pytest.mark.parametrize("lives", [range(start, start + 50) for start in range(0, 400, 50)], ids=str)
def test_many_long_lives(lives: range) -> None:
    for seed in lives:
        random = Random(seed)
        life = Life(random.randint)
        for operation in random.choices(Life.OPERATIONS, Life.WEIGHTS, k=60):
            operation(life)
            life.check()


# ---- orders too rare to leave to chance ------------------------------------------------------------------------------


def one_record(offset: int, epoch: int) -> bytes:
    return build([b"%03d" % offset], timestamp_ms=0, leader_epoch=epoch, base_offset=offset)


def keep_everything(low: int, high: int) -> int:
    return high


@pytest.mark.parametrize("killed", [False, True], ids=["running on", "killed and restarted after the cut"])
def test_an_old_tail_that_comes_back_does_not_join_on_to_the_next_segment(killed: bool) -> None:
    disk = DiskModel()
    config = LogConfig(segment_bytes=4 * len(one_record(0, 1)))
    log = Log.open(disk, DIRECTORY, config, [].append)
    for offset in range(4):
        log.append(one_record(offset, epoch=1))
    log.flush()
    log.truncate(2)
    if killed:
        log = Log.open(disk, DIRECTORY, config, [].append)
    for offset in range(2, 6):
        log.append(one_record(offset, epoch=2))
    first = disk.names[f"{DIRECTORY}/{0:020d}.log"]
    first.unsynced.clear()  # what the first segment was not synced of is lost, the second keeps all
    disk.lose_power(keep_everything)
    log = Log.open(disk, DIRECTORY, config, [].append)
    epochs = [header.leader_epoch for header, _ in iterate(log.read(0, 1 << 20, log.end))]
    assert epochs in ([1, 1, 1, 1], [1, 1], [1, 1, 2], [1, 1, 2, 2])
    assert log.end == len(epochs) or epochs == [1, 1, 2, 2]


def test_the_mark_of_a_clean_close_does_not_come_back_after_the_log_went_on() -> None:
    disk = DiskModel()
    log = Log.open(disk, DIRECTORY, LogConfig(), [].append)
    for offset in range(3):
        log.append(one_record(offset, epoch=1))
    log.close(clean=True)
    log = Log.open(disk, DIRECTORY, LogConfig(), [].append)
    log.truncate(2)
    log.append(one_record(2, epoch=7))  # of the same size as what it replaces
    disk.unsynced_names.clear()
    disk.lose_power(keep_everything)
    log = Log.open(disk, DIRECTORY, LogConfig(), [].append)
    assert log.epochs == EpochCache.of((1, 0), (7, 2))


def test_an_epoch_cache_checkpointed_after_a_cut_that_is_undone_is_not_believed() -> None:
    disk = DiskModel()
    log = Log.open(disk, DIRECTORY, LogConfig(), [].append)
    for offset in range(4):
        log.append(one_record(offset, epoch=1 + offset // 2))
    log.flush()
    log.truncate(2)
    log.assign_epoch(3, 2)
    disk.fsync_error = OSError("the disk says nothing was synced")
    log.close(clean=True)
    disk.open(f"{DIRECTORY}/{EPOCH_CHECKPOINT}").append(log.epochs.to_checkpoint().encode())
    disk.names[f"{DIRECTORY}/{0:020d}.log"].unsynced.clear()
    disk.fsync_error = None
    disk.lose_power(keep_everything)
    log = Log.open(disk, DIRECTORY, LogConfig(), [].append)
    assert (log.end, log.epochs) == (4, EpochCache.of((1, 0), (2, 2)))


@pytest.mark.parametrize("left", ["of an earlier close", "of another log", "missing"])
def test_no_epoch_checkpoint_is_read_after_an_unclean_end(left: str) -> None:
    """The checkpoint is written by a clean close only. Nothing depends on it after any other end, whatever it says."""
    disk = DiskModel()
    log = Log.open(disk, DIRECTORY, LogConfig(), [].append)
    for offset in range(4):
        log.append(one_record(offset, epoch=1 + offset // 2))
    log.close(clean=True)
    log = Log.open(disk, DIRECTORY, LogConfig(), [].append)
    log.truncate(3)
    for offset in range(3, 6):
        log.append(one_record(offset, epoch=5))
    path = f"{DIRECTORY}/{EPOCH_CHECKPOINT}"
    assert disk.exists(path)
    if left != "of an earlier close":
        disk.delete(path)
    if left == "of another log":
        disk.open(path).append(EpochCache.of((3, 0), (9, 5)).to_checkpoint().encode())
    log.close(clean=False)
    assert Log.open(disk, DIRECTORY, LogConfig(), [].append).epochs == EpochCache.of((1, 0), (2, 2), (5, 3))
