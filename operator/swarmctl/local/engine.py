"""The local engine: brings about what commands wish of a stack on this machine.

Every change goes through `_bring_about`: it writes the wish down and has the supervisor follow it, so that a command
that is interrupted anywhere leaves either the old or the new wish. May import: everything of ``local``,
``coordinator``, ``console``, ``logs``, ``errors``.
"""

import shutil
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import psutil

from .. import coordinator
from ..console import Story
from ..errors import PartlyDoneError, SwarmctlError, UnreachableError, UsageError, WaitTimeoutError
from ..logs import Log, human
from ..schema import did_you_mean
from ..stack import Stack
from . import checkpoints
from .client import ask, is_supervised, start_supervisor
from .processes import HOST, Action, Wanted, difference, keep_scale, want
from .state import (
    COORDINATOR,
    Deployment,
    Folder,
    ProcessState,
    State,
    end_processes,
    living_process,
    lock,
    write,
)

POLL_INTERVAL_SEC = 0.2
STOP_TIMEOUT_SEC = 120.0
CRASHES_TO_GIVE_UP = 3
LOG_LINES_SHOWN = 12


@dataclass(frozen=True)
class Observed:
    """All that can be seen of a local stack at one moment."""

    folder: Folder
    deployment: Deployment
    state: State | None
    supervised: bool
    status: Mapping[str, Any] | None  # the coordinator's

    @property
    def is_finished(self) -> bool:
        """Whether the run reached its last step and every process ended by itself."""
        states = self.state.processes.values() if self.state else ()
        return not self.supervised and bool(states) and all(p.state == "finished" for p in states)

    def process(self, name: str) -> ProcessState | None:
        """What the supervisor knows of a process."""
        return self.state.processes.get(name) if self.state else None

    def trains(self, name: str) -> bool:
        """Whether a worker takes part in the training, or would if it were not paused."""
        return coordinator.worker(self.status, name).get("state") in {"training", "paused"}


def observe(folder: Folder) -> Observed | None:
    """Look at a stack; None where it is not deployed."""
    deployment = folder.read_deployment()
    if deployment is None:
        return None
    supervised = is_supervised(folder)
    state = folder.read_state()
    lead = state.processes.get(COORDINATOR) if state else None
    # A port says nothing about who listens on it: ask only where our coordinator lives.
    status = coordinator.read_status(deployment.http_port) if lead and living_process(lead) else None
    return Observed(folder, deployment, state, supervised, status)


# Changes -------------------------------------------------------------------------------------------------------


def plan(stack: Stack, folder: Folder, port: int | None, http_port: int | None) -> tuple[Wanted, list[Action]]:
    """What `deploy` would do, and what it is made of."""
    old = folder.read_deployment()
    port = port or (old.port if old else 7100)
    http_port = http_port or (old.http_port if old else 7180)
    if port == http_port:
        raise UsageError(f"--port and --http-port are both {port}; they need to differ")
    wanted = want(stack, folder, keep_scale(stack, old), port, http_port)
    workers, least = sum(wanted.deployment.replicas.values()), wanted.deployment.min_workers
    if workers < least:
        raise UsageError(
            f"training.min_workers is {least}, but {workers} workers are wished on this machine: it would wait for ever",
            f"# set x-fdtc.training.min_workers or classes.*.local_replicas in {stack.path}",
        )
    observed = observe(folder)
    if observed is None or not (observed.supervised or observed.is_finished):
        old = None  # nothing runs that could stay as it is
    return wanted, difference(old, wanted.deployment)


def deploy(
    stack: Stack, folder: Folder, story: Story, *, port: int | None, http_port: int | None, timeout: float
) -> None:
    """Bring a stack up on this machine, or change it, and wait until it trains.

    Raises:
        SwarmctlError: It can't be brought up; exit code 6 where only some of it trains.
    """
    folder.make()
    deadline = time.monotonic() + timeout
    with _alone(folder):
        wanted, actions = plan(stack, folder, port, http_port)
        observed = observe(folder)
        story.title(stack.name, f"on this machine, in {folder.path}")
        _tell_scale(stack, wanted.deployment, story)
        if observed and not actions:
            if observed.is_finished:
                _tell_finished(folder, story)
                return
            story.same("nothing to change")
        else:
            _bring_about(folder, wanted, actions, story, deadline)
        _wait_for_training(folder, story, deadline)


def scale(folder: Folder, wishes: Mapping[str, int], story: Story, *, timeout: float) -> None:
    """Change how many workers there are of some services, and wait until the new ones train."""
    deadline = time.monotonic() + timeout
    with _alone(folder):
        observed = _deployed(folder)
        if observed.is_finished:
            raise SwarmctlError(
                "the run is finished: there is nothing to scale", f"swarmctl status --local --stack {folder.name}"
            )
        deployment = scaled(observed.deployment, wishes)
        actions = difference(observed.deployment, deployment)
        story.title(folder.name, "on this machine")
        if not actions and observed.supervised:
            story.same("nothing to change")
        else:
            _bring_about(folder, Wanted(deployment, {}), actions, story, deadline)
        _wait_for_training(folder, story, deadline)


def scaled(deployment: Deployment, wishes: Mapping[str, int]) -> Deployment:
    """The deployment with other numbers of workers.

    Raises:
        UsageError: There is no such service, or it can't be scaled.
    """
    for service in wishes:
        if service == COORDINATOR:
            raise UsageError("there is one coordinator, always; only workers can be scaled")
        if service not in deployment.workers:
            raise UsageError(
                f"{deployment.stack} has no service {service!r}{did_you_mean(service, deployment.workers)}"
            )
    return msgspec.structs.replace(deployment, replicas={**deployment.replicas, **wishes})


def remove(folder: Folder, story: Story, *, volumes: bool) -> None:
    """Stop a stack and remove what it left, checkpoints only where `volumes` says so."""
    with _alone(folder):
        observed = observe(folder)
        if observed:
            story.title(folder.name, "on this machine")
            _stop(observed, story)
        for path in (folder.logs, folder.config, *((folder.checkpoints,) if volumes else ())):
            shutil.rmtree(path, ignore_errors=True)
        for path in (folder.deployment, folder.state, folder.socket, folder.supervisor_lock):
            path.unlink(missing_ok=True)
        kept = checkpoints.newest(folder)
        if kept:
            story.done("removed, all but its checkpoints", f"newest: version {kept.version}, {kept.path}")
        else:
            shutil.rmtree(folder.path, ignore_errors=True)
            story.done("removed")


def stop(folder: Folder, story: Story) -> None:
    """Stop a stack's processes; its wish, logs and checkpoints stay."""
    with _alone(folder):
        observed = observe(folder)
        if observed:
            _stop(observed, story)


def tell(folder: Folder, what: coordinator.Control, timeout: float) -> Mapping[str, Any]:
    """Have the coordinator of a stack do something.

    Raises:
        UnreachableError: The coordinator is not there.
    """
    observed = _deployed(folder)
    if observed.is_finished:
        raise SwarmctlError(f"the run is finished: there is nothing to {what}", "swarmctl generate --local")
    if observed.status is None:
        raise UnreachableError("the coordinator does not answer", f"swarmctl status --local --stack {folder.name}")
    return coordinator.control(observed.deployment.http_port, what, timeout)


# How -----------------------------------------------------------------------------------------------------------


@contextmanager
def _alone(folder: Folder) -> Iterator[None]:
    """Keep other commands from changing the same stack meanwhile."""
    if not folder.path.exists():
        yield
        return
    with lock(folder.command_lock) as mine:
        if not mine:
            raise SwarmctlError(
                f"another swarmctl is changing {folder.name} just now; try again when it is done",
                f"swarmctl status --local --stack {folder.name}",
            )
        yield


def _deployed(folder: Folder) -> Observed:
    observed = observe(folder)
    if observed is None:
        raise UnreachableError(
            f"{folder.name} is not deployed on this machine", f"swarmctl deploy --stack {folder.name} --local"
        )
    return observed


def _bring_about(folder: Folder, wanted: Wanted, actions: list[Action], story: Story, deadline: float) -> None:
    observed = observe(folder)
    _check_ports(observed, wanted.deployment, folder)
    kept = checkpoints.newest(folder)
    if kept and not (observed and observed.supervised):
        story.same(f"resumes from version {kept.version} ({kept.path})")
    for path, text in wanted.files.items():
        Path(path).write_text(text, encoding="utf-8")
    write(folder.deployment, wanted.deployment)
    story.done("the wish is written down", "; ".join(f"{a.kind} {a.process}" for a in actions))
    remaining = max(1.0, deadline - time.monotonic())
    if observed and observed.supervised:
        with story.waiting("the supervisor follows it"):
            ask(folder, "follow", remaining)
        story.done("the supervisor follows it")
        return
    left = _living(observed) if observed else []
    if left:
        story.warn(f"the supervisor was killed; {len(left)} processes that it left are ended first")
    with story.waiting("the supervisor starts"):
        start_supervisor(folder, remaining)
    story.done("the supervisor is there", f"it restarts what crashes; its log: {folder.log('supervisor')}")


def _wait_for_training(folder: Folder, story: Story, deadline: float) -> None:
    """Wait until every worker takes part and the weights have changed; tell what happens meanwhile."""
    watch = _Watch(folder, story)
    with story.waiting("waits for the coordinator") as show:
        while True:
            observed = _deployed(folder)
            watch.look(observed)
            if observed.is_finished:
                _tell_finished(folder, story)
                return
            if watch.complete:
                _tell_training(observed, story)
                return
            watch.give_up_where_hopeless()
            if time.monotonic() > deadline:
                raise WaitTimeoutError(
                    f"not all of it trains yet: {watch.missing_in_words()}. It goes on in the background.",
                    f"swarmctl status --local --stack {folder.name} --watch",
                    f"swarmctl logs {watch.first_missing} --local --stack {folder.name} --tail 20",
                )
            show(f"waits for {watch.missing_in_words()}")
            time.sleep(POLL_INTERVAL_SEC)


class _Watch:
    """What was seen of a stack that comes up, and what of it has been told."""

    def __init__(self, folder: Folder, story: Story) -> None:
        self.folder = folder
        self.story = story
        self.told: set[str] = set()
        self.restarts: dict[str, int] = {}
        self.restarts_at_first: dict[str, int] | None = None
        self.observed: Observed | None = None

    def look(self, observed: Observed) -> None:
        """Take in what is seen now, and tell what is new."""
        self.observed = observed
        processes = observed.state.processes if observed.state else {}
        if self.restarts_at_first is None:
            self.restarts_at_first = {name: process.restarts for name, process in processes.items()}
            self.restarts = dict(self.restarts_at_first)
        for name, process in processes.items():
            if process.restarts > self.restarts.get(name, 0):
                self.restarts[name] = process.restarts
                self.story.warn(f"{name} {how_it_ended(process)} and is started again")
        if observed.status and COORDINATOR not in self.told:
            self.told.add(COORDINATOR)
            self.story.done("the coordinator listens", f"{HOST}:{observed.deployment.port}, model {observed.deployment.model}")
        for spec in observed.deployment.processes:
            if spec.name not in self.told and observed.trains(spec.name):
                self.told.add(spec.name)
                facts = coordinator.worker(observed.status, spec.name)
                self.story.done(
                    f"{spec.name} trains", f"{facts.get('profile', '-')}, batch {facts.get('batch_size', '-')}"
                )

    @property
    def missing(self) -> list[str]:
        """Names of the processes that are not where they should be."""
        assert self.observed
        wanted = [spec.name for spec in self.observed.deployment.processes]
        if self.observed.status is None:
            return wanted
        return [name for name in wanted if name != COORDINATOR and not self.observed.trains(name)]

    @property
    def first_missing(self) -> str:
        """One process whose log may tell what is wrong."""
        return next(iter(self.missing), COORDINATOR)

    @property
    def complete(self) -> bool:
        """Whether all of it trains (or is paused)."""
        assert self.observed
        status = self.observed.status
        if status is None or self.missing:
            return False
        paused = coordinator.run_state(status) == "paused"
        return paused or not self.observed.deployment.replicas or int(status.get("version") or 0) >= 1

    def missing_in_words(self) -> str:
        """Who is missing, and what is known of each."""
        assert self.observed
        words = []
        for name in self.missing:
            process = self.observed.process(name)
            state = process.state if process else "not started"
            if process and process.restarts:
                state += f", restarted {process.restarts} times"
            words.append(f"{name} ({state})")
        return ", ".join(words) or "the first update"

    def give_up_where_hopeless(self) -> None:
        """End the waiting where something crashes again and again."""
        assert self.observed
        lead = self.observed.process(COORDINATOR)
        if lead and lead.state == "failed":
            ask(self.folder, "stop", STOP_TIMEOUT_SEC)
            raise SwarmctlError(
                f"the coordinator did not come up: it {how_it_ended(lead)}. {self._last_words(COORDINATOR)}",
                f"swarmctl logs coordinator --local --stack {self.folder.name}",
            )
        if not self.observed.supervised and not self.observed.is_finished:
            raise SwarmctlError(
                "the supervisor is gone", f"cat {self.folder.log('supervisor')}", "then deploy again"
            )
        at_first = self.restarts_at_first or {}
        crashing = [
            name
            for name in self.missing
            if self.restarts.get(name, 0) - at_first.get(name, 0) >= CRASHES_TO_GIVE_UP
        ]
        if crashing:
            message = f"{', '.join(crashing)} crashes again and again. {self._last_words(crashing[0])}"
            log = f"swarmctl logs {crashing[0]} --local --stack {self.folder.name}"
            if len(crashing) < len(self.observed.deployment.processes) - 1:
                raise PartlyDoneError(f"{message}\nThe others go on.", log)
            raise SwarmctlError(f"{message}\nThe supervisor goes on trying.", log)

    def _last_words(self, process: str) -> str:
        lines = Log(process, self.folder.log(process)).last_lines(LOG_LINES_SHOWN)
        return "Its last log lines:\n" + "\n".join(f"  {human(line).plain}" for line in lines)


def how_it_ended(process: ProcessState) -> str:
    """In words: ``was killed by signal 9``."""
    if process.last_ending is None:
        return "ended"
    code = process.last_ending.code
    return f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"


def _stop(observed: Observed, story: Story) -> None:
    with story.waiting("workers stop, then the coordinator with a last checkpoint"):
        if observed.supervised:
            ask(observed.folder, "stop", STOP_TIMEOUT_SEC)
        else:
            end_processes(_living(observed), STOP_TIMEOUT_SEC)
    story.done("all processes have stopped")


def _living(observed: Observed) -> list[psutil.Process]:
    states = observed.state.processes.values() if observed.state else ()
    return [process for state in states if (process := living_process(state))]


def _check_ports(observed: Observed | None, wanted: Deployment, folder: Folder) -> None:
    """Find out before anything is started whether the ports are free."""
    ours = {process.pid for process in _living(observed)} if observed else set()
    for option, port in (("--port", wanted.port), ("--http-port", wanted.http_port)):
        if is_free(port):
            continue
        owner = _owner(port)
        if owner and owner.pid in ours:
            continue
        who = f" by {owner.name()} (pid {owner.pid})" if owner else " by another program"
        raise SwarmctlError(
            f"port {port} of {HOST} is in use{who}",
            f"swarmctl deploy --stack {folder.name} --local {option} {free_port(port + 1)}",
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
            if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port and connection.pid:
                return psutil.Process(connection.pid)
    return None


def _tell_scale(stack: Stack, deployment: Deployment, story: Story) -> None:
    for service, count in deployment.replicas.items():
        if count != stack.replicas[service]:
            story.same(f"{service} stays at {count}, as scaled; the stack file says {stack.replicas[service]}")


def _tell_training(observed: Observed, story: Story) -> None:
    status = observed.status or {}
    loss = status.get("loss")
    at = f"version {status.get('version', '-')}" + (f", loss {loss:.3f}" if loss is not None else "")
    for name, process in (observed.state.processes if observed.state else {}).items():
        if process.restarts:
            story.warn(f"{name} has been restarted {process.restarts} times; last it {how_it_ended(process)}")
    if coordinator.run_state(status) == "paused":
        story.warn(f"it is paused at {at}")
        story.next(f"swarmctl resume --local --stack {observed.folder.name}")
        return
    story.done(f"it trains: {at}")
    name = observed.folder.name
    story.next(f"swarmctl status --local --stack {name} --watch", f"swarmctl logs coordinator --local --stack {name} -f")


def _tell_finished(folder: Folder, story: Story) -> None:
    kept = checkpoints.newest(folder)
    at = f" at version {kept.version}" if kept else ""
    story.done(f"the run is finished{at}", str(kept.path) if kept else "")
    story.next(
        f"swarmctl generate --local --stack {folder.name}",
        "# to go on, raise x-fdtc.training.steps in the stack file and deploy again",
    )
