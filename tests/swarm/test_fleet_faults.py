"""What goes wrong in a fleet at home: machines that are dead, that move, that are copies; links that lose packets."""

import json
import time
from typing import Any

import pytest
from operator_at_work import Operator, labels, on

from tests.lab.fixtures import MakeLab
from tests.lab.lab import Lab


@pytest.fixture(scope="module")
def lab(make_lab: MakeLab) -> Lab:
    return make_lab(
        {
            "nodes": [
                {"name": "server-[1-2]", "hardware": "server"},
                {"name": "pi-[01-03]", "hardware": "rpi4-4g"},
                {"name": "copy-[1-2]", "hardware": "rpi3", "machine_id": "c0" * 16},
                {"name": "bare", "hardware": "desktop", "docker": False},
                {"name": "off", "hardware": "desktop", "sshd": "off"},
            ]
        }
    )


@pytest.fixture(scope="module")
def operator(lab: Lab) -> Operator:
    operator = Operator(lab)
    operator.run("init", "server-1")
    # Missing nodes are noticed sooner than at home, for the tests' sake.
    lab.nodes["server-1"].docker("swarm", "update", "--dispatcher-heartbeat", "3s")
    operator.run("join", "pi-[01-03]")
    operator.run("label", "--auto")
    return operator


def findings(operator: Operator, *words: str, code: int = 1) -> list[dict[str, Any]]:
    ended = operator.run("doctor", *words, "--json", code=code)
    found: list[dict[str, Any]] = json.loads(ended.stdout)["findings"]
    return found


def test_those_that_can_join_do_and_the_others_are_named_with_a_remedy(operator: Operator) -> None:
    ended = operator.run("join", "pi-01", "bare", "off", "copy-1", "copy-2", code=6)
    assert "in the swarm already: pi-01" in ended.stderr
    assert "get.docker.com" in ended.stderr
    assert "off" in ended.stderr
    assert "it has the machine-id of copy-1" in ended.stderr
    assert "3 of 5 not done: bare, off, copy-2" in ended.stderr


def test_nothing_reachable_is_exit_code_5(operator: Operator) -> None:
    assert "none could be reached: off" in operator.run("join", "off", code=5).stderr


def test_a_join_that_was_interrupted_is_finished_by_typing_it_again(lab: Lab, operator: Operator) -> None:
    manager, machine = lab.nodes["server-1"], lab.nodes["server-2"]
    token = manager.api.inspect_swarm()["JoinTokens"]["Worker"]
    machine.docker("swarm", "join", "--token", token, f"{manager.address}:2377")
    assert "fdtc.identity" not in labels(manager)["server-2"]
    assert "server-2 is in the swarm" in operator.run("join", "server-2").stderr
    assert labels(manager)["server-2"]["fdtc.identity"] == machine.machine_id
    assert "nothing to change" in operator.run("join", "server-2").stderr
    machine.docker("swarm", "leave")
    manager.docker("node", "rm", "--force", "server-2")


def test_a_second_swarm_is_not_made_by_mistake(operator: Operator) -> None:
    assert "there is a swarm already" in operator.run("init", "server-2", code=2).stderr


def test_an_even_number_of_managers_is_refused(operator: Operator) -> None:
    assert "2 managers" in operator.run("join", "server-2", "--role", "manager", code=2).stderr


def test_a_wrong_token_is_told_as_such(lab: Lab, operator: Operator) -> None:
    token = lab.nodes["server-1"].api.inspect_swarm()["JoinTokens"]["Worker"]
    wrong = token[:-4] + ("aaaa" if not token.endswith("aaaa") else "bbbb")
    ended = on(lab.nodes["server-2"], "join", wrong, f"{lab.nodes['server-1'].address}:2377", code=1)
    assert "join-token worker" in ended.stderr
    assert lab.nodes["server-2"].api.info()["Swarm"]["LocalNodeState"] == "inactive"


def test_a_machine_of_another_swarm_is_not_taken_away(lab: Lab, operator: Operator) -> None:
    lab.nodes["server-2"].docker("swarm", "init")
    assert "in another swarm, as a manager" in operator.run("join", "server-2", code=1).stderr
    lab.nodes["server-2"].docker("swarm", "leave", "--force")


def test_a_dead_machine_keeps_nobody_waiting_and_is_named(lab: Lab, operator: Operator) -> None:
    lab.nodes["pi-03"].stop_sshd()
    lab.nodes["pi-02"].set_hardware("rpi4-8g")
    ended = operator.run("label", "--auto", code=6)
    assert "1 of 5 not done: pi-03" in ended.stderr
    assert labels(lab.nodes["server-1"])["pi-02"]["fdtc.profile"] == "RPI4_8G"
    lab.nodes["pi-03"].start_sshd()


def test_a_machine_that_comes_back_elsewhere_is_told_of_and_gets_everything_back(lab: Lab, operator: Operator) -> None:
    manager, machine = lab.nodes["server-1"], lab.nodes["pi-02"]
    operator.run("label", "pi-02", "desktop")
    manager.docker("node", "update", "--label-add", "rack=attic", "--availability", "drain", "pi-02")
    was = machine.address
    machine.reboot(new_address=True)
    assert machine.address != was
    ended = operator.run("join", "pi-02")
    assert "labels kept (desktop), 1 ghost of pi-02 removed" in ended.stderr
    (node,) = [node for node in manager.api.nodes() if node["Description"]["Hostname"] == "pi-02"]
    assert node["Spec"]["Labels"]["rack"] == "attic"
    assert node["Spec"]["Labels"]["fdtc.source"] == "user"
    assert node["Spec"]["Availability"] == "drain"
    assert node["Status"]["Addr"] == machine.address
    manager.docker("node", "update", "--availability", "active", "pi-02")


def test_nodes_says_why_a_machine_is_down_and_what_to_type(lab: Lab, operator: Operator) -> None:
    machine = lab.nodes["pi-03"]
    machine.reboot(new_address=True)
    operator.lab.nodes["server-1"].docker("node", "ls")
    row = wait_for_down(operator, "pi-03")
    assert f"it is at {machine.address} now" in row["reason"]
    assert "swarmctl join pi-03" in row["reason"]
    operator.run("join", "pi-03")
    assert operator.nodes()["pi-03"]["state"] == "ready"


def wait_for_down(operator: Operator, name: str) -> dict[str, Any]:
    """The managers miss a node after three heartbeats of 15 s."""

    end = time.monotonic() + 90
    while True:
        row = operator.nodes()[name]
        if row["state"] == "down":
            return row
        assert time.monotonic() < end, row
        time.sleep(1)


def test_doctor_names_each_fault_and_its_remedy(lab: Lab, operator: Operator) -> None:
    lab.nodes["pi-01"].set_clock_offset(120)
    lab.nodes["pi-02"].set_throttled(0x50005)
    lab.nodes["pi-03"].set_mtu(1400)
    found = findings(operator)
    by_check = {finding["check"]: finding for finding in found}
    assert by_check["clock"]["where"] == "pi-01"
    assert "set-ntp" in " ".join(by_check["clock"]["remedy"])
    assert by_check["power"]["where"] == "pi-02"
    assert any("1400" in finding["message"] for finding in found), found
    lab.nodes["pi-01"].set_clock_offset(0)
    lab.nodes["pi-02"].set_throttled(0)
    lab.nodes["pi-03"].set_mtu(1500)


def test_doctor_sees_a_blocked_port(lab: Lab, operator: Operator) -> None:
    node = lab.nodes["pi-01"]
    node.run(["iptables", "-A", "INPUT", "-p", "udp", "--dport", "4789", "-j", "DROP"])
    found = findings(operator)
    assert any("4789" in f"{finding['message']} {finding['remedy']}" for finding in found), found
    node.run(["iptables", "-F", "INPUT"])


def test_doctor_fixes_what_is_safe(lab: Lab, operator: Operator) -> None:
    manager = lab.nodes["server-1"]
    manager.docker("swarm", "update", "--dispatcher-heartbeat", "5s")
    manager.docker("node", "update", "--label-rm", "fdtc.class", "pi-01")
    operator.run("doctor", "--fix", "--dry-run")
    assert manager.api.inspect_swarm()["Spec"]["Dispatcher"]["HeartbeatPeriod"] == 5_000_000_000
    operator.run("doctor", "--fix")
    assert manager.api.inspect_swarm()["Spec"]["Dispatcher"]["HeartbeatPeriod"] == 15_000_000_000
    assert labels(manager)["pi-01"]["fdtc.class"] == "rpi"


def test_a_cut_link_is_told_and_heals(lab: Lab, operator: Operator) -> None:
    lab.nodes["pi-01"].cut()
    ended = operator.run("label", "--auto", "--timeout", "5", code=6)
    assert "1 of 5 not done: pi-01" in ended.stderr
    lab.nodes["pi-01"].heal()
    operator.run("label", "--auto")


def test_an_engine_that_is_down_is_told_as_such(lab: Lab, operator: Operator) -> None:
    lab.nodes["server-2"].kill_engine()
    assert "systemctl" in operator.run("join", "server-2", code=1).stderr
    lab.nodes["server-2"].start_engine()
