"""The deterministic world: virtual time, a simulated network, simulated disks and clocks. One seed is one schedule."""
