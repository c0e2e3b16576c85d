"""Raft over the metadata log, as in KRaft: state machine, messages, log and node."""
