"""Linearizability of one partition: the checker, the placement it rests on, and the oracle it is tested against."""
