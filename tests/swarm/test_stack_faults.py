"""What happens to a training when machines fail: a link is cut, the coordinator's engine is killed, the leader dies."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from operator_at_work import Operator

from tests.lab import images
from tests.lab.fixtures import MakeLab
from tests.lab.lab import Lab

Facts = dict[str, Any]
CUT_FOR = 60.0  # seconds without a link, with the heartbeat that `init` sets


@pytest.fixture(scope="module")
def lab(make_lab: MakeLab) -> Lab:
    lab = make_lab(
        {
            "registry": True,
            "nodes": [
                {"name": "server-[1-3]", "hardware": "server"},
                {"name": "pi-[01-02]", "hardware": "rpi4-4g"},
            ],
        }
    )
    images.agent(lab)
    return lab


@pytest.fixture(scope="module")
def operator(lab: Lab) -> Operator:
    """Three managers, and rwkv-tiny that never ends by itself, with its coordinator on server-3."""
    operator = Operator(lab)
    operator.run("init", "server-1")
    operator.run("join", "server-2", "server-3", "--role", "manager")
    operator.run("join", "pi-[01-02]")
    operator.run("label", "--auto")
    content = yaml.safe_load(Path("stacks/rwkv-tiny.yml").read_text())
    content["name"] = "small"
    for key in ("steps", "schedule", "final_lr_fraction"):
        del content["x-fdtc"]["training"][key]
    for name, keys in content["services"].items():
        if name != "coordinator":  # all nodes share this machine's processors, and swarmctl needs some, too
            keys["deploy"]["resources"]["limits"] = {"cpus": "0.2"}
    content["x-fdtc"]["checkpointing"]["interval"] = 20
    content["services"]["coordinator"]["deploy"]["placement"]["constraints"].append("node.hostname == server-3")
    content["x-fdtc"]["classes"]["worker-server"]["replicas"] = 0
    path = lab.home / "small.yml"
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    operator.run("deploy", "--stack", path, REGISTRY=lab.registry)
    return operator


def await_status(operator: Operator, done: Callable[[Facts], Any], seconds: float = 180) -> Facts:
    end = time.monotonic() + seconds
    while True:
        ended = operator.run("status", "--json", code=None)
        facts: Facts = json.loads(ended.stdout) if ended.stdout else {"error": ended.stderr, "training": None}
        if done(facts):
            return facts
        assert time.monotonic() < end, facts
        time.sleep(1)


def containers(lab: Lab, *nodes: str) -> dict[str, list[str]]:
    return {name: sorted(c["Id"] for c in lab.nodes[name].api.containers()) for name in nodes}


def trains(facts: Facts) -> bool:
    return bool(facts["training"]) and facts["state"] == "training"


def test_a_worker_whose_link_is_cut_comes_back_and_nothing_else_restarts(lab: Lab, operator: Operator) -> None:
    await_status(operator, lambda facts: trains(facts) and facts["training"]["version"] > 30)
    before = containers(lab, "pi-02", "server-3")
    lab.nodes["pi-01"].cut()
    healed_at = time.monotonic() + CUT_FOR
    away = await_status(operator, lambda facts: any(row["node"] == "pi-01" for row in facts["fleet"]["away"]))
    assert next(row for row in away["services"] if row["service"] == "worker-rpi")["running"] == 1
    assert "left out: worker-rpi" in operator.run("logs", "worker-rpi", "--tail", "1").stderr
    time.sleep(max(0.0, healed_at - time.monotonic()))  # how long it was away is what is tested
    lab.nodes["pi-01"].heal()
    await_status(
        operator,
        lambda facts: (
            trains(facts)
            and next(row for row in facts["services"] if row["service"] == "worker-rpi")["running"] == 2
            and any(row["node"] == "pi-01" and row.get("last_seen_sec") is not None for row in facts["tasks"])
        ),
    )
    assert containers(lab, "pi-02", "server-3") == before


def test_a_coordinator_whose_engine_was_killed_resumes_from_its_checkpoint(lab: Lab, operator: Operator) -> None:
    before = await_status(operator, lambda facts: trains(facts) and facts["training"]["version"] >= 60)
    # From here on missing nodes are noticed sooner than at home, for the tests' sake.
    lab.nodes["server-1"].docker("swarm", "update", "--dispatcher-heartbeat", "2s")
    lab.nodes["server-3"].kill_engine()
    await_status(operator, lambda facts: facts["training"] is None)
    lab.nodes["server-3"].start_engine()
    after = await_status(
        operator, lambda facts: trains(facts) and facts["training"]["version"] > before["training"]["version"]
    )
    assert after["training"]["loss"] < before["training"]["loss"] + 0.5


def test_swarmctl_goes_on_through_another_manager_when_the_leader_dies(lab: Lab, operator: Operator) -> None:
    leader = next(row["node"] for row in operator.json("nodes", "--quick") if row["role"] == "leader")
    if leader == "server-3":  # the coordinator's node is not what is tested here
        lab.nodes["server-1"].docker("node", "demote", "server-3")
        lab.nodes["server-1"].docker("node", "promote", "server-3")
        leader = next(row["node"] for row in operator.json("nodes", "--quick") if row["role"] == "leader")
    lab.nodes[leader].kill_engine()
    facts = await_status(operator, trains)
    assert facts["training"]["version"] > 0
    roles = {row["node"]: row["role"] for row in operator.json("nodes", "--quick")}
    assert roles[leader] == "manager"
    assert "leader" in roles.values()
    lab.nodes[leader].start_engine()
