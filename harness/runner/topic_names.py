"""Names for topics of one name: the first keeps it, the next is `name#2`, and so on.

A topic that is created anew under the name of a deleted one is another topic. Trace, checks, situations and stories
name a partition by its topic and number, so each topic gets a name of its own when its first event is received; `#` is
in no name that Kafka permits. A topic is told by its id (`images.trace.TraceEvent.topic_id`).
"""

from __future__ import annotations

from collections.abc import Collection

from images.trace import TraceEvent


class TopicNames:
    """The names of all topics of a run so far, in the order in which their events are received."""

    def __init__(self, recreated: Collection[str]) -> None:
        """`recreated` are topics that are deleted and created anew."""
        self._recreated = frozenset(recreated)
        self._names: dict[tuple[str, str], str] = {}
        """(name, topic id) → the name in the trace."""
        self._counts: dict[str, int] = {}

    def named(self, event: TraceEvent) -> TraceEvent | None:
        """The event with the name of its topic; None where it may be of any topic of that name: a system that tells of
        logs without the id of their topic, or a log on a disk whose id is lost."""
        if event.topic not in self._recreated:
            return event
        if not event.topic_id:
            return None
        key = event.topic, event.topic_id
        if key not in self._names:
            number = self._counts[event.topic] = self._counts.get(event.topic, 0) + 1
            self._names[key] = event.topic if number == 1 else f"{event.topic}#{number}"
        return event._replace(topic=self._names[key])
