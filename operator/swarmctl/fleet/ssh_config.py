"""Where an SSH connection goes and how, out of a host's own settings and ~/.ssh/config.

May import: ``inventory``, ``ssh_errors``.
"""

import os
import pwd
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import paramiko
from paramiko.config import SSH_PORT

from ..paths import expanded
from .inventory import Host, parse_hop
from .ssh_errors import SshConfigError

_DEFAULT_IDENTITIES = ("id_ed25519", "id_ecdsa", "id_rsa")
_DEEPEST_INCLUDE = 16
_SYSTEM_KNOWN_HOSTS = Path("/etc/ssh/ssh_known_hosts")


@dataclass(frozen=True)
class SshSettings:
    """What holds for all connections.

    Attributes:
        config_path: OpenSSH's client configuration; need not exist.
        known_hosts: Where host keys are remembered, unless the configuration has UserKnownHostsFile.
        use_agent: Whether to ask the agent at SSH_AUTH_SOCK for keys.
        sudo_password: For sudo on the machines, where one is needed and known.
    """

    config_path: Path = field(default_factory=lambda: _in_home("config"))
    known_hosts: Path = field(default_factory=lambda: _in_home("known_hosts"))
    use_agent: bool = True
    sudo_password: str | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Target:
    """One SSH server, and how to log in there.

    Attributes:
        name: As the host is called here.
        address: Name or address to connect to.
        port: Of its SSH server.
        user: Login.
        identities: Private key files: those named for it, or else the usual ones that there are.
        only_identities: Whether no other keys may be tried.
        jump: Servers to go through, in this order.
        known_hosts: Files with host keys; new ones are added to the first.
        key_name: Under which its host key is known.
        strict: Whether an unknown host key is refused.
    """

    name: str
    address: str
    port: int
    user: str
    identities: tuple[Path, ...]
    only_identities: bool
    jump: tuple["Target", ...]
    known_hosts: tuple[Path, ...]
    key_name: str
    strict: bool

    @property
    def label(self) -> str:
        """For messages: ``pi-01 (192.168.1.7:22)``, or ``192.168.1.7:22``."""
        place = f"[{self.address}]:{self.port}" if ":" in self.address else f"{self.address}:{self.port}"
        return place if self.name == self.address else f"{self.name} ({place})"

    @property
    def login(self) -> str:
        """For messages: ``pi@pi-01``."""
        return f"{self.user}@{self.name}"

    @property
    def arguments(self) -> str:
        """For OpenSSH's commands: ``-p 2222 pi@192.168.1.7``."""
        port = "" if self.port == SSH_PORT else f"-p {self.port} "
        return f"{port}{self.user}@{self.address}"


def resolve(host: Host, settings: SshSettings) -> Target:
    """Find out how to reach a host: its own settings first, then ~/.ssh/config, then OpenSSH's defaults.

    Raises:
        SshConfigError: The configuration can't be used.
    """
    return _resolve(host, settings, _read(settings.config_path), ())


def knows(name: str, settings: SshSettings) -> bool:
    """Whether ~/.ssh/config has a Host line with this very name."""
    lines = _lines_of(settings.config_path)
    return any(words[1:] and words[0].lower() == "host" and name in words[1:] for words in map(_words, lines))


def _resolve(host: Host, settings: SshSettings, config: paramiko.SSHConfig, on_the_way: tuple[str, ...]) -> Target:
    found = _look_up(host, config, settings.config_path)
    address = host.address or found["hostname"]
    port = host.port or int(found.get("port", SSH_PORT))
    identities = (*([host.identity] if host.identity else []), *map(_path, found.get("identityfile", [])))
    hops = _hops(host, found.get("proxyjump"), (*on_the_way, host.name))
    return Target(
        name=host.name,
        address=address,
        port=port,
        user=host.user or found.get("user") or pwd.getpwuid(os.getuid()).pw_name,
        identities=identities or tuple(path for path in map(_in_home, _DEFAULT_IDENTITIES) if path.exists()),
        only_identities=found.get("identitiesonly", "no").lower() == "yes",
        jump=tuple(_resolve(hop, settings, config, (*on_the_way, host.name)) for hop in hops),
        known_hosts=(*_known_hosts(found.get("userknownhostsfile"), settings), _SYSTEM_KNOWN_HOSTS),
        key_name=found.get("hostkeyalias") or (address.lower() if port == SSH_PORT else f"[{address.lower()}]:{port}"),
        strict=found.get("stricthostkeychecking", "ask").lower() in ("yes", "true"),
    )


def _look_up(host: Host, config: paramiko.SSHConfig, path: Path) -> Mapping[str, Any]:
    try:
        found = config.lookup(host.name)
        int(found.get("port", SSH_PORT))
        for hop in found.get("proxyjump", "none").split(","):
            parse_hop(hop.strip())
    except (ValueError, KeyError, paramiko.SSHException) as error:
        raise SshConfigError(path, f"what it says for {host.name} can't be followed: {error}") from error
    if found.get("proxycommand") and host.jump is None:
        raise SshConfigError(path, f"the ProxyCommand for {host.name} can't be followed here: use ProxyJump")
    return found


def _hops(host: Host, configured: str | None, on_the_way: tuple[str, ...]) -> list[Host]:
    """The servers that a host is reached through; none is reached through itself, whatever ``Host *`` says."""
    texts = host.jump
    if texts is None:
        texts = () if configured in (None, "none") else tuple(configured.split(","))
    hops = [parse_hop(text.strip()) for text in texts]
    # As with `ssh -J`, only the first is looked up for a way of its own: the others are reached through it.
    return [
        replace(hop, identity=host.identity, jump=None if i == 0 else ())
        for i, hop in enumerate(hop for hop in hops if hop.name not in on_the_way)
    ]


def _known_hosts(configured: str | None, settings: SshSettings) -> tuple[Path, ...]:
    if configured is None:
        return (settings.known_hosts,)
    return tuple(Path(os.devnull) if path == "none" else _path(path) for path in shlex.split(configured))


def _read(path: Path) -> paramiko.SSHConfig:
    try:
        return paramiko.SSHConfig.from_text("\n".join(_lines_of(path)))
    except paramiko.SSHException as error:
        raise SshConfigError(path, str(error)) from error


def _lines_of(path: Path) -> list[str]:
    try:
        return list(_lines(path))
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise SshConfigError(path, str(error)) from error


def _lines(path: Path, depth: int = 0) -> Iterator[str]:
    """A configuration's lines with those of the files that it includes, which paramiko passes over."""
    if depth > _DEEPEST_INCLUDE:
        raise ValueError(f"Include goes deeper than {_DEEPEST_INCLUDE} files")
    block = "Host *"
    for line in path.read_text(encoding="utf-8").splitlines():
        keyword, *arguments = _words(line) or [""]
        if keyword.lower() != "include":
            block = line if keyword.lower() in ("host", "match") else block
            if keyword.lower() == "match" and "exec" in arguments:  # paramiko would have it read our stdin
                raise ValueError("'Match exec' can't be followed here: use Host lines")
            yield line
            continue
        for pattern in arguments:
            absolute = _in_home("") / _path(pattern)
            for included in sorted(Path("/").glob(str(absolute.relative_to("/")))):
                yield from _lines(included, depth + 1)
        yield block  # what follows belongs to the same hosts as before


def _words(line: str) -> list[str]:
    """A line as OpenSSH splits it: by blanks, with quotes, and perhaps one = after the keyword."""
    return shlex.split(re.sub(r"^\s*(\w+)\s*=", r"\1 ", line), comments=True)


def _in_home(name: str) -> Path:
    return expanded("~/.ssh") / name


def _path(text: str) -> Path:
    return expanded(text)
