"""The short way on the oldest engine that is supported, Docker 20.10: a swarm, members, labels, a stack, its end."""

from pathlib import Path

import yaml
from operator_at_work import Operator, labels

from tests.lab import images
from tests.lab.fixtures import MakeLab


def test_the_whole_way_on_docker_20_10(make_lab: MakeLab) -> None:
    lab = make_lab(
        {
            "engine": "20.10",
            "registry": True,
            "nodes": [{"name": "server-1", "hardware": "server"}, {"name": "pi-[01-02]", "hardware": "rpi4-4g"}],
        }
    )
    operator, manager = Operator(lab), lab.nodes["server-1"]
    assert manager.api.version()["Version"].startswith("20.10.")
    operator.run("init", "server-1")
    operator.run("join", "pi-[01-02]")
    operator.run("label", "--auto")
    assert {name: kept["fdtc.class"] for name, kept in labels(manager).items()} == {
        "server-1": "server", "pi-01": "rpi", "pi-02": "rpi",
    }  # fmt: skip
    assert operator.json("doctor")["errors"] == 0
    stack = _sleeping_stack(lab.home / "sleeping.yml", images.tiny(lab))
    operator.run("deploy", "--stack", stack)
    assert "nothing to change" in operator.run("deploy", "--stack", stack).stderr
    operator.run("scale", "worker-rpi", "1")
    assert "2 running, 3 wait" in operator.run("scale", "worker-rpi", "5", code=6).stderr
    assert "the coordinator of sleeping says no" in operator.run("status", code=5).stdout
    operator.run("rm", "--yes")
    assert manager.api.services() == []


def _sleeping_stack(path: Path, image: str) -> Path:
    """rwkv-tiny's shape with programs that only sleep: what is tested is the engine's side."""
    content = yaml.safe_load(Path("stacks/rwkv-tiny.yml").read_text())
    content["name"] = "sleeping"
    for keys in content["services"].values():
        keys.update(image=image, command=["sleep", "1000000"], stop_grace_period="1s")
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return path
