"""The metadata log of one controller, as its trace tells of it."""

from __future__ import annotations

from bisect import bisect_right

from checkers.tables import WITH_BYTES_BEHIND, TraceRow

UNKNOWN = -1
"""The epoch of a record that is not known."""


def differ(one: int, other: int) -> bool:
    """Whether two epochs are known and not the same."""
    return one != other and UNKNOWN not in (one, other)


def left_behind(opened: TraceRow) -> tuple[str, ...]:
    """The lines about a log whose file went on behind it when it was opened; none where it did not."""
    behind = opened.details().get("bytes_behind", 0)
    if not behind:
        return ()
    return (
        f"{opened.node} started {opened.at} with a metadata log that ends at {opened.log_end}, and left {behind} bytes "
        "behind its last batch",
        WITH_BYTES_BEHIND,
    )


def cut_in_part(log: MetadataLog, cut: TraceRow) -> tuple[str, ...]:
    """The lines about a cut that leaves records of which its leader's answer says that it has others; none where it
    takes them all."""
    if "answer" not in cut.details() or cut.log_end != log.end:
        return ()
    epoch, end = cut.details()["answer"]
    most = log.shared_up_to(epoch, end)
    if most is None or cut.offset <= most:
        return ()
    return (
        f"{cut.node} cut its metadata log {cut.log_end} → {cut.offset} {cut.at}: its leader's has controller epoch "
        f"{epoch} up to {end}, and nothing later that both may share",
        f"what the leader may have, too, ends at {most} in its own",
    )


class MetadataLog:
    """One controller's metadata log: the epoch of each record, from `start` on."""

    def __init__(self) -> None:
        self.start = 0
        self.epoch_before = UNKNOWN
        """The epoch of the record before `start`."""
        self.epochs: list[int] = []

    @property
    def end(self) -> int:
        """Where it ends."""
        return self.start + len(self.epochs)

    def at(self, offset: int) -> int:
        """The epoch at `offset`; -1 where the log does not reach or is not known any more."""
        if offset == self.start - 1:
            return self.epoch_before
        return self.epochs[offset - self.start] if self.start <= offset < self.end else UNKNOWN

    def gave_way(self, opened: TraceRow) -> bool:
        """Whether a log that is opened has given way to a snapshot that parts from it, as it does where a crash cuts
        short the installation of one: the log is empty behind a snapshot whose last record was of another epoch in it.
        """
        epochs = opened.details().get("epochs") or []
        return opened.offset == opened.log_end and bool(epochs) and differ(self.at(opened.offset - 1), epochs[-1][0])

    def shared_up_to(self, epoch: int, end: int) -> int | None:
        """Where this log is to be cut after its leader's answer that its own has no later `epoch` than this up to its
        `end`, and that they part; None where the records that decide it are not known."""
        if not self.epochs or self.epochs[0] > epoch or UNKNOWN in self.epochs:
            return None
        shared = self.start + bisect_right(self.epochs, epoch)
        return shared if self.at(shared - 1) < epoch else min(shared, end)

    def put(self, offset: int, end: int, epoch: int) -> None:
        """Records of one epoch from `offset` on, in place of all that was there."""
        del self.epochs[max(0, offset - self.start) :]
        self.epochs += [UNKNOWN] * (offset - self.end) + [epoch] * (end - offset)

    def trim(self, start: int) -> None:
        """A snapshot replaces the records below `start`."""
        if self.start < start <= self.end:
            self.epoch_before = self.at(start - 1)
            del self.epochs[: start - self.start]
            self.start = start

    def restart(self, start: int, end: int, entries: list[list[int]], epoch_before: int = UNKNOWN) -> None:
        """The whole log, by the entries [epoch, first offset] of its epoch cache."""
        self.epoch_before = epoch_before if start != self.start or epoch_before != UNKNOWN else self.epoch_before
        self.start, self.epochs = start, []
        for number, (epoch, first) in enumerate(entries):
            last = entries[number + 1][1] if number + 1 < len(entries) else end
            self.put(max(first, start), max(last, start), epoch)
