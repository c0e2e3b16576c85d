"""One run: carried out, brought back, and its outcome."""
