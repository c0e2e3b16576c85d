"""Runs in Docker with a monitor inside each container.

    python -m tests.machines.evidence.observed_runs --seeds 1-10 --time-limit 60

makes one run for each seed, all faults or those of `--faults`, compares its evidence with what the monitors saw, and
prints a row a run. It exits 1 when they disagree.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from rich.console import Console
from rich.table import Table

from harness.cluster.layout import Layout
from harness.environments.base import Deployment, Listener
from harness.environments.docker.environment import Docker
from harness.environments.machines.deployment import MachineDeployment
from harness.runner import run as runner
from harness.runner.outcome import Outcome
from harness.spec import Spec, parse
from results.run.directory import RunDirectory
from tests.machines.evidence.comparison import Comparison, Sample, compare

STOP = "/run/monitor-stop"
MONITOR = Path(__file__).with_name("container_monitor.py")
LIMIT_S = 3600.0


@dataclass
class ObservedDocker:
    """The environment `docker`, with a monitor in each container from the deployment until the files are collected."""

    docker: Docker = field(default_factory=Docker)
    samples: dict[str, list[Sample]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """`docker`."""
        return self.docker.name

    @property
    def injection_s(self) -> float:
        """As in Docker."""
        return self.docker.injection_s

    @property
    def step_s(self) -> float:
        """As in Docker."""
        return self.docker.step_s

    def layout(self, brokers: int, controllers: int = 1) -> Layout:
        """As in Docker."""
        return self.docker.layout(brokers, controllers)

    def execute(
        self, layout: Layout, scenario: Callable[[Deployment], Awaitable[Any]], *, seed: int, listener: Listener
    ) -> Any:
        """As in Docker, watched."""

        async def watched(deployment: Deployment) -> Any:
            assert isinstance(deployment, MachineDeployment)
            self._watch(deployment)
            return await scenario(deployment)

        return self.docker.execute(layout, watched, seed=seed, listener=listener)

    def _watch(self, deployment: MachineDeployment) -> None:
        deploy, collect = deployment.deploy, deployment.collect
        monitors: dict[str, asyncio.Task[bytes]] = {}

        async def watched_deploy() -> None:
            await deploy()
            for handle in deployment._handles.values():
                argv = ["python3", "-c", MONITOR.read_text(), handle.service.data, STOP]
                monitors[handle.name] = asyncio.ensure_future(handle.machine.run(argv, timeout_s=LIMIT_S))

        async def watched_collect(directory: Path) -> None:
            for name, monitor in monitors.items():
                handle = deployment._handles[name]
                await handle.thaw()
                await handle.machine.run(["touch", STOP])
                self.samples[name] = _samples(await monitor, handle.began_ns)
            monitors.clear()
            await collect(directory)

        mock.patch.object(deployment, "deploy", watched_deploy).start()
        mock.patch.object(deployment, "collect", watched_collect).start()


def _samples(output: bytes, began_ns: int) -> list[Sample]:
    samples = []
    for line in output.splitlines()[1:]:
        values = json.loads(line)
        values["began_ns"] -= began_ns
        values["ended_ns"] -= began_ns
        samples.append(Sample(**values))
    return samples


def observed(spec: Spec, store: Path) -> tuple[Outcome, Comparison]:
    """Make a run with monitors, and compare. Raises RuntimeError when it could not be carried out."""
    environment = ObservedDocker()
    directory = RunDirectory.create(store, spec.name, spec.seed)
    with mock.patch.object(runner, "environment_named", return_value=environment):
        outcome = runner.run(spec, directory, report=False)
    if outcome.failure:
        raise RuntimeError(outcome.failure)
    lines = [
        json.dumps({"node": node, **{name: getattr(sample, name) for name in Sample.__slots__}})
        for node, samples in environment.samples.items()
        for sample in samples
    ]
    (directory.path / "monitor.jsonl").write_text("\n".join(lines) + "\n")
    return outcome, compare(faults_of(directory.path), environment.samples)


def faults_of(run: Path) -> list[Mapping[str, Any]]:
    """The rows of its table of faults."""
    return list(RunDirectory.open(run).load().faults.to_pylist())


def main(arguments: list[str]) -> int:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(prog="observed_runs")
    parser.add_argument("--seeds", default="1-10", help="first-last")
    parser.add_argument("--time-limit", type=float, default=60.0)
    parser.add_argument("--faults", default="all", help="as of faultline run")
    parser.add_argument("--store", type=Path, default=Path("results/runs"))
    options = parser.parse_args(arguments)
    first, _, last = options.seeds.partition("-")
    console, failed = Console(width=160), False
    table = Table("seed", "faults", "missed", "verdict", "injection s (median, max)", "compared", "disagree")
    for seed in range(int(first), int(last or first) + 1):
        document = {"environment": "docker", "seed": seed, "time_limit": options.time_limit, "recovery_limit": 120}
        spec = parse(document, faults=options.faults)
        try:
            outcome, comparison = observed(spec, options.store)
        except RuntimeError as error:
            console.print(f"seed {seed}: {error}")
            failed = True
            continue
        took = sorted(injection.evidence.get("injection_seconds", 0.0) for injection in outcome.injections)
        for line in comparison.disagreements[:10]:
            console.print(f"seed {seed}: {line}")
        failed = failed or bool(comparison.disagreements)
        table.add_row(
            str(seed),
            str(len(outcome.injections)),
            str(sum(not injection.took_effect for injection in outcome.injections)),
            str(outcome.validity),
            f"{took[len(took) // 2]:.2f}, {took[-1]:.2f}" if took else "",
            ", ".join(f"{kind} {count}" for kind, count in sorted(comparison.compared.items())),
            str(len(comparison.disagreements)),
        )
        console.print(
            f"seed {seed}: {outcome.validity}, {len(comparison.disagreements)} disagreements, {outcome.directory}"
        )
    console.print(table)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
