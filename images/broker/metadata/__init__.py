"""The cluster's metadata: records and the image that they add up to."""
