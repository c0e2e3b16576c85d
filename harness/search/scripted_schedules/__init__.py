"""The shortest schedule to a broken promise, as an incident that the simulation plays (docs/exploration.md).

message_gates    the requests of a broker that pass, one by one, as faults of a script
step_times       the moment of each step
translation      the steps of a schedule, as faults and operations of a script
incident_text    the incident, with its two variants
"""
