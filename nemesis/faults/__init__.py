"""Faults, one family in each module."""
