"""The fleet's commands as stories: look, decide, tell, change. What is typed and printed is ``fleet_cli``'s.

May import: all of ``fleet``, ``console``, ``errors``.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..console import Story
from ..errors import Exit, PartlyDoneError, SwarmctlError, UnreachableError, UsageError, WaitTimeoutError
from . import authority
from . import init as making
from . import join as joining
from . import label as labelling
from . import nodes as listing
from .actions import Action, Change, Discard, RemoveNode, Store, UpdateNode, UpdateSwarm, as_data, describe
from .apply import apply
from .engine import engine_on
from .evidence import health
from .facts import Finding, Probe
from .inventory import HERE, Host, render
from .machines import Machine, ask_machine, ends, examine, look, node_of_machine, observed
from .observation import Observation
from .observe import observe
from .pairs import pairs
from .plan import clear_labels, ghosts_of, labels_by_user, set_labels
from .probe import probe
from .reach import reach
from .ssh import Connection, here
from .swarm import CLASS, PROFILE, Swarm
from .where import (
    Manager,
    Settings,
    host_of,
    machine_host,
    manager,
    manager_addresses,
    open_host,
    recall,
    remember,
)

Row = dict[str, Any]


@dataclass(frozen=True)
class Outcome:
    """What a command did to each of many.

    Attributes:
        rows: One for each.
        problem: What to end with, where not all of it was done.
    """

    rows: list[Row]
    problem: SwarmctlError | None


def tell_actions(story: Story, actions: Iterable[Action]) -> None:
    """Show what changes, field by field."""
    for action in actions:
        if not isinstance(action, UpdateNode | UpdateSwarm):
            story.change("-" if isinstance(action, Discard | RemoveNode) else "+", describe(action))
            continue
        story.change("~", f"{describe(action)}: {', '.join(_in_words(change) for change in action.changes)}")
        if isinstance(action, UpdateNode):
            for task in action.dies:
                slot = f".{task.slot}" if task.slot else ""
                story.warn(f"stops the task {task.service}{slot}: its constraint holds no longer on {action.node}")


def _in_words(change: Change) -> str:
    if change.old is None:
        return f"{change.field} {change.new}"
    return f"{change.field} {change.old} → {change.new or 'none'}"


# init -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class InitWish:
    """What was typed after `swarmctl init`."""

    host: Host | None
    advertise: str | None
    pool: str | None
    yes: bool
    dry_run: bool


def init(wish: InitWish, settings: Settings, story: Story) -> Row:
    """Make a swarm, or bring the present one to what training needs; returns what there is then."""
    with ExitStack() as stack:
        connection = stack.enter_context(open_host(wish.host or Host(HERE), settings))
        found = ask_machine(connection, None, settings)
        _refuse_without_engine(connection, found)
        is_manager = found.engine.swarm_state == "active" and found.engine.is_manager
        choice = None if is_manager else making.choose_address(found, wish.advertise)
        making.refuse_unfit(found, choice, yes=wish.yes)
        if choice is not None and not wish.yes:
            _refuse_second_swarm(wish, settings)
        engine = stack.enter_context(engine_on(connection, sudo=found.engine.access.startswith("sudo")))
        done: list[Action] = []
        if choice is not None:
            pool = making.choose_pool(found.networks, wish.pool)
            story.title(f"Making a swarm on {found.hostname}", f"Docker {found.engine.version}")
            story.same(f"its address is {choice.address}: {choice.why}")
            if choice.dynamic:
                story.warn("that address is from DHCP; keep it reserved in the router's settings")
            done = making.plan_new(choice, pool)
            if wish.dry_run:
                done += authority.plan({}, {})
                tell_actions(story, done)
                return {"actions": [as_data(action) for action in done], "changed": False}
            apply(done, engine)
            story.done(
                f"swarm made, overlay networks out of {pool}", "a worker may be silent for 45 s before it is lost"
            )
        else:
            story.title(f"{found.hostname} is a manager already", f"Docker {found.engine.version}")
        swarm = observe(engine)
        rest = making.plan_existing(swarm, found.machine_id)
        if wish.dry_run:
            tell_actions(story, rest)
            return {"actions": [as_data(action) for action in rest], "changed": False}
        apply(rest, engine)
        _tell_stored(story, rest)
        done += rest
        if not done:
            story.same("nothing to change")
        swarm = observe(engine)
        name = swarm.via_node_id
        remember(settings, swarm, {name: wish.host} if wish.host else {})
        if swarm.autolock:
            story.warn(f"managers are locked after a restart; keep this key: {engine.unlock_key()}")
        return _swarm_facts(swarm, done)


def _refuse_second_swarm(wish: InitWish, settings: Settings) -> None:
    """Who types init on each machine would get a swarm of one on each."""
    known = recall(settings)
    if known.swarm:
        name = wish.host.name if wish.host else "THIS-MACHINE"
        raise UsageError(
            f"there is a swarm already, with the managers {', '.join(known.managers) or 'that are gone'}; "
            "a second one would have none of its machines",
            f"swarmctl join {name}         # into the one there is",
            f"swarmctl init {wish.host.name + ' ' if wish.host else ''}--yes   # a swarm of its own all the same",
        )


def _refuse_without_engine(connection: Connection, found: Probe) -> None:
    blocking = [
        finding
        for finding in health(found)
        if finding.check in {"docker-access", "engine"}
        and (finding.severity == "error" or found.engine.access == "sudo-password")
    ]
    if blocking:
        raise SwarmctlError(
            f"{connection.host.name}: " + "; ".join(finding.message for finding in blocking),
            *(line for finding in blocking for line in finding.remedy),
        )


def _tell_stored(story: Story, actions: Sequence[Action]) -> None:
    stored = [action.name for action in actions if isinstance(action, Store)]
    if stored:
        story.done(f"token and TLS authority stored: {', '.join(stored)}")
    tell_actions(story, [action for action in actions if isinstance(action, UpdateSwarm | Discard)])


def _swarm_facts(swarm: Swarm, done: Sequence[Action]) -> Row:
    managers = manager_addresses(swarm)
    return {
        "swarm": swarm.id,
        "changed": bool(done),
        "actions": [as_data(action) for action in done],
        "managers": managers,
        "pool": list(swarm.pool),
        "join": {
            "worker": f"swarmctl join {swarm.worker_token} {managers[0]}",
            "manager": f"swarmctl join {swarm.manager_token} {managers[0]}",
            "docker": f"docker swarm join --token {swarm.worker_token} {managers[0]}",
        },
    }


# join -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class JoinWish:
    """What was typed after `swarmctl join`."""

    hosts: Sequence[Host]
    role: joining.Role | None
    yes: bool
    dry_run: bool
    timeout: float


def join_hosts(wish: JoinWish, settings: Settings, story: Story) -> Outcome:
    """Have hosts join the swarm; tells what became of each."""
    with manager(settings) as found:
        target = manager_addresses(found.swarm)[0].rpartition(":")[0].strip("[]")
        story.title(f"Joining {_count(len(wish.hosts), 'machine')}", f"to the swarm at {target}")
        with story.waiting(f"looks at {_count(len(wish.hosts), 'machine')}") as show:
            left = {host.name for host in wish.hosts}
            machines = examine(
                wish.hosts,
                settings,
                target,
                on_done=lambda machine: show(f"waits for {_left(left, machine.host.name)}"),
                node_of=lambda _, p: node_of_machine(p, found.swarm),
            )
            fit = [v.machine for v in joining.judge(machines, found.swarm, {}, anyway=wish.yes) if v.kind == "join"]
            show("tests what gets through to the managers and back")
            blamed = _reach(fit, found, settings) if fit else {}
        verdicts = joining.judge(machines, found.swarm, blamed, anyway=wish.yes)
        _tell_verdicts(story, verdicts)
        new = [verdict for verdict in verdicts if verdict.kind == "join"]

        def role_of(machine: Machine) -> joining.Role:
            return wish.role or ("manager" if machine.host.role == "manager" else "worker")

        joining.refuse_managers(found.swarm, [v for v in new if role_of(v.machine) == "manager"], yes=wish.yes)
        half = [verdict for verdict in verdicts if joining.needs_settling(verdict, found.swarm)]
        results: dict[str, str | SwarmctlError] = {}
        if (new or half) and not wish.dry_run:
            results = _join(new, half, found, settings, story, wish, role_of)
        _tell_of_workers(verdicts, found.swarm, role_of, story)
        remember(
            settings,
            found.again() if results else found.swarm,
            {
                node_id: verdict.machine.host
                for verdict in verdicts
                if isinstance(node_id := results.get(verdict.machine.host.name, _node_id(verdict)), str) and node_id
            },
        )
    rows = [_join_row(verdict, results, role_of(verdict.machine), wish.dry_run) for verdict in verdicts]
    if not new and not half and all(verdict.kind == "member" for verdict in verdicts):
        story.same("nothing to change")
    return _outcome(rows)


def _node_id(verdict: joining.Verdict) -> str:
    return verdict.machine.probe.engine.node_id if verdict.kind == "member" and verdict.machine.probe else ""


def _tell_verdicts(story: Story, verdicts: Sequence[joining.Verdict]) -> None:
    members = [verdict.machine.host.name for verdict in verdicts if verdict.kind == "member"]
    if members:
        story.same(f"in the swarm already: {', '.join(members)}")
    for verdict in verdicts:
        if verdict.problem:
            story.failed(_named(verdict.machine.host.name, verdict.problem), *verdict.problem.next_steps)
            continue
        for finding in verdict.findings:
            story.warn(f"{verdict.machine.host.name}: {finding.message}")


def _tell_of_workers(
    verdicts: Sequence[joining.Verdict], swarm: Swarm, role_of: Callable[[Machine], joining.Role], story: Story
) -> None:
    """A member does not change its role by joining again."""
    for verdict in verdicts:
        node = swarm.node(_node_id(verdict)) if verdict.kind == "member" else None
        if node and node.role == "worker" and role_of(verdict.machine) == "manager":
            story.warn(f"{verdict.machine.host.name} is a worker, and stays one")
            story.remedy(f"docker node promote {node.hostname}   # on a manager")


def _join(
    new: Sequence[joining.Verdict],
    half: Sequence[joining.Verdict],
    found: Manager,
    settings: Settings,
    story: Story,
    wish: JoinWish,
    role_of: Callable[[Machine], joining.Role],
) -> dict[str, str | SwarmctlError]:
    with story.waiting(f"{_count(len(new), 'machine')} join") as show:
        left = {verdict.machine.host.name for verdict in new}

        def joined(machine: Machine, result: str | SwarmctlError) -> None:
            if isinstance(result, SwarmctlError):
                story.failed(_named(machine.host.name, result), *result.next_steps)
            show(f"joins {_left(left, machine.host.name)}")

        results = joining.join_all(
            [verdict.machine for verdict in new],
            found,
            settings,
            role_of=role_of,
            deadline_sec=wish.timeout,
            on_done=joined,
        )
        show("waits for the managers to see them")
        everyone = [*new, *half]
        identities = {
            verdict.machine.host.name: verdict.machine.probe.machine_id for verdict in everyone if verdict.machine.probe
        }

        def settled(name: str, node: Any, swarm: Swarm) -> None:
            before = ghosts_of(identities[name], swarm, alive_id=node.id)
            machine = next(verdict.machine for verdict in everyone if verdict.machine.host.name == name)
            taken_for = f"{machine.evidence.hardware_class}, {machine.evidence.arch}" if machine.evidence else ""
            detail = joining.tell_carried(node, before) or taken_for
            words = f"joined as {node.role}" if name in results else "is in the swarm"
            story.done(f"{name} {words} at {node.address}", detail)

        findings, unseen = joining.settle_all(
            {
                **{name: node_id for name, node_id in results.items() if isinstance(node_id, str)},
                **{verdict.machine.host.name: _node_id(verdict) for verdict in half},
            },
            found,
            identities,
            deadline_sec=wish.timeout,
            on_done=settled,
        )
    for finding in findings:
        story.warn(finding.message)
        story.remedy(*finding.remedy)
    for name in unseen:
        late = WaitTimeoutError(
            f"{name} has joined, but the managers do not see it as ready yet", f"swarmctl join {name}   # goes on"
        )
        story.failed(str(late), *late.next_steps)
        results[name] = late
    return results


def _join_row(verdict: joining.Verdict, results: dict[str, str | SwarmctlError], role: str, dry_run: bool) -> Row:
    name = verdict.machine.host.name
    result = results.get(name)
    error = verdict.problem or (result if isinstance(result, SwarmctlError) else None)
    return {
        "host": name,
        "result": "refused"
        if verdict.problem
        else "failed"
        if error
        else verdict.kind
        if dry_run or not result
        else "joined",
        "role": role,
        "node_id": result if isinstance(result, str) else _node_id(verdict),
        "error": str(error) if error else "",
        "unreachable": error is not None and error.code == Exit.UNREACHABLE,
        "findings": [{"severity": f.severity, "check": f.check, "message": f.message} for f in verdict.findings],
    }


def _reach(machines: Sequence[Machine], found: Manager, settings: Settings) -> dict[str, list[Finding]]:
    """What stands between each machine that is to join and the managers, tested both ways."""
    managers = look(found, settings, [node for node in found.swarm.managers if node.state == "ready"])
    everyone = [*managers, *machines]
    tested = pairs(ends(everyone, found.swarm), settings.ssh)
    seen = Observation(found.swarm, tuple(observed(machine) for machine in everyone), tuple(tested), time.time())
    blamed = {}
    for machine in machines:
        # Judged by itself: a manager that it can't reach is the manager's fault only where others can't either.
        own = tuple(test for test in tested if machine.host.name in {test.source, test.target})
        blamed[machine.host.name] = reach(replace(seen, pairs=own))
    return blamed


def join_here(
    token: str, managers: list[str], advertise: str | None, story: Story, *, timeout: float, yes: bool, dry_run: bool
) -> Row:
    """Have this machine's engine join, with a token, as `docker swarm join` does, but checked and waited for."""
    with ExitStack() as stack:
        connection = stack.enter_context(here())
        target = managers[0].rpartition(":")[0].strip("[]")
        found = probe(connection, target)
        _refuse_without_engine(connection, found)
        state = found.engine.swarm_state
        if state == "active":
            ours = set(managers) & set(found.engine.managers)
            if ours and not found.engine.is_manager:
                story.same(f"{found.hostname} is in this swarm already; nothing to change")
                return {"host": found.hostname, "result": "member", "node_id": found.engine.node_id}
            raise UsageError(
                f"{found.hostname} is in a swarm already" + (", as a manager" if found.engine.is_manager else ""),
                "docker swarm leave --force   # takes it out of that one; then join again",
            )
        source = advertise or found.route.source
        story.title(f"Joining {found.hostname}", f"at {source} to the swarm at {managers[0]}")
        _refuse_unfit_here(found, story, yes=yes)
        if dry_run:
            return {"host": found.hostname, "result": "join", "node_id": ""}
        engine = stack.enter_context(engine_on(connection, sudo=found.engine.access.startswith("sudo")))
        with story.waiting("joins"):
            node_id = joining.join_one(engine, managers=managers, token=token, advertise=source, deadline_sec=timeout)
        story.done(f"{found.hostname} joined", node_id)
        return {"host": found.hostname, "result": "joined", "node_id": node_id}


def _refuse_unfit_here(found: Probe, story: Story, *, yes: bool) -> None:
    """What can be told from the machine alone; doctor tells the rest, and `label --auto` who it was before."""
    for finding in health(found):
        if finding.severity == "error" and not yes:
            raise SwarmctlError(f"{found.hostname}: {finding.message}", *finding.remedy, "--yes   # join all the same")
        story.warn(finding.message)


# label ----------------------------------------------------------------------------------------------------------


def label_auto(names: Sequence[str], settings: Settings, story: Story, *, dry_run: bool) -> Outcome:
    """Probe the nodes and give each the labels of what it is."""
    with manager(settings) as found:
        chosen = [labelling.named_node(name, found.swarm) for name in names] or [
            node for node in found.swarm.nodes if node.state != "down"
        ]
        machines = _look_with_progress(found, settings, chosen, story)
        swarm = _without_the_past(machines, found, story)
        decided = labelling.decide(machines, swarm)
        if not names:
            _tell_down(found, story)
        changed = [labelled for labelled in decided if labelled.actions]
        rows = [_label_row(labelled, "would change" if dry_run else "changed") for labelled in decided]
        for labelled in decided:
            tell_actions(story, labelled.actions)
        if not dry_run:
            for labelled in changed:
                apply(labelled.actions, found.engine)
    for row in rows:
        if row["error"]:
            story.failed(_named(row["node"], row["error"]), *row["remedy"])
    if not changed and not any(row["error"] for row in rows):
        story.same("nothing to change")
    elif changed and not dry_run:
        story.done(f"{_count(len(changed), 'node')} labelled")
    return _outcome(rows)


def _without_the_past(machines: Sequence[Machine], found: Manager, story: Story) -> Swarm:
    """The swarm once the managers have missed what machines that rejoined were before."""
    is_now = {
        machine.node.id: machine.probe.machine_id
        for machine in machines
        if machine.node and machine.probe and machine.probe.engine.node_id == machine.node.id
    }
    with story.waiting("waits for the managers to miss what machines were before they rejoined"):
        return joining.after_the_past(is_now, found, found.swarm, is_now.keys())


def _tell_down(found: Manager, story: Story) -> None:
    """Whoever wants all machines labelled wants to know which were left out."""
    down = [node.hostname for node in found.swarm.nodes if node.state == "down"]
    if down:
        story.warn(f"down, so not looked at: {', '.join(down)}; swarmctl nodes tells why")


def _label_row(labelled: labelling.Labelling, changed: str) -> Row:
    machine = labelled.machine
    node, evidence, error = machine.node, machine.evidence, machine.error
    assert node
    update = labelled.update
    labels = {**node.labels, **(update.labels if update else {})}
    return {
        "node": node.hostname,
        "class": labels.get(CLASS) or "-",
        "profile": labels.get(PROFILE) or "-",
        "arch": evidence.arch if evidence else "",
        "by": "you" if labelled.by_user else "probe",
        "confidence": evidence.confidence if evidence else "",
        "evidence": list(evidence.reasons) if evidence else [],
        "probed_class": evidence.hardware_class if evidence else "",
        "result": "failed" if error else changed if labelled.actions else "same",
        "actions": [as_data(action) for action in labelled.actions],
        "error": str(error) if error else "",
        "remedy": list(error.next_steps) if error else [],
        "unreachable": error is not None and error.code == Exit.UNREACHABLE,
    }


def label_node(name: str, hardware_class: str, settings: Settings, story: Story, *, dry_run: bool) -> list[Action]:
    """Give one node the class that a person chose."""
    chosen = labelling.checked_class(hardware_class)
    with manager(settings) as found:
        node = labelling.named_node(name, found.swarm)
        return _change(set_labels(node, labels_by_user(node, chosen), found.swarm), found, story, dry_run=dry_run)


def label_clear(names: Sequence[str], settings: Settings, story: Story, *, dry_run: bool) -> list[Action]:
    """Take the class of nodes away, so that the next `label --auto` decides again."""
    with manager(settings) as found:
        actions = [
            action for name in names for action in clear_labels(labelling.named_node(name, found.swarm), found.swarm)
        ]
        return _change(actions, found, story, dry_run=dry_run)


def _change(actions: list[Action], found: Manager, story: Story, *, dry_run: bool) -> list[Action]:
    tell_actions(story, actions)
    if not actions:
        story.same("nothing to change")
    elif not dry_run:
        apply(actions, found.engine)
        story.done("changed")
    return actions


def _look_with_progress(found: Manager, settings: Settings, chosen: Sequence[Any], story: Story) -> list[Machine]:
    left = {node.hostname for node in chosen}
    with story.waiting(f"looks at {_count(len(chosen), 'machine')}") as show:
        return look(found, settings, chosen, on_done=lambda machine: show(f"waits for {_left(left, machine.name)}"))


# fleet scan -----------------------------------------------------------------------------------------------------


def scan(hosts: Sequence[Host], settings: Settings, story: Story, write: Path | None) -> Outcome:
    """Look at machines, in a swarm or not; writes a fleet file of those that answer.

    Raises:
        UsageError: The file is there already.
    """
    if write and write.exists():
        raise UsageError(f"{write} is there already", f"mv {write} {write}.old")
    with story.waiting(f"looks at {_count(len(hosts), 'machine')}"):
        machines = examine(hosts, settings, None)
    for machine in machines:
        if machine.error:
            story.failed(_named(machine.host.name, machine.error), *machine.error.next_steps)
    answering = [machine.host for machine in machines if machine.probe]
    if write and answering:
        write.write_text(render(answering), encoding="utf-8")
        story.done(f"{_count(len(answering), 'host')} written to {write}")
    return _outcome([_scan_row(machine) for machine in machines])


def _scan_row(machine: Machine) -> Row:
    found, evidence, error = machine.probe, machine.evidence, machine.error
    return {
        "host": machine.host.name,
        "class": evidence.hardware_class if evidence else "",
        "profile": evidence.profile if evidence else "",
        "arch": evidence.arch if evidence else "",
        "evidence": list(evidence.reasons) if evidence else [],
        "memory_mb": found.memory_mb if found else 0,
        "cores": found.cores if found else 0,
        "docker": (found.engine.version or found.engine.access) if found else "",
        "swarm": found.engine.swarm_state if found else "",
        "what": (found.model or found.cpu_model or found.system) if found else "",
        "error": str(error) if error else "",
        "unreachable": error is not None and error.code == Exit.UNREACHABLE,
    }


# nodes ----------------------------------------------------------------------------------------------------------


def nodes(settings: Settings, story: Story, *, quick: bool) -> list[Row]:
    """Every node, and every host of the fleet file that is none."""
    with manager(settings) as found:
        everything = list(found.swarm.nodes)
        if quick:
            machines = [Machine(machine_host(node, found, settings), node, None) for node in everything]
            return listing.rows(machines, found.swarm)
        machines = _look_with_progress(found, settings, everything, story)
        # Both names: this machine is reached as itself, whatever the fleet file calls it.
        taken = {machine.host.name for machine in machines} | {host_of(node, settings).name for node in everything}
        others = [host for host in settings.inventory.hosts if host.name not in taken]
        strangers = examine(
            others, settings, None, node_of=lambda _, found_probe: node_of_machine(found_probe, found.swarm)
        )
        return listing.rows(machines, found.swarm, strangers)


# Shared ---------------------------------------------------------------------------------------------------------


def _outcome(rows: list[Row]) -> Outcome:
    """The rows, and the error whose exit code says how much was done."""
    failed = [row for row in rows if row["error"]]
    names = ", ".join(row.get("host") or row["node"] for row in failed)
    problem: SwarmctlError | None = None
    if failed and len(failed) < len(rows):
        problem = PartlyDoneError(f"{len(failed)} of {len(rows)} not done: {names}", "type the same again to go on")
    elif failed and all(row["unreachable"] for row in failed):
        problem = UnreachableError(f"none could be reached: {names}")
    elif failed:
        problem = SwarmctlError(f"not done: {names}")
    return Outcome(rows, problem)


def _left(names: set[str], done: str) -> str:
    """Who is still to come once one is done, in few words; takes that one out of `names`."""
    names.discard(done)
    return f"{', '.join(sorted(names)[:4])}{' …' if len(names) > 4 else ''}"


def _named(name: str, problem: object) -> str:
    """What is wrong, with the machine's name before it, once."""
    said = str(problem)
    return said if said.startswith(name) else f"{name}: {said}"


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"
