"""The service that reconciles: it brings back what somebody removed while nobody looks."""

import time
from pathlib import Path

import yaml
from operator_at_work import Operator

from tests.lab import images
from tests.lab.fixtures import MakeLab


def test_a_service_of_the_swarm_brings_back_what_drifts(make_lab: MakeLab) -> None:
    lab = make_lab({"registry": True, "nodes": [{"name": "server-1"}, {"name": "pi-01", "hardware": "rpi4-4g"}]})
    images.operator(lab)
    operator, manager = Operator(lab), lab.nodes["server-1"]
    operator.run("init", "server-1")
    operator.run("join", "pi-01")
    operator.run("label", "--auto")
    ended = operator.run("reconcile", "--install", code=1)
    assert "can't be found" in ended.stderr
    registry = {"REGISTRY": lab.registry}
    operator.run("reconcile", "--install", "--dry-run", **registry)
    assert manager.api.services() == []
    operator.run("reconcile", "--install", **registry)
    assert "nothing to change" in operator.run("reconcile", "--install", **registry).stderr

    content = yaml.safe_load(Path("stacks/rwkv-tiny.yml").read_text())
    content["name"] = "sleeping"
    tiny = images.tiny(lab)
    for keys in content["services"].values():
        keys.update(image=tiny, command=["sleep", "1000000"], stop_grace_period="1s")
    path = lab.home / "sleeping.yml"
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    operator.run("deploy", "--stack", path)
    manager.docker("service", "rm", "sleeping_worker-rpi")

    end = time.monotonic() + 120
    while not manager.api.services(filters={"name": "sleeping_worker-rpi"}):
        assert time.monotonic() < end, manager.docker("service", "logs", "swarmctl-reconcile").stdout
        time.sleep(0.5)
    while not (done := [row for row in operator.json("history") if row["what"].startswith("reconcile: ")]):
        assert time.monotonic() < end
        time.sleep(0.5)
    assert "create worker-rpi" in done[-1]["what"]

    operator.run("reconcile", "--uninstall")
    assert not manager.api.services(filters={"name": "swarmctl-reconcile"})
    assert "nothing to change" in operator.run("reconcile", "--uninstall").stderr
    operator.run("rm", "--yes")
