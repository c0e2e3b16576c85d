"""Workloads: clients of the system under test, and the history of their operations."""
