"""Legal names of topics."""

from __future__ import annotations

import re

_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")


def is_legal_name(name: str) -> bool:
    """Whether a topic may have this name. Elsewhere it is INVALID_TOPIC_EXCEPTION (17)."""
    return name not in (".", "..") and _LEGAL_NAME.fullmatch(name) is not None


def metric_name(name: str) -> str:
    """The name under which Kafka's metrics count a topic: two topics must not share one."""
    return name.replace(".", "_")
