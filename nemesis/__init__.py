"""What goes wrong: faults as values, when they happen and to whom."""
