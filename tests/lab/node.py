"""One machine of a lab: its namespaces, its engine, its SSH server, and what can happen to it.

Imports other parts of the lab.
"""

import contextlib
import json
import os
import secrets
import shlex
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import docker
import psutil
from docker.errors import DockerException
from requests.exceptions import RequestException

from tests.lab import hardware, packages
from tests.lab.packages import LabError
from tests.lab.spec import NodeSpec
from tests.lab.system import NAMESPACES, delete_namespaces, eventually, kill, processes, run

if TYPE_CHECKING:
    from tests.lab.lab import Lab

REPOSITORY = Path(__file__).resolve().parents[2]
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_ENGINE_PROGRAMS = ("docker", "dockerd", "containerd", "docker-proxy", "docker-init", "runc", "docker-compose", "ctr")
_USER_ID = 2001
_DOCKER_GROUP_ID = 2375
# Says what it is and nothing more, ever.
_HANGING_SSHD = """
import socket
server, held = socket.create_server(("", 22)), []
while True:
    client, _ = server.accept()
    client.sendall(b"SSH-2.0-OpenSSH_9.2p1 Debian-2\\r\\n")
    held.append(client)
"""


class LabNode:
    """A machine with an engine, an SSH server, a name and hardware of its own.

    Attributes:
        spec: As the lab file has it.
        name: How the operator calls it.
        address: Its IPv4 address just now.
        number: Counted from 0; its port on the switch is called ``p`` and this number.
        folder: Its files.
        socket: Its Docker socket, as a path on this machine.
    """

    def __init__(self, lab: "Lab", spec: NodeSpec, number: int, address: str) -> None:
        self.lab = lab
        self.spec = spec
        self.name = spec.name
        self.number = number
        self.address = address
        self.hardware = spec.hardware
        self.folder = lab.folder / "nodes" / spec.name
        self.run_folder = lab.state_folder / "run" / spec.name
        self.socket = self.run_folder / "docker.sock"
        self.namespace = f"{lab.namespace}.{spec.name}"
        self._init: psutil.Process | None = None
        self._api: docker.APIClient | None = None

    # What it is

    @property
    def device(self) -> str:
        """Its network device."""
        return "wlan0" if hardware.KINDS[self.spec.hardware].wireless else "eth0"

    @property
    def port(self) -> str:
        """The other end of its cable, in the switch."""
        return f"p{self.number}"

    @property
    def engine(self) -> packages.Engine:
        """The unpacked engine that it runs."""
        return packages.engine(self.spec.engine or self.lab.spec.engine)

    @property
    def machine_id(self) -> str:
        """Of /etc/machine-id; it survives a reboot."""
        return (self.folder / "upper" / "etc" / "machine-id").read_text().strip()

    @property
    def init(self) -> psutil.Process:
        """Its first process. When that dies, everything in the node does.

        Raises:
            LabError: The node does not run.
        """
        if self._init and self._init.is_running():
            return self._init
        for process in processes(self.namespace):
            with contextlib.suppress(psutil.NoSuchProcess):
                if _is_init(process):
                    self._init = process
                    return process
        raise LabError(f"{self.name} does not run")

    @property
    def api(self) -> docker.APIClient:
        """The engine's API, by its own version."""
        if not self._api:
            self._api = docker.APIClient(base_url=f"unix://{self.socket}", version="auto", timeout=60)
        return self._api

    @property
    def engine_running(self) -> bool:
        """Whether the engine answers."""
        try:
            return bool(self.api.ping())
        except (DockerException, RequestException):
            return False

    # Programs in it

    def inside(self, *argv: str, folder: str | Path = "/", environment: Mapping[str, str] | None = None) -> list[str]:
        """The command that runs another one in the node, as root, with an environment of the node's own."""
        own = {"PATH": PATH, "HOME": "/root", "LANG": "C.UTF-8", "USER": "root", **(environment or {})}
        return [
            "nsenter", "--target", str(self.init.pid), "--mount", "--uts", "--ipc", "--net", "--pid", "--root",
            "env", "-i", f"--chdir={folder}", *(f"{name}={value}" for name, value in own.items()), *argv,
        ]  # fmt: skip

    def run(
        self,
        argv: Sequence[str | Path],
        *,
        check: bool = True,
        timeout: float = 120,
        stdin: str | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> "subprocess.CompletedProcess[str]":
        """Run a program in the node as root, in this process's folder.

        The checkout, its virtual environment and /tmp are what they are outside.

        Raises:
            LabError: It failed, and `check` is set.
        """
        settings = {"NO_COLOR": "1", "SWARMCTL_STATE": "/root/state", **(environment or {})}
        command = self.inside(*map(str, argv), folder=Path.cwd(), environment=settings)
        return _ended(subprocess.run(
            command, input=stdin, stdin=None if stdin is not None else subprocess.DEVNULL,
            capture_output=True, text=True, check=False, timeout=timeout,
        ), check, f"{self.name}: {' '.join(map(str, argv))}")  # fmt: skip

    def docker(
        self, *arguments: str | Path, check: bool = True, timeout: float = 120, stdin: str | None = None
    ) -> "subprocess.CompletedProcess[str]":
        """The Docker command line of the node's own version, in the node.

        Raises:
            LabError: It failed, and `check` is set.
        """
        return self.run(["docker", *arguments], check=check, timeout=timeout, stdin=stdin)

    def ssh(
        self, command: str, *, check: bool = True, timeout: float = 60, stdin: str | None = None
    ) -> "subprocess.CompletedProcess[str]":
        """Run a command by real SSH, as the operator.

        Raises:
            LabError: It failed, and `check` is set.
        """
        ended = subprocess.run(
            ["ssh", "-o", "BatchMode=yes", self.name, command], env=self.lab.environment, input=stdin,
            stdin=None if stdin is not None else subprocess.DEVNULL, capture_output=True, text=True, check=False,
            timeout=timeout, executable=str(self.lab.binaries / "ssh"),
        )  # fmt: skip
        return _ended(ended, check, f"ssh {self.name} {command}")

    # Life and death

    def boot(self) -> None:
        """Make the machine and start its SSH server and engine; `wait` waits for them."""
        self._link()
        self._write_disk()
        keep = sorted({str(REPOSITORY), sys.prefix, sys.base_prefix, str(packages.cache()), str(self.lab.folder)})
        covered = ("/root", "/home", "/usr", "/etc", "/run", "/var/lib")
        keep = [path for path in keep if path.startswith(tuple(f"{folder}/" for folder in covered))]
        tree = self.engine.root if self.spec.docker else self.folder / "no-engine"
        starter = subprocess.Popen(
            [
                "nsenter", f"--net={NAMESPACES / self.namespace}",
                "unshare", "--mount", "--uts", "--ipc", "--pid", "--fork", "--propagation", "private",
                "sh", Path(__file__).with_name("node.sh"), self.folder, self.run_folder, self.spec.hostname,
                self.device, tree, packages.tools(), *keep,
            ],
            env={"PATH": PATH}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            start_new_session=True,
        )  # fmt: skip
        self.lab.children.append(starter)
        assert starter.stdout
        assert starter.stderr
        if starter.stdout.readline() != "ready\n":
            raise LabError(f"{self.name} does not boot: {starter.stderr.read().strip()}")
        starter.stdout.close()
        starter.stderr.close()
        self._init = None
        self.start_sshd()
        if self.spec.docker:
            self._start_dockerd()

    def wait(self, seconds: float = 120) -> None:
        """Wait until its engine answers.

        Raises:
            LabError: It doesn't; with the end of its log.
        """
        if self.spec.docker:
            self._await("dockerd", lambda: self.engine_running, seconds)

    def close(self) -> None:
        """Let go of the connection to its engine."""
        if self._api:
            self._api.close()
        self._api = None

    def power_off(self) -> None:
        """Cut its power: everything in it dies at once; its disk stays."""
        self.close()
        # The cable first: the kernel takes its time with a namespace's devices, and the next boot needs the port.
        run("ip", "-n", self.lab.namespace, "link", "delete", self.port)
        delete_namespaces([self.namespace])
        shutil.rmtree(self.run_folder)

    def power_on(self, *, new_address: bool = False, keep_swarm: bool = True) -> None:
        """Boot after `power_off` as the same machine: machine-id, host key, images.

        Args:
            new_address: As after a new DHCP lease. An address is never given to another node later.
            keep_swarm: Whether it remembers that it was in a swarm.
        """
        if not keep_swarm:
            for name in ("swarm", "containers", "network"):
                if (self.folder / "docker" / name).exists():
                    shutil.rmtree(self.folder / "docker" / name)
        if new_address:
            self.address = self.lab.next_address()
        self.lab.record()
        self.boot()
        self.wait()

    def reboot(self, *, new_address: bool = True, keep_swarm: bool = False) -> None:
        """`power_off` and `power_on`: as a rule, at a new address and with its place in the swarm forgotten."""
        self.power_off()
        self.power_on(new_address=new_address, keep_swarm=keep_swarm)

    def start_engine(self) -> None:
        """Start the engine and wait until it answers."""
        if not self.engine_running:
            self._start_dockerd()
            self.wait()

    def kill_engine(self) -> None:
        """SIGKILL for the engine and its containers, as a power cut would; the SSH server stays."""
        init = self.init

        def victims() -> list[psutil.Process]:
            spared = _with_descendants([child for child in _children(init) if _is_sleeper(child) or _is_sshd(child)])
            return [process for process in _descendants(init) if process not in spared]

        kill(victims, f"the engine of {self.name}")

    def start_sshd(self) -> None:
        """Start the SSH server, of the kind that the lab file asks for, and wait until it listens."""
        if self.spec.sshd == "off":
            return
        hanging = [sys.executable, "-S", "-c", _HANGING_SSHD]
        self._start("sshd", ["/usr/sbin/sshd", "-D", "-e"] if self.spec.sshd == "ok" else hanging)
        listening = ":0016 00000000:0000 0A"  # /proc/net/tcp: port 22, no peer, LISTEN
        table = Path(f"/proc/{self.init.pid}/net/tcp")
        self._await("sshd", lambda: listening in table.read_text(), 20)

    def stop_sshd(self) -> None:
        """Kill the SSH server and its sessions."""
        init = self.init
        kill(lambda: _with_descendants([child for child in _children(init) if _is_sshd(child)]), f"sshd of {self.name}")

    # Its link and its looks

    def throttle(self, rate: str = "2mbit", latency: str = "400ms") -> None:
        """Make its link as slow as bad WiFi, both ways: a rate, and a queue of at most so long."""
        shape = ("root", "tbf", "rate", rate, "burst", "32kb", "latency", latency)
        run("tc", "-n", self.namespace, "qdisc", "replace", "dev", self.device, *shape)
        run("tc", "-n", self.lab.namespace, "qdisc", "replace", "dev", self.port, *shape)

    def unthrottle(self) -> None:
        """Undo `throttle`."""
        for namespace, device in ((self.namespace, self.device), (self.lab.namespace, self.port)):
            if "tbf" in run("tc", "-n", namespace, "qdisc", "show", "dev", device):
                run("tc", "-n", namespace, "qdisc", "del", "dev", device, "root")

    def cut(self) -> None:
        """Let nothing pass its cable any more, and tell nobody: its device stays up."""
        self._port("disabled")

    def heal(self) -> None:
        """Undo `cut`."""
        self._port("forwarding")

    def set_mtu(self, mtu: int) -> None:
        """Set its device's MTU, in bytes."""
        run("ip", "-n", self.namespace, "link", "set", self.device, "mtu", str(mtu))

    def set_hardware(self, kind: str) -> None:
        """Look like another machine from now on."""
        hardware.write(self.folder / "hardware", kind)
        self.hardware = kind

    def set_clock_offset(self, seconds: float) -> None:
        """Let its `date` be ahead, or behind; the kernel has one clock for all."""
        hardware.set_clock(self.folder / "hardware", seconds)

    def set_throttled(self, bits: int) -> None:
        """What a Pi's `vcgencmd get_throttled` says."""
        hardware.set_throttled(self.folder / "hardware", bits)

    # Parts of the above

    def _link(self) -> None:
        """Its network namespace, and a cable from there to the switch."""
        port = self.port
        run("ip", "netns", "add", self.namespace)
        run("ip", "-n", self.lab.namespace, "link", "add", port, "type", "veth",
            "peer", "name", self.device, "netns", self.namespace)  # fmt: skip
        run("ip", "-n", self.lab.namespace, "link", "set", port, "master", "br0", "up")
        run("ip", "-n", self.namespace, "address", "add", f"{self.address}/24", "brd", "+", "dev", self.device)
        run("ip", "-n", self.namespace, "link", "set", self.device, "up")

    def _port(self, state: str) -> None:
        run("bridge", "-n", self.lab.namespace, "link", "set", "dev", self.port, "state", state)

    def _write_disk(self) -> None:
        """Everything on its disk; what is there from before the last boot stays."""
        self.run_folder.mkdir(parents=True)
        for name in ("docker", "root", "home", "log", "keep", "no-engine/usr", "upper/etc/ssh", "upper/etc/docker"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        hardware.write(self.folder / "hardware", self.hardware)
        etc = self.folder / "upper" / "etc"
        if not (etc / "machine-id").exists():
            (etc / "machine-id").write_text((self.spec.machine_id or secrets.token_hex(16)) + "\n")
        (etc / "hostname").write_text(self.spec.hostname + "\n")
        (etc / "hosts").write_text(f"127.0.0.1 localhost\n127.0.1.1 {self.spec.hostname}\n")
        (etc / "resolv.conf").write_text("# No name server: the lab knows nothing outside.\n")
        settings = {
            "bridge": "none",
            "cgroup-parent": f"/{self.lab.cgroup}/{self.name}",
            "exec-opts": ["native.cgroupdriver=cgroupfs"],
            "insecure-registries": [self.lab.registry],
            "shutdown-timeout": 1,
        }
        (etc / "docker" / "daemon.json").write_text(json.dumps(settings))
        self._write_ssh(etc / "ssh")
        self._write_users(etc)
        self._hide_the_systems_docker()
        self._dress()

    def _write_ssh(self, ssh: Path) -> None:
        if not (ssh / "ssh_host_ed25519_key").exists():
            run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", self.name, "-f", ssh / "ssh_host_ed25519_key")
        (ssh / "authorized_keys").write_text(self.lab.public_key)
        (ssh / "sshd_config").write_text(
            "HostKey /etc/ssh/ssh_host_ed25519_key\nAuthorizedKeysFile /etc/ssh/authorized_keys\nUsePAM no\n"
            "PasswordAuthentication no\nKbdInteractiveAuthentication no\nPermitRootLogin yes\nUseDNS no\n"
            f"MaxStartups {self.spec.max_startups}\nMaxSessions 100\nPrintMotd no\nPidFile /run/sshd.pid\n"
            "AllowStreamLocalForwarding yes\nSubsystem sftp /usr/lib/openssh/sftp-server\n"
        )

    def _write_users(self, etc: Path) -> None:
        """Root, the system's own users without passwords, and the node's user."""
        user, root = self.spec.user, self.spec.user == "root"
        ours = {user, "docker", "sshd", "root"}
        system = [line for line in Path("/etc/passwd").read_text().splitlines() if line.split(":")[0] not in ours]
        groups = [line for line in Path("/etc/group").read_text().splitlines() if line.split(":")[0] not in ours]
        passwd = ["root:x:0:0:root:/root:/bin/bash", "sshd:x:2002:65534::/run/sshd:/usr/sbin/nologin", *system]
        group = ["root:x:0:", *groups]
        group.append(f"docker:x:{_DOCKER_GROUP_ID}:{user if self.spec.docker_group and not root else ''}")
        secrets_of = {line.split(":")[0]: "*" for line in passwd}
        home = self.folder / "root"
        if not root:
            home = self.folder / "home" / user
            home.mkdir(exist_ok=True)
            os.chown(home, _USER_ID, _USER_ID)
            passwd.append(f"{user}:x:{_USER_ID}:{_USER_ID}::/home/{user}:/bin/bash")
            group.append(f"{user}:x:{_USER_ID}:")
            secrets_of[user] = run("openssl", "passwd", "-6", self.spec.password).strip()
        if self.spec.greeting:  # Debian's bash reads this one for `ssh HOST COMMAND`
            (home / ".bashrc").write_text(f"printf '%s\\n' {shlex.quote(self.spec.greeting)}\n")
        (etc / "passwd").write_text("".join(line + "\n" for line in passwd))
        (etc / "group").write_text("".join(line + "\n" for line in group))
        _secret(etc / "shadow", "".join(f"{name}:{word}:19000:0:99999:7:::\n" for name, word in secrets_of.items()))
        may = {
            "none": "",
            "nopasswd": f"{user} ALL=(ALL:ALL) NOPASSWD: ALL\n",
            "password": f"{user} ALL=(ALL:ALL) ALL\n",
        }
        _secret(etc / "sudoers", "root ALL=(ALL:ALL) ALL\n" + may[self.spec.sudo])

    def _hide_the_systems_docker(self) -> None:
        """This machine may have a Docker of its own: in the node's overlay it is deleted."""
        for folder in ("bin", "sbin", "local/bin", "local/sbin"):
            for name in _ENGINE_PROGRAMS:
                ours = any((tree / "usr" / folder / name).exists() for tree in (self.engine.root, packages.tools()))
                gone = self.folder / "upper" / "usr" / folder / name
                if (Path("/usr") / folder / name).exists() and not (ours and self.spec.docker) and not gone.exists():
                    gone.parent.mkdir(parents=True, exist_ok=True)
                    os.mknod(gone, stat.S_IFCHR, os.makedev(0, 0))  # overlayfs's way to say: deleted here

    def _dress(self) -> None:
        """Programs that tell what the machine is come from its hardware's folder."""
        programs = self.folder / "upper" / "usr" / "bin"
        programs.mkdir(parents=True, exist_ok=True)
        for name in hardware.PROGRAMS:
            (programs / name).unlink(missing_ok=True)
            (programs / name).symlink_to(self.folder / "hardware" / "bin" / name)
        for name in ("uname", "date"):  # those that ours ask in turn
            shutil.copy2(f"/usr/bin/{name}", programs / f"{name}.real")
        self.set_clock_offset(self.spec.clock_offset)

    def _start(self, name: str, argv: Sequence[str]) -> None:
        """Start a service as a child of the node's init."""
        with (self.folder / "log" / name).open("ab") as log:
            subprocess.run(
                self.inside("setsid", "-f", *argv), stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=True
            )

    def _start_dockerd(self) -> None:
        for name in ("docker.pid", "docker/containerd/containerd.pid"):  # their numbers may be other processes by now
            (self.run_folder / name).unlink(missing_ok=True)
        self._start("dockerd", ["dockerd"])

    def _await(self, service: str, ready: Callable[[], object], seconds: float) -> None:
        try:
            eventually(ready, seconds, f"{service} of {self.name} is up")
        except LabError as error:
            raise LabError(f"{error}\n{(self.folder / 'log' / service).read_text()[-2000:]}") from None


def _ended(ended: "subprocess.CompletedProcess[str]", check: bool, what: str) -> "subprocess.CompletedProcess[str]":
    if check and ended.returncode:
        raise LabError(f"{what}: exit status {ended.returncode}\n{ended.stdout}{ended.stderr}")
    return ended


def _secret(path: Path, text: str) -> None:
    path.touch()
    path.chmod(0o440)
    path.write_text(text)


def _is_init(process: psutil.Process) -> bool:
    """Whether it is the first in a process namespace right below ours: a container's is further down."""
    for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
        if line.startswith("NSpid:"):
            return len(line.split()) == 3 and line.split()[-1] == "1"
    return False


def _is_sleeper(process: psutil.Process) -> bool:
    return _command(process) == ["sleep", "2147483647"]  # what node.sh gives its init to wait for


def _is_sshd(process: psutil.Process) -> bool:
    return _HANGING_SSHD in _command(process) or _name(process) == "sshd"


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:  # it has ended while we looked; a zombie counts as such
        return []


def _name(process: psutil.Process) -> str:
    try:
        return process.name()
    except psutil.NoSuchProcess:
        return ""


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children()
    except psutil.NoSuchProcess:
        return []


def _descendants(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _with_descendants(parents: list[psutil.Process]) -> list[psutil.Process]:
    return [*parents, *(process for parent in parents for process in _descendants(parent))]
