"""Abstract situations of the replication protocol (docs/situations.md).

facts      the roles, logs and decisions from which a situation is computed
situation  the situation of a partition: its code, its id, and a sentence
replay     the situations of a run, from its protocol trace
"""
