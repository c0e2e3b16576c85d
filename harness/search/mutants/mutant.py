"""The mutants: brokers that are wrong in one way each, and how each is searched for.

A mutant lacks a safety rule, speaks an older generation of the truncation protocol, or has a mistake that is no rule.
It is searched for by
`random` runs in drawn worlds under all fair faults but the scripted ones (the *stories*), by the same runs with
`stories`, by a `hunt` over the worlds and faults of `random`, and by an exhaustive exploration of small scopes
(`explore`).

All seeds are laid out beforehand: range r of a mutant has the seeds from FIRST_SEED + RUNS_MOST × r on, the same for
all mutants; the hunt of range r has the random seed FIRST_SEED + r.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from harness.cluster.systems import SYSTEMS
from harness.environments.mistakes import mistakes
from harness.spec import Spec, parse
from nemesis.registry import FAIR_FAMILIES

FIRST_SEED: Final = 1_000_000
"""Checkers and faults were developed on small seeds; these were never looked at."""
RUNS_MOST: Final = 200
"""Runs of a range."""
RANGES: Final = 5
MANY_RANGES: Final = 20
STORIES: Final = "scripted"
"""The family of the faults that are sequences of steps."""


class Method(StrEnum):
    """A search that makes runs."""

    RANDOM = "random"
    STORIES = "stories"
    HUNT = "hunt"


LIMITS: Final = {Method.RANDOM: 500, Method.STORIES: 100}
"""Runs within which these are to find every rule."""


class MutantKind(StrEnum):
    """The way in which a mutant is wrong."""

    RULE = "rule"
    GENERATION = "generation"
    MISTAKE = "mistake"


@dataclass(frozen=True, slots=True)
class Mutant:
    """See the module's docstring."""

    name: str
    kind: MutantKind
    without: tuple[str, ...] = ()
    """The rule that is off."""
    protocol: str = ""
    """The truncation protocol of all brokers; empty for today's."""
    mistakes: tuple[str, ...] = ()
    """The patch of its brokers (`harness.environments.mistakes`)."""
    workload: str = "append"
    of_quorum: bool = False
    """Whether it concerns the elections of controllers and their log, and nothing of the replication by brokers."""
    ranges: int = RANGES
    """Ranges of seeds on which its figures are to rest."""

    def base(self, method: Method) -> Spec:
        """The spec of its runs: with its world and its faults still to be drawn."""
        values: dict[str, Any] = {
            "name": self.name,
            "vary": True,
            "workload": self.workload,
            "faults": [name for name in FAIR_FAMILIES if method is Method.STORIES or name != STORIES],
        }
        if self.without:
            values["without"] = list(self.without)
        if self.mistakes:
            values["mistakes"] = list(self.mistakes)
        if self.protocol:
            values["settings"] = {"faultline.protocol": self.protocol}
        return parse(values)


_OF_GROUPS: Final = frozenset(
    {
        "offset_commit_after_high_watermark",
        "offset_fetch_confirmed_by_isr",
        "coordinator_waits_for_high_watermark",
        "generation_fences_commits",
        "generation_stored_before_join",
        "coordinator_loads_below_high_watermark",
    }
)
"""Rules and a mistake of the group coordinator: without a group nothing asks them."""
_OF_QUORUM: Final = frozenset(
    {
        "vote_once_per_epoch",
        "vote_is_synced",
        "vote_needs_up_to_date_log",
        "metadata_needs_majority",
        "metadata_is_synced",
        "commit_only_own_epoch",
        "metadata_fetch_fenced",
        "metadata_cut_on_divergence",
    }
)
"""The rules that `images/broker/raft` asks, and no other part of the broker."""
_QUORUM_MODULES: Final = "images.broker.raft."
_IN_MANY_RANGES: Final = frozenset(
    {
        # the two ways of losing acknowledged records that were found by reading
        "fence_fetch_broker_epoch",
        "delete_replica_durably",
        # ten rules that the literature names, of every part of the protocol
        "fence_fetch_epoch",
        "truncate_on_divergence",
        "maximal_isr",
        "min_isr_gates_high_watermark",
        "leso_gates_isr_join",
        "current_epoch_fetch_gates_isr_join",
        "broker_epoch_checked_in_alter_partition",
        "unclean_leaves_elr",
        "vote_once_per_epoch",
        "commit_only_own_epoch",
    }
)
_OLD_PROTOCOLS: Final = ("high_watermark", "kip101", "kip279", "kip320_first_try")
"""The flawed ones."""

GUARDED_BY: Final = {
    "applied_high_watermark": "latest_confirmed_by_isr",
    "registration_waits_for_fencing": "unclean_leaves_isr",
}
"""Rules whose absence costs nothing while another rule is on, and that other rule.

Once every member of the ISR has fetched in the leader's epoch, the high watermark is as high as anything committed: a
leader that waits for that need not look at the leader epoch start offset, below which it may lie all the same. And
whether a broker leaves the ISR when the controller notices that it is gone, or when it comes back: either of them keeps
an emptied replica out, but for the instant between a session's end and the moment it is noticed
(tests/broker/controller/test_controller_scope.py)."""


def all_mutants() -> dict[str, Mutant]:
    """By name: every rule of the broker, then every flawed generation, then every mistake."""
    rules = [
        Mutant(
            rule.name,
            MutantKind.RULE,
            without=(rule.name,),
            workload="groups" if rule.name in _OF_GROUPS else "append",
            of_quorum=rule.name in _OF_QUORUM,
            ranges=MANY_RANGES if rule.name in _IN_MANY_RANGES else RANGES,
        )
        for rule in SYSTEMS["broker"].rules
    ]
    generations = [Mutant(name, MutantKind.GENERATION, protocol=name) for name in _OLD_PROTOCOLS]
    patched = [
        Mutant(
            name,
            MutantKind.MISTAKE,
            mistakes=(name,),
            workload="groups" if name in _OF_GROUPS else "append",
            of_quorum=mistake.target.startswith(_QUORUM_MODULES),
        )
        for name, mistake in mistakes().items()
    ]
    return {mutant.name: mutant for mutant in (*rules, *generations, *patched)}
