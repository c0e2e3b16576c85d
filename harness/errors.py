"""Errors of the machine that runs Faultline, as opposed to errors of a run."""

from __future__ import annotations


class EnvironmentUnavailable(Exception):
    """An environment cannot be used on this machine; the message says in one line what is missing."""
