"""Pure functions from what was recorded to a verdict. No I/O."""
