"""Fetch sessions (KIP-227)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tests.differential.cases.fetch import fetch_fields, of_topic, wanted
from tests.differential.cases.produce import ONE
from tests.differential.scene import UNKNOWN_ID, Scene, Topic, case


async def _fetch(s: Scene, version: int, session: int, epoch: int, *topics: dict[str, Any], **fields: Any) -> Any:
    return await s.ask(
        "fetch", version, **fetch_fields(version, *topics, session_id=session, session_epoch=epoch, **fields)
    )


async def _open(s: Scene, version: int, topic: Topic, partitions: Iterable[int] = (0,), offset: int = 0) -> int:
    asked = of_topic(version, topic, *(wanted(partition, offset) for partition in partitions))
    answer = await _fetch(s, version, 0, 0, asked)
    return int(answer["session_id"])


def _forgotten(version: int, topic: Topic, *partitions: int) -> list[dict[str, Any]]:
    key = {"topic": topic.name} if version <= 12 else {"topic_id": topic.id}
    return [{**key, "partitions": list(partitions)}]


for _version in (7, 13, 16):

    @case(f"Fetch session v{_version}: a new one, then nothing new", _version)
    async def nothing_new(s: Scene, version: int) -> None:
        topic = await s.topic(b"one")
        session = await _open(s, version, topic, offset=1)
        await _fetch(s, version, session, 1)

    @case(f"Fetch session v{_version}: records again until the offset moves", _version)
    async def records_again(s: Scene, version: int) -> None:
        topic = await s.topic(b"one")
        session = await _open(s, version, topic)
        await _fetch(s, version, session, 1)
        await _fetch(s, version, session, 2, of_topic(version, topic, wanted(0, 1)))
        await _fetch(s, version, session, 3)

    @case(f"Fetch session v{_version}: a record appended meanwhile", _version)
    async def appended(s: Scene, version: int) -> None:
        topic = await s.topic(b"one", partitions=2)
        session = await _open(s, version, topic, (0, 1), offset=0)
        await s.produce(topic, ONE, partition=1)
        await _fetch(s, version, session, 1, of_topic(version, topic, wanted(0, 1)))

    @case(f"Fetch session v{_version}: a partition added", _version)
    async def added(s: Scene, version: int) -> None:
        topic = await s.topic(b"one", partitions=2)
        session = await _open(s, version, topic, (0,), offset=1)
        await _fetch(s, version, session, 1, of_topic(version, topic, wanted(1)))
        await _fetch(s, version, session, 2)

    @case(f"Fetch session v{_version}: a partition forgotten", _version)
    async def forgotten(s: Scene, version: int) -> None:
        topic = await s.topic(b"one", partitions=2)
        session = await _open(s, version, topic, (0, 1))
        await _fetch(s, version, session, 1, forgotten_topics_data=_forgotten(version, topic, 0))
        await s.produce(topic, ONE, partition=1)
        await _fetch(s, version, session, 2)

    @case(f"Fetch session v{_version}: every partition forgotten", _version)
    async def all_forgotten(s: Scene, version: int) -> None:
        topic = await s.topic(b"one")
        session = await _open(s, version, topic)
        await _fetch(s, version, session, 1, forgotten_topics_data=_forgotten(version, topic, 0))
        await _fetch(s, version, session, 2)

    @case(f"Fetch session v{_version}: an epoch too high", _version, 2)
    @case(f"Fetch session v{_version}: an epoch repeated", _version, 1)
    async def wrong_epoch(s: Scene, version: int, epoch: int) -> None:
        topic = await s.topic(b"one")
        session = await _open(s, version, topic, offset=1)
        if epoch == 1:
            await _fetch(s, version, session, 1)
        await _fetch(s, version, session, epoch)

    @case(f"Fetch session v{_version}: an unknown id", _version)
    async def unknown_session(s: Scene, version: int) -> None:
        topic = await s.topic(b"one")
        await _fetch(s, version, 2_000_000_001, 1, of_topic(version, topic, wanted(0)))

    @case(f"Fetch session v{_version}: an unknown id with epoch 0", _version)
    async def unknown_session_anew(s: Scene, version: int) -> None:
        topic = await s.topic(b"one")
        await _fetch(s, version, 2_000_000_001, 0, of_topic(version, topic, wanted(0)))

    @case(f"Fetch session v{_version}: closed, then used", _version)
    async def closed(s: Scene, version: int) -> None:
        topic = await s.topic(b"one")
        session = await _open(s, version, topic)
        await _fetch(s, version, session, -1, of_topic(version, topic, wanted(0)))
        await _fetch(s, version, session, 1)

    @case(f"Fetch session v{_version}: an unknown topic in it", _version)
    async def unknown_topic(s: Scene, version: int) -> None:
        session = await _open(s, version, Topic("unknown", UNKNOWN_ID))
        await _fetch(s, version, session, 1)


@case("Fetch session: none asked for", 0, -1)
@case("Fetch session: id 0 with epoch 1", 0, 1)
@case("Fetch session: id 0 with epoch -2", 0, -2)
@case("Fetch session: id -1 with epoch 0", -1, 0)
@case("Fetch session: an unknown id with epoch -1", 2_000_000_001, -1)
async def without_session(s: Scene, session: int, epoch: int) -> None:
    topic = await s.topic(b"one")
    await _fetch(s, 16, session, epoch, of_topic(16, topic, wanted(0)))


@case("Fetch session: a new one without partitions")
async def empty_session(s: Scene) -> None:
    answer = await _fetch(s, 16, 0, 0)
    await _fetch(s, 16, answer["session_id"], 1)


@case("Fetch session: replaced by a new one")
async def replaced(s: Scene) -> None:
    topic = await s.topic(b"one")
    session = await _open(s, 16, topic)
    await _fetch(s, 16, session, 0, of_topic(16, topic, wanted(0)))
    await _fetch(s, 16, session, 1)


@case("Fetch session: from names to ids", 12, 13)
@case("Fetch session: from ids to names", 13, 12)
async def changed_keys(s: Scene, before: int, after: int) -> None:
    topic = await s.topic(b"one")
    session = await _open(s, before, topic)
    await _fetch(s, after, session, 1)
    await _fetch(s, after, session, 1, of_topic(after, topic, wanted(0)))


@case("Fetch session: forgotten and added at once")
async def forgotten_and_added(s: Scene) -> None:
    topic = await s.topic(b"one")
    session = await _open(s, 16, topic)
    await _fetch(s, 16, session, 1, of_topic(16, topic, wanted(0)), forgotten_topics_data=_forgotten(16, topic, 0))
    await _fetch(s, 16, session, 2)


@case("Fetch session: a partition forgotten that is not in it")
async def forgotten_other(s: Scene) -> None:
    topic = await s.topic(b"one")
    session = await _open(s, 16, topic)
    await _fetch(s, 16, session, 1, forgotten_topics_data=_forgotten(16, topic, 7))


@case("Fetch session: an error is told again each time")
async def error_again(s: Scene) -> None:
    topic = await s.topic(b"one")
    session = await _open(s, 16, topic, (0, 7), offset=1)
    await _fetch(s, 16, session, 1)
    await _fetch(s, 16, session, 2)


@case("Fetch session: an offset out of range, then a right one")
async def out_of_range(s: Scene) -> None:
    topic = await s.topic(b"one")
    session = await _open(s, 16, topic, offset=9)
    await _fetch(s, 16, session, 1)
    await _fetch(s, 16, session, 2, of_topic(16, topic, wanted(0, 0)))


@case("Fetch session: the log start moves")
async def log_start_moves(s: Scene) -> None:
    topic = await s.topic(b"one", b"two")
    session = await _open(s, 16, topic, offset=2)
    parts = [{"partition_index": 0, "offset": 1}]
    await s.do("delete_records", 2, topics=[{"name": topic.name, "partitions": parts}], timeout=5000)
    await _fetch(s, 16, session, 1)


@case("Fetch session: over another connection")
async def other_connection(s: Scene) -> None:
    topic = await s.topic(b"one")
    session = await _open(s, 16, topic, offset=1)
    fields = fetch_fields(16, session_id=session, session_epoch=1)
    await s.ask("fetch", 16, link=await s.link(), **fields)


@case("Fetch session: the epoch is used up by a wrong one")
async def after_wrong_epoch(s: Scene) -> None:
    topic = await s.topic(b"one")
    session = await _open(s, 16, topic, offset=1)
    await _fetch(s, 16, session, 5)
    await _fetch(s, 16, session, 1)


@case("Fetch session: a topic deleted while in it")
async def deleted_topic(s: Scene) -> None:
    topic = await s.topic(b"one")
    session = await _open(s, 16, topic, offset=1)
    await s.delete_topic(topic)
    await _fetch(s, 16, session, 1)
