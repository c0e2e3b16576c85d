"""Hosts as machines: the environment ssh."""
