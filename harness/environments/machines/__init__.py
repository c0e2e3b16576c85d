"""Nodes on machines, containers and hosts alike, through the node agent."""
