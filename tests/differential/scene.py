"""One case of the differential table: requests to a server, and its answers in a form that two servers can share.

A case is a function of a `Scene`. Every `ask` of it is recorded, setting up is not. An answer is written without what
differs from run to run or has no meaning of its own: fields at their default, throttle times, texts of errors, hosts
and ports; ids drawn at random become `#1`, `#2` in the order of their appearance; names of topics and groups, which
contain the case's name, become `T` and `G`; arrays of structs are sorted, since their order has no meaning.
"""

from __future__ import annotations

import asyncio
import json
import re
import struct
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from images.wire import batch
from images.wire.schema import shapes
from tests.differential.messages import Plain, default, framed, message_class, read_response, request_frame

CLIENT_ID = "differential"
CLOSED = "closed"
NO_ANSWER = "no answer"
ENDED = "the server ends"
UNREADABLE = "an answer of another version"
NOT_SET_UP = "cannot be set up"
TIME_MS = 1_600_000_000_000
"""Timestamp of records, unless a case is about timestamps."""
UNKNOWN_ID = "00000000-0000-0000-0000-00000000beef"
NODE = 1
"""Node id of the broker that is asked; it leads every partition."""

_ANSWER_LIMIT_S = 60.0
_READY_LIMIT_S = 120.0
_COORDINATOR_LOADS = (14, 15, 16)
_IGNORED = frozenset({"throttle_time", "error_message", "batch_index_error_message", "host", "port", "documentation"})
_RANDOM_NUMBERS = frozenset({"producer_id", "session_id"})
_UUID = re.compile(r"[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}")
_IDENTITY = ("name", "topic", "topic_id", "group_id", "member_id", "key", "partition_index", "partition", "index")


class Ended(Exception):
    """The server closed the connection or gave no answer, so that the case ends here; that is recorded."""


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic that a case has created."""

    name: str
    id: str


class Link:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer

    async def exchange(self, frame: bytes) -> bytes | str:
        """The answer to a frame, without its length; or CLOSED, or NO_ANSWER."""
        self.writer.write(frame)
        return await self.read()

    async def read(self) -> bytes | str:
        """The next answer."""
        try:
            async with asyncio.timeout(_ANSWER_LIMIT_S):
                length = int.from_bytes(await self._reader.readexactly(4))
                return await self._reader.readexactly(length)
        except TimeoutError:
            return NO_ANSWER
        except (asyncio.IncompleteReadError, ConnectionError):
            return CLOSED


class Scene:
    """The requests of one case. `name` is the start of the names of its topics and groups."""

    def __init__(self, address: tuple[str, int], name: str) -> None:
        self._address = address
        self.name = name
        self._links: list[Link] = []
        self._answers: list[Plain] = []
        self._labels: dict[str, str] = {}
        self._topics = 0

    @property
    def group(self) -> str:
        """The id of the case's own group."""
        return f"g-{self.name}"

    async def link(self) -> Link:
        """A new connection."""
        link = Link(*await asyncio.open_connection(*self._address))
        self._links.append(link)
        return link

    async def close(self) -> None:
        """Close every connection."""
        for link in self._links:
            link.writer.close()

    # --- requests -----------------------------------------------------------------------------------------------------

    async def ask(
        self,
        api: str,
        version: int,
        /,
        *,
        link: Link | None = None,
        only: Iterable[str] = (),
        without: Iterable[str] = (),
        loading: bool = False,
        **values: Plain,
    ) -> Plain:
        """Send a request and record the answer; returns it whole.

        `only`: record only these fields of the answer; `without`: leave these out, at any depth.
        `loading`: ask again while a coordinator loads its state.
        """
        frame = request_frame(api, version, values, CLIENT_ID)
        until = time.monotonic() + _READY_LIMIT_S
        while True:
            answer = await self._exchange(api, version, frame, link)
            if not loading or not _has_error(answer, _COORDINATOR_LOADS) or time.monotonic() > until:
                break
            await asyncio.sleep(0.05)
        self._record(api, version, answer, frozenset(only), frozenset(without))
        return answer

    async def ask_frame(self, api: str, version: int, frame: bytes, *, link: Link | None = None) -> Plain:
        """Send a frame as it is; the answer is read as one of `api` in `version`."""
        answer = await self._exchange(api, version, frame, link)
        self._record(api, version, answer)
        return answer

    async def ask_with(self, api: str, version: int, change: Callable[[bytes], bytes], **values: Plain) -> Plain:
        """Send a request whose content `change` has altered."""
        frame = request_frame(api, version, values, CLIENT_ID)
        return await self.ask_frame(api, version, framed(change(frame[4:])))

    async def do(self, api: str, version: int, /, **values: Plain) -> Plain:
        """Send a request that sets the case up. Raises AssertionError when the answer has an error in it."""
        frame = request_frame(api, version, values, CLIENT_ID)
        until = time.monotonic() + _READY_LIMIT_S
        while True:
            answer = await self._exchange(api, version, frame, None)
            if isinstance(answer, str) or not _has_error(answer) or time.monotonic() > until:
                break
            await asyncio.sleep(0.05)
        failed = isinstance(answer, str) or _has_error(answer)
        assert not failed, f"{self.name}: {api} v{version}: {answer}"
        return answer

    async def send_only(self, api: str, version: int, /, **values: Plain) -> None:
        """Send a request that is not answered, and record whether the connection is still open."""
        link = await self._first_link()
        link.writer.write(request_frame(api, version, values, CLIENT_ID))
        probe = await link.exchange(request_frame("api_versions", 0, {}, CLIENT_ID))
        self.note("open" if isinstance(probe, bytes) else probe)

    def note(self, value: Plain) -> None:
        """Record something that is not an answer."""
        self._answers.append(value)

    async def _first_link(self) -> Link:
        return self._links[0] if self._links else await self.link()

    async def _exchange(self, api: str, version: int, frame: bytes, link: Link | None) -> Plain:
        content = await (link or await self._first_link()).exchange(frame)
        if isinstance(content, str):
            return content
        try:
            return read_response(api, version, content)
        except (IndexError, ValueError, struct.error):
            return UNREADABLE

    def _record(
        self,
        api: str,
        version: int,
        answer: Plain,
        only: frozenset[str] = frozenset(),
        without: frozenset[str] = frozenset(),
    ) -> None:
        if isinstance(answer, str):
            self._answers.append(answer)
            raise Ended
        message = message_class(api, version, "response")
        fields = {shape.name for shape in shapes(message)}
        self._answers.append((message, answer, without | (fields - only if only else frozenset())))

    # --- setting up ---------------------------------------------------------------------------------------------------

    async def topic(
        self,
        *values: bytes | Sequence[bytes],
        partitions: int = 1,
        configs: Mapping[str, str] | None = None,
    ) -> Topic:
        """A new topic; each of `values` becomes a batch of partition 0: of one record, or of a record for each."""
        self._topics += 1
        name = self.name if self._topics == 1 else f"{self.name}-{self._topics}"
        settings = [{"name": key, "value": value} for key, value in (configs or {}).items()]
        topics = [{"name": name, "num_partitions": partitions, "replication_factor": 1, "configs": settings}]
        await self.do("create_topics", 7, topics=topics, timeout=10_000)
        topic = await self.known(name)
        for partition in range(partitions):
            asked = [{"partition_index": partition, "timestamp": -2}]
            await self.do("list_offsets", 7, replica_id=-1, topics=[{"name": name, "partitions": asked}])
        for value in values:
            await self.produce(topic, records([value] if isinstance(value, bytes) else value))
        return topic

    async def settle(self) -> None:
        """Return once the broker has applied whatever the controller has committed so far."""
        await self.topic()

    async def known(self, name: str) -> Topic:
        """The topic of this name, once the broker knows it and its leaders."""
        answer = await self.do("metadata", 12, topics=[{"topic_id": None, "name": name}])
        return Topic(name, answer["topics"][0]["topic_id"])

    async def delete_topic(self, topic: Topic) -> None:
        """Delete a topic; returns once the broker does not know it any more."""
        await self.do("delete_topics", 6, topics=[{"name": topic.name, "topic_id": None}], timeout=10_000)
        asked = request_frame("metadata", 12, {"topics": [{"topic_id": None, "name": topic.name}]}, CLIENT_ID)
        until = time.monotonic() + _READY_LIMIT_S
        while not _has_error(await self._exchange("metadata", 12, asked, None)):
            assert time.monotonic() < until, f"{topic.name} is still there"
            await asyncio.sleep(0.02)

    async def produce(self, topic: Topic, content: bytes, partition: int = 0) -> None:
        """Append one batch."""
        await self.do("produce", 9, **produce_fields(topic.name, content, partition=partition))

    async def producer(self) -> tuple[int, int]:
        """A new producer id and its epoch."""
        answer = await self.do("init_producer_id", 4, transactional_id=None, transaction_timeout=60_000)
        return answer["producer_id"], answer["producer_epoch"]

    async def coordinator(self) -> None:
        """Return once the coordinator of groups answers."""
        groups = [{"group_id": self.group, "topics": None}]
        await self.do("find_coordinator", 4, key_type=0, coordinator_keys=[self.group])
        await self.do("offset_fetch", 8, groups=groups)

    # --- the answers, ready to be compared ----------------------------------------------------------------------------

    def answers(self) -> Plain:
        """Everything recorded, in its comparable form; a single answer stands for itself."""
        plain = [item if not isinstance(item, tuple) else self._normal_struct(*item) for item in self._answers]
        return plain[0] if len(plain) == 1 else plain

    def _normal_struct(self, message: type, values: Plain, without: frozenset[str]) -> Plain:
        normal = {}
        for shape in shapes(message):
            value = values[shape.name]
            if shape.name in _IGNORED or shape.name in without or value == default(shape):
                continue
            if shape.struct and shape.array and value is not None:
                items = [self._normal_struct(shape.element, item, without) for item in value if self._is_of_case(item)]
                value = sorted(items, key=_order)
                if not value:
                    continue
            elif shape.struct and value is not None:
                value = self._normal_struct(shape.element, value, without)
            elif shape.name in _RANDOM_NUMBERS and value >= 0:
                value = self._label(f"{shape.name} {value}")
            elif shape.kafka_type == "records" and value is not None:
                value = describe_batches(value)
            else:
                value = self._normal_value(value)
            normal[shape.name] = value
        return normal

    def _normal_value(self, value: Plain) -> Plain:
        if isinstance(value, list):
            return [self._normal_value(item) for item in value]
        if isinstance(value, bytes):
            return value.decode("latin-1")
        if not isinstance(value, str) or value == UNKNOWN_ID:
            return value
        named = value.replace(self.group, "G").replace(self.name, "T")
        return _UUID.sub(lambda found: self._label(found[0]), named)

    def _label(self, value: str) -> str:
        return self._labels.setdefault(value, f"#{len(self._labels) + 1}")

    def _is_of_case(self, item: Plain) -> bool:
        """Whether an element of an answer is not about another case's topic or group."""
        if not isinstance(item, dict):
            return True
        for key in ("name", "topic", "group_id", "topic_name", "transactional_id", "resource_name"):
            value = item.get(key)
            if isinstance(value, str) and OTHERS.search(value) and not _belongs(value, self.name):
                return False
        # Another case has committed an offset in the group without a name, and ListGroups tells of it.
        return not (item.get("group_id") == "" and "error_code" not in item)


OTHERS = re.compile(r"-case|^__consumer_offsets$|^__transaction_state$")
"""Names of topics and groups that belong to some case, or to the server itself."""


def _order(item: Plain) -> str:
    """Structs are sorted by what identifies them, then by everything else."""
    identity = [item.get(key) for key in _IDENTITY] if isinstance(item, dict) else []
    return json.dumps([*map(str, identity), item], sort_keys=True)


def _belongs(value: str, name: str) -> bool:
    return value.removeprefix("g-").startswith(name) or (value.startswith("__") and "internal" in name)


# --- records ----------------------------------------------------------------------------------------------------------


def records(values: Sequence[bytes], *, time_ms: int = TIME_MS, **fields: int) -> bytes:
    """One batch with a record for each value."""
    return batch.build(list(values), timestamp_ms=time_ms, **fields)  # type: ignore[arg-type]


def reforged(content: bytes, *changes: tuple[int, bytes]) -> bytes:
    """A batch in which the bytes at the given places are others and the CRC is right again."""
    changed = bytearray(content)
    for place, new in changes:
        changed[place : place + len(new)] = new
    changed[17:21] = batch.crc32c(bytes(changed[batch.CRC_START :])).to_bytes(4)
    return bytes(changed)


def describe_batches(content: bytes) -> list[str]:
    """Each batch as `base offset..last offset eLEADER_EPOCH`, with what else is remarkable; the rest as `torn`."""
    batches, at = [], 0
    while at < len(content):
        try:
            header = batch.parse(content, at)
        except batch.CorruptBatch:
            return [*batches, "torn"]
        if at + header.size > len(content):
            return [*batches, "torn"]
        text = f"{header.base_offset}..{header.last_offset} e{header.leader_epoch}"
        if header.base_sequence >= 0:
            text += f" seq{header.base_sequence}"
        if header.attributes:
            text += f" attr{header.attributes}"
        batches.append(text)
        at += header.size
    return batches


def produce_fields(
    topic: str, content: bytes | None, *, partition: int = 0, acks: int = -1, transactional_id: str | None = None
) -> dict[str, Plain]:
    """The fields of a Produce request for one partition, up to version 12."""
    data = [{"name": topic, "partition_data": [{"index": partition, "records": content}]}]
    return {"transactional_id": transactional_id, "acks": acks, "timeout": 5_000, "topic_data": data}


def _has_error(answer: Plain, codes: Sequence[int] = ()) -> bool:
    """Whether there is an error in an answer (one of `codes`, if any are given)."""
    if isinstance(answer, list):
        return any(_has_error(item, codes) for item in answer)
    if not isinstance(answer, dict):
        return False
    code = answer.get("error_code", 0)
    return (code in codes if codes else code != 0) or any(_has_error(value, codes) for value in answer.values())


# --- the table of cases -----------------------------------------------------------------------------------------------

Case = Callable[..., Awaitable[None]]
CASES: dict[str, Callable[[Scene], Awaitable[None]]] = {}
"""Every case by its name: `API: what is special`."""


def case(name: str, *arguments: Any, **named: Any) -> Callable[[Case], Case]:
    """Register a function as a case: it is called with a scene and `arguments`. Decorators may be stacked."""

    def register(function: Case) -> Case:
        if name in CASES:
            raise ValueError(f"two cases are called {name!r}")
        CASES[name] = lambda scene: function(scene, *arguments, **named)
        return function

    return register


def slug(name: str) -> str:
    """The start of the names of a case's topics and groups."""
    name = re.sub(r"(?<= )-(?=\d)", "minus ", name.lower())
    return re.sub(r"[^a-z0-9]+", "-", name).strip("-")[:180] + "-case"


async def play(address: tuple[str, int], name: str) -> Plain:
    """Play one case; its answers."""
    scene = Scene(address, slug(name))
    try:
        await CASES[name](scene)
    except Ended:
        pass
    except ConnectionError:
        scene.note(CLOSED)
    except AssertionError:
        scene.note(NOT_SET_UP)
    finally:
        await scene.close()
    return scene.answers()


async def _warm_up(address: tuple[str, int]) -> None:
    scene = Scene(address, "warm-up-case")
    await scene.coordinator()
    await scene.producer()
    await scene.close()


class Server(Protocol):
    """A system under comparison."""

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens."""

    def restart_ended(self) -> bool:
        """Start the server anew if it has ended; whether it had."""


def play_all(server: Server, names: Iterable[str], *, at_once: int = 1) -> dict[str, Plain]:
    """Play cases, `at_once` of them at a time. Of a case that ends the server nothing else is told: if that happens,
    all are played again one after another."""
    asyncio.run(_warm_up(server.address))
    if at_once > 1:
        answers = asyncio.run(_play_together(server.address, names, at_once))
        if not server.restart_ended():
            return answers
        asyncio.run(_warm_up(server.address))
    answers = {}
    for name in names:
        answers[name] = answer = asyncio.run(play(server.address, name))
        if CLOSED in (answer if isinstance(answer, list) else [answer]) and _ends(server):
            answers[name] = ENDED
    return answers


async def _play_together(address: tuple[str, int], names: Iterable[str], at_once: int) -> dict[str, Plain]:
    answers: dict[str, Plain] = dict.fromkeys(names)
    waiting = iter(list(answers))

    async def play_next() -> None:
        for name in waiting:
            answers[name] = await play(address, name)

    await asyncio.gather(*(play_next() for _ in range(at_once)))
    return answers


def _ends(server: Server) -> bool:
    """Whether the server has ended or is about to: then it is started anew."""
    until = time.monotonic() + _READY_LIMIT_S
    while not server.restart_ended():
        if asyncio.run(_answers(server.address)):
            return False
        assert time.monotonic() < until, "the server neither answers nor ends"
    asyncio.run(_warm_up(server.address))
    return True


async def _answers(address: tuple[str, int]) -> bool:
    """Whether the broker answers, and the controller behind it."""
    probe = Scene(address, "probe-case")
    try:
        return not _has_error(await probe.ask("list_partition_reassignments", 0, topics=[], timeout=1000))
    except (Ended, ConnectionError):
        return False
    finally:
        await probe.close()
