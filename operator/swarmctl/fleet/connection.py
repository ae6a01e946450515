"""A way to run commands on a machine, whichever way that is. May import: ``inventory``, ``docker_socket``."""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol, Self

from .docker_socket import DockerUrl
from .inventory import Host


@dataclass(frozen=True)
class Completed:
    """A command that has ended.

    Attributes:
        status: Its exit status; negative where a signal ended it.
        stdout: What it printed, with whatever the login shell printed before.
        stderr: The same.
        seconds: How long it took, with the way there and back.
    """

    status: int
    stdout: bytes
    stderr: bytes
    seconds: float


class Connection(Protocol):
    """A machine that commands can be run on; a context manager that closes it."""

    host: Host

    def run(self, command: str, *, stdin: bytes = b"", timeout: float = 30.0, limit: int = 4 << 20) -> Completed:
        """Run a command line through the login shell, as it is.

        Args:
            command: For any POSIX shell; a script is best passed on `stdin` of ``sh -s``.
            stdin: What the command reads.
            timeout: Seconds for all of it; then its streams are closed. sshd ends no command, so a silent one goes on.
            limit: Bytes that it may print on either stream.

        Raises:
            SshError: Not done in time, too much output, or the connection is lost.
        """

    def docker(self, sudo: bool = False) -> AbstractContextManager[DockerUrl]:
        """The Docker engine of that machine as a URL for docker-py, for as long as the context lasts.

        Nothing is asked of the engine yet. What keeps it from answering later is `DockerUrl.last_error`.

        Raises:
            SudoPasswordError: `sudo` needs a password that is not known.
        """

    def close(self) -> None:
        """End whatever runs on it. Closing twice is no mistake."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...
