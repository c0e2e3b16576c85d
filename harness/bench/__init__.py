"""Rates: how fast the simulation runs and how soon it finds a broker out, how fast histories are checked, one alone and
many stored ones on Spark, how fast the broker takes records, and what the lossy file system costs.

Rates depend on the machine, so what can be compared is printed side by side: simulated time against CPU time, time to
bug against a model checker's, checking against the size of the history, the broker against Kafka, appends to a disk
that forgets against appends to one that does not. Rates of the simulation are the best of a few rounds: other work on
the machine can only make a round slower.
"""
