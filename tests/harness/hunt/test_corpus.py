"""The corpus of a guided search: what enters it, what it goes back to, and its folder."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from harness.cli import hunting
from harness.search.hunt.candidates import FIRST_RUNS, candidates, round_size
from harness.search.hunt.corpus import FRESH, ORIGINS, PAIRED, STRIKING, Candidate, Corpus
from harness.search.hunt.features import RunFeatures
from harness.search.hunt.folder import CorpusFolder, HuntPlan
from harness.search.hunt.hunt import HuntSession, begin, check_base
from harness.search.hunt.operators import fresh
from harness.search.hunt.traits import traits_of
from harness.spec import Spec, loads, parse
from harness.yaml_document import SpecError
from results.errors import StoreError

BASE = parse({"vary": True, "time_limit": 20})


def features(
    situations: Iterable[str], steps: int = 10_000, transitions: Iterable[str] = (), rules: Iterable[str] = ()
) -> RunFeatures:
    return RunFeatures(frozenset(situations), frozenset(transitions), steps, frozenset(rules))


TEXT = fresh(BASE, 1).to_yaml()


def fresh_candidate(run: str, seed: int) -> Candidate:
    return Candidate(run, FRESH, fresh(BASE, seed).to_yaml())


def candidate(run: str, origin: str = FRESH, parent: str = "") -> Candidate:
    return Candidate(run, origin, TEXT, parent)


def corpus_of(*rounds: list[tuple[Candidate, RunFeatures, bool]]) -> Corpus:
    corpus = Corpus()
    for runs in rounds:
        corpus.take_in(runs)
    return corpus


def test_a_run_enters_for_a_new_situation_transition_or_rule_and_a_finding_does_not() -> None:
    corpus = Corpus()
    entered = corpus.take_in(
        [
            (candidate("a"), features("xy"), True),
            (candidate("bb"), features("xy"), True),
            (candidate("ccc"), features("x", transitions=["x→y"]), True),
            (candidate("dddd"), features("z"), False),
            (candidate("eeeee"), features("x", rules=["fence_fetch_epoch"]), True),
        ]
    )
    assert [(entry.candidate.run, entry.new) for entry in entered] == [("a", 2), ("ccc", 0), ("eeeee", 0)]
    assert list(corpus.entries) == ["a", "ccc", "eeeee"]
    assert corpus.situations == {"x": 4, "y": 2, "z": 1}
    assert (corpus.runs, corpus.rounds, corpus.alone) == (5, 1, {"z": "dddd"})


def test_rare_situations_and_cheap_runs_are_gone_back_to_and_children_use_up_their_parent() -> None:
    runs = [
        (candidate("rare"), features("abc"), True),
        (candidate("common"), features("xyz"), True),
        (candidate("more"), features("xyzw"), True),
        (candidate("expensive"), features("def", steps=1_000_000), True),
    ]
    before = corpus_of(runs).weights()
    assert before["rare"] > before["common"]
    assert before["rare"] > before["expensive"]
    child = (candidate("child", "shift", parent="rare"), features("x"), True)
    after = corpus_of(runs, [child]).weights()
    assert after["rare"] == pytest.approx(before["rare"] / 2)


def test_an_operator_that_shows_more_is_drawn_more_and_none_is_given_up() -> None:
    assert Corpus().shares() == {FRESH: 1.0}
    first = [(candidate("a"), features("a"), True)]
    runs = [(candidate(f"good{number}", "splice"), features([f"new {number}"]), True) for number in range(40)]
    runs += [(candidate(f"bad{number}", "shift"), features("a"), True) for number in range(40)]
    shares = corpus_of(first, runs).shares()
    assert sum(shares.values()) == pytest.approx(1)
    assert set(shares) == {*ORIGINS} - {*PAIRED}
    assert shares["splice"] > 2 * shares["shift"]
    assert min(shares.values()) >= 0.02
    assert shares[FRESH] >= 0.2
    later = [
        [
            (candidate("b", "splice"), features("a"), True),
            (candidate("c", "shift"), features([f"later {number}"]), True),
        ]
        for number in range(60)
    ]
    shares = corpus_of(first, runs, *later).shares()
    assert shares["shift"] > 1.5 * shares["splice"], "what was new long ago counts for less"


def test_a_run_that_read_a_rare_rule_is_gone_back_to() -> None:
    runs = [
        (candidate("rare"), features("abc", rules=["often", "seldom"]), True),
        (candidate("common"), features("xyz", rules=["often"]), True),
    ]
    weights = corpus_of(runs).weights()
    assert weights["rare"] > 2 * weights["common"]


def test_a_situation_of_partitions_with_many_known_ones_is_worth_less() -> None:
    many = [f"5-{number}" for number in range(400)]
    runs = [
        (candidate("many"), features(many), True),
        (candidate("wide"), features(["5-new"]), True),
        (candidate("narrow"), features(["3-new"]), True),
    ]
    weights = corpus_of(runs).weights()
    assert weights["narrow"] > 1.5 * weights["wide"]


def test_a_fresh_run_teaches_by_what_no_other_run_shows_until_now() -> None:
    corpus = corpus_of(
        [
            (fresh_candidate("again 1", 1), features("abcdef"), True),
            (fresh_candidate("other", 2), features("ghij"), True),
        ],
        [(fresh_candidate("again 2", 1), features("abcdef"), True)],
    )
    yields = corpus.trait_yields()
    traits = [set(traits_of(fresh(BASE, seed))) for seed in (1, 2)]
    assert all(yields[trait].shown == 0 for trait in traits[0] - traits[1])
    assert all(yields[trait].shown == pytest.approx(3) for trait in traits[1] - traits[0])


def test_children_do_not_teach_what_traits_are_worth() -> None:
    corpus = corpus_of([(candidate("a"), features("a"), True)], [(candidate("b", "shift", "a"), features("b"), True)])
    assert [trial.run for trial in corpus.trials] == ["a"]


def test_the_first_rounds_are_small_since_nothing_is_learned_within_one() -> None:
    corpus = Corpus()
    sizes = []
    while corpus.runs < 100:
        sizes.append(round_size(corpus, 32))
        corpus.take_in([(candidate(f"{corpus.runs}/{place}"), features("a"), True) for place in range(sizes[-1])])
    assert sizes == [8, 8, 16, 32, 32, 32]
    assert round_size(Corpus(), 2) == 2


def test_a_round_depends_on_the_corpus_and_the_seed_alone() -> None:
    corpus = corpus_of([(candidate(name), features(name), True) for name in ("a", "bc", "def")])
    made = candidates(corpus, BASE, 5, 6)
    assert made == candidates(corpus, BASE, 5, 6)
    assert made[:3] == candidates(corpus, BASE, 5, 3)
    assert made != candidates(corpus, BASE, 6, 6)
    assert len({each.run for each in made}) == 6
    for each in made:
        assert loads(each.text).name == each.run
        assert (each.parent in corpus.entries) is (each.origin not in (FRESH, *PAIRED))


@pytest.mark.parametrize("hash_seed", ["1", "2"])
def test_another_process_plans_the_same_round(hash_seed: str) -> None:
    code = (
        "import json\n"
        "from harness.search.hunt.candidates import candidates\n"
        "from tests.harness.hunt.test_corpus import BASE, taught\n"
        "corpus = taught()\n"
        "print(json.dumps([corpus.weights(), [each.text for each in candidates(corpus, BASE, 3, 8)]]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, env={"PYTHONHASHSEED": hash_seed}, check=True
    )
    corpus = taught()
    assert json.loads(done.stdout) == [corpus.weights(), [each.text for each in candidates(corpus, BASE, 3, 8)]]


def taught() -> Corpus:
    """A corpus after two rounds of fresh runs, each in dozens of situations, many of which it shares with others."""
    random = Random(1)
    situations = [f"{random.randint(1, 5)}-{number}" for number in range(300)]
    rules = ["fence_fetch_epoch", "maximal_isr", "leso_gates_isr_join"]

    def shown(number: int) -> tuple[Candidate, RunFeatures, bool]:
        seen = features(random.sample(situations, 40), rules=random.sample(rules, 2))
        return fresh_candidate(f"r{number}", number), seen, True

    return corpus_of([shown(number) for number in range(8)], [shown(number) for number in range(8, 16)])


@pytest.mark.parametrize(("children_each", "least", "most"), [(4, 0.5, 0.8), (9, 0.2, 0.5)], ids=["early", "later"])
def test_much_is_drawn_as_if_nothing_had_been_learned(children_each: int, least: float, most: float) -> None:
    """Also where children have shown all that is new."""
    children = [
        (candidate(f"child {number}", origin, "a"), features([f"{origin} {number}"]), True)
        for origin in ORIGINS
        if origin not in (FRESH, *PAIRED)
        for number in range(children_each)
    ]
    corpus = corpus_of([(candidate("a"), features("a"), True)], [(candidate("b"), features("a"), True)] * 20, children)
    assert corpus.shares()[FRESH] < 0.3
    origins = [each.origin for each in candidates(corpus, BASE, 1, 60)]
    assert (corpus.runs < FIRST_RUNS) is (least == 0.5)
    assert least < sum(origins.count(origin) for origin in (FRESH, *PAIRED)) / len(origins) < most
    assert all(0.01 < origins.count(origin) / len(origins) < 0.3 for origin in PAIRED)


def test_the_first_round_of_a_hunt_is_random() -> None:
    origins = [each.origin for each in candidates(Corpus(), BASE, 1, 60)]
    assert sum(origins.count(origin) for origin in (FRESH, *PAIRED)) == len(origins)
    assert all(0.05 < origins.count(origin) / len(origins) < 0.3 for origin in PAIRED)


@pytest.mark.parametrize(("families", "held"), [(("kill", "admin"), False), (("kill", "pause"), True)])
def test_messages_are_held_where_the_families_can(families: tuple[str, ...], held: bool) -> None:
    origins = {each.origin for each in candidates(Corpus(), replace(BASE, families=families), 1, 16)}
    assert origins == ({FRESH, *PAIRED} if held else {FRESH, STRIKING})


def saved(path: Path) -> tuple[CorpusFolder, HuntPlan, Corpus]:
    folder, plan = CorpusFolder(path), HuntPlan(BASE, 5, 4)
    corpus = Corpus()
    with folder.locked():
        folder.save(
            plan,
            corpus,
            corpus.take_in([(candidate(name), features(name, rules=[name]), True) for name in ("a", "bc")]),
        )
    return folder, plan, corpus


def test_a_folder_goes_on_as_the_hunt_that_wrote_it_would(tmp_path: Path) -> None:
    _, plan, corpus = saved(tmp_path)
    again = begin(CorpusFolder(tmp_path), BASE, None, 99)
    assert again == (plan, corpus)
    assert candidates(again[1], BASE, 5, 4) == candidates(corpus, BASE, 5, 4)


def test_what_a_round_that_was_cut_short_left_does_not_count(tmp_path: Path) -> None:
    folder, plan, corpus = saved(tmp_path)
    (tmp_path / "entries" / "cut.json").write_text("{}")
    assert folder.load() == (plan, corpus)


@pytest.mark.parametrize(
    ("damage", "line"),
    [
        (lambda path: (path / "entries" / "bc.json").unlink(), "bc.json: is missing from the corpus"),
        (lambda path: (path / "entries" / "bc.json").write_text('{"new": 1}'), "bc.json: is not an entry of a corpus"),
        (lambda path: (path / "hunt.json").write_text('{"seed": 1}'), "hunt.json: is not the state of a hunt"),
        (lambda path: (path / "hunt.json").write_text("{"), "hunt.json is not JSON"),
        (lambda path: replaced(path / "hunt.json", runs=None), "hunt.json: is not the state of a hunt: None is not a"),
        (lambda path: replaced(path / "hunt.json", yields=[]), "hunt.json: is not the state of a hunt"),
        (lambda path: replaced(path / "hunt.json", rules={"a": 0}), "hunt.json: is not the state of a hunt: 0 is not"),
        (
            lambda path: replaced(path / "entries" / "bc.json", situations=["3-ffffffffffff"]),
            "bc.json: is not an entry of this corpus: it has seen what no run has",
        ),
    ],
)
def test_a_damaged_corpus_is_named_in_a_line(tmp_path: Path, damage: object, line: str) -> None:
    saved(tmp_path)
    damage(tmp_path)  # type: ignore[operator]
    with pytest.raises(StoreError, match=line):
        CorpusFolder(tmp_path).load()


def test_an_entry_whose_spec_is_of_another_version_is_named_when_it_is_a_parent(tmp_path: Path) -> None:
    saved(tmp_path)
    for run in ("a", "bc"):
        replaced(tmp_path / "entries" / f"{run}.json", spec="forgotten: 1")
    folder = CorpusFolder(tmp_path)
    plan, corpus = begin(folder, BASE, None, 99)
    session = HuntSession(plan, corpus, folder, tmp_path, 8, lambda: True)
    with pytest.raises(StoreError, match=r"is damaged, or of another version of faultline: (a|bc): line 1: forgotten"):
        session.next_round({})


def replaced(path: Path, **values: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_a_corpus_of_another_version_is_named_as_such(tmp_path: Path) -> None:
    saved(tmp_path)
    path = tmp_path / "hunt.json"
    state = json.loads(path.read_text())
    path.write_text(json.dumps({name: value for name, value in state.items() if name != "format"}))
    with pytest.raises(StoreError, match="is a corpus of another version of faultline; choose another folder"):
        CorpusFolder(tmp_path).load()


def test_a_corpus_belongs_to_one_hunt_and_to_one_process(tmp_path: Path) -> None:
    folder, *_ = saved(tmp_path)
    for spec, seed, size, what in (
        (parse({"vary": True}), None, None, "spec"),
        (BASE, 6, None, "random seed"),
        (BASE, None, 8, "size of its rounds"),
    ):
        with pytest.raises(StoreError, match=f"is the corpus of a hunt with another {what}"):
            begin(folder, spec, seed, 0, size)
    with folder.locked(), pytest.raises(StoreError, match="another hunt is going on with this corpus"):
        with CorpusFolder(tmp_path).locked():
            pass


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"environment": "docker"}, "environment: a hunt runs in the simulation"),
        ({"faults": "none"}, "faults: there are none"),
    ],
)
def test_a_spec_that_cannot_be_hunted_with_is_refused_in_a_line(fields: dict[str, str], line: str) -> None:
    spec: Spec = parse(fields)
    with pytest.raises(SpecError, match=line):
        check_base(spec)


def test_the_display_says_nothing_of_situations_before_there_are_any() -> None:
    corpus = Corpus()
    assert hunting._seen(corpus) == ""
    corpus.situations["s"] = 1
    assert hunting._seen(corpus) == "; 1 situations"
