"""The rules of KIP-320 that the native consumer follows, each a switch, as the broker's rules are.

All are on by default. With one switched off the consumer is wrong in exactly one known way, which a test must detect;
docs/scenarios.md names the test of each.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ConsumerRules:
    """The safety rules that a consumer follows."""

    validate_position: bool = True
    """A position with a leader epoch is validated before the first fetch from a new leader. Without it the consumer has
    the semantics before KIP-320 and notices no truncation."""
    compare_epochs_in_validation: bool = True
    """A position is valid only if the leader answers for the very epoch queried. An end offset at or after the position
    is not enough: it may be that of an earlier epoch, in another log that has grown past the position."""
    wait_for_position_epoch: bool = True
    """A position of a later leader epoch than the known leader's waits for newer metadata: it was committed by a client
    that knew of that leader, and a leader from before it cannot know the epoch."""
    ignore_stale_fetch_answer: bool = True
    """The answer to a fetch counts only for the position from which it was sent, offset and epoch. After a seek to the
    same offset in another epoch the position has not been validated yet."""
