"""Whether ports of this machine are free, and who has them where not.

May import: ``local.state``, ``local.remedies``, ``errors``.
"""

import socket
from collections.abc import Collection
from contextlib import suppress
from itertools import chain

import psutil

from ..errors import SwarmctlError
from .processes import HOST
from .remedies import to_deploy
from .state import Deployment


def check(wanted: Deployment, ours: Collection[int]) -> None:
    """Find out before anything is started whether its ports are free.

    Args:
        wanted: What is to be started.
        ours: Pids that may have them: they are the same stack's and will be gone.

    Raises:
        SwarmctlError: Another program has one.
    """
    chosen = [wanted.port, wanted.http_port]
    taken = []
    for i, port in enumerate(chosen):
        if is_free(port):
            continue
        owner = _owner(port)
        if owner and owner.pid in ours:
            continue
        who = f" by {owner.name()} (pid {owner.pid})" if owner else " by another program"
        taken.append(f"port {port} of {HOST} is in use{who}")
        chosen[i] = free_port(port + 1, other_than=chosen[1 - i])
    if taken:
        options = ("--port", str(chosen[0]), "--http-port", str(chosen[1]))
        raise SwarmctlError("; ".join(taken), to_deploy(wanted, *options))


def is_free(port: int) -> bool:
    """Whether a server can listen on this port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


def free_port(first: int, other_than: int | None = None) -> int:
    """The first port from `first` on (and then from 1024 on) that a server can listen on."""
    candidates = chain(range(first, 65536), range(1024, first))
    return next(port for port in candidates if port != other_than and is_free(port))


def _owner(port: int) -> psutil.Process | None:
    with suppress(psutil.AccessDenied, psutil.NoSuchProcess):
        for connection in psutil.net_connections("tcp"):
            listens_there = connection.status == psutil.CONN_LISTEN and connection.laddr[1:] == (port,)
            if listens_there and connection.pid:
                return psutil.Process(connection.pid)
    return None
