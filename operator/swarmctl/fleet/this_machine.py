"""This machine, with the interface of those that are reached over SSH.

May import: ``connection``, ``docker_socket``, ``exchange``, ``sudo``, ``ssh_errors``.
"""

import contextlib
import os
import signal
import socket
import subprocess
import threading
import time
from contextlib import AbstractContextManager
from typing import Self

from .connection import Completed
from .docker_socket import DIAL_STDIO, ENGINE_SOCKET, DockerUrl, serve
from .exchange import Stopped, Streams, exchange
from .inventory import HERE, Host
from .ssh_errors import CommandTimeoutError, OutputLimitError
from .sudo import sudo_prefix

_END_SEC = 2.0


def here(sudo_password: str | None = None) -> "ThisMachine":
    """This machine, as a connection that needs no SSH."""
    return ThisMachine(sudo_password)


class ThisMachine:
    """See `Connection`."""

    def __init__(self, sudo_password: str | None = None) -> None:
        """Nothing is opened."""
        self.host = Host(HERE)
        self._sudo_password = sudo_password
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()

    def run(self, command: str, *, stdin: bytes = b"", timeout: float = 30.0, limit: int = 4 << 20) -> Completed:
        """See `Connection.run`."""
        started = time.monotonic()
        process = subprocess.Popen(
            ["/bin/sh", "-c", command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,  # so that all that it starts can be ended with it
        )
        with self._lock:
            self._running.add(process)
        try:
            stdout, stderr = exchange(_streams(process), stdin=stdin, timeout=timeout, limit=limit)
            status = process.wait(max(0.0, started + timeout - time.monotonic()))
        except Stopped as stopped:
            if stopped.why == "limit":
                raise OutputLimitError(HERE, limit) from None
            raise CommandTimeoutError(HERE, timeout) from None
        except subprocess.TimeoutExpired:
            raise CommandTimeoutError(HERE, timeout) from None
        finally:
            _end(process)
            with self._lock:
                self._running.discard(process)
        return Completed(status, stdout, stderr, time.monotonic() - started)

    def docker(self, sudo: bool = False) -> AbstractContextManager[DockerUrl]:
        """See `Connection.docker`."""
        if not sudo or os.geteuid() == 0:
            named = os.environ.get("DOCKER_HOST", "")
            return contextlib.nullcontext(
                DockerUrl(named if named.startswith("unix://") else f"unix://{ENGINE_SOCKET}")
            )
        prefix, first = sudo_prefix(self, self._sudo_password)
        return serve(lambda: _ProcessStream(f"{prefix} {DIAL_STDIO}", first))

    def close(self) -> None:
        """See `Connection.close`."""
        with self._lock:
            for process in self._running:
                _kill(process)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _ProcessStream:
    """A process's stdin and stdout as a `docker_socket.Stream`."""

    def __init__(self, command: str, first: bytes) -> None:
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", command],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        self.recv = self._socket.recv
        self.sendall = self._socket.sendall
        self.sendall(first)

    def end_input(self) -> None:
        self._socket.shutdown(socket.SHUT_WR)

    def complaint(self) -> str:
        self._hang_up()  # or it would not stop complaining
        assert self._process.stderr
        with contextlib.suppress(ValueError):  # closed by another thread
            return self._process.stderr.read().decode(errors="replace").strip()
        return ""

    def close(self) -> None:
        self._hang_up()
        _end(self._process)
        self._socket.close()

    def _hang_up(self) -> None:
        with contextlib.suppress(OSError):  # the other side was first
            self._socket.shutdown(socket.SHUT_RDWR)
        _kill(self._process)


def _streams(process: subprocess.Popen[bytes]) -> Streams:
    assert process.stdin
    assert process.stdout
    assert process.stderr
    stdin = process.stdin

    def write(data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[stdin.write(view) :]

    return Streams(write, stdin.close, process.stdout.read, process.stderr.read, lambda: _kill(process))


def _kill(process: subprocess.Popen[bytes]) -> None:
    # What runs as root under sudo can't be killed; it ends when its streams do.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill what is left of a command, and take leave of it."""
    if process.poll() is None:
        _kill(process)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_END_SEC)
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream:
            stream.close()
