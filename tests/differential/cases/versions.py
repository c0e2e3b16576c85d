"""ApiVersions, versions that are not served, and frames that are no request."""

from __future__ import annotations

from typing import Any

from tests.differential.messages import framed, request_frame
from tests.differential.scene import CLIENT_ID, CLOSED, Scene, case

_CLIENT = {"client_software_name": "differential", "client_software_version": "1.0"}
_APIS = {
    "Produce": 0,
    "Fetch": 1,
    "ListOffsets": 2,
    "Metadata": 3,
    "OffsetCommit": 8,
    "OffsetFetch": 9,
    "FindCoordinator": 10,
    "JoinGroup": 11,
    "Heartbeat": 12,
    "LeaveGroup": 13,
    "SyncGroup": 14,
    "DescribeGroups": 15,
    "ListGroups": 16,
    "SaslHandshake": 17,
    "ApiVersions": 18,
    "CreateTopics": 19,
    "DeleteTopics": 20,
    "DeleteRecords": 21,
    "InitProducerId": 22,
    "OffsetForLeaderEpoch": 23,
    "AddPartitionsToTxn": 24,
    "DescribeAcls": 29,
    "DescribeConfigs": 32,
    "AlterConfigs": 33,
    "DescribeLogDirs": 35,
    "CreatePartitions": 37,
    "DeleteGroups": 42,
    "ElectLeaders": 43,
    "IncrementalAlterConfigs": 44,
    "AlterPartitionReassignments": 45,
    "ListPartitionReassignments": 46,
    "OffsetDelete": 47,
    "DescribeClientQuotas": 48,
    "Vote": 52,
    "BeginQuorumEpoch": 53,
    "EndQuorumEpoch": 54,
    "DescribeQuorum": 55,
    "AlterPartition": 56,
    "UpdateFeatures": 57,
    "FetchSnapshot": 59,
    "DescribeCluster": 60,
    "DescribeProducers": 61,
    "BrokerRegistration": 62,
    "BrokerHeartbeat": 63,
    "UnregisterBroker": 64,
    "DescribeTransactions": 65,
    "ListTransactions": 66,
    "AllocateProducerIds": 67,
    "ConsumerGroupHeartbeat": 68,
    "ConsumerGroupDescribe": 69,
    "GetTelemetrySubscriptions": 71,
    "ListConfigResources": 74,
    "DescribeTopicPartitions": 75,
    "ShareGroupHeartbeat": 76,
    "GetReplicaLogInfo": 93,
}

for _name, _key in _APIS.items():

    @case(f"ApiVersions lists {_name}", _key)
    async def versions_of(s: Scene, key: int) -> None:
        answer = await s.ask("api_versions", 3, only=["error_code"], **_CLIENT)
        ranges = {item["api_key"]: [item["min_version"], item["max_version"]] for item in answer["api_keys"]}
        s.note(ranges.get(key, "not served"))


for _version in range(5):

    @case(f"ApiVersions v{_version}", _version)
    async def api_versions(s: Scene, version: int) -> None:
        frame = request_frame("api_versions", version, _CLIENT if version >= 3 else {}, CLIENT_ID)
        await _note_error(s, frame)


async def _note_error(s: Scene, frame: bytes) -> None:
    """Send an ApiVersions request and record the error alone, which lies at the same place in every version."""
    answer = await (await s.link()).exchange(frame)
    s.note(answer if isinstance(answer, str) else {"error_code": int.from_bytes(answer[4:6])})


for _name, _fields in {
    "an empty client name": {"client_software_name": ""},
    "an empty client version": {"client_software_version": ""},
    "a client name with a blank": {"client_software_name": "a b"},
    "a client name that begins with a dot": {"client_software_name": ".a"},
    "a client version with a slash": {"client_software_version": "1/0"},
    "a null client name": {"client_software_name": None},
}.items():

    @case(f"ApiVersions v3: {_name}", _fields)
    async def client(s: Scene, fields: dict[str, Any]) -> None:
        await s.ask("api_versions", 3, only=["error_code"], **{**_CLIENT, **fields})


@case("ApiVersions v3: the features that are told")
async def features(s: Scene) -> None:
    answer = await s.ask("api_versions", 3, only=["error_code"], **_CLIENT)
    s.note(sorted(feature["name"] for feature in answer["supported_features"]))


@case("ApiVersions v99")
async def future(s: Scene) -> None:
    frame = request_frame("api_versions", 3, _CLIENT, CLIENT_ID)
    await _note_error(s, frame[:6] + (99).to_bytes(2) + frame[8:])


@case("ApiVersions v99: in the form of version 0")
async def future_without_tags(s: Scene) -> None:
    frame = request_frame("api_versions", 0, {}, CLIENT_ID)
    await _note_error(s, frame[:6] + (99).to_bytes(2) + frame[8:])


@case("ApiVersions v0: a byte too many", 0, lambda content: content + b"\0")
@case("ApiVersions v3: a byte too many", 3, lambda content: content + b"\0")
@case("ApiVersions v3: cut short", 3, lambda content: content[:-3])
async def changed(s: Scene, version: int, change: Any) -> None:
    frame = request_frame("api_versions", version, _CLIENT if version else {}, CLIENT_ID)
    await _note_error(s, framed(change(frame[4:])))


def _head(key: int, version: int, client: bytes = b"\xff\xff", rest: bytes = b"") -> bytes:
    return framed(key.to_bytes(2, signed=True) + version.to_bytes(2, signed=True) + bytes(4) + client + rest)


_METADATA = request_frame("metadata", 1, {"topics": []}, CLIENT_ID)
_FLEXIBLE = request_frame("metadata", 9, {"topics": []}, CLIENT_ID)
_HEAD_END = 4 + 10 + len(CLIENT_ID)

for _name, _frame in {
    "of no bytes": framed(b""),
    "of one byte": framed(b"\0"),
    "that is shorter than its header": framed(bytes(7)),
    "of a negative length": b"\xff\xff\xff\xff",
    "of two thousand million bytes": b"\x7f\xff\xff\xff",
    "of an unknown API": _head(999, 0),
    "of API -1": _head(-1, 0),
    "of Metadata v99": _head(3, 99),
    "of Metadata v-1": _head(3, -1),
    "of Produce v2": _head(0, 2, rest=b"\xff\xff" + bytes(10)),
    "of Fetch v3": _head(1, 3, rest=bytes(20)),
    "of LeaderAndIsr, for brokers of old": _head(4, 0, rest=bytes(20)),
    "of Vote, for controllers": _head(52, 0, rest=bytes(20)),
    "of AlterPartition, for controllers": _head(56, 3, rest=bytes(20)),
    "of BrokerRegistration, for controllers": _head(62, 3, rest=bytes(20)),
    "of BrokerHeartbeat, for controllers": _head(63, 1, rest=bytes(20)),
    "of AllocateProducerIds, for controllers": _head(67, 0, rest=bytes(20)),
    "of FetchSnapshot, for controllers": _head(59, 0, rest=bytes(20)),
    "with a byte too many": framed(_METADATA[4:] + b"\0"),
    "cut short": framed(_METADATA[4:-1]),
    "with a null client id": _METADATA[:0] + framed(_METADATA[4:12] + b"\xff\xff" + _METADATA[_HEAD_END:]),
    "with an empty client id": framed(_METADATA[4:12] + b"\0\0" + _METADATA[_HEAD_END:]),
    "with a client id of length -2": framed(_METADATA[4:12] + b"\xff\xfe" + _METADATA[_HEAD_END:]),
    "with a client id that is not UTF-8": framed(_METADATA[4:12] + b"\0\1\xff" + _METADATA[_HEAD_END:]),
    "with a client id longer than the frame": framed(_METADATA[4:12] + b"\x7f\xff" + _METADATA[_HEAD_END:]),
    "with a negative array length": framed(_METADATA[4:_HEAD_END] + b"\xff\xff\xff\xfe"),
    "with an array longer than the frame": framed(_METADATA[4:_HEAD_END] + b"\0\0\xff\xff"),
    "with an array of two thousand million": framed(_METADATA[4:_HEAD_END] + b"\x7f\xff\xff\xff"),
    "with a name longer than the frame": framed(_METADATA[4:_HEAD_END] + b"\0\0\0\1\0\x7fab"),
    "with a name that is not UTF-8": framed(_METADATA[4:_HEAD_END] + b"\0\0\0\1\0\2\xff\xfe"),
    "with a tag in the header": framed(_FLEXIBLE[4:_HEAD_END] + b"\1\x64\2ab" + _FLEXIBLE[_HEAD_END + 1 :]),
    "with a tag in the message": framed(_FLEXIBLE[4:-1] + b"\1\x64\2ab"),
    "with the same tag twice": framed(_FLEXIBLE[4:-1] + b"\2\x64\0\x64\0"),
    "with tags out of order": framed(_FLEXIBLE[4:-1] + b"\2\x65\0\x64\0"),
    "with a tag longer than the frame": framed(_FLEXIBLE[4:-1] + b"\1\x64\x7f"),
    "with a varint of eleven bytes": framed(_FLEXIBLE[4:_HEAD_END] + b"\0" + b"\xff" * 10 + b"\1"),
    "with a boolean of 7": framed(_FLEXIBLE[4:-4] + b"\7\0\0\0"),
}.items():

    @case(f"A frame {_name}", _frame)
    async def frame_of(s: Scene, frame: bytes) -> None:
        answer = await (await s.link()).exchange(frame)
        s.note(answer if isinstance(answer, str) else "answered")


@case("Two requests at once are answered in order")
async def pipelined(s: Scene) -> None:
    link = await s.link()
    frames = [request_frame("metadata", 1, {"topics": []}, CLIENT_ID, number) for number in (5, 6)]
    answers = [await link.exchange(b"".join(frames)), await link.read()]
    s.note([answer if isinstance(answer, str) else int.from_bytes(answer[:4]) for answer in answers])


@case("A request before a bad one is answered")
async def good_then_bad(s: Scene) -> None:
    link = await s.link()
    answers = [await link.exchange(_METADATA + _head(999, 0)), await link.read()]
    s.note([answer if answer == CLOSED else "answered" for answer in answers])


@case("A request after a bad one is not answered")
async def bad_then_good(s: Scene) -> None:
    link = await s.link()
    s.note(await link.exchange(_head(999, 0) + _METADATA) == CLOSED)
