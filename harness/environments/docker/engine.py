"""The Docker engine: connecting to it, and explaining why that fails.

The address is the Docker SDK's own business (`DOCKER_HOST` or the usual socket). Whatever keeps it from answering
becomes EngineUnreachable, one line that says what to do.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from harness.environments.process_identity import this_process
from harness.errors import EnvironmentUnavailable

RUN_LABEL = "faultline.run"
"""On every container and network made for a run: the run's name. Nothing else carries it."""
OWNER_LABEL = "faultline.owner"
"""Beside it: the process that made it (`harness.environments.process_identity`), so that `faultline clean` spares a
run that is still going.
"""

NOTHING_ANSWERS = "no Docker engine answers"
_ANSWER_LIMIT_S = 30


def run_labels(run: str) -> dict[str, str]:
    """The labels of everything made for this run by this process."""
    return {RUN_LABEL: run, OWNER_LABEL: this_process()}


class EngineUnreachable(EnvironmentUnavailable):
    """No Docker engine answers; `remedy` says what to do about it."""

    def __init__(self, detail: str, remedy: str) -> None:
        super().__init__(f"{detail}: {remedy}")
        self.detail = detail
        self.remedy = remedy


def connect(timeout_s: float = 60) -> Any:
    """A client of the engine, which has answered once. Raises EngineUnreachable."""
    try:
        import docker
    except ImportError:
        raise EngineUnreachable("the Python package docker is not installed", "pip install docker") from None
    try:
        client = docker.from_env(timeout=_ANSWER_LIMIT_S)
        client.ping()
        client.api.timeout = timeout_s
    except Exception as error:  # the SDK lets errors of three libraries through
        raise explained(error) from None
    return client


def explained(error: BaseException) -> EngineUnreachable:
    """The reason why the engine could not be reached, from the exception of the SDK."""
    causes = list(_causes(error))
    if any(isinstance(cause, PermissionError) for cause in causes):
        return EngineUnreachable(
            "the Docker engine's socket may not be opened by this user",
            "run as root, or: usermod -aG docker $USER, and log in again",
        )
    if any(isinstance(cause, FileNotFoundError | ConnectionRefusedError) for cause in causes):
        return EngineUnreachable(
            NOTHING_ANSWERS,
            "start it (systemctl start docker, or dockerd), or install it (on Debian: apt-get install docker.io)",
        )
    if any(isinstance(cause, TimeoutError) or "timed out" in str(cause).lower() for cause in causes):
        return EngineUnreachable(
            f"the Docker engine did not answer within {_ANSWER_LIMIT_S} s", "see its log, or start it again"
        )
    return EngineUnreachable(
        f"the Docker engine cannot be used ({' '.join(str(error).split())})", "see DOCKER_HOST and the engine's log"
    )


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error with all it was raised from or carries in its arguments, each once."""
    seen: set[int] = set()
    waiting: list[object] = [error]
    while waiting:
        here = waiting.pop()
        if isinstance(here, tuple):
            waiting += here
        if not isinstance(here, BaseException) or id(here) in seen:
            continue
        seen.add(id(here))
        yield here
        waiting += [here.__cause__, here.__context__, getattr(here, "reason", None), here.args]
