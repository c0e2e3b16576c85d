"""franz-go and Sarama, two Go clients: `python -m tests.clients.go_clients` builds and runs both.

Each produces idempotently while the leader of the partition is killed, and reads with a group. Go
fetches what they need. Not a part of the tests, since building takes a minute of processor time; `docs/clients.md` has
what was printed.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from harness.cluster.loopback import LoopbackCluster
from tests.clients.test_real_clients import create_topic, kill_leader, restart

SOURCES = Path(__file__).parent / "go"
CLIENTS = {"franz": "github.com/twmb/franz-go", "sarama": "github.com/IBM/sarama"}
RECORDS, PAUSE_AFTER = 10_000, 3_000


def main() -> int:
    """Run every client; 0 if each lost and repeated nothing."""
    status = 0
    with tempfile.TemporaryDirectory(prefix="faultline-go-") as directory:
        for name, module in CLIENTS.items():
            binary = Path(directory) / name
            subprocess.run(["go", "build", "-o", str(binary), f"./{name}"], cwd=SOURCES, check=True)
            values = _run(binary, Path(directory) / f"cluster-{name}", name)
            whole = values == [str(number) for number in range(RECORDS)]
            found = "all, in order, once" if whole else f"{len(values)} of them, {len(set(values))} different"
            print(f"{_version(module)}: {RECORDS:,} records across a killed leader, read by a group: {found}")
            status |= not whole
    return status


def _run(binary: Path, directory: Path, topic: str) -> list[str]:
    with LoopbackCluster(directory) as cluster:
        create_topic(cluster, topic)
        arguments = [cluster.bootstrap, topic, str(RECORDS), str(PAUSE_AFTER)]
        with subprocess.Popen(
            [str(binary), *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as client:
            assert client.stdin is not None
            assert client.stdout is not None
            if client.stdout.readline() != "paused\n":
                return []
            killed = kill_leader(cluster, topic)
            client.stdin.write("go on\n")
            client.stdin.flush()
            values: list[str] = json.loads(client.stdout.readline() or "[]")
        restart(cluster, killed, topic)
    return values


def _version(module: str) -> str:
    return subprocess.run(
        ["go", "list", "-m", module], cwd=SOURCES, check=True, capture_output=True, text=True
    ).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
