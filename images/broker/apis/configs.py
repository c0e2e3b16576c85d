"""DescribeConfigs, from the metadata that this broker has applied and from its own configuration file.

The controller changes configurations: those of topics, and of brokers the throttles of reassignments, which have no
effect.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from kio.schema.describe_configs.v4.request import DescribeConfigsRequest
from kio.schema.describe_configs.v4.response import (
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from kio.schema.errors import ErrorCode

from images.broker.config import (
    BROKER_NAME_OF_TOPIC_KEY,
    BROKER_THROTTLE_KEYS,
    NODE_KEYS,
    TOPIC_KEYS,
    TOPIC_THROTTLE_KEYS,
    ConfigKey,
    NodeConfig,
)
from images.broker.frozen_map import FrozenMap
from images.broker.metadata.image import ClusterImage, TopicImage
from images.broker.metadata.topic_names import is_legal_name
from images.broker.runtime.server import Handler, Request
from images.wire.messages import Api

_TOPIC, _BROKER = 2, 4
"""Kafka's resource types."""
_FROM_TOPIC, _FROM_BROKER, _FROM_FILE, _FROM_DEFAULT = 1, 2, 4, 5
"""Kafka's config sources."""
_TYPE_OF: dict[type, int] = {bool: 1, str: 2, int: 3, list: 7}
"""Kafka's config types."""
_LONG = 5
"""Kafka's type of whole numbers of 64 bits."""
_LONG_KEYS = frozenset(
    {
        "retention.ms",
        "retention.bytes",
        "segment.ms",
        "flush.messages",
        "log.retention.ms",
        "log.retention.bytes",
        "log.roll.ms",
        "log.flush.interval.messages",
        "log.retention.check.interval.ms",
        "metadata.log.max.record.bytes.between.snapshots",
        "replica.high.watermark.checkpoint.interval.ms",
        "replica.lag.time.max.ms",
        *BROKER_THROTTLE_KEYS,
    }
)
"""Keys of that type in Kafka."""


class ConfigApis:
    """The handlers of one broker. `image` returns the metadata that this broker has applied."""

    def __init__(self, config: NodeConfig, image: Callable[[], ClusterImage]) -> None:
        self._config = config
        self._image = image

    def handlers(self) -> dict[Api, Handler]:
        """The handler of each API."""
        return {Api.DESCRIBE_CONFIGS: self.describe_configs}

    async def describe_configs(self, request: Request[DescribeConfigsRequest]) -> DescribeConfigsResponse:
        """Configuration of topics and of this broker, every key if none is named; another broker's is
        INVALID_REQUEST."""
        results = []
        for resource in request.body.resources:
            wanted = set(resource.configuration_keys or ())
            error, entries = self._entries(resource.resource_type, resource.resource_name)
            results.append(
                DescribeConfigsResult(
                    error_code=error,
                    error_message=None,
                    resource_type=resource.resource_type,
                    resource_name=resource.resource_name,
                    configs=tuple(
                        _described(
                            name,
                            key,
                            value,
                            source,
                            read_only=resource.resource_type != _TOPIC,
                            documented=request.body.include_documentation,
                        )
                        for name, key, value, source in entries
                        if not wanted or name in wanted
                    ),
                )
            )
        return DescribeConfigsResponse(throttle_time=timedelta(0), results=tuple(results))

    def _entries(self, kind: int, name: str) -> tuple[ErrorCode, list[tuple[str, ConfigKey, Any, int]]]:
        """(key name, key, value, source) of every key of a resource."""
        if kind == _TOPIC:
            topic = self._image().topics.get(name)
            if topic is None:
                legal = is_legal_name(name)
                return ErrorCode.unknown_topic_or_partition if legal else ErrorCode.invalid_topic_exception, []
            return ErrorCode.none, [
                (key_name, key, *self._topic_value(topic, key_name, key))
                for key_name, key in {**TOPIC_KEYS, **TOPIC_THROTTLE_KEYS}.items()
            ]
        if kind == _BROKER and name == str(self._config.node_id):
            keys = dict(NODE_KEYS) | {BROKER_NAME_OF_TOPIC_KEY[topic]: key for topic, key in TOPIC_KEYS.items()}
            throttles = self._image().broker_configs.get(self._config.node_id, FrozenMap())
            return ErrorCode.none, [
                *((key_name, key, *self._broker_value(key_name, key)) for key_name, key in keys.items()),
                *((name, BROKER_THROTTLE_KEYS[name], value, _FROM_BROKER) for name, value in throttles.items()),
            ]
        return ErrorCode.invalid_request, []

    def _topic_value(self, topic: TopicImage, name: str, key: ConfigKey) -> tuple[Any, int]:
        if name in topic.config:
            return topic.config[name], _FROM_TOPIC
        broker_name = BROKER_NAME_OF_TOPIC_KEY.get(name)
        return self._broker_value(broker_name, key) if broker_name is not None else (key.default, _FROM_DEFAULT)

    def _broker_value(self, name: str, key: ConfigKey) -> tuple[Any, int]:
        value = self._config.values[name]
        return value, _FROM_DEFAULT if value == key.default else _FROM_FILE


def _described(
    name: str, key: ConfigKey, value: Any, source: int, *, read_only: bool, documented: bool
) -> DescribeConfigsResourceResult:
    return DescribeConfigsResourceResult(
        name=name,
        value=str(value).lower() if isinstance(value, bool) else str(value),
        read_only=read_only,
        config_source=source,
        is_sensitive=False,
        synonyms=(),
        config_type=_LONG if name in _LONG_KEYS else _TYPE_OF[key.kind],
        documentation=key.documentation if documented else None,
    )
