"""The checker of the replication protocol's promises, against the protocol trace."""
