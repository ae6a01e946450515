"""Real OpenSSH servers on loopback, and a home folder of their client's own."""

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import psutil
import pytest

from swarmctl.fleet.inventory import Host

USER = pwd.getpwuid(os.getuid()).pw_name
_START_SEC = 10.0
_MARK = "SWARMCTL_TEST_SSHD"


@dataclass(frozen=True)
class Binary:
    """An sshd, and the folder of the libraries that were unpacked beside it."""

    path: Path
    libraries: Path | None = None


def find_sshd() -> Binary:
    """The system's sshd, or the one that the lab has unpacked, which root can have done now."""
    if installed := shutil.which("sshd", path="/usr/sbin:/usr/local/sbin"):
        return Binary(Path(installed))
    from tests.lab import packages

    unpacked = packages.tools() / "usr/sbin/sshd"
    if not unpacked.exists():
        try:
            packages.prepare()
        except packages.LabError as error:
            pytest.skip(f"there is no sshd here ({error}): apt install openssh-server")
    (wrapper,) = (packages.tools() / "usr/lib").rglob("libwrap.so.0")
    return Binary(unpacked, wrapper.parent)


def find_docker() -> Path:
    """A real docker command: this machine's, or the lab's."""
    from tests.lab import packages

    found = [Path(docker) for docker in [shutil.which("docker")] if docker]
    found += [engine.root / "usr/bin/docker" for engine in packages.engines()]
    if not found:
        pytest.skip("there is no docker command here: apt install docker-cli")
    return found[0]


def generate_key(path: Path, *, kind: str = "ed25519", passphrase: str = "") -> Path:
    """Make a key pair; returns the private half."""
    command = ["ssh-keygen", "-q", "-t", kind, "-N", passphrase, "-C", path.name, "-f", str(path)]
    subprocess.run(command, check=True)
    return path


class Sshd:
    """A server that lets in whoever has `key`, as the user who runs the tests."""

    def __init__(self, folder: Path, key: Path, *options: str, address: str = "127.0.0.1", port: int = 0) -> None:
        """Prepare it.

        Args:
            folder: For its files.
            key: The private key that lets in; more can be appended to `authorized`.
            options: More lines of its configuration.
            address: To listen at.
            port: To listen at; 0: a free one.
        """
        self.folder = folder
        self.address = address
        self.port = port or free_port(address)
        self.authorized = folder / "authorized_keys"
        self.log = folder / "log"
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(f"{key}.pub", self.authorized)
        self.new_host_key()

    def new_host_key(self, kind: str = "ed25519") -> None:
        """Give it another host key; it counts from the next start."""
        for old in self.folder.glob("host_key*"):
            old.unlink()
        generate_key(self.folder / "host_key", kind=kind)

    def start(self) -> Self:
        """Start it and wait until it listens."""
        config = self.folder / "config"
        config.write_text("\n".join(self._lines()) + "\n")
        binary = find_sshd()
        environment = {**os.environ, "LD_LIBRARY_PATH": str(binary.libraries or "")}
        with self.log.open("wb") as log:
            command = [*self._as_root(), str(binary.path), "-D", "-e", "-f", str(config)]
            self._process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        end = time.monotonic() + _START_SEC
        while b"Server listening" not in self.log.read_bytes():
            assert self._process.poll() is None, self.log.read_text()
            assert time.monotonic() < end, self.log.read_text()
            time.sleep(0.01)
        return self

    def stop(self) -> None:
        """End it with all of its sessions, and what they have left running."""
        if self._process:
            kill(psutil.Process(self._process.pid))
            self._process.wait()
            self._process = None
            for process in psutil.process_iter():
                with contextlib.suppress(psutil.Error):
                    if process.environ().get(_MARK) == str(self.folder):
                        kill(process)

    def sessions(self) -> list[psutil.Process]:
        """Its processes that serve a client."""
        assert self._process
        return psutil.Process(self._process.pid).children()

    def cut(self) -> None:
        """Break all of its connections, and go on listening."""
        for session in self.sessions():
            kill(session)

    def host(self, name: str = "pi-01", **changes: object) -> Host:
        """How to reach it."""
        return Host(**{"name": name, "address": self.address, "port": self.port, "user": USER, **changes})  # type: ignore[arg-type]

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _lines(self) -> Sequence[str]:
        ours = (
            f"Port {self.port}",
            f"ListenAddress {self.address}",
            f"HostKey {self.folder / 'host_key'}",
            f"AuthorizedKeysFile {self.authorized}",
            "PasswordAuthentication no",
            "KbdInteractiveAuthentication no",
            "StrictModes no",
            "UsePAM no",
            "PidFile none",
            "MaxStartups 100",
            "LogLevel VERBOSE",
        )
        # sshd heeds only the first SetEnv. A home of its own keeps the login shell from this machine's ~/.bashrc.
        extra = " ".join(option.removeprefix("SetEnv ") for option in self._options if option.startswith("SetEnv "))
        options = [option for option in self._options if not option.startswith("SetEnv ")]
        given = {option.split()[0] for option in options} - {"HostKey"}
        return (
            f"SetEnv HOME={self.folder} {_MARK}={self.folder} {extra}",
            *options,
            *(line for line in ours if line.split()[0] not in given),
        )

    def _as_root(self) -> Sequence[str]:
        """Root's sshd wants a user and a folder that only an installed package makes; it gets them for itself alone."""
        if os.geteuid() != 0 or _is_user("sshd"):
            return ()
        passwd = self.folder / "passwd"
        passwd.write_text(Path("/etc/passwd").read_text() + "sshd:x:65533:65534::/run/sshd:/usr/sbin/nologin\n")
        script = 'mount --bind "$1" /etc/passwd && mount -t tmpfs tmpfs /run && mkdir /run/sshd && shift && exec "$@"'
        return ("unshare", "--mount", "sh", "-c", script, "sh", str(passwd))


class Agent:
    """A real ssh-agent."""

    def __init__(self, folder: Path) -> None:
        """Start it and wait until it listens."""
        self.socket = folder / "agent.sock"
        self._process = subprocess.Popen(["ssh-agent", "-D", "-a", str(self.socket)], stdout=subprocess.DEVNULL)
        end = time.monotonic() + _START_SEC
        while not self.socket.exists():
            assert time.monotonic() < end, "ssh-agent does not start"
            time.sleep(0.01)

    def add(self, key: Path, passphrase: str) -> None:
        """Give it an encrypted key."""
        asker = key.with_name("askpass")
        asker.write_text(f"#!/bin/sh\necho '{passphrase}'\n")
        asker.chmod(0o700)
        subprocess.run(["ssh-add", "-q", str(key)], env=self._environment(asker), stdin=subprocess.DEVNULL, check=True)

    def stop(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()

    def _environment(self, asker: Path) -> Mapping[str, str]:
        ask = {"SSH_ASKPASS": str(asker), "SSH_ASKPASS_REQUIRE": "force"}
        return {**os.environ, **ask, "SSH_AUTH_SOCK": str(self.socket)}


def kill(process: psutil.Process) -> None:
    """End a process with all that it has started."""
    with contextlib.suppress(psutil.NoSuchProcess):  # it was quicker
        children = process.children(recursive=True)
        process.kill()
        for child in children:
            kill(child)


def free_port(address: str = "127.0.0.1") -> int:
    """A port at which nothing listens now."""
    with socket.create_server((address, 0)) as server:
        port: int = server.getsockname()[1]
        return port


def _is_user(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True
