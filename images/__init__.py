"""Systems under test: one folder for each, and the layers that all of them share."""
