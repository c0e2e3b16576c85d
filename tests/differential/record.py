"""Record answers: `python -m tests.differential.record` those of Apache Kafka, which it starts, to `answers.json`;
`python -m tests.differential.record --ours` those of this broker to `ours.json`, as far as they differ."""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path

from harness.cluster.systems import SYSTEMS
from tests.differential.broker import AT_ONCE, Broker
from tests.differential.cases.all_cases import MODULES
from tests.differential.kafka import Kafka
from tests.differential.messages import Plain
from tests.differential.scene import CASES, play_all

HERE = Path(__file__).parent
ANSWERS = HERE / "answers.json"
OURS = HERE / "ours.json"


def load(path: Path) -> dict[str, Plain]:
    """Answers by case."""
    answers: dict[str, Plain] = json.loads(path.read_text(encoding="utf-8"))["cases"]
    return answers


def write(path: Path, system: str, answers: Mapping[str, Plain]) -> None:
    """One case a line."""
    lines = [f"    {json.dumps(name)}: {json.dumps(answer, sort_keys=True)}" for name, answer in answers.items()]
    text = f'{{\n  "of": {json.dumps(system)},\n  "cases": {{\n' + ",\n".join(lines) + "\n  }\n}\n"
    path.write_text(text, encoding="utf-8")


def main() -> None:
    """Play every case and write what was answered."""
    assert MODULES
    parser = argparse.ArgumentParser(prog="python -m tests.differential.record", description=__doc__)
    parser.add_argument("--ours", action="store_true", help="record this broker, not Kafka")
    with tempfile.TemporaryDirectory() as directory:
        if parser.parse_args().ours:
            with Broker(Path(directory)) as broker:
                ours = play_all(broker, CASES, at_once=AT_ONCE)
            kafka = load(ANSWERS)
            differing = {name: answer for name, answer in ours.items() if answer != kafka.get(name)}
            write(OURS, "Faultline", differing)
            print(f"{len(ours)} cases, {len(differing)} differ")
        else:
            with Kafka(Path(directory)) as server:
                answers = play_all(server, CASES)
            write(ANSWERS, f"Apache Kafka {SYSTEMS['kafka'].version}", answers)
            print(f"{len(answers)} cases")


if __name__ == "__main__":
    main()
