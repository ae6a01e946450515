"""`swarmctl doctor`: looks at everything, judges, tells, and mends what is safe to mend.

May import: ``apply``, ``checks``, ``doctor``, ``label``, ``machines``, ``plan``, ``where``, and the plain data.
"""

import re
import time
from collections.abc import Collection, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from ..console import Story
from ..errors import SwarmctlError, UnreachableError
from . import doctor as tests
from . import init, label
from .actions import Action, RemoveNode, UpdateSwarm
from .apply import apply
from .checks import findings
from .commands import tell_actions
from .facts import Finding
from .inventory import Host
from .machines import Machine, ends, examine, look, node_of_machine, observed
from .observation import Observation, PairResult
from .swarm import Node
from .where import Manager, Settings, host_of, manager


class UnhealthyError(SwarmctlError):
    """Something is wrong."""


@dataclass(frozen=True)
class Diagnosis:
    """What doctor found.

    Attributes:
        findings: What is wrong, and was not mended.
        machines: How many machines were looked at.
        problem: What to end with; None: no finding is an error.
    """

    findings: tuple[Finding, ...]
    machines: int
    problem: UnhealthyError | None


def doctor(
    hosts: Sequence[Host], settings: Settings, story: Story, *, all_pairs: bool, fix: bool, dry_run: bool
) -> Diagnosis:
    """Examine hosts, or all nodes and hosts known, and tell what is wrong.

    Args:
        hosts: Only these; none: every node, and every host of the fleet file.
        settings: How to reach them.
        story: Where to tell.
        all_pairs: Test every machine with every other, not only with the managers.
        fix: Mend what can be mended without risk.
        dry_run: Only tell what would be mended.
    """
    with ExitStack() as stack:
        found = _manager_if_any(settings, story, stack)
        if found is None and not hosts and not settings.inventory.hosts:
            raise UnreachableError(
                "there is no swarm that answers, and no machine was named",
                "swarmctl doctor HOST …",
                "swarmctl nodes --manager HOST   # tells why the swarm does not answer",
            )
        observation, machines = _observe(hosts, found, settings, story, all_pairs=all_pairs)
        told = findings(observation)
        if hosts:
            named = {host.name for host in hosts}
            machines = [machine for machine in machines if machine.host.name in named]
            told = about(named, {machine.node.id for machine in machines if machine.node}, told, observation.pairs)
        actions: list[Action] = []
        if fix and found is not None:
            actions = _mending(told, machines, found)
            tell_actions(story, actions)
            if actions and not dry_run:
                apply(actions, found.engine)
                story.done("mended")
                mended = {finding for finding in told if finding.fix}
                told = tuple(finding for finding in told if finding not in mended)
    return Diagnosis(told, len(machines), _problem(told, len(machines), fix=fix))


def about(
    hosts: Collection[str], node_ids: Collection[str], found: Iterable[Finding], pairs: Iterable[PairResult]
) -> tuple[Finding, ...]:
    """Those findings that concern some hosts.

    They are theirs, those of what one can't reach, and the swarm's that name one, or say that none was reached.

    Args:
        hosts: Their names.
        node_ids: The nodes that they are.
        found: All findings.
        pairs: What was tested from one machine to another.
    """
    bad = [{test.source, test.target} for test in pairs if test.ok is False]
    far_ends = {host for ends in bad if not ends.isdisjoint(hosts) for host in ends}
    return tuple(
        finding
        for finding in found
        if _concerns(finding, hosts, node_ids) or (finding.check == "ports" and finding.where in far_ends)
    )


def _concerns(finding: Finding, hosts: Collection[str], node_ids: Collection[str]) -> bool:
    if finding.where != "swarm":
        return not set(finding.where.split(" -> ")).isdisjoint(hosts)
    if finding.check == "unreachable":
        return True
    # A name ends where no letter, digit or dash follows: pi-1 is not pi-10, nor 10.0.0.1 10.0.0.12.
    named = any(re.search(rf"(?<![\w.-]){re.escape(host)}(?![\w-]|\.\w)", finding.message) for host in hosts)
    return named or finding.subject in node_ids


def _problem(told: Sequence[Finding], count: int, *, fix: bool) -> UnhealthyError | None:
    errors = sum(finding.severity == "error" for finding in told)
    if not errors:
        return None
    mendable = any(finding.fix for finding in told) and not fix
    return UnhealthyError(
        f"{_count(errors, 'error')} and {_count(len(told) - errors, 'warning')} on {_count(count, 'machine')}",
        *(["swarmctl doctor --fix   # mends some of it"] if mendable else []),
    )


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _manager_if_any(settings: Settings, story: Story, stack: ExitStack) -> Manager | None:
    """Machines can be examined without a swarm, too, and a swarm that is ill is the very reason to look."""
    try:
        return stack.enter_context(manager(settings))
    except SwarmctlError as error:
        if settings.manager:
            raise
        story.warn(f"without the swarm's own word: {str(error).partition(chr(10))[0]}")
        return None


def _observe(
    hosts: Sequence[Host], found: Manager | None, settings: Settings, story: Story, *, all_pairs: bool
) -> tuple[Observation, list[Machine]]:
    with story.waiting("looks at the machines") as show:
        machines = _machines(hosts, found, settings)
        show("tests what gets from one machine to another")
        pairs = tests.pairs(ends(machines, found.swarm if found else None), settings.ssh, all_pairs=all_pairs)
    observation = Observation(
        swarm=found.swarm if found else None,
        machines=tuple(observed(machine) for machine in machines),
        pairs=tuple(pairs),
        now=time.time(),
        ca_pem=found.swarm.ca_pem if found else "",
        overlay_mtu=found.swarm.overlay_mtu if found else 1500,
    )
    return observation, machines


def _machines(hosts: Sequence[Host], found: Manager | None, settings: Settings) -> list[Machine]:
    if found is None:
        return examine(list(hosts) or list(settings.inventory.hosts), settings, None)
    if hosts:
        named = examine(hosts, settings, None, node_of=lambda _, probe: node_of_machine(probe, found.swarm))
        # The managers too: what a machine must reach is them.
        known = {machine.node.id for machine in named if machine.node}
        managers = [node for node in found.swarm.managers if node.id not in known and node.state == "ready"]
        return [*named, *look(found, settings, managers)]
    machines = look(found, settings, found.swarm.nodes)
    taken = {host_of(node, settings).name for node in found.swarm.nodes}
    others = [host for host in settings.inventory.hosts if host.name not in taken]
    return machines + examine(others, settings, None)


def _mending(told: Sequence[Finding], machines: Sequence[Machine], found: Manager) -> list[Action]:
    """The actions behind the findings that can be mended; each is safe to do twice."""
    fixes = {finding.fix for finding in told if finding.fix}
    actions: list[Action] = []
    if "remove-node" in fixes:
        gone = {finding.subject: finding for finding in told if finding.fix == "remove-node"}
        actions += [
            RemoveNode(node.id, node.hostname, f"{gone[node.id].where} is another node now", node.role == "manager")
            for node in found.swarm.nodes
            if node.id in gone
        ]
    if "label" in fixes:
        subjects = {finding.subject for finding in told if finding.fix == "label"}
        nodes: list[Node] = [node for node in found.swarm.nodes if node.id in subjects]
        chosen = [machine for machine in machines if machine.node in nodes]
        removed = {action.node_id for action in actions if isinstance(action, RemoveNode)}
        actions += [
            action
            for decided in label.decide(chosen, found.swarm)
            for action in decided.actions
            if not (isinstance(action, RemoveNode) and action.node_id in removed)
        ]
    if "heartbeat" in fixes or "certificate" in fixes:
        actions += [action for action in init.plan_existing(found.swarm, "") if isinstance(action, UpdateSwarm)]
    return actions
