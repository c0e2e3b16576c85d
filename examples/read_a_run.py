"""Run a spec, read its history into pandas, and check it again: python examples/read_a_run.py [SPEC.yaml]"""

import sys
from pathlib import Path

import faultline

spec = sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent / "specs" / "isolated-leader.yaml"
outcome = faultline.run(spec)
if outcome.failure or outcome.directory is None:
    sys.exit(f"not carried out: {outcome.failure}")

history = faultline.history(outcome.directory)
history["latency_ms"] = (history["completed_ns"] - history["invoked_ns"]) / 1e6
print(history.groupby(["kind", "outcome"])["latency_ms"].describe(percentiles=[0.5, 0.99]).round(1))

for verdict in faultline.check(outcome.directory):
    print(f"{verdict.checker:<16} {verdict.validity}")
print(f"{outcome.validity}: {outcome.report}")
sys.exit(outcome.exit_code)
