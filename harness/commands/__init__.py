"""What can be said on the command line, a module a group of commands, and what is done about it.

Each module has `add`, which adds its commands to the parser of `harness.cli`, and a function a command, from the
options to the exit code (`harness.usage`). The work is done in the rooms that it calls; they are imported when a
command is carried out, so that `faultline rules` does not wait for Arrow.
"""
