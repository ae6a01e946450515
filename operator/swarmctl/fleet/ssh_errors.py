"""What can go wrong on the way to a machine: one error a kind, each with its own words and remedy.

May import: ``errors``.
"""

import shlex
from collections.abc import Sequence
from pathlib import Path

from ..errors import Exit, UnreachableError


class SshError(UnreachableError):
    """A machine can't be reached over SSH, or was lost.

    Attributes:
        passes: Whether it may pass by itself, so that trying again makes sense.
    """

    passes = False


class NameNotFoundError(SshError):
    """No address is known for the name."""

    def __init__(self, name: str, reason: str) -> None:
        """Take the name and what the resolver said."""
        super().__init__(
            f"no address is known for {name} ({reason})",
            f"ping {name}",
            f"address: 192.168.1.10   # under {name} in the fleet file, or HostName in ~/.ssh/config",
        )


class RefusedError(SshError):
    """Nothing listens at the port."""

    def __init__(self, label: str) -> None:
        """Take the host and port, for the message."""
        super().__init__(
            f"{label} refuses the connection: no SSH server listens there",
            "sudo systemctl enable --now ssh   # on that machine; on a Raspberry Pi: raspi-config",
        )


class NoRouteError(SshError):
    """No packet comes back."""

    def __init__(self, label: str, reason: str) -> None:
        """Take the host and port, and what the kernel said."""
        super().__init__(
            f"{label} can't be reached: {reason}",
            "is it switched on, in this network, and not behind a firewall?",
        )


class NotSshError(SshError):
    """Something else than an SSH server answers."""

    def __init__(self, label: str, said: str) -> None:
        """Take the host and port, and the beginning of what it said."""
        super().__init__(
            f"{label} is not an SSH server: it says {said[:80]!r}",
            "port: 22   # in the fleet file: the port that its sshd listens on",
        )


class SilentError(SshError):
    """It accepts connections, and then says nothing."""

    def __init__(self, label: str, seconds: float) -> None:
        """Take the host and port, and how long was waited."""
        super().__init__(
            f"{label} accepts the connection, but sends no SSH greeting within {seconds:.0f} s",
            "is it overloaded (out of memory?), or does something else listen at this port?",
        )


class HandshakeTimeoutError(SshError):
    """The SSH server greets, and then hangs."""

    def __init__(self, label: str, phase: str, seconds: float) -> None:
        """Take the host and port, what was being done, and how long was waited."""
        super().__init__(
            f"{label} hangs during the {phase}: not done within {seconds:.0f} s",
            "is it overloaded (out of memory, a failing SD card), or the network very slow?",
            f"ssh -v {_host(label)}   # shows where it hangs",
        )


class HandshakeBrokenError(SshError):
    """The connection broke during the handshake."""

    passes = True

    def __init__(self, label: str, phase: str, reason: str) -> None:
        """Take the host and port, what was being done, and what was seen."""
        super().__init__(f"{label} breaks off during the {phase}: {reason}", f"ssh -v {_host(label)}")


class ConnectionLimitError(SshError):
    """The server dropped the connection before its greeting, as sshd does over its limit."""

    passes = True

    def __init__(self, label: str, said: str = "") -> None:
        """Take the host and port, and its last words where there were any."""
        words = f" ({said})" if said else ""
        super().__init__(
            f"{label} drops the connection before its greeting{words}: its limit of simultaneous logins, or a ban",
            "MaxStartups 100   # in /etc/ssh/sshd_config on that machine, then: sudo systemctl reload ssh",
            "sudo fail2ban-client status sshd   # on that machine, where fail2ban is used",
        )


class IncompatibleError(SshError):
    """No algorithm that both sides know."""

    def __init__(self, label: str, reason: str) -> None:
        """Take the host and port, and what is missing."""
        super().__init__(
            f"{label} speaks an SSH that is too old, or restricted too much: {reason}",
            "OpenSSH 6.5 or later is needed there, with its usual algorithms",
        )


class NoKeyAcceptedError(SshError):
    """No key of ours lets us in."""

    def __init__(self, login: str, ssh: str, tried: Sequence[str], notes: Sequence[str], why: str = "") -> None:
        """Take what is needed to say what was tried.

        Args:
            login: ``user@host`` for the message.
            ssh: The same as arguments for ssh-copy-id.
            tried: Names of the keys that were offered.
            notes: What could not be offered, and why.
            why: What the server said beyond "no".
        """
        offered = f"tried {', '.join(tried)}" if tried else "there is no key to try"
        detail = "".join(f"; {note}" for note in (why, *notes) if note)
        super().__init__(
            f"{login} accepts no key of ours: {offered}{detail}",
            *(() if tried or notes else ("ssh-keygen -t ed25519   # makes a key",)),
            f"ssh-copy-id {ssh}",
        )


class KeyFileError(SshError):
    """A key that was named can't be used."""

    def __init__(self, login: str, notes: Sequence[str], *next_steps: str) -> None:
        """Take what can't be used and why, and what to type."""
        super().__init__(f"{login}: {'; '.join(notes)}", *next_steps)


class HostKeyChangedError(SshError):
    """The host shows another key than the one that is remembered."""

    def __init__(self, label: str, file: Path, line: int, name: str, shown: str, *, revoked: bool = False) -> None:
        """Take where the other key is remembered.

        Args:
            label: Host and port for the message.
            file: The known_hosts file.
            line: The line with the other key, from 1.
            name: As it is remembered there.
            shown: Kind and fingerprint of the key that it shows now.
            revoked: Whether that line forbids the key.
        """
        what = "a key that is revoked in" if revoked else "another host key than the one in"
        super().__init__(
            f"{label} shows {what} {file}, line {line} (now: {shown}). "
            "Was it installed anew, or is this another machine at the same address? If neither: don't go on",
            f"ssh-keygen -f {shlex.quote(str(file))} -R {shlex.quote(name)}   # forgets the old key",
        )


class HostKeyUnknownError(SshError):
    """The host is not known, and ~/.ssh/config forbids to accept unknown ones."""

    def __init__(self, label: str, ssh: str, shown: str) -> None:
        """Take the host and port, it as arguments for ssh, and kind and fingerprint of its key."""
        super().__init__(
            f"{label} is not in known_hosts, and ~/.ssh/config has StrictHostKeyChecking yes (its key: {shown})",
            f"ssh -o StrictHostKeyChecking=ask {ssh}   # to look at the key and accept it",
        )


class KnownHostsError(SshError):
    """Host keys can't be read or remembered."""

    def __init__(self, file: Path, reason: str) -> None:
        """Take the file, and what the system said."""
        super().__init__(f"host keys can't be kept in {file}: {reason}", f"ls -l {shlex.quote(str(file))}")


class SshConfigError(SshError):
    """~/.ssh/config can't be used."""

    def __init__(self, file: Path, reason: str) -> None:
        """Take the file, and what is wrong with it."""
        super().__init__(f"{file}: {reason}")


class JumpHostError(SshError):
    """A host on the way fails, not the one that is meant."""

    def __init__(self, label: str, hop: str, reason: str, *next_steps: str, passes: bool = False) -> None:
        """Take the host that was meant, the one that fails, and why and what to do, as its own error says it."""
        super().__init__(f"{label} is behind {hop}, and that fails: {reason}", *next_steps)
        self.passes = passes


class CommandTimeoutError(SshError):
    """A command was not done in time, and is no longer waited for."""

    def __init__(self, host: str, seconds: float) -> None:
        """Take the host and how long was waited."""
        super().__init__(f"{host}: the command was not done within {seconds:.0f} s; what it began there may go on")


class OutputLimitError(SshError):
    """A command prints more than can be of use."""

    def __init__(self, host: str, limit: int) -> None:
        """Take the host and the limit in bytes."""
        super().__init__(
            f"{host}: the command printed more than {limit >> 10} KiB, and is given up",
            "does the login shell (~/.bashrc, ~/.profile) of that user print without end?",
        )


class ConnectionLostError(SshError):
    """The connection broke while it was in use."""

    def __init__(self, host: str, reason: str) -> None:
        """Take the host and what was seen."""
        super().__init__(f"{host}: the connection was lost ({reason}); what ran there may go on", f"ssh {host}")


class SudoPasswordError(SshError):
    """sudo wants a password, or another one; the machine itself was reached."""

    code = Exit.FAILED

    def __init__(self, host: str, said: str = "") -> None:
        """Take the host, and what sudo said to the password that was given."""
        what = f"sudo did not take the password: {said}" if said else "sudo needs a password there"
        super().__init__(
            f"{host}: {what}",
            "--ask-sudo   # with the same command: it asks for the password once, for all machines",
            "sudo usermod -aG docker $USER   # on that machine, then log in again: no sudo is needed for Docker",
        )


def _host(label: str) -> str:
    """The name out of a label such as ``pi-01 (192.168.1.7:22)``."""
    return label.partition(" ")[0]
