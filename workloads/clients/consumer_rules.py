"""The rules of KIP-320 that the native consumer follows, each a switch, as the broker's rules are.

All are on by default. With one switched off the consumer is wrong in exactly one known way, which a test must detect. A
spec switches one off by its name with `consumer.` before it: `without: [consumer.validate_position]`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, fields, replace
from typing import Final, NamedTuple

PREFIX: Final = "consumer."
"""Before the name of a consumer's rule in a spec: a broker's rule may have the same name."""


def _rule(protects: str, source: str) -> bool:
    on: bool = field(default=True, metadata={"protects": protects, "source": source})
    return on


@dataclass(frozen=True, slots=True)
class ConsumerRules:
    """The safety rules that a consumer follows."""

    validate_position: bool = _rule(
        "A position with a leader epoch is validated before the first fetch from a new leader. Without it the consumer "
        "has the semantics before KIP-320 and notices no truncation.",
        "KIP-320 Consumer Handling",
    )
    compare_epochs_in_validation: bool = _rule(
        "A position is valid only if the leader answers for the very epoch queried. An end offset at or after the "
        "position is not enough: it may be that of an earlier epoch, in another log that has grown past the position.",
        "KIP-320 Consumer Handling",
    )
    wait_for_position_epoch: bool = _rule(
        "A position of a later leader epoch than the known leader's waits for newer metadata: it was committed by a "
        "client that knew of that leader, and a leader from before it cannot know the epoch.",
        "KIP-320 Consumer Handling",
    )
    ignore_stale_fetch_answer: bool = _rule(
        "The answer to a fetch counts only for the position from which it was sent, offset and epoch. After a seek to "
        "the same offset in another epoch the position has not been validated yet.",
        "KIP-320 Consumer Handling",
    )

    def without(self, names: Iterable[str]) -> ConsumerRules:
        """These rules with those of `names`, as a spec has them, switched off; names of other rules are left aside."""
        own = [name.removeprefix(PREFIX) for name in names if name in NAMES]
        return replace(self, **dict.fromkeys(own, False))


class ConsumerRule(NamedTuple):
    """One rule: its name in a spec, what it protects, and the section of the source that requires it."""

    name: str
    protects: str
    source: str


DESCRIPTIONS: Final = tuple(
    ConsumerRule(PREFIX + item.name, item.metadata["protects"], item.metadata["source"])
    for item in fields(ConsumerRules)
)
VALIDATE_POSITION: Final = PREFIX + "validate_position"
NAMES: Final[Collection[str]] = tuple(rule.name for rule in DESCRIPTIONS)
