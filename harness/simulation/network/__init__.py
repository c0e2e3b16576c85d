"""The simulated network: links, TCP connections, listening ports."""
