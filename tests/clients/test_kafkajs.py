"""KafkaJS, the Node.js client, against real broker processes on loopback."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
import threading
from pathlib import Path

from harness.cluster.loopback import LoopbackCluster
from tests.clients.requirements import missing
from tests.clients.test_real_clients import kill_leader, restart

VERSION = "2.2.4"
RECORDS, PAUSE_AFTER = 3_000, 1_000
_SCRIPT = Path(__file__).parent / "javascript/client.mjs"
_LIMIT_S = 300.0


def test_kafkajs_loses_nothing_across_a_killed_leader_and_its_group_reads_all(tmp_path: Path) -> None:
    modules = _installed()
    with LoopbackCluster(tmp_path) as cluster:
        arguments = [str(modules), cluster.bootstrap, "kafkajs", str(RECORDS), str(PAUSE_AFTER)]
        with subprocess.Popen(
            ["node", str(_SCRIPT), *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as client:
            watchdog = threading.Timer(_LIMIT_S, client.kill)
            watchdog.start()
            try:
                assert client.stdin is not None
                assert client.stdout is not None
                assert client.stdout.readline() == "paused\n"
                killed = kill_leader(cluster, "kafkajs")
                client.stdin.write("go on\n")
                client.stdin.flush()
                values = json.loads(client.stdout.readline() or "[]")
            finally:
                watchdog.cancel()
                client.kill()
        restart(cluster, killed, "kafkajs")
    assert values == [str(number) for number in range(RECORDS)]


def _installed() -> Path:
    """The directory with KafkaJS in its node_modules; npm installs it the first time."""
    for command in ("node", "npm"):
        if shutil.which(command) is None:
            missing(f"{command} is not installed")
    home = Path(tempfile.gettempdir()) / f"faultline-kafkajs-{VERSION}"
    if not home.exists():
        with tempfile.TemporaryDirectory() as scratch:
            command = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", scratch]
            installed = subprocess.run(
                [*command, f"kafkajs@{VERSION}"], check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
            )
            if installed.returncode:
                missing(f"npm cannot install KafkaJS: {installed.stdout.decode(errors='replace')[-500:]}")
            if not home.exists():  # another process may have been faster
                shutil.copytree(scratch, home)
    return home
