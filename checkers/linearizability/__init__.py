"""Linearizability of one partition: the checker, the placement that it is based on, and the oracle that tests it."""
