"""The command line `faultline`: one module for each group of commands.

Each module has `add`, which adds its commands to the parser of `harness.cli.main`, and one function for each command,
from the options to the exit code (`harness.cli.usage`). The packages that do the work are imported when a command runs.
"""
