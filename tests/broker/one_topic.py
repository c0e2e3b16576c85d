"""A cluster with one topic, `orders`, for versions of messages that name topics and for those that number them."""

from __future__ import annotations

from uuid import UUID

ORDERS = UUID(int=7)


class Topics:
    """`images.wire.versions.TopicNames` of it."""

    def topic_id(self, name: str) -> UUID | None:
        return ORDERS if name == "orders" else None

    def topic_name(self, topic_id: UUID) -> str | None:
        return "orders" if topic_id == ORDERS else None
