"""Changing the configuration of an existing topic or broker (IncrementalAlterConfigs, AlterConfigs).

A change of `min.insync.replicas` bumps the partition epoch of every partition of the topic in the same batch. Otherwise
a leader that has not read of a higher minimum could commit a smaller ISR, learn so from the response, and acknowledge
by the lower minimum records that a member of the ELR, chosen by the higher one, does not have. With the bump, the
controller rejects every ISR change made without knowledge of the current minimum. A lower minimum clears the ELRs that
it makes meaningless: those of partitions whose ISR now suffices.

A strategy of unclean recovery that promises to find every committed record begins only where enough replicas are known
to hold them all (`unclean_recovery.change_refused`).

Of a broker only the throttles of reassignments can be changed: all else is read from its file when it starts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from images.broker.config import (
    BROKER_THROTTLE_KEYS,
    TOPIC_KEYS,
    ConfigError,
    ConfigKey,
    parse_topic_config,
    split_list,
    topic_key,
)
from images.broker.controller.placement import RECORDED_KEYS, TopicDefaults, check_lengths, config_text
from images.broker.controller.unclean_recovery import change_refused
from images.broker.frozen_map import FrozenMap
from images.broker.metadata.image import TopicImage

SET, DELETE, APPEND, SUBTRACT = range(4)


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """A change of one key: Kafka's operation, and the value of a SET."""

    name: str
    operation: int
    value: str | None = None


def altered(topic: TopicImage, changes: Iterable[ConfigChange], defaults: TopicDefaults) -> FrozenMap[str, str]:
    """The configuration of `topic` after `changes`. Raises ConfigError with one line for the user."""
    config = dict(topic.config)
    for change in changes:
        key = topic_key(change.name)
        if key is None and change.operation == DELETE:
            continue  # as in Kafka
        if key is None:
            raise ConfigError(f"unknown topic configuration {change.name!r}")
        if change.operation == DELETE:
            config.pop(change.name, None)
            if change.name in RECORDED_KEYS:
                config[change.name] = config_text(defaults.config.get(change.name, TOPIC_KEYS[change.name].default))
        else:
            config[change.name] = _changed_value(change, key, config.get(change.name, ""))
    parse_topic_config(config)
    check_lengths(config)
    changed = FrozenMap(config)
    refusal = change_refused(topic, replace(topic, config=changed))
    if refusal is not None:
        raise ConfigError(refusal)
    return changed


def whole(config: Mapping[str, str], changes: Sequence[ConfigChange]) -> tuple[ConfigChange, ...]:
    """`changes` and those that delete every other key of `config`: AlterConfigs in terms of
    IncrementalAlterConfigs."""
    names = {change.name for change in changes}
    return (*(ConfigChange(name, DELETE) for name in config if name not in names), *changes)


def altered_throttles(throttles: Mapping[str, str], changes: Iterable[ConfigChange]) -> FrozenMap[str, str]:
    """The throttles of a broker after `changes`. Raises ConfigError with one line for the user."""
    changed = dict(throttles)
    for change in changes:
        key = BROKER_THROTTLE_KEYS.get(change.name)
        if change.operation == DELETE:
            changed.pop(change.name, None)
        elif key is None:
            raise ConfigError(f"{change.name} is read from a broker's file alone; only throttles can be changed")
        else:
            changed[change.name] = _changed_value(change, key, changed.get(change.name, ""))
            key.parse(change.name, changed[change.name])
    return FrozenMap(changed)


def _changed_value(change: ConfigChange, key: ConfigKey, before: str) -> str:
    if change.value is None or change.operation not in (SET, APPEND, SUBTRACT):
        raise ConfigError(f"{change.name}: a value to set is needed, or the operation to delete it")
    if change.operation == SET:
        return config_text(change.value)
    if key.kind is not list:
        raise ConfigError(f"{change.name} holds one value, nothing can be appended to it or subtracted from it")
    items, operands = split_list(before), split_list(config_text(change.value))
    if change.operation == APPEND:
        return ",".join([*items, *(operand for operand in operands if operand not in items)])
    return ",".join(item for item in items if item not in operands)
