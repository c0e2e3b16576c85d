"""Property tests of a cluster, to copy: pytest examples/test_my_cluster.py

Each example is one simulated run; `EXAMPLES=100 pytest …` makes more of them. Set the fields that are yours (settings,
acks, the number of brokers), and let the rest be drawn. A failure ends with the path of an incident file: the smallest
run that fails.
"""

import os

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from faultline.testing import Schedule, Spec, assert_holds, schedules, specs, with_faults

RUNS = settings(
    max_examples=int(os.environ.get("EXAMPLES", "2")), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)

MINE = Spec(
    name="my-cluster",
    time_limit_s=6,
    brokers=3,
    controllers=1,
    partitions=1,
    settings={"min.insync.replicas": "2", "replica.lag.time.max.ms": "2000"},
)


@RUNS
@given(specs(name="any-cluster", time_limit=6, acks="all"))
def test_any_cluster_keeps_its_promises(spec: Spec) -> None:
    assert_holds(spec)


@RUNS
@given(schedules(MINE, most=4), st.integers(0, 1000))
def test_my_cluster_keeps_its_promises(faults: Schedule, seed: int) -> None:
    assert_holds(with_faults(MINE, faults, seed=seed))
