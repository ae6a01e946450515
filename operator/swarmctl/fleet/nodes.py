"""`swarmctl nodes`: every node with what its machine is, how it is, and why. Pure; may import: ``evidence``,
``machines``, ``swarm``, ``tell``."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from cryptography import x509
from rich.text import Text

from .evidence import health
from .facts import Finding, Probe
from .label import class_of
from .machines import Machine
from .swarm import CLASS, CORES, IDENTITY, MEMORY, PROFILE, SOURCE, Node, Swarm
from .tell import Cell, Fitting, first_line, fit
from .where import address_of

Row = dict[str, Any]
_DAY_SEC = 86400
# Docker's words for what a kernel calls itself, where nobody looked closer yet.
_OF_THE_ENGINE = {"engine", "docker-access"}


def rows(machines: Sequence[Machine], swarm: Swarm, strangers: Sequence[Machine] = ()) -> list[Row]:
    """One row a node, and one for each host of the fleet file that is no node.

    Args:
        machines: Of all nodes; without a probe, only the swarm's word counts.
        swarm: As it was observed.
        strangers: Hosts of the fleet file that no node stands for.
    """
    return [_row(machine, swarm) for machine in machines] + [
        _stranger(machine) for machine in strangers if _counts(machine, swarm)
    ]


def _row(machine: Machine, swarm: Swarm) -> Row:
    node, probe = machine.node, machine.probe
    assert node
    is_it = probe is not None and not _has_moved_on(node, probe)
    described = probe if is_it else None
    return {
        "node": node.hostname,
        "id": node.id,
        "role": "leader" if node.leader else node.role,
        "class": class_of(node),
        "class_by": node.labels.get(SOURCE, ""),
        "profile": node.labels.get(PROFILE, ""),
        "arch": node.arch,
        "memory_mb": int(node.labels.get(MEMORY) or node.memory_mb),
        "cores": int(node.labels.get(CORES) or node.cores),
        "address": address_of(node),
        "link": _link(described),
        "engine": node.engine_version,
        "certificate_days": _days_left(described),
        "state": _state(node),
        "reason": _reason(machine, swarm),
        "health": [_as_data(finding) for finding in (_beside_the_reason(node, described) if described else ())],
    }


def _beside_the_reason(node: Node, probe: Probe) -> list[Finding]:
    """What is wrong with a machine, without what says already why its node is down."""
    told = _OF_THE_ENGINE if node.state != "ready" and _engine_trouble(probe) else set()
    return [finding for finding in health(probe) if finding.check not in told]


def _engine_trouble(probe: Probe) -> Finding | None:
    """Why its engine can't be asked."""
    return next((one for one in health(probe) if one.check in _OF_THE_ENGINE and one.severity == "error"), None)


def _has_moved_on(node: Node, probe: Probe) -> bool:
    """Whether the machine that answered is another node now, or never was this one."""
    identity = node.labels.get(IDENTITY)
    return bool(probe.engine.node_id and probe.engine.node_id != node.id) or bool(
        identity and probe.machine_id and identity != probe.machine_id
    )


def _stranger(machine: Machine) -> Row:
    probe, evidence = machine.probe, machine.evidence
    return {
        "node": machine.host.name,
        "id": "",
        "role": "",
        "class": evidence.hardware_class if evidence else "-",
        "class_by": "",
        "profile": evidence.profile if evidence else "",
        "arch": evidence.arch if evidence else "",
        "memory_mb": probe.memory_mb if probe else 0,
        "cores": probe.cores if probe else 0,
        "address": probe.route.source if probe else machine.host.address,
        "link": _link(probe),
        "engine": probe.engine.version if probe else "",
        "certificate_days": None,
        "state": "not in the swarm",
        "reason": _why_no_node(machine),
        "health": [_as_data(finding) for finding in (health(probe) if probe else ())],
    }


def _why_no_node(machine: Machine) -> str:
    """Why a host of the fleet file is in no swarm, or what has it join."""
    name, probe = machine.host.name, machine.probe
    if probe is None:
        return first_line(str(machine.error or ""), name)
    if any(finding.severity == "error" for finding in health(probe)):
        return "it can't join as it is"
    if probe.engine.swarm_state in {"active", "locked"}:
        return f"it is in another swarm; ssh {name} docker swarm leave --force, then swarmctl join {name}"
    return f"swarmctl join {name}"


def _counts(machine: Machine, swarm: Swarm) -> bool:
    """A host whose machine is a node already has its row."""
    if machine.probe is None:
        return True
    engine = machine.probe.engine
    return not (engine.swarm_state == "active" and swarm.node(engine.node_id)) and not _was_node(machine, swarm)


def _was_node(machine: Machine, swarm: Swarm) -> bool:
    return bool(machine.node) and swarm.node(machine.node.id if machine.node else "") is not None


def _state(node: Node) -> str:
    if node.state == "ready" and node.availability != "active":
        return {"drain": "drained", "pause": "paused"}[node.availability]
    if node.state == "ready" and node.reachability == "unreachable":
        return "unreachable"
    return node.state


def _reason(machine: Machine, swarm: Swarm) -> str:
    """Why a node is as it is, and what mends it; empty where there is nothing to say."""
    node, probe = machine.node, machine.probe
    assert node
    error = first_line(str(machine.error or ""), machine.host.name)
    if node.state == "ready":
        if node.availability != "active":
            return f"takes no work; swarmctl activate {node.hostname}"
        if node.reachability == "unreachable":
            return error or f"the other managers don't reach it; swarmctl doctor {machine.host.name}"
        unlabelled = "no class yet, so no worker is started on it; swarmctl label --auto"
        return "; ".join(filter(None, (error, "" if CLASS in node.labels else unlabelled)))
    if node.state == "unknown" and not (probe and _engine_trouble(probe)):
        return "; ".join(filter(None, (error, _not_heard_of(node))))
    if probe is None:
        said = error or node.message or "its engine does not call"
        return f"{said}; if it has another address now: swarmctl join ADDRESS"
    return _why_down(node, probe, machine.host.name, swarm)


def _not_heard_of(node: Node) -> str:
    if "leadership" in node.message:  # the managers' own words for it
        return "the managers have just changed their leader, and will know in some seconds"
    return f"the managers have not heard from it yet{': ' if node.message else ''}{node.message}"


def _why_down(node: Node, probe: Probe, host: str, swarm: Swarm) -> str:
    engine = probe.engine
    now_at = probe.route.source
    moved = f"it is at {now_at} now (was {address_of(node)})" if now_at not in {"", address_of(node)} else "it answers"
    identity = node.labels.get(IDENTITY)
    if identity and probe.machine_id != identity:
        return f"another machine ({probe.hostname}) has its address now"
    if engine.swarm_state == "active" and (other := swarm.node(engine.node_id)) and other.id != node.id:
        return f"a ghost: the machine is {other.hostname} ({other.id}) now; swarmctl doctor --fix"
    if trouble := _engine_trouble(probe):
        return f"{moved}, but {trouble.message}; {trouble.remedy[0]}"
    if engine.swarm_state == "inactive":
        return f"{moved} and is in no swarm any more; swarmctl join {host}"
    if engine.swarm_state == "active":
        return f"{moved}, but its engine can't reach the managers; swarmctl doctor {host}"
    return f"{moved}, its swarm state is {engine.swarm_state}; swarmctl join {host}"


def _link(probe: Probe | None) -> str:
    if probe is None or probe.route.wireless is None:
        return "-"
    return "wireless" if probe.route.wireless else "wired"


def _days_left(probe: Probe | None) -> int | None:
    """Days until the node's own swarm certificate ends; below 0: it has."""
    if probe is None or not probe.engine.certificate_pem:
        return None
    try:
        certificate = x509.load_pem_x509_certificate(probe.engine.certificate_pem.encode())
    except ValueError:
        return None
    return int((certificate.not_valid_after_utc - datetime.now(UTC)).total_seconds() // _DAY_SEC)


def _as_data(finding: Finding) -> Row:
    return {
        "severity": finding.severity,
        "check": finding.check,
        "message": finding.message,
        "remedy": list(finding.remedy),
    }


# For people ---------------------------------------------------------------------------------------------------

_COLORS = {"ready": "green", "down": "red", "unreachable": "red", "drained": "yellow", "paused": "yellow"}


_HEADINGS = (
    "NODE",
    "CLASS",
    "PROFILE",
    "ARCH",
    "MEMORY",
    "CORES",
    "LINK",
    "ADDRESS",
    "STATE",
    "HEALTH, REASON",
)


def render(found: Sequence[Row]) -> Fitting:
    """The rows as a table; on a narrow console what is wrong stands below it."""
    cells = [_cells(row) for row in found]
    spare = ("PROFILE", "ARCH", "CORES", "LINK")
    return Fitting(lambda width: fit(width, _HEADINGS, cells, spare, nothing=Text("ok", style="dim")))


def _cells(row: Row) -> list[Cell]:
    mark = {"leader": " *", "manager": " +"}.get(row["role"], "")
    by_user = " (yours)" if row["class_by"] == "user" else ""
    return [
        f"{row['node']}{mark}",
        f"{row['class']}{by_user}",
        row["profile"] or "-",
        row["arch"] or "-",
        f"{row['memory_mb'] / 1024:.1f} GiB" if row["memory_mb"] else "-",
        str(row["cores"] or "-"),
        row["link"],
        row["address"] or "-",
        Text(row["state"], style=_COLORS.get(row["state"], "yellow")),
        _notes(row),
    ]


def summary(found: Sequence[Row]) -> str:
    """One line below the table."""
    up = sum(row["state"] == "ready" for row in found)
    counts: dict[str, int] = {}
    for row in found:
        if row["state"] == "ready":
            counts[row["class"]] = counts.get(row["class"], 0) + 1
    classes = ", ".join(
        f"{count} {name if name != '-' else 'without a class'}" for name, count in sorted(counts.items())
    )
    return f"{up} of {len(found)} ready: {classes or 'none'}    * leader   + manager"


def _notes(row: Row) -> Text:
    notes = Text()
    if row["reason"]:
        notes.append(row["reason"], style="red" if row["state"] in {"down", "unreachable"} else "")
    for finding in row["health"]:
        notes.append("; " if notes else "")
        notes.append(finding["message"], style="red" if finding["severity"] == "error" else "yellow")
    if row["certificate_days"] is not None and row["certificate_days"] < 60:
        notes.append("; " if notes else "")
        notes.append(f"certificate ends in {row['certificate_days']} days")
    return notes
