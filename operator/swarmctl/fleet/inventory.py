"""The fleet file: which machines there are and how to reach them; and hosts as they are named on a command line.

The file is optional: whatever `ssh HOST` reaches can be named as it is. May import: ``schema``, ``errors``; ``fdtc``
for the profiles.
"""

import ipaddress
import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from .. import schema
from ..errors import FleetError, UsageError
from ..paths import expanded
from ..schema import Either, Integer, Keys, Listing, Problem, Text

HERE = "here"
ALL = "all"
MOST_HOSTS_OF_A_PATTERN = 1000
ROLES = ("worker", "manager")
# No dash first: it would be an option to ssh.
_NAME = re.compile(r"\w[\w.-]*")
_USER = re.compile(r"[^\s@-][^\s@]*")
_BRACKETS = re.compile(r"\[([^\]:]*)\]")  # with a colon in them they hold an IPv6 address
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")
_WORD = re.compile(r"(?:(?P<user>[^@\s]+)@)?(?P<name>[^@\s]+?)(?::(?P<port>\d+))?")


@dataclass(frozen=True)
class Host:
    """One machine and how to reach it; what is None is left to ~/.ssh/config.

    Attributes:
        name: What it is called here, unique in a fleet; ``here`` is this machine, without SSH.
        address: Name or address to connect to; empty: the name, or what ~/.ssh/config says for it.
        user: Login.
        port: Of its SSH server.
        identity: Private key file.
        jump: Hosts to go through, each ``user@host:port``; empty: none, whatever ~/.ssh/config says.
        hardware_class: Such as ``rpi``; goes before what a probe finds.
        profile: Such as ``RPI4_4G``; the same.
        advertise: Address that it should have in the swarm.
        role: ``worker`` or ``manager``.
    """

    name: str
    address: str = ""
    user: str | None = None
    port: int | None = None
    identity: Path | None = None
    jump: tuple[str, ...] | None = None
    hardware_class: str | None = None
    profile: str | None = None
    advertise: str | None = None
    role: str = "worker"

    @property
    def is_here(self) -> bool:
        """Whether it is this machine."""
        return self.name == HERE


@dataclass(frozen=True)
class Inventory:
    """The hosts of a fleet file, in its order.

    Attributes:
        path: Where it was read from; None: there is no file.
        hosts: With the file's defaults filled in; names are unique.
    """

    path: Path | None = None
    hosts: tuple[Host, ...] = ()

    def find(self, name_or_address: str) -> Host | None:
        """A host by its name, or else by its address."""
        by_name = (host for host in self.hosts if host.name == name_or_address)
        by_address = (host for host in self.hosts if host.address == name_or_address)
        return next(itertools.chain(by_name, by_address), None)


EMPTY = Inventory()


def load(path: Path) -> Inventory:
    """Read a fleet file.

    Raises:
        UsageError: It can't be read.
        FleetError: It has mistakes; the message lists all of them with file, line and column.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"can't read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise FleetError(f"{path}: not UTF-8 text (byte {error.start})") from error
    try:
        content, problems = schema.read(text, _file_schema())
    except yaml.YAMLError as error:  # characters that no YAML file may have
        raise FleetError(f"{path}: not valid YAML: {error}") from error
    if not problems:
        entries = [entry for entries in content["hosts"] for entry in entries]
        hosts = [_complete(entry.host, content.get("ssh", {}), path.parent) for entry in entries]
        problems = list(_duplicates(hosts, entries))
    if problems:
        raise FleetError(_report(path, problems))
    return Inventory(path, tuple(hosts))


def expand(words: Sequence[str], inventory: Inventory = EMPTY) -> list[Host]:
    """Hosts as they are named on a command line, each once, in the words' order.

    Args:
        words: Names and addresses, in the fleet file or not; patterns such as ``pi-[01-20]``; ``user@host:port``;
            ``all`` for the whole fleet file.
        inventory: The fleet file's hosts.

    Raises:
        UsageError: A word is none of these.
    """
    found: dict[str, Host] = {}
    for word in words:
        if word == ALL and not inventory.hosts:
            raise UsageError(f"{ALL!r} are the hosts of a fleet file, and there are none")
        try:
            hosts = inventory.hosts if word == ALL else [_known(host, inventory) for host in _parse(word)]
        except ValueError as error:
            raise UsageError(f"{word!r} names no host: {error}") from error
        found.update({host.name: host for host in hosts})
    return list(found.values())


def parse_hop(text: str) -> Host:
    """A host to jump through, from ``user@host:port``.

    Raises:
        ValueError: The text names none; the message says why.
    """
    hosts = _parse(text)
    if len(hosts) > 1:
        raise ValueError("a pattern stands for many hosts, and a jump goes through one")
    return hosts[0]


def render(hosts: Sequence[Host]) -> str:
    """A fleet file's text, which `load` reads to the same hosts."""
    rows = [{key: value for key, value in as_data(host).items() if value} for host in hosts]
    entries = [row["name"] if row.keys() == {"name", "role"} and row["role"] == "worker" else row for row in rows]
    return yaml.safe_dump({"hosts": entries}, sort_keys=False, allow_unicode=True)


def as_data(host: Host) -> dict[str, Any]:
    """A host in the keys of the file, None for what it does not say."""
    return {
        "name": host.name,
        "address": host.address or None,
        "user": host.user,
        "port": host.port,
        "identity": host.identity and str(host.identity),
        "jump": "none" if host.jump == () else host.jump and ",".join(host.jump),
        "class": host.hardware_class,
        "profile": host.profile,
        "advertise": host.advertise,
        "role": host.role,
    }


# Words ----------------------------------------------------------------------------------------------------------


def _parse(word: str) -> list[Host]:
    """The hosts of ``[USER@]NAME[:PORT]``, where the name may be a pattern or an IPv6 address."""
    if word.count(":") > 1 and "[" not in word:  # an IPv6 address without brackets has no port behind it
        user, _, name = word.rpartition("@")
        port = None
    elif match := _WORD.fullmatch(word):
        user, name = match["user"], match["name"]
        port = int(match["port"]) if match["port"] else None
    else:
        raise ValueError("a host is named as [USER@]HOST[:PORT]")
    if port is not None and not 0 < port < 65536:
        raise ValueError(f"there is no port {port}")
    if user and not _USER.fullmatch(user):
        raise ValueError(f"{user!r} is no user's name")
    if name.startswith("[") and ":" in name:
        name = name.removeprefix("[").removesuffix("]")
    return [Host(name=one, user=user or None, port=port) for one in _names(name)]


def _names(pattern: str) -> list[str]:
    """The names that a pattern such as ``pi-[01-20].lan`` stands for; a plain name stands for itself."""
    parts = _BRACKETS.split(pattern)  # plain text at even places, what is in brackets at odd ones
    choices = [_numbers(part) if i % 2 else [part] for i, part in enumerate(parts)]
    count = math.prod(map(len, choices))
    if count > MOST_HOSTS_OF_A_PATTERN:
        raise ValueError(f"the pattern stands for {count} hosts; {MOST_HOSTS_OF_A_PATTERN} is the most")
    names = ["".join(chosen) for chosen in itertools.product(*choices)]
    if not all(_NAME.fullmatch(name) or _is_ipv6(name) for name in names):
        raise ValueError("a name is made of letters, digits, dots, dashes and underscores, and no dash comes first")
    return names


def _is_ipv6(name: str) -> bool:
    try:
        ipaddress.IPv6Address(name)
    except ValueError:
        return False
    return True


def _numbers(text: str) -> list[str]:
    """What is in brackets, such as ``1,3,05-12``, as numbers, padded as the first of their range is written."""
    numbers: list[str] = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None:
            raise ValueError(f"[{text}] is no list of numbers and ranges, such as [01-20] or [1,3,5-7]")
        first, last = match[1], match[2] or match[1]
        size = int(last) - int(first) + 1
        if size < 1:
            raise ValueError(f"the range {first}-{last} is empty")
        if size > MOST_HOSTS_OF_A_PATTERN:
            raise ValueError(
                f"the range {first}-{last} stands for {size} hosts, {MOST_HOSTS_OF_A_PATTERN} are the most"
            )
        numbers += [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
    return numbers


def _known(host: Host, inventory: Inventory) -> Host:
    """The fleet file's host of this name, with the user and port of the command line where it has any."""
    known = inventory.find(host.name)
    if known is None:
        return host
    return replace(known, user=host.user or known.user, port=host.port or known.port)


# The file -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Entry:
    """A host of the file, and where it stands there."""

    host: Host
    line: int
    column: int
    path: str

    def problem(self, message: str) -> Problem:
        return Problem(self.line, self.column, self.path, message)


class _Jump:
    """Hosts to go through, as ``ssh -J`` takes them, or ``none``."""

    def read(self, node: yaml.Node, path: str, problems: list[Problem]) -> Any:
        text = Text().read(node, path, problems)
        if text in (None, "none"):
            return ()
        hops = tuple(hop.strip() for hop in text.split(","))
        for hop in hops:
            try:
                parse_hop(hop)
            except ValueError as error:
                problems.append(_at(node, path, f"{hop!r} names no host to jump through: {error}"))
        return hops


class _Address:
    """An IPv4 or IPv6 address: what Docker advertises to the others."""

    def read(self, node: yaml.Node, path: str, problems: list[Problem]) -> Any:
        text = Text().read(node, path, problems)
        try:
            return text and str(ipaddress.ip_address(text))
        except ValueError:
            problems.append(_at(node, path, f"{text!r} is no IP address, such as 192.168.1.10"))
            return None


class _Hosts:
    """One entry of the list, which a pattern may make many hosts of."""

    def read(self, node: yaml.Node, path: str, problems: list[Problem]) -> list[_Entry]:
        mistakes: list[Problem] = []
        keys = Either((Text(), _long_form()), "a host's name, or keys with values,").read(node, path, mistakes)
        if not mistakes:
            keys = {"name": keys} if isinstance(keys, str) else keys
            mistakes += [_at(node, f"{path}.{key}", message) for key, message in _clashes(keys)]
        problems += mistakes
        if mistakes:
            return []
        mark = node.start_mark
        return [_Entry(_host(host, keys), mark.line + 1, mark.column + 1, path) for host in _parse(keys["name"])]


_SSH: Mapping[str, schema.Kind] = {"user": Text(), "port": Integer(1, 65535), "identity": Text(), "jump": _Jump()}


@cache
def _profiles() -> Mapping[str, str]:
    """The class of each profile."""
    # The protocol brings numpy with it, and only who reads a fleet file should wait for that.
    from fdtc import PROFILES

    return {profile.name: spec.hardware_class for profile, spec in PROFILES.items()}


def _long_form() -> Keys:
    classes = tuple(dict.fromkeys(_profiles().values()))
    ours: Mapping[str, schema.Kind] = {
        "class": Text(classes),
        "profile": Text(tuple(_profiles())),
        "advertise": _Address(),
        "role": Text(ROLES),
    }
    return Keys({"name": Text(), "address": Text(), **_SSH, **ours}, required=("name",))


def _file_schema() -> Keys:
    return Keys({"ssh": Keys(_SSH), "hosts": Listing(_Hosts())}, required=("hosts",))


def _clashes(keys: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Keys of one entry that have no meaning, or not together, and why."""
    try:
        count = len(_parse(keys["name"]))
    except ValueError as error:
        yield "name", f"{keys['name']!r} names no host: {error}"
        return
    if keys["name"] == ALL:
        yield "name", f"{ALL!r} stands for all hosts on the command line; no host can have that name"
    for key in ("address", "advertise"):
        if count > 1 and key in keys:
            yield key, f"{count} hosts can't have one address; leave it out, or write them one by one"
    profile, hardware_class = keys.get("profile"), keys.get("class")
    if profile and hardware_class and _profiles()[profile] != hardware_class:
        yield "profile", f"{profile} is a profile of class {_profiles()[profile]}, not of {hardware_class}"


def _host(host: Host, keys: Mapping[str, Any]) -> Host:
    profile = keys.get("profile")
    return Host(
        name=host.name,
        address=keys.get("address", ""),
        user=keys.get("user", host.user),
        port=keys.get("port", host.port),
        identity=Path(keys["identity"]) if "identity" in keys else None,
        jump=keys.get("jump"),
        hardware_class=keys.get("class", _profiles()[profile] if profile else None),
        profile=profile,
        advertise=keys.get("advertise"),
        role=keys.get("role", "worker"),
    )


def _complete(host: Host, defaults: Mapping[str, Any], folder: Path) -> Host:
    """Fill in the file's defaults; a key file's path counts from the file's folder."""
    identity = host.identity or (Path(defaults["identity"]) if "identity" in defaults else None)
    return replace(
        host,
        user=host.user or defaults.get("user"),
        port=host.port or defaults.get("port"),
        identity=identity and folder.absolute() / expanded(identity),
        jump=defaults.get("jump") if host.jump is None else host.jump,
    )


def _duplicates(hosts: Sequence[Host], entries: Sequence[_Entry]) -> Iterator[Problem]:
    """Hosts that are there twice, by name or by where they are reached."""
    names: dict[str, int] = {}
    places: dict[tuple[object, ...], tuple[str, int]] = {}
    for host, entry in zip(hosts, entries, strict=True):
        place = (host.address or host.name, host.port or 22, host.jump)
        if host.name in names:
            yield entry.problem(f"{host.name} is already in line {names[host.name]}")
        elif place in places:
            name, line = places[place]
            yield entry.problem(f"{host.name} has the same address and port as {name} in line {line}")
        names.setdefault(host.name, entry.line)
        places.setdefault(place, (host.name, entry.line))


def _at(node: yaml.Node, path: str, message: str) -> Problem:
    return Problem(node.start_mark.line + 1, node.start_mark.column + 1, path, message)


def _report(path: Path, problems: Sequence[Problem]) -> str:
    count = "1 mistake" if len(problems) == 1 else f"{len(problems)} mistakes"
    lines = [f"{path}:{p.line}:{p.column}: {p.path + ': ' if p.path else ''}{p.message}" for p in problems]
    return f"{path} has {count}\n" + "\n".join(lines)
