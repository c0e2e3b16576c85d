"""The promises of the replication protocol, checked against the protocol trace."""
