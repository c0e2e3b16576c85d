"""`docs/clients.md` lists the tools that are played. `make docs` writes them anew."""

from __future__ import annotations

import os
import re
from pathlib import Path

from harness.cluster.systems import SYSTEMS
from tests.clients import test_kafkajs
from tests.clients.kafka_tools import TOOLS

KAFKA = SYSTEMS["kafka"]
PAGE = Path(__file__).parents[2] / "docs/clients.md"
GO_MODULES = Path(__file__).parents[1] / "clients/go/go.mod"


def test_the_page_of_clients_lists_every_tool_that_is_played() -> None:
    text = PAGE.read_text(encoding="utf-8")
    match = re.search(r"(<!-- tools: written by `make docs` -->\n)(.*?)(<!-- /tools -->)", text, re.DOTALL)
    assert match is not None
    rows = "".join(f"| `{tool.script}` | {tool.use} |\n" for tool in TOOLS)
    content = f"| tool of Kafka {KAFKA.version} | what is done with it |\n|---|---|\n{rows}"
    if os.environ.get("FAULTLINE_WRITE_DOCS"):
        PAGE.write_text(text[: match.end(1)] + content + text[match.start(3) :], encoding="utf-8")
        return
    assert match[2] == content, "docs/clients.md is behind tests/clients/kafka_tools.py; run `make docs`"


def test_the_page_of_clients_has_the_versions_in_use() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert f"| KafkaJS | {test_kafkajs.VERSION} " in text
    assert f"tools | {KAFKA.version} " in text
    for module in ("github.com/IBM/sarama", "github.com/twmb/franz-go"):
        version = re.search(rf"{module} (v\S+)", GO_MODULES.read_text())
        assert version is not None
        assert f"{module} {version[1]}: " in text
