"""Fault injection: faults as values, their schedules and their targets."""
