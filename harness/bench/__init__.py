"""Performance: of the simulation, of finding known bugs, of checking one history and many stored ones on Spark, of
the broker, and of the lossy file system.

Rates depend on the machine, so comparable figures are printed side by side: simulated time against CPU time, time to
bug against a model checker's, checking against the size of the history, the broker against Kafka, appends to a disk
that forgets against appends to one that does not. Rates of the simulation are the best of a few rounds: other work on
the machine can only make a round slower.
"""
