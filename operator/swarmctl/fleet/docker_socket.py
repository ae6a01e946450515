"""A local unix socket that leads to a Docker engine somewhere else: docker-py and the docker command need no more.

Every connection to it opens a stream to the engine and pumps both ways until both ends are done, so keep-alive,
hijacked connections and endless event streams work as on the engine's own socket. Imports nothing of ours.
"""

import contextlib
import socket
import socketserver
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

ENGINE_SOCKET = "/var/run/docker.sock"
DIAL_STDIO = "docker system dial-stdio"
_CHUNK_BYTES = 1 << 16
_LONGEST_GREETING = 1 << 16
_LONGEST_COMPLAINT = 500
_POLL_SEC = 0.1
_HTTP = b"HTTP/1."


class DockerUrl(str):
    """An engine's URL such as ``unix:///tmp/x/docker.sock``.

    Attributes:
        last_error: What the way to the engine said when it last failed; empty: it has not.
    """

    last_error: str = ""


class Stream(Protocol):
    """A connection to the engine, by whatever way; its methods raise OSError when it is broken."""

    def recv(self, size: int, /) -> bytes:
        """Up to `size` bytes; empty at the end."""

    def sendall(self, data: bytes, /) -> object:
        """Send all of it."""

    def end_input(self) -> object:
        """Say that no more will be sent."""

    def complaint(self) -> str:
        """What it said beside the stream, on stderr."""

    def close(self) -> object:
        """End it, from any thread; `recv` and `sendall` return or raise."""


@contextmanager
def serve(dial: Callable[[], Stream]) -> Iterator[DockerUrl]:
    """Offer the engine that `dial` reaches as a unix socket, for as long as the context lasts.

    Args:
        dial: Opens one more stream to the engine; raises an exception whose text tells why it can't.
    """
    with tempfile.TemporaryDirectory(prefix="swarmctl-") as folder:  # for this user alone (0700)
        path = Path(folder) / "docker.sock"
        url = DockerUrl(f"unix://{path}")
        with _Server(path, dial, url) as server:
            thread = threading.Thread(target=server.serve_forever, args=(_POLL_SEC,), daemon=True)
            thread.start()
            try:
                yield url
            finally:
                server.shutdown()
                server.end_all()
                thread.join()


class _Server(socketserver.ThreadingUnixStreamServer):
    """Leaving its context closes the socket and waits for the threads of all connections."""

    daemon_threads = False
    request_queue_size = 64

    def __init__(self, path: Path, dial: Callable[[], Stream], url: DockerUrl) -> None:
        super().__init__(str(path), _Pump)
        self.dial = dial
        self.url = url
        self._closers: dict[int, Callable[[], object]] = {}
        self._lock = threading.Lock()
        self._ended = False

    @contextmanager
    def ended_with_us(self, close: Callable[[], object]) -> Iterator[None]:
        """Have `close` called when the server ends within the block."""
        with self._lock:
            self._closers[id(close)] = close
            ended = self._ended
        try:
            if ended:
                close()
            yield
        finally:
            with self._lock:
                del self._closers[id(close)]

    def end_all(self) -> None:
        with self._lock:
            self._ended = True
            closers = list(self._closers.values())
        for close in closers:
            close()


class _Pump(socketserver.BaseRequestHandler):
    """One connection of a client."""

    request: socket.socket
    server: _Server

    def handle(self) -> None:
        try:
            stream = self.server.dial()
        except Exception as error:  # noqa: BLE001  # the client sees its connection end; this is where the reason goes
            self.server.url.last_error = str(error)
            return

        def close() -> None:
            stream.close()
            with contextlib.suppress(OSError):  # the client was first
                self.request.shutdown(socket.SHUT_RDWR)

        up = threading.Thread(target=self._up, args=(stream,), daemon=True)
        with self.server.ended_with_us(close):
            up.start()
            try:
                self._down(stream)
            except OSError:  # either side is gone, which ends it for both
                pass
            finally:
                close()
                up.join()

    def _up(self, stream: Stream) -> None:
        try:
            while data := self.request.recv(_CHUNK_BYTES):
                stream.sendall(data)
            stream.end_input()
        except OSError:  # the other direction sees it, too, and ends both
            stream.close()

    def _down(self, stream: Stream) -> None:
        """Pass on what the engine says, without what a login shell says before."""
        start = b""
        while _HTTP not in start:
            try:
                data = stream.recv(_CHUNK_BYTES)
            except OSError:  # a reset, where what it was sent was not read: an end as any other
                data = b""
            start += data
            if not data or len(start) > _LONGEST_GREETING:
                said = stream.complaint() or start[:_LONGEST_COMPLAINT].decode(errors="replace").strip()
                self.server.url.last_error = said or "the connection ended without an answer"
                return
        self.request.sendall(start[start.index(_HTTP) :])
        while data := stream.recv(_CHUNK_BYTES):
            self.request.sendall(data)
        if said := stream.complaint():
            self.server.url.last_error = said
