"""What the lab asks of the kernel: namespaces, links, processes. Imports only the lab's `LabError`."""

import contextlib
import errno
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import psutil

from tests.lab.packages import LabError

NAMESPACES = Path("/run/netns")  # where `ip netns` keeps them


def run(*command: str | Path, timeout: float = 60) -> str:
    """Run a program that is expected to succeed, and return what it prints.

    Raises:
        LabError: It failed.
    """
    ended = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, check=False, timeout=timeout
    )
    if ended.returncode:
        raise LabError(f"{' '.join(map(str, command))}: {(ended.stderr or ended.stdout).strip()}")
    return ended.stdout


def eventually(holds: Callable[[], object], seconds: float, what: str) -> None:
    """Wait for a condition.

    Raises:
        LabError: It did not come true in time.
    """
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise LabError(f"not within {seconds:g} s: {what}")
        time.sleep(0.05)


def processes(namespace: str) -> list[psutil.Process]:
    """Those that live in a network namespace of ours, so they are ours."""
    try:
        wanted = (NAMESPACES / namespace).stat()
    except FileNotFoundError:
        return []
    found = []
    for pid in psutil.pids():
        with contextlib.suppress(OSError, psutil.NoSuchProcess):  # ended while we looked
            its = os.stat(f"/proc/{pid}/ns/net")  # noqa: PTH116 - a link that leads nowhere as a path
            if (its.st_dev, its.st_ino) == (wanted.st_dev, wanted.st_ino):
                found.append(psutil.Process(pid))
    return found


def kill(victims: Callable[[], Sequence[psutil.Process]], what: str) -> None:
    """SIGKILL processes until there are none: what they started meanwhile dies with them."""

    def none_left() -> bool:
        alive = [process for process in victims() if _alive(process)]
        for process in alive:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)  # psutil makes sure that the pid is still the same process
        return not alive

    eventually(none_left, 30, f"end of {what}")


def _alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def delete_namespace(name: str) -> None:
    """Kill what lives in a network namespace and remove it; its devices go with it."""
    kill(lambda: processes(name), f"what runs in {name}")
    if (NAMESPACES / name).exists():
        run("ip", "netns", "delete", name)


def remove_cgroups(name: str) -> None:
    """Remove the control groups below a name of ours, in every hierarchy."""
    roots = [*Path("/sys/fs/cgroup").glob(name), *Path("/sys/fs/cgroup").glob(f"*/{name}")]
    for folder in (Path(inner) for root in roots for inner, _, _ in os.walk(root, topdown=False)):
        eventually(partial(_removed, folder), 10, f"{folder} is empty")


def _removed(folder: Path) -> bool:
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError as error:
        if error.errno == errno.EBUSY:  # for a moment after its last process died
            return False
        raise
    return True
