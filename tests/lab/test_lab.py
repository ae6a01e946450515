"""The lab is what the operator's tests stand on: its machines are real, unequal, and leave nothing behind."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import paramiko
import psutil
import pytest

from tests.lab import Lab, LabError, LabNode, NodeSpec
from tests.lab import lab as labs
from tests.lab.fixtures import MakeLab, lab_packages, make_lab, three_nodes  # noqa: F401
from tests.lab.hardware import KINDS
from tests.lab.images import tiny
from tests.lab.packages import Engine
from tests.lab.spec import load
from tests.lab.system import eventually, processes

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def unequal(make_lab: MakeLab) -> Lab:  # noqa: F811
    """Machines that differ in all that a lab knows; most without an engine."""
    return make_lab(
        {
            "nodes": [
                {"name": "pi-4", "hardware": "rpi4-4g", "user": "pi", "sudo": "password", "greeting": "It's a pi"},
                {"name": "anna", "hardware": "laptop", "user": "anna", "docker_group": False, "sudo": "nopasswd"},
                {"name": "desk", "hardware": "desktop", "docker": False, "user": "tom", "machine_id": "5" * 32},
                {"name": "vm", "hardware": "vm", "docker": False, "clock_offset": 3600, "machine_id": "5" * 32},
                {"name": "mute", "docker": False, "sshd": "hang"},
                {"name": "deaf", "docker": False, "sshd": "off"},
                {"name": "shy", "docker": False, "max_startups": "1"},
            ]
        }
    )


@pytest.fixture(scope="module")
def swarm(three_nodes: Lab) -> Lab:  # noqa: F811
    """Three nodes in a swarm."""
    manager = three_nodes.nodes["server-1"]
    manager.docker("swarm", "init", "--advertise-addr", manager.address)
    manager.docker("swarm", "update", "--dispatcher-heartbeat", "1s")  # to miss a node sooner
    token = manager.docker("swarm", "join-token", "--quiet", "worker").stdout.strip()
    for name in ("pi-01", "pi-02"):
        three_nodes.nodes[name].docker("swarm", "join", "--token", token, f"{manager.address}:2377")
    return three_nodes


def said(node: LabNode, command: str) -> str:
    return node.ssh(command).stdout.strip()


def state_in_swarm(lab: Lab, name: str) -> str:
    rows = lab.nodes["server-1"].docker("node", "ls", "--format", "{{.Hostname}} {{.Status}}").stdout.splitlines()
    return next(row.split()[1] for row in rows if row.startswith(f"{name} "))


def container(node: LabNode, service: str) -> str:
    """The id of the node's container of a service, or nothing."""
    return node.docker("ps", "--quiet", "--filter", f"label=com.docker.swarm.service.name={service}").stdout.strip()


# Machines


def test_every_machine_has_its_own_name_engine_and_machine_id(three_nodes: Lab) -> None:  # noqa: F811
    nodes = three_nodes.nodes.values()
    assert [said(node, "hostname") for node in nodes] == ["server-1", "pi-01", "pi-02"]
    assert len({said(node, "cat /etc/machine-id") for node in nodes}) == 3
    assert len({node.api.info()["ID"] for node in nodes}) == 3
    for node in nodes:  # by SSH, in the machine, and from outside: the same engine
        version = node.api.version()["Version"]
        assert version.startswith(node.engine.version)
        assert said(node, "docker version --format '{{.Server.Version}}'") == version
        assert node.docker("version", "--format", "{{.Server.Version}}").stdout.strip() == version


def test_machines_look_like_their_hardware(unequal: Lab) -> None:
    pi, laptop, desktop, vm = (unequal.nodes[name] for name in ("pi-4", "anna", "desk", "vm"))

    assert pi.api.info()["MemTotal"] == 3794 << 20
    assert laptop.api.info()["MemTotal"] == 7711 << 20
    compatible = said(pi, "tr '\\0' ' ' </sys/firmware/devicetree/base/compatible")
    assert compatible.endswith("raspberrypi,4-model-b brcm,bcm2711")
    assert [pi.run(["uname", "-m"]).stdout.strip(), said(laptop, "uname -m")] == ["aarch64", "x86_64"]
    assert pi.run(["vcgencmd", "get_throttled"]).stdout == "throttled=0x0\n"
    assert "Revision\t: c03115" in pi.run(["cat", "/proc/cpuinfo"]).stdout
    assert pi.run(["test", "-e", "/sys/class/dmi/id"], check=False).returncode == 1

    assert said(laptop, "cat /sys/class/power_supply/BAT0/type /sys/class/dmi/id/chassis_type") == "Battery\n10"
    assert said(laptop, "cat /sys/devices/system/cpu/online") == "0-3"
    assert "wireless" in said(laptop, "ls /sys/class/net/wlan0")
    assert said(laptop, "cat /sys/class/net/wlan0/mtu") == "1500"

    assert said(desktop, "ls /sys/class/power_supply") == ""
    assert said(desktop, "cat /sys/class/dmi/id/product_name") == "OptiPlex 9020"
    assert "wireless" not in said(desktop, "ls /sys/class/net/eth0")
    assert desktop.run(["vcgencmd", "get_throttled"], check=False).returncode == 127
    assert desktop.run(["docker", "version"], check=False).returncode == 127

    assert [said(vm, "systemd-detect-virt"), vm.ssh("grep -c hypervisor /proc/cpuinfo").stdout] == ["kvm", "2\n"]
    assert desktop.ssh("systemd-detect-virt", check=False).stdout == "none\n"
    assert vm.machine_id == desktop.machine_id == "5" * 32


def test_hardware_can_be_swapped_while_the_machine_runs(unequal: Lab) -> None:
    laptop = unequal.nodes["anna"]
    laptop.set_hardware("rpi3")
    try:
        assert said(laptop, "tr -d '\\0' </sys/firmware/devicetree/base/model") == "Raspberry Pi 3 Model B Rev 1.2"
        assert said(laptop, "uname -m; ls /sys/class/power_supply") == "aarch64"
        assert laptop.api.info()["MemTotal"] == 906 << 20
        laptop.set_throttled(0x50005)
        assert said(laptop, "vcgencmd get_throttled") == "throttled=0x50005"
    finally:
        laptop.set_hardware("laptop")
    assert said(laptop, "uname -m; ls /sys/class/power_supply") == "x86_64\nAC\nBAT0"


def test_a_clock_can_be_off(unequal: Lab) -> None:
    vm, desktop = unequal.nodes["vm"], unequal.nodes["desk"]
    assert float(said(vm, "date +%s.%N")) - time.time() == pytest.approx(3600, abs=5)
    assert float(said(desktop, "date +%s.%N")) == pytest.approx(time.time(), abs=5)
    desktop.set_clock_offset(-1.5)
    assert float(said(desktop, "date +%s.%N")) < time.time() - 1.4
    assert said(desktop, "date -d @0 -u +%Y") == "1970"
    desktop.set_clock_offset(0)
    assert float(said(desktop, "date +%s.%N")) == pytest.approx(time.time(), abs=1)


# The operator's way in


def test_users_may_what_their_groups_and_sudoers_say(unequal: Lab) -> None:
    pi, anna, tom = (unequal.nodes[name] for name in ("pi-4", "anna", "desk"))
    assert pi.ssh("docker ps --quiet").stdout == "It's a pi\n"  # what a login shell says comes before all else
    assert pi.ssh("sudo -n id -un", check=False).stderr.strip() == "sudo: a password is required"
    assert pi.ssh("sudo -S -p '' id -un", stdin="raspberry\n").stdout == "It's a pi\nroot\n"
    assert pi.ssh("sudo -S -p '' id -un", stdin="wrong\n", check=False).returncode == 1

    assert "permission denied" in anna.ssh("docker ps", check=False).stderr
    assert anna.ssh("sudo -n docker ps --quiet").returncode == 0
    assert said(anna, "id -un; pwd") == "anna\n/home/anna"

    assert tom.ssh("sudo -n id -un", check=False).returncode == 1


def test_plain_ssh_and_paramiko_find_a_node_by_its_name(unequal: Lab) -> None:
    by_name = subprocess.run(
        ["ssh", "pi-4", "id -un"], env=unequal.environment, capture_output=True, text=True, check=True
    )
    assert by_name.stdout == "It's a pi\npi\n"
    assert unequal.nodes["pi-4"].address in (unequal.home / ".ssh" / "known_hosts").read_text()
    settings = paramiko.SSHConfig.from_path(str(unequal.home / ".ssh" / "config")).lookup("anna")
    with paramiko.SSHClient() as client:
        client.set_missing_host_key_policy(paramiko.AutoAddPolicy())
        client.connect(settings["hostname"], username=settings["user"], key_filename=settings["identityfile"])
        assert client.exec_command("id -un")[1].read() == b"anna\n"

    from_the_node = unequal.nodes["vm"].run(["ssh", "anna", "hostname"])
    assert from_the_node.stdout == "anna\n"


def test_ssh_servers_can_be_mute_deaf_or_shy(unequal: Lab) -> None:
    with socket.create_connection((unequal.nodes["mute"].address, 22), timeout=5) as mute:
        assert mute.recv(100).startswith(b"SSH-2.0-")
        mute.settimeout(1)
        with pytest.raises(TimeoutError):
            mute.recv(100)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((unequal.nodes["deaf"].address, 22), timeout=5)
    shy = (unequal.nodes["shy"].address, 22)
    with socket.create_connection(shy, timeout=5) as first, socket.create_connection(shy, timeout=5) as second:
        answers = [first.recv(100), _received(second)]
    assert answers[0].startswith(b"SSH-2.0-")
    assert not answers[1].startswith(b"SSH-2.0-")


def _received(connection: socket.socket) -> bytes:
    try:
        return connection.recv(100)
    except ConnectionResetError:
        return b""


def test_an_ssh_server_can_be_stopped_and_started(unequal: Lab) -> None:
    desktop = unequal.nodes["desk"]
    desktop.stop_sshd()
    with pytest.raises(LabError, match="Connection refused"):
        desktop.ssh("true")
    desktop.start_sshd()
    assert desktop.ssh("echo back").stdout == "back\n"


# Networks


def test_nothing_outside_the_lab_can_be_reached(unequal: Lab) -> None:
    assert said(unequal.nodes["anna"], "ip route").startswith(f"{unequal.network}.0/24 dev wlan0")
    assert "default" not in said(unequal.nodes["anna"], "ip route")


def test_containers_of_different_nodes_talk_over_the_overlay_network(swarm: Lab) -> None:
    manager = swarm.nodes["server-1"]
    image = tiny(swarm)
    manager.docker("network", "create", "--driver", "overlay", "between")
    manager.docker(
        "service", "create", "--detach", "--name", "talk", "--mode", "global", "--endpoint-mode", "dnsrr",
        "--network", "between", image,
    )  # fmt: skip
    eventually(lambda: all(container(node, "talk") for node in swarm.nodes.values()), 60, "a container everywhere")
    addresses = {}
    for node in swarm.nodes.values():
        networks = node.api.inspect_container(container(node, "talk"))["NetworkSettings"]["Networks"]
        addresses[node.name] = networks["between"]["IPAddress"]
    pi = swarm.nodes["pi-01"]
    for name, address in addresses.items():
        answer = pi.docker("exec", container(pi, "talk"), "ping", "-c", "2", "-W", "5", address, check=False)
        assert ", 0% packet loss" in answer.stdout, f"pi-01 to {name}"

    def names_all() -> bool:  # the nodes tell each other by gossip
        names = pi.docker("exec", container(pi, "talk"), "nslookup", "talk.", check=False).stdout
        return all(address in names for address in addresses.values())

    eventually(names_all, 30, "the service's name leads to all its containers")


def test_a_cut_cable_makes_a_node_down_and_a_healed_one_ready(swarm: Lab) -> None:
    pi = swarm.nodes["pi-02"]
    pi.cut()
    try:
        eventually(lambda: state_in_swarm(swarm, "pi-02") == "Down", 60, "the manager misses the node")
        assert pi.engine_running
    finally:
        pi.heal()
    eventually(lambda: state_in_swarm(swarm, "pi-02") == "Ready", 60, "the node is back")


def test_a_throttled_link_is_as_slow_as_it_is_told_both_ways(three_nodes: Lab) -> None:  # noqa: F811
    pi = three_nodes.nodes["pi-01"]
    megabyte = "head -c 1000000 /dev/zero"
    pi.throttle("4mbit")  # half a MB a second
    try:
        down = _seconds(lambda: pi.ssh(megabyte))
        up = _seconds(lambda: pi.ssh("cat >/dev/null", stdin="x" * 1_000_000))
    finally:
        pi.unthrottle()
    assert down > 1.8
    assert up > 1.8
    assert _seconds(lambda: pi.ssh(megabyte)) < min(down, up)


def _seconds(work: Callable[[], object]) -> float:
    start = time.monotonic()
    work()
    return time.monotonic() - start


# Engines


def test_a_killed_engine_loses_its_containers_and_starts_again(swarm: Lab) -> None:
    pi = swarm.nodes["pi-01"]
    image = tiny(swarm, "killed")
    name = pi.docker("run", "--detach", "--network", "host", image, "sleep", "98765").stdout.strip()
    pi.kill_engine()
    assert not pi.engine_running
    assert pi.ssh("pgrep -f 'sleep 9876[5]|dockerd$'", check=False).stdout == ""  # SSH goes on
    pi.start_engine()
    assert pi.api.inspect_container(name)["State"]["Status"] == "exited"
    eventually(lambda: state_in_swarm(swarm, "pi-01") == "Ready", 60, "the node is back")


def test_a_rebooted_machine_is_the_same_at_a_new_address_and_in_no_swarm(swarm: Lab) -> None:
    pi = swarm.nodes["pi-02"]
    identity = "cat /etc/machine-id /etc/ssh/ssh_host_ed25519_key.pub"
    before, address = said(pi, identity), pi.address
    pi.reboot(new_address=False, keep_swarm=True)
    assert pi.address == address
    eventually(lambda: pi.api.info()["Swarm"]["LocalNodeState"] == "active", 60, "back in the swarm")

    pi.reboot()
    assert pi.address != address
    assert said(pi, identity) == before
    assert said(pi, "ip -4 -o address show wlan0").split()[3] == f"{pi.address}/24"
    assert pi.api.info()["Swarm"]["LocalNodeState"] == "inactive"


def test_every_engine_that_is_unpacked_makes_a_swarm(lab_packages: list[Engine]) -> None:  # noqa: F811
    assert lab_packages
    for engine in lab_packages:
        with Lab({"engine": engine.version, "nodes": ["one", "two"]}) as lab:
            one, two = lab.nodes.values()
            assert one.api.version()["Version"].startswith(engine.version)
            one.docker("swarm", "init", "--advertise-addr", one.address)
            token = one.docker("swarm", "join-token", "--quiet", "manager").stdout.strip()
            two.docker("swarm", "join", "--token", token, f"{one.address}:2377")
            assert len(two.api.nodes()) == 2


# Making it and taking it down


def leftovers(name: str) -> list[str]:
    """Everything on this machine that a lab of that name could have left."""
    found = [str(path) for root in ("/run/netns", "/run/swarmctl-lab", "/var/tmp/swarmctl-lab") for path in
             Path(root).glob(f"*{name}*")]  # fmt: skip
    found += [str(path) for path in Path("/sys/fs/cgroup").glob(f"**/*{name}*") if path.is_dir()]
    found += [line for line in Path("/proc/self/mounts").read_text().splitlines() if name in line]
    for process in psutil.process_iter():
        try:
            mounts = Path(f"/proc/{process.pid}/mounts").read_text()
        except OSError:
            continue
        if name in mounts:
            found.append(str(process))
    return found


def links() -> set[str]:
    return {link["ifname"] for link in json.loads(subprocess.check_output(["ip", "-json", "link"]))}


def test_a_lab_that_is_down_has_left_nothing(lab_packages: list[Engine]) -> None:  # noqa: F811
    lab = Lab({"registry": True, "nodes": ["one", {"name": "two", "hardware": "rpi5"}]})
    with lab:
        image = tiny(lab)
        lab.nodes["one"].docker("run", "--detach", "--network", "host", image)
        cable = f"lab{lab.network.split('.')[2]}"
        assert cable in links()
        assert len(leftovers(lab.name)) > 10  # the search finds what there is
        living = {process.pid for node in lab.nodes.values() for process in processes(node.namespace)}
        assert len(living) > 6
    assert leftovers(lab.name) == []
    assert cable not in links()


CRASHING = """
import os, signal, sys
from tests.lab import Lab, LabNode
if sys.argv[1] == "booting":
    LabNode.wait = lambda node: os.kill(os.getpid(), signal.SIGKILL)
Lab({"registry": True, "nodes": ["one", "two"]}, name=sys.argv[2]).up()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("moment", ["booting", "running"])
def test_the_next_lab_takes_down_one_whose_maker_was_killed(
    moment: str, lab_packages: list[Engine]  # noqa: F811
) -> None:  # fmt: skip
    name = f"crash-{moment[0]}-{os.getpid()}"
    maker = subprocess.run([sys.executable, "-c", CRASHING, moment, name], cwd=REPOSITORY, check=False)
    assert maker.returncode == -signal.SIGKILL
    assert leftovers(name)
    with Lab({"nodes": ["one"]}, name=name) as lab:  # the very same name and files
        assert lab.nodes["one"].engine_running
    assert leftovers(name) == []


def test_a_lab_that_cannot_be_made_leaves_nothing(lab_packages: list[Engine], monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    monkeypatch.setattr(Lab, "_start_registry", _fail)
    lab = Lab({"registry": True, "nodes": ["one"]})
    with pytest.raises(LabError, match="no registry today"):
        lab.up()
    assert leftovers(lab.name) == []


def _fail(_: Lab) -> None:
    raise LabError("no registry today")


def test_labs_live_side_by_side_and_can_be_found_by_name(three_nodes: Lab, unequal: Lab) -> None:  # noqa: F811
    assert three_nodes.network != unequal.network
    again = labs.attach(three_nodes.name)
    assert again.nodes["server-1"].ssh("hostname").stdout == "server-1\n"
    assert again.nodes["pi-01"].address == three_nodes.nodes["pi-01"].address
    again.nodes["server-1"].close()
    with pytest.raises(LabError, match="already"):
        Lab({"nodes": ["one"]}, name=three_nodes.name).up()


def test_a_lab_can_be_made_from_the_command_line(lab_packages: list[Engine], tmp_path: Path) -> None:  # noqa: F811
    name = f"hand-{os.getpid()}"
    (tmp_path / "fleet.yml").write_text('nodes: [{name: "pi-[1-2]", hardware: rpi3}]\n')

    def lab(*words: str | Path) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "tests.lab", *words, "--name", name]
        return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)

    oldest = lab_packages[-1].version
    try:
        up = lab("up", tmp_path / "fleet.yml", "--engine", oldest)
        assert up.returncode == 0, up.stderr
        assert up.stdout.count(f"Docker {oldest}") == 2
        assert "there is a lab called" in lab("up", tmp_path / "fleet.yml").stderr
        status = subprocess.run(
            [sys.executable, "-m", "tests.lab", "status"], cwd=REPOSITORY, capture_output=True, text=True, check=True
        )
        assert up.stdout in status.stdout
        script = f". /var/tmp/swarmctl-lab/{name}/environment; ssh pi-1 hostname"
        assert subprocess.check_output(["sh", "-c", script], text=True) == "pi-1\n"
        inside = subprocess.run(
            [sys.executable, "-m", "tests.lab", "shell", "--name", name, "pi-2", "hostname"],
            cwd=REPOSITORY, capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert inside.stdout == "pi-2\n"
    finally:
        down = lab("down")
    assert down.stdout == f"{name} is down\n"
    assert leftovers(name) == []
    assert "there is no lab called" in lab("down").stderr


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ({}, "a list called nodes"),
        ({"nodes": ["a"], "engin": "28"}, "unknown engin"),
        ({"nodes": [{"name": "a", "hardware": "rpi9"}]}, "no hardware rpi9"),
        ({"nodes": [{"name": "a", "sudo": "maybe"}]}, "sudo is one of none, nopasswd, password"),
        ({"nodes": ["A_1"]}, "not A_1"),
        (Path("/nowhere.yml"), "/nowhere.yml: .*No such file"),
        ({"nodes": ["a-[1-2]", "a-2"]}, "twice in the lab: a-2"),
    ],
)
def test_a_wrong_lab_is_refused(text: dict[str, object] | Path, message: str) -> None:
    with pytest.raises(LabError, match=message):
        load(text)


def test_the_page_has_every_key_and_kind_and_its_labs_can_be_read() -> None:
    page = (REPOSITORY / "docs" / "lab.md").read_text()
    for name in (*(field.name for field in fields(NodeSpec)), *KINDS):
        assert f"`{name}`" in page
    for name, count in (("three.yml", 3), ("forty-five.yml", 45)):
        assert f"tests/lab/{name}" in page
        assert len(load(Path(__file__).with_name(name)).nodes) == count
