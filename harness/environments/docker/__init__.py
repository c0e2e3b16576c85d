"""Containers as machines: the environment docker."""
