"""What is left undone at the end of a run that did not recover: by partitions, by nodes, by groups."""
