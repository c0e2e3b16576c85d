"""The promises of coordinators of consumer groups, about their logs and about each group."""
