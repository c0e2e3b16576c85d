"""Changing the configuration of an existing topic (IncrementalAlterConfigs).

A change of `min.insync.replicas` bumps the partition epoch of every partition of the topic in the same batch. Otherwise
a leader that has not read of a higher minimum could commit a smaller ISR, learn so from the response, and acknowledge
by the lower minimum records that a member of the ELR, chosen by the higher one, does not have. With the bump, the
controller rejects every ISR change made without knowledge of the current minimum. A lower minimum clears the ELRs that
it makes meaningless: those of partitions whose ISR now suffices.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from images.broker.config import TOPIC_KEYS, ConfigError, parse_topic_config
from images.broker.controller.placement import RECORDED_KEYS, TopicDefaults, config_text
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
        if change.name not in TOPIC_KEYS and change.operation == DELETE:
            continue  # As in Kafka, whose tools delete throttles that nobody has set.
        if change.name not in TOPIC_KEYS:
            raise ConfigError(f"unknown topic configuration {change.name!r}")
        if change.operation == DELETE:
            config.pop(change.name, None)
            if change.name in RECORDED_KEYS:
                config[change.name] = config_text(defaults.config.get(change.name, TOPIC_KEYS[change.name].default))
        elif change.operation == SET and change.value is not None:
            config[change.name] = config_text(change.value)
        elif change.operation in (APPEND, SUBTRACT):
            raise ConfigError(f"{change.name} holds one value, nothing can be appended to it or subtracted from it")
        else:
            raise ConfigError(f"{change.name}: a value to set is needed, or the operation to delete it")
    parse_topic_config(config)
    return FrozenMap(config)
