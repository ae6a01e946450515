"""The whole way on one small fleet, in this order: bare machines, a swarm, members, labels; and each of it again."""

import json

import pytest
from operator_at_work import Operator, labels, on

from tests.lab.fixtures import MakeLab
from tests.lab.lab import Lab

EVERYBODY = ("pi-[01-02]", "laptop-1", "desktop-1")


@pytest.fixture(scope="module")
def lab(make_lab: MakeLab) -> Lab:
    return make_lab(
        {
            "nodes": [
                {"name": "server-1", "hardware": "server"},
                {"name": "pi-01", "hardware": "rpi4-4g", "user": "pi"},
                {"name": "pi-02", "hardware": "rpi3", "user": "pi", "docker_group": False, "sudo": "nopasswd"},
                {"name": "laptop-1", "hardware": "laptop", "greeting": "Welcome to my laptop!"},
                {"name": "desktop-1", "hardware": "desktop-32g"},
            ]
        }
    )


@pytest.fixture(scope="module")
def operator(lab: Lab) -> Operator:
    return Operator(lab)


def test_without_a_swarm_every_command_says_how_to_make_one(operator: Operator) -> None:
    for command in (["nodes"], ["label", "--auto"], ["join", "pi-01"], ["label", "pi-01", "rpi"]):
        ended = operator.run(*command, code=5)
        assert "no swarm is known here" in ended.stderr
        assert "swarmctl init" in ended.stderr


def test_machines_are_scanned_before_there_is_a_swarm(lab: Lab, operator: Operator) -> None:
    path = lab.home / "scanned.yml"
    rows = operator.json("fleet", "scan", "server-1", *EVERYBODY, "--write", path)
    assert {row["host"]: row["class"] for row in rows} == {
        "server-1": "server", "pi-01": "rpi", "pi-02": "rpi", "laptop-1": "laptop", "desktop-1": "desktop",
    }  # fmt: skip
    shown = operator.json("fleet", "show", "--fleet", path)
    assert [host["name"] for host in shown] == ["server-1", "pi-01", "pi-02", "laptop-1", "desktop-1"]
    assert "is there already" in operator.run("fleet", "scan", "pi-01", "--write", path, code=2).stderr


def test_a_dry_run_of_init_changes_nothing(lab: Lab, operator: Operator) -> None:
    told = operator.run("init", "server-1", "--dry-run").stderr
    assert "make a swarm" in told
    assert "store the secret fdtc-token" in told
    assert lab.nodes["server-1"].api.info()["Swarm"]["LocalNodeState"] == "inactive"


def test_init_makes_a_swarm_fit_for_wifi_with_its_secrets(lab: Lab, operator: Operator) -> None:
    ended = operator.run("init", "server-1")
    api = lab.nodes["server-1"].api
    spec = api.inspect_swarm()["Spec"]
    assert spec["Dispatcher"]["HeartbeatPeriod"] == 15_000_000_000
    assert spec["CAConfig"]["NodeCertExpiry"] == 365 * 24 * 3600 * 1_000_000_000
    assert {secret["Spec"]["Name"] for secret in api.secrets()} == {
        "fdtc-token", "fdtc-ca-key", "fdtc-coordinator-key", "fdtc-coordinator-cert",
    }  # fmt: skip
    assert [config["Spec"]["Name"] for config in api.configs()] == ["fdtc-ca-cert"]
    assert f"docker swarm join --token {api.inspect_swarm()['JoinTokens']['Worker']}" in ended.stderr


def test_init_again_changes_nothing(lab: Lab, operator: Operator) -> None:
    before = lab.nodes["server-1"].api.inspect_swarm()["Version"]
    assert operator.json("init", "server-1")["changed"] is False
    assert "nothing to change" in operator.run("init", "server-1").stderr
    assert lab.nodes["server-1"].api.inspect_swarm()["Version"] == before


def test_a_dry_run_of_join_changes_nothing(lab: Lab, operator: Operator) -> None:
    rows = operator.json("join", *EVERYBODY, "--dry-run")
    assert {row["result"] for row in rows} == {"join"}
    assert lab.nodes["pi-01"].api.info()["Swarm"]["LocalNodeState"] == "inactive"


def test_join_brings_all_in_at_once_whoever_may_use_docker_there(operator: Operator) -> None:
    rows = operator.json("join", *EVERYBODY)
    assert {row["host"]: (row["result"], row["role"]) for row in rows} == dict.fromkeys(
        ("pi-01", "pi-02", "laptop-1", "desktop-1"), ("joined", "worker")
    )


def test_join_again_changes_nothing(operator: Operator) -> None:
    assert "nothing to change" in operator.run("join", *EVERYBODY).stderr


def test_the_join_line_works_on_a_machine_itself_and_knows_a_member(lab: Lab) -> None:
    manager = lab.nodes["server-1"]
    token = manager.api.inspect_swarm()["JoinTokens"]["Worker"]
    ended = on(lab.nodes["desktop-1"], "join", token, f"{manager.address}:2377")
    assert "in this swarm already" in ended.stderr
    lab.nodes["desktop-1"].docker("swarm", "leave")
    on(lab.nodes["desktop-1"], "join", token, manager.address)
    assert lab.nodes["desktop-1"].api.info()["Swarm"]["LocalNodeState"] == "active"


def test_a_dry_run_of_label_changes_nothing(lab: Lab, operator: Operator) -> None:
    operator.run("label", "--auto", "--dry-run")
    assert all("fdtc.class" not in found for found in labels(lab.nodes["server-1"]).values())


def test_label_auto_says_what_each_machine_is_and_why(lab: Lab, operator: Operator) -> None:
    rows = {row["node"]: row for row in operator.json("label", "--auto")}
    assert "Raspberry Pi 3" in " ".join(rows["pi-02"]["evidence"])
    found = labels(lab.nodes["server-1"])
    assert {name: (kept["fdtc.class"], kept["fdtc.profile"]) for name, kept in found.items()} == {
        "server-1": ("server", "SERVER"),
        "pi-01": ("rpi", "RPI4_4G"),
        "pi-02": ("rpi", "RPI3"),
        "laptop-1": ("laptop", "LAPTOP_LIGHT"),
        "desktop-1": ("desktop", "DESKTOP_HEAVY"),
    }
    assert found["pi-01"]["fdtc.identity"] == lab.nodes["pi-01"].machine_id
    assert found["pi-01"]["fdtc.source"] == "probe"
    assert {kept["fdtc.arch"] for kept in found.values()} == {"amd64"}


def test_the_ghost_of_the_machine_that_joined_by_itself_is_gone(lab: Lab) -> None:
    names = [node["Description"]["Hostname"] for node in lab.nodes["server-1"].api.nodes()]
    assert names.count("desktop-1") == 1


def test_label_again_changes_nothing(lab: Lab, operator: Operator) -> None:
    before = [node["Version"] for node in lab.nodes["server-1"].api.nodes()]
    assert "nothing to change" in operator.run("label", "--auto").stderr
    assert [node["Version"] for node in lab.nodes["server-1"].api.nodes()] == before


def test_a_persons_word_wins_until_it_is_cleared(lab: Lab, operator: Operator) -> None:
    manager = lab.nodes["server-1"]
    operator.run("label", "pi-01", "laptop")
    assert labels(manager)["pi-01"]["fdtc.profile"] == "LAPTOP_LIGHT"
    (row,) = operator.json("label", "--auto", "pi-01")
    assert (row["class"], row["by"], row["probed_class"]) == ("laptop", "you", "rpi")
    operator.run("label", "--clear", "pi-01")
    assert "fdtc.class" not in labels(manager)["pi-01"]
    operator.run("label", "--auto")
    assert labels(manager)["pi-01"]["fdtc.class"] == "rpi"


def test_labels_of_others_stay(lab: Lab, operator: Operator) -> None:
    manager = lab.nodes["server-1"]
    manager.docker("node", "update", "--label-add", "rack=attic", "pi-01")
    lab.nodes["pi-01"].set_hardware("rpi4-8g")
    operator.run("label", "--auto", "pi-01")
    assert labels(manager)["pi-01"]["rack"] == "attic"
    assert labels(manager)["pi-01"]["fdtc.profile"] == "RPI4_8G"


def test_the_fleet_file_overrides_the_probe_and_names_its_manager(lab: Lab, operator: Operator) -> None:
    path = lab.home / "own.yml"
    path.write_text("hosts:\n- {name: server-1, role: manager}\n- {name: pi-02, class: desktop}\n- nobody\n")
    operator.run("label", "--auto", "--fleet", path, SWARMCTL_STATE=str(lab.home / "elsewhere"))
    assert labels(lab.nodes["server-1"])["pi-02"]["fdtc.class"] == "desktop"
    operator.run("label", "--auto")
    assert labels(lab.nodes["server-1"])["pi-02"]["fdtc.class"] == "rpi"


def test_wrong_words_are_told_with_the_right_ones(operator: Operator) -> None:
    for command, said in (
        (["label", "pi-01", "raspi"], "did you mean 'rpi'"),
        (["label", "pi-1", "rpi"], "did you mean 'pi-01'"),
        (["label"], "label --auto"),
        (["label", "--auto", "--clear", "pi-01"], "exclude each other"),
        (["join", "pi-[5-1]"], "pi-[5-1]"),
        (["join", "SWMTKN-1-x"], "manager's address"),
        (["join", "pi-01", "--role", "boss"], "--role worker"),
        (["nodes", "--manager", "pi-01"], "is a worker, not a manager"),
        (["nodes", "--fleet", "/nowhere.yml"], "/nowhere.yml"),
    ):
        assert said in operator.run(*command, code=2).stderr


def test_nodes_shows_the_fleet_and_docker_understands_it(lab: Lab, operator: Operator) -> None:
    rows = operator.nodes()
    assert {row["state"] for row in rows.values()} == {"ready"}
    assert rows["server-1"]["role"] == "leader"
    assert (rows["pi-01"]["link"], rows["server-1"]["link"]) == ("wireless", "wired")
    assert rows["pi-01"]["certificate_days"] in {None, 364, 365}
    listed = lab.nodes["server-1"].docker("node", "ls", "--filter", "node.label=fdtc.class=rpi", "-q").stdout.split()
    assert len(listed) == 2


def test_swarmctl_runs_on_the_manager_itself(lab: Lab) -> None:
    rows = json.loads(on(lab.nodes["server-1"], "nodes", "--quick", "--json").stdout)
    assert len(rows) == 5
    assert "nothing to change" in on(lab.nodes["server-1"], "init").stderr


def test_doctor_finds_a_sound_fleet_sound(operator: Operator) -> None:
    report = operator.json("doctor")
    assert report["errors"] == 0, report
