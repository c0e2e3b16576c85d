"""Checkers of what clients are promised: order and ids of producers, positions of consumers, visible records."""
