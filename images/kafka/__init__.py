"""Apache Kafka (KRaft) as a system under test, one release at a time.

`system` answers what the harness asks of it; `__main__` is a node on its machine.
"""
