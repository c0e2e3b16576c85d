"""The corpus of a guided search: what enters it, what it goes back to, and its folder."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from harness.search.hunt.candidates import candidates
from harness.search.hunt.corpus import FRESH, ORIGINS, Candidate, Corpus, RunFeatures
from harness.search.hunt.folder import CorpusFolder, HuntPlan
from harness.search.hunt.hunt import begin, check_base
from harness.search.hunt.operators import fresh
from harness.spec import Spec, loads, parse
from harness.yaml_document import SpecError
from results.errors import StoreError

BASE = parse({"vary": True, "time_limit": 20})


def features(situations: Iterable[str], steps: int = 10_000, transitions: Iterable[str] = ()) -> RunFeatures:
    return RunFeatures(frozenset(situations), frozenset(transitions), steps)


TEXT = fresh(BASE, 1).to_yaml()


def candidate(run: str, origin: str = FRESH, parent: str = "") -> Candidate:
    return Candidate(run, origin, TEXT, parent)


def corpus_of(*rounds: list[tuple[Candidate, RunFeatures, bool]]) -> Corpus:
    corpus = Corpus()
    for runs in rounds:
        corpus.take_in(runs)
    return corpus


def test_a_run_enters_for_a_new_situation_or_transition_and_a_finding_does_not() -> None:
    corpus = Corpus()
    entered = corpus.take_in(
        [
            (candidate("a"), features("xy"), True),
            (candidate("bb"), features("xy"), True),
            (candidate("ccc"), features("x", transitions=["x→y"]), True),
            (candidate("dddd"), features("z"), False),
        ]
    )
    assert [(entry.candidate.run, entry.new) for entry in entered] == [("a", 2), ("ccc", 0)]
    assert list(corpus.entries) == ["a", "ccc"]
    assert corpus.situations == {"x": 3, "y": 2, "z": 1}
    assert (corpus.runs, corpus.rounds, corpus.alone()) == (4, 1, 1)


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
    assert set(shares) == set(ORIGINS)
    assert shares["splice"] > 2 * shares["shift"]
    assert min(shares.values()) >= 0.02
    assert shares[FRESH] >= 0.1
    later = [
        [
            (candidate("b", "splice"), features("a"), True),
            (candidate("c", "shift"), features([f"later {number}"]), True),
        ]
        for number in range(30)
    ]
    shares = corpus_of(first, runs, *later).shares()
    assert shares["shift"] > 1.5 * shares["splice"], "what was new long ago counts for less"


def test_fresh_specs_with_the_traits_of_those_that_showed_much_promise_more() -> None:
    specs = [fresh(BASE, seed) for seed in range(30)]
    runs = [
        (
            Candidate(f"r{number}", FRESH, spec.to_yaml()),
            features(f"{number}/{part}" for part in range(10 * spec.partitions)),
            True,
        )
        for number, spec in enumerate(specs)
    ]
    corpus = corpus_of(runs)
    wide, narrow = (next(spec for spec in specs if spec.partitions == count) for count in (5, 1))
    assert corpus.promise(wide) > 0 > corpus.promise(narrow)
    children = [(replace(candidate, origin="shift"), shown, valid) for candidate, shown, valid in runs]
    assert corpus_of(children).traits == {}, "children share the traits of their parents"
    drawn = [loads(each.text) for each in candidates(corpus, BASE, 1, 12) if each.origin == FRESH]
    assert sum(map(corpus.promise, drawn)) > sum(map(corpus.promise, specs)) / len(specs) * len(drawn)


def test_a_round_depends_on_the_corpus_and_the_seed_alone() -> None:
    corpus = corpus_of([(candidate(name), features(name), True) for name in ("a", "bc", "def")])
    made = candidates(corpus, BASE, 5, 6)
    assert made == candidates(corpus, BASE, 5, 6)
    assert made[:3] == candidates(corpus, BASE, 5, 3)
    assert made != candidates(corpus, BASE, 6, 6)
    assert len({each.run for each in made}) == 6
    for each in made:
        assert loads(each.text).name == each.run
        assert (each.parent in corpus.entries) is (each.origin != FRESH)


def test_the_first_round_of_a_hunt_is_random() -> None:
    assert {each.origin for each in candidates(Corpus(), BASE, 1, 3)} == {FRESH}


def saved(path: Path) -> tuple[CorpusFolder, HuntPlan, Corpus]:
    folder, plan = CorpusFolder(path), HuntPlan(BASE, 5, 4)
    corpus = Corpus()
    with folder.locked():
        folder.save(plan, corpus, corpus.take_in([(candidate(name), features(name), True) for name in ("a", "bc")]))
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
    ],
)
def test_a_damaged_corpus_is_named_in_a_line(tmp_path: Path, damage: object, line: str) -> None:
    saved(tmp_path)
    damage(tmp_path)  # type: ignore[operator]
    with pytest.raises(StoreError, match=line):
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
