"""Anomalies injected into the evidence of recorded runs: each must be found by its checker.

`catalogue` lists them; an anomaly is a function that edits the tables of one recorded run at a random place among
overlapping operations. `tests/checkers/test_anomalies.py` plays a few runs of each. The whole campaign, and the search
for false alarms among unmodified runs, are commands:

    python -m tests.checkers.anomalies --runs 50           # every anomaly in 50 runs of its own
    python -m tests.checkers.anomalies --unmodified 2000   # no checker may say `invalid`
"""
