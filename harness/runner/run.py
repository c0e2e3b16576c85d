"""One run, from a spec to a verdict; the same coroutine for every environment.

    deploy → ready → clients and faults together → heal → recover → final reads → final appends → collect
    seal → check → report

The first line is what happens in the environment; the second follows in this process.

*Ready*: every broker shows all brokers unfenced; then the workload makes its topic and every replica is in sync. A
cluster that does not become ready without any fault ends the run: it could not be carried out, or, in the simulation,
it ends with what was missing recorded for the liveness checker (`harness.runner.getting_ready`). This is known at once
when a process has ended by itself, else when the cluster has come no nearer to it for the ready limit. The files of the
nodes are collected all the same. *Recovery* begins when the last fault has been healed, however long that took, while
clients may still wait for their last responses; if the cluster is not ready after the recovery limit, the reasons are
recorded for the liveness checker, and the final reads are tried all the same. A cluster that was ready, and read back,
must take appends on every partition again, unless its settings or its script keep it from that.

Everything is recorded as it happens, so a run killed at any moment leaves a directory that can be checked up to that
moment, unless the directory holds its tables in memory, as in a suite. A display is called once a second of the run's
time and cannot change the run: the tick is always there.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from traceback import format_exception
from typing import Any

from harness.client_spec import NATIVE
from harness.cluster.readiness import Expected, ReadinessProbe
from harness.cluster.systems import configured
from harness.drawn_spec import with_drawn_world
from harness.environments.base import Deployment, Listener
from harness.environments.mistakes import applied
from harness.environments.registry import environment_named
from harness.errors import EnvironmentUnavailable
from harness.runner.checking import check_and_save, explain_and_save
from harness.runner.client_processes import programs as client_programs
from harness.runner.client_processes.driven_clients import DrivenLibrary
from harness.runner.getting_ready import NotCarriedOut, get_ready
from harness.runner.observation import MetadataSource, TraceSource, WholenessSource
from harness.runner.outcome import Outcome, Progress, ProgressListener
from harness.runner.script import perform_script
from harness.runner.topic_names import TopicNames
from harness.runner.workload_settings import workload_settings
from harness.simulation.guard import outside_of_any_world
from harness.spec import TOPIC, Spec
from images.trace import TraceEvent
from nemesis.nemesis import Injection, Nemesis
from nemesis.ports import SIDE_TOPICS, EnvironmentCapability
from nemesis.situation import Situation
from nemesis.timeline import Timeline
from results.atomic_files import put_text
from results.errors import StoreError
from results.run.directory import RunDirectory
from results.run.temporary_directory import temporary_directory
from workloads.history import Recorder
from workloads.registry import WORKLOADS
from workloads.workload import SetUpError, Workload, WorkloadSettings

_TICK_S = 1.0


def run(
    spec: Spec, directory: RunDirectory, *, on_progress: ProgressListener | None = None, report: bool = True
) -> Outcome:
    """Carry `spec` out, its world drawn if it varies, record everything in `directory`, and check it.

    Failing to carry it out is an Outcome, too. Raises StoreError when the directory cannot be written, and
    KeyboardInterrupt, after noting it in the run's status.
    """
    spec = with_drawn_world(spec)
    try:
        directory.write_spec(spec.to_yaml())
        directory.write_settings(spec.check_settings())
        directory.write_versions()
        session = RunSession(spec, directory, on_progress)
        outcome = session.carry_out()
        if outcome.failure:
            directory.write_status("failed", stage=session.stage, message=outcome.failure)
            return outcome
        try:
            return _conclude(outcome, directory, session, report)
        except StoreError:
            raise
        except Exception as error:
            failure = session.failure_of(error)
            directory.write_status("failed", stage=session.stage, message=failure)
            return replace(outcome, failure=failure)
    except KeyboardInterrupt:
        directory.write_status("interrupted", stage=directory.status().stage, message="interrupted")
        raise
    finally:
        directory.close()


def run_in_simulation(spec: Spec, directory: Path | None = None) -> Outcome:
    """Carry `spec` out in the simulation, without a report and without a display.

    The run directory is deleted unless `directory`, a store, is given. For tests and benchmarks.
    """
    if directory is not None:
        return run(spec, RunDirectory.create(directory, spec.name, spec.seed), report=False)
    with temporary_directory("run") as store:
        return run(spec, RunDirectory.create(store, spec.name, spec.seed, in_memory=True), report=False)


def _conclude(outcome: Outcome, directory: RunDirectory, session: RunSession, report: bool) -> Outcome:
    session.enter("checking")
    evidence = directory.seal()
    verdicts = check_and_save(evidence, directory)
    directory.write_status(
        "finished",
        message="",
        cpu_seconds=round(outcome.cpu_seconds, 3),
        time_s=outcome.time_s,
        scheduler_steps=outcome.trail[-1][0] if outcome.trail else 0,
    )
    outcome = replace(outcome, verdicts=tuple(verdicts), directory=directory.path)
    try:
        outcome = replace(outcome, stories=explain_and_save(verdicts, evidence, directory))
    except Exception as error:  # the verdict stands without its explanation
        outcome = replace(outcome, unreported=session.failure_of(error))
    if not report:
        return outcome
    from results.pages.report import write_report

    session.enter("reporting")
    directory.write_status("finished")
    try:
        return replace(outcome, report=write_report(directory, evidence))
    except Exception as error:  # the verdict stands without its page
        return replace(outcome, unreported=session.failure_of(error))


class RunSession:
    """Carries one spec out once."""

    def __init__(self, spec: Spec, directory: RunDirectory, on_progress: ProgressListener | None) -> None:
        self.stage = ""
        self._spec = spec
        self._script_topics = frozenset(spec.script_topics)
        self._topic_names = TopicNames(SIDE_TOPICS)
        self._directory = directory
        self._on_progress = on_progress
        self._deployment: Deployment | None = None
        self._recorder: Recorder | None = None
        self._nemesis: Nemesis | None = None
        self._injection_s = self._step_s = 0.0
        self._situation = Situation()
        self._trace_sources: list[TraceSource | WholenessSource] = []
        self._recovery: dict[str, Any] = {}
        self._scripted: list[dict[str, Any]] = []
        self._client_command: tuple[str, ...] = ()

    def carry_out(self) -> Outcome:
        """Run everything that happens inside the environment."""
        spec = self._spec
        listener = Listener(on_trace=self._take_trace, on_log=lambda node, line: None)
        failure, refused = "", False
        began = time.process_time()
        try:
            if spec.clients.library != NATIVE:
                self._client_command = client_programs.command(spec.clients.library, spec.deployed_system)
            environment = environment_named(spec.environment, spec.hosts)
            self._injection_s, self._step_s = environment.injection_s, environment.step_s
            layout = configured(
                spec.deployed_system,
                environment.layout(spec.brokers, spec.controllers),
                spec.settings,
                spec.system_rules_off,
                spec.node_settings,
            )
            with applied(spec.mistakes):
                environment.execute(layout, self._scenario, seed=spec.seed, listener=listener)
        except (NotCarriedOut, SetUpError, EnvironmentUnavailable) as error:
            failure = str(error)
            refused = isinstance(error, EnvironmentUnavailable) and self._nothing_was_deployed()
        except StoreError:
            raise
        except Exception as error:
            failure = self.failure_of(error)
        finally:
            if self._recorder is not None:
                self._recorder.close()
        cpu_seconds = time.process_time() - began
        deployment, recorder = self._deployment, self._recorder
        if deployment is None:
            return Outcome(
                spec, directory=self._directory.path, failure=failure, refused=refused, cpu_seconds=cpu_seconds
            )
        trail = tuple((point.step, point.time_ns, point.digest) for point in deployment.trail)
        self._directory.write_digest(deployment.digest(), trail)
        return Outcome(
            spec,
            digest=deployment.digest(),
            trail=trail,
            injections=tuple(self._nemesis.injections) if self._nemesis is not None else (),
            recovery=self._recovery,
            operations=_counts(recorder) if recorder is not None else {},
            scripted=tuple(self._scripted),
            directory=self._directory.path,
            failure=failure,
            refused=refused,
            cpu_seconds=cpu_seconds,
            time_s=deployment.now_ns() / 1e9,
        )

    def failure_of(self, error: Exception) -> str:
        """The line for an error of the harness or the workload, never a verdict; its traceback is saved in the run. An
        error of the disk says it all."""
        if isinstance(error, StoreError):
            return str(error)
        with suppress(StoreError):
            put_text(self._directory.path / "error.txt", "".join(format_exception(error)))
        return f"{type(error).__name__} while {self.stage or 'starting'}: {' '.join(str(error).split())}"

    def _nothing_was_deployed(self) -> bool:
        """Whether the environment refused the run before any node left a file."""
        nodes = self._directory.nodes_path
        return self.stage in ("", "deploying") and not (nodes.is_dir() and any(nodes.iterdir()))

    def enter(self, stage: str) -> None:
        """Begin a stage: record it on disk, since the run may be killed in it, and report progress."""
        self.stage = stage
        self._directory.write_status("running", stage=stage)
        self._report_progress()

    # ---- the one coroutine -------------------------------------------------------------------------------------------

    async def _scenario(self, deployment: Deployment) -> None:
        spec, loop = self._spec, asyncio.get_running_loop()
        self._deployment = deployment
        metadata_source = self._situation_source(deployment)
        recorder = self._recorder = self._directory.recorder(deployment.now_ns, self._acknowledged)
        ticking = loop.create_task(self._tick())
        settings = workload_settings(spec, deployment)
        library = self._library(settings, deployment)
        workload = WORKLOADS[spec.workload](settings, recorder, deployment.stream, library)
        readiness = ReadinessProbe(_addresses(deployment), Expected(TOPIC, spec.partitions, spec.replication_factor))
        collected = False
        try:
            self.enter("deploying")
            self._directory.write_status("running", stage=self.stage, **deployment.facts)
            await deployment.deploy()
            nemesis = self._nemesis = self._make_nemesis(deployment)
            self.enter("getting ready")
            missing = await get_ready(spec, deployment, workload.set_up, readiness)
            if missing:
                self._recovery = {
                    "ready": False,
                    "limit_seconds": spec.ready_limit_s,
                    "seconds": deployment.now_ns() / 1e9,
                    "waiting_for": list(missing),
                }
            else:
                await self._run_and_recover(deployment, workload, nemesis, readiness, metadata_source)
            self._recovery["recorded"] = {
                "history": recorder.recorded,
                "trace": self._directory.events_traced,
                "faults": self._directory.faults_recorded,
            }
            self._recovery["requests"] = [asdict(request) for request in deployment.admin.requests]
            self._recovery["dry_runs"] = [asdict(request) for request in deployment.admin.dry_runs]
            told = deployment.admin.told_reassignments
            self._recovery["told_reassignments"] = [asdict(answer) for answer in told]
            self._recovery["crashes"] = [asdict(crash) for crash in deployment.crashes]
            self._recovery["vanished"] = [asdict(node) for node in deployment.vanished]
            self._recovery["collecting_seconds"] = deployment.now_ns() / 1e9
            self._directory.write_recovery(self._recovery)

            self.enter("collecting")
            await workload.close()
            ticking.cancel()
            collected = True
            await self._collect(deployment)
            if len(deployment.vanished) > len(self._recovery["vanished"]):
                self._recovery["vanished"] = [asdict(node) for node in deployment.vanished]
                self._directory.write_recovery(self._recovery)
        finally:
            ticking.cancel()
            readiness.close()
            await workload.close()
            if not collected:
                await self._collect_after_failure(deployment)
            await deployment.close()

    async def _run_and_recover(
        self,
        deployment: Deployment,
        workload: Workload,
        nemesis: Nemesis,
        readiness: ReadinessProbe,
        metadata_source: MetadataSource | None,
    ) -> None:
        """Drive clients and faults together, wait for the recovery, and read everything back."""
        spec, loop = self._spec, asyncio.get_running_loop()
        self.enter("running")
        if metadata_source is not None:
            await metadata_source.poll()
        until_s = loop.time() + spec.time_limit_s
        timeline = Timeline(self._situation, loop.time(), until_s)

        async def break_and_recover() -> None:
            await nemesis.run(until_s)
            healed_s = loop.time()
            self.enter("recovering")
            confirming = loop.create_task(nemesis.keep_confirmed())
            try:
                missing = await readiness.until_ready(healed_s + spec.recovery_limit_s, spec.steady_s)
            finally:
                confirming.cancel()
                await asyncio.wait({confirming})  # it may be starting a node, which it does to the end
            ready_s = readiness.ready_since_s if readiness.ready_since_s is not None else loop.time()
            self._recovery = {
                "recovered": not missing,
                "seconds": round(ready_s - healed_s, 3),
                "limit_seconds": spec.recovery_limit_s,
                "healing_seconds": round(healed_s - until_s, 3),
                "unhealed": list(nemesis.unhealed),
                "waiting_for": list(missing),
            }

        async def perform() -> None:
            self._scripted = await perform_script(spec.operations, workload, timeline, until_s)
            self._directory.write_script(self._scripted)

        together = [workload.run(until_s), break_and_recover()]
        if spec.operations:
            together.append(perform())
        polling = loop.create_task(metadata_source.run()) if metadata_source is not None else None
        try:
            await asyncio.gather(*together)
        finally:
            if polling is not None:
                polling.cancel()

        self.enter("final reads")
        read = self._recovery["final_reads"] = await workload.final_reads(loop.time() + spec.recovery_limit_s)
        if read and self._recovery["recovered"] and not self._recovery["unhealed"]:
            if _takes_appends(spec):
                self._recovery["final_appends_seconds"] = deployment.now_ns() / 1e9
                refused = await workload.final_appends(loop.time() + spec.recovery_limit_s)
                self._recovery["refused_appends"] = list(refused)
            # A follower that has been silent for long may leave the ISR only once something is read or appended.
            left = await readiness.until_ready(loop.time() + spec.recovery_limit_s)
            self._recovery["left_again"] = list(left)

    async def _collect(self, deployment: Deployment, *, keep_part: bool = False) -> None:
        """Collect the files of the nodes, in memory if the directory holds what it can there."""
        files = deployment.held_files() if self._directory.is_held else None
        if files is not None:
            self._directory.hold_files(files)
            return
        with self._directory.collecting(keep_part=keep_part) as nodes:
            await deployment.collect(nodes)

    async def _collect_after_failure(self, deployment: Deployment) -> None:
        """Collect the files of the nodes; an error here must not hide the failure before."""
        try:
            await self._collect(deployment, keep_part=True)
        except Exception as error:
            (self._directory.path / "not-collected.txt").write_text(f"{error}\n", encoding="utf-8")

    def _make_nemesis(self, deployment: Deployment) -> Nemesis:
        spec = self._spec
        schedule = spec.schedule(
            deployment.brokers,
            deployment.controllers,
            deployment.stream("schedule"),
            deployment.unsupported,
            self._injection_s,
        )
        unmet = schedule.unmet(deployment.unsupported)
        if unmet:
            raise NotCarriedOut(unmet)
        # The same run as a spec with its faults as a script, to be read, edited or made smaller.
        text = replace(spec.with_script(schedule), drawn={}).to_yaml()
        put_text(self._directory.path / "schedule.yaml", text)
        return Nemesis(
            deployment,
            schedule,
            deployment.stream("nemesis"),
            self._record_fault,
            topic=TOPIC,
            min_isr=spec.min_insync_replicas,
            situation=self._situation,
            step_s=self._step_s,
            replication_factor=spec.replication_factor,
        )

    def _library(self, settings: WorkloadSettings, deployment: Deployment) -> DrivenLibrary | None:
        """The library of the clients, unless they are native ones."""
        clients = self._spec.clients
        if clients.library == NATIVE:
            return None
        return DrivenLibrary(clients.library, self._client_command, settings, deployment.stream, clients.processes)

    def _situation_source(self, deployment: Deployment) -> MetadataSource | None:
        """Make the sources that keep the situation up to date: the trace, where it comes at once, else metadata if
        anything waits for it; gives back the latter, which is to be polled."""
        if EnvironmentCapability.LIVE_TRACE in deployment.unsupported:
            return MetadataSource(self._situation, deployment, TOPIC) if self._spec.conditional else None
        names = {node.node_id: node.name for node in deployment.layout.nodes}
        self._trace_sources.append(WholenessSource(self._situation.wholeness, names, TOPIC))
        self._trace_sources.append(TraceSource(self._situation, names, TOPIC))
        return None

    def _take_trace(self, time_ns: int, node: str, traced: TraceEvent) -> None:
        event = self._topic_names.named(traced)
        if event is None or event.topic in self._script_topics:
            return
        self._directory.append_trace(time_ns, node, event)
        for source in self._trace_sources:
            source.take(node, event)

    def _acknowledged(self, partition: int) -> None:
        counts = self._situation.acknowledged
        counts[partition] = counts.get(partition, 0) + 1
        self._situation.changed()

    def _record_fault(self, injection: Injection) -> None:
        values = {name: getattr(injection, name) for name in Injection.__slots__}
        self._directory.append_fault(values.pop("number"), bit=values.pop("took_effect"), **values)
        self._report_progress()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            self._report_progress()

    def _report_progress(self) -> None:
        if self._on_progress is None:
            return
        recorder, deployment = self._recorder, self._deployment
        progress = Progress(
            stage=self.stage,
            time_s=deployment.now_ns() / 1e9 if deployment is not None else 0.0,
            operations=_counts(recorder) if recorder is not None else {},
            open_appends=recorder.open_appends if recorder is not None else 0,
            faults=self._nemesis.active if self._nemesis is not None else (),
        )
        with outside_of_any_world():  # a display looks at the real clock
            self._on_progress(progress)


def _addresses(deployment: Deployment) -> dict[str, tuple[str, int]]:
    return {node.name: (node.host, node.port) for node in deployment.layout.brokers}


def _takes_appends(spec: Spec) -> bool:
    """Whether every partition of a ready cluster takes appends with acks=all, by its settings, and no script changes
    these, or says what clients append."""
    all_settings = (spec.settings, *spec.node_settings.values())
    minima = [int(settings.get("min.insync.replicas", 1)) for settings in all_settings]
    return max(minima) <= spec.replication_factor and not spec.script.configured and not spec.operations


def _counts(recorder: Recorder) -> dict[tuple[str, str], int]:
    return {
        (kind, outcome): recorder.count(kind, outcome)
        for kind in ("append", "poll", "end_offset")
        for outcome in ("ok", "fail", "info")
    }
