"""A registry that wants a login, and a coordinator whose port the home network reaches."""

import base64
import json
from pathlib import Path

import pytest
import requests
import yaml
from operator_at_work import Operator

from tests.lab import images
from tests.lab.fixtures import MakeLab
from tests.lab.lab import Lab

LOGIN = "ada:correct horse"


@pytest.fixture(scope="module")
def lab(make_lab: MakeLab) -> Lab:
    nodes = [{"name": "server-1"}, {"name": "pi-01", "hardware": "rpi4-4g"}]
    lab = make_lab({"registry": True, "registry_login": LOGIN, "nodes": nodes})
    images.agent(lab)
    operator = Operator(lab)
    operator.run("init", "server-1")
    operator.run("join", "pi-01")
    operator.run("label", "--auto")
    return lab


@pytest.fixture
def stack(lab: Lab) -> Path:
    """rwkv-tiny with its HTTP port published."""
    content = yaml.safe_load(Path("stacks/rwkv-tiny.yml").read_text())
    content["services"]["coordinator"]["ports"] = [{"target": 7180, "published": 7180, "mode": "host"}]
    path = lab.home / "published.yml"
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return path


def docker_config(folder: Path, content: object) -> str:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(content))
    return str(folder)


def test_without_a_login_or_with_a_broken_one_the_user_is_told_to_log_in(lab: Lab, stack: Path, tmp_path: Path) -> None:
    operator, registry = Operator(lab), {"REGISTRY": lab.registry}
    refused = operator.run("deploy", "--stack", stack, code=1, **registry)
    assert "docker login" in refused.stderr
    wrong = {"auths": {lab.registry: {"auth": base64.b64encode(b"ada:wrong").decode()}}}
    configured = docker_config(tmp_path / "wrong", wrong)
    assert "docker login" in operator.run("plan", "--stack", stack, code=1, DOCKER_CONFIG=configured, **registry).stderr
    configured = docker_config(tmp_path / "lost", {"credsStore": "is-not-there"})
    ended = operator.run("plan", "--stack", stack, code=1, DOCKER_CONFIG=configured, **registry)
    assert "is-not-there" in ended.stderr
    assert "docker login" in ended.stderr


def test_nodes_pull_with_the_operators_login_and_the_published_port_answers(
    lab: Lab, stack: Path, tmp_path: Path
) -> None:
    operator = Operator(lab)
    auth = base64.b64encode(LOGIN.encode()).decode()
    environment = {
        "REGISTRY": lab.registry,
        "DOCKER_CONFIG": docker_config(tmp_path / "docker", {"auths": {lab.registry: {"auth": auth}}}),
    }
    assert "with your login" in operator.run("deploy", "--stack", stack, **environment).stderr
    assert "nothing to change" in operator.run("deploy", "--stack", stack, **environment).stderr
    status = requests.get(f"http://{lab.nodes['server-1'].address}:7180/status", timeout=10).json()
    assert status["workers"]
    # Nobody who has no login loses it: the swarm keeps it for a service that is changed.
    operator.run("scale", "worker-rpi", "0")
    lab.nodes["pi-01"].docker("image", "prune", "--all", "--force")
    operator.run("scale", "worker-rpi", "1")
