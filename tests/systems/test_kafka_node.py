"""The launcher of a node of Kafka: formatting, and becoming Kafka; with a Java that only writes down what it runs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

IMAGES = Path(__file__).parents[2] / "images"
FAKE_JAVA = """#!/bin/sh
echo "$@" >> "$0.log"
case "$*" in *StorageTool*) [ -e "$0.refuses" ] && exit 3; touch "$DATA/meta.properties";; esac
"""


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory laid out as a node's, with a Java that writes down what it is asked to run."""
    for name in ("__init__.py", "kafka/__init__.py", "kafka/__main__.py"):
        (tmp_path / "images" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(IMAGES / name, tmp_path / "images" / name)
    for directory in ("bin", "data", "kafka/jars"):
        (tmp_path / directory).mkdir(parents=True)
    with ZipFile(tmp_path / "kafka/jars/kafka-metadata-9.9.9.jar", "w") as jar:
        jar.writestr("common/metadata/TopicRecord.json", "{}")
        jar.writestr("common/message/Other.json", "{}")
    java = tmp_path / "bin" / "java"
    java.write_text(FAKE_JAVA)
    java.chmod(0o755)
    monkeypatch.setenv("PATH", f"{java.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("DATA", str(tmp_path / "data"))
    return tmp_path


def launched(machine: Path) -> int:
    argv = [sys.executable, "-m", "images.kafka", "node.properties", "data", "schemas.json", "--feature=a.version=1"]
    return subprocess.run(argv, cwd=machine, env={**os.environ, "PYTHONPATH": ""}, check=False).returncode


def test_a_node_formats_its_storage_where_it_is_empty_and_becomes_kafka(machine: Path) -> None:
    calls = machine / "bin" / "java.log"
    assert launched(machine) == 0
    formatting, running = calls.read_text().splitlines()
    assert "kafka.tools.StorageTool format --cluster-id " in formatting
    assert formatting.endswith("--config node.properties --feature a.version=1")
    assert running.endswith("kafka.Kafka node.properties")
    assert all("-XX:-UsePerfData" in call for call in (formatting, running)), "else a killed Java leaves files in /tmp"
    assert json.loads((machine / "schemas.json").read_text()) == ["{}"]
    calls.unlink()
    assert launched(machine) == 0
    assert "StorageTool" not in calls.read_text(), "what is formatted stays"
    (machine / "data" / "meta.properties").unlink()
    calls.unlink()
    assert launched(machine) == 0
    assert "StorageTool" in calls.read_text(), "a wiped disk is formatted again"


def test_a_node_that_cannot_be_formatted_ends_with_the_status_of_the_tool(machine: Path) -> None:
    (machine / "bin" / "java.refuses").touch()
    assert launched(machine) == 3
    assert "kafka.Kafka" not in (machine / "bin" / "java.log").read_text()


def test_a_release_that_comes_with_another_library_for_logs_writes_them_all_the_same(machine: Path) -> None:
    for jar in ("slf4j-reload4j-1.7.36.jar", "slf4j-simple-1.7.36.jar"):
        (machine / "kafka" / "jars" / jar).touch()
    assert launched(machine) == 0
    for call in (machine / "bin" / "java.log").read_text().splitlines():
        assert "slf4j-simple-1.7.36.jar" in call
        assert "slf4j-reload4j" not in call
