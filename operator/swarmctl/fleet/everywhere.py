"""Does something on many machines at once; what goes wrong on one never stops the others.

May import: ``inventory``, ``ssh``, ``errors``.
"""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Generic, TypeVar

from ..errors import SwarmctlError, WaitTimeoutError
from .inventory import Host
from .ssh import Connection, SshSettings, connect

T = TypeVar("T")
_CONNECT_SEC = 15.0
# A handshake that ends by its own deadline says more than ours can.
_GRACE_SEC = 0.5
_POLL_SEC = 0.2


def everywhere(
    hosts: Sequence[Host],
    work: Callable[[Connection], T],
    *,
    settings: SshSettings,
    at_once: int = 64,
    deadline: float = 60.0,
    on_done: Callable[[Host, T | SwarmctlError], None] | None = None,
) -> dict[str, T | SwarmctlError]:
    """Connect to all hosts and do `work` on each.

    Args:
        hosts: Their names are unique.
        work: Called in a thread of its own for each host; may raise.
        settings: For the connections.
        at_once: So many handshakes at the same time; connections that stand don't count.
        deadline: Seconds for one host, from the moment it begins to be connected to.
        on_done: Told of each host as it is done, in the caller's thread.

    Returns:
        What `work` returned, or the error, by the host's name, in the hosts' order.
    """
    gate = threading.Semaphore(at_once)
    jobs = {job.outcome: job for job in (_Job(host, work, settings, deadline) for host in hosts)}
    try:
        for job in jobs.values():
            threading.Thread(target=job.run, args=(gate,), daemon=True).start()
        waiting = set(jobs)
        while waiting:
            finished, waiting = wait(waiting, _POLL_SEC, FIRST_COMPLETED)
            for outcome in finished:
                if on_done:
                    on_done(jobs[outcome].host, outcome.result())
            for outcome in waiting:
                jobs[outcome].give_up_when_late()
    finally:
        for job in jobs.values():  # what is still open on Ctrl-C, or when on_done has raised
            job.abandon()
    return {job.host.name: outcome.result() for outcome, job in jobs.items()}


class _Job(Generic[T]):
    """The work on one host, in a daemon thread: nobody has to wait for one that hangs."""

    def __init__(self, host: Host, work: Callable[[Connection], T], settings: SshSettings, deadline: float) -> None:
        self.host = host
        self.outcome: Future[T | SwarmctlError] = Future()
        self._work = work
        self._settings = settings
        self._deadline = deadline
        self._began: float | None = None
        self._connection: Connection | None = None
        self._abandoned = False
        self._settling = threading.Lock()

    def run(self, gate: threading.Semaphore) -> None:
        """Do all of it."""
        try:
            with gate:
                if self._abandoned:
                    return
                self._began = time.monotonic()
                seconds = min(_CONNECT_SEC, self._deadline)
                self._connection = connect(self.host, settings=self._settings, timeout=seconds)
            with self._connection:
                if not self._abandoned:
                    self._settle(self._work(self._connection))
        except SwarmctlError as error:
            self._settle(error)
        except Exception as error:  # noqa: BLE001  # a mistake of ours, brought out by what one machine has answered
            failed = SwarmctlError(f"{self.host.name}: {type(error).__name__}: {error}")
            failed.__cause__ = error
            self._settle(failed)

    def give_up_when_late(self) -> None:
        """Settle it as timed out if its time is over."""
        grace = 0.0 if self._connection else _GRACE_SEC
        if self._began is not None and time.monotonic() > self._began + self._deadline + grace:
            self._settle(WaitTimeoutError(f"{self.host.name}: not done within {self._deadline:.0f} s"))
            self.abandon()

    def abandon(self) -> None:
        """End what is still going on; what comes of it no longer counts."""
        self._abandoned = True
        if self._connection:
            self._connection.close()

    def _settle(self, outcome: T | SwarmctlError) -> None:
        with self._settling:
            if not self.outcome.done():
                self.outcome.set_result(outcome)
