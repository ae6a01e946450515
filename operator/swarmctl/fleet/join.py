"""`swarmctl join`: checks machines, has their engines join, and gives back what each was before.

May import: ``apply``, ``engine``, ``evidence``, ``everywhere``, ``machines``, ``plan``, ``where``, and the plain data.
"""

import threading
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
from .machines import Machine
from .plan import settle, twin_of
from .ssh import Connection
from .swarm import Node, Swarm
from .where import Manager, Settings, manager_addresses

Role = Literal["worker", "manager"]
# Each join makes the managers sign a certificate and tell everybody; more at once only take longer.
AT_ONCE = 8
ATTEMPTS = 2


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
    identities = Counter(machine.probe.machine_id for machine in machines if machine.probe and machine.probe.machine_id)
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
            *_copied_disk(machine, probe, identities),
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
    return bool(probe.machine_id) and probe.machine_id == node.labels.get("fdtc.identity")


def _copied_disk(machine: Machine, probe: Probe, identities: Mapping[str, int]) -> list[Finding]:
    if identities[probe.machine_id] < 2:
        return []
    name = machine.host.name
    return [
        Finding(
            "error",
            "machine-id",
            name,
            f"another machine has the same machine-id {probe.machine_id}: one disk is a copy of the other",
            (
                f"ssh {name} 'sudo rm /etc/machine-id && sudo systemd-machine-id-setup && sudo reboot'",
                f"ssh {name} 'sudo rm /etc/ssh/ssh_host_* && sudo ssh-keygen -A'   # these were copied, too",
            ),
        )
    ]


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
            )

    return everywhere(
        [machine.host for machine in hosts],
        work,
        settings=settings.ssh,
        deadline=deadline_sec * ATTEMPTS + deadline_sec * (len(hosts) // AT_ONCE),
        on_done=lambda host, result: on_done(by_name[host.name], result),
    )


def join_one(engine: Engine, *, managers: list[str], token: str, advertise: str, deadline_sec: float) -> str:
    """Have one engine join, and wait until it is a node; returns the node's id.

    Raises:
        SwarmctlError: It did not become one; it has left again, so it can be tried again.
    """
    for attempt in range(ATTEMPTS):
        if engine.info()["Swarm"]["LocalNodeState"] != "inactive":
            engine.leave(force=True)
        try:
            engine.join(managers=managers, token=token, advertise=advertise)
            return _wait_until_active(engine, deadline_sec)
        except SwarmctlError as error:
            if attempt == ATTEMPTS - 1 or _is_final(error):
                engine.leave(force=True) if engine.info()["Swarm"]["LocalNodeState"] != "inactive" else None
                raise _explained(error, managers, engine.host) from error
    raise AssertionError


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
) -> list[Finding]:
    """Wait until the managers have each new node, and give it what its machine had before.

    Args:
        joined: Node ids, by the host's name.
        found: The manager to ask.
        identities: Machine ids, by the host's name.
        deadline_sec: For each wait.
        on_done: Told of each node with the swarm as it was before the node was settled.

    Returns:
        What is wrong with them: a machine id that another machine has, too.
    """
    swarm = found.swarm

    def all_there() -> bool:
        nonlocal swarm
        swarm = found.again()
        up = {node.id for node in swarm.nodes if node.state == "ready"}
        return up.issuperset(joined.values())

    wait_until(all_there, deadline_sec=deadline_sec, what="the managers did not see every new node")
    swarm = after_the_past(
        {node_id: identities.get(name, "") for name, node_id in joined.items()}, found, swarm, joined.values()
    )
    findings = []
    for name, node_id in joined.items():
        node = swarm.node(node_id)
        assert node
        identity = identities.get(name, "")
        if twin := twin_of(identity, swarm, node_id):
            findings.append(_clone(name, twin))
            identity = ""
        apply(settle(node, identity, swarm), found.engine)
        on_done(name, node, swarm)
    return findings


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
    heartbeat = swarm.spec.get("Dispatcher", {})
    assert isinstance(heartbeat, dict)
    grace_sec = 3 * int(heartbeat.get("HeartbeatPeriod", 5e9)) / 1e9 + 5
    seen = swarm

    def no_double() -> bool:
        nonlocal seen
        doubles = (twin_of(identity, seen, node_id) for node_id, identity in identities.items())
        if all(double is None or double.id in alive for double in doubles):
            return True
        seen = found.again()
        return False

    with suppress(WaitTimeoutError):
        wait_until(no_double, deadline_sec=grace_sec, what="the managers did not miss a node")
    return seen


def _clone(name: str, twin: Node) -> Finding:
    return Finding(
        "warning",
        "machine-id",
        name,
        f"{name} has the machine-id of {twin.hostname}, which is up: one disk is a copy of the other, "
        "so neither can be known again after a rejoin",
        (f"ssh {name} 'sudo rm /etc/machine-id && sudo systemd-machine-id-setup && sudo reboot'",),
    )


def tell_carried(node: Node, before: Sequence[Node]) -> str:
    """What a machine got back."""
    if not before:
        return ""
    hardware_class = before[0].labels.get("fdtc.class")
    kept = f"labels kept ({hardware_class})" if hardware_class else "labels kept"
    return f"{kept}, {len(before)} ghost{'s' if len(before) > 1 else ''} of {node.hostname} removed"
