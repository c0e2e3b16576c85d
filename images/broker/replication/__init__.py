"""Replication of a partition: leader, follower, truncation, fetching, and the replicas of one broker."""
