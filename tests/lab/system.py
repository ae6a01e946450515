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


def processes(*namespaces: str) -> list[psutil.Process]:
    """Those that live in network namespaces of ours, so they are ours."""
    wanted = {_identity(NAMESPACES / name) for name in namespaces if (NAMESPACES / name).exists()}
    found = []
    for pid in psutil.pids():
        with contextlib.suppress(OSError, psutil.NoSuchProcess):  # ended while we looked
            if _identity(Path(f"/proc/{pid}/ns/net")) in wanted:
                found.append(psutil.Process(pid))
    return found


def _identity(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_dev, status.st_ino


def kill(victims: Callable[[], Sequence[psutil.Process]], what: str) -> None:
    """SIGKILL processes until there are none, and wait until each is gone.

    The first process of a node is gone only when all in its process namespace are, wherever their network is.
    """
    seen: set[psutil.Process] = set()

    def none_left() -> bool:
        seen.update(victims())
        alive = [process for process in seen if _alive(process)]
        for process in alive:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)  # psutil makes sure that the pid is still the same process
        return not alive

    eventually(none_left, 30, f"end of {what}")


def _alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def delete_namespaces(names: Sequence[str]) -> None:
    """Kill what lives in network namespaces and remove them, in that order; their devices go with them."""
    kill(lambda: processes(*names), f"what runs in {', '.join(names)}")
    for name in names:
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
