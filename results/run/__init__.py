"""One run on disk: its directory, recorded tables, replica logs."""
