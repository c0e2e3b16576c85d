"""Clients that drive a system and report honestly what became of each operation."""
