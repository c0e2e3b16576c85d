"""Field incidents as files: what happened, in which variants, and what a run of each must show."""
