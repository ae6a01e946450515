"""Fixtures for tests with real processes."""

from collections.abc import Iterator

import pytest
from processes import Swarm


@pytest.fixture
def swarm(tmp_path) -> Iterator[Swarm]:
    """Processes that end with the test."""
    swarm = Swarm(tmp_path)
    yield swarm
    swarm.end()


@pytest.fixture(scope="module")
def shared_swarm(tmp_path_factory) -> Iterator[Swarm]:
    """Processes that end with the module's last test."""
    swarm = Swarm(tmp_path_factory.mktemp("swarm"))
    yield swarm
    swarm.end()
