"""The operator's side of a lab: a home with an SSH configuration, and the environment to run programs in.

Imports other parts of the lab.
"""

import os
import shlex
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from tests.lab.system import run

if TYPE_CHECKING:
    from tests.lab.node import LabNode

_NOT_PASSED_ON = ("SSH_AUTH_SOCK", "DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG", "SWARMCTL_STATE", "FORCE_COLOR")


def make_key(folder: Path) -> str:
    """A key pair in folder/.ssh; returns the public one."""
    ssh = folder / ".ssh"
    ssh.mkdir(parents=True, mode=0o700)
    run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "lab", "-f", ssh / "id_ed25519")
    return (ssh / "id_ed25519.pub").read_text()


def make_programs(home: Path, binaries: Path) -> None:
    """SSH programs that look for their files in this home."""
    binaries.mkdir(parents=True)
    for name in ("ssh", "scp", "sftp"):  # OpenSSH takes the home of /etc/passwd, whatever HOME says
        program = shutil.which(name)
        if program:
            (binaries / name).write_text(f'#!/bin/sh\nexec {program} -F "{home}/.ssh/config" "$@"\n')
            (binaries / name).chmod(0o755)


def write_config(ssh: Path, nodes: "Iterable[LabNode]", *, seen_as: Path) -> None:
    """Write ssh/config: where each node is just now, in the place of a name server.

    Args:
        ssh: Folder of a user's key.
        nodes: All that there are.
        seen_as: That folder's path for the user.
    """
    parts = [f"Host {node.name}\n    HostName {node.address}\n    User {node.spec.user}\n" for node in nodes]
    parts.append(
        f"Host *\n    IdentityFile {seen_as}/id_ed25519\n    IdentitiesOnly yes\n"
        f"    UserKnownHostsFile {seen_as}/known_hosts\n    GlobalKnownHostsFile /dev/null\n"
        "    StrictHostKeyChecking accept-new\n    LogLevel ERROR\n"
    )
    (ssh / "config.new").write_text("\n".join(parts))
    (ssh / "config.new").replace(ssh / "config")


def environment(home: Path, binaries: Path) -> dict[str, str]:
    """For programs that the operator runs from this machine."""
    kept = {name: value for name, value in os.environ.items() if name not in _NOT_PASSED_ON}
    return {**kept, **_settings(home), "PATH": f"{binaries}:{os.environ['PATH']}"}


def write_environment(path: Path, home: Path, binaries: Path) -> None:
    """The same, for a shell to read with ``.``"""
    lines = [f"unset {' '.join(_NOT_PASSED_ON)}", f'export PATH={shlex.quote(str(binaries))}:"$PATH"']
    lines += [f"export {name}={shlex.quote(value)}" for name, value in _settings(home).items()]
    path.write_text("\n".join(lines) + "\n")


def _settings(home: Path) -> dict[str, str]:
    return {"HOME": str(home), "SWARMCTL_STATE": str(home / "state"), "NO_COLOR": "1"}
