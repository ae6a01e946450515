"""Everything that doctor can find, from plain data to findings. Pure: no I/O.

`findings` is all that others need; ``docs/doctor.md`` has each check. A cause is told once: what a finding accounts
for, others leave out. May import: ``machine_checks``, ``node_checks``, ``swarm_checks``, ``reach``, ``facts``,
``observation``.
"""

from collections.abc import Iterable

from . import machine_checks, node_checks, swarm_checks
from .facts import Finding
from .observation import Machine, Observation, PairResult
from .reach import reach

__all__ = ["Finding", "Machine", "Observation", "PairResult", "findings", "reach"]

_OF_MACHINES = (
    machine_checks.unreachable,
    machine_checks.by_themselves,
    machine_checks.alike,
    machine_checks.addresses,
)
_OF_SWARMS = (
    node_checks.ghosts,
    swarm_checks.managers,
    swarm_checks.settings,
    swarm_checks.subnets,
    swarm_checks.engine_versions,
    node_checks.availability,
    node_checks.labels,
)


def findings(fleet: Observation) -> tuple[Finding, ...]:
    """Everything that is wrong, or may go wrong; each cause once."""
    machines = [found for check in _OF_MACHINES for found in check(fleet)]
    outdated = {found.where for found in machines if found.check == "certificate" and found.severity == "error"}
    members = node_checks.membership(fleet)
    members = [found for found in members if found.severity == "warning" or found.where not in outdated]
    nodes = [*members, *node_checks.node_address(fleet)]
    explained = _cut_off(fleet, [*machines, *nodes]) | outdated
    gone = node_checks.node_down(fleet, explained | {found.where for found in members})
    paths = reach(fleet, explained | {found.where for found in gone if not fleet.is_probed(found.where)})
    # A node that is down because a port is shut is told with the port.
    shut = {host for found in paths if found.check == "ports" for host in found.where.split(" -> ")}
    return (
        *machines,
        *nodes,
        *(found for found in gone if found.where not in shut),
        *(found for check in _OF_SWARMS for found in check(fleet)),
        *paths,
    )


def _cut_off(fleet: Observation, found: Iterable[Finding]) -> set[str]:
    """Hosts of which it is told already why nothing gets to them."""
    checks = {"unreachable", "membership", "node-address"}
    told = {one.where for one in found if one.check in checks and one.severity == "error"}
    shared = {host for _, hosts in machine_checks.shared_addresses(fleet) for host in hosts}
    without_engine = {m.host for m in fleet.machines if m.probe and m.probe.engine.access in {"absent", "down"}}
    return told | shared | without_engine
