"""Consumer groups: their members, and the offsets that they commit."""
