"""Exhaustive exploration of the controllers' quorum in small scopes (docs/exploration.md).

scope               the bounds of an exploration
scope_file          reads them from YAML
quorum_values       the state of a controller and of the messages in flight, as plain values
memory_metadata_log the metadata log of a controller in memory
durability          what a power loss takes, asked of the shipped log
explored_node       the shipped `RaftNode` without a network, a clock and files
voter_steps         one event of a controller, carried out by it
symmetry            states that differ only by the names of the controllers
promises            the promises that every state must keep
quorum_model        the states of all controllers, and the steps between them
schedules           the steps of a schedule in words
breadth_first       the exploration of a scope
"""
