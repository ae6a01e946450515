"""pytest fixtures: a lab for a module of tests. Import them in a conftest.py."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.lab.lab import Lab
from tests.lab.packages import Engine
from tests.lab.prepare import prepare
from tests.lab.spec import Spec

MakeLab = Callable[[Spec | Path | Mapping[str, Any]], Lab]


@pytest.fixture(scope="session")
def lab_packages() -> list[Engine]:
    """Engines that run here, newest first; gets them the first time."""
    if os.geteuid() != 0:
        pytest.skip("a lab of real Docker engines needs root: it makes network namespaces and mounts")
    return prepare()


@pytest.fixture(scope="module")
def make_lab(lab_packages: list[Engine]) -> Iterator[MakeLab]:
    """Makes labs that live until the module's tests are done."""
    with ExitStack() as labs:
        yield lambda spec: labs.enter_context(Lab(spec))


@pytest.fixture(scope="module")
def three_nodes(make_lab: MakeLab) -> Lab:
    """A server and two Pis, with a registry; no swarm yet."""
    return make_lab(
        {
            "registry": True,
            "nodes": [
                {"name": "server-1", "hardware": "server"},
                {"name": "pi-[01-02]", "hardware": "rpi4-4g", "user": "pi", "sudo": "nopasswd"},
            ],
        }
    )
