"""What tests on machines share."""

from __future__ import annotations

import pytest

from harness.cluster.systems import SYSTEMS
from harness.environments.docker.engine import connect
from harness.node_images.building import build


@pytest.fixture(scope="session")
def broker_images() -> None:
    """The images of the broker's nodes, built."""
    client = connect(timeout_s=1800)
    try:
        build(client, [SYSTEMS["broker"]])
    finally:
        client.close()
