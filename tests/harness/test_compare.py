"""Settings side by side: the same faults for all, and what a comparison that cannot be made says."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from harness.cli.main import main
from harness.cluster.layout import cluster_layout
from harness.cluster.systems import configured
from harness.environments.machines.system_capabilities import unsupported_anywhere
from harness.exit_codes import BAD_USAGE, VALID
from harness.suites.comparison import SHIPPED, load
from harness.yaml_document import SpecError

SMALL = """
reference: safe
seeds: 2
base:
  partitions: 1
  time_limit: 14s
  faults:
    - {at: 4, for: 6, fault: partition, shape: leader-only, nodes: [leader/0]}
    - {at: 5.5, for: 5, fault: power-loss, nodes: [leader/0], keep: nothing}
cells:
  safe: {settings: {min.insync.replicas: 2}}
  fast: {acks: 1, settings: {min.insync.replicas: 2}}
"""


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(SMALL)
    return path


def test_every_cell_has_the_same_faults(small: Path) -> None:
    small.write_text(
        SMALL.replace("faults:\n    - {at: 4", "faults: all\n  # - {at: 4").replace("    - {at: 5", "  # - {at: 5")
    )
    matrix = load(str(small))
    specs = {(job.cell, job.seed): matrix.spec(job) for job in matrix.runs()}
    for seed in (0, 1):
        safe, fast = specs["safe", seed], specs["fast", seed]
        assert safe.script == fast.script
        assert len(safe.script)
        assert (safe.seed, fast.seed, fast.acks) == (seed, seed, "1")
    assert specs["safe", 0].script != specs["safe", 1].script


@pytest.mark.spark
def test_a_comparison_tells_what_each_setting_costs_and_saves(
    small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    at = ["--master", "local[2]", "--store", str(tmp_path / "store"), "--out", str(tmp_path / "out")]
    assert main(["compare", str(small), *at]) == VALID
    comparison = json.loads((tmp_path / "out" / "small.json").read_text())
    safe, fast = comparison["cells"]
    assert safe["lost"] == 0
    assert fast["lost"] > 0
    assert fast["differences"]["lost"]["low"] > 0
    assert all(difference["high"] >= difference["value"] for difference in fast["differences"].values())
    assert {run["stored"].partition("/")[2] for run in comparison["runs"]} == {
        f"{cell}-seed{seed}" for cell in ("safe", "fast") for seed in (0, 1)
    }
    printed = " ".join(capsys.readouterr().out.split())
    assert re.search(r"Δ to the reference \+[\d.]+ points", printed)
    assert f"lost {fast['lost']} of {fast['acknowledged']:,} acknowledged records" in printed
    page = (tmp_path / "out" / "small.html").read_text()
    assert "Availability against loss" in page
    assert "https://" not in page.partition("<script>")[0]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("cells: {}", "small.yaml:1: cells: there is none"),
        ("cells: {a: {sede: 1}}", "small.yaml:1: cells.a.sede: unknown field"),
        ("cells: {a: {environment: docker}, b: {}}", "cells: cells have several environments: docker, sim"),
        ("cells: {a: {}, b: {controllers: 1}}", "cells: cells have 1, 3 controllers, but share their faults"),
        ("cells: {a: {partitions: 4}, b: {partitions: 1}}", "cells.b: fewer partitions than a, whose faults it shares"),
        ("cells: {a: {}, b: {time_limit: 20s}}", "cells.b: a shorter time limit than a, whose faults it shares"),
        ("reference: b\ncells: {a: {}}", "reference: 'b' is not one of the cells: a"),
        ("seeds: 1\ncells: {a: {}}", "seeds: 1 is not a number of at least 2"),
        ("base: {settings: 3}\ncells: {a: {}}", "base.settings: 3 is not a mapping"),
        ("cells: {a: {settings: [1]}}", "cells.a.settings: [1] is not a mapping"),
        ("reference: [a]\ncells: {a: {}}", "reference: ['a'] is not one of the cells: a"),
        ("seeds: 9999999\ncells: {a: {}}", "more than the 1000000 of a suite"),
        ("cell: {}", "cell: unknown field; one of: reference, seeds, base, cells"),
    ],
)
def test_a_comparison_that_cannot_be_made_is_one_line(
    text: str, complaint: str, small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small.write_text(text)
    with pytest.raises(SpecError):
        load(str(small))
    assert main(["compare", str(small)]) == BAD_USAGE
    printed = capsys.readouterr().err
    assert printed.startswith(f"faultline compare: {small}:")
    assert complaint in printed
    assert printed.count("\n") == 1


def test_shipped_comparisons_can_be_read() -> None:
    assert [load(path.stem).name for path in SHIPPED.glob("*.yaml")] == [path.stem for path in SHIPPED.glob("*.yaml")]


SYSTEMS = """
base: {environment: docker, faults: all}
cells:
  prototype: {}
  Kafka: {system: kafka, version: 4.1.1}
"""


def test_cells_of_several_systems_share_faults_that_each_of_them_can_carry(small: Path) -> None:
    small.write_text(SYSTEMS)
    suite = load(str(small), seeds=12)
    specs = {(run.cell, run.seed): suite.spec(run) for run in suite.runs()}
    assert {(spec.system, spec.version) for spec in specs.values()} == {("broker", ""), ("kafka", "4.1.1")}
    for seed in range(12):
        ours, kafkas = specs["prototype", seed], specs["Kafka", seed]
        assert ours.script == kafkas.script
        layout = configured(kafkas.deployed_system, cluster_layout(kafkas.brokers, kafkas.controllers), {}, ())
        assert kafkas.script.unmet(dict.fromkeys(unsupported_anywhere(layout), "lacking")) == ""


AXES = {
    "acks": "{acks: 1}",
    "minimum": "{settings: {min.insync.replicas: 1}}",
    "replicas": "{replication_factor: 2}",
    "unclean election": "{settings: {unclean.leader.election.enable: true}}",
    "recovery": "{settings: {unclean.recovery.strategy: balanced}}",
    "flush": "{settings: {flush.messages: 1}}",
    "protocol": "{settings: {faultline.protocol: kip320}}",
}


@pytest.mark.spark
def test_every_setting_that_trades_durability_can_be_an_axis(tmp_path: Path) -> None:
    path = tmp_path / "axes.yaml"
    cells = "".join(f"  {name}: {cell}\n" for name, cell in {"plain": "{}", **AXES}.items())
    base = "base: {partitions: 1, time_limit: 8s, faults: [{at: 2, for: 3, fault: kill, nodes: [leader/0]}]}"
    path.write_text(f"reference: plain\nseeds: 2\n{base}\ncells:\n{cells}")
    at = ["--master", "local[1]", "--store", str(tmp_path / "store"), "--out", str(tmp_path / "out")]
    assert main(["compare", str(path), *at]) == VALID
    comparison = json.loads((tmp_path / "out" / "axes.json").read_text())
    assert [cell["name"] for cell in comparison["cells"]] == ["plain", *AXES]
    assert all(cell["acknowledged"] for cell in comparison["cells"])
