"""The promises of the controllers: Raft over the metadata log, and what they decide of brokers."""
