"""Whether ports of this machine are free, and who has them where not. May import: ``local.state``, ``errors``."""

import socket
from collections.abc import Collection
from contextlib import suppress

import psutil

from ..errors import SwarmctlError
from .processes import HOST
from .state import Deployment


def check(wanted: Deployment, ours: Collection[int]) -> None:
    """Find out before anything is started whether its ports are free.

    Args:
        wanted: What is to be started.
        ours: Pids that may have them: they are the same stack's and will be gone.

    Raises:
        SwarmctlError: Another program has one.
    """
    for option, port in (("--port", wanted.port), ("--http-port", wanted.http_port)):
        if is_free(port):
            continue
        owner = _owner(port)
        if owner and owner.pid in ours:
            continue
        who = f" by {owner.name()} (pid {owner.pid})" if owner else " by another program"
        raise SwarmctlError(
            f"port {port} of {HOST} is in use{who}",
            f"swarmctl deploy --stack {wanted.stack} --local {option} {free_port(port + 1)}",
        )


def is_free(port: int) -> bool:
    """Whether a server can listen on this port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


def free_port(first: int) -> int:
    """The first port from `first` on that a server can listen on."""
    return next(port for port in range(first, 65536) if is_free(port))


def _owner(port: int) -> psutil.Process | None:
    with suppress(psutil.AccessDenied, psutil.NoSuchProcess):
        for connection in psutil.net_connections("tcp"):
            listens_there = connection.status == psutil.CONN_LISTEN and connection.laddr[1:] == (port,)
            if listens_there and connection.pid:
                return psutil.Process(connection.pid)
    return None
