"""Raft over the metadata log, as in KRaft: the decision machine, its messages, its log and its node."""
