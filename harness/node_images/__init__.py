"""Node images: `recipes` has their inputs, `building` finds out whether they are up to date and builds them.

`debian` puts the operating system together where no registry has it; `wheels` fetches the Python packages of a node,
also for nodes that are hosts and have no image.
"""
