"""Consumer groups: the state machine of a group, and the coordinator of one partition of __consumer_offsets."""
