"""The keys to try at a server, in OpenSSH's order: those named for it (or the usual files), then the agent's.

May import: ``ssh_config``.
"""

import base64
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import paramiko
from cryptography.exceptions import UnsupportedAlgorithm

from .ssh_config import SshSettings, Target

_PRIVATE = re.compile(rb"-----BEGIN OPENSSH PRIVATE KEY-----(.+?)-----END OPENSSH PRIVATE KEY-----", re.DOTALL)
_loading = threading.Lock()


@dataclass(frozen=True)
class Keys:
    """What can be tried.

    Attributes:
        usable: Each with a name for messages.
        notes: Which files can't be used, and why.
        steps: What would make them usable.
    """

    usable: list[tuple[str, paramiko.PKey]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    steps: list[str] = field(default_factory=list)


@contextmanager
def keys_for(target: Target, settings: SshSettings) -> Iterator[Keys]:
    """The keys for a server; the agent signs with its own for as long as the context lasts."""
    keys = Keys()
    agent = _agent(keys) if settings.use_agent else None
    try:
        held = {key.asbytes(): key for key in agent.get_keys()} if agent else {}
        for path in target.identities:
            # An encrypted file is as good as open once the agent has its key.
            key = held.pop(_public_part(path), None) or _load(path, keys)
            if key is not None:
                keys.usable.append((_shown(path), key))
        if not target.only_identities:
            keys.usable.extend((f"{key.comment or key.fingerprint} (agent)", key) for key in held.values())
        yield keys
    finally:
        if agent:
            agent.close()


def _agent(keys: Keys) -> paramiko.Agent | None:
    try:
        return paramiko.Agent()
    except (paramiko.SSHException, OSError) as error:
        keys.notes.append(f"the agent at {os.environ.get('SSH_AUTH_SOCK')} can't be asked: {error}")
        return None


def _load(path: Path, keys: Keys) -> paramiko.PKey | None:
    """A private key, or None with a note why not."""
    try:
        # RSA keys take a quarter of a second, and 45 hosts may use the same one.
        with _loading:
            return _load_once(path, path.stat().st_mtime_ns)
    except OSError as error:
        keys.notes.append(f"{_shown(path)} can't be read: {error.strerror}")
        keys.steps.append(f"ls -l {_shown(path)}")
    except (TypeError, paramiko.PasswordRequiredException):  # what cryptography raises without the passphrase
        keys.notes.append(f"{_shown(path)} is encrypted, and no agent holds it")
        keys.steps.append(f"ssh-add {_shown(path)}")
    except (ValueError, UnsupportedAlgorithm, paramiko.SSHException, paramiko.pkey.UnknownKeyType) as error:
        keys.notes.append(f"{_shown(path)} is no private key of a known kind ({error or type(error).__name__})")
    return None


@lru_cache(maxsize=256)
def _load_once(path: Path, changed: int) -> paramiko.PKey:
    del changed  # a part of the cache's key only
    return paramiko.PKey.from_path(path)


def _public_part(path: Path) -> bytes:
    """The public key of a key file, also of an encrypted one; empty if it can't be told."""
    for candidate in (Path(f"{path}.pub"), path):
        try:
            content = candidate.read_bytes()
            if private := _PRIVATE.search(content):
                return _public_part_of_private(base64.b64decode(private[1]))
            words = content.split()
            if len(words) > 1 and not content.startswith(b"-"):
                return base64.b64decode(words[1])
        except (OSError, ValueError):  # whoever loads the key says what is wrong with the file
            continue
    return b""


def _public_part_of_private(content: bytes) -> bytes:
    """The layout is OpenSSH's PROTOCOL.key: cipher, KDF, KDF options, number of keys, public key, …"""
    message = paramiko.Message(content.removeprefix(b"openssh-key-v1\x00"))
    for _ in range(3):
        message.get_string()
    message.get_int()
    return message.get_string()


def _shown(path: Path) -> str:
    home = Path.home()
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)
