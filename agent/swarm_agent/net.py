"""The few lines of socket work that coordinator and worker share.

May import: ``errors``.
"""

import errno
import socket
import time
from collections.abc import Sequence
from contextlib import suppress

from .errors import AgentError

Buffer = bytes | bytearray | memoryview
# The kernel takes at most this many buffers at once (IOV_MAX, limits.h).
MOST_BUFFERS = 1024


def listen(host: str, port: int, option: str) -> socket.socket:
    """Listen on an address; port 0 takes a free one.

    Raises:
        AgentError: It is in use, or not this machine's.
    """
    family, address = _resolved(host, port)
    try:
        return socket.create_server(address, family=family, backlog=128, dualstack_ipv6=host == "::")
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise AgentError(
                f"port {port} on {host} is in use. Find out by whom with `ss -ltnp 'sport = :{port}'`, "
                f"or choose another with {option}."
            ) from error
        wrong = "--host" if error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT) else option
        raise AgentError(f"can't listen on {host}, port {port}: {error.strerror}. Choose another {wrong}.") from error


def _resolved(host: str, port: int) -> tuple[socket.AddressFamily, tuple[str, int]]:
    """An address to listen on; of a name that has both kinds the IPv4 one, where workers look first."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise AgentError(f"can't listen on {host!r}: {reason}. Choose another --host.") from error
    family, *_, address = min(found, key=lambda each: each[0] != socket.AF_INET)
    return family, (str(address[0]), port)


def tune(connection: socket.socket, silence_seconds: float) -> None:
    """Send small messages at once, and give up on a machine that has vanished while we send to it.

    Args:
        connection: A connected TCP socket.
        silence_seconds: For how long sent data may stay unacknowledged.
    """
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux, tcp(7); elsewhere the lease alone ends such a connection
        milliseconds = min(int(1000 * silence_seconds), 2**31 - 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)


def send_buffers(connection: socket.socket, buffers: Sequence[Buffer]) -> int:
    """Send all buffers in order without joining them, and return the number of bytes.

    Raises:
        OSError: The connection broke.
    """
    views = [memoryview(buffer).cast("B") for buffer in buffers if len(buffer)]
    total = sum(len(view) for view in views)
    while views:
        sent = connection.sendmsg(views[:MOST_BUFFERS])
        while views and sent >= len(views[0]):
            sent -= len(views.pop(0))
        if sent:
            views[0] = views[0][sent:]
    return total


def see_off(connection: socket.socket, seconds: float) -> None:
    """Close once the other side has, or in `seconds`: closing with bytes unread would take back what we sent."""
    deadline = time.monotonic() + seconds
    with suppress(OSError):  # the connection broke, or the time is up
        while (left := deadline - time.monotonic()) > 0:
            connection.settimeout(left)
            if not connection.recv(65536):
                break
    close_socket(connection)


def close_socket(connection: socket.socket) -> None:
    """Close a socket and wake the threads that wait in it; closing twice is fine."""
    with suppress(OSError):  # not connected any more, which is what we want
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
