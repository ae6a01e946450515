"""The agent's image, built by `swarmctl build` and `push` for two architectures and run by real engines."""

import json
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from operator_at_work import Operator

from bench.image import InRegistry, over_the_base, parse
from swarmctl.cluster import builder as builders
from swarmctl.console import Story
from swarmctl.errors import SwarmctlError
from tests.lab import LabNode, emulation, images
from tests.lab.fixtures import MakeLab
from tests.lab.lab import Lab
from tests.lab.system import eventually

pytestmark = pytest.mark.timeout(900)  # a step under emulation takes half a minute on a machine that is busy
BOTH = (images.AMD64, images.ARM64)
LIMIT = 60e6  # bytes, compressed, over the base
HARDENED = ("--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL", "--security-opt", "no-new-privileges")
Push = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def lab(make_lab: MakeLab) -> Lab:
    """A machine whose engine holds images for several platforms, one whose engine doesn't, and a registry."""
    lab = make_lab({"registry": True, "nodes": ["builder", {"name": "pi-01", "hardware": "rpi4-4g", "user": "pi"}]})
    images.with_platforms(lab.nodes["builder"])
    return lab


@pytest.fixture(scope="module")
def node(lab: Lab) -> LabNode:
    return lab.nodes["builder"]


@pytest.fixture(scope="module")
def base(lab: Lab) -> str:
    return images.base(lab, BOTH)


@pytest.fixture(scope="module")
def operator(lab: Lab) -> Operator:
    return Operator(lab)


@pytest.fixture(scope="module")
def settings(lab: Lab, node: LabNode) -> dict[str, str]:
    """The operator's Docker command line talks to the builder's engine; what comes from PyPI is kept for next time."""
    wanted = images.docker_environment(node, lab.home)
    return {name: wanted[name] for name in ("PATH", "DOCKER_HOST", "DOCKER_CONFIG")} | {
        "SWARMCTL_STATE": str(images.kept("operator"))
    }


@pytest.fixture(scope="module")
def typed(operator: Operator, settings: dict[str, str], base: str) -> Push:
    """Types a command that builds, for the lab's base."""

    def run(*words: str, code: int = 0, **environment: str) -> "subprocess.CompletedProcess[str]":
        base_options = () if "--python" in words else ("--python", images.PYTHON)
        return operator.run(*words, "--base", base, *base_options, code=code, **{**settings, **environment})

    return run


@pytest.fixture(scope="module")
def pushed(lab: Lab, typed: Push) -> dict[str, Any]:
    """What `swarmctl push` says of the image for both architectures."""
    with emulation.of("arm64"):
        said = typed("push", *platforms(*BOTH), "--json", REGISTRY=lab.registry)
    facts: dict[str, Any] = json.loads(said.stdout)
    return facts


@pytest.fixture(scope="module")
def image(pushed: dict[str, Any]) -> InRegistry:
    return parse(pushed["image"])


def platforms(*names: str) -> list[str]:
    return [word for name in names for word in ("--platform", name)]


@pytest.fixture
def containers(node: LabNode) -> Iterator[Callable[..., str]]:
    """Starts containers, in the node's own network; they are removed afterwards."""
    names: list[str] = []

    def start(name: str, *arguments: str) -> str:
        names.append(name)
        node.docker("run", "--detach", "--name", name, "--network", "host", *HARDENED, *arguments)
        return name

    yield start
    for name in names:
        node.docker("rm", "--force", "--volumes", name)


# What is pushed ----------------------------------------------------------------------------------------------------


def test_one_push_makes_one_image_for_both_architectures_and_nothing_else(
    lab: Lab, pushed: dict[str, Any], image: InRegistry
) -> None:
    top = json.loads(image.get("manifests", "0.1.0"))
    entries = [(entry["platform"]["os"], entry["platform"]["architecture"]) for entry in top["manifests"]]

    assert pushed["image"] == f"{lab.registry}/swarm-agent:0.1.0"
    assert pushed["platforms"] == list(BOTH)
    assert pushed["pushed"] is True
    assert sorted(entries) == [("linux", "amd64"), ("linux", "arm64")]  # an attestation would be one more
    assert image.digest() == pushed["digest"]


def test_pushing_again_changes_nothing(lab: Lab, pushed: dict[str, Any], typed: Push) -> None:
    with emulation.of("arm64"):
        again = json.loads(typed("push", *platforms(*BOTH), "--json", REGISTRY=lab.registry).stdout)

    assert again == pushed


def test_the_operators_own_image_stands_on_the_agents(
    lab: Lab, node: LabNode, pushed: dict[str, Any], image: InRegistry
) -> None:
    own = parse(pushed["operator"]["image"])
    for arch, layers in image.layers().items():
        assert own.layers()[arch][: len(layers)] == layers
    assert own.digest() == pushed["operator"]["digest"]

    said = node.docker("run", "--rm", "--network", "none", "--read-only", own.reference, "swarmctl", "--version")
    assert said.stdout == "swarmctl 0.1.0\n"


def test_at_most_60_megabytes_lie_over_the_base(image: InRegistry, base: str) -> None:
    added = over_the_base(image, parse(base))

    assert set(added) == {"amd64", "arm64"}
    for arch, layers in added.items():
        assert 10e6 < sum(layer.size for layer in layers) < LIMIT, (arch, layers)


def test_a_change_to_our_own_code_sends_little(image: InRegistry, base: str) -> None:
    for layers in over_the_base(image, parse(base)).values():
        packages, *others = sorted((layer.size for layer in layers), reverse=True)

        assert packages > 10e6
        assert sum(others) < 10e6


def test_it_says_what_it_is_and_runs_as_nobody_in_particular(image: InRegistry) -> None:
    for config in image.configs().values():
        settings = config["config"]
        labels = settings["Labels"]

        assert settings["User"] == "10001:10001"
        assert settings["Healthcheck"]["Test"] == ["CMD", "python3", "-m", "swarm_agent.ask", "health"]
        assert labels["org.opencontainers.image.version"] == "0.1.0"
        assert re.fullmatch(r"[0-9a-f]{40}(-dirty)?", labels["org.opencontainers.image.revision"])


def test_it_holds_the_agent_and_nothing_of_the_operator(node: LabNode, pushed: dict[str, Any]) -> None:
    names = ("swarm_agent", "fdtc", "numpy", "swarmctl", "typer", "rich", "docker", "paramiko", "cryptography", "pip")
    code = f"import importlib.util as u, json; print(json.dumps([n for n in {names} if u.find_spec(n)]))"
    found = node.docker("run", "--rm", "--network", "none", *HARDENED, pushed["image"], "python3", "-c", code)

    assert json.loads(found.stdout) == ["swarm_agent", "fdtc", "numpy"]


def test_each_architecture_has_passed_its_self_test_in_the_build(node: LabNode, pushed: dict[str, Any]) -> None:
    with emulation.of("arm64"):
        for platform, machine in ((images.AMD64, "x86_64"), (images.ARM64, "aarch64")):
            show = "print(open('/opt/swarm-agent/selftest.txt').read())"
            said = on_platform(node, platform, pushed["image"], "python3", "-c", show)

            assert f"self-test passed on {machine}: one training step, loss " in said


def test_the_arm64_image_takes_a_training_step_under_emulation(node: LabNode, pushed: dict[str, Any]) -> None:
    with emulation.of("arm64"):
        arm = on_platform(node, images.ARM64, pushed["image"], "python3", "-m", "swarm_agent.selftest")
    amd = on_platform(node, images.AMD64, pushed["image"], "python3", "-m", "swarm_agent.selftest")
    losses = [float(re.search(r"passed on \w+: one training step, loss ([\d.]+)", said)[1]) for said in (arm, amd)]  # type: ignore[index]

    assert "passed on aarch64" in arm
    assert losses[0] == pytest.approx(losses[1], abs=2e-4)  # the same step, by another processor's arithmetic


def on_platform(node: LabNode, platform: str, image: str, *command: str) -> str:
    node.docker("pull", "--quiet", "--platform", platform, image)
    options = ("run", "--rm", "--network", "none", "--platform", platform, *HARDENED)
    return node.docker(*options, image, *command, timeout=300).stdout


# In a container ----------------------------------------------------------------------------------------------------


def test_coordinator_and_worker_train_and_are_healthy_with_a_read_only_root(
    node: LabNode, pushed: dict[str, Any], containers: Callable[..., str]
) -> None:
    image = pushed["image"]
    coordinator = containers(
        "coordinator", "--volume", "checkpoints:/checkpoints", "--env", "FDTC_TRAINING_CONTEXT=16",
        image, "swarm-coordinator", "--port", "7100", "--http-port", "7190",
    )  # fmt: skip
    worker = containers(
        "worker", "--env", "FDTC_TRAINING_CONTEXT=16",
        image, "swarm-worker", "--host", "127.0.0.1", "--port", "7100", "--profile", "RPI3",
    )  # fmt: skip

    eventually(lambda: status(node)["version"] >= 2, 120, "the coordinator has applied two gradients")
    for name in (coordinator, worker):
        eventually(lambda name=name: health(node, name) == "healthy", 90, f"{name} is healthy")  # type: ignore[misc]
    saved = json.loads(ask(node, "POST", "/control/checkpoint").stdout)
    assert saved["path"].startswith("/checkpoints/ckpt-")

    node.docker("stop", "--time", "60", worker, coordinator)
    ended = [node.api.inspect_container(name)["State"]["ExitCode"] for name in (worker, coordinator)]
    assert ended == [0, 0]


def test_a_coordinator_that_stops_answering_becomes_unhealthy(
    node: LabNode, pushed: dict[str, Any], containers: Callable[..., str]
) -> None:
    quick = (
        "--health-interval",
        "1s",
        "--health-timeout",
        "2s",
        "--health-retries",
        "2",
        "--health-start-period",
        "0s",
    )
    name = containers("coordinator", "--tmpfs", "/checkpoints:uid=10001", *quick, pushed["image"], "swarm-coordinator")
    eventually(lambda: health(node, name) == "healthy", 90, "the coordinator is healthy")

    pid = node.api.inspect_container(name)["State"]["Pid"]
    node.run(["kill", "-STOP", str(pid)])
    try:
        eventually(lambda: health(node, name) == "unhealthy", 60, "the stopped coordinator is unhealthy")
    finally:
        node.run(["kill", "-CONT", str(pid)])


def test_a_coordinator_with_a_full_disk_is_not_killed_for_it(
    node: LabNode, pushed: dict[str, Any], containers: Callable[..., str]
) -> None:
    containers("coordinator", "--tmpfs", "/checkpoints:uid=10001,size=64k", pushed["image"], "swarm-coordinator")
    eventually(lambda: ask(node, "GET", "/healthz").returncode == 0, 60, "the coordinator answers")

    assert ask(node, "POST", "/control/checkpoint").returncode == 1
    assert ask(node, "GET", "/healthz").returncode == 1
    checked = ask(node, "health")
    assert checked.returncode == 0
    assert "no checkpoint can be written" in checked.stdout


def test_a_coordinator_whose_volume_is_not_its_own_says_so_and_ends(node: LabNode, pushed: dict[str, Any]) -> None:
    options = ("run", "--rm", "--network", "none", *HARDENED, "--tmpfs", "/checkpoints")  # root's
    said = node.docker(*options, pushed["image"], "swarm-coordinator", check=False)

    assert said.returncode == 1
    assert "can't write to" in said.stderr
    assert "--checkpoint-dir" in said.stderr


def test_asking_tells_success_and_failure_apart(
    node: LabNode, pushed: dict[str, Any], containers: Callable[..., str]
) -> None:
    containers("coordinator", "--tmpfs", "/checkpoints:uid=10001", pushed["image"], "swarm-coordinator")
    eventually(lambda: ask(node, "GET", "/healthz").returncode == 0, 60, "the coordinator answers")

    refused = ask(node, "POST", "/control/dance")
    assert refused.returncode == 1
    assert "HTTP status 404: no control word 'dance'" in refused.stderr
    assert ask(node, "POST", "/control/pause").returncode == 0
    assert status(node)["run"]["state"] == "paused"

    silent = ask(node, "GET", "/status", "--port", "7181")
    assert silent.returncode == 1
    assert "nothing answers GET /status on 127.0.0.1:7181" in silent.stderr


def test_a_container_without_an_agent_is_not_healthy(node: LabNode, pushed: dict[str, Any]) -> None:
    said = node.docker(
        "run", "--rm", "--network", "none", *HARDENED, pushed["image"], "python3", "-m", "swarm_agent.ask", "health",
        check=False,
    )  # fmt: skip

    assert said.returncode == 1
    assert "neither a coordinator nor a worker runs here" in said.stderr


def ask(node: LabNode, *words: str) -> "subprocess.CompletedProcess[str]":
    return node.docker("exec", "coordinator", "python3", "-m", "swarm_agent.ask", *words, check=False)


def status(node: LabNode) -> dict[str, Any]:
    said = ask(node, "GET", "/status")
    return json.loads(said.stdout) if said.returncode == 0 else {"version": -1}  # type: ignore[no-any-return]


def health(node: LabNode, name: str) -> str:
    return str(node.api.inspect_container(name)["State"]["Health"]["Status"])


# The commands ------------------------------------------------------------------------------------------------------


def test_build_leaves_the_image_in_the_engine(node: LabNode, typed: Push) -> None:
    facts = json.loads(typed("build", *platforms(images.AMD64), "--tag", "here", "--json").stdout)

    assert facts["image"] == "swarm-agent:here"
    assert facts["pushed"] is False
    assert node.api.inspect_image("swarm-agent:here")["Os"] == "linux"


def test_dry_run_shows_the_command_and_does_nothing(lab: Lab, node: LabNode, typed: Push) -> None:
    said = typed("push", *platforms(*BOTH), "--tag", "dry", "--dry-run", REGISTRY=lab.registry)

    assert "docker buildx bake --builder default" in said.stderr
    assert "TAG=dry" in said.stderr
    assert f"REGISTRY={lab.registry}" in said.stderr
    assert node.docker("image", "ls", "--quiet", f"{lab.registry}/swarm-agent:dry").stdout == ""


def test_the_platforms_are_those_of_the_nodes_and_32_bit_ones_are_left_out(
    lab: Lab, node: LabNode, typed: Push
) -> None:
    node.docker("swarm", "init", "--advertise-addr", node.address)
    try:
        node.docker("node", "update", "--label-add", "fdtc.arch=arm64", "builder")
        said = typed("build", "--manager", "builder", "--dry-run", "--json")
        assert json.loads(said.stdout)["platforms"] == ["linux/arm64"]

        node.docker("node", "update", "--label-add", "fdtc.arch=arm", "builder")
        refused = typed("build", "--manager", "builder", "--dry-run", code=2)
        assert "there is no image for a 32-bit system (arm): numpy has no wheels for it" in refused.stderr
        assert "install a 64-bit system" in refused.stderr

        token = node.docker("swarm", "join-token", "-q", "worker").stdout.strip()
        lab.nodes["pi-01"].docker("swarm", "join", "--token", token, f"{node.address}:2377")
        told = typed("build", "--manager", "builder", "--dry-run", "--json")
        assert json.loads(told.stdout)["platforms"] == ["linux/amd64"]
        assert "not for builder: there is no image for a 32-bit system" in told.stderr
    finally:
        for each in (lab.nodes["pi-01"], node):
            each.docker("swarm", "leave", "--force", check=False)


@pytest.mark.parametrize(
    ("words", "code", "said", "remedy"),
    [
        (["build", "--platform", "linux/arm/v7"], 2, "no image for a 32-bit system", "install a 64-bit system"),
        (["build", "--platform", "linux/riscv64"], 2, "no image for linux/riscv64", "--platform linux/arm64"),
        (["push", "--platform", "linux/amd64"], 2, "say which registry", "REGISTRY=192.168.1.10:5000 swarmctl push"),
        (["build", "--builder", "ssh://pi@pi-01"], 2, "say for which platform", "--builder linux/arm64=ssh://"),
        (
            ["build", "--platform", "linux/amd64", "--builder", "linux/arm64=ssh://pi@pi-01"],
            2,
            "--builder for linux/arm64, and nothing is built for that",
            "--platform linux/amd64",
        ),
        (
            ["build", "--platform", "linux/amd64", "--python", "3.12"],
            1,
            "the base image has Python 3.11, and the packages are for 3.12",
            "--python 3.11",
        ),
    ],
)  # fmt: skip
def test_what_cant_be_built_is_refused_with_a_remedy(
    typed: Push, words: list[str], code: int, said: str, remedy: str
) -> None:
    refused = typed(*words, code=code)

    assert said in refused.stderr
    assert remedy in refused.stderr


def test_a_registry_that_is_not_there_is_named_with_a_way_to_look(lab: Lab, typed: Push) -> None:
    nowhere = f"{lab.network}.1:5999"
    said = typed("push", *platforms(images.AMD64), "--registry", nowhere, code=1)

    assert "connection refused" in said.stderr
    assert f"curl -sS http://{nowhere}/v2/" in said.stderr


def test_without_an_engine_or_buildx_it_says_what_to_install(typed: Push, tmp_path: Path) -> None:
    gone = typed("build", *platforms(images.AMD64), code=5, DOCKER_HOST=f"unix://{tmp_path}/docker.sock")
    assert "no Docker engine answers" in gone.stderr
    assert "sudo systemctl start docker" in gone.stderr

    bare = typed("build", *platforms(images.AMD64), code=1, DOCKER_CONFIG=str(tmp_path))
    assert "Docker has no buildx here" in bare.stderr
    assert "docker-buildx-plugin" in bare.stderr

    none = typed("build", *platforms(images.AMD64), code=1, PATH=str(tmp_path))
    assert "there is no docker command here" in none.stderr


def test_a_build_that_takes_too_long_is_stopped(lab: Lab, typed: Push) -> None:
    nobody = f"{lab.network}.250:5000"  # the kernel looks for that address for three seconds
    began = time.monotonic()
    said = typed("push", *platforms(*BOTH), "--timeout", "1", "--registry", nobody, code=3)

    assert "was not done within 1 s and was stopped" in said.stderr
    assert time.monotonic() - began < 60


def test_a_platform_that_nothing_here_can_run_is_told_before_the_build(
    settings: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    own = builders.Builder("default", keeps=True)

    builders.check_platforms(own, [images.AMD64], Story())
    with pytest.raises(SwarmctlError, match="can't run programs for linux/riscv64") as refused:
        builders.check_platforms(own, [images.AMD64, "linux/riscv64"], Story())
    assert any("tonistiigi/binfmt --install riscv64" in line for line in refused.value.next_steps)
    assert any("qemu-user-static" in line for line in refused.value.next_steps)


# Builders of our own -----------------------------------------------------------------------------------------------


@pytest.fixture
def classic(lab: Lab, tmp_path: Path) -> dict[str, str]:
    """For an engine that holds an image for one platform only, as most do: the Pi's."""
    (tmp_path / "config").mkdir()
    wanted = images.docker_environment(lab.nodes["pi-01"], tmp_path / "config")
    return {name: wanted[name] for name in ("PATH", "DOCKER_HOST", "DOCKER_CONFIG")}


def test_an_engine_that_cant_hold_both_gets_a_builder_that_trusts_the_same_registries(
    lab: Lab, typed: Push, classic: dict[str, str]
) -> None:
    plan = typed("push", *platforms(*BOTH), "--dry-run", "--json", REGISTRY=lab.registry, **classic)
    name = json.loads(plan.stdout)["builder"]
    assert f'[registry."{lab.registry}"]' in plan.stderr
    assert f"docker buildx create --name {name}" in plan.stderr

    # Its image is on Docker Hub, which the lab doesn't reach: it is made, and doesn't start.
    said = typed("push", *platforms(*BOTH), code=1, REGISTRY=lab.registry, **classic)
    assert f"made the builder {name}" in said.stderr
    assert f"the builder {name} does not start" in said.stderr
    assert f"docker buildx rm {name}" in said.stderr
    inspected = docker(classic, "buildx", "inspect", name)
    assert "Driver: docker-container" in re.sub(r" +", " ", inspected)
    assert f'[registry."{lab.registry}"]' in inspected

    again = typed("push", *platforms(*BOTH), "--dry-run", REGISTRY=lab.registry, **classic)
    assert "docker buildx create" not in again.stderr  # it is there


def test_a_machine_of_the_fleet_builds_for_its_own_platform(typed: Push, classic: dict[str, str]) -> None:
    words = ["build", *platforms(*BOTH), "--builder", "linux/arm64=ssh://pi@pi-01"]
    name = json.loads(typed(*words, "--dry-run", "--json", **classic).stdout)["builder"]
    typed(*words, code=1, **classic)  # made, as above, and not started

    inspected = docker(classic, "buildx", "inspect", name)
    assert re.search(r"Endpoint:\s+ssh://pi@pi-01", inspected)
    assert "linux/arm64*" in inspected


def test_one_platform_needs_no_builder_of_our_own(lab: Lab, typed: Push, classic: dict[str, str]) -> None:
    said = typed("push", *platforms(images.AMD64), "--tag", "one", "--json", REGISTRY=lab.registry, **classic)

    assert json.loads(said.stdout)["builder"] == "default"
    assert list(InRegistry(lab.registry, "swarm-agent", "one").manifests()) == ["amd64"]


def docker(settings: dict[str, str], *arguments: str) -> str:
    said = subprocess.run(
        ["docker", *arguments], env={**settings, "HOME": settings["DOCKER_CONFIG"]}, capture_output=True, text=True,
        check=False, timeout=60,
    )  # fmt: skip
    return said.stdout
