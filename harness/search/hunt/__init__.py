"""Guided search: runs that reach protocol situations which no run before has reached.

operators   each makes a new spec out of one or two that a corpus has
corpus      the runs that showed something new, and how often each situation was seen
candidates  the specs of a round, drawn from the corpus
folder      the corpus on disk
hunt        the rounds, as a suite on Spark
"""
