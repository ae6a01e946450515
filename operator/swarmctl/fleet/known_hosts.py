"""Host keys: unknown ones are accepted once and remembered, a changed one is fatal, as with OpenSSH's ``accept-new``.

Reads what OpenSSH writes: hashed names, patterns, ``[host]:port`` and ``@revoked``. May import: ``ssh_config``,
``ssh_errors``.
"""

import base64
import fcntl
import fnmatch
import hashlib
import hmac
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import paramiko

from .ssh_config import Target
from .ssh_errors import HostKeyChangedError, HostKeyUnknownError, KnownHostsError

# The names of signature algorithms that one kind of key can be asked for with.
_ALGORITHMS = {"ssh-rsa": ("rsa-sha2-512", "rsa-sha2-256")}


@dataclass(frozen=True)
class KnownKey:
    """A line of a known_hosts file that is about a certain host.

    Attributes:
        file: Where it is.
        line: Its number, from 1.
        kind: Such as ``ssh-ed25519``.
        key: The public key in base64.
        revoked: Whether the line forbids the key.
    """

    file: Path
    line: int
    kind: str
    key: str
    revoked: bool


def known_keys(target: Target) -> list[KnownKey]:
    """The keys that are remembered for a server.

    Raises:
        KnownHostsError: A file can't be read.
    """
    found: list[KnownKey] = []
    for file in target.known_hosts:
        try:
            found += _find(file.read_bytes(), file, target.key_name)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise KnownHostsError(file, error.strerror or str(error)) from error
    return found


def preferred_algorithms(known: Iterable[KnownKey], usual: Iterable[str]) -> tuple[str, ...]:
    """Host key algorithms with those first that a remembered key is of: the server should show that one."""
    first = [name for key in known if not key.revoked for name in _ALGORITHMS.get(key.kind, (key.kind,))]
    return tuple(sorted(usual, key=lambda name: name not in first))  # sorting keeps the usual order otherwise


def verify(target: Target, shown: paramiko.PKey) -> None:
    """Compare the key that a server has shown with the one remembered; remember it if there is none.

    Raises:
        HostKeyChangedError: Another key is remembered, or this one is revoked.
        HostKeyUnknownError: None is remembered, and the configuration forbids to accept it.
        KnownHostsError: It can't be remembered.
    """
    known = known_keys(target)
    if not _is_known(target, shown, known):
        if target.strict:
            raise HostKeyUnknownError(target.label, target.arguments, _describe(shown))
        # Others that met the same host meanwhile may have been first.
        _is_known(target, shown, _remember(target, shown))


def _is_known(target: Target, shown: paramiko.PKey, known: list[KnownKey]) -> bool:
    same = [key for key in known if key.key == shown.get_base64()]
    wrong = next((key for key in same if key.revoked), None)
    if wrong is None and not same:
        # A host that is known by a key of another kind only, and no longer shows that one, has changed as well.
        wrong = next((key for key in known if not key.revoked and key.kind == shown.get_name()), None) or next(
            (key for key in known if not key.revoked), None
        )
    if wrong:
        raise HostKeyChangedError(
            target.label, wrong.file, wrong.line, target.key_name, _describe(shown), revoked=wrong.revoked
        )
    return bool(same)


def _remember(target: Target, shown: paramiko.PKey) -> list[KnownKey]:
    """Add a key, unless there is one for this host by now; returns those that were there."""
    file = target.known_hosts[0]
    line = f"{target.key_name} {shown.get_name()} {shown.get_base64()}\n".encode()
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(file, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        with os.fdopen(descriptor, "r+b", buffering=0) as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)  # threads and processes that meet new hosts at once
            content = stream.read()
            if found := list(_find(content, file, target.key_name)):
                return found
            stream.write(line if content.endswith(b"\n") or not content else b"\n" + line)
    except OSError as error:
        raise KnownHostsError(file, error.strerror or str(error)) from error
    return []


def _find(content: bytes, file: Path, name: str) -> Iterator[KnownKey]:
    for number, line in enumerate(content.decode(errors="replace").splitlines(), 1):
        words = line.split()
        marker = words.pop(0) if words and words[0].startswith("@") else ""
        # Certificate authorities sign host certificates, which are not asked for here.
        if len(words) < 3 or words[0].startswith("#") or marker not in ("", "@revoked"):
            continue
        if _matches(words[0], name):
            yield KnownKey(file, number, words[1], words[2], revoked=bool(marker))


def _matches(patterns: str, name: str) -> bool:
    """Whether the first field of a line means this host (sshd(8), "SSH_KNOWN_HOSTS FILE FORMAT")."""
    if patterns.startswith("|1|"):
        return _is_hash_of(patterns, name)
    listed = patterns.lower().split(",")
    if any(_glob(pattern[1:], name) for pattern in listed if pattern.startswith("!")):
        return False
    return any(_glob(pattern, name) for pattern in listed)


def _glob(pattern: str, name: str) -> bool:
    # OpenSSH's patterns know * and ? only; [ begins a name with a port.
    return fnmatch.fnmatchcase(name.lower(), pattern.replace("[", "[[]"))


def _is_hash_of(text: str, name: str) -> bool:
    """Whether ``|1|salt|hash`` is made of this name: HMAC-SHA1 with the salt as its key, both in base64."""
    try:
        salt, digest = (base64.b64decode(part) for part in text.split("|")[2:4])
    except ValueError:  # a line cut short
        return False
    return hmac.compare_digest(hmac.digest(salt, name.encode(), hashlib.sha1), digest)


def _describe(key: paramiko.PKey) -> str:
    return f"{key.get_name()} {key.fingerprint}"
