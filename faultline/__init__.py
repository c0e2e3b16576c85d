"""Faultline as a library: run a spec, check a run, read its history into pandas.

    import faultline

    outcome = faultline.run("spec.yaml", seed=7)
    history = faultline.history(outcome.directory)
    verdicts = faultline.check(outcome.directory)

It is the same as the command: the same run directories, the same verdicts. `SpecError` is raised for a spec that cannot
be used and `StoreError` for a directory that cannot be read or written; the message of each is one line.
"""

from checkers.verdict import Finding, Validity, Verdict
from faultline.api import check, history, run
from harness.runner.outcome import Outcome, Progress
from harness.yaml_document import SpecError
from results.errors import StoreError

__all__ = [
    "run",
    "check",
    "history",
    "Outcome",
    "Progress",
    "Verdict",
    "Finding",
    "Validity",
    "SpecError",
    "StoreError",
]
