"""Talks to a supervisor: starts one, and sends it requests. May import: ``local.state``, ``errors``."""

import contextlib
import json
import os
import select
import socket
import subprocess
import sys
from typing import Any, Literal

from ..errors import SwarmctlError, WaitTimeoutError
from .state import Folder


def is_supervised(folder: Folder) -> bool:
    """Whether a supervisor lives for this stack."""
    if not folder.socket.exists():
        return False
    try:
        _connect(folder, timeout=5.0).close()
    except PermissionError as error:
        raise SwarmctlError(
            f"{folder.path} belongs to another user", f"sudo swarmctl status --local --stack {folder.name}"
        ) from error
    except OSError:  # refused: left by one that was killed
        return False
    return True


def start_supervisor(folder: Folder, timeout: float) -> None:
    """Start a supervisor that lives on after this command, and wait until it listens.

    Raises:
        SwarmctlError: It ended at once.
        WaitTimeoutError: It was not ready in time; it may need longer to end what another one left.
    """
    hear, say = os.pipe()
    with folder.log("supervisor").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "swarmctl.local.supervisor", str(folder.path), str(say)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=folder.path,
            pass_fds=(say,),
            start_new_session=True,
        )
    os.close(say)
    try:
        if not select.select([hear], [], [], timeout)[0]:
            raise WaitTimeoutError(
                f"the supervisor (pid {process.pid}) was not ready within {timeout:g} s",
                f"cat {folder.log('supervisor')}",
            )
        if os.read(hear, 16) != b"ready":  # the pipe was closed: it ended
            raise SwarmctlError("the supervisor ended at once", f"cat {folder.log('supervisor')}")
    finally:
        os.close(hear)


def ask(folder: Folder, request: Literal["follow", "stop"], timeout: float) -> dict[str, int]:
    """Send a request and wait until it is done.

    Args:
        folder: The stack's folder.
        request: ``follow`` (do what deployment.json says) or ``stop``.
        timeout: Seconds to wait for the reply.

    Returns:
        The exit codes of the processes that it has stopped.

    Raises:
        WaitTimeoutError: It is not done in time, and goes on.
        SwarmctlError: The supervisor went away meanwhile.
    """
    try:
        with _connect(folder, timeout) as peer:
            peer.sendall(request.encode() + b"\n")
            reply = peer.makefile("rb").readline()
    except TimeoutError as error:
        raise WaitTimeoutError(
            f"the supervisor of {folder.name} did not finish {request!r} within {timeout:g} s, and goes on with it",
            f"swarmctl status --local --stack {folder.name}",
        ) from error
    except OSError as error:
        raise SwarmctlError(
            f"the supervisor of {folder.name} can't be reached: {error.strerror}",
            f"swarmctl status --local --stack {folder.name}",
        ) from error
    answer: dict[str, Any] = json.loads(reply) if reply else {}
    if not answer.get("ok"):
        raise SwarmctlError(
            f"the supervisor of {folder.name} went away while it was asked to {request}",
            f"cat {folder.log('supervisor')}",
        )
    exit_codes: dict[str, int] = answer["exit_codes"]
    return exit_codes


def _connect(folder: Folder, timeout: float) -> socket.socket:
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    peer.settimeout(timeout)
    try:
        # The relative name is short enough for a socket address wherever the folder is.
        with contextlib.chdir(folder.path):
            peer.connect(folder.socket.name)
    except OSError:
        peer.close()
        raise
    return peer
