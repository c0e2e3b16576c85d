"""Every case: importing this registers them."""

from tests.differential.cases import (
    admin,
    fetch,
    group_admin,
    group_offsets,
    groups,
    metadata,
    offsets,
    produce,
    sessions,
    topics,
    versions,
)

MODULES = (versions, metadata, produce, fetch, sessions, offsets, groups, group_offsets, group_admin, topics, admin)
