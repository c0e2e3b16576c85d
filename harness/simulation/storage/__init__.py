"""Simulated disks: inodes, files as a process sees them, crash points."""
