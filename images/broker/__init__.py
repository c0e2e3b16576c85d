"""The prototype broker: Kafka's wire protocol and Kafka's replication protocol, in Python.

It touches the outside through three doors only (`doors.py`): the running event loop, a `Files` port and a
seeded `Random`. That is what lets the same code run in a container and in a deterministic simulation.
"""
