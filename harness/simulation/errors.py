"""Errors of a simulation itself, as opposed to errors in it."""

from __future__ import annotations


class SimulationError(Exception):
    """The simulated run cannot go on."""


class RealWorldError(SimulationError):
    """Code in the simulation reached for something real: a thread, a socket, a clock, unseeded randomness.

    The message names the call and what to use instead.
    """

    def __init__(self, call: str, instead: str = "") -> None:
        self.call = call
        super().__init__(f"{call} is not available in simulation" + (f": use {instead}" if instead else ""))


class Deadlock(SimulationError):
    """Nothing is scheduled or on its way, but the run has not finished.

    The message names the tasks that wait, and where.
    """


class OutOfTime(SimulationError):
    """The virtual time allowed for the run has passed. The message names the tasks that wait, and where."""
