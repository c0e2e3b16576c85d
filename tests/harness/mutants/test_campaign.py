"""A campaign against mutants: nights go on with one record, and both boxes judge the same runs."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any

import pytest

from harness.cli.main import main
from harness.environments.mistakes import mistakes
from harness.exit_codes import BAD_USAGE, NOT_CARRIED_OUT
from harness.search.ended_runs import EndedRun
from harness.search.hunt.folder import CorpusFolder
from harness.search.mutants import campaign, explorations, searches
from harness.search.mutants.campaign import CampaignNight, MutantCampaign
from harness.search.mutants.explorations import DEPTHS, ScopeOfMutant, explore_missing, explored, scopes_of
from harness.search.mutants.full_protocol import FullProtocol
from harness.search.mutants.mutant import FIRST_SEED, RUNS_MOST, Method, Mutant, MutantKind, all_mutants
from harness.search.mutants.record import FULL_PROTOCOL, CampaignRecord, Detection, Exploration, SeedRange
from harness.search.mutants.searches import HuntSearch, RandomSearch
from harness.search.mutants.summary import figures, promise
from harness.spec import Spec, parse
from harness.suites.boxes import BLACK, CPU_SECONDS, WHITE
from harness.suites.record import CannotResume, begin, resume
from harness.suites.spark_task import make
from images import broker
from images.broker.rules import NAMES
from results.errors import StoreError
from results.statistics import Interval
from results.store import finished_runs

RULE = "metadata_needs_majority"


@dataclass(frozen=True, slots=True)
class SmallMutant(Mutant):
    """A mutant whose runs take little time."""

    def base(self, method: Method) -> Spec:
        """The faults are scripted, so that a hunt has something to change."""
        faults = [{"at": 1, "for": 1, "fault": "pause", "nodes": ["b1"]}]
        small = {"controllers": 3, "partitions": 1, "rate": 5, "time_limit": 3, "vary": ["replica.lag.time.max.ms"]}
        return parse({**small, "faults": faults, "without": list(self.without)})


SMALL = SmallMutant("small", MutantKind.RULE, without=(RULE,), ranges=1)
MISTAKE = replace(SMALL, kind=MutantKind.MISTAKE)
"""No run of the full protocol says anything of it."""


def hold_night(path: Path, store: Path, rounds: int) -> str:
    """So many rounds of the campaign, in this process; the name of the suite."""
    night = CampaignNight((SMALL,), CampaignRecord.load(path), store, budget_s=3600.0)
    record = begin(store, MutantCampaign.of(night))
    night.suite, night.commit = record.name, "here"
    for _ in range(rounds):
        for each in night.next_round():
            make(record.path, each, record.plan.spec(each))
        finished_runs.move_to_tables(store, record.name, finished_runs.finished_names(record.path / "ended"))
    night.take_in()
    return record.name


def what_was_found(path: Path) -> dict[str, list[tuple[int, int | None, int | None]]]:
    """The record without times and names of nights."""
    return {
        method: [(each.runs, each.white and each.white.runs, each.black and each.black.runs) for each in ranges]
        for method, ranges in CampaignRecord.load(path).searches[SMALL.name].items()
    }


def test_two_nights_go_on_with_one_record_as_one_night_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searches, "FIRST_BATCH", 1)
    monkeypatch.setattr(searches, "HUNT_ROUND", 1)
    monkeypatch.setattr(campaign, "ROUND_SIZE", 3)
    in_two = [hold_night(tmp_path / "two.json", tmp_path / "two", 4) for _ in range(2)]
    in_one = hold_night(tmp_path / "one.json", tmp_path / "one", 8)
    results = what_was_found(tmp_path / "two.json")
    assert results == what_was_found(tmp_path / "one.json")
    assert {method: ranges[0][0] for method, ranges in results.items()} == {"random": 2, "stories": 2, "hunt": 2}
    for ranges in results.values():
        assert ranges[0][1] is not None, "the trace shows what is committed without a majority"
        assert ranges[0][2] is None, "nothing of it is seen from outside"
    assert not list((tmp_path / "one" / "suites" / in_one).glob("runs/*")), "no directory of a mutant's run is kept"
    with pytest.raises(CannotResume, match="go on with: faultline mutants --record"):
        resume(tmp_path / "two", in_two[0])


def ended(*finds: str) -> EndedRun:
    """A run that the named boxes found."""
    facts = {box: f"{box}: kind" if box in finds else "" for box in (WHITE, BLACK)}
    return EndedRun("invalid" if finds else "valid", {**facts, CPU_SECONDS: 2.0}, ())


def test_runs_count_in_the_order_of_their_seeds_up_to_the_first_that_is_missing() -> None:
    seeds = SeedRange(1)
    search = RandomSearch(MISTAKE, Method.RANDOM, seeds, FullProtocol(Path("unused"), "sources"))
    first, second = search.plan()
    assert (first.seed, second.seed) == (FIRST_SEED + RUNS_MOST, FIRST_SEED + RUNS_MOST + 1)
    search.take_in({second.run: ended(WHITE)}, "night", "commit")
    assert (seeds.runs, seeds.white) == (0, None)
    assert search.plan() == [first, second]
    search.take_in({first.run: ended(), second.run: ended(WHITE)}, "night", "commit")
    assert seeds.white == Detection(2, 4.0, "white: kind", f"night/{second.run}")
    assert not seeds.complete, "the black box has not found it yet"
    batch = search.plan()
    assert batch[0].seed == second.seed + 1
    search.take_in({each.run: ended(BLACK) for each in batch}, "night", "commit")
    assert seeds.complete
    assert (seeds.runs, seeds.black and seeds.black.cpu_s) == (3, 6.0), "later runs of the batch do not count"


def test_a_round_of_a_hunt_counts_whole_or_not_at_all_and_a_lost_corpus_begins_anew(tmp_path: Path) -> None:
    seeds = SeedRange(0)
    search = HuntSearch(SMALL, seeds, CorpusFolder(tmp_path / "corpus"))
    planned = search.plan()
    search.take_in({each.run: ended(WHITE) for each in planned[1:]}, "night", "commit")
    assert (seeds.runs, seeds.white) == (0, None)
    planned = search.plan()
    search.take_in({each.run: ended(WHITE) for each in planned}, "night", "commit")
    assert (seeds.runs, seeds.white and seeds.white.runs) == (len(planned), 1)
    assert HuntSearch(SMALL, seeds, CorpusFolder(tmp_path / "corpus")).plan() != planned, "it goes on"
    assert seeds.runs == len(planned)
    shutil.rmtree(tmp_path / "corpus")
    HuntSearch(SMALL, seeds, CorpusFolder(tmp_path / "corpus"))
    assert (seeds.runs, seeds.white, seeds.cpu_s) == (0, None, 0.0)


def test_the_searches_for_which_the_fewest_runs_were_made_come_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(campaign, "ROUND_SIZE", 6)
    other = replace(MISTAKE, name="other")
    record = CampaignRecord(tmp_path / "record.json")
    record.searches["small"] = {method: [SeedRange(0, runs=9, not_made=8)] for method in (Method.RANDOM, Method.HUNT)}
    record.searches["other"] = {method: [SeedRange(0, runs=2)] for method in (Method.RANDOM, Method.HUNT)}
    night = CampaignNight((MISTAKE, other), record, tmp_path, 3600.0)
    assert {each.cell for each in night.next_round()} == {"small, stories", "other, stories", "small, random"}
    assert CampaignNight((MISTAKE, other), record, tmp_path, 0.0).next_round() == [], "no budget"


def test_searches_come_first_that_may_still_find_a_mutant_within_the_runs_allowed_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(campaign, "ROUND_SIZE", 8)
    names = ("found", "missed", "open")
    many = tuple(replace(MISTAKE, name=name, ranges=20) for name in names)
    record = CampaignRecord(tmp_path / "record.json")
    record.searches = {
        name: {method: [SeedRange(0, runs=3)] for method in (Method.STORIES, Method.HUNT)} for name in names
    }
    record.searches["found"][Method.RANDOM] = [SeedRange(0, runs=2, together=Detection(2, 1.0, "raft: two", "n/1"))]
    record.searches["missed"][Method.RANDOM] = [SeedRange(number, runs=200) for number in range(3)]
    record.searches["open"][Method.RANDOM] = [SeedRange(0, runs=90)]
    for methods in record.searches.values():
        methods[Method.STORIES] = [SeedRange(0, runs=100)]
    assert {each.cell for each in CampaignNight(many, record, tmp_path, 3600.0).next_round()} == {"open, random"}


def test_a_record_is_read_back_and_a_damaged_one_is_refused_in_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "record.json"
    seeds = SeedRange(0, 3, 1.5, None, Detection(2, 1.0, "raft: x", "night/run"), None, ["commit"])
    exploration = explored(ScopeOfMutant(FULL_PROTOCOL, "two-replicas", without=("maximal_isr",)))
    assert "Leader Candidate Completeness" in exploration.broken
    record = CampaignRecord(path, {"m": {"random": [seeds]}}, {"m": {"two-replicas": exploration}})
    record.save()
    assert CampaignRecord.load(path) == record
    path.write_text('{"format": 2, "situations": {}}')  # a file of something else is not begun anew
    with pytest.raises(StoreError, match="is not the record of a campaign against mutants: 'searches'"):
        CampaignRecord.load(path)
    path.write_text('{"searches": {"m": {"random": [{"no": 1}]}}}')
    assert main(["mutants", "--budget", "1", "--record", str(path)]) == BAD_USAGE
    assert capsys.readouterr().err.count("\n") == 1
    CampaignRecord(path, {"m": {"random": [SeedRange(0, runs=7)]}}).save()
    path.write_text(path.read_text().replace('"runs": 7', '"runs": "7"'))
    assert main(["mutants", "--budget", "1", "--record", str(path)]) == BAD_USAGE
    assert capsys.readouterr().err.endswith("campaign against mutants: runs: '7' is not a whole number\n")


def test_the_record_of_a_rule_that_is_gone_stays_and_says_nothing_of_the_rules_of_today(tmp_path: Path) -> None:
    record = CampaignRecord(tmp_path / "record.json", {"a_rule_that_is_gone": {"random": [SeedRange(0, runs=600)]}})
    record.save()
    kept = CampaignRecord.load(record.path)
    assert kept.runs("a_rule_that_is_gone", Method.RANDOM) == 600
    every = list(all_mutants().values())
    assert promise(figures(kept, every)) == promise(figures(CampaignRecord(tmp_path / "none.json"), every))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--budget", "0"], "--budget: 0 is not a number of hours above 0"),
        (["--budget", "nan"], "--budget: nan is not a number of hours above 0"),
        (["--budget", "1", "--mutant", "no_such_rule"], "--mutant: 'no_such_rule' is not one of"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mutants", *arguments]) == BAD_USAGE
    line = capsys.readouterr().err
    assert message in line
    assert line.count("\n") == 1


def test_a_store_that_cannot_be_read_is_no_error_of_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "store").touch()
    options = ("--record", str(tmp_path / "record.json"), "--store", str(tmp_path / "store"))
    assert main(["mutants", "--budget", "1", *options]) == NOT_CARRIED_OUT
    line = capsys.readouterr().err
    assert line.startswith(f"faultline mutants: cannot read {tmp_path / 'store'}")
    assert line.count("\n") == 1


def test_one_campaign_at_a_time_has_a_record(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    with CampaignRecord.locked(path):
        assert main(["mutants", "--budget", "1", "--record", str(path)]) == BAD_USAGE


def test_a_summary_counts_runs_over_ranges_and_puts_first_what_nobody_finds(tmp_path: Path) -> None:
    find = Detection(7, 9.0, "loss: lost-append", "night/run")
    record = CampaignRecord(
        tmp_path / "record.json",
        {
            "b-late": {Method.RANDOM: [SeedRange(0, RUNS_MOST), SeedRange(1, 12, 9.0, find, None, find)]},
            "a-soon": {Method.RANDOM: [SeedRange(0, 7, 9.0, find, find, find)]},
            "hunted": {Method.HUNT: [SeedRange(0, 7, 9.0, find, find, find)]},
        },
    )
    record.explorations["explored"] = {"two-replicas": Exploration(10, 20, 3, 4.0, "broken", "commit")}
    rules = [Mutant(name, MutantKind.RULE) for name in ("a-soon", "b-late", "explored", "hunted", "never")]
    every = figures(record, rules)
    assert [each.mutant.name for each in every] == ["never", "explored", "hunted", "b-late", "a-soon"]
    assert [each.mutant.name for each in every if not each.found] == ["never"]
    late = every[3].searches[Method.RANDOM]
    assert (late.first_find, late.complete, late.runs) == (RUNS_MOST + 7, 1, RUNS_MOST + 12)
    assert (late.boxes[BLACK].found, late.boxes[BLACK].ranges) == (1, 2)
    assert (late.boxes[WHITE].found, late.boxes[WHITE].ranges) == (0, 1), "the second range is not complete"
    assert (late.boxes[BLACK].runs, late.boxes[BLACK].cpu_s) == (Interval(inf, 7, inf), Interval(inf, 9, inf))
    assert promise(every)[0].startswith("Of 5 rules `random` finds 2 within 500 runs and misses 0; 3 have too few")
    assert "Of the 3 that `random` has not found within 500 runs, `hunt` or `explore` finds 2." in promise(every)[-1]


def test_every_mutant_differs_from_the_full_protocol_and_only_stories_have_stories() -> None:
    for mutant in all_mutants().values():
        for method in Method:
            spec = mutant.base(method)
            assert ("scripted" in spec.families) == (method is Method.STORIES)
            assert spec.without or spec.mistakes or spec.settings.get("faultline.protocol")


# --- explorations -----------------------------------------------------------------------------------------------------


def test_a_mutant_of_the_quorum_is_explored_in_scopes_of_controllers() -> None:
    exploration = explored(ScopeOfMutant("vote_is_synced", "quorum-restarts", without=("vote_is_synced",)))
    assert "votes for 2 in epoch 1, where it has voted for 1" in exploration.broken
    assert exploration.cpu_s > 0


def test_the_mutants_of_the_quorum_are_the_rules_and_mistakes_of_the_raft_folder_alone() -> None:
    folder = Path(broker.__file__).parent
    asked: dict[bool, set[str]] = {True: set(), False: set()}
    for path in folder.rglob("*.py"):
        if path != folder / "rules.py":
            names = set(re.findall(r"rules\.(\w+)", path.read_text(encoding="utf-8")))
            asked[path.is_relative_to(folder / "raft")] |= names & set(NAMES)
    patched = {name for name, each in mistakes().items() if each.target.startswith("images.broker.raft.")}
    of_quorum = {mutant.name for mutant in all_mutants().values() if mutant.of_quorum}
    assert of_quorum == (asked[True] - asked[False]) | patched
    assert asked[True] & asked[False] == set()


def test_the_largest_scopes_of_brokers_are_for_rules_alone_and_come_last() -> None:
    mutants, largest = all_mutants().values(), ("elected-again", "reassignment-of-four", "answers-of-earlier-leaders")
    explored_in_them = [each for each in mutants if largest == scopes_of(each)[-3:]]
    assert explored_in_them == [each for each in mutants if each.kind is MutantKind.RULE and not each.of_quorum]
    assert not any(scope in largest for each in mutants for scope in scopes_of(each)[:-3])


@pytest.mark.parametrize("scope", ["two-replicas", "quorum-restarts"])
def test_a_scope_that_is_not_exhausted_is_explored_so_many_steps_deep(
    scope: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(explorations, "DEPTHS", {scope: 2})
    assert explored(ScopeOfMutant(FULL_PROTOCOL, scope)).depth == 2


class LocalContext:
    """Spark, in this process."""

    defaultParallelism = 1  # noqa: N815 (as Spark has it)

    def __init__(self) -> None:
        self.rounds: list[list[tuple[str, str]]] = []
        self.sparkContext = self

    def parallelize(self, tasks: Sequence[ScopeOfMutant], _: int) -> LocalContext:
        self.rounds.append([(task.mutant, task.scope) for task in tasks])
        self._tasks = tasks
        return self

    def map(self, function: Callable[[ScopeOfMutant], Exploration]) -> LocalContext:
        self._results = [function(task) for task in self._tasks]
        return self

    def collect(self) -> list[Exploration]:
        return self._results


QUORUM_MUTANTS = (
    Mutant("soon", MutantKind.RULE, without=("vote_is_synced",), of_quorum=True),
    Mutant("never", MutantKind.RULE, without=("metadata_fetch_fenced",), of_quorum=True),
)


def test_nights_go_on_with_the_explorations_of_the_quorum_each_first_without_a_mutant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def with_one_find(task: ScopeOfMutant) -> Exploration:
        return Exploration(10, 20, 3, 4.0, "two votes" if task.mutant == "soon" else "", "")

    monkeypatch.setattr(explorations, "explored", with_one_find)
    path, context, left = tmp_path / "record.json", LocalContext(), list[int]()
    spark: Any = context

    def night() -> CampaignNight:
        held = CampaignNight(QUORUM_MUTANTS, CampaignRecord.load(path), tmp_path, budget_s=3 * 8.5)
        explore_missing(spark, held, left.append)
        return held

    assert night().spent_s == 4 * 4.0, "a third of the budget is for explorations: the second round goes over it"
    assert context.rounds == [
        [(FULL_PROTOCOL, "quorum-restarts"), ("soon", "quorum-restarts")],
        [("never", "quorum-restarts"), (FULL_PROTOCOL, "quorum")],
    ]
    assert left == [7, 5], "the mutant that was found is explored no further"
    night()
    assert context.rounds[2:] == [
        [("never", "quorum"), (FULL_PROTOCOL, "quorum-messages")],
        [("never", "quorum-messages"), (FULL_PROTOCOL, "quorum-four-epochs")],
    ]
    assert CampaignRecord.load(path).explorations["soon"].keys() == {"quorum-restarts"}


def test_a_mutant_is_not_explored_where_no_step_reads_its_rule(tmp_path: Path) -> None:
    """Played in the smallest scope: without a rule that is not read it has the same states and steps."""
    full = explored(ScopeOfMutant(FULL_PROTOCOL, "two-replicas"))
    assert full.rules_read is not None
    assert "maximal_isr" in full.rules_read
    assert "delete_replica_durably" not in full.rules_read
    same = explored(ScopeOfMutant("same", "two-replicas", without=("delete_replica_durably",)))
    assert replace(same, cpu_s=full.cpu_s) == full
    mutants = tuple(all_mutants()[name] for name in ("delete_replica_durably", "one_isr_change_at_a_time"))
    record = CampaignRecord(tmp_path / "record.json")
    record.explorations[FULL_PROTOCOL] = {"two-replicas": full}
    context = LocalContext()
    spark: Any = context
    night = CampaignNight(mutants, record, tmp_path, budget_s=3e-9)
    explore_missing(spark, night, lambda left: None)
    assert context.rounds == [[("one_isr_change_at_a_time", "two-replicas"), (FULL_PROTOCOL, "fetches-in-flight")]]
    assert "maximal_isr" in (record.explorations[FULL_PROTOCOL]["fetches-in-flight"].rules_read or [])
    read_back = CampaignRecord.load(record.path).explorations
    assert read_back["delete_replica_durably"]["two-replicas"] == replace(full, cpu_s=0.0)


def test_a_summary_counts_the_scopes_of_a_mutant_and_says_how_deep_one_was_explored(tmp_path: Path) -> None:
    """Records of before the scopes of controllers have mutants of the quorum in scopes of brokers."""
    never = QUORUM_MUTANTS[1]
    same, other = Exploration(10, 20, 3, 4.0, "", "commit"), Exploration(11, 22, 3, 4.0, "", "commit")
    record = CampaignRecord(tmp_path / "record.json")
    record.explorations |= {name: {"two-replicas": same} for name in (FULL_PROTOCOL, never.name)}
    assert figures(record, [never])[0].explored == "not explored yet"
    first, *_, last = scopes_of(never)
    for known in record.explorations.values():
        known[first] = same
    assert figures(record, [never])[0].explored == "no scope expresses it; 3 scopes to go"
    for scope in scopes_of(never):
        record.explorations[FULL_PROTOCOL][scope] = same
        record.explorations[never.name][scope] = other if scope == last else same
    assert figures(record, [never])[0].explored == f"every promise kept in `{last}` {DEPTHS[last]} steps deep"


def test_a_scope_in_which_nobody_reads_a_rule_lacks_the_mutant_whatever_commits_explored_it(tmp_path: Path) -> None:
    record = CampaignRecord(tmp_path / "record.json")
    durable = all_mutants()["delete_replica_durably"]
    record.explorations[FULL_PROTOCOL] = {"two-replicas": Exploration(10, 20, 3, 4.0, "", "one", ["maximal_isr"])}
    record.explorations[durable.name] = {"two-replicas": Exploration(11, 22, 3, 4.0, "", "another")}
    assert figures(record, [durable])[0].explored == "no scope expresses it; 9 scopes to go"
