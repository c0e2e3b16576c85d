"""What coordinators of consumer groups promise, about their logs and about each group."""
