"""Liveness after the faults, and why a replica is not back."""
