"""`python -m harness`: the command `faultline`."""

from harness.cli.script import script

script()
