"""Makes a failing run smaller: few faults and clients, a small cluster, a short time, and still the same failure."""
