"""The log of one replica: segments, leader epochs, producer state, retention and checkpoints."""
