"""The folder of a local stack: what is in it, the records in it, and who is at work on it.

``deployment.json`` is the wish, written by commands; ``state.json`` is what the supervisor last saw. May import:
``errors``.
"""

import fcntl
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import msgspec
import psutil

from ..errors import SwarmctlError
from ..paths import expanded

COORDINATOR = "coordinator"
# Process creation times are computed from the boot time, which moves a little when the clock is set.
CLOCK_TOLERANCE_SEC = 5.0


class ProcessSpec(msgspec.Struct, frozen=True):
    """A process that is wanted; two with the same fingerprint are the same."""

    name: str
    service: str
    argv: tuple[str, ...]
    environment: dict[str, str]
    fingerprint: str


class ServiceSpec(msgspec.Struct, frozen=True):
    """What the processes of one service have in common; a worker's name is put behind `argv`."""

    argv: tuple[str, ...]
    environment: dict[str, str]
    fingerprint: str  # of all that a process is started with, its configuration file's content included


class Deployment(msgspec.Struct, frozen=True):
    """What is wanted of a stack on this machine."""

    stack: str
    source: str  # path of the stack file
    model: str
    port: int
    http_port: int
    min_workers: int
    coordinator: ServiceSpec
    workers: dict[str, ServiceSpec]
    stack_replicas: dict[str, int]  # as the stack file said
    replicas: dict[str, int]  # as wished now: the same, or as `scale` said

    @property
    def processes(self) -> list[ProcessSpec]:
        """All processes, the coordinator first."""
        lead = self.coordinator
        found = [ProcessSpec(COORDINATOR, COORDINATOR, lead.argv, lead.environment, lead.fingerprint)]
        for service, count in self.replicas.items():
            spec = self.workers[service]
            for number in range(1, count + 1):
                name = f"{service}-{number}"
                argv = (*spec.argv, "--id", name)
                found.append(ProcessSpec(name, service, argv, spec.environment, spec.fingerprint))
        return found


class Ending(msgspec.Struct, frozen=True):
    """How and when a process ended; a negative code is the number of the signal."""

    at: float  # seconds since the epoch
    code: int


class ProcessState(msgspec.Struct):
    """What the supervisor knows of one process.

    `state` is waiting (for the coordinator), starting, running, restarting (after a pause), stopping, stopped,
    finished (by itself, its work done) or failed (never came up, not tried again).
    """

    name: str
    service: str
    fingerprint: str
    state: str = "waiting"
    pid: int | None = None
    started: float | None = None  # creation time, with the pid the identity of a process
    restarts: int = 0
    last_ending: Ending | None = None


class State(msgspec.Struct):
    """What the supervisor last wrote down."""

    supervisor_pid: int
    processes: dict[str, ProcessState]


S = TypeVar("S", Deployment, State)


class Folder:
    """Where everything of one local stack is."""

    def __init__(self, path: Path) -> None:
        """Name a folder; nothing is made yet."""
        self.path = path
        self.deployment = path / "deployment.json"
        self.state = path / "state.json"
        self.checkpoints = path / "checkpoints"
        self.logs = path / "logs"
        self.config = path / "config"
        self.socket = path / "control.sock"
        self.supervisor_lock = path / "supervisor.lock"
        self.command_lock = path / "command.lock"

    @property
    def name(self) -> str:
        """The stack's name."""
        return self.path.name

    def log(self, process: str) -> Path:
        """The log of a process."""
        return self.logs / f"{process}.log"

    def read_deployment(self) -> Deployment | None:
        """The wish, or None where nothing is deployed."""
        return _read(self.deployment, Deployment)

    def read_state(self) -> State | None:
        """What the supervisor last saw, or None where there never was one."""
        return _read(self.state, State)

    def make(self) -> None:
        """Make the folder and those in it; only the user may look in."""
        for folder in (self.path, self.logs, self.config, self.checkpoints):
            try:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            except OSError as error:
                raise SwarmctlError(
                    f"can't make the folder {folder} for swarmctl's state: {error.strerror}",
                    "export SWARMCTL_STATE=A-FOLDER-OF-YOURS",
                ) from error


def state_root(environment: Mapping[str, str]) -> Path:
    """The folder for all of swarmctl's state on this machine."""
    if environment.get("SWARMCTL_STATE"):
        return expanded(environment["SWARMCTL_STATE"]).absolute()
    if environment.get("XDG_STATE_HOME"):
        return expanded(environment["XDG_STATE_HOME"]).absolute() / "swarmctl"
    return expanded("~") / ".local" / "state" / "swarmctl"


def local_folder(root: Path, stack: str) -> Folder:
    """The folder of one local stack."""
    return Folder(root / "local" / stack)


def deployed_folders(root: Path) -> list[Folder]:
    """All local stacks that are deployed, running or not."""
    folder = root / "local"
    if folder.is_dir() and not os.access(folder, os.R_OK | os.X_OK):
        raise SwarmctlError(f"{folder} belongs to another user", "export SWARMCTL_STATE=A-FOLDER-OF-YOURS")
    return [Folder(path.parent) for path in sorted(folder.glob("*/deployment.json"))]


def write(path: Path, record: msgspec.Struct) -> None:
    """Replace a record at once, so that a reader sees the old or the new one."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_bytes(msgspec.json.format(msgspec.json.encode(record), indent=1))
        beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise SwarmctlError(f"can't write {path}: {error.strerror}") from error


@contextmanager
def lock(path: Path) -> Iterator[bool]:
    """Hold a lock for the length of a block; yields False where another process holds it.

    The kernel lets go of it when the process ends, however it ends; so a held lock also says "I live".
    """
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


def living_process(process: ProcessState) -> psutil.Process | None:
    """The process that was written down, if it lives: the same pid alone may be another program by now."""
    if process.pid is None or process.started is None:
        return None
    try:
        found = psutil.Process(process.pid)
        same = abs(found.create_time() - process.started) < CLOCK_TOLERANCE_SEC
        return found if same and found.status() != psutil.STATUS_ZOMBIE else None
    except psutil.NoSuchProcess:
        return None


def end_processes(processes: Iterable[psutil.Process], grace: float) -> None:
    """End processes that are nobody's children here: SIGTERM, and SIGKILL after `grace` seconds."""
    found = list(processes)
    for process in found:
        with suppress(psutil.NoSuchProcess):
            process.terminate()
    _, alive = psutil.wait_procs(found, grace)
    for process in alive:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def _read(path: Path, kind: type[S]) -> S | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise SwarmctlError(
            f"can't read {path}: {error}",
            f"mv {path} {path}.broken   # then deploy again; checkpoints stay",
        ) from error
