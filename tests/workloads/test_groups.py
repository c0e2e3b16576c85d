"""The native member of a group speaks Kafka's formats, and the workload `groups` does what it says."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from kio.schema.errors import ErrorCode
from kio.schema.offset_fetch.v9.request import OffsetFetchRequest
from kio.schema.offset_fetch.v9.response import OffsetFetchResponse

from checkers.verdict import Validity
from harness.runner.outcome import Outcome
from harness.runner.run import run_in_simulation
from harness.spec import parse
from images.broker.apis.groups import GroupCoordinator
from images.broker.groups.group import GroupStep
from images.broker.runtime.server import Request
from workloads.clients.assignments import (
    UnreadableAssignment,
    by_range,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)

SPEC = {"workload": "groups", "seed": 3, "time_limit": "30s", "consumers": 3, "partitions": 3}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return run_in_simulation(parse(SPEC), tmp_path_factory.mktemp("store"))


def test_a_subscription_is_written_as_kafka_writes_it() -> None:
    assert encode_subscription(("t", "u")).hex() == "0000" + "00000002" + "000174" + "000175" + "ffffffff"
    assert decode_subscription(encode_subscription(("t", "u"))) == ("t", "u")


def test_an_assignment_is_written_as_kafka_writes_it() -> None:
    owned = (("t", 0), ("t", 2))
    assert (
        encode_assignment(owned).hex() == "0000" + "00000001" + "000174" + "00000002" + "0000000000000002" + "ffffffff"
    )
    assert decode_assignment(encode_assignment(owned)) == owned
    assert decode_assignment(b"") == ()


def test_fields_of_later_versions_are_ignored() -> None:
    content = bytes.fromhex("0003" + "00000001" + "000174" + "ffffffff" + "00000000" + "00000007")
    assert decode_subscription(content) == ("t",)


@pytest.mark.parametrize("content", [b"\x00", b"\x00\x00\x00\x00\x00\x01", b"\x00\x00\x00\x00\x00\x01\x00\x09ab"])
def test_bytes_that_are_neither_are_refused(content: bytes) -> None:
    with pytest.raises(UnreadableAssignment):
        decode_subscription(content)
    with pytest.raises(UnreadableAssignment):
        decode_assignment(content)


def test_partitions_are_assigned_in_ranges_to_the_members_subscribed() -> None:
    wanted = {"b": ("t",), "a": ("t", "u"), "c": ()}
    assert by_range(wanted, {"t": 3, "u": 1}) == {
        "a": (("t", 0), ("t", 1), ("u", 0)),
        "b": (("t", 2),),
        "c": (),
    }


def test_a_run_of_groups_is_valid_under_all_faults_and_the_group_did_something(finished: Outcome) -> None:
    assert finished.validity is Validity.VALID, finished.verdicts
    (verdict,) = [verdict for verdict in finished.verdicts if verdict.checker == "groups"]
    assert verdict.figures["generations"] > 3
    assert verdict.figures["commits_acknowledged"] > 20


def test_members_come_and_go_and_the_group_is_drained_in_the_end(finished: Outcome) -> None:
    assert finished.directory is not None
    history = pq.read_table(Path(finished.directory) / "history.parquet")
    starts = history.filter(pc.field("kind") == "assign")
    assert len(set(starts.column("process").to_pylist())) > 3
    assert pc.max(starts.column("leader_epoch")).as_py() >= 0, "no offset was committed with its leader epoch"
    group_operations = history.filter(pc.is_in(history.column("kind"), value_set=pa.array(["assign", "commit"])))
    final = group_operations.filter((pc.field("phase") == "final") & (pc.field("outcome") == "ok"))
    ends = {row["partition"]: row["offset"] for row in final.to_pylist()}
    acknowledged = (pc.field("kind") == "append") & (pc.field("outcome") == "ok")
    appended = history.filter(acknowledged & (pc.field("phase") == "main"))
    for partition in range(3):
        of_partition = appended.filter(pc.field("partition") == partition)
        assert ends[partition] > max(of_partition.column("offset").to_pylist())


def test_the_same_seed_of_groups_ends_in_the_same_digest(finished: Outcome) -> None:
    assert run_in_simulation(parse(SPEC)).digest == finished.digest


STATIC = {**SPEC, "seed": 5, "clients": {"static_members": 0.5, "consumer_life": 4}}


@pytest.fixture(scope="module")
def static(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return run_in_simulation(parse(STATIC), tmp_path_factory.mktemp("store"))


def test_static_members_return_in_the_generation_of_those_before_them(static: Outcome) -> None:
    assert static.validity is Validity.VALID, static.verdicts
    assert static.directory is not None
    history = pq.read_table(Path(static.directory) / "history.parquet")
    starts = history.filter(pc.field("kind") == "assign").to_pylist()
    assert {row["instance"] for row in starts} == {"instance-0", "instance-1", None}, "half of three, rounded up"
    members: dict[tuple[str, int], set[int]] = {}
    for row in starts:
        if row["instance"] is not None:
            members.setdefault((row["instance"], row["value"]), set()).add(row["process"])
    assert max(map(len, members.values())) > 1, "none took the place of another in its generation"
    final = [row for row in starts if row["phase"] == "final"]
    assert {row["instance"] for row in final} == {None}


def test_a_static_member_that_stalled_is_fenced_by_the_next_one(static: Outcome) -> None:
    assert static.directory is not None
    history = pq.read_table(Path(static.directory) / "history.parquet")
    fenced = history.filter(pc.field("error") == "FENCED_INSTANCE_ID").to_pylist()
    assert fenced
    assert {(row["kind"], row["outcome"]) for row in fenced} == {("commit", "fail")}


def test_the_same_seed_of_static_members_ends_in_the_same_digest(static: Outcome) -> None:
    assert run_in_simulation(parse(STATIC)).digest == static.digest


@pytest.fixture(scope="module")
def late(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return run_in_simulation(parse({**SPEC, "clients": {"late_commits": 1}}), tmp_path_factory.mktemp("store"))


def test_late_commits_are_refused_before_and_after_the_next_generation_is_told(late: Outcome) -> None:
    assert late.validity is Validity.VALID, late.verdicts
    assert late.directory is not None
    history = pq.read_table(Path(late.directory) / "history.parquet")
    refused: dict[str, set[bool]] = {}
    starts: dict[int, int] = {}
    for row in history.filter(pc.is_in(history.column("kind"), value_set=pa.array(["assign", "commit"]))).to_pylist():
        if row["kind"] == "assign":
            starts[row["process"]] = row["value"]
        elif row["outcome"] == "fail":
            refused.setdefault(row["error"], set()).add(row["value"] < starts[row["process"]])
    assert refused["ILLEGAL_GENERATION"] == {False, True}, "before its next start, and after it"
    assert refused["REBALANCE_IN_PROGRESS"] == {False}


def test_the_same_seed_of_late_commits_ends_in_the_same_digest(late: Outcome) -> None:
    assert run_in_simulation(parse({**SPEC, "clients": {"late_commits": 1}})).digest == late.digest


AWKWARD = {**SPEC, "clients": {"awkward_members": 1, "static_members": 0.3, "consumer_life": 4}}


def _answers(outcome: Outcome) -> set[tuple[str, str, bool]]:
    """Each API with an error that coordinators answered, and whether the request named an instance."""
    assert outcome.directory is not None
    trace = pq.read_table(Path(outcome.directory) / "trace.parquet")
    details = trace.filter(pc.field("kind") == "group_request").column("detail").to_pylist()
    requests = [json.loads(detail) for detail in details]
    return {(request["api"], request["error"], request["instance"] is not None) for request in requests}


def test_awkward_members_take_the_paths_that_others_leave_out(tmp_path: Path) -> None:
    outcome = run_in_simulation(parse(AWKWARD), tmp_path)
    assert outcome.validity is Validity.VALID, outcome.verdicts
    answers = _answers(outcome)
    assert {("heartbeat", "illegal_generation", False), ("sync", "illegal_generation", False)} <= answers
    assert {("leave", "none", False), ("leave", "none", True), ("leave", "unknown_member_id", False)} <= answers
    assert run_in_simulation(parse(AWKWARD)).digest == outcome.digest


def test_nobody_asks_for_a_coordinator_before_the_groups_begin(tmp_path: Path) -> None:
    clients = {"groups_begin": 0.5, "standalone_consumers": 1}
    outcome = run_in_simulation(parse({**SPEC, "clients": clients}), tmp_path)
    assert outcome.validity is Validity.VALID, outcome.verdicts
    assert outcome.directory is not None
    tables = {
        name: pq.read_table(Path(outcome.directory) / f"{name}.parquet", filters=pc.field("kind") == kind)
        for name, kind in (("history", "append"), ("trace", "coordinators_told"))
    }
    first_s = {
        "append": pc.min(tables["history"].column("invoked_ns")).as_py() / 1e9,
        "answer about coordinators": pc.min(tables["trace"].column("time_ns")).as_py() / 1e9,
    }
    assert 14 < first_s["answer about coordinators"] - first_s["append"] < 16, first_s


def test_while_the_group_of_a_standalone_consumer_has_a_member_nobody_deletes_it(tmp_path: Path) -> None:
    outcome = run_in_simulation(parse({**SPEC, "clients": {"standalone_consumers": 2}}), tmp_path)
    assert outcome.validity is Validity.VALID, outcome.verdicts
    refused = {("delete", "non_empty_group", False), ("commit", "unknown_member_id", False)}
    assert refused | {("delete", "none", False)} <= _answers(outcome)


@pytest.mark.parametrize(
    "clients", [{"standalone_consumers": 1}, {"operations": ["produce 2 to 0", "poll 0", "commit 0"]}]
)
def test_commits_have_no_text_where_brokers_take_none_that_long(clients: dict[str, object], tmp_path: Path) -> None:
    limits = {"settings": {"offset.metadata.max.bytes": 10}, "time_limit": "10s", "faults": "none"}
    outcome = run_in_simulation(parse({**SPEC, "seed": 1, "clients": clients, **limits}), tmp_path)
    assert outcome.validity is Validity.VALID, outcome.verdicts
    assert outcome.directory is not None
    commits = pq.read_table(Path(outcome.directory) / "history.parquet", filters=pc.field("kind") == "commit")
    assert set(commits.column("metadata").to_pylist()) == {""}
    assert "ok" in commits.column("outcome").to_pylist()


def test_offsets_of_another_group_in_the_same_answer_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def mistaken(self: GroupCoordinator, request: Request[OffsetFetchRequest]) -> OffsetFetchResponse:
        answer, asked = await offset_fetch(self, request), reversed(request.body.groups)
        mixed = [replace(one, group_id=other.group_id) for one, other in zip(answer.groups, asked, strict=True)]
        return replace(answer, groups=tuple(mixed))

    offset_fetch = GroupCoordinator.offset_fetch
    monkeypatch.setattr(GroupCoordinator, "offset_fetch", mistaken)
    settings = {"clients": {"standalone_consumers": 2}, "settings": {"offsets.topic.num.partitions": 1}}
    outcome = run_in_simulation(parse({**SPEC, "time_limit": "10s", **settings}))
    kinds = {finding.kind for verdict in outcome.verdicts for finding in verdict.findings}
    assert kinds & {"uncommitted-start", "committed-otherwise", "committed-offset-lost"}


def test_a_member_that_stays_although_it_was_removed_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("images.broker.apis.groups.leave", lambda group, *_: (GroupStep(group), ErrorCode.none))
    outcome = run_in_simulation(parse({**AWKWARD, "time_limit": "10s"}))
    assert "left-member-kept" in {finding.kind for verdict in outcome.verdicts for finding in verdict.findings}


def test_a_member_that_the_group_forgot_commits_nothing_to_an_empty_group() -> None:
    """Found by seed 246 of the suite soak: after the error it asked without a generation, as consumers do that assign
    their partitions themselves, and a group without members took it. `groups` called that a stale commit."""
    fault = {"at": 2.196, "for": 20, "fault": "unclean-return", "victim": "b1"}
    spec = parse({"workload": "groups", "name": "groups", "seed": 246, "time_limit": 20, "faults": [fault]})
    outcome = run_in_simulation(spec)
    assert outcome.validity is Validity.VALID, outcome.verdicts


def test_the_groups_checker_is_left_out_of_a_run_of_appends() -> None:
    outcome = run_in_simulation(parse({"time_limit": "3s", "seed": 1, "faults": "none"}))
    assert "groups" not in [verdict.checker for verdict in outcome.verdicts]
