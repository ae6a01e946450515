"""How many workers there are: what the stack file says, what `scale` wished since, and what the nodes can take.

May import: ``plan``, ``apply``, ``converge``, ``history``, ``observe``; ``fleet`` for the engine and the nodes.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..console import Story
from ..errors import UsageError
from ..fleet.swarm import Node
from ..fleet.where import Manager
from ..schema import did_you_mean
from . import history
from .apply import apply
from .converge import Seen, failed_tasks, look, told_shortage, wait
from .diff import differences
from .observe import observe_stack
from .plan import COORDINATOR, StackAction, UpdateService, eligible, replicas_of
from .state import WISH, Observed, Raw

WISH_FILE = f"{WISH}-file"
AUTO = "auto"


def numbered(
    services: Mapping[str, Raw],
    in_file: Mapping[str, int | None],
    observed: Observed,
    nodes: Sequence[Node],
    *,
    reset: bool,
) -> dict[str, Raw]:
    """The services with as many replicas as were wished by the file, by `scale`, or by the nodes there are.

    Args:
        services: Specs by name.
        in_file: What the file wishes, by service; None: as many as there are nodes.
        observed: The stack as it is: its labels keep what `scale` wished.
        nodes: All nodes.
        reset: Forget what `scale` wished.
    """
    others = {name: replicas_of(spec) for name, spec in services.items() if name != COORDINATOR}
    wishes = {name: number for name, number in others.items() if number is not None} | dict(in_file)
    found = dict(services)
    for name, number in wishes.items():
        kept = None if reset else _kept_wish(observed, name, number)
        count = kept if kept is not None else number
        if count is None:
            count = len(eligible(services[name], nodes))
        labels = {**(services[name].get("Labels") or {}), WISH_FILE: _word(number)}
        if kept is not None:
            labels[WISH] = str(kept)
        found[name] = {**services[name], "Labels": labels, "Mode": {"Replicated": {"Replicas": count}}}
    return found


def _kept_wish(observed: Observed, name: str, in_file: int | None) -> int | None:
    """What `scale` wished for a service, as long as the file says what it said then."""
    present = observed.services.get(name)
    labels = (present.spec.get("Labels") or {}) if present else {}
    wish = labels.get(WISH)
    return int(wish) if wish is not None and labels.get(WISH_FILE) == _word(in_file) else None


def _word(number: int | None) -> str:
    return AUTO if number is None else str(number)


def following(name: str, spec: Raw, observed: Observed, nodes: Sequence[Node]) -> Raw:
    """A kept spec with as many replicas as are wished now: by `scale` since, or by the nodes there are."""
    labels = dict(spec.get("Labels") or {})
    if WISH_FILE not in labels or replicas_of(spec) is None:
        return spec
    present = observed.services.get(name)
    now: Mapping[str, Any] = (present.spec.get("Labels") or {}) if present else labels
    if WISH in now:
        labels[WISH], count = now[WISH], int(now[WISH])
    else:
        labels.pop(WISH, None)
        count = len(eligible(spec, nodes)) if labels[WISH_FILE] == AUTO else int(labels[WISH_FILE])
    return {**spec, "Labels": labels, "Mode": {"Replicated": {"Replicas": count}}}


def scaled(observed: Observed, wishes: Mapping[str, int | None], nodes: Sequence[Node]) -> list[StackAction]:
    """What brings services to other numbers; None: as many as there are nodes.

    Raises:
        UsageError: A service is not there, or is the coordinator.
    """
    actions: list[StackAction] = []
    for name, wish in wishes.items():
        if name == COORDINATOR:
            raise UsageError("there is always one coordinator", "swarmctl scale worker-rpi 20")
        if name not in observed.services:
            known = [service for service in observed.services if service != COORDINATOR]
            raise UsageError(
                f"{observed.stack} has no service {name!r}{did_you_mean(name, known)}",
                *(f"swarmctl scale {other} 1" for other in known),
            )
        present = observed.services[name]
        if replicas_of(present.spec) is None:
            raise UsageError(
                f"{name} runs once on every node that its constraints allow (mode: global), so it has no number",
                "# services: … deploy: {mode: replicated}   # in the stack file, if it is to have one",
            )
        labels = {key: value for key, value in (present.spec.get("Labels") or {}).items() if key != WISH}
        if wish is not None:
            labels[WISH] = str(wish)
        count = len(eligible(present.spec, nodes)) if wish is None else wish
        spec = {**present.spec, "Labels": labels, "Mode": {"Replicated": {"Replicas": count}}}
        found = differences(present.spec, spec, {"Labels": present.spec.get("Labels") or {}})
        if found:
            actions.append(UpdateService(name, present.id, present.version, spec, tuple(found), restarts=False))
    return actions


def scale(
    stack: str, wishes: Mapping[str, int | None], found: Manager, story: Story, *, timeout: float, what: str
) -> Seen:
    """Bring services to other numbers, and wait for what the nodes can take.

    Raises:
        PartlyDoneError: There are fewer nodes than were wished; the wish is kept.
    """
    engine = found.engine
    with history.lock(engine, stack, what):
        observed = observe_stack(engine, stack)
        actions = scaled(observed, wishes, found.swarm.nodes)
        if not actions:
            story.same("nothing to change")
        for action in actions:
            assert isinstance(action, UpdateService)
            old, new = replicas_of(observed.services[action.service].spec), replicas_of(action.spec)
            story.change(
                "~", f"{action.service}: {old} → {new}" if old != new else f"{action.service}: {new} is the wish"
            )
            apply(action, engine)
        if actions:
            wait(engine, stack, list(wishes), story, deadline=time.monotonic() + timeout, before=failed_tasks(observed))
            history.record(engine, stack, what)
    seen = look(engine, stack)
    only = {name: state for name, state in seen.services.items() if name in wishes}
    told_shortage(replace(seen, services=only), stack, story)
    return seen
