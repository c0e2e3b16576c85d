"""Plans of suites: their cells, the seeds of these, and the line for a plan that cannot be carried out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.cli.main import main
from harness.exit_codes import BAD_USAGE
from harness.suites.plan import SHIPPED, Suite, load
from harness.yaml_document import SpecError


def test_cells_are_specs_times_settings_and_every_cell_has_every_seed() -> None:
    suite = load(str(SHIPPED / "smoke.yaml"), seeds=2)
    assert [run.run for run in suite.runs()] == ["append-seed0", "groups-seed0", "append-seed1", "groups-seed1"]
    assert Suite.from_json(json.loads(json.dumps(suite.to_json()))) == suite


def test_settings_are_put_on_top_of_every_spec(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(
        "base: {settings: {min.insync.replicas: 2}}\nspecs: {a: {}, b: {acks: 1}}\n"
        "settings: {low: {settings: {min.insync.replicas: 1}}, two: {partitions: 4}}\n"
    )
    cells = load(str(path)).cells
    assert list(cells) == ["a, low", "a, two", "b, low", "b, two"]
    assert (cells["b, low"].min_insync_replicas, cells["b, low"].acks, cells["a, two"].partitions) == (1, "1", 4)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("specs: {}", "specs: there is none"),
        ("specs: {a: {sede: 1}}", ":1: specs.a.sede: unknown field"),
        (
            "specs: {a: {environment: ssh, brokers: 1, controllers: 0, system: kafka, hosts: {b1: {address: lab}}}}",
            ":1: specs.a.environment: suites and comparisons run in sim or docker",
        ),
        ("specs: {a: {environment: docker}, b: {}}", ":1: specs: cells have several environments: docker, sim"),
        ("repeats: 1\nspecs: {a: {environment: docker}}", "a: mutants and repeats are of the simulation, not docker"),
        ("reference: a\nspecs: {a: {}, b: {brokers: 4}}", "specs: cells have 3, 4 brokers, but share their faults"),
        ("specs: {a: {}}\nseeds: 0", ":2: seeds: 0 is not a number of at least 1"),
        ("spec: {}", "spec: unknown field; one of: seeds, first_seed, base, specs, settings"),
        ("specs: {a: 3}", "specs.a: 3 is not a mapping"),
        ("seeds: true\nspecs: {a: {}}", "seeds: True is not a number of at least 1"),
        (
            "specs: {a b: {}, a-b: {}}",
            "specs: two of a b, a-b differ only in signs that the name of a file cannot have",
        ),
        ("seeds: 600000\nspecs: {a: {}, b: {}}", "seeds: 600000 make 1200000 runs, more than the 1000000 of a suite"),
        (
            "base: {settings: {no.such: 1}}\nspecs:\n  a: {settings: {retention.ms: 5}}",
            ":1: base.settings: unknown configuration 'no.such'",
        ),
        ("seeds: 1000001\nspecs: {a: {}}", "seeds: 1000001 make 1000001 runs, more than the 1000000 of a suite"),
        ("first_seed: 4294967290\nseeds: 7\nspecs: {a: {}}", ":2: seeds: 7 seeds from 4294967290 on exceed 2³²"),
        ("base: {rate: 20}\nspecs:\n  a: {}\n  b:\n    rate: 0", ":5: specs.b.rate: 0 is less than 0.001"),
        ("base:\n  rate: 0\nspecs:\n  a: {}", ":2: base.rate: 0 is less than 0.001"),
        ("specs: {a: {}}\nmutants:\n  gravity: {}", ":3: mutants.gravity.without: 'gravity' is not a rule"),
        ("specs:\n  a: {}\n  a: {}", ":3: a: is given twice, first in line 2; keep one of them"),
        ("reference: [a]\nspecs: {a: {}}", "reference: ['a'] is not one of the cells: a"),
    ],
)
def test_a_suite_that_cannot_be_run_is_one_line(
    text: str, complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mixed = tmp_path / "mixed.yaml"
    mixed.write_text(text)
    with pytest.raises(SpecError):
        load(str(mixed))
    assert main(["suite", str(mixed), "--store", str(tmp_path / "store")]) == BAD_USAGE
    printed = capsys.readouterr().err
    assert complaint in printed
    assert printed.count("\n") == 1


def test_shipped_suites_can_be_read() -> None:
    assert sorted(load(path.stem).name for path in SHIPPED.glob("*.yaml")) == [
        "kafka",
        "nightly",
        "smoke",
        "soak",
        "torture",
        "varied",
    ]
