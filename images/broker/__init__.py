"""The prototype broker: Kafka's wire protocol and Kafka's replication protocol, in Python.

It reaches the outside through the node ports only (`ports.py`): the running event loop, a `Files` port and a seeded
`Random`. The same code therefore runs in a container and in a deterministic simulation.
"""
