"""The controller: state machine over the metadata, its requests, and the channel brokers use to reach it."""
