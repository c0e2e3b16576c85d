"""Names of the internal topics, those that clients do not write to."""

from __future__ import annotations

import uuid

CONSUMER_OFFSETS_TOPIC = "__consumer_offsets"
"""Committed offsets and the assignments of consumer groups; written by the group coordinators alone."""

CLUSTER_METADATA_TOPIC = "__cluster_metadata"
"""The metadata log, one partition, replicated by the controllers with Raft."""
CLUSTER_METADATA_TOPIC_ID = uuid.UUID(int=1)
