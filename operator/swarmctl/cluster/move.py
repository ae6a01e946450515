"""Takes a stack's coordinator to another node, its newest checkpoint with it, so that training goes on there.

The coordinator is where the node's label says that its checkpoints are (``place``): once the label says that they are
being moved, the swarm stops it, which writes a checkpoint; once another node has the label, it starts there. May
import: ``place``, ``apply``, ``converge``, ``training``, ``history``; ``fleet`` for engines and nodes.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import PurePosixPath

from ..console import Story, number
from ..errors import SwarmctlError, UsageError
from ..fleet.engine import Engine
from ..fleet.swarm import Node
from ..fleet.where import Manager, Settings, engine_of
from ..stack import to_type
from . import history
from .apply import set_node_label
from .converge import Seen, look, refused, until
from .observe import observe_stack
from .place import home, is_bound, label, places, volume
from .plan import COORDINATOR
from .state import HERE, MOVING, Raw
from .training import checkpoint_first

_CHUNK = 1 << 20
_SURE_SEC = 3.0  # the scheduler may refuse a task while it has heard of half a change
# In the coordinator's own image. Half-written checkpoints and those found damaged have other names.
_NEWEST = "import glob,os,sys; print(max(glob.glob('ckpt-*[0-9]', root_dir=sys.argv[1]), default=''))"
_SET_ASIDE = """
import glob, os, shutil, sys, time
os.chdir(sys.argv[1])
old = glob.glob('ckpt-*[0-9]')
if old:
    for folder in glob.glob('before-*'):
        shutil.rmtree(folder)
    aside = time.strftime('before-%Y-%m-%dT%H-%M-%S')
    os.mkdir(aside)
    for name in old:
        os.rename(name, os.path.join(aside, name))
"""


def target_for(stack: str, source: Node, found: Manager) -> Node | None:
    """Where a coordinator could go; None: nowhere."""
    spec = observe_stack(found.engine, stack).services[COORDINATOR].spec
    return next((node for node in places(spec, stack, found.swarm.nodes) if node.id != source.id), None)


def move(
    stack: str, source: Node, target: Node, found: Manager, settings: Settings, story: Story, *, deadline: float
) -> None:
    """Move a coordinator, and wait until it runs.

    Args:
        stack: Whose.
        source: Where its checkpoints are. If it is down, they stay there.
        target: Where it goes.
        found: The swarm.
        settings: How to reach the two machines.
        story: Where to tell.
        deadline: By `time.monotonic`.

    Raises:
        SwarmctlError: The checkpoint can't be copied; the coordinator is where it was.
        WaitTimeoutError: It does not run there in time.
    """
    what = f"moved the coordinator from {source.hostname} to {target.hostname}"
    with history.lock(found.engine, stack, f"swarmctl drain {source.hostname}"), ExitStack() as ways:
        now = home(stack, found.again().nodes)
        if now is None or now.id != source.id:  # somebody else was quicker than the lock
            story.same(f"the coordinator of {stack} is not on {source.hostname} any more")
            return
        spec = observe_stack(found.engine, stack).services[COORDINATOR].spec
        if source.state != "ready":
            what += ", without its checkpoints"
            story.warn(f"{stack} goes on from an older checkpoint that {target.hostname} may have, or begins anew")
            _switch_and_wait(stack, source, target, found.engine, story, deadline)
        else:
            # Reached before anything is stopped.
            engines = [ways.enter_context(engine_of(node, found, settings)) for node in (source, target)]
            engines[1].pull(spec["TaskTemplate"]["ContainerSpec"]["Image"])
            checkpoint_first(stack, found, settings, story)
            try:
                set_node_label(found.engine, source.id, label(stack), MOVING)
                _wait_until_stopped(spec["Name"], engines[0], story, deadline)
                _copy(spec, source, target, engines, story)
                _switch_and_wait(stack, source, target, found.engine, story, deadline)
            except BaseException:
                story.warn(f"the coordinator of {stack} stays on {source.hostname}")
                set_node_label(found.engine, target.id, label(stack), None)
                set_node_label(found.engine, source.id, label(stack), HERE)
                raise
        history.record(found.engine, stack, what)
    story.done(what)


def _wait_until_stopped(service: str, engine: Engine, story: Story, deadline: float) -> None:
    # Its own engine knows; to the managers a task that may not be there has ended at once.
    with story.waiting("waits for the coordinator to stop"):
        until(lambda: not engine.runs_task_of(service), deadline=deadline, what=f"{service} still runs")


def _switch_and_wait(stack: str, source: Node, target: Node, engine: Engine, story: Story, deadline: float) -> None:
    before = _refusals(look(engine, stack))
    since: dict[tuple[str, str], float] = {}
    set_node_label(engine, target.id, label(stack), HERE)
    set_node_label(engine, source.id, label(stack), None)

    def runs() -> bool:
        seen, now = look(engine, stack), time.monotonic()
        for refusal in _refusals(seen) - before:
            if now - since.setdefault(refusal, now) > _SURE_SEC:
                raise SwarmctlError(
                    f"{target.hostname} does not take the coordinator of {stack}: {refusal[1]}",
                    f"swarmctl status --stack {stack}",
                )
        tasks = seen.services[COORDINATOR].tasks
        return any(task.node_id == target.id and task.state == "running" for task in tasks)

    with story.waiting(f"waits for the coordinator on {target.hostname}"):
        until(runs, deadline=deadline, what=f"the coordinator of {stack} does not run on {target.hostname}")


def _refusals(seen: Seen) -> set[tuple[str, str]]:
    return {(task.id, task.error) for task in refused(seen.services[COORDINATOR])}


def _copy(spec: Raw, source: Node, target: Node, engines: Sequence[Engine], story: Story) -> None:
    """Copy the newest checkpoint from one node's volume to the other's, through this machine."""
    image = spec["TaskTemplate"]["ContainerSpec"]["Image"]
    mount = volume(spec)
    assert mount is not None
    name, folder = mount["Source"], mount["Target"]
    there, here = engines
    with there.container(image, ["python3", "-c", _NEWEST, folder], name, folder) as reader:
        newest = _said(there, reader)
        with here.container(image, ["python3", "-c", _SET_ASIDE, folder], name, folder) as writer:
            _said(here, writer)
            if not newest:
                story.warn(f"{source.hostname} has no checkpoint yet; training begins anew on {target.hostname}")
                return
            with (
                story.waiting(f"copies {newest} to {target.hostname}") as show,
                there.archive(reader, str(PurePosixPath(folder) / newest)) as read,
            ):
                told = _told(read, lambda count: show(f"copies {newest} to {target.hostname}: {number(count, 'B')}"))
                here.unpack_into(writer, folder, told)
    story.done(f"{newest} copied to {target.hostname}")


def _told(read: Callable[[int], bytes], tell: Callable[[int], None]) -> Iterator[bytes]:
    count = 0
    while data := read(_CHUNK):
        yield data
        count += len(data)
        tell(count)


def _said(engine: Engine, container: str) -> str:
    status, said = engine.run_to_end(container)
    if status != 0:
        raise SwarmctlError(f"{engine.host}: the checkpoints can't be read: {said.strip()}")
    return said.strip()


def refuse_unwished(stack: str, source: Node, target: Node | None, found: Manager) -> None:
    """Refuse what would stop a training, or leave its checkpoints behind.

    Raises:
        UsageError: It would.
    """
    if target is None:
        raise UsageError(
            f"the coordinator of {stack} is on {source.hostname}, and no other node can take it: training would stop",
            f"swarmctl drain {source.hostname} --yes   # stop it all the same; a checkpoint is written first",
        )
    spec = observe_stack(found.engine, stack).services[COORDINATOR].spec
    if source.state != "ready" and volume(spec):
        raise UsageError(
            f"{source.hostname} is {source.state}, so the checkpoints of {stack} can't be taken to {target.hostname}",
            f"swarmctl drain {source.hostname} --yes   # without them: from an older one on {target.hostname}, or anew",
        )
    if volume(spec) and not is_bound(spec, stack):
        raise UsageError(
            f"the coordinator of {stack} was not put on {source.hostname} by swarmctl, "
            "so the swarm would start it elsewhere without its checkpoints",
            f"swarmctl deploy --stack {to_type(stack)}   # gives it its place, once",
            f"swarmctl drain {source.hostname} --yes   # begin anew, without them",
        )


def wait_until_empty(node: Node, engine: Engine, story: Story, deadline: float) -> None:
    """Wait until nothing runs on a node.

    Raises:
        WaitTimeoutError: Something still does.
    """

    def empty() -> bool:
        return not any(task["Status"]["State"] == "running" for task in engine.tasks({"node": node.id}))

    with story.waiting(f"waits for the tasks on {node.hostname} to end or move"):
        until(empty, deadline=deadline, what=f"{node.hostname} still runs tasks")
