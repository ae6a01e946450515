"""Connections to machines over SSH, on paramiko: bounded in time everywhere, and each failure with its own words.

`connect` reaches a machine, through jump hosts where there are any; `here` is this machine, with the same interface.
May import: everything of ``fleet`` that is about reaching a machine (``connection``, ``exchange``, ``ssh_config``, …).
"""

import contextlib
import random
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import Self

import paramiko

from .connection import Completed, Connection
from .docker_socket import DIAL_STDIO, ENGINE_SOCKET, DockerUrl, serve
from .exchange import Stopped, Streams, alarm, exchange
from .inventory import Host
from .ssh_config import SshSettings, knows, resolve
from .ssh_errors import CommandTimeoutError, ConnectionLostError, OutputLimitError, SshError
from .ssh_handshake import BROKEN, Deadline, Transport, log_in_hop_by_hop
from .sudo import sudo_prefix
from .this_machine import here

__all__ = ["Completed", "Connection", "SshError", "SshSettings", "connect", "here", "knows"]

_START_SEC = 15.0
_FIRST_PAUSE_SEC, _LONGEST_PAUSE_SEC = 0.2, 3.0


def connect(host: Host, *, settings: SshSettings, timeout: float = 15.0) -> Connection:
    """Connect to a machine and log in; what may pass by itself is tried again, with jitter.

    Args:
        host: The machine; this one needs no SSH.
        settings: What holds for all of them.
        timeout: Seconds for all of it: name, every hop, handshakes, and further attempts.

    Raises:
        SshError: It can't be reached; one subclass for each reason.
    """
    if host.is_here:
        return here(settings.sudo_password)
    deadline = Deadline(timeout)
    target = resolve(host, settings)
    pause = _FIRST_PAUSE_SEC
    while True:
        try:
            return SshConnection(host, settings, log_in_hop_by_hop(target, settings, deadline))
        except SshError as error:
            wait = random.uniform(pause / 2, pause)
            if not error.passes or wait > deadline.left:
                raise
            time.sleep(wait)
            pause = min(2 * pause, _LONGEST_PAUSE_SEC)


class SshConnection:
    """A machine that we are logged in to; see `Connection`."""

    def __init__(self, host: Host, settings: SshSettings, transports: list[Transport]) -> None:
        """Take over connections to each hop, the machine's own last."""
        self.host = host
        self._settings = settings
        self._transports = transports
        self._transport = transports[-1]
        self._engine_socket_opens = True

    def run(self, command: str, *, stdin: bytes = b"", timeout: float = 30.0, limit: int = 4 << 20) -> Completed:
        """See `Connection.run`."""
        started = time.monotonic()
        deadline = Deadline(timeout)
        channel = self._start(command, deadline)
        close = partial(_close, channel)
        streams = Streams(channel.sendall, channel.shutdown_write, channel.recv, channel.recv_stderr, close)
        try:
            stdout, stderr = exchange(streams, stdin=stdin, timeout=deadline.left, limit=limit)
            with alarm(deadline.left, close) as late:
                status = channel.recv_exit_status()
        except Stopped as stopped:
            if stopped.stuck:  # it takes no bytes any more, so no other command can be sent there either
                self.close()
            if stopped.why == "limit":
                raise OutputLimitError(self.host.name, limit) from None
            raise CommandTimeoutError(self.host.name, timeout) from None
        except BROKEN as error:
            raise self._lost() from error
        finally:
            close()
        if late.is_set():
            raise CommandTimeoutError(self.host.name, timeout)
        if not channel.eof_received and not self._transport.is_active():
            raise self._lost()
        return Completed(status, stdout, stderr, time.monotonic() - started)

    def docker(self, sudo: bool = False) -> AbstractContextManager[DockerUrl]:
        """See `Connection.docker`."""
        if not sudo:
            return serve(self._dial_engine)
        prefix, first = sudo_prefix(self, self._settings.sudo_password)
        return serve(lambda: self._dial_stdio(f"{prefix} {DIAL_STDIO}", first))

    def close(self) -> None:
        """See `Connection.close`."""
        for transport in reversed(self._transports):
            transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self, command: str, deadline: Deadline) -> paramiko.Channel:
        try:
            channel = self._transport.open_session(timeout=deadline.left)
            # paramiko waits for the answer without a limit.
            with alarm(deadline.left, partial(_close, channel)) as late:
                channel.exec_command(command)
        except BROKEN as error:
            if not self._transport.is_active():
                raise self._lost() from error
            if not deadline.left:
                raise CommandTimeoutError(self.host.name, deadline.seconds) from error
            raise ConnectionLostError(self.host.name, f"no command can be started there: {error}") from error
        if late.is_set():
            raise CommandTimeoutError(self.host.name, deadline.seconds)
        return channel

    def _lost(self) -> ConnectionLostError:
        return ConnectionLostError(self.host.name, self._transport.last_words())

    def _dial_engine(self) -> "_ChannelStream":
        """A stream to the engine: sshd connects to its socket itself where it may, which needs no process there."""
        if self._engine_socket_opens:
            try:
                channel = self._transport.open_unix_socket(ENGINE_SOCKET, _START_SEC)
                return _ChannelStream(channel, self._lost)
            except BROKEN as error:
                if not self._transport.is_active():
                    raise self._lost() from error
                self._engine_socket_opens = False  # no such socket, no right to it, or sshd may not forward
        return self._dial_stdio(DIAL_STDIO)

    def _dial_stdio(self, command: str, first: bytes = b"") -> "_ChannelStream":
        stream = _ChannelStream(self._start(command, Deadline(_START_SEC)), self._lost)
        stream.sendall(first)
        return stream


class _ChannelStream:
    """A channel as a `docker_socket.Stream`."""

    def __init__(self, channel: paramiko.Channel, lost: Callable[[], SshError]) -> None:
        self._channel = channel
        self._lost = lost
        self.close = partial(_close, channel)

    def recv(self, size: int) -> bytes:
        with _as_os_error():
            return self._channel.recv(size)

    def sendall(self, data: bytes) -> None:
        with _as_os_error():
            self._channel.sendall(data)

    def end_input(self) -> None:
        with _as_os_error():
            self._channel.shutdown_write()

    def complaint(self) -> str:
        if not self._channel.get_transport().is_active():
            return str(self._lost())
        said = b""
        while self._channel.recv_stderr_ready():
            said += self._channel.recv_stderr(4096)
        return said.decode(errors="replace").strip()


@contextlib.contextmanager
def _as_os_error() -> Iterator[None]:
    try:
        yield
    except (paramiko.SSHException, EOFError) as error:
        raise ConnectionError(str(error)) from error


def _close(channel: paramiko.Channel) -> None:
    """Close a channel, for whoever wants no more of it than that."""
    with contextlib.suppress(*BROKEN):  # it can't be said to the other side any more
        channel.close()
