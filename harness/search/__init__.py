"""Searches for broken promises of the prototype broker beyond random runs."""
