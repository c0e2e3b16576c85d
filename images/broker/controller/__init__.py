"""The controller: one decision machine over the metadata, its requests, and the channel to it."""
