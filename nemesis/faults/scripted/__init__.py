"""Scripted faults: sequences of steps that bring about one situation of the protocol."""
