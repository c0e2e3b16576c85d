"""Breadth-first search of all states of a model, and the shortest schedules in it (docs/exploration.md).

explored_model     what a model offers to the search
interning          numbers for values, and remembered results
canonical          one state for all those that differ only by the names of the machines
shard              the states that belong to one process
shortest_schedules the shortest way to a state, in words
breadth_first      the search, in several processes
"""
