"""The local engine: brings about what commands wish of a stack on this machine.

Every change goes through `_bring_about`: it writes the wish down and has the supervisor follow it, so that a command
that is interrupted anywhere leaves either the old or the new wish. May import: everything of ``local``,
``coordinator``, ``console``, ``errors``.
"""

import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from .. import coordinator
from ..console import Story
from ..errors import StackError, SwarmctlError, UnreachableError, UsageError
from ..schema import did_you_mean
from ..stack import Stack
from ..stack_schema import MOST_LOCAL_REPLICAS
from . import checkpoints, ports
from .client import ask, start_supervisor
from .observe import Observed, observe
from .processes import Action, Wanted, difference, keep_scale, want
from .remedies import to_deploy
from .state import COORDINATOR, Deployment, Folder, end_processes, lock, write
from .waiting import STOP_TIMEOUT_SEC, last_words, tell_finished, wait_for_training


def plan(stack: Stack, folder: Folder, port: int | None, http_port: int | None) -> tuple[Wanted, list[Action]]:
    """What `deploy` would do, and what it is made of."""
    old = folder.read_deployment()
    if old and old.source and Path(old.source).resolve() != stack.path.resolve():
        raise UsageError(
            f"a stack {stack.name} is deployed already, from {old.source}, and {stack.path} would change it",
            f"swarmctl rm --local --stack {stack.name}   # to deploy this one in its place, from its checkpoints",
            "name: another-name   # as the first line of this file, to have both",
        )
    port = port or (old.port if old else 7100)
    http_port = http_port or (old.http_port if old else 7180)
    if port == http_port:
        raise UsageError(f"--port and --http-port are both {port}; they need to differ")
    if stack.data.startswith("/") and not Path(stack.data).exists():
        raise StackError(f"{stack.path}: x-fdtc.data: there is no file {stack.data}")
    wanted = want(stack, folder, keep_scale(stack, old), port, http_port)
    workers, least = sum(wanted.deployment.replicas.values()), wanted.deployment.min_workers
    scaled_to_none = not workers and wanted.deployment.replicas != stack.replicas
    if workers < least and not scaled_to_none:
        raise UsageError(
            f"training.min_workers is {least}, but the workers wished here are {workers}: it would wait for ever",
            f"# set x-fdtc.training.min_workers or classes.*.local_replicas in {stack.path}",
        )
    observed = observe(folder)
    ports.check(wanted.deployment, {process.pid for process in observed.living} if observed else ())
    if observed is None or not (observed.supervised or observed.is_finished):
        old = None  # nothing runs that could stay as it is
    return wanted, difference(old, wanted.deployment)


def deploy(
    stack: Stack,
    folder: Folder,
    story: Story,
    *,
    port: int | None,
    http_port: int | None,
    timeout: float,
) -> Observed:
    """Bring a stack up on this machine, or change it, and wait until it trains.

    Raises:
        SwarmctlError: It can't be brought up; exit code 6 where only some of it trains.
    """
    deadline = time.monotonic() + timeout
    plan(stack, folder, port, http_port)  # what can't be is refused before anything is written
    folder.make()
    with _alone(folder):
        wanted, actions = plan(stack, folder, port, http_port)
        observed = observe(folder)
        kept = checkpoints.newest(folder)
        story.title(stack.name, f"on this machine, in {folder.path}")
        _tell_scale(stack, wanted.deployment, story)
        if observed and not actions:
            if observed.is_finished:
                tell_finished(folder, story)
                return observed
            story.same("nothing to change")
        else:
            _bring_about(folder, wanted, actions, story, deadline)
        trains = wait_for_training(folder, story, deadline, _unchanged(observed, actions))
        if kept and kept.path.with_name(f"damaged-{kept.path.name}").exists():
            story.warn(f"the checkpoint of version {kept.version} is damaged and was put aside; an older one is used")
        return trains


def scale(folder: Folder, wishes: Mapping[str, int], story: Story, *, timeout: float) -> Observed:
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
        return wait_for_training(folder, story, deadline, _unchanged(observed, actions))


def scaled(deployment: Deployment, wishes: Mapping[str, int]) -> Deployment:
    """The deployment with other numbers of workers.

    Raises:
        UsageError: There is no such service, or it can't be scaled.
    """
    for service, count in wishes.items():
        if service == COORDINATOR:
            raise UsageError("there is one coordinator, always; only workers can be scaled")
        if service not in deployment.workers:
            raise UsageError(
                f"{deployment.stack} has no service {service!r}{did_you_mean(service, deployment.workers)}"
            )
        if count > MOST_LOCAL_REPLICAS:
            raise UsageError(
                f"{count} of {service} are too many for one machine: at most {MOST_LOCAL_REPLICAS}, as in a stack file"
            )
    return msgspec.structs.replace(deployment, replicas={**deployment.replicas, **wishes})


def remove(folder: Folder, story: Story, *, volumes: bool) -> None:
    """Stop a stack and remove what it left, checkpoints only where `volumes` says so."""
    with _alone(folder):
        observed = observe(folder)
        if observed:
            story.title(folder.name, "on this machine")
            if not volumes:
                without = f"swarmctl rm --local --stack {folder.name} --volumes   # without its checkpoints"
                _save(observed, story, f"free some space in {folder.path}, and try again", without)
            if not _stop(observed, story) and not volumes:
                raise SwarmctlError(
                    f"the coordinator ended badly, so its last checkpoint may be missing; nothing is removed yet. "
                    f"{last_words(folder, COORDINATOR)}",
                    to_deploy(folder),
                    f"swarmctl rm --local --stack {folder.name}   # to remove it as it is",
                )
        for path in (folder.logs, folder.config, *((folder.checkpoints,) if volumes else ())):
            shutil.rmtree(path, ignore_errors=True)
        for path in (folder.deployment, folder.state, folder.socket, folder.supervisor_lock):
            path.unlink(missing_ok=True)
        kept = checkpoints.newest(folder)
        if kept:
            story.done("removed, all but its checkpoints", f"newest: version {kept.version}, {kept.path}")
        elif checkpoints.anything(folder):  # damaged, or put aside: not ours to throw away
            story.done("removed, all but what is left of its checkpoints", str(folder.checkpoints))
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
        raise SwarmctlError(
            f"the run is finished: there is nothing to {what}", f"swarmctl generate --stack {folder.name}"
        )
    if observed.status is None:
        raise UnreachableError("the coordinator does not answer", f"swarmctl status --local --stack {folder.name}")
    try:
        return coordinator.control(observed.deployment.http_port, what, timeout)
    except UnreachableError as error:
        raise UnreachableError(str(error), f"swarmctl status --local --stack {folder.name}") from error
    except SwarmctlError as error:
        if "--checkpoint-dir" not in str(error):
            raise type(error)(
                str(error), f"swarmctl logs coordinator --local --stack {folder.name} --tail 20"
            ) from error
        raise SwarmctlError(
            coordinator.without_remedy(str(error)),
            f"free some space in {folder.path}, or use SWARMCTL_STATE for a folder elsewhere",
        ) from error


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


def _unchanged(observed: Observed | None, actions: list[Action]) -> set[str]:
    """Names of the processes that are up and stay as they are."""
    if observed is None or not observed.supervised or observed.status is None:
        return set()
    touched = {action.process for action in actions}
    return {spec.name for spec in observed.deployment.processes} - touched


def _deployed(folder: Folder) -> Observed:
    observed = observe(folder)
    if observed is None:
        raise UnreachableError(f"{folder.name} is not deployed on this machine", to_deploy(folder))
    return observed


def _bring_about(folder: Folder, wanted: Wanted, actions: list[Action], story: Story, deadline: float) -> None:
    observed = observe(folder)
    left = observed.living if observed and not observed.supervised else []
    kept = checkpoints.newest(folder)
    if kept and not left and not (observed and observed.supervised):  # a coordinator that is left will write another
        story.same(f"resumes from version {kept.version} ({kept.path})")
    if observed and any(action.process == COORDINATOR for action in actions):
        _save(observed, story, f"free some space in {folder.path}, and deploy again")
    _write_wish(folder, wanted)
    story.done("configuration written", "; ".join(f"{a.kind} {a.process}" for a in actions))
    remaining = max(1.0, deadline - time.monotonic())
    if observed and observed.supervised:
        with story.waiting("the supervisor follows it"):
            ask(folder, "follow", remaining)
        story.done("supervisor has taken it up")
        return
    if left:
        story.warn(f"the supervisor was killed; {len(left)} processes that it left are ended first")
    with story.waiting("the supervisor starts"):
        start_supervisor(folder, remaining)
    story.done("supervisor started", "it restarts what crashes")


def _write_wish(folder: Folder, wanted: Wanted) -> None:
    """Write configuration and deployment; where the disk is full, or not to be written to, all stays as it was."""
    new = {Path(f"{path}.new"): text for path, text in wanted.files.items()}
    try:
        for path, text in new.items():
            path.write_text(text, encoding="utf-8")
        write(folder.deployment, wanted.deployment)
    except (OSError, SwarmctlError):
        for path in new:
            path.unlink(missing_ok=True)
        raise
    for path in new:
        path.replace(path.with_suffix(""))


def _save(observed: Observed, story: Story, *remedies: str) -> None:
    """Have the coordinator write a checkpoint while it can still be asked to, before it is ended.

    Args:
        observed: The stack.
        story: Told what is waited for.
        remedies: What to type where it can't.

    Raises:
        SwarmctlError: It can't: it goes on, and holds what it has learnt.
    """
    if not (observed.supervised and observed.status) or observed.is_finished:
        return
    try:
        with story.waiting("the coordinator writes a checkpoint"):
            coordinator.control(observed.deployment.http_port, "checkpoint", STOP_TIMEOUT_SEC)
    except UnreachableError:  # it has ended meanwhile; its end says more
        return
    except SwarmctlError as error:
        raise SwarmctlError(
            f"the coordinator can't write a checkpoint, so it goes on: {coordinator.without_remedy(str(error))}",
            *remedies,
        ) from error


def _stop(observed: Observed, story: Story) -> bool:
    """Stop all processes; False where the coordinator could not end well, its last checkpoint written."""
    with story.waiting("workers stop, then the coordinator with a last checkpoint"):
        if observed.supervised:
            code = ask(observed.folder, "stop", STOP_TIMEOUT_SEC).get(COORDINATOR, 0)
        else:
            end_processes(observed.living, STOP_TIMEOUT_SEC)
            code = 0  # whoever is not our child leaves us no exit code
    story.done("all processes have stopped")
    return code == 0


def _tell_scale(stack: Stack, deployment: Deployment, story: Story) -> None:
    for service, count in deployment.replicas.items():
        if count != stack.replicas[service]:
            story.same(f"{service} stays at {count}, as scaled; the stack file says {stack.replicas[service]}")
