"""Changes of a topic: its partitions, replicas and configuration, and those that are to be refused.

Lists that are changed item by item are those of throttled replicas, which have no effect; a minimum of in-sync replicas
is above that of the run, and a strategy of unclean recovery one that accepts no loss: where the default accepts any, so
does the run.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from nemesis.cluster_shape import RECOVERY_STRATEGY
from nemesis.handle import FaultHandle
from nemesis.ports import DONE, SIDE_TOPIC, AdminResult, ConfigOperation

_GROWS_SHARE = 0.4
"""Of the changes."""
_MOVES_SHARE = 0.3
"""Of the others; what is left changes the configuration."""
_ADDED_MAX = 3
"""Partitions at once."""
_MINIMUM: Final = "min.insync.replicas"
_STRATEGIES: Final = ("balanced", "manual")
"""Of unclean recovery."""
_MESSAGE_BYTES: Final = (500_000, 1_000_000)
_LISTS_SHARE = 0.6
_THROTTLED: Final = "leader.replication.throttled.replicas"
"""It holds a list, and has no effect."""
_THROTTLED_REPLICAS: Final = ("0:1", "0:2", "1:1", "1:2")
_THROTTLED_AT_ONCE: Final = 3
_OF_VALUES: Final = (*(ConfigOperation.SET,) * 2, ConfigOperation.DELETE, ConfigOperation.REPLACE)
_OF_LISTS: Final = (
    *(ConfigOperation.APPEND, ConfigOperation.SUBTRACT) * 2,
    ConfigOperation.DELETE,
    ConfigOperation.REPLACE,
)
_DRY_RUN_SHARE: Final = 0.7
_REFUSED_SHARE: Final = 0.5
_Change = Callable[..., Awaitable[AdminResult]]
"""Asks for a change, or for a dry run of it."""


@dataclass(frozen=True, slots=True)
class TopicChanges:
    """The changes that a fault asks for, one after the other; with `dry_runs` most of them after a dry run, and some
    that are to be refused. Such an administrator also asks which reassignments are under way: before each change, and
    when one has begun."""

    handle: FaultHandle
    dry_runs: bool

    async def change(self, partitions: int) -> int:
        """Add partitions to so many, move one, or change the configuration; how many were added."""
        admin, random = self.handle.cluster.admin, self.handle.random
        await self.ask_in_vain(partitions)
        await self._list_reassignments()
        if random.random() < _GROWS_SHARE:
            added = random.randint(1, _ADDED_MAX)
            grow = partial(admin.create_partitions, SIDE_TOPIC, partitions + added)
            await self.rehearse(grow)
            if (await grow()).outcome != DONE:
                return 0
            self.handle.count_evidence("grown")
            return added
        if random.random() < _MOVES_SHARE:
            await self._move(random.randrange(partitions))
        elif random.random() < _LISTS_SHARE:
            operation = random.choice(_OF_LISTS)
            items = random.sample(_THROTTLED_REPLICAS, random.randint(1, _THROTTLED_AT_ONCE))
            await self._configure(_THROTTLED, ",".join(items), operation)
        else:
            values = {
                _MINIMUM: str(self._higher_minimum),
                "max.message.bytes": str(random.choice(_MESSAGE_BYTES)),
                RECOVERY_STRATEGY: random.choice(_STRATEGIES),
            }
            operation, key = random.choice(_OF_VALUES), random.choice(list(values))
            await self._configure(key, values[key], operation)
        return 0

    async def raise_minimum(self) -> None:
        """Require one more in-sync replica than the run does."""
        await self._configure(_MINIMUM, str(self._higher_minimum))

    async def choose_strategy(self) -> None:
        """Set a strategy of unclean recovery."""
        await self._configure(RECOVERY_STRATEGY, self.handle.random.choice(_STRATEGIES))

    async def rehearse(self, change: _Change) -> None:
        """Ask for a dry run of a change, most of the time."""
        if self.dry_runs and self.handle.random.random() < _DRY_RUN_SHARE:
            await change(dry_run=True)

    async def ask_in_vain(self, partitions: int) -> None:
        """Now and then a change that is to be refused, of a topic with so many partitions, after a dry run of it."""
        if not self.dry_runs or self.handle.random.random() >= _REFUSED_SHARE:
            return
        admin = self.handle.cluster.admin
        changes: list[_Change] = [
            partial(admin.create_topic, SIDE_TOPIC, len(self.handle.cluster.brokers) + 1),
            partial(admin.create_partitions, SIDE_TOPIC, partitions),
            partial(admin.configure, SIDE_TOPIC, _MINIMUM, "0"),
            partial(admin.configure, SIDE_TOPIC, _MINIMUM, "1", ConfigOperation.APPEND),
        ]
        change = self.handle.random.choice(changes)
        await change(dry_run=True)
        await change()

    async def _move(self, partition: int) -> None:
        """Have a partition on other brokers, of which as many as may lose data lose nothing that is acknowledged."""
        handle, brokers = self.handle, self.handle.cluster.brokers
        replicas = handle.random.randint(min(handle.min_isr, len(brokers)), handle.replication_factor or len(brokers))
        target = handle.random.sample(list(brokers), replicas)
        if (await handle.cluster.admin.reassign(SIDE_TOPIC, partition, target)).outcome == DONE:
            handle.count_evidence("moved")
            await self._list_reassignments()

    async def _list_reassignments(self) -> None:
        if self.dry_runs:
            await self.handle.cluster.admin.list_reassignments()

    @property
    def _higher_minimum(self) -> int:
        return self.handle.min_isr + 1

    async def _configure(self, key: str, value: str, operation: ConfigOperation = ConfigOperation.SET) -> None:
        configure = partial(self.handle.cluster.admin.configure, SIDE_TOPIC, key, value, operation)
        await self.rehearse(configure)
        if (await configure()).outcome == DONE:
            self.handle.count_evidence("configured")
