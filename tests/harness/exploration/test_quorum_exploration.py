"""Exploration of the controllers' quorum in scopes of a second or less; docs/exploration.md has the larger ones."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from harness.cli.main import main
from harness.search.quorum_exploration.breadth_first import explore, explored
from harness.search.quorum_exploration.quorum_model import QuorumModel
from harness.search.quorum_exploration.quorum_values import RequestKind
from harness.search.quorum_exploration.scope import QuorumScope
from harness.search.quorum_exploration.scope_file import load
from harness.search.state_space.breadth_first import ExplorationProgress, ExplorationResult
from harness.search.state_space.explored_model import Numbers
from harness.search.state_space.shard import StateShard
from images.broker.raft.values import RaftRole
from tests.harness.exploration.random_walks import kinds_of_canonical_walks

ONE_EPOCH = QuorumScope(epochs=1, records=0, messages=1)
TWO_AT_A_TIME = replace(ONE_EPOCH, messages=2)
AT_ONCE = QuorumScope(epochs=2, records=0, in_flight=(), messages=0)
RESTART = QuorumScope(epochs=1, records=0, messages=1, restarts=1, losses=1)
LATE_FETCHES = replace(ONE_EPOCH, in_flight=(RequestKind.VOTE, RequestKind.FETCH), restarts=1)


def explored_in(scope: QuorumScope) -> ExplorationResult:
    return explore(scope, 1)


@pytest.mark.parametrize("scope", [TWO_AT_A_TIME, RESTART, LATE_FETCHES])
def test_the_shipped_controllers_keep_every_promise_in_every_state(scope: QuorumScope) -> None:
    result = explored_in(scope)
    assert result.violation is None
    assert result.states > 500
    assert result.situations is None


@pytest.mark.parametrize(
    ("rule", "scope", "promise"),
    [
        ("vote_once_per_epoch", TWO_AT_A_TIME, "controller 2 votes for 1 in epoch 1, where it has voted for 2"),
        ("vote_is_synced", RESTART, "controller 2 votes for 2 in epoch 1, where it has voted for 1"),
        ("vote_needs_up_to_date_log", AT_ONCE, "whose log ends at 0 with epoch 0: its own ends at 1 with epoch 1"),
        ("metadata_fetch_fenced", AT_ONCE, "takes 0 as the position of controller 2, from a fetch of epoch 1"),
        ("metadata_needs_majority", ONE_EPOCH, "1 of 3 controllers have the committed records of epochs [1]"),
        ("metadata_is_synced", RESTART, "1 of 3 controllers have the committed records of epochs [1]"),
        ("metadata_cut_on_divergence", AT_ONCE, "1 of 3 controllers have the committed records of epochs [2]"),
    ],
)
def test_a_rule_that_is_off_breaks_a_promise(rule: str, scope: QuorumScope, promise: str) -> None:
    violation = explored_in(replace(scope, without=(rule,))).violation
    assert violation is not None
    assert promise in violation.promise


def test_a_follower_takes_the_answer_to_a_fetch_from_before_its_pre_votes_or_loses_the_connection() -> None:
    """As in the shell: a fetch goes on while a controller asks for pre-votes, and counts once it follows again."""
    model = QuorumModel(QuorumScope(epochs=2, records=0, in_flight=(RequestKind.FETCH,), messages=1))

    def after(states: list[Numbers], kind: str, voter: int, role: RaftRole, *, waits: bool) -> list[Numbers]:
        """The states after such a step in which controller 2 has this role, and waits for an answer or not."""
        steps = (step for state in states for step in model.steps(state) if step.action[:2] == (kind, voter))
        return [
            step.state
            for step in steps
            if (cluster := model.cluster(step.state)).voters[1].quorum.role is role
            and any(it.sender == 2 and it.awaited for it in cluster.network) is waits
        ]

    elected = after([model.initial()], "timeout", 1, RaftRole.FOLLOWER, waits=False)
    fetching = after(elected, "fetch", 2, RaftRole.FOLLOWER, waits=True)
    answered = after(fetching, "answer", 1, RaftRole.FOLLOWER, waits=True)
    stands = after(answered, "timeout", 2, RaftRole.PROSPECTIVE, waits=True)
    follows = after(stands, "timeout", 1, RaftRole.FOLLOWER, waits=True)  # with BeginQuorumEpoch
    received = after(follows, "receive", 2, RaftRole.FOLLOWER, waits=False)
    assert {len(model.cluster(state).voters[1].records) for state in received} == {1}
    lost = after(stands, "timeout", 1, RaftRole.FOLLOWER, waits=False)
    assert after(lost, "fetch", 2, RaftRole.FOLLOWER, waits=True)


def test_an_exploration_of_so_many_steps_has_the_states_that_are_no_deeper() -> None:
    levels: list[ExplorationProgress] = []
    explore(ONE_EPOCH, 1, levels.append)
    states = {it.depth: it.states for it in levels}
    result = explore(ONE_EPOCH, 1, depth_most=4)
    assert (result.depth, result.states) == (4, states[4])
    assert states[4] < states[5]


def test_without_its_rule_a_leader_commits_a_record_of_an_older_epoch_that_its_successor_lacks() -> None:
    """Raft's figure 8. The whole scope of four epochs is larger; here are its elections, one after the other."""
    model = QuorumModel(QuorumScope(epochs=4, records=0, in_flight=(), messages=0, without=("commit_only_own_epoch",)))
    state = model.initial()
    for leader, followers, log in ((1, (), (1,)), (2, (3,), (2,)), (1, (2, 3), (1, 3))):
        state = next(
            step.state
            for step in model.steps(state)
            if (step.action.kind, step.action.voter) == ("timeout", leader)
            for voters in [model.cluster(step.state).voters]
            if voters[leader - 1].quorum.role is RaftRole.LEADER
            and tuple(record.epoch for record in voters[leader - 1].records) == log
            and all(voters[it - 1].quorum.leader == leader for it in followers)
        )
    for _ in range(2):  # controller 3 receives the answer to its first fetch alone
        fetches = (step.state for step in model.steps(state) if step.action[:2] == ("fetch", 3))
        state = next(it for it in fetches if [record.epoch for record in model.cluster(it).voters[2].records] == [1])
    assert [record.epoch for record in model.cluster(state).history.committed] == [1]
    doubts = [step.state for step in model.steps(state) if step.action == ("timeout", 3, None)]
    after = [model.broken(step.state) for it in doubts for step in model.steps(it) if step.action.voter == 2]
    committed = "committed: records of epochs [1] (Leader Completeness)"
    assert f"controller 2 leads in epoch 4 with records of epochs [2 4]; {committed}" in after


def test_the_schedule_names_every_step_the_controllers_that_it_changes_and_messages_in_flight() -> None:
    violation = explored_in(replace(RESTART, without=("vote_is_synced",))).violation
    assert violation is not None
    assert violation.schedule == (
        "the election timeout of controller 1 is over: 1 is a candidate in epoch 1, log [], high watermark 0; in "
        "flight: the vote request of controller 1 to 2",
        "the vote request of controller 1 to 2 reaches controller 2: 2 knows no leader in epoch 1, voted for 1, log "
        "[], high watermark 0",
        "controller 2 restarts after a power loss: 2 knows no leader in epoch 0, log [], high watermark 0",
        "the election timeout of controller 2 is over: 2 is a candidate in epoch 1, log [], high watermark 0",
    )


@pytest.mark.parametrize("scope", [ONE_EPOCH, replace(TWO_AT_A_TIME, without=("vote_once_per_epoch",))])
def test_symmetry_leaves_out_states_and_changes_no_verdict(scope: QuorumScope) -> None:
    reduced, whole = explored_in(scope), explored_in(replace(scope, symmetry=False))
    assert reduced.states * 3 < whole.states
    assert (reduced.violation is None, reduced.depth) == (whole.violation is None, whole.depth)


@pytest.mark.parametrize(("in_flight", "walks"), [((), 3), ((RequestKind.VOTE,), 6), (tuple(RequestKind), 30)])
def test_states_that_differ_by_the_names_of_controllers_have_one_canonical_state(
    in_flight: tuple[RequestKind, ...], walks: int
) -> None:
    scope = QuorumScope(epochs=3, records=1, in_flight=in_flight, messages=2, restarts=2, losses=1)
    model = QuorumModel(scope)
    kinds = kinds_of_canonical_walks(model, walks, 20)
    assert {"timeout", "fetch", "restart"} <= kinds
    assert ({"answer", "receive"} <= kinds) == bool(in_flight)


def test_two_shards_find_the_states_of_one() -> None:
    """Values travel from shard to shard as bytes."""
    scope = replace(RESTART, without=("vote_is_synced", "metadata_is_synced"))
    counts = []
    for count in (1, 2):
        shards = [StateShard(explored(scope), index, count) for index in range(count)]
        levels = []
        for _ in range(4):
            levels.append(sum(shard.end_level().states for shard in shards))
            for sender, shard in enumerate(shards):
                for owner, packed in zip(shards, shard.expand().outgoing, strict=True):
                    if packed is not None:  # what a shard finds of its own states it keeps
                        owner.admit(sender, packed)
        counts.append(levels)
    assert counts[0] == counts[1]
    assert counts[0][-1] > 50


def test_no_more_messages_are_in_flight_than_the_scope_has() -> None:
    model = QuorumModel(TWO_AT_A_TIME)
    level = {model.initial()}
    sizes = set()
    for _ in range(3):
        level = {step.state for state in level for step in model.steps(state)}
        sizes |= {len(model.cluster(state).network) for state in level}
    assert sizes == {0, 1, 2}


# --- scopes and the command -------------------------------------------------------------------------------------------


def test_the_shipped_scopes_of_controllers_can_be_read() -> None:
    scopes = {name: load(name) for name in ("quorum", "quorum-four-epochs", "quorum-restarts", "quorum-messages")}
    assert scopes["quorum"] == ("quorum", QuorumScope(records=0))
    assert scopes["quorum-messages"] is not None
    assert scopes["quorum-messages"][1].in_flight == tuple(RequestKind)
    assert load("truncation") is None


def written(tmp_path: Path, text: str) -> str:
    path = tmp_path / "scope.yaml"
    path.write_text(text)
    return str(path)


def test_the_command_explores_a_scope_of_controllers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scope = written(tmp_path, "{controllers: 3, epochs: 1, records: 0}")
    assert main(["explore", scope, "--jobs", "1"]) == 0
    assert "every state and every step keeps every promise" in capsys.readouterr().out
    assert main(["explore", scope, "--jobs", "1", "--without", "vote_once_per_epoch", "--json"]) == 1
    result = json.loads(capsys.readouterr().out)
    assert result["violation"]["promise"] == "controller 2 votes for 1 in epoch 1, where it has voted for 2"


@pytest.mark.parametrize(
    ("option", "line"),
    [
        ("--script", "--script: scripts have no steps of elections, and this scope is of controllers"),
        ("--situations", "--situations: situations are those of partitions, and this scope is of controllers"),
    ],
)
def test_controllers_have_no_scripts_and_no_situations(
    option: str, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explore", "quorum", option, str(tmp_path / "file")]) == 64
    assert capsys.readouterr().err == f"faultline explore: {line}\n"
    assert not (tmp_path / "file").exists()


@pytest.mark.parametrize(
    ("text", "arguments", "line"),
    [
        ("{controllers: 7}", [], "{path}:1: controllers: 7 is not a number from 1 to 5"),
        ("{controllers: 3, losses: 1}", [], "{path}:1: losses: 1 is more than restarts, 0"),
        ("{controllers: 3, in_flight: vote}", [], "{path}:1: in_flight: 'vote' is not a list of requests"),
        ("{controllers: 3, in_flight: [votes]}", [], "{path}:1: in_flight: 'votes' is not one of pre-vote, vote"),
        ("{controllers: 3, replicas: 3}", [], "{path}:1: replicas: unknown field; one of: controllers, epochs"),
        ("{controllers: 3}", ["--protocol", "kip101"], "protocol: 'kip101': controllers have no truncation protocol"),
    ],
)
def test_a_bad_scope_is_one_line(
    text: str, arguments: list[str], line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, text)
    assert main(["explore", path, *arguments]) == 64
    output = capsys.readouterr()
    assert output.err.startswith("faultline explore: " + line.format(path=path))
    assert output.err.count("\n") == 1
