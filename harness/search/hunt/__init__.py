"""Guided search: runs that reach protocol situations which no run before has reached.

features       what is seen in a run, and by which it is new
operators      each makes a new spec out of one or two that a corpus has
traits         what the traits of a spec say about how much its run will show
held_messages  schedules whose faults hold messages back until what these speak of has changed
fresh_specs    specs without a parent, some of them drawn towards traits that have shown much
corpus         the runs that showed something new, and how often each feature was seen
candidates     the specs of a round, drawn from the corpus
folder         the corpus on disk
hunt           the rounds, as a suite on Spark
"""
