"""The status of a local stack: as plain data (what ``--json`` prints) and as tables.

`report` is the only place that puts together what the supervisor and the coordinator know; its keys are documented in
``docs/local.md``. May import: ``local``, ``coordinator``, ``console``.
"""

import time
from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from .. import coordinator
from ..console import duration, number, times
from . import checkpoints
from .observe import Observed, how_it_ended
from .state import COORDINATOR, ProcessSpec, living_process

Report = dict[str, Any]
_TRAINING = (
    *("version", "loss", "tokens", "tokens_per_sec", "parameters", "bytes_received", "bytes_sent", "weights_pulled"),
    *("gradients_applied", "gradients_refused", "avg_staleness", "max_staleness", "compression", "learning_rate"),
    "uptime_sec",
)
_WORKER = (
    *("profile", "class", "batch_size", "accumulation_steps", "shard", "version", "pushes", "refused", "tokens"),
    *("loss", "samples_per_sec", "avg_staleness", "bytes_received", "last_seen_sec"),
)
_COLOURS = {
    "training": "green",
    "finishing": "blue",
    "finished": "blue",
    "paused": "yellow",
    "waiting": "yellow",
    "starting": "yellow",
    "connecting": "yellow",
    "stopping": "yellow",
    "restarting": "red",
}


def report(observed: Observed) -> Report:
    """Everything that is known of a stack, for programs."""
    deployment, status = observed.deployment, observed.status
    processes = [_process(observed, spec) for spec in deployment.processes]
    return {
        "stack": deployment.stack,
        "engine": "local",
        "state": _state(observed),
        "model": deployment.model,
        "source": deployment.source,
        "folder": str(observed.folder.path),
        "port": deployment.port,
        "http_port": deployment.http_port,
        "supervisor": {
            "running": observed.supervised,
            "pid": observed.state.supervisor_pid if observed.state and observed.supervised else None,
        },
        "training": _training(status) if status else None,
        "checkpoint": _checkpoint(observed),
        "services": _services(observed, processes),
        "processes": processes,
        "notes": _notes(observed),
    }


def render(facts: Report) -> RenderableType:
    """The same for people."""
    parts: list[RenderableType] = [_heading(facts), process_table(facts)]
    parts += [Text(f"! {note}", "yellow") for note in facts["notes"]]
    return Group(*parts)


# Facts ---------------------------------------------------------------------------------------------------------


def _state(observed: Observed) -> str:
    if observed.is_finished:
        return "finished"
    if not observed.supervised:
        return "unsupervised" if observed.living else "stopped"
    if observed.status is not None:
        # It says so as soon as the last step is done, and then still has its last checkpoint to write.
        return "finishing" if observed.run_state == "finished" else observed.run_state or "running"
    lead = observed.process(COORDINATOR)
    if lead is None or lead.state in {"waiting", "starting"}:
        return "starting"
    return "coordinator down" if lead.state != "running" else "coordinator does not answer"


def _training(status: Mapping[str, Any]) -> Report:
    run = status.get("run") if isinstance(status.get("run"), dict) else {}
    return {"steps": (run or {}).get("steps"), **{key: status.get(key) for key in _TRAINING}, **traffic(status)}


def traffic(status: Mapping[str, Any]) -> Report:
    """Work out what the gradients cost, from a coordinator's status or a checkpoint's manifest."""
    uncompressed, received = coordinator.uncompressed_bytes(dict(status)), status.get("bytes_received")
    return {
        "bytes_received": received,
        "bytes_per_token": coordinator.bytes_per_token(dict(status)),
        "bytes_uncompressed": uncompressed,
        "compression_ratio": uncompressed / received if uncompressed and received else None,
    }


def _checkpoint(observed: Observed) -> Report | None:
    known = observed.status.get("checkpoint") if observed.status else None
    if isinstance(known, dict):
        return {key: known.get(key) for key in ("version", "path", "age_sec")}
    kept = checkpoints.newest(observed.folder)
    if kept is None:
        return None
    age = time.time() - kept.path.stat().st_mtime
    return {"version": kept.version, "path": str(kept.path), "age_sec": round(age, 1)}


def _process(observed: Observed, spec: ProcessSpec) -> Report:
    process = observed.process(spec.name)
    seen = coordinator.worker(observed.status, spec.name)
    state = process.state if process else "stopped"
    if process and not observed.supervised and state not in {"finished", "failed", "stopped"}:
        state = "unwatched" if living_process(process) else "gone"
    elif state == "running" and spec.name != COORDINATOR:
        state = seen.get("state", "connecting")
    elif state == "running" and observed.status is not None:
        state = _state(observed)
    ending = process.last_ending if process else None
    return {
        "name": spec.name,
        "service": spec.service,
        "state": state,
        "pid": process.pid if process else None,
        "restarts": process.restarts if process else 0,
        "last_ending": {"at": ending.at, "exit_code": ending.code} if ending else None,
        **({key: seen.get(key) for key in _WORKER} if spec.name != COORDINATOR else {}),
    }


def _services(observed: Observed, processes: list[Report]) -> list[Report]:
    replicas = {COORDINATOR: 1, **observed.deployment.replicas}
    return [
        {
            "service": service,
            "wanted": wanted,
            "training": sum(p["service"] == service and p["state"] == "training" for p in processes),
        }
        for service, wanted in replicas.items()
    ]


def _notes(observed: Observed) -> list[str]:
    name = observed.folder.name
    notes = []
    for process in (observed.state.processes if observed.state else {}).values():
        if process.restarts:
            ago = f" {duration(time.time() - process.last_ending.at)} ago" if process.last_ending else ""
            how = f"last it {how_it_ended(process)}{ago}"
            notes.append(f"{process.name} was restarted {times(process.restarts)}; {how}")
    state = _state(observed)
    if state == "unsupervised":
        notes.append(f"the supervisor was killed; to be watched again: swarmctl deploy --stack {name} --local")
    elif state == "stopped":
        notes.append(f"nothing of it runs; to go on: swarmctl deploy --stack {name} --local")
    elif state.startswith("coordinator"):
        notes.append(f"see swarmctl logs coordinator --local --stack {name} --tail 20")
    if observed.deployment.source and state == "paused":
        notes.append(f"to go on: swarmctl resume --local --stack {name}")
    return notes


# Tables --------------------------------------------------------------------------------------------------------


def _heading(facts: Report) -> RenderableType:
    training: Mapping[str, Any] = facts["training"] or {}
    checkpoint = facts["checkpoint"]
    colour = _COLOURS.get(facts["state"], "red")
    title = Text.assemble(
        (facts["stack"], "bold"), "  ", (facts["state"], f"bold {colour}"), (f"  model {facts['model']}, local", "dim")
    )
    grid = Table.grid(padding=(0, 2))
    for style in ("dim", "", "dim", "", "dim", ""):
        grid.add_column(style=style, no_wrap=True)
    steps = training.get("steps")
    version = _plain(training.get("version")) + (f" of {steps}" if steps else "")
    ratio = training.get("compression_ratio")
    saved = f" (float32: {ratio:.1f} times as much)" if ratio else ""
    refused = sum((training.get("gradients_refused") or {}).values())
    at = f"version {checkpoint['version']}, {duration(checkpoint['age_sec'])} ago" if checkpoint else "none yet"
    staleness = f"{_decimal(training.get('avg_staleness'), 2)} (most {_plain(training.get('max_staleness'))})"
    up = f"{_decimal(training.get('bytes_per_token'), 1)} bytes/token{saved}"
    grid.add_row("version", version, "loss", _decimal(training.get("loss"), 3), "staleness", staleness)
    grid.add_row(
        *("tokens", number(training.get("tokens")), "speed", number(training.get("tokens_per_sec"), "tokens/s")),
        *("sent up", up),
    )
    grid.add_row(
        *("gradients", f"{_plain(training.get('gradients_applied'))}, {refused} refused"),
        *("since", duration(training.get("uptime_sec")), "checkpoint", at),
    )
    return Group(title, grid, Text())


def process_table(facts: Report) -> RenderableType:
    """The table of processes alone."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("name", no_wrap=True)
    table.add_column("class")
    table.add_column("profile", no_wrap=True)
    table.add_column("state", no_wrap=True)
    for name in ("batch", "samples/s", "loss", "pushes", "refused", "staleness", "restarts", "pid"):
        table.add_column(name, justify="right", no_wrap=True)
    for process in facts["processes"]:
        hardware_class = process["service"].removeprefix("worker-") if process["name"] != COORDINATOR else ""
        table.add_row(
            process["name"],
            hardware_class,
            process.get("profile") or "",
            Text(process["state"], _COLOURS.get(process["state"], "red" if process["state"] != "running" else "green")),
            *_figures(process),
            Text(str(process["restarts"]), "yellow" if process["restarts"] else "dim"),
            _plain(process["pid"]),
        )
    idle = [s["service"] for s in facts["services"] if s["wanted"] == 0]
    if not idle:
        return table
    return Group(table, Text(f"none wished: {', '.join(idle)}", "dim"))


def _figures(process: Report) -> tuple[str, ...]:
    if process["name"] == COORDINATOR:
        return ("",) * 6
    refused = process.get("refused")
    return (
        _plain(process.get("batch_size")),
        _decimal(process.get("samples_per_sec"), 1),
        _decimal(process.get("loss"), 3),
        _plain(process.get("pushes")),
        str(sum(refused.values())) if isinstance(refused, dict) else _plain(refused),
        _decimal(process.get("avg_staleness"), 2),
    )


def _plain(value: object) -> str:
    return "-" if value is None else str(value)


def _decimal(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
