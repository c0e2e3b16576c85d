"""The incident of a broken promise: its schedule as a script, with what is off, and with everything on."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from typing import Any, Final

import yaml

from harness.search.exploration.promises_of_runs import seen_broken
from harness.search.exploration.scope import Scope
from harness.search.scripted_schedules.step_times import append_s
from harness.search.scripted_schedules.translation import ScriptedSchedule, translated
from harness.search.state_space.breadth_first import Violation

_LAG_AFTER_S: Final = 5.0
"""A replica is removed from the ISR for no other reason than the schedule has: only so long after the end."""
_WAIT_MS: Final = 20
"""Of a fetch at the leader: a request is answered within its step."""
_BACKOFF_MS: Final = 50
"""A request that was lost is sent again within the step in which it may pass."""
_TIMEOUT_MS: Final = 300_000
"""Of a request that is held: longer than any script."""


def incident_text(name: str, scope: Scope, violation: Violation) -> str:
    """The text of the file. Raises Untranslatable."""
    script = translated(scope, violation.steps)
    last = violation.steps[-1]
    seen = seen_broken(last.before, last.after)
    assert seen is not None, "the last step of a schedule as in a run breaks a promise"
    flaw, off = _flaw(scope)
    head: dict[str, Any] = {
        "title": f"{flaw} in the scope {name}",
        "source": "faultline explore",
        "story": _story(violation),
        "seed": 0,
        "time_limit": f"{script.time_limit_s:g}s",
        "brokers": len(scope.brokers),
        "replication_factor": len(scope.brokers),
        "controllers": 1,
        "partitions": 1,
        "acks": 1,
        "settings": _settings(scope, script),
        "clients": _clients(scope, script),
    }
    variants = {
        flaw: {**off, "expect": {"verdict": "invalid", "check": "protocol", "finding": seen.finding}},
        "everything on": {"expect": {"verdict": "valid"}},
    }
    return f"{_yaml(head)}faults:\n{_faults(script, violation)}{_yaml({'variants': variants})}"


def _flaw(scope: Scope) -> tuple[str, Mapping[str, Any]]:
    """What is off, in words, and as fields of a variant."""
    fields: dict[str, Any] = {}
    words = [f"without {' and '.join(scope.without)}"] if scope.without else []
    if scope.without:
        fields["without"] = list(scope.without)
    if scope.protocol != Scope().protocol:
        words.insert(0, f"protocol {scope.protocol}")
        fields["settings"] = {"faultline.protocol": str(scope.protocol)}
    return " ".join(words), fields


def _story(violation: Violation) -> str:
    steps = [f"{number}. {line}" for number, line in enumerate(violation.schedule, 1)]
    return "\n".join([f"Broken: {violation.promise}. The shortest schedule:", *steps, ""])


def _settings(scope: Scope, script: ScriptedSchedule) -> Mapping[str, str]:
    numbers: dict[str, int] = {
        "min.insync.replicas": scope.min_insync_replicas,
        "broker.session.timeout.ms": round(script.session_s * 1000),
        "replica.lag.time.max.ms": round(_lag_s(script) * 1000),
        "replica.socket.timeout.ms": _TIMEOUT_MS,
        "controller.quorum.request.timeout.ms": _TIMEOUT_MS,
        "replica.fetch.wait.max.ms": _WAIT_MS,
        "replica.fetch.backoff.ms": _BACKOFF_MS,
        "replica.fetch.max.bytes": 1,
        "max.incremental.fetch.session.cache.slots": 0,
    }
    return {**scope.topic_config, **{key: str(number) for key, number in numbers.items()}}


def _lag_s(script: ScriptedSchedule) -> float:
    """Leaders look at their followers when half of it is over, counted from the start of their process."""
    return script.time_limit_s + _LAG_AFTER_S if script.tick_s is None else 2 * script.tick_s


def _clients(scope: Scope, script: ScriptedSchedule) -> Mapping[str, Any]:
    idle = dict.fromkeys(("producers", "consumers", "end_offset_readers"), 0)
    timeout = f"{append_s(len(scope.brokers)):g}s"
    return {**idle, "delivery_timeout": timeout, "operations": [dict(it) for it in script.operations]}


def _faults(script: ScriptedSchedule, violation: Violation) -> str:
    """The faults, those of each step below the step in words."""
    steps = [f"{number}. {line}" for number, line in enumerate(violation.schedule, 1)]
    words = ["broker 1 leads; nothing happens but the steps", *steps, "nothing is stopped any more"]
    text: list[str] = []
    for step, lines in groupby(script.lines, key=lambda it: it.step):
        text.append(f"  # {words[step]}\n")
        for line in lines:
            flow = yaml.safe_dump(dict(line.fault), default_flow_style=True, sort_keys=False, width=1 << 20)
            text.append(f"  - {flow}")
    return "".join(text)


def _yaml(values: Mapping[str, Any]) -> str:
    return yaml.dump(dict(values), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


class _Dumper(yaml.SafeDumper):
    """Texts of several lines as blocks."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)
