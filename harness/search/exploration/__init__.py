"""Exhaustive exploration of the replication protocol in small scopes (docs/exploration.md).

scope            the bounds of an exploration, read from YAML
cluster_values   the state of a broker and of the controller, as plain values
memory_log       the log of a replica in memory
replica_steps    one event of a broker, carried out by the shipped `Replica`
normal_form      one state for all those of a broker that differ in nothing that decides anything
isr_exchanges    an ISR change and its answer, as messages of their own
restart_steps    the end of a broker's process, and its next incarnation
controller_steps one event of the controller, carried out by the shipped `Controller`
symmetry         states that differ only by the names of the brokers
promises         the promises that every state and every step must keep
promises_of_runs those of which the checks of a run see that a step breaks them
machine_steps    the steps of one machine, remembered for each of its states
cluster_model    the states of the whole cluster, and the steps between them
breadth_first    the exploration of a scope
situations       the situation of a state, as the trace of a run shows it
schedules        the steps of a schedule in words
"""
