"""The runner, and the only room that knows all the others."""
