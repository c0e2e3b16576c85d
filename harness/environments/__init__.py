"""Where a cluster lives: the embedded simulation, containers, hosts."""
