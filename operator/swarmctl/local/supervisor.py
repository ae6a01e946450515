"""The supervisor: a process without a terminal that keeps one local stack's processes as they are wished.

Started by ``swarmctl deploy --local`` as ``python -m swarmctl.local.supervisor FOLDER``. It starts the coordinator,
then the workers, starts again what crashed (after a pause that doubles), writes down what it sees, and takes requests
on a Unix socket in the folder. It ends when it is told to, or when the run is finished.

May import: ``local.state``, ``errors``.
"""

import asyncio
import json
import os
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from signal import SIGINT, SIGTERM

import psutil

from ..errors import SwarmctlError
from .state import (
    COORDINATOR,
    Ending,
    Folder,
    ProcessSpec,
    ProcessState,
    State,
    end_processes,
    living_process,
    lock,
    write,
)

FIRST_PAUSE_SEC = 0.5
LONGEST_PAUSE_SEC = 30.0
STEADY_AFTER_SEC = 60.0  # a process that lived this long starts with the first pause again
HEALTH_INTERVAL_SEC = 0.1
NOTE_AGAIN_SEC = 2.0  # after a note that could not be written
WORKER_GRACE_SEC = 15.0
COORDINATOR_GRACE_SEC = 60.0  # it writes a checkpoint before it ends
FINISH_GRACE_SEC = 15.0  # between a worker's end and its coordinator's, which writes a last checkpoint
STRAGGLER_GRACE_SEC = 3.0  # for workers that did not hear that the run is over
NOT_STARTED = 127  # as a shell says it
LARGEST_LOG = 20_000_000


def main() -> None:
    """Supervise the folder named on the command line; a second argument is a descriptor to say "ready" on."""
    folder = Folder(Path(sys.argv[1]))
    ready = int(sys.argv[2]) if len(sys.argv) > 2 else None
    # The socket is bound by its short relative name: an absolute one may be longer than a socket address can be.
    os.chdir(folder.path)
    with lock(folder.supervisor_lock) as mine:
        if not mine:
            sys.exit(f"another supervisor is at work on {folder.path}")
        asyncio.run(Supervisor(folder).run(ready))


class Supervisor:
    """All processes of one stack."""

    def __init__(self, folder: Folder) -> None:
        """Take over a folder; `run` does the work."""
        self.folder = folder
        self.children: dict[str, Child] = {}
        self.coordinator_is_up = asyncio.Event()
        self.run_is_finished = asyncio.Event()
        self.exit_codes: dict[str, int] = {}  # of those that were stopped
        self.http_port = 0
        self._told_to_stop = asyncio.Event()
        self._note_again: asyncio.TimerHandle | None = None
        self._changing = asyncio.Lock()
        previous = folder.read_state()
        self._previous = previous.processes if previous else {}

    async def run(self, ready: int | None = None) -> None:
        """Work until told to stop or until every process has finished."""
        for signal in (SIGTERM, SIGINT):
            asyncio.get_running_loop().add_signal_handler(signal, self._told_to_stop.set)
        await self._end_orphans()
        self.folder.socket.unlink(missing_ok=True)
        server = await asyncio.start_unix_server(self._answer, self.folder.socket.name)
        await self.follow_the_wish()
        if ready is not None:
            os.write(ready, b"ready")
            os.close(ready)
        done = asyncio.create_task(self._until_finished())
        told = asyncio.create_task(self._told_to_stop.wait())
        await asyncio.wait({done, told}, return_when=asyncio.FIRST_COMPLETED)
        done.cancel()
        told.cancel()
        async with self._changing:
            await self._stop(list(self.children))
        server.close()
        self.folder.socket.unlink(missing_ok=True)
        _say("ends")

    async def follow_the_wish(self) -> None:
        """Stop what is no longer wished, or wished otherwise, and start what is missing."""
        async with self._changing:
            deployment = self.folder.read_deployment()
            wanted = {spec.name: spec for spec in deployment.processes} if deployment else {}
            self.http_port = deployment.http_port if deployment else 0
            changed = [
                name
                for name, child in self.children.items()
                if name not in wanted or wanted[name].fingerprint != child.spec.fingerprint
            ]
            # A coordinator that ends tells its workers that the run is over: they begin again with the new one.
            await self._stop(list(self.children) if COORDINATOR in changed else changed)
            for name, spec in wanted.items():
                if name not in self.children or self.children[name].has_given_up:
                    self.children[name] = Child(self, spec, self._previous.pop(name, None))
            self.note()

    def note(self) -> None:
        """Write down what is known, for `status` and for the next supervisor."""
        try:
            write(self.folder.state, self._state())
        except SwarmctlError as error:  # a full disk must not end the watch; a later note may be written
            _say(str(error))
            if not self._note_again:
                self._note_again = asyncio.get_running_loop().call_later(NOTE_AGAIN_SEC, self._retry_note)

    def _retry_note(self) -> None:
        self._note_again = None
        self.note()

    def _state(self) -> State:
        return State(os.getpid(), {name: child.state for name, child in self.children.items()})

    async def end_stragglers(self) -> None:
        """Stop the workers that are still there a while after the coordinator finished."""
        workers = [child for name, child in self.children.items() if name != COORDINATOR]
        with suppress(TimeoutError):
            async with asyncio.timeout(STRAGGLER_GRACE_SEC):
                await asyncio.gather(*(asyncio.shield(child.task) for child in workers))
        await asyncio.gather(*(child.end(finished=True) for child in workers))

    async def _until_finished(self) -> None:
        await self.run_is_finished.wait()
        await self.end_stragglers()

    async def _stop(self, names: Iterable[str]) -> None:
        """Stop processes: workers first, so that the coordinator's last checkpoint has all their work."""
        going = list(names)
        workers = [name for name in going if name != COORDINATOR]
        await asyncio.gather(*(self.children[name].end() for name in workers))
        if COORDINATOR in going:
            await self.children[COORDINATOR].end()
            self.coordinator_is_up.clear()
        finished = {name for name in going if self.children[name].state.state == "finished"}
        for name in set(going) - finished:
            ending = self.children.pop(name).state.last_ending
            if ending:
                self.exit_codes[name] = ending.code
        self.note()

    async def _end_orphans(self) -> None:
        """End processes that a killed supervisor left: nobody would notice if they crashed."""
        found = [process for state in self._previous.values() if (process := living_process(state))]
        for process in found:
            _say(f"ends pid {process.pid}, left by a supervisor that was killed")
        await asyncio.to_thread(end_processes, found, COORDINATOR_GRACE_SEC)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request, one reply, each a line of JSON: ``follow`` or ``stop``."""
        try:
            request = (await reader.readline()).decode("ascii", "replace").strip()
            if not request:  # somebody only looked whether this supervisor lives
                return
            if request == "follow":
                await self.follow_the_wish()
            elif request == "stop":
                async with self._changing:
                    await self._stop(list(self.children))
                self._told_to_stop.set()
            reply = {"ok": request in {"follow", "stop"}, "exit_codes": self.exit_codes}
            writer.write(json.dumps(reply).encode() + b"\n")
            await writer.drain()
        except ConnectionError:
            _say("a command left before it had its reply")
        finally:
            writer.close()


class Child:
    """One process: its lives one after another, until it is told to end or has finished."""

    def __init__(self, supervisor: Supervisor, spec: ProcessSpec, before: ProcessState | None) -> None:
        """Start to keep a process; `before` is what an earlier supervisor knew of it."""
        self.supervisor = supervisor
        self.spec = spec
        self.state = ProcessState(spec.name, spec.service, spec.fingerprint)
        if before and before.fingerprint == spec.fingerprint:
            self.state.restarts, self.state.last_ending = before.restarts, before.last_ending
        self._told_to_end = asyncio.Event()
        self._process: asyncio.subprocess.Process | None = None
        self._was_up = False
        self.task = asyncio.create_task(self._live())

    @property
    def is_coordinator(self) -> bool:
        """Whether the others wait for this one."""
        return self.spec.name == COORDINATOR

    @property
    def has_given_up(self) -> bool:
        """Whether it is not tried again without a new wish."""
        return self.state.state == "failed"

    async def end(self, *, finished: bool = False) -> None:
        """End the process: SIGTERM, and SIGKILL after its time of grace."""
        if self.task.done():
            return
        self._told_to_end.set()
        grace = COORDINATOR_GRACE_SEC if self.is_coordinator else WORKER_GRACE_SEC
        if self._process and self._process.returncode is None:
            self._note("stopping")
            self._process.terminate()
        _, pending = await asyncio.wait({self.task}, timeout=grace)
        if pending and self._process and self._process.returncode is None:
            _say(f"kills {self.spec.name}: it did not end within {grace:g} s")
            self._process.kill()
        await self.task
        self._note("finished" if finished else "stopped")

    async def _live(self) -> None:
        pause = FIRST_PAUSE_SEC
        while await self._may_start():
            began = time.monotonic()
            try:
                code = await self._one_life()
            except OSError as error:
                _say(f"{self.spec.name} can't be started: {error}")
                code = self._ended_with(NOT_STARTED)
            if self._told_to_end.is_set():
                return
            if code == 0 and await self._finished_its_work():
                self._note("finished")
                return
            if self.is_coordinator and not self._was_up:
                self._note("failed")
                _say(f"{self.spec.name} did not come up (exit code {code})")
                return
            if time.monotonic() - began > STEADY_AFTER_SEC:
                pause = FIRST_PAUSE_SEC
            self.state.restarts += 1
            _say(f"{self.spec.name} {_ended(code)}; starts again in {pause:g} s")
            self._note("restarting")
            await _wait(self._told_to_end, pause)
            pause = min(2 * pause, LONGEST_PAUSE_SEC)

    async def _may_start(self) -> bool:
        """Wait for the coordinator where this is a worker; False when told to end meanwhile."""
        if not self.is_coordinator and not self.supervisor.coordinator_is_up.is_set():
            up = asyncio.create_task(self.supervisor.coordinator_is_up.wait())
            end = asyncio.create_task(self._told_to_end.wait())
            await asyncio.wait({up, end}, return_when=asyncio.FIRST_COMPLETED)
            up.cancel()
            end.cancel()
        return not self._told_to_end.is_set()

    async def _one_life(self) -> int:
        log = self.supervisor.folder.log(self.spec.name)
        _rotate(log)
        with log.open("ab") as output:
            self._process = await asyncio.create_subprocess_exec(
                *self.spec.argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**_inherited_environment(), **self.spec.environment},
                start_new_session=True,  # a Ctrl-C on some terminal is not for it
            )
        self.state.pid = self._process.pid
        with suppress(psutil.NoSuchProcess):
            self.state.started = psutil.Process(self._process.pid).create_time()
        _say(f"{self.spec.name} starts as pid {self._process.pid}")
        ended = asyncio.create_task(self._process.wait())
        if self.is_coordinator:
            self._note("starting")
            await self._until_up(ended)
        else:
            self._note("running")
        return self._ended_with(await ended)

    def _ended_with(self, code: int) -> int:
        self.state.pid = self.state.started = None
        self.state.last_ending = Ending(time.time(), code)
        return code

    async def _until_up(self, ended: asyncio.Task[int]) -> None:
        while not ended.done():
            if await _answers_http(self.supervisor.http_port):
                self._was_up = True
                self._note("running")
                self.supervisor.coordinator_is_up.set()
                return
            await asyncio.wait({ended}, timeout=HEALTH_INTERVAL_SEC)

    async def _finished_its_work(self) -> bool:
        """Whether an exit code of 0 means that the run is over; a worker's alone does not."""
        if self.is_coordinator:
            self.supervisor.run_is_finished.set()
            return True
        return await _wait(self.supervisor.run_is_finished, FINISH_GRACE_SEC)

    def _note(self, state: str) -> None:
        self.state.state = state
        self.supervisor.note()


async def _answers_http(http_port: int) -> bool:
    try:
        async with asyncio.timeout(2):
            reader, writer = await asyncio.open_connection("127.0.0.1", http_port)
            try:
                writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                return (await reader.readline()).startswith(b"HTTP/")
            finally:
                writer.close()
    except OSError:  # refused, reset or timed out: not yet
        return False


async def _wait(event: asyncio.Event, seconds: float) -> bool:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()


def _inherited_environment() -> dict[str, str]:
    """The environment without settings of the agent: the stack file alone says how it trains."""
    return {name: value for name, value in os.environ.items() if not name.startswith("FDTC_")}


def _ended(code: int) -> str:
    return f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"


def _rotate(log: Path) -> None:
    if log.exists() and log.stat().st_size > LARGEST_LOG:
        log.replace(log.with_suffix(".log.1"))


def _say(event: str) -> None:
    line = {"event": event, "level": "info", "timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
    print(json.dumps(line), file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
