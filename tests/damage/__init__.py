"""Ways of damage to a run directory, and changes that are none, with the runs they are applied to."""
