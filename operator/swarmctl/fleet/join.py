"""`swarmctl join`: checks machines, has their engines join, and gives back what each was before.

May import: ``apply``, ``engine``, ``evidence``, ``everywhere``, ``machines``, ``plan``, ``where``, and the plain data.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from ..errors import SwarmctlError, UsageError, WaitTimeoutError
from .apply import apply
from .engine import Engine, EngineError, engine_on, wait_until
from .everywhere import everywhere
from .evidence import health
from .facts import Finding, Probe
from .machine_checks import of_a_copy
from .machines import Machine
from .plan import ghosts_of, settle, twin_of
from .ssh import Connection
from .swarm import IDENTITY, Node, Swarm
from .where import Manager, Settings, manager_addresses

Role = Literal["worker", "manager"]
# Each join makes the managers sign a certificate and tell everybody; more at once only take longer.
AT_ONCE = 8


@dataclass(frozen=True)
class Verdict:
    """What is to be done about a machine that was named.

    Attributes:
        machine: It.
        kind: ``join`` it; it is a ``member`` already; it is ``refused``.
        findings: What the checks before found; errors among them are why it is refused.
    """

    machine: Machine
    kind: Literal["join", "member", "refused"]
    findings: tuple[Finding, ...] = ()

    @property
    def problem(self) -> SwarmctlError | None:
        """Why it is refused."""
        if self.machine.error:
            return self.machine.error
        if self.kind != "refused":
            return None
        errors = [finding for finding in self.findings if finding.severity == "error"]
        return SwarmctlError(
            "; ".join(finding.message for finding in errors), *(line for finding in errors for line in finding.remedy)
        )


def judge(
    machines: Sequence[Machine], swarm: Swarm, reach: Mapping[str, Sequence[Finding]], *, anyway: bool
) -> list[Verdict]:
    """Decide about each machine; pure.

    Args:
        machines: As they were looked at.
        swarm: That they are to join.
        reach: What stands between each and the managers, by the host's name.
        anyway: Join in spite of errors that a swarm could live with.
    """
    names = Counter(machine.probe.hostname for machine in machines if machine.probe)
    verdicts = []
    for machine in machines:
        probe = machine.probe
        if probe is None:
            verdicts.append(Verdict(machine, "refused"))
            continue
        if _is_member(probe, swarm):
            verdicts.append(Verdict(machine, "member"))
            continue
        found = [
            *health(probe),
            *reach.get(machine.host.name, ()),
            *_in_another_swarm(machine, probe, swarm),
            *_names_taken(machine, probe, swarm, names),
            *_copied_disk(machine, probe, machines),
        ]
        blocking = [finding for finding in found if finding.severity == "error" and not (anyway and _bearable(finding))]
        verdicts.append(Verdict(machine, "refused" if blocking else "join", tuple(found)))
    return verdicts


def _is_member(probe: Probe, swarm: Swarm) -> bool:
    node = swarm.node(probe.engine.node_id) if probe.engine.swarm_state == "active" else None
    return node is not None and node.state != "down"


def _bearable(finding: Finding) -> bool:
    return finding.check not in {"docker-access", "engine", "other-swarm"}


def _in_another_swarm(machine: Machine, probe: Probe, swarm: Swarm) -> list[Finding]:
    """An engine that is at home elsewhere is not taken away; one whose swarm is gone, or is ours, may be."""
    engine = probe.engine
    if engine.swarm_state not in {"active", "locked"} or swarm.node(engine.node_id):
        return []
    ours = {address.rpartition(":")[0] for address in manager_addresses(swarm)}
    if not engine.is_manager and ours & {address.rpartition(":")[0] for address in engine.managers}:
        return []  # it was removed here, and has not noticed
    name = machine.host.name
    return [
        Finding(
            "error",
            "other-swarm",
            name,
            f"{name} is in another swarm" + (", as a manager" if engine.is_manager else ""),
            (f"ssh {name} docker swarm leave --force   # takes it out of that one; then join it again",),
        )
    ]


def _names_taken(machine: Machine, probe: Probe, swarm: Swarm, names: Mapping[str, int]) -> list[Finding]:
    taken = any(
        node.hostname == probe.hostname and node.state == "ready" and not _may_be(node, probe) for node in swarm.nodes
    )
    if not taken and names[probe.hostname] < 2:
        return []
    name = machine.host.name
    return [
        Finding(
            "error",
            "hostname",
            name,
            f"another machine is called {probe.hostname}, too",
            (f"ssh {name} sudo hostnamectl set-hostname NEW-NAME",),
        )
    ]


def _may_be(node: Node, probe: Probe) -> bool:
    """Whether a node that the managers think is up can be this machine before it restarted."""
    if identity := node.labels.get(IDENTITY):
        return identity == probe.machine_id
    return node.address in {address.address for address in probe.addresses}


def _copied_disk(machine: Machine, probe: Probe, machines: Sequence[Machine]) -> list[Finding]:
    """The first of several with one machine id may join: the others are the copies."""
    same = [
        other for other in machines if other.probe and probe.machine_id and other.probe.machine_id == probe.machine_id
    ]
    if len(same) < 2 or same[0] is machine:
        return []
    original = same[0].host.name
    rename = same[0].probe is not None and same[0].probe.hostname == probe.hostname
    return [
        Finding(
            "error",
            "machine-id",
            machine.host.name,
            f"it has the machine-id of {original}: one disk is a copy of the other. On {machine.host.name}:",
            of_a_copy(machine.host.name, rename=rename),
        )
    ]


def needs_settling(verdict: Verdict, swarm: Swarm) -> bool:
    """Whether a member still lacks what its machine had before: a join that was interrupted, or one by plain Docker."""
    probe = verdict.machine.probe
    node = swarm.node(probe.engine.node_id) if probe and verdict.kind == "member" else None
    if probe is None or node is None:
        return False
    unknown = bool(probe.machine_id) and IDENTITY not in node.labels
    return unknown or bool(ghosts_of(probe.machine_id, swarm, alive_id=node.id))


def refuse_managers(swarm: Swarm, new: Sequence[Verdict], *, yes: bool) -> None:
    """Refuse to make managers that would harm.

    Raises:
        UsageError: Their number would be even, or one's address may change.
    """
    if not new or yes:
        return
    moving = [
        verdict.machine.host.name
        for verdict in new
        if verdict.machine.probe
        and any(
            address.dynamic
            for address in verdict.machine.probe.addresses
            if address.address == (verdict.machine.host.advertise or verdict.machine.probe.route.source)
        )
    ]
    if moving:
        raise UsageError(
            f"{', '.join(moving)} got the address by DHCP; a manager that loses its address is lost to the others. "
            "Reserve it in the router's settings first",
            "--yes           # it is reserved",
            "--role worker   # a worker's address may change",
        )
    count = len(swarm.managers) + len(new)
    if count % 2 == 0:
        raise UsageError(
            f"{count} managers bear no more failures than {count - 1}, and one more machine can fail; "
            "have an odd number",
            "--yes   # more are to come",
        )


# Doing it -------------------------------------------------------------------------------------------------------


def join_all(
    hosts: Sequence[Machine],
    found: Manager,
    settings: Settings,
    *,
    role_of: Callable[[Machine], Role],
    deadline_sec: float,
    on_done: Callable[[Machine, str | SwarmctlError], None],
) -> dict[str, str | SwarmctlError]:
    """Have machines join, `AT_ONCE` at a time; returns the node id or the error of each, by the host's name."""
    gate = threading.Semaphore(AT_ONCE)
    by_name = {machine.host.name: machine for machine in hosts}
    tokens = {"worker": found.swarm.worker_token, "manager": found.swarm.manager_token}

    asking = threading.Lock()

    def is_listed(node_id: str) -> bool:
        with asking:
            return found.again().node(node_id) is not None

    def work(connection: Connection) -> str:
        machine = by_name[connection.host.name]
        assert machine.probe
        with gate, engine_on(connection, sudo=machine.probe.engine.access.startswith("sudo")) as engine:
            return join_one(
                engine,
                managers=manager_addresses(found.swarm),
                token=tokens[role_of(machine)],
                advertise=machine.host.advertise or machine.probe.route.source,
                deadline_sec=deadline_sec,
                is_listed=is_listed,
            )

    return everywhere(
        [machine.host for machine in hosts],
        work,
        settings=settings.ssh,
        deadline=deadline_sec * (2 + len(hosts) // AT_ONCE),
        on_done=lambda host, result: on_done(by_name[host.name], result),
    )


def join_one(
    engine: Engine,
    *,
    managers: list[str],
    token: str,
    advertise: str,
    deadline_sec: float,
    is_listed: Callable[[str], bool] = lambda _: True,
) -> str:
    """Have one engine join, and wait until it is a node; returns the node's id.

    Args:
        engine: The machine's.
        managers: ``host:port`` of each.
        token: For the role.
        advertise: The machine's address.
        deadline_sec: For all of it.
        is_listed: Whether the managers have a node of this id.

    Raises:
        SwarmctlError: It did not become one, and has left again; or it is at home in another swarm.
    """
    end = time.monotonic() + deadline_sec
    if member := _make_free(engine, managers, is_listed):
        return member
    while True:
        try:
            engine.join(managers=managers, token=token, advertise=advertise)
            return _wait_until_active(engine, max(1.0, end - time.monotonic()))
        except SwarmctlError as error:
            _leave_half_joined(engine)
            if _is_final(error) or time.monotonic() > end:
                raise _explained(error, managers, engine.word) from error


def _make_free(engine: Engine, managers: Sequence[str], is_listed: Callable[[str], bool]) -> str:
    """Have an engine forget a swarm that has forgotten it; returns the node's id if it is a member of ours by now.

    Looked at once more right here: somebody else may have had it join since it was probed.

    Raises:
        EngineError: It is at home in another swarm, or locked.
    """
    now = engine.info()["Swarm"]
    state = now["LocalNodeState"]
    if state == "inactive":
        return ""
    ours = {address.rpartition(":")[0] for address in managers}
    known = {str(peer["Addr"]).rpartition(":")[0] for peer in now.get("RemoteManagers") or ()}
    if state == "active" and ours & known and is_listed(now["NodeID"]):
        return str(now["NodeID"])
    if state == "locked" or now.get("ControlAvailable") or (state == "active" and not ours & known):
        raise EngineError(
            f"{engine.host} is in another swarm" + (", as a manager" if now.get("ControlAvailable") else ""),
            "docker swarm leave --force   # on that machine: takes it out of that one; then join it again",
        )
    engine.leave(force=True)
    return ""


def _leave_half_joined(engine: Engine) -> None:
    """An engine that could not join goes on trying by itself, and would refuse another attempt."""
    if engine.info()["Swarm"]["LocalNodeState"] != "inactive":
        engine.leave(force=True)


def _wait_until_active(engine: Engine, deadline_sec: float) -> str:
    state: dict[str, str] = {}

    def settled() -> bool:
        state.update({key: str(value) for key, value in engine.info()["Swarm"].items()})
        return state["LocalNodeState"] in {"active", "error"}

    wait_until(settled, deadline_sec=deadline_sec, what=f"{engine.host} did not become a node")
    if state["LocalNodeState"] == "error":
        raise EngineError(f"{engine.host} did not become a node: {state.get('Error', '')}")
    return state["NodeID"]


def _is_final(error: SwarmctlError) -> bool:
    return "valid join token" in str(error)


def _explained(error: SwarmctlError, managers: list[str], host: str) -> SwarmctlError:
    if _is_final(error):
        return type(error)(str(error), "docker swarm join-token worker   # on a manager: the token that is valid now")
    return type(error)(f"{error} (tried {', '.join(managers)})", f"swarmctl doctor {host}")


def settle_all(
    joined: Mapping[str, str],
    found: Manager,
    identities: Mapping[str, str],
    *,
    deadline_sec: float,
    on_done: Callable[[str, Node, Swarm], None],
) -> tuple[list[Finding], list[str]]:
    """Give each new node what its machine had before, as soon as the managers have it.

    Args:
        joined: Node ids, by the host's name.
        found: The manager to ask.
        identities: Machine ids, by the host's name.
        deadline_sec: For all of it.
        on_done: Told of each node with the swarm as it was before the node was settled.

    Returns:
        What is wrong with them: a machine id that another machine has, too; and the hosts whose nodes did not appear.
    """
    waiting = dict(joined)
    findings: list[Finding] = []
    missed_by = time.monotonic() + _grace_sec(found.swarm)

    def all_settled() -> bool:
        swarm = found.again()
        for name, node_id in list(waiting.items()):
            node = swarm.node(node_id)
            identity = identities.get(name, "")
            twin = twin_of(identity, swarm, node_id)
            # What it was before it restarted is missed soon; a double that joins just now, or stays, is a machine.
            may_pass = twin is not None and twin.id not in joined.values() and time.monotonic() < missed_by
            if node is None or node.state != "ready" or may_pass:
                continue
            if twin:
                findings.append(_clone(name, twin))
            apply(settle(node, "" if twin else identity, swarm), found.engine)
            on_done(name, node, swarm)
            del waiting[name]
        return not waiting

    with suppress(WaitTimeoutError):
        wait_until(all_settled, deadline_sec=max(deadline_sec, _grace_sec(found.swarm)), what="")
    return findings, list(waiting)


def _grace_sec(swarm: Swarm) -> float:
    """How long the managers take to miss a node: three heartbeats, and a little."""
    heartbeat = swarm.spec.get("Dispatcher", {})
    assert isinstance(heartbeat, dict)
    return 3 * int(heartbeat.get("HeartbeatPeriod", 5e9)) / 1e9 + 5


def after_the_past(identities: Mapping[str, str], found: Manager, swarm: Swarm, alive: Collection[str] = ()) -> Swarm:
    """Wait for the managers to miss what machines were before they restarted; they do so after three heartbeats.

    Args:
        identities: Machine ids, by the id of the node that each machine is now.
        found: The manager to ask.
        swarm: As it was seen last.
        alive: Nodes known to be machines of their own.

    Returns:
        The swarm as it is then. A double that is still up is another machine.
    """
    seen = swarm

    def no_double() -> bool:
        nonlocal seen
        doubles = (twin_of(identity, seen, node_id) for node_id, identity in identities.items())
        if all(double is None or double.id in alive for double in doubles):
            return True
        seen = found.again()
        return False

    with suppress(WaitTimeoutError):
        wait_until(no_double, deadline_sec=_grace_sec(swarm), what="")
    return seen


def _clone(name: str, twin: Node) -> Finding:
    return Finding(
        "warning",
        "machine-id",
        name,
        f"{name} has the machine-id of {twin.hostname}, which is up: one disk is a copy of the other, "
        f"so neither can be known again after a rejoin. On {name}:",
        of_a_copy(name, rename=False),
    )


def tell_carried(node: Node, before: Sequence[Node]) -> str:
    """What a machine got back."""
    if not before:
        return ""
    hardware_class = before[0].labels.get("fdtc.class")
    kept = f"labels kept ({hardware_class})" if hardware_class else "labels kept"
    return f"{kept}, {len(before)} ghost{'s' if len(before) > 1 else ''} of {node.hostname} removed"
