"""Feeds a command and drains both of its streams at once, bounded in time and in size. Imports nothing of ours.

One rule keeps it simple: there is one way to end everything early, which is to close the command's streams, and
whoever does it says why first.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

_CHUNK_BYTES = 1 << 16
# What still holds a stream open this long after it was closed is no longer waited for.
_GRACE_SEC = 1.0
Why = Literal["timeout", "limit"]


@dataclass(frozen=True)
class Streams:
    """A running command.

    Attributes:
        write: Puts all of the bytes on its stdin; blocks; raises OSError once nobody reads them.
        end_input: Closes its stdin.
        read_stdout: Up to so many bytes; blocks; empty at the end.
        read_stderr: The same.
        close: Makes all of these return or raise, and the command end; called from any thread, more than once.
    """

    write: Callable[[bytes], object]
    end_input: Callable[[], object]
    read_stdout: Callable[[int], bytes]
    read_stderr: Callable[[int], bytes]
    close: Callable[[], object]


class Stopped(Exception):  # noqa: N818  # a way to end, told apart by `why`
    """The command was ended before it was done.

    Attributes:
        why: ``timeout`` or ``limit``.
        stuck: Whether even the closing is held up, because the other side takes no bytes at all.
    """

    def __init__(self, why: Why, *, stuck: bool = False) -> None:
        """Take the reason."""
        super().__init__(why)
        self.why = why
        self.stuck = stuck


class _Drain(threading.Thread):
    """Reads a stream to its end."""

    def __init__(self, read: Callable[[int], bytes], limit: int, over: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self.data = bytearray()
        self.error: Exception | None = None
        self._read, self._limit, self._over = read, limit, over

    def run(self) -> None:
        try:
            while chunk := self._read(_CHUNK_BYTES):
                self.data += chunk
                if len(self.data) > self._limit:
                    self._over()
                    return
        except Exception as error:  # noqa: BLE001  # raised again by who waits for us
            self.error = error


def exchange(streams: Streams, *, stdin: bytes, timeout: float, limit: int) -> tuple[bytes, bytes]:
    """Feed `stdin` and read both streams to their ends.

    Args:
        streams: The command's.
        stdin: All of its input.
        timeout: Seconds for all of it.
        limit: Bytes that either stream may have.

    Returns:
        stdout and stderr.

    Raises:
        Stopped: It took too long, or printed too much; its streams are closed.
        Exception: Whatever reading has raised.
    """
    why: list[Why] = []

    def stop(reason: Why) -> None:
        why.append(reason)
        streams.close()

    drains = [_Drain(read, limit, lambda: stop("limit")) for read in (streams.read_stdout, streams.read_stderr)]
    feeder = threading.Thread(target=_feed, args=(streams, stdin), daemon=True)
    with alarm(timeout, lambda: stop("timeout")):
        try:
            for thread in (*drains, feeder):
                thread.start()
            end = time.monotonic() + timeout + _GRACE_SEC
            for drain in drains:
                drain.join(max(0.0, end - time.monotonic()))
        except BaseException:  # Ctrl-C
            streams.close()
            raise
    if why:
        feeder.join(_GRACE_SEC)
        raise Stopped(why[0], stuck=feeder.is_alive())
    for drain in drains:
        if drain.error:
            raise drain.error
    return bytes(drains[0].data), bytes(drains[1].data)


@contextmanager
def alarm(seconds: float, action: Callable[[], object]) -> Iterator[threading.Event]:
    """Do something in another thread should the block last too long; the event says whether it has."""
    rang = threading.Event()

    def ring() -> None:
        rang.set()
        action()

    timer = threading.Timer(max(0.0, seconds), ring)
    timer.daemon = True
    timer.start()
    try:
        yield rang
    finally:
        timer.cancel()


def _feed(streams: Streams, data: bytes) -> None:
    # A command that reads no further, as `head` does, is judged by its status; a broken connection shows in the drains.
    with contextlib.suppress(Exception):
        streams.write(data)
        streams.end_input()
