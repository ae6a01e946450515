"""What is built for whom, and what is said of a build that failed: the parts that need no engine."""

import os
import stat
from pathlib import Path

import pytest

from swarmctl.cluster import build, build_context, builder
from swarmctl.cluster.agent_image import AgentImage, install_options, platforms_of
from swarmctl.errors import UsageError

INSPECTED = """\
Name:   swarmctl-1a2b3c4d
Driver: docker-container

Nodes:
Name:      swarmctl-1a2b3c4d-0
Endpoint:  default
Status:    running
Platforms: linux/amd64, linux/amd64/v2, linux/386

Name:      swarmctl-1a2b3c4d-1
Endpoint:  ssh://pi@pi-01
Status:    running
Platforms: linux/arm64*, linux/arm/v7
"""
# As buildx 0.29.1 printed it.
FAILED = """\
#8 [compiled 3/7] RUN ["python3", "-m", "compileall"]
#8 0.529 the base image has Python 3.11, and the packages are for 3.12
#8 ERROR: process "python3 -c …" did not complete successfully: exit code: 1
------
 > [compiled 2/7] RUN ["python3", "-c", "…"]:
0.529 the base image has Python 3.11, and the packages are for 3.12
------
Dockerfile:10
--------------------
   9 |     ARG TARGETARCH PYTHON=3.12
  10 | >>> RUN ["python3", "-c", "…"]
--------------------
ERROR: failed to solve: process "python3 -c …" did not complete successfully: exit code: 1""".splitlines()


@pytest.mark.parametrize(
    ("nodes", "platforms"),
    [
        ([], ("linux/amd64", "linux/arm64")),
        (["arm64", "arm64"], ("linux/arm64",)),
        (["arm64", "amd64", "", "arm64"], ("linux/amd64", "linux/arm64")),
        (["aarch64", "x86_64"], ("linux/amd64", "linux/arm64")),
        (["linux/arm64/v8"], ("linux/arm64",)),
    ],
)
def test_an_image_is_made_for_what_the_nodes_are(nodes: list[str], platforms: tuple[str, ...]) -> None:
    assert platforms_of(nodes) == platforms


@pytest.mark.parametrize("arch", ["arm", "armv7l", "linux/arm/v7", "386", "i686"])
def test_a_32_bit_system_is_refused_with_the_remedy(arch: str) -> None:
    with pytest.raises(UsageError, match="32-bit system") as refused:
        platforms_of(["amd64", arch])

    assert any("64-bit" in step for step in refused.value.next_steps)


def test_an_image_is_named_after_its_registry() -> None:
    assert AgentImage(("linux/amd64",), "0.1.0").reference == "swarm-agent:0.1.0"
    assert AgentImage(("linux/amd64",), "0.1.0", "host:5000").reference == "host:5000/swarm-agent:0.1.0"
    assert AgentImage(("linux/amd64",), "0.1.0", "host:5000").operator == "host:5000/swarmctl:0.1.0"


def test_wheels_are_chosen_for_the_other_machine() -> None:
    options = install_options("arm64", "3.12")

    assert "manylinux_2_28_aarch64" in options
    assert not any("x86_64" in option for option in options)
    assert options[options.index("--python-version") + 1] == "3.12"


def test_what_a_builder_runs_is_read_of_all_its_machines() -> None:
    assert builder.runs(INSPECTED) == {"linux/amd64", "linux/386", "linux/arm64", "linux/arm"}
    assert builder.runs("Error: no builder") == set()


def test_a_failed_build_is_told_by_its_step_and_remedy() -> None:
    error = build.failure(FAILED, AgentImage(("linux/amd64",), "1"))

    assert str(error).splitlines() == ["the build failed:", *FAILED[4:6], FAILED[-1]]
    assert list(error.next_steps) == ["--python 3.11   # the packages then fit the base"]


def test_a_registry_without_https_is_told_by_name() -> None:
    log = ["ERROR: failed to do request: http: server gave HTTP response to HTTPS client"]
    error = build.failure(log, AgentImage(("linux/amd64",), "1", "pi:5000"))

    assert str(error).endswith(log[0])
    assert any('"insecure-registries": ["pi:5000"]' in step for step in error.next_steps)


def test_what_the_image_needs_has_nothing_of_the_operator() -> None:
    names = " ".join(build_context.requirements(build_context.AGENT))

    assert "numpy" in names
    assert not any(word in names for word in ("typer", "rich", "docker", "paramiko", "torch", "pytest"))


def test_numba_is_in_the_agents_image_where_it_is_asked_for_and_nowhere_else() -> None:
    with_it = build_context.requirements(build_context.AGENT, fast=True)

    assert [name for name in with_it if name not in build_context.requirements(build_context.AGENT)] == ["numba>=0.61"]
    assert "numba" not in " ".join(build_context.requirements(build_context.OPERATOR, fast=True))


def test_the_operators_image_needs_what_the_operator_does_and_no_tools_of_ours() -> None:
    names = " ".join(build_context.requirements(build_context.OPERATOR))

    assert all(word in names for word in ("typer", "docker", "paramiko"))
    assert "extra" not in names
    assert not any(word in names for word in ("torch", "pytest", "mypy"))


def test_the_agent_is_laid_out_readable_for_everybody_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        build_context.lay_out_ours(build_context.AGENT, tmp_path / "agent")
    finally:
        os.umask(before)

    laid = sorted((tmp_path / "agent").rglob("*"))
    assert {path.name for path in (tmp_path / "agent").iterdir()} == {
        "bin",
        "fdtc",
        "swarm_agent",
        "swarmctl-0.1.0.dist-info",
    }
    assert not [path for path in laid if path.suffix == ".pyc"]
    assert all(stat.S_IMODE(path.stat().st_mode) in (0o755, 0o644) for path in laid)
    assert all(path.stat().st_mode & 0o111 for path in (tmp_path / "agent" / "bin").iterdir())
