"""What clients do to the system under test, and the history of what they saw."""
