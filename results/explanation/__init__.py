"""Explanation by cause: the findings of all checks about the same records as one story, the broken step first."""
