"""The cluster of a run: systems, hosts, administration, leadership, a loopback cluster."""
