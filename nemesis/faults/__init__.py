"""Faults, one family in each module or package."""
