"""Consumer groups: the decision machine of a group and the coordinator's part of __consumer_offsets."""
