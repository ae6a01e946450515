"""The status of a stack in a swarm: fleet, services and training in one view, as plain data and as tables. Pure.

`report` is the only place that puts together what the swarm and the coordinator know; its keys are documented in
``docs/swarm.md``. May import: ``tasks``, ``plan``, ``state``; ``coordinator``, ``console``; ``fleet.swarm``.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from .. import coordinator
from ..console import duration, number
from ..fleet.swarm import CLASS, Node
from ..local.status import traffic
from .plan import COORDINATOR
from .state import Task
from .tasks import ServiceState, unfit

Report = dict[str, Any]
_TRAINING = (
    *("version", "loss", "tokens", "tokens_per_sec", "parameters", "bytes_received", "bytes_sent", "weights_pulled"),
    *("gradients_applied", "gradients_refused", "avg_staleness", "max_staleness", "compression", "learning_rate"),
    *("uptime_sec", "checkpoint_error"),
)
_WORKER = ("profile", "samples_per_sec", "loss", "pushes", "refused", "tokens", "avg_staleness", "last_seen_sec")
_TROUBLE = {"failed", "rejected", "orphaned"}


def report(
    stack: str,
    seen: Any,
    training: Mapping[str, Any] | None,
    why_not: str,
    last_words: Mapping[str, Sequence[str]],
) -> Report:
    """Everything that is known of a stack, for programs.

    Args:
        stack: Its name.
        seen: The swarm, and how each service is doing.
        training: The coordinator's status; None: it could not be asked.
        why_not: Why.
        last_words: What the program that failed last said, by service.
    """
    services: Mapping[str, ServiceState] = seen.services
    nodes: Sequence[Node] = seen.nodes
    names = {node.id: node.hostname for node in nodes}
    tasks = {
        state.service: [_task(state.service, task, names, training) for task in state.tasks]
        for state in services.values()
    }
    return {
        "stack": stack,
        "engine": "swarm",
        "state": _state(services, training),
        "fleet": _fleet(nodes),
        "training": _training(training) if training else None,
        "training_error": why_not,
        "services": [
            {
                **_service(state, seen, nodes),
                "why": [*state.why, *coordinator.often_stale(state.service, tasks[state.service])],
                "last_words": list(last_words.get(state.service, ())),
            }
            for state in services.values()
        ],
        "tasks": [row for rows in tasks.values() for row in rows],
    }


def _state(services: Mapping[str, ServiceState], training: Mapping[str, Any] | None) -> str:
    if training is not None:
        return coordinator.run_state(training) or "running"
    lead = services.get(COORDINATOR)
    if lead is None or not lead.wished:
        return "no coordinator"
    return "coordinator does not answer" if lead.running else "coordinator down"


def _fleet(nodes: Sequence[Node]) -> Report:
    classes: dict[str, dict[str, int]] = {}
    for node in nodes:
        entry = classes.setdefault(node.labels.get(CLASS, "-"), {"nodes": 0, "ready": 0})
        entry["nodes"] += 1
        entry["ready"] += node.state == "ready" and node.availability == "active"
    away = [
        {"node": node.hostname, "state": node.state if node.state != "ready" else node.availability}
        for node in nodes
        if node.state != "ready" or node.availability != "active"
    ]
    return {"nodes": len(nodes), "classes": classes, "away": away}


def _training(status: Mapping[str, Any]) -> Report:
    run = status.get("run")
    steps = run.get("steps") if isinstance(run, dict) else None
    return {"steps": steps, **{key: status.get(key) for key in _TRAINING}, **traffic(status)}


def _service(state: ServiceState, seen: Any, nodes: Sequence[Node]) -> Report:
    spec = seen.observed.services[state.service].spec
    per_node = [
        f"{node.hostname}: {reason}" for node in nodes if state.waiting and (reason := unfit(spec, node, seen.observed))
    ]
    return {
        "service": state.service,
        "wished": state.wished,
        "running": state.running,
        "starting": state.starting,
        "waiting": state.waiting,
        "failures": state.failures,
        "image": spec["TaskTemplate"]["ContainerSpec"].get("Image", ""),
        "nodes": per_node,
    }


def _task(service: str, task: Task, names: Mapping[str, str], training: Mapping[str, Any] | None) -> Report:
    name = f"{service}.{task.slot}" if task.slot is not None else service
    node = names.get(task.node_id, "")
    facts = _worker_facts(task, training) if service != COORDINATOR else {}
    return {
        "task": name,
        "id": task.id,
        "node": node,
        "state": task.state,
        "wanted": task.wanted,
        "why": (task.error or (task.message if task.state in _TROUBLE else "")),
        "exit_code": task.exit_code,
        "since": task.since,
        **{key: facts.get(key) for key in _WORKER if service != COORDINATOR},
    }


def _worker_facts(task: Task, training: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """What the coordinator knows of the worker in a task: its id begins with its host's name, the container's id."""
    own = task.container_id[:12]
    found = (worker for worker in (training or {}).get("workers") or [] if own and str(worker["id"]).startswith(own))
    return next(found, {})


# For people ---------------------------------------------------------------------------------------------------

_STYLES = {"running": "green", "failed": "red", "rejected": "red", "pending": "yellow", "orphaned": "red"}


def render(facts: Report) -> RenderableType:
    """The report for people."""
    parts: list[RenderableType] = [
        _heading(facts),
        _services_table(facts["services"]),
        Text(),
        _task_table(facts["tasks"]),
    ]
    for service in facts["services"]:
        parts += [Text(f"! {service['service']}: {line}", "yellow") for line in service["why"]]
        parts += [Text(f"    {line}", "dim") for line in service["last_words"]]
        parts += [Text(f"    {line}", "dim") for line in service["nodes"][:_MOST_LINES]]
        if len(service["nodes"]) > _MOST_LINES:
            parts.append(Text(f"    … and {len(service['nodes']) - _MOST_LINES} more nodes (--json)", "dim"))
    for away in facts["fleet"]["away"][:_MOST_LINES]:
        parts.append(Text(f"! {away['node']} is {away['state']}; swarmctl nodes tells why", "yellow"))
    if facts["training_error"]:
        parts.append(Text(f"! the training can't be asked: {facts['training_error']}", "yellow"))
    return Group(*parts)


_MOST_LINES = 8


def _heading(facts: Report) -> RenderableType:
    fleet, training = facts["fleet"], facts["training"]
    classes = ", ".join(
        f"{entry['ready']}/{entry['nodes']} {name if name != '-' else 'without a class'}"
        for name, entry in sorted(fleet["classes"].items())
    )
    lines = [
        Text.assemble((facts["stack"], "bold"), "  ", (facts["state"], "green" if training else "yellow")),
        Text.assemble(("fleet     ", "dim"), f"{fleet['nodes']} nodes: {classes}"),
    ]
    if training:
        steps = f" of {training['steps']}" if training.get("steps") else ""
        loss = "-" if training["loss"] is None else f"{training['loss']:.3f}"
        lines.append(
            Text.assemble(
                ("training  ", "dim"),
                f"version {training['version']}{steps}, loss {loss}, {number(training['tokens'])} tokens, "
                f"{number(training['tokens_per_sec'])} tokens/s, staleness {number(training['avg_staleness'])}, "
                f"up {duration(training['uptime_sec'])}",
            )
        )
        sent = training.get("bytes_received")
        if sent:
            lines.append(Text.assemble(("traffic   ", "dim"), f"{number(sent, 'B')} of gradients received"))
    return Group(*lines, Text())


def _services_table(services: Sequence[Report]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in ("SERVICE", "RUNNING", "STARTING", "WAITING", "FAILED", "IMAGE"):
        table.add_column(heading, overflow="fold")
    for row in services:
        whole = row["running"] >= row["wished"]
        table.add_row(
            row["service"],
            Text(f"{row['running']}/{row['wished']}", "green" if whole else "yellow"),
            str(row["starting"] or "-"),
            str(row["waiting"] or "-"),
            Text(str(row["failures"] or "-"), "red" if row["failures"] else ""),
            row["image"].partition("@")[0],
        )
    return table


def _task_table(tasks: Sequence[Report]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    waiting: dict[str, list[Report]] = {}
    for heading in ("TASK", "NODE", "STATE", "SAMPLES/S", "LOSS", "PUSHES", "WHY"):
        table.add_column(heading, overflow="fold")
    for row in tasks:
        if row["wanted"] not in {"running", "ready"} and row["state"] not in _TROUBLE:
            continue
        if not row["node"] and row["wanted"] == "running":
            waiting.setdefault(row["task"].rpartition(".")[0], []).append(row)
            continue
        loss = row.get("loss")
        table.add_row(
            row["task"],
            row["node"] or "-",
            Text(row["state"], _STYLES.get(row["state"], "yellow")),
            number(row.get("samples_per_sec")),
            "-" if loss is None else f"{loss:.3f}",
            number(row.get("pushes")),
            row["why"],
        )
    for service, rows in waiting.items():
        count = f" (and {len(rows) - 1} more)" if len(rows) > 1 else ""
        table.add_row(f"{service}{count}", "-", Text(rows[0]["state"], "yellow"), "-", "-", "-", rows[0]["why"])
    return table
