"""Node images: `recipes` says what they are made from, `building` whether they are up to date, and makes them.

`debian` puts the operating system together where no registry has it; `wheels` fetches the Python packages of a node,
also for nodes that are hosts and have no image.
"""
