"""Property tests of a cluster with Hypothesis: random worlds, random faults, and failures that shrink to a small file.

    from hypothesis import given, settings
    from faultline.testing import assert_holds, specs

    @settings(max_examples=20, deadline=None)
    @given(specs(time_limit=10))
    def test_my_cluster_keeps_its_promises(spec):
        assert_holds(spec)

Hypothesis draws specs, makes a failing one smaller (fewer faults, earlier and shorter ones, fewer nodes, one-record
batches), and shows the smallest. `assert_holds` writes that one as an incident, the file that
`faultline incident run FILE` takes. A run is a deterministic simulation, so a failure comes back every time.

Needs the package hypothesis (`pip install faultline[testing]`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from hypothesis import currently_in_test_context, reject
from hypothesis import strategies as st

from checkers.verdict import Validity
from faultline.api import check_no_event_loop
from harness.incidents.recording import incident_of
from harness.runner import run as runner
from harness.runner.outcome import Outcome
from harness.spec import Spec, parse
from nemesis import strategies
from nemesis.cluster_shape import ClusterShape
from nemesis.schedule import Schedule
from results.atomic_files import put_text
from results.errors import StoreError
from results.headline import headline
from results.run.directory import RunDirectory
from results.run.temporary_directory import temporary_directory

__all__ = ["specs", "schedules", "with_faults", "assert_holds", "Undecided", "Schedule", "Spec"]

_FAULTS_SHARE: Final = 0.8
"""Share of the workload in which faults are injected, so that clients see what they leave behind."""
_SEEDS: Final = 1 << 16


class Undecided(RuntimeError):
    """A run that proves nothing: it could not be carried out, or a check could not decide. The message says why."""


@st.composite
def specs(draw: st.DrawFn, /, *, most: int = 8, **fields: Any) -> Spec:
    """Specs for the simulation: a world, up to `most` faults and a seed; `fields` are those of a spec, and stay.

    `settings` and `clients` among the fields are merged with what is drawn. With `faults` among them no faults are
    drawn.
    """
    world = draw(strategies.worlds())
    for name, value in fields.items():
        merged = isinstance(value, Mapping) and isinstance(world.get(name), Mapping)
        world[name] = {**world[name], **value} if merged else value
    spec = parse({"name": "property", "time_limit": 10, "faults": "none", **world})
    seed = spec.seed if "seed" in fields else draw(st.integers(0, _SEEDS))
    if "faults" in fields:
        return replace(spec, seed=seed)
    return with_faults(spec, draw(schedules(spec, most=most)), seed=seed)


def schedules(spec: Spec, *, most: int = 8) -> st.SearchStrategy[Schedule]:
    """Schedules of up to `most` faults for the cluster of a spec, within what the protocol promises to withstand."""
    cluster = ClusterShape(
        brokers=spec.broker_names,
        controllers=spec.controller_names,
        partitions=spec.partitions,
        min_insync_replicas=min(spec.min_insync_replicas, spec.replication_factor),
    )
    return strategies.schedules(cluster, _FAULTS_SHARE * spec.time_limit_s, most)


def with_faults(spec: Spec, schedule: Schedule, *, seed: int = 0) -> Spec:
    """The spec with these faults and this seed in place of its own."""
    return replace(spec, families=(), script=schedule, seed=seed)


def assert_holds(spec: Spec, *, directory: str | Path = "incidents") -> Outcome:
    """Run a spec and raise AssertionError when a promise is broken, with the path of an incident that shows it.

    The incident is written to `directory`, below the name of the spec; the smallest one that Hypothesis finds comes
    last, and stays. A run that cannot decide (no fault had an effect) is no evidence: Hypothesis draws another one, and
    outside of a property test it is an error. Where the incident cannot be written the message says so. Raises
    Undecided, and RuntimeError in a coroutine, as `faultline.run` does.
    """
    check_no_event_loop("assert_holds")
    with temporary_directory("property") as store:
        run_directory = RunDirectory.create(store, spec.name, spec.seed)
        outcome = runner.run(spec, run_directory, report=False)
        if outcome.failure:
            raise Undecided(outcome.failure)
        if outcome.validity is Validity.UNKNOWN:
            if currently_in_test_context():
                reject()
            raise Undecided(headline(outcome.verdicts, spec.check_settings()))
        if outcome.validity is Validity.INVALID:
            path = Path(directory) / f"{spec.name}.yaml"
            try:
                put_text(path, incident_of(run_directory), parents=True)
            except StoreError as error:
                raise AssertionError(_message(outcome, [f"without an incident: {error}"])) from error
            raise AssertionError(_message(outcome, [f"the incident: {path}", f"again: faultline incident run {path}"]))
        return replace(outcome, directory=None)


def _message(outcome: Outcome, incident: Sequence[str]) -> str:
    failed = [verdict for verdict in outcome.verdicts if verdict.validity is Validity.INVALID]
    findings = [finding for verdict in failed for finding in verdict.findings[:1]]
    lines = [line for finding in findings for line in (f"{finding.kind}:", *(f"    {each}" for each in finding.lines))]
    return "\n".join(
        [
            f"{', '.join(verdict.checker for verdict in failed)}: a promise was broken",
            *lines,
            *incident,
        ]
    )
