"""The ground that a node stands on: files, the server, the trace file, fatal errors, waiting."""
